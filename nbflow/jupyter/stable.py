"""Answers without what differs between two runs of a notebook: times, generated ids, people and machines, for nbval."""

import re
from dataclasses import replace
from pathlib import PurePath

from nbflow import ids
from nbflow.core.model import Kind
from nbflow.engine.commands import TIMES, Answer

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?([+-]\d\d:\d\d|Z)?|\d{8}T\d{4}Z")
_LEFT_OUT = TIMES | {"seq"}
_SOON = frozenset({Kind.DO_STARTED.value, Kind.ROLLBACK_STARTED.value})
"""What is recorded of a body that does not end at once: how fast it was, no run has in common with another."""
_FACTS = frozenset({"uid", "size", "entries", "journalled", "holder", "engines"})
"""What is said of a store that no two runs have in common."""


def stable(answer: Answer) -> Answer:
    """The answer with no columns of times, and "…" for each moment and for what is generated of an id; nobody is named.

    Of the facts of a store those stay that another run finds too, of its path the file's name; of a history no numbers, which
    are the whole store's, and no starts of bodies, which are recorded of slow ones alone.
    """
    kept = [(place, name) for place, name in enumerate(answer.columns) if name not in _LEFT_OUT]
    rows = answer.rows
    if answer.columns[:1] == ("fact",):
        rows = [_fact(*row) for row in rows if row[0] not in _FACTS]
    elif "what" in answer.columns:
        rows = [row for row in rows if row[answer.columns.index("what")] not in _SOON]
    return replace(
        answer,
        line=text(answer.line),
        columns=tuple(name for _, name in kept),
        rows=[tuple(_cell(name, row[place]) for place, name in kept) for row in rows],
    )


def text(given: str) -> str:
    """The text with "…" for each moment and for what is generated of an id."""
    return _MOMENT.sub("…", ids.GENERATED.sub("…", given))


def _fact(name: str, value: object) -> tuple[str, object]:
    return name, PurePath(value).name if name == "path" and isinstance(value, str) else value


def _cell(column: str, cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    if column == "more":  # what an entry says beside itself, who said it too: by default user@host
        cell = ", ".join(part for part in cell.split(", ") if not part.startswith("by="))
    return text(cell)
