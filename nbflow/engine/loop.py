"""The workflow loop: an asyncio loop in a thread of its own that knows when an activation is quiet.

Quiet = no callback of the activation is ready to run. Results are handed to `run` only then, one at a time, live as on
replay (S20): that is what makes races and `as_completed` go the same way again. The loop counts ready callbacks by a
context variable, so whatever `run` starts is counted with it, and bodies, which run in a context without it, are not.
"""

import asyncio
import contextvars
import errno
import logging
import os
import selectors
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from nbflow.clock import SystemClock, pause
from nbflow.errors import UsageError
from nbflow.store.base import Store
from nbflow.store.descriptor import Identity, identity

log = logging.getLogger("nbflow")

_PATIENCE = 0.001  # seconds without a look at what comes from outside
_RESTLESS = 0.005  # seconds without the work of a rest, such as a sync, which takes a quarter of a millisecond
_NAP = 1.0  # seconds
_monotonic = SystemClock().monotonic


class Counted(Protocol):
    """What the loop counts for."""

    ready: int
    tasks: set[asyncio.Task[Any]]

    def on_quiet(self) -> None:
        """Nothing of it is ready to run any more: it takes its turn soon."""
        ...

    def take_turn(self) -> None:
        """It takes its turn now, between two callbacks."""
        ...

    def task_ended(self, task: asyncio.Task[Any]) -> None:
        """A task of it has ended."""
        ...


ACTIVATION: contextvars.ContextVar[Counted | None] = contextvars.ContextVar("nbflow_activation", default=None)


class _Handle(asyncio.Handle):
    """A ready callback; of an activation it is counted, until it has run or is cancelled, whichever comes first.

    Half a dozen of these are made for a step, so what it costs to make and to run one counts.
    """

    __slots__ = ("_activation",)
    _loop: "CountingLoop"  # of asyncio.Handle

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: "CountingLoop",
        context: contextvars.Context | None,
        activation: Counted | None,
    ) -> None:
        # What asyncio.Handle sets; calling it would cost as much again.
        self._callback, self._args, self._loop = callback, args, loop
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled, self._repr, self._source_traceback = False, None, None
        self._activation = activation
        if activation is not None:
            activation.ready += 1

    def cancel(self) -> None:
        super().cancel()
        activation, self._activation = self._activation, None
        if activation is not None:
            activation.ready -= 1
            if activation.ready == 0:
                activation.on_quiet()

    def _run(self) -> None:
        try:
            self._context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio.Handle does
            self._loop.call_exception_handler({"message": "a callback failed", "exception": error, "handle": self})
        finally:
            activation, self._activation = self._activation, None
            if activation is not None:
                activation.ready -= 1
                if activation.ready == 0:
                    self._quiet(activation)

    def _quiet(self, activation: Counted) -> None:
        """The turn is taken at once: another pass of the loop would cost more than the turn itself."""
        try:
            self._loop.uncounted.run(activation.take_turn)
        except Exception as error:  # noqa: BLE001 - as for any callback of the loop
            self._loop.call_exception_handler({"message": "a turn failed", "exception": error, "handle": self})


class _WatchedSelector(selectors.DefaultSelector):
    """Wakes and looks once a second: a loop whose descriptors user code has closed would sleep or spin for ever."""

    def __init__(self, loop: "CountingLoop") -> None:
        super().__init__()
        self._loop = loop
        self._process = os.getpid()
        self._looked = _monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if os.getpid() != self._process:
            os._exit(0)  # what runs on the loop forked: the child has done what it was to do (S54)
        now = _monotonic()
        if now - self._looked >= _NAP:
            self._looked = now
            if not self._loop.hears():
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return super().select(_NAP if timeout is None or timeout > _NAP else timeout)


