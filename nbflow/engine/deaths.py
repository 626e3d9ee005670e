"""Kernels that die again and again with the same instance (S27)."""

from nbflow.core.history import OPEN_STATES, History
from nbflow.core.maps import in_flight
from nbflow.core.model import StepState
from nbflow.errors import StepInterruptedError, listed

DEATHS = 3  # activations in a row that may die without a finished step before the instance fails


def too_many(history: History) -> bool:
    """Whether bodies of it have killed their kernel too often in a row."""
    return history.head.deaths >= DEATHS and not _died_waiting(history)


def _died_waiting(history: History) -> bool:
    """Whether its last activation only waited when it died: no body of it can have killed the kernel."""
    cut_off = any(step.died_in == history.head.activation for step in history.steps.values())
    return not cut_off and any(step.state in OPEN_STATES for step in history.steps.values())


def error_of(history: History) -> StepInterruptedError:
    """The error that says so, and names the steps in flight."""
    cut_off = [step for step in history.steps.values() if step.state is StepState.INTERRUPTED]
    last = max((step.died_in for step in cut_off), default=0)
    running = listed([name for step in cut_off if step.died_in == last for name in in_flight(step, last)]) or "no step"
    then = "what is left is not undone" if history.head.rolling_back else "run the cell again for three more tries"
    msg = f"the kernel died {DEATHS} times in a row while {running} ran; {then}"
    return StepInterruptedError(msg)
