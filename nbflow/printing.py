"""What the shell prints: text that no terminal acts on, tables and JSON. A stream that takes nothing more ends no work."""

import io
import json
import math
import os
import sys
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import IO, Any

import click

from nbflow.core import durations
from nbflow.core.names import UNSAFE_IN_LINES, quoted

_SHORT = 4_000  # bits: a number of as many has fewer digits than Python and others refuse to read
_refused: list[OSError] = []


def say(text: str, *, err: bool = False) -> None:
    """Write text, which the history may have from a stranger, so that a terminal does not act on it."""
    _write(UNSAFE_IN_LINES.sub("�", text), sys.stderr if err else sys.stdout)


def tell(value: object, out: IO[str] | None) -> None:
    """Write JSON, to *out* or stdout."""
    _write(json.dumps(_told(value), default=_plain, allow_nan=False), out or sys.stdout)


def refused() -> OSError | None:
    """What kept an answer from being written. A reader that has gone, as of `| head`, wanted no more: that is no trouble."""
    return _refused[0] if _refused else None


def _write(text: str, stream: IO[str]) -> None:
    try:
        click.echo(text, file=stream)
    except OSError as error:
        mute(stream)
        if stream is not sys.stderr and not isinstance(error, BrokenPipeError):
            _refused.append(error)


def spell_out() -> None:
    """Letters that a stream does not know are written as their numbers: names are the user's, the encoding is the system's."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def mute(stream: IO[str]) -> None:
    """Have what is still to come go nowhere: Python writes what is left at its end, and would complain then."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)
    except (OSError, ValueError):
        pass  # a stream of Python alone


def stdout_alone() -> IO[str]:
    """What was stdout, for the answer alone: what bodies, files and their child processes print goes to stderr from now on.

    To the end of the process: what is called at exit prints too.
    """
    try:
        sys.stdout.flush()
        ours = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    except (OSError, ValueError):  # a stream of Python alone
        stdout, sys.stdout = sys.stdout, sys.stderr
        return stdout
    return os.fdopen(ours, "w", encoding="utf-8")


def table(columns: tuple[str, ...], rows: Any) -> str:
    """Rows as aligned text."""
    lines = [list(columns), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def as_json(value: object) -> object:
    """The value where JSON has it, else its text, cut."""
    try:
        return json.loads(json.dumps(_told(value)))
    except (TypeError, ValueError, RecursionError):
        return _repr(value)


def _repr(value: object) -> str:
    try:
        return repr(value)[:1000]
    except (ValueError, RecursionError):  # Python refuses to write very long integers
        return quoted(value)


def _told(value: object) -> object:
    """The same with text for the numbers that JSON has none for, as SQL shows them: "NaN", "Infinity", "-Infinity".

    And the digits of integers that are too long for readers of JSON.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and value.bit_length() > _SHORT:
        return str(Decimal(int(value)))
    if isinstance(value, Mapping):
        return {_told(key) if isinstance(key, int) else key: _told(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_told(one) for one in value]
    return value


def _plain(value: object) -> str:
    """The text of what JSON has no form for."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return durations.local(value).strftime("%Y-%m-%d %H:%M:%S")
    return str(value).partition("\n")[0]
