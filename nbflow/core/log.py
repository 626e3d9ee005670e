"""What a body printed, logged, warned and displayed: items, the chunks that are stored, and their text.

Pure. A chunk holds what one attempt put out in about a second; reading a step's log means reading its chunks.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec

from nbflow.core.model import StepKey

TEXTS = frozenset({"stdout", "stderr", "warning"})
"""Streams whose items go on where the last one ended; an item of any other is a line of its own."""


LAST = 500
"""Chunks that are read where the logs of all steps are asked for."""


@dataclass(frozen=True, slots=True)
class LogItem:
    """One piece of what an attempt put out.

    Attributes:
        attempt: the number of the attempt, 1-based.
        stream: "stdout", "stderr", "log", "warning", "display" or "note" (what nbflow says of the log itself).
        text: what a terminal would show; of a display its text/plain.
        mime: of a display what it is made of, by type; images as base64.
        at: when it began, aware UTC.
    """

    attempt: int
    stream: str
    text: str
    mime: dict[str, str] | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a running body is, by `ctx.progress` or a tqdm bar."""

    done: float
    total: float | None = None
    note: str = ""


class LogChunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of one attempt's log as it is stored.

    Attributes:
        started_at: when the attempt began: tells it from attempts of the same number before a restart.
        part: its place among the chunks of the attempt, from 0.
        items: JSON, a list of `{"stream", "at", "text", ["mime"]}`.
    """

    created_seq: int
    type: str
    step: str
    count: int
    attempt: int
    started_at: datetime
    part: int
    items: str
    key: str | None = None

    def holds(self, key: StepKey) -> bool:
        """Whether it is of that step."""
        return (self.step, self.count, self.key, self.type) == (key.name, key.count, key.key, key.type.value)


class _Item(msgspec.Struct, omit_defaults=True):
    stream: str
    text: str
    at: datetime | None = None
    mime: dict[str, str] | None = None


_decode = msgspec.json.Decoder(list[_Item]).decode


def packed(items: Iterable[LogItem]) -> str:
    """Items as the text that a chunk holds."""
    plain = [_Item(item.stream, item.text.replace("\0", "\u2400"), item.at, item.mime) for item in items]
    try:
        return msgspec.json.encode(plain).decode()
    except UnicodeEncodeError:  # half of a surrogate pair has no place in JSON: shown escaped
        return json.dumps(_escaped(msgspec.to_builtins(plain)), ensure_ascii=False)


def _escaped(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {key: _escaped(item) for key, item in value.items()}
        case list():
            return [_escaped(item) for item in value]
    return value


def unpacked(chunk: LogChunk) -> list[LogItem]:
    """The items of a chunk."""
    return [LogItem(chunk.attempt, item.stream, item.text, item.mime, item.at) for item in _decode(chunk.items)]


def joined(items: Iterable[LogItem]) -> tuple[LogItem, ...]:
    """Items in order, with those that chunks have cut in two put together again."""
    whole: list[LogItem] = []
    texts: list[str] = []

    def end() -> None:
        if texts:
            whole[-1] = replace(whole[-1], text=settled("".join(texts)))
            texts.clear()

    for item in items:
        last = whole[-1] if whole else None
        goes_on = last is not None and item.stream in TEXTS and (item.stream, item.attempt) == (last.stream, last.attempt)
        if not goes_on:
            end()
            whole.append(item)
        texts.append(item.text)
    end()
    return tuple(whole)


def text_of(items: Sequence[LogItem]) -> str:
    """The text of all of it, as a terminal would show it."""
    parts: list[str] = []
    at_start = True
    for item in items:
        whole_lines = item.stream not in TEXTS
        if not item.text:
            continue
        if whole_lines and not at_start:
            parts.append("\n")
        parts.append(item.text)
        if whole_lines and not item.text.endswith("\n"):
            parts.append("\n")
        at_start = whole_lines or item.text.endswith("\n")
    return "".join(parts)


def settled(text: str) -> str:
    """Text without carriage returns: of what was written over one line, the last state."""
    if "\r" not in text:
        return text
    return "\n".join(map(overstruck, text.replace("\r\n", "\n").split("\n")))


def overstruck(line: str) -> str:
    """What a terminal shows of a line with carriage returns."""
    if "\r" not in line:
        return line
    shown = ""
    for segment in line.split("\r"):
        shown = segment + shown[len(segment) :]
    return shown.rstrip(" ")


def size_of(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def cut_to(text: str, size: int) -> str:
    """The beginning of a text that takes at most *size* bytes."""
    if len(text) <= size and size_of(text) <= size:
        return text
    return text[:size].encode("utf-8", "surrogatepass")[:size].decode("utf-8", "ignore")
