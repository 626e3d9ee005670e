"""Where plain bodies run: daemon threads of our own, and the kernel's main thread.

Not `asyncio.to_thread` nor a ThreadPoolExecutor: the interpreter joins their threads before atexit, so one stuck body would
make the Restart button kill the kernel, and abandoned bodies would use the pool up.
"""

import asyncio
import collections
import contextvars
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from nbflow.engine.loop import LoopThread, leave

Outcome = tuple[bool, Any]
"""(True, value) or (False, the exception)."""


def call_in(context: contextvars.Context, call: Callable[[], Any]) -> Outcome:
    """Run *call* in *context*; whatever it raises is an outcome (S30)."""
    process = os.getpid()
    try:
        outcome: Outcome = True, context.run(call)
    except BaseException as error:  # noqa: BLE001 - SystemExit from a body is a failure of that attempt, no more
        outcome = False, error
    if os.getpid() != process:  # the body forked, and this is the child: it has nothing to do here (S54)
        leave(None if outcome[0] else outcome[1])
    return outcome


class ThreadJob:
    """One call for a thread; all its fields are the loop's.

    Attributes:
        granted: called on the loop when there is a thread for it.
        begun: there was.
        launched: the thread has it.
    """

    __slots__ = ("abandoned", "begun", "call", "context", "done", "finished", "granted", "late", "launched", "outcome")

    context: contextvars.Context  # this and the call come with the launch
    call: Callable[[], Any]

    def __init__(self, granted: "Callable[[ThreadJob], None]", done: Callable[[Outcome], None]) -> None:
        self.granted, self.done = granted, done
        self.abandoned = self.begun = self.launched = self.finished = False
        self.late: Callable[[], None] | None = None
        self.outcome: Outcome | None = None


class BodyThreads:
    """At most *limit* bodies at once; a further one queues, its timeout not begun. Everything but the calls is on the loop."""

    def __init__(self, thread: LoopThread, limit: int, name: str) -> None:
        self._thread, self._limit, self._name = thread, limit, name
        self._inbox: queue.SimpleQueue[ThreadJob | None] = queue.SimpleQueue()
        self._queued: collections.deque[ThreadJob] = collections.deque()
        self._threads = 0
        self._busy = 0
        self._made = 0
        self._blocked = 0
        self.closed = False

    def submit(self, context: contextvars.Context, call: Callable[[], Any], done: Callable[[Outcome], None]) -> None:
        """Run *call* in a thread; *done* is called on the loop."""
        self.queue(lambda job: self.launch(job, context, call), done)

    def queue(self, granted: Callable[[ThreadJob], None], done: Callable[[Outcome], None]) -> ThreadJob:
        """Wait for a thread: once *granted* is called with the job, it is kept for it until `launch` or `abandon`.

        Both are called on the loop, *granted* at once where a thread is free.
        """
        job = ThreadJob(granted, done)
        self._queued.append(job)
        self._dispatch()
        return job

    def launch(self, job: ThreadJob, context: contextvars.Context, call: Callable[[], Any]) -> None:
        """Run *call* in the thread that was granted."""
        if job.abandoned:
            return
        job.context, job.call, job.launched = context, call, True
        if self._busy > self._threads:
            self._threads += 1
            self._made += 1
            threading.Thread(target=self._main, name=f"{self._name}-{self._made}", daemon=True).start()
        self._inbox.put(job)

    def abandon(self, job: ThreadJob, late: Callable[[], None] | None = None) -> bool:
        """Stop counting a job that cannot be stopped: its outcome is thrown away when it comes, then *late* is called (S26).

        Gives whether it runs on.
        """
        if job.finished or job.abandoned:
            return False
        job.abandoned = True
        if self.withdraw(job):
            return False
        self._busy -= 1
        if job.launched:
            job.late = late
            self._threads -= 1
        self._thread.post(self._dispatch)  # not now: those that are queued may be the next to be abandoned (S42)
        return job.launched

    def withdraw(self, job: ThreadJob) -> bool:
        """Take a job out of the queue; False where it has a thread. Once only."""
        if job.begun:
            return False
        if not self.closed:
            self._queued.remove(job)
        return True

    def blocking(self, *, begins: bool) -> None:
        """Note from a body's thread that it waits for the engine: meanwhile it does not count."""
        self._thread.post(self._note_blocking, 1 if begins else -1)

    @property
    def working(self) -> bool:
        """Whether any call runs or waits for a thread."""
        return self._busy > 0 or bool(self._queued)

    def close(self) -> None:
        """Start nothing more and let idle threads go."""
        self.closed = True
        self._queued.clear()
        for _ in range(self._threads):
            self._inbox.put(None)

    def _note_blocking(self, change: int) -> None:
        self._blocked += change
        self._dispatch()

    def _dispatch(self) -> None:
        while self._queued and not self.closed and self._busy - self._blocked < self._limit:
            job = self._queued.popleft()
            self._busy += 1
            job.begun = True
            job.granted(job)

    def _main(self) -> None:
        while (job := self._inbox.get()) is not None:
            outcome = call_in(job.context, job.call)
            abandoned = job.abandoned
            job.outcome = outcome  # not an argument: asyncio formats those, and user objects may raise when looked at
            self._thread.post(self._finish, job)
            if abandoned:
                return  # another thread has taken this one's place
            del job, outcome

    def _finish(self, job: ThreadJob) -> None:
        outcome, job.outcome = job.outcome, None
        job.finished = True
        assert outcome is not None
        if job.abandoned:
            if job.late is not None:
                job.late()
            return
        self._busy -= 1
        try:
            job.done(outcome)
        finally:
            self._dispatch()


