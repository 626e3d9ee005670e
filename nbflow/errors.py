"""Every exception of nbflow, and nothing else.

`NbflowError` is the root of what users may catch. The stop signals at the end derive from BaseException on purpose:
user code that catches `Exception` must not be able to swallow them (S42).
"""

import errno
from collections.abc import Sequence
from datetime import timedelta


class NbflowError(Exception):
    """The root of nbflow's errors."""

    def _render_traceback_(self) -> list[str]:
        """Show one line in a notebook: the frames of the engine say nothing to its user (an IPython hook)."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(NbflowError):
    """The call or the magic line is wrong; nothing was done."""


class NotFoundError(NbflowError, LookupError):
    """No workflow, instance or step of that name."""


class AlreadyExistsError(NbflowError):
    """An instance with that id exists; it is untouched (S3)."""


class InvalidStatusError(NbflowError):
    """The instance's status does not allow this."""


class NotSerialisableError(NbflowError, TypeError):
    """A value cannot be stored exactly; the message names its type and the path inside the value (S31)."""


class UndecodableError(NbflowError):
    """A stored value cannot be read back now; `needs` says what would make it readable (S17)."""

    def __init__(self, message: str, *, needs: str) -> None:
        super().__init__(message)
        self.needs = needs


class StoreError(NbflowError):
    """The store cannot do what is asked."""


class StoreLockedError(StoreError):
    """Somebody else holds the DuckDB file; the message names who."""


class StoreCorruptError(StoreError):
    """A file of the store is damaged, missing or not ours. Nothing was deleted."""


class StoreVersionError(StoreError):
    """The store was written by a newer nbflow."""


class StepTimeoutError(NbflowError, TimeoutError):
    """An attempt of a step took longer than its timeout (S26)."""


class EventTimeoutError(NbflowError, TimeoutError):
    """No event came before the wait's deadline (S37)."""


class WaitTimeoutError(NbflowError, TimeoutError):
    """`inst.wait(timeout)` ran out; the instance goes on."""


class StepInterruptedError(NbflowError):
    """The kernel, or the worker of an executor, died too often while these steps ran (S27)."""


class InstanceFailedError(NbflowError):
    """The awaited instance errored or was terminated; the step's error is the cause."""


class StepError(NbflowError):
    """A step's recorded error whose own class cannot be made here (API.md §9).

    Attributes:
        type: the class of the original error, as text.
        message: its text.
        attributes: those of its attributes that could be stored.
    """

    def __init__(self, message: str, *, type: str = "", attributes: dict[str, object] | None = None) -> None:  # noqa: A002
        super().__init__(message)
        self.type = type
        self.message = message
        self.attributes = attributes or {}


class NonRetryableError(NbflowError):
    """Raised by users: this attempt failed and no retry will help (S29)."""

    def _render_traceback_(self) -> list[str]:
        raise NotImplementedError  # a user's own error keeps its frames


class RetryAfter(NbflowError):  # noqa: N818 - the public name, after the HTTP header it stands for
    """Raised by users: this attempt failed, the next comes exactly *delay* later (S24).

    Args:
        delay: seconds, a timedelta or text such as "30 seconds".
    """

    def __init__(self, delay: float | str | timedelta) -> None:
        super().__init__(f"retry after {delay}")
        self.delay = delay

    def _render_traceback_(self) -> list[str]:
        raise NotImplementedError


class StopSignal(BaseException):
    """Ends an activation from inside (pause, terminate, delete, lost ownership): the first step call raises it (S42)."""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


def refusal(error: OSError) -> str:
    """Why the system refuses to write and what to do about it, for a message."""
    if error.errno in _FULL:
        return "no space left on the disk; free some"
    if error.errno in _NO_DESCRIPTOR:
        return f"{error.strerror or error}; close some"
    return f"{error.strerror or error}; see what keeps this user from writing there"


def passes(error: OSError) -> bool:
    """Whether it is no matter of what was asked for: the same succeeds once there is room, or a descriptor is free."""
    return error.errno in _FULL or error.errno in _NO_DESCRIPTOR


def listed(names: Sequence[str], limit: int = 10) -> str:
    """Names for a message: quoted, comma-separated, at most *limit*."""
    shown = ", ".join(repr(name) for name in names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def article(noun: str) -> str:
    """A noun for a message with "a" or "an" before it."""
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"