class CountingLoop(asyncio.SelectorEventLoop):
    """The platform's loop; `call_soon` counts, and every task of an activation is known to it.

    Attributes:
        uncounted: a context without an activation: what runs in it is the engine's own. One for each loop, since a context
            cannot be entered by two threads at once.
        before_rest: called when nothing is ready to run, and now and then while there is.
    """

    def __init__(self) -> None:
        self.before_rest: Callable[[], None] = _nothing
        self._rest_due = 0.0
        super().__init__(_WatchedSelector(self))
        self._pipe = self._sockets()
        self.uncounted = contextvars.Context()
        self._kept: set[asyncio.Task[Any]] = set()
        self.set_task_factory(_make_task)  # type: ignore[arg-type]  # it is only ever given this loop

    def _run_once(self) -> None:
        """One pass of asyncio's, then for a millisecond whatever is ready after it.

        A pass that hands out one result is shorter than asking the system for events and timers, and all else that asyncio
        does between two passes.
        """
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        if not ready or _monotonic() >= self._rest_due:
            self._rest()
        super()._run_once()  # type: ignore[misc]  # of BaseEventLoop, which calls it for ever
        end = _monotonic() + _PATIENCE
        while ready and not self._stopping and not self._debug:  # type: ignore[attr-defined]
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:  # noqa: SLF001 - as asyncio does
                    handle._run()  # noqa: SLF001
            if _monotonic() >= end:
                break

    def _rest(self) -> None:
        try:
            self.before_rest()
        except Exception:
            log.exception("what the workflow loop does before it rests failed")
        self._rest_due = _monotonic() + _RESTLESS

    def hears(self) -> bool:
        """Whether its wake-up pipe is still what it was."""
        try:
            return self._sockets() == self._pipe
        except OSError:
            return False

    def _sockets(self) -> list[Identity]:
        if sys.platform == "win32":
            return []  # a socket has no number there that `os.closerange` could close
        inner = vars(self)
        return [identity(os.fstat(inner[end].fileno())) for end in ("_ssock", "_csock")]

    def revive(self) -> None:
        """Give the loop a selector and a wake-up pipe where user code has closed theirs (`os.closerange`).

        The numbers may be somebody else's by now: nothing is closed. What user code had open on the loop is lost.
        """
        inner = vars(self)  # parts of asyncio's loop that its stubs do not show
        for end in (inner["_ssock"], inner["_csock"]):
            if end is not None:
                end.detach()
        inner["_internal_fds"] -= 1
        _lost.append(inner["_selector"])  # collecting it would close its number
        inner["_selector"] = _WatchedSelector(self)
        self._make_self_pipe()  # type: ignore[attr-defined]
        self._pipe = self._sockets()

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Hold a task that nobody else holds until it ends: asyncio itself would let it be collected half way."""
        self._kept.add(task)
        task.add_done_callback(self._kept.discard, context=self.uncounted)

    def call_soon(  # type: ignore[override]  # the stub's type variables say the same
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Arrange for *callback* to be called, counted for the activation of its context."""
        if self._closed:  # type: ignore[attr-defined]  # of BaseEventLoop
            self._check_closed()  # type: ignore[attr-defined]  # what is posted after the end is refused
        activation = ACTIVATION.get() if context is None else context.get(ACTIVATION)
        handle = _Handle(callback, args, self, context, activation)
        self._ready.append(handle)  # type: ignore[attr-defined]  # where BaseEventLoop.call_soon puts its own
        return handle


def _nothing() -> None:
    """Nobody has asked for anything to be done before a rest."""


def _make_task(
    loop: CountingLoop,
    coro: Coroutine[Any, Any, Any],
    context: contextvars.Context | None = None,
    **more: Any,  # from Python 3.13.3 on the name comes this way too
) -> asyncio.Task[Any]:
    task = asyncio.Task(coro, loop=loop, context=context, **more)
    activation = ACTIVATION.get() if context is None else context.get(ACTIVATION)
    if activation is not None:
        activation.tasks.add(task)
        task.add_done_callback(activation.task_ended, context=loop.uncounted)
    return task


