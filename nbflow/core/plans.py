"""What a restart would keep and run again, for whoever is about to ask for one. Pure."""

from dataclasses import dataclass

from nbflow.core.history import History, StepRecord
from nbflow.core.model import StepKey, StepState, StepType
from nbflow.core.rollback import earliest_undone
from nbflow.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """Steps by what a restart does with them.

    Attributes:
        kept: finished steps that stay.
        again: steps that are dropped; the present code may call fewer of them, or others.
        asked: of those, answered waits whose answer is dropped too: people are asked once more.
        items: where it begins at an item of a map, finished ones beside it: they stay, though their map goes on.
    """

    kept: int
    again: tuple[StepKey, ...]
    asked: int
    items: int = 0


def restart_plan(history: History, from_step: StepKey | None) -> RestartPlan:
    """The plan of a restart from the start, or from one step and what started after it (S44)."""
    steps = sorted(
        (step for step in history.steps.values() if step.key.type is not StepType.ROLLBACK), key=lambda step: step.order
    )
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


def resume_plan(history: History) -> RestartPlan | None:
    """What resuming keeps and runs again where steps were undone (S48), None where none was; failed steps run again too."""
    undone = earliest_undone(history)
    if undone is None:
        return None
    steps = sorted(history.steps.values(), key=lambda step: step.order)
    falls = {step.key: step.order >= undone or (step.state is StepState.FAILED and step.items is None) for step in steps}
    again = [step.key for step in steps if falls[step.key] and step.key.type is not StepType.ROLLBACK]
    kept = sum(step.ended for step in steps if not falls[step.key] and step.key.type is not StepType.ROLLBACK)
    return RestartPlan(kept, tuple(again), 0)


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
