"""Answers without what differs between two runs of a notebook: times and generated ids, for nbval."""

import re
from dataclasses import replace

from nbflow import ids
from nbflow.engine.commands import TIMES, Answer

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?([+-]\d\d:\d\d|Z)?|\d{8}T\d{4}Z")


def stable(answer: Answer) -> Answer:
    """The answer with no columns of times, and "…" for each moment and for what is generated of an id."""
    kept = [place for place, name in enumerate(answer.columns) if name not in TIMES]
    return replace(
        answer,
        line=_text(answer.line),
        columns=tuple(answer.columns[place] for place in kept),
        rows=[tuple(_cell(row[place]) for place in kept) for row in answer.rows],
    )


def _cell(cell: object) -> object:
    return _text(cell) if isinstance(cell, str) else cell


def _text(text: str) -> str:
    return _MOMENT.sub("…", ids.GENERATED.sub("…", text))
