"""Which rollback handlers are due, in which order, and what a rollback has undone (S46 to S48).

Pure. A handler is a durable step of its own: type "rollback", name and count of the step it undoes.
"""

from nbflow.core.history import History, StepRecord
from nbflow.core.model import StepKey, StepState, StepType


def handler_key(key: StepKey) -> StepKey:
    """The step that undoes *key*."""
    return StepKey(StepType.ROLLBACK, key.name, key.count, key.key)


def due(history: History) -> list[StepRecord]:
    """Steps that started with a handler and are not rolled back, last started first."""
    steps = [step for step in history.steps.values() if step.rollback and not _handled(history, step)]
    return sorted(steps, key=lambda step: step.order, reverse=True)


def earliest_undone(history: History) -> int | None:
    """The order of the first step whose handler has ended: it and all after it no longer count as done (S48)."""
    return min((step.order for step in history.steps.values() if step.rollback and _handled(history, step)), default=None)


def _handled(history: History, step: StepRecord) -> bool:
    handler = history.steps.get(handler_key(step.key))
    return handler is not None and handler.state is StepState.FINISHED
