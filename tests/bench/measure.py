"""Measure on a noisy machine: everything that is compared runs in turns, and medians of the turns are what counts."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measured:
    """One line of the report.

    Attributes:
        what: what was measured.
        values: one value per round.
        unit: "ms", "×" or "/s".
        budget: the limit, None where there is none.
        at_least: the budget is a lower limit.
    """

    what: str
    values: Sequence[float]
    unit: str
    budget: float | None = None
    at_least: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def within(self) -> bool | None:
        if self.budget is None:
            return None
        return self.median >= self.budget if self.at_least else self.median <= self.budget

    def row(self) -> list[str]:
        sign = "≥" if self.at_least else "≤"
        budget = "" if self.budget is None else f"{sign} {number(self.budget)} {self.unit}"
        verdict = {None: "", True: "within", False: "OVER"}[self.within]
        spread = f"{number(min(self.values))} – {number(max(self.values))}" if len(self.values) > 1 else ""
        return [self.what, f"{number(self.median)} {self.unit}", spread, budget, verdict]


def number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def in_turns(rounds: int, **measures: Callable[[], float]) -> dict[str, list[float]]:
    """Call each once per round, so that what disturbs the machine disturbs all of them; the first round warms up."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(rounds + 1):
        for name, measure in measures.items():
            value = measure()
            if turn:
                found[name].append(value)
    return found


def ratios(these: Sequence[float], those: Sequence[float]) -> list[float]:
    """Round by round, not median by median: a slow second slows both of its round."""
    return [this / that for this, that in zip(these, those, strict=True)]


def table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if 0 < column < 4 else cell.ljust(width) for column, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
