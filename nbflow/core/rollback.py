"""Which rollback handlers are due, in which order, and what a rollback has undone (S46 to S48).

Pure. A handler is a durable step of its own: type "rollback", name and count of the step it undoes.
"""

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


def earliest_undone(history: History) -> int | None:
    """The order of the first step whose handler has ended: it and all after it no longer count as done (S48)."""
    items = {(key.name, key.count) for key, step in history.steps.items() if _undid_item(key, step)}
    undone = [
        step.order
        for key, step in history.steps.items()
        if step.rollback and (_handled(history, step) or (step.items is not None and (key.name, key.count) in items))
    ]
    return min(undone, default=None)


def _undid_item(key: StepKey, step: StepRecord) -> bool:
    return key.type is StepType.ROLLBACK and key.key is not None and step.state is StepState.FINISHED


def _handled(history: History, step: StepRecord) -> bool:
    handler = history.steps.get(handler_key(step.key))
    return handler is not None and handler.state is StepState.FINISHED
