"""Whether a wait can still be answered, and why not. Pure."""

from datetime import datetime

from nbflow.core.history import History
from nbflow.core.model import FINISHED, Status, StepState
from nbflow.core.records import StepRecord
from nbflow.errors import InvalidStatusError


class AnsweredError(InvalidStatusError):
    """Somebody was first: *by* whom the wait was answered, and when."""

    def __init__(self, by: str, at: datetime) -> None:
        super().__init__(f"answered by {by} at {at.isoformat(timespec='seconds')}")
        self.by, self.at = by, at


def check_open(history: History, step: StepRecord) -> None:
    """Refuse to answer a wait that takes no answer (any more).

    Raises:
        InvalidStatusError: says why; an AnsweredError where it has its answer.
    """
    answered = next((e for e in history.events.values() if e.taken_by == step.key), None)
    is_open = step.key in {wait.key for wait in history.open_waits(step.event_type)}
    rolls_back, uncalled = history.head.status is Status.ROLLING_BACK, step.key in history.uncalled
    if answered is None and not is_open and not rolls_back and step.state is StepState.WAITING and not uncalled:
        answered = next(iter(history.buffered(step.event_type or "")), None)
    if answered is not None:
        raise AnsweredError(answered.sent_by, answered.sent_at)
    closed = f"wait {step.key.name!r} of instance {history.head.instance_id!r} is not open any more"
    if uncalled and not step.ended:
        msg = f"{closed}: its present code does not call it (S9)"
        raise InvalidStatusError(msg)
    if rolls_back and not step.ended:
        msg = f"{closed}: the instance is rolling back, and what waits then never returns (S49)"
        raise InvalidStatusError(msg)
    if not is_open or history.head.status in FINISHED:
        msg = f"{closed} ({step.state})"
        raise InvalidStatusError(msg)
