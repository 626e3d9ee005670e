"""Executors of `concurrent.futures`, the user's own: pools of threads, of processes, loky's, Ray's."""

import concurrent.futures
import threading
from collections import deque
from functools import partial
from typing import Any

from nbflow.engine.executors.attempt import RemoteAttempt
from nbflow.engine.executors.desk import Desk
from nbflow.engine.executors.packing import refuse_captured
from nbflow.engine.executors.refusals import no_future, not_taken, shut_down, without_nbflow
from nbflow.engine.executors.remote import CALL
from nbflow.values.nodes import type_name


class ThreadsOf:
    """A ThreadPoolExecutor: its workers are threads of this process, so bodies run there as they are."""

    url: str | None = None
    wire = None
    blind = retired = False
    isolates = True

    def __init__(self, executor: concurrent.futures.ThreadPoolExecutor, name: str) -> None:
        self.name = name
        self._executor = executor
        self._futures: dict[RemoteAttempt, concurrent.futures.Future[None]] = {}

    def submit(self, attempt: RemoteAttempt) -> None:
        """Queue it."""
        try:
            refuse_captured(attempt.body.fn, str(attempt.body.key))
        except BaseException as error:  # noqa: BLE001 - whatever the user's objects raise when they are looked at
            attempt.refused(error)
            return
        try:
            future = self._executor.submit(self._run, attempt)
        except RuntimeError as error:
            attempt.refused(shut_down(self.name, error))
            return
        self._futures[attempt] = future
        future.add_done_callback(partial(self._done, attempt))

    def _done(self, attempt: RemoteAttempt, future: concurrent.futures.Future[None]) -> None:
        self._futures.pop(attempt, None)
        if future.cancelled():  # by whom it belongs to, where somebody still waits for it
            attempt.lost("its executor was shut down", begun=False)

    def _run(self, attempt: RemoteAttempt) -> None:
        if attempt.wanted:
            attempt.run_here()

    def withdraw(self, attempt: RemoteAttempt) -> bool:
        """See `Place`."""
        future = self._futures.get(attempt)
        return future is not None and future.cancel()

    def leave(self, attempt: RemoteAttempt) -> str:
        """Take it out of the queue, or leave it to its thread."""
        return "taken out of its queue" if self.withdraw(attempt) else "abandoned, still running in its thread"

    def retire(self) -> None:
        """It is its maker's to shut down."""

    def close(self) -> None:
        """It is its maker's to shut down."""