class MainQueue:
    """Bodies for the kernel's main thread (`on="main"`).

    The kernel's loop drains it (*wake* is told of each one), and so does every blocking wait of ours in the main thread:
    without that, a body for the main thread and a wait in the main thread would wait for each other.

    Attributes:
        wake: called from the workflow loop when a body was queued; set where a kernel loop can drain.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], None] | None = None
        self._jobs: collections.deque[Callable[[], None]] = collections.deque()
        self._ready = threading.Condition()
        self._drainers = 0

    @property
    def open(self) -> bool:
        """Whether anybody will drain it: else (a terminal without a wait) bodies run in threads."""
        return self.wake is not None or self._drainers > 0

    def withdraw(self, job: Callable[[], None]) -> bool:
        """Take a body out of the queue; False where it has begun."""
        try:
            self._jobs.remove(job)
        except ValueError:
            return False
        return True

    def put(self, job: Callable[[], None]) -> None:
        """Queue a body for the main thread."""
        with self._ready:
            self._jobs.append(job)
            self._ready.notify_all()
        if self.wake is not None:
            self.wake()

    def drain(self, timeout: float = 0.0) -> None:
        """Run what is queued, in the calling (main) thread, after waiting at most *timeout* seconds for something to come."""
        with self._ready:
            self._drainers += 1
        try:
            with self._ready:
                if not self._jobs and timeout > 0:
                    self._ready.wait(timeout)
            while self._jobs:
                try:
                    job = self._jobs.popleft()
                except IndexError:
                    return
                job()
        finally:
            with self._ready:
                self._drainers -= 1

    def nudge(self) -> None:
        """Let a waiting `drain` return."""
        if self._drainers:
            with self._ready:
                self._ready.notify_all()


def outcome_of(task: asyncio.Task[Any]) -> Outcome:
    """How a task that is done ended."""
    if task.cancelled():
        return False, asyncio.CancelledError()
    error = task.exception()
    return (True, task.result()) if error is None else (False, error)


def run_alone(context: contextvars.Context, call: Callable[[], Any]) -> Outcome:
    """Run an async body in the main thread where no loop runs: a blocking wait drains it there."""

    async def main() -> Any:
        return await call()

    return call_in(context, lambda: asyncio.run(main()))
