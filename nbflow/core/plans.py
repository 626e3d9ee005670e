"""What a restart or a retry would keep and run again, for whoever is about to ask for one. Pure."""

from dataclasses import dataclass
from typing import Any

from nbflow.core.history import History, StepRecord
from nbflow.core.maps import map_name, with_failed_items
from nbflow.core.model import StepKey, StepState, StepType
from nbflow.core.rollback import undone
from nbflow.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """Steps by what a restart does with them.

    Attributes:
        kept: finished steps that stay.
        again: steps that are dropped; the present code may call fewer of them, or others.
        asked: of those, answered waits whose answer is dropped too: people are asked once more.
        items: finished items of maps that go on: they stay.
        rolled_back: what runs again was undone, or came after something that was.
    """

    kept: int
    again: tuple[StepKey, ...]
    asked: int
    items: int = 0
    rolled_back: bool = False


def retried_from(history: History, *, items: bool = False) -> dict[str, Any]:
    """What a retry opens again: after a rollback all from the earliest step that was undone (S48); maps that failed.

    With *items* also maps that ended well with failed items; what started after such a map ended runs again (S61).
    """
    maps = with_failed_items(history, ended_well=items)
    body: dict[str, Any] = {"maps": [map_name(step.key) for step in maps]} if maps else {}
    after = [step.items.order_seen + 1 for step in maps if step.items and step.state is StepState.FINISHED]
    gone = undone(history)
    if gone is not None and gone.map is not None:
        body["undone"] = {"map": map_name(gone.map), "keys": list(gone.keys)}
    below = min(after if gone is None else [gone.keep_below, *after], default=None)
    return body if below is None else body | {"keep_below": below}


def retry_plan(history: History, retried: dict[str, Any]) -> RestartPlan:
    """The plan of a retry, of which the entry would say that (S41, S48, S61)."""
    below, gone = retried.get("keep_below"), retried.get("undone")
    opened = {*retried.get("maps", ()), *([gone["map"]] if gone else [])}
    again, kept, beside = list[StepKey](), 0, 0
    for step in _in_order(history):
        key, dropped = step.key, below is not None and step.order >= below
        if step.items is not None and map_name(key) in opened and not dropped:
            items = gone["keys"] if gone and map_name(key) == gone["map"] else []
            again += [StepKey(key.type, key.name, key.count, item) for item in items] or [key]
            beside += step.items.done - sum(not step.items.is_failed(item) for item in items)
        elif dropped or step.state is StepState.FAILED:
            again.append(key)
        else:
            kept += step.state is StepState.FINISHED
    return RestartPlan(kept, tuple(again), 0, beside, gone is not None or (below is not None and _rolled_back(history)))


def undone_plan(history: History) -> RestartPlan | None:
    """The plan of resuming where steps were undone (S48), None where none was."""
    plan = None if history.head.rollback is None else retry_plan(history, retried_from(history))
    return plan if plan is not None and plan.rolled_back else None


def _rolled_back(history: History) -> bool:
    return any(key.type is StepType.ROLLBACK for key in history.steps)


def _in_order(history: History) -> list[StepRecord]:
    """Its steps by order; the handlers that undo them are not what runs again."""
    return sorted(
        (step for step in history.steps.values() if step.key.type is not StepType.ROLLBACK), key=lambda step: step.order
    )


def restart_plan(history: History, from_step: StepKey | None) -> RestartPlan:
    """The plan of a restart from the start, or from one step and what started after it (S44)."""
    steps = _in_order(history)
    its_map = map_of(history, from_step)
    if from_step is not None and its_map is not None:
        return _plan_of_item(history, steps, its_map, from_step)
    if from_step is not None and from_step not in history.steps:
        msg = f"no step {str(from_step)!r} is recorded; it may have been dropped by a restart"
        raise NotFoundError(msg)
    first = 0 if from_step is None else history.steps[from_step].order
    again = [step for step in steps if step.order >= first]
    kept = sum(step.state is StepState.FINISHED for step in steps if step.order < first)
    return RestartPlan(kept, tuple(step.key for step in again), sum(map(_answered, again)) if from_step is None else 0)


def map_of(history: History, key: StepKey | None) -> StepRecord | None:
    """The map that has an item of that key, None where nothing (that counts) is recorded of one."""
    if key is None or key.type is not StepType.MAP or key.key is None:
        return None
    step = history.steps.get(StepKey(StepType.MAP, key.name, key.count))
    return step if step is not None and step.items is not None and step.items.state(key.key) is not None else None


def keep_below(history: History, its_map: StepRecord) -> int:
    """A restart from an item of that map keeps what has a lower order: what started after the map ended goes (S44)."""
    items = its_map.items
    assert items is not None
    after = its_map.order if items.handed else items.order_at_end if its_map.ended else history.last_order
    return after + 1


def _plan_of_item(history: History, steps: list[StepRecord], its_map: StepRecord, item: StepKey) -> RestartPlan:
    items, below, inside = its_map.items, keep_below(history, its_map), str(item)
    assert items is not None
    assert item.key is not None
    falls = [step.order >= below or step.parent == inside for step in steps]
    again = [step.key for step, goes in zip(steps, falls, strict=True) if goes]
    stay = [step for step, goes in zip(steps, falls, strict=True) if not goes and step is not its_map]
    beside = items.done - (items.ended(item.key) and not items.is_failed(item.key))
    return RestartPlan(sum(step.state is StepState.FINISHED for step in stay), (item, *again), 0, beside)


def _answered(step: StepRecord) -> bool:
    return step.key.type is StepType.WAIT and step.state is StepState.FINISHED
