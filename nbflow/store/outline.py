"""The list of steps as people read it: many steps of one name are one line, until somebody opens it.

Made from the fold itself, without a view of each step: ten thousand of them cost some milliseconds.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from nbflow.core.history import History, StepRecord
from nbflow.core.model import StepState, StepType
from nbflow.store.views import StepView

FOLDED = 20
"""More steps of one name than this fold into a group."""

_RECENT = 60.0

Name = tuple[StepType, str]
Wanted = Callable[[StepRecord], bool]


@dataclass(frozen=True, slots=True)
class GroupView:
    """More than 20 steps of one type and name.

    Attributes:
        states: how many stand where.
        ended_at: None while one of them is open.
        rate: of those that ended in the last minute, how many a second; None where none runs.
        opened: its steps are the lines that follow.
    """

    type: StepType
    name: str
    order: int
    total: int
    states: dict[StepState, int]
    from_history: int
    started_at: datetime
    ended_at: datetime | None
    rate: float | None
    opened: bool


Line = GroupView | StepView
_Found = tuple[GroupView | StepRecord, bool]


@dataclass(frozen=True, slots=True)
class Page:
    """Some lines of an outline.

    Attributes:
        total: lines in all.
        start: the place of the first.
        lines: each with whether it stands inside a group.
    """

    total: int
    start: int
    lines: list[tuple[Line, bool]]


def outline(
    history: History, now: datetime, opened: frozenset[Name] = frozenset(), wanted: Wanted | None = None
) -> list[_Found]:
    """The lines in order of start, each with whether it stands inside a group; with *wanted* those steps, ungrouped."""
    ordered = sorted(history.steps.values(), key=lambda step: step.order)
    if wanted is not None:
        return [(step, False) for step in ordered if wanted(step)]
    counts = Counter((step.key.type, step.key.name) for step in ordered)
    folded = {name for name, count in counts.items() if count > FOLDED}
    if not folded:
        return [(step, False) for step in ordered]
    members: dict[Name, list[StepRecord]] = {name: [] for name in folded}
    lines: list[_Found | Name] = []
    for step in ordered:
        name = (step.key.type, step.key.name)
        if name not in folded:
            lines.append((step, False))
            continue
        if not members[name]:
            lines.append(name)
        members[name].append(step)
    return list(_unfolded(lines, members, history, now, opened))


def _unfolded(
    lines: Iterable[_Found | Name],
    members: dict[Name, list[StepRecord]],
    history: History,
    now: datetime,
    opened: frozenset[Name],
) -> Iterable[_Found]:
    for line in lines:
        if not isinstance(line[0], StepType):
            yield line
            continue
        name: Name = line
        yield _group(name, members[name], history, now, opened=name in opened), False
        if name in opened:
            yield from ((step, True) for step in members[name])


def _group(name: Name, steps: list[StepRecord], history: History, now: datetime, *, opened: bool) -> GroupView:
    states = Counter(step.state for step in steps)
    is_open = states[StepState.RUNNING] + states[StepState.RETRYING] + states[StepState.SLEEPING] + states[StepState.WAITING]
    started = steps[0].started_at
    rate = None
    if states[StepState.RUNNING]:
        since = now - timedelta(seconds=_RECENT)
        first = min(step.started_at for step in steps if step.key not in history.replayed)
        seconds = min(_RECENT, (now - first).total_seconds())
        recent = sum(
            1 for step in steps if step.ended_at is not None and step.ended_at >= since and step.key not in history.replayed
        )
        rate = recent / seconds if seconds >= 1 and recent >= 2 else None
    return GroupView(
        type=name[0],
        name=name[1],
        order=steps[0].order,
        total=len(steps),
        states=dict(states),
        from_history=sum(step.key in history.replayed for step in steps),
        started_at=started,
        ended_at=None if is_open else max((step.ended_at for step in steps if step.ended_at is not None), default=None),
        rate=rate,
        opened=opened,
    )
