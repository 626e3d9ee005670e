"""A call of a step, and what `run` gets back for it: something that is already going on and may be awaited or not (S8, S16)."""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any

from nbflow.core.model import StepKey

if TYPE_CHECKING:
    from nbflow.engine.activation import Activation


class Call:
    """One call of a step in one activation.

    Attributes:
        order: its number in the activation (S8); a step kept by replay has the one of its first start.
        future: what the caller waits on; its result is (True, value) or (False, error).
        awaited: somebody waits for the outcome, or has it.
        cancel: stops what goes on for it when user code cancels the call (S21).
        inner: a body made the call, not `run` (S15).
        begin: starts it anew where its recorded cancellation does not come again (S21).
        deliver: hands the result out in a way of its own: maps.
        original: the live error of this process, the cause of the decoded copy that `run` sees (API.md §9).
    """

    __slots__ = (
        "awaited", "begin", "cancel", "deliver", "future", "inner", "key", "lazy", "order", "original", "payload_of",
    )  # fmt: skip

    def __init__(self, key: StepKey, order: int, future: "asyncio.Future[tuple[bool, Any]]") -> None:
        self.key, self.order, self.future = key, order, future
        self.awaited = self.inner = False
        self.lazy = False
        self.cancel: Callable[[], None] = nothing_to_stop
        self.begin: Callable[[], None] | None = None
        self.deliver: Callable[[], None] | None = None
        self.original: BaseException | None = None
        self.payload_of: Callable[[object, dict[str, Any]], object] | None = None


def nothing_to_stop() -> None:
    """Most calls have nothing to stop."""


class StepCall(Coroutine[Any, Any, Any]):
    """What a step method gives: a coroutine to `await`, `gather` or `create_task`, whose step has started already.

    Unlike a coroutine of Python's own it may be left alone without a warning: the instance waits for the step (S16).
    """

    __slots__ = ("_activation", "_call", "_coroutine", "_started")

    def __init__(self, activation: "Activation", call: Call) -> None:
        self._activation, self._call = activation, call
        self._coroutine = self._wait()
        self._started = False

    async def _wait(self) -> Any:
        call = self._call
        call.awaited = True
        given = self._activation.handing.at_once(call)
        try:
            succeeded, outcome = await call.future if given is None else given
        except asyncio.CancelledError:
            self._activation.call_cancelled(call)
            raise
        if succeeded:
            return outcome
        raise outcome

    async def value(self) -> Any:
        """The outcome for somebody else than the caller: a step that depends on this one."""
        self._call.awaited = True
        succeeded, outcome = await asyncio.shield(self._call.future)
        if succeeded:
            return outcome
        raise outcome

    def send(self, value: Any) -> Any:
        """Go on (coroutine protocol)."""
        self._started = True
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Let an error come up where it waits; a cancellation before the first wait cancels the call too (S21)."""
        if not self._started and isinstance(error[0], asyncio.CancelledError):
            self._activation.call_cancelled(self._call)
        self._started = True
        return self._coroutine.throw(*error)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "cr_", "gi_")):  # what asyncio and inspect look for in coroutines of Python's own
            raise AttributeError(name)
        msg = f"{name!r} was asked of the call of step {str(self._call.key)!r}, not of its result: `await` it first"
        raise AttributeError(msg)

    def close(self) -> None:
        """Close (coroutine protocol); the step goes on."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        self._started = True
        return self._coroutine.__await__()

    def __del__(self) -> None:
        if not self._started:
            self._coroutine.close()


def unseen(task: "asyncio.Task[Any]") -> bool:
    """Whether the task ended with an error that nobody has looked at; asking is not looking."""
    return bool(task._log_traceback)  # noqa: SLF001


def unseen_failure(calls: Sequence[Call], tasks: "Sequence[asyncio.Task[Any]]") -> BaseException | None:
    """The first failure of these calls that nobody awaited, or that ended one of these tasks and nobody looked at (S16)."""
    for call in calls:
        if not call.awaited:
            error: BaseException = call.future.result()[1]
            return error
    ours = {id(call.future.result()[1]) for call in calls if not call.future.cancelled()}
    for task in filter(unseen, tasks):
        failed = task._exception  # noqa: SLF001 - an error of another kind stays unseen
        if failed is not None and _stems_from(failed, ours):
            return task.exception()
    return None


def _stems_from(error: BaseException, known: set[int]) -> bool:
    """Whether one of these errors is this one, or what it came from."""
    found, seen = [error], set[int]()
    while found:
        one = found.pop()
        if id(one) in known:
            return True
        if id(one) not in seen:
            seen.add(id(one))
            parts = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
            found += [each for each in (one.__cause__, one.__context__, *parts) if each is not None]
    return False


def noted() -> None:
    """An entry is durable that nobody waits for: it must be synced, not only written."""
