"""What a restart would keep and run again, for whoever is about to ask for one. Pure."""

from dataclasses import dataclass

from nbflow.core.history import History, StepRecord
from nbflow.core.model import StepKey, StepState, StepType
from nbflow.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """Steps by what a restart does with them.

    Attributes:
        kept: finished steps that stay.
        again: steps that are dropped; the present code may call fewer of them, or others.
        asked: of those, answered waits whose answer is dropped too: people are asked once more.
    """

    kept: int
    again: tuple[StepKey, ...]
    asked: int


def restart_plan(history: History, from_step: StepKey | None) -> RestartPlan:
    """The plan of a restart from the start, or from one step and what started after it (S44)."""
    steps = sorted(
        (step for step in history.steps.values() if step.key.type is not StepType.ROLLBACK), key=lambda step: step.order
    )
    if from_step is not None and from_step not in history.steps:
        msg = f"no step {str(from_step)!r} is recorded; it may have been dropped by a restart"
        raise NotFoundError(msg)
    first = 0 if from_step is None else history.steps[from_step].order
    again = [step for step in steps if step.order >= first]
    kept = sum(step.state is StepState.FINISHED for step in steps if step.order < first)
    return RestartPlan(kept, tuple(step.key for step in again), sum(map(_answered, again)) if from_step is None else 0)


def _answered(step: StepRecord) -> bool:
    return step.key.type is StepType.WAIT and step.state is StepState.FINISHED
