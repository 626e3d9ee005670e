"""The list of steps as people read it: many steps of one name are one line, until somebody opens it.

Made from the fold itself, without a view of each step: ten thousand of them cost some milliseconds.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from nbflow.core.history import History, StepRecord
from nbflow.core.model import Kind, StepKey, StepState, StepType
from nbflow.core.told import item_says, item_state, steps_as_told
from nbflow.store.views import StepView

FOLDED = 20
"""More steps of one name than this fold into a group."""

_RECENT = 60.0

Name = tuple[StepType, str]
Wanted = Callable[[StepRecord], bool]
Said = Mapping[StepKey, Mapping[str, Kind]]
"""Of maps, the keys of some items, each with the kind of the entry that recorded what became of it."""


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


@dataclass(frozen=True, slots=True)
class ItemRange:
    """Lines that are items of a map, start…stop of *keys*, or of those in *state*; read from the store by page."""

    name: str
    count: int
    start: int
    stop: int
    state: StepState | None = None
    keys: tuple[str, ...] | None = None


Line = GroupView | StepView
Found = GroupView | StepRecord | ItemRange
"""What an outline knows of a line; of the items of a map, of many lines at once."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some lines of an outline.

    Attributes:
        total: lines in all.
        start: the place of the first.
        lines: each with whether it stands inside a group.
        unreached: steps that are recorded and that the present code does not reach.
        abandoned: names of steps whose body still runs in its thread, though nobody waits for it any more (S26).
        more: there are more lines that match than were looked for.
    """

    total: int
    start: int
    lines: list[tuple[Line, bool]]
    unreached: Collection[StepKey] = ()
    abandoned: Collection[str] = ()
    more: bool = False


class Outline:
    """The lines of an instance's steps, in order of start."""

    def __init__(self) -> None:
        self._parts: list[tuple[Found, bool]] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def add(self, line: Found, *, inside: bool = False) -> None:
        """Append a line, or the lines of some items."""
        lines = line.stop - line.start if isinstance(line, ItemRange) else 1
        if lines:
            self._parts.append((line, inside))
            self._ends.append(len(self) + lines)

    def add_all(self, steps: list[StepRecord]) -> None:
        """Append the steps of an opened group."""
        begin = len(self)
        self._parts += [(step, True) for step in steps]
        self._ends += range(begin + 1, begin + len(steps) + 1)

    def between(self, start: int, stop: int) -> list[tuple[Found, bool]]:
        """The lines start…stop, each with whether it stands inside a group."""
        found: list[tuple[Found, bool]] = []
        place = bisect_right(self._ends, start)
        while place < len(self._parts) and (begin := self._ends[place - 1] if place else 0) < stop:
            line, inside = self._parts[place]
            if isinstance(line, ItemRange):
                first = line.start + max(0, start - begin)
                last = min(line.stop, line.start + stop - begin)
                line = replace(line, start=first, stop=last)
            found.append((line, inside))
            place += 1
        return found


def outline(
    history: History,
    now: datetime,
    opened: frozenset[Name] = frozenset(),
    wanted: Wanted | None = None,
    state: StepState | None = None,
    text: str = "",
    said: Said | None = None,
) -> Outline:
    """The lines in order of start; with *wanted* those steps, ungrouped, and the items that *state* and *text* leave.

    Args:
        said: of maps, the items whose outcome says *text*.
    """
    ordered = sorted(steps_as_told(history), key=lambda step: step.order)
    lines = Outline()
    if wanted is not None:
        for step in ordered:
            if wanted(step):
                lines.add(step)
            if step.items is not None and text in str(step.key).casefold() and state is not None:
                lines.add(_items(history, step, state), inside=True)
            elif step.items is not None:
                lines.add(_items_with(history, step, state, text, (said or {}).get(step.key, {})), inside=True)
        return lines
    folded = _folded(ordered)
    members: dict[str, list[tuple[StepType, list[StepRecord]]]] = {}
    for step in ordered:
        key = step.key
        if step.items is not None:
            lines.add(step)
            if (key.type, key.name) in opened:
                lines.add(_items(history, step), inside=True)
        elif key.type not in folded.get(key.name, ()):
            lines.add(step)
        else:
            same = next((some for kind, some in members.setdefault(key.name, []) if kind is key.type), None)
            if same is None:
                same = [one for one in ordered if one.key.name == key.name and one.key.type is key.type and one.items is None]
                members[key.name].append((key.type, same))
                lines.add(_group((key.type, key.name), same, history, now, opened=(key.type, key.name) in opened))
                if (key.type, key.name) in opened:
                    lines.add_all(same)
    return lines


def _folded(steps: list[StepRecord]) -> dict[str, list[StepType]]:
    """Of each name, the types of which there are more than fit a list. Names are counted first: hashing an enum is slow."""
    many = {name for name, count in Counter([step.key.name for step in steps]).items() if count > FOLDED}
    found: dict[str, list[StepType]] = {}
    for name in many:
        counts = Counter([step.key.type for step in steps if step.key.name == name and step.items is None])
        found[name] = [kind for kind, count in counts.items() if count > FOLDED]
    return found


def _items(history: History, step: StepRecord, state: StepState | None = None) -> ItemRange:
    items = step.items
    assert items is not None
    count = len(items) if state is None else sum(item_state(history, step, key) is state for key in items.keys())  # noqa: SIM118
    return ItemRange(step.key.name, step.key.count, 0, count, state)


def _items_with(history: History, step: StepRecord, state: StepState | None, text: str, said: Mapping[str, Kind]) -> ItemRange:
    """The items in whose own name *text* is, or whose outcome says it."""
    items = step.items
    assert items is not None
    says = {key for key, kind in said.items() if (at := item_says(history, step, key, kind)) and state in (None, at)}
    name = str(step.key)
    if text in name.casefold():  # all are called so
        keys = tuple(key for key in items.keys() if key in says) if says else ()  # noqa: SIM118
    else:
        found = (key for key in items.keys() if key in says or text in f"{name}[{key}]".casefold())  # noqa: SIM118
        keys = tuple(key for key in found if key in says or state is None or item_state(history, step, key) is state)
    return ItemRange(step.key.name, step.key.count, 0, len(keys), state, keys)


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
        from_history=sum(step.key in history.replayed for step in steps) if history.replayed else 0,
        started_at=started,
        ended_at=None if is_open else max((step.ended_at for step in steps if step.ended_at is not None), default=None),
        rate=rate,
        opened=opened,
    )
