"""Decide what a durable call does, from what is recorded of its step and the time.

Pure: no clock, no store, no user code. If a rule of replay is not in this file, in `delivery.py` beside it or in the order
of the entries, it is not a rule.
"""

from datetime import datetime

import msgspec

from nbflow.core.history import StepRecord
from nbflow.core.model import StepState, StepType


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """It ended with a value or a failure: that is handed out when its turn comes; nothing runs (S7, S28)."""


class Execute(msgspec.Struct, frozen=True, gc=False):
    """The body runs now, as this attempt; its start is recorded first."""

    attempt: int


class WaitUntil(msgspec.Struct, frozen=True, gc=False):
    """A sleep or a retry delay goes on to *due*, which may have passed; *attempt* is the one that then begins."""

    due: datetime
    attempt: int = 0


class WaitForEvent(msgspec.Struct, frozen=True, gc=False):
    """An open wait goes on; *due* is its deadline."""

    due: datetime


class Open(msgspec.Struct, frozen=True, gc=False):
    """A sleep or a wait that is reached for the first time: its deadline is to be recorded."""


class HoldForCancel(msgspec.Struct, frozen=True, gc=False):
    """Its call was cancelled before and is expected to be again; if all is quiet without that, it runs anew (S21)."""


_DO, _FIRST, _RECORDED = StepType.DO, Execute(1), Recorded()  # made once: nearly every call is one of these

Decision = Recorded | Execute | WaitUntil | WaitForEvent | Open | HoldForCancel


def decide(known: StepRecord | None, kind: StepType) -> Decision:
    """Give what the call of a step does; *known* is None where nothing is recorded of it."""
    if known is None:
        return _FIRST if kind is _DO else Open()
    match known.state:
        case StepState.FINISHED | StepState.FAILED:
            return _RECORDED
        case StepState.CANCELLED:
            return HoldForCancel()
        case StepState.RETRYING if known.due_at is not None:
            return WaitUntil(known.due_at, known.attempt + 1)
        case StepState.SLEEPING if known.due_at is not None:
            return WaitUntil(known.due_at)
        case StepState.WAITING if known.due_at is not None:
            return WaitForEvent(known.due_at)
        case _:
            # Its kernel died in this attempt: the next one runs, and the cut-off one does not count against the limit (S27).
            return Execute(known.attempt + 1)


def retries_left(limit: int, failures: int) -> bool:
    """Whether a step may be tried again after that many failed attempts: limit counts retries (S22)."""
    return failures <= limit