def _call_all(callbacks: Sequence[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()


_lost: list[selectors.BaseSelector] = []
_never_ended: list[asyncio.Task[Any]] = []


def keep_for_ever(task: asyncio.Task[Any]) -> None:
    """Keep stopped user code that would not end: collecting it would run the rest of it, in whatever thread does that."""
    task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 - somebody else reports it
    _never_ended.append(task)


def leave(error: BaseException | None) -> None:
    """End a forked child as its body ended."""
    code = getattr(error, "code", 1) if type(error) is SystemExit else int(error is not None)
    os._exit(code if type(code) is int else int(code is not None))


class LoopThread:
    """The daemon thread that runs the loop, from its first use to `stop`."""

    def __init__(self, name: str) -> None:
        self.loop = CountingLoop()
        self._ending = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._ident = 0
        self._thread.start()
        self._ident = self._thread.ident or 0  # to ask the thread each time would cost a step two calls

    @property
    def ident(self) -> int:
        """The thread's identity, as `sys._current_frames` has it; 0 when it has ended."""
        return self._ident

    @property
    def forked(self) -> bool:
        """Whether this process is a fork: the thread is not in it, and what it worked on is the parent's (S54)."""
        return os.getpid() != self._process

    @property
    def here(self) -> bool:
        """Whether the caller is on the workflow loop's thread."""
        return threading.get_ident() == self._ident

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._ending:
            try:
                self.loop.run_forever()  # comes back where user code stops "its" loop: the engine's goes on
            except BaseException as error:  # noqa: BLE001 - not to be the end of the loop of all instances (S30)
                self.leave_if_forked(error)
                if isinstance(error, OSError):
                    self._revive(error)
                    continue
                # A task of the user's raised SystemExit, or an object of theirs fails when asyncio formats it: that is
                # the outcome of that task.
                if not isinstance(error, SystemExit | KeyboardInterrupt):
                    log.error("a callback of the workflow loop failed: %s", type(error))
        self._ident = 0  # no thread's: the system gives the identity of a thread that has ended to a later one

    def attend(self, store: Store) -> None:
        """Take the acknowledgements of *store*, and give it the loop's idle moments for its syncs."""
        store.on_acked = self.post_all
        store.attend(self.ident)
        self.loop.before_rest = store.sync

    def _revive(self, error: OSError) -> None:
        """The selector fails: its descriptors are gone, and with them whatever else was open."""
        log.error(
            "the workflow loop lost its descriptors (%s): code in this process closed them; it goes on with new ones", error
        )
        try:
            self.loop.revive()
        except OSError:  # none is free now
            pause(_NAP)

    def leave_if_forked(self, error: BaseException | None) -> None:
        """End this process where it is a child that a body forked: it has nothing to do here (S54)."""
        if self.forked:
            leave(error)

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Run *callback* on the loop soon, as the engine's own; safe from any thread, nothing after `stop`."""
        try:
            if self.here:  # no need to wake the loop
                self.loop.call_soon(callback, *args, context=self.loop.uncounted)
            else:
                self.loop.call_soon_threadsafe(callback, *args, context=self.loop.uncounted)
        except RuntimeError:
            pass  # the loop is closed: the engine has ended and nothing may start

    def post_all(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Run many on the loop soon, for the price of one."""
        self.post(_call_all, callbacks)

    def do(self, act: Callable[[], None], patience: float) -> None:
        """Have *act* done on the loop and wait for it, at most *patience* seconds; what it raises by then is raised here."""
        if self.here:
            act()
            return
        done = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                act()
            except BaseException as error:  # noqa: BLE001 - belongs to the caller's thread
                failed.append(error)
            finally:
                done.set()

        self.post(run)
        done.wait(patience)
        if failed:
            raise failed[0]

    def forbid_here(self, what: str) -> None:
        """Refuse a blocking call on the loop that it would block."""
        if self.here:
            msg = f"{what} would block the workflow loop it waits for; await it instead, or call it from a plain def body"
            raise UsageError(msg)

    def stop(self, timeout: float) -> None:
        """Stop the loop; a loop that user code blocks is left to its daemon thread, and in a fork to the parent (S54)."""
        if self.forked:
            return
        try:
            self.loop.call_soon_threadsafe(self._stop_after, 3)
        except RuntimeError:
            return
        if not self.here:
            self._thread.join(timeout)
        if not self._thread.is_alive():
            for task in asyncio.all_tasks(self.loop):
                keep_for_ever(task)
            self.loop.close()

    def _stop_after(self, passes: int) -> None:
        """Stop when tasks that were cancelled have had their turn to end."""
        if passes:
            self.loop.call_soon(self._stop_after, passes - 1, context=self.loop.uncounted)
        else:
            self._ending = True
            self.loop.stop()
