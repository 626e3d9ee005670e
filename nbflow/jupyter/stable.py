"""Answers without what differs between two runs of a notebook: times, generated ids, people and machines, for nbval."""

import re
from dataclasses import replace

from nbflow import ids
from nbflow.engine.commands import TIMES, Answer

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?([+-]\d\d:\d\d|Z)?|\d{8}T\d{4}Z")


def stable(answer: Answer) -> Answer:
    """The answer with no columns of times, and "…" for each moment and for what is generated of an id; nobody is named."""
    kept = [(place, name) for place, name in enumerate(answer.columns) if name not in TIMES]
    return replace(
        answer,
        line=_text(answer.line),
        columns=tuple(name for _, name in kept),
        rows=[tuple(_cell(name, row[place]) for place, name in kept) for row in answer.rows],
    )


def _cell(column: str, cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    if column == "more":  # what an entry says beside itself, who said it too: by default user@host
        cell = ", ".join(part for part in cell.split(", ") if not part.startswith("by="))
    return _text(cell)


def _text(text: str) -> str:
    return _MOMENT.sub("…", ids.GENERATED.sub("…", text))