class PoolOf:
    """Any other executor of concurrent.futures: ProcessPoolExecutor, loky, Ray's and others."""

    url: str | None = None
    wire = None

    def __init__(self, executor: concurrent.futures.Executor, name: str) -> None:
        self.name, self.blind, self.retired = name, False, False
        self._executor = executor
        self._former: concurrent.futures.Executor | None = None
        self._remade = False
        self._size = getattr(executor, "_max_workers", None)
        self.isolates = self._size == 1
        self._lock = threading.Lock()  # never held while code of the executor runs: its threads wait for it in `_done`
        self._running: dict[RemoteAttempt, tuple[concurrent.futures.Future[bytes], concurrent.futures.Executor] | None] = {}
        self._queued: deque[RemoteAttempt] = deque()
        self._desk = Desk(f"nbflow-{name}")

    def submit(self, attempt: RemoteAttempt) -> None:
        """Pickle and queue it, in a thread of ours."""
        self._desk.put(partial(self._submit, attempt))

    def _submit(self, attempt: RemoteAttempt) -> None:
        if not attempt.wanted:
            return
        try:
            request = attempt.pack()
        except BaseException as error:  # noqa: BLE001 - whatever the user's objects raise when they are pickled
            attempt.refused(error)
            return
        try:
            try:
                future = self._hand_over(attempt, request)
            except concurrent.futures.BrokenExecutor:
                self._remake(self._executor)
                future = self._hand_over(attempt, request)
        except RuntimeError as error:
            attempt.refused(shut_down(self.name, error))
        except BaseException as error:  # noqa: BLE001 - whatever somebody's executor raises: nobody else hears of it
            attempt.refused(not_taken(self.name, error))
        else:
            if future is not None:
                future.add_done_callback(partial(self._done, attempt))

    def _hand_over(self, attempt: RemoteAttempt, request: bytes) -> "concurrent.futures.Future[bytes] | None":
        with self._lock:
            if not attempt.wanted:
                return None
            self._running[attempt] = None  # from here on it may begin
        pool = self._executor
        try:
            future = pool.submit(eval, CALL, {"request": request})
            if not hasattr(future, "add_done_callback"):
                raise no_future(self.name, future)
        except BaseException:
            with self._lock:
                del self._running[attempt]
            raise
        with self._lock:
            self._running[attempt] = future, pool
            self._queued.append(attempt)
            self._promote()
        if not attempt.wanted:  # left while it was handed over
            future.cancel()
        return future

    def _promote(self) -> None:
        """Pools begin in the order of submission: the first of them run, the others wait, their timeouts not begun."""
        busy = sum(handed is not None for handed in self._running.values()) - len(self._queued)
        while self._queued and (self._size is None or busy < self._size):
            self._queued.popleft().begun()
            busy += 1

    def _done(self, attempt: RemoteAttempt, future: "concurrent.futures.Future[bytes]") -> None:
        error = concurrent.futures.CancelledError() if future.cancelled() else future.exception()
        broken = isinstance(error, concurrent.futures.BrokenExecutor)
        with self._lock:
            handed = self._running.pop(attempt)
            assert handed is not None  # told of it only after it was handed over
            pool = handed[1]
            if broken:  # with it all that it had begun and all that was queued for it
                self._queued = deque(one for one in self._queued if (kept := self._running.get(one)) and kept[1] is not pool)
            elif attempt in self._queued:
                self._queued.remove(attempt)
                if not future.cancelled():
                    attempt.begun()
            self._promote()
        if error is None:
            attempt.replied(future.result())
        elif future.cancelled():
            attempt.lost("its executor was shut down", begun=attempt.begun_at is not None)
        elif broken:
            self._desk.put(partial(self._remake, pool))
            attempt.lost(f"the pool broke: {str(error) or type_name(type(error))}", begun=attempt.begun_at is not None)
        elif isinstance(error, ImportError):
            attempt.refused(without_nbflow(self.name, error))
        else:
            attempt.lost(f"{type_name(type(error))}: {error}")

    def _remake(self, broken: concurrent.futures.Executor) -> None:
        """Put a new pool in the place of a broken one, once.

        Only on our own thread: it may wait until the broken one's threads have told `_done` of all that was lost. The broken
        one is kept until the next: when the last reference to a pool goes, it takes a lock of its own, which it holds while
        it tells that.
        """
        if broken is not self._executor or not getattr(broken, "_broken", True):
            return
        if (made := _another(broken)) is not None:
            self._former, self._executor, self._remade = broken, made, True

    def withdraw(self, attempt: RemoteAttempt) -> bool:
        """See `Place`."""
        with self._lock:
            if attempt in self._running:
                handed = self._running[attempt]
            elif attempt.begun_at is not None:  # it has just ended
                return False
            else:
                attempt.wanted = False
                return True
        if handed is None or not handed[0].cancel():
            return False
        attempt.wanted = False
        return True

    def leave(self, attempt: RemoteAttempt) -> str:
        """Take it out of the queue, or leave it to its worker."""
        return "taken out of its queue" if self.withdraw(attempt) else f"abandoned, still running on {self.name!r}"

    def retire(self) -> None:
        """It is its maker's to shut down; one that we made in its place is ours."""
        self._desk.put(self._end)
        self._desk.close()

    def _end(self) -> None:
        if self._remade and type(self._executor) is concurrent.futures.ProcessPoolExecutor:  # loky's is everybody's
            self._executor.shutdown(wait=False)

    def close(self) -> None:
        """It is its maker's to shut down; one that we made in its place is ours, with all that is left in it."""
        with self._lock:
            running, remade = bool(self._running), self._remade
        self.retire()
        if remade and running:
            for process in list((getattr(self._executor, "_processes", None) or {}).values()):
                process.kill()


def _another(broken: concurrent.futures.Executor) -> concurrent.futures.Executor | None:
    """A new pool like this one; None where we do not know how it was made."""
    kind: Any = type(broken)
    of = vars(broken)
    if kind is concurrent.futures.ProcessPoolExecutor:
        more = {"max_tasks_per_child": of["_max_tasks_per_child"]} if of.get("_max_tasks_per_child") else {}
        made: concurrent.futures.Executor = kind(
            of["_max_workers"], of["_mp_context"], of["_initializer"], of["_initargs"], **more
        )
    elif kind.__module__.partition(".")[0] == "loky":
        import loky

        made = loky.get_reusable_executor(max_workers=of["_max_workers"])
    else:
        return None
    return made
