"""A small table that shows itself: as text in a terminal, as html in a notebook."""

import html
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from nbflow.core.durations import local
from nbflow.store.views import StepView


class Table:
    """Columns and rows; iterating gives the rows.

    Attributes:
        columns, rows: as given; cells are shown as text.
    """

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self.columns = tuple(columns)
        self.rows = [tuple(row) for row in rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Any:
        return iter(self.rows)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self.rows[index]

    def __repr__(self) -> str:
        lines = [list(self.columns), *([_text(cell) for cell in row] for row in self.rows)]
        widths = [max(len(line[place]) for line in lines) for place in range(len(self.columns))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th style='text-align:left'>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(_text(cell))}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def step_table(steps: Sequence[StepView], *, stable: bool) -> Table:
    """The steps of an instance, for where no panel can be shown; *stable* without times."""
    if stable:
        return Table(("step", "status", "error"), [(str(step.key), step.status.value, str(step.error or "")) for step in steps])
    rows = [(str(step.key), step.status.value, step.started_at, step.ended_at, str(step.error or "")) for step in steps]
    return Table(("step", "status", "started", "ended", "error"), rows)


def _text(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, datetime):
        return local(cell).strftime("%Y-%m-%d %H:%M:%S")
    return str(cell).replace("\n", " ")
