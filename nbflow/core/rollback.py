"""Which rollback handlers are due, in which order, and what a rollback has undone (S46 to S48).

Pure. A handler is a durable step of its own: type "rollback", name and count of the step it undoes.
"""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from nbflow.core.history import History, StepRecord
from nbflow.core.model import StepKey, StepState, StepType


def handler_key(key: StepKey) -> StepKey:
    """The step that undoes *key*."""
    return StepKey(StepType.ROLLBACK, key.name, key.count, key.key)


def due(history: History) -> list[StepRecord]:
    """Steps that started with a handler and are not rolled back, last started first; each item of a map is one."""
    steps = [step for step in history.steps.values() if step.rollback and not _handled(history, step)]
    found: list[StepRecord] = []
    for step in sorted(steps, key=lambda step: step.order, reverse=True):
        found += [step] if step.items is None else _items_of(history, step)
    return found


def _items_of(history: History, step: StepRecord) -> list[StepRecord]:
    """The items of a map that began, last first, as steps: of each no more than that it did."""
    assert step.items is not None
    unbegun = {item.key for item in step.items.open.values() if not item.begun}
    begun = [key for key in step.items.keys() if key not in unbegun]  # noqa: SIM118 - no dict
    keys = [StepKey(StepType.MAP, step.key.name, step.key.count, key) for key in reversed(begun)]
    items = [replace(step, key=key, value=None, body={}, items=None) for key in keys]
    return [item for item in items if not _handled(history, item)]


class Undone(NamedTuple):
    """What counts as done no more after a rollback (S48).

    Attributes:
        order: that of the earliest step whose handler has ended, or which has such a step in its body.
        map: that step, where it is a map of which some items were undone and others were not.
        keys: of those that were; empty where the step as a whole runs again.
    """

    order: int
    map: StepKey | None = None
    keys: tuple[str, ...] = ()

    @property
    def keep_below(self) -> int:
        """What a retry keeps: all before the step, and a map of which items stay."""
        return self.order + bool(self.keys)


def undone(history: History) -> Undone | None:
    """What of the instance was undone; None where nothing was."""
    if not any(key.type is StepType.ROLLBACK and step.state is StepState.FINISHED for key, step in history.steps.items()):
        return None
    places = {str(step.key): step for step in history.steps.values() if step.key.type is StepType.DO}
    orders, items = list[int](), dict[StepKey, set[str]]()
    for step in history.steps.values():
        if step.items is not None:
            if keys := {key for key in step.items.keys() if _is_undone(history, replace(step.key, key=key))}:  # noqa: SIM118
                items.setdefault(step.key, set()).update(keys)
        elif step.rollback and _handled(history, step):
            outer = _outermost(step, places)
            if (its := _item_at(history, outer.parent)) is None:
                orders.append(outer.order)
            else:
                items.setdefault(its[0], set()).add(its[1])
    first = min(items, key=lambda key: history.steps[key].order, default=None)
    if first is None or min(orders, default=history.steps[first].order) < history.steps[first].order:
        return Undone(min(orders)) if orders else None
    its_map = history.steps[first]
    assert its_map.items is not None
    stay = any(its_map.items.ended(key) and key not in items[first] for key in its_map.items.keys())  # noqa: SIM118
    return Undone(its_map.order, first, tuple(sorted(items[first]))) if stay else Undone(its_map.order)


def _outermost(step: StepRecord, places: Mapping[str, StepRecord]) -> StepRecord:
    """The step in whose body, or in a body in that, this one was called; itself where `run` or an item called it."""
    while step.parent is not None and step.parent in places:
        step = places[step.parent]
    return step


def _item_at(history: History, place: str | None) -> tuple[StepKey, str] | None:
    """The map and the key of the item whose body is that place."""
    if place is None:
        return None
    for key, step in history.steps.items():
        start = f"{StepKey(StepType.MAP, key.name, key.count)}["
        if step.items is not None and place.startswith(start) and step.items.state(place[len(start) : -1]) is not None:
            return key, place[len(start) : -1]
    return None


def _is_undone(history: History, key: StepKey) -> bool:
    handler = history.steps.get(handler_key(key))
    return handler is not None and handler.state is StepState.FINISHED


def _handled(history: History, step: StepRecord) -> bool:
    return _is_undone(history, step.key)
