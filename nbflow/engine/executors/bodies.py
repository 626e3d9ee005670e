"""The part of a body that is about queues and executors: what an attempt over there comes to, what is recorded of one that
was lost, and of one that had not begun when nothing new was to start."""

import asyncio
import contextvars
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from nbflow.core.model import Kind, StepType
from nbflow.engine.context import is_async
from nbflow.engine.executors.line import Losses
from nbflow.engine.logs import tap
from nbflow.engine.logs.output import OUTPUT, Output
from nbflow.engine.threads import Outcome, ThreadJob, call_in, outcome_of, run_alone
from nbflow.engine.timers import Timer
from nbflow.errors import StepInterruptedError
from nbflow.values import failures, sealing

if TYPE_CHECKING:
    from nbflow.engine.bodies import Body
    from nbflow.engine.calls import Call
    from nbflow.engine.engine import Engine
    from nbflow.engine.executors.attempt import RemoteAttempt
    from nbflow.engine.live import LiveInstance
    from nbflow.engine.scope import Scope

HERE = ("main", "local")
"""Words for `on=` that name no executor: the kernel's main thread; the loop or a thread, whatever the default executor."""


class OnExecutors:
    """What `Body` does where its attempt runs on an executor.

    Attributes:
        attempt: number of the latest, 1-based.
        output: where the latest puts out what it prints.
        losses: what was lost of it on executors.
    """

    scope: "Scope"
    engine: "Engine"
    call: "Call"
    fn: Callable[..., Any]
    on: str | None
    live: "LiveInstance"
    context: contextvars.Context
    parent: object | None
    _job: ThreadJob | None
    _timer: Timer | None
    _awaited: int
    _running: bool
    _closed: bool
    _started_at: str
    _fixed: dict[str, Any]
    _undoable: bool
    sensitive: bool

    def __init__(self) -> None:
        self.attempt, self.losses = 0, Losses()
        self._away: RemoteAttempt | None = None
        self._for_main: Callable[[], None] | None = None  # it, where it is queued for the main thread
        self.output: Output | None = None
        self._withdrawn = False  # from the queue for a thread, before it had begun
        self._began_before = False  # in an earlier attempt, where it can be undone
        self._said = ""  # what its log says before anything that it puts out

    @property
    def seals(self) -> bool:
        """Whether the value is a secret that is written sealed, which only this process can do."""
        return self.sensitive and sealing.wanted()

    def launch_away(self) -> None:
        """Give the attempt to the executor that has the name now; what keeps it from that fails the attempt."""
        on = self.on or self.engine.default_executor
        assert on is not None
        try:
            self._away = self.engine.executors.launch(cast("Body", self), on)
        except BaseException as error:  # noqa: BLE001 - the name may be gone; whatever the attempt raises when it is made
            self._ended(self.attempt, (False, error))

    def arrived(self, attempt: int, outcome: Outcome) -> None:
        """An attempt has ended."""
        self._away = None
        self._ended(attempt, outcome)

    def interrupted(self, error: BaseException, delay: float | None, *, begun: bool = True) -> None:
        """Record that an attempt was lost with what it ran on; the next begins after *delay* seconds, retries untouched.

        Without a delay nothing begins. A step no attempt of which has *begun* is not rolled back (S46).
        """
        if self._closed:
            return
        self._finish_output()
        body = self._attempt_body() | {"error": failures.record_error(error)}
        if not begun and self._undoable and not self._began_before:
            body["rollback"] = False
        self.scope.unacked += 1
        self.scope.record(self._kind("interrupted"), self.call.key, body, acked=self.scope.acked)
        if delay is not None:
            self._away, self._awaited = None, 0
            self._timer = self.engine.timers.after(delay, self._again)

    # -- queues -------------------------------------------------------------------------------------------------------

    def _for_a_thread(self) -> bool:
        """Whether it is a plain body that runs here, and not on the main thread."""
        if self.on == "main" and self.engine.main_queue.open:
            return False
        on = self.on or self.engine.default_executor
        if on is not None and on not in HERE:
            return False
        try:
            return not is_async(self.fn)
        except BaseException:  # noqa: BLE001 - a callable may fail while it is only looked at: the attempt will
            return False

    def _queue_for_a_thread(self, done: Callable[[Outcome], None]) -> None:
        """It begins, and its start is recorded, when there is a thread for it (S53)."""
        job = self.engine.threads.queue(self._granted, done)
        if not job.begun:
            self._job = job
            self.scope.queued[self] = None

    def _granted(self, job: ThreadJob) -> None:
        self._job = job
        self.scope.queued.pop(self, None)
        self._record_start()

    def _give_thread_back(self) -> None:
        """It will not run after all."""
        if self._job is not None:
            self.engine.threads.abandon(self._job)
            self._job = None

    def _run_on_main(self, attempt: int, call: Callable[[], Any]) -> None:
        """In the main thread: its timeout starts when it starts; an async body runs on the kernel's loop."""
        if self._closed or attempt != self._awaited:
            return
        post = self.engine.thread.post
        post(self._arm)
        context = self.context.copy()
        if not is_async(self.fn):
            post(self._returned, attempt, call_in(context, call))
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            post(self._ended, attempt, run_alone(context, call))
            return
        task = loop.create_task(call(), context=context)
        task.add_done_callback(lambda done: post(self._ended, attempt, outcome_of(done)))

    def _has_begun(self) -> bool:
        """Whether there is something to roll back already (S46)."""
        record = self.live.history.steps.get(self.call.key)
        return record is not None and record.rollback

    def withdraw(self) -> None:
        """Nothing new starts: an attempt that has not begun leaves its queue (S19, S40).

        What waited for a thread has no record yet; elsewhere its start has, so it counts as interrupted.
        """
        if self.parent is not None or not self._running or not self._leave_queue():
            return  # what a body in flight has called belongs to it (S15)
        if self._job is not None:
            self.attempt, self._withdrawn = self.attempt - 1, True
        else:
            why = "the instance was stopped" if self.scope.stopping else "the workflow or the map has failed"
            error = StepInterruptedError(f"attempt {self.attempt} had not begun and left its queue: {why}")
            self.interrupted(error, None, begun=False)
        self._away = self._for_main = self._job = None
        self._awaited, self._running = 0, False
        self.scope.in_flight -= 1
        if self.scope.stopping:  # else it would be kept for a stop that is no part of this
            self.scope.hold(self._go_on)

    def _leave_queue(self) -> bool:
        if self._away is not None:
            return self._away.withdraw()
        if self._for_main is not None:
            return self.engine.main_queue.withdraw(self._for_main)
        return self._job is not None and self.engine.threads.withdraw(self._job)

    def _go_on(self) -> None:
        """The stop was taken back (S41), or the delay is over."""
        self.begin(self.attempt + 1)

    def give_up(self, error: BaseException) -> None:
        """What it runs on was lost too often."""
        self._away, self._awaited = None, 0
        if not self._closed:
            self.fail(error)

    def refused(self, error: BaseException) -> None:
        """The executor cannot take it. A rollback handler, which has no `on=` of its own, runs here then."""
        if self.call.key.type is not StepType.ROLLBACK or self._closed:
            self.give_up(error)
            return
        self._away, self.on, self._said = None, "local", f"it runs here: {error}"
        self._finish_output()
        if self._for_a_thread():
            self._job = self.engine.threads.queue(self._granted_here, partial(self._returned, self.attempt))
        else:
            self._launch()

    def _granted_here(self, job: ThreadJob) -> None:
        self._job = job
        self._launch()

    def _begin_output(self) -> None:
        """What is put out from now on is the present attempt's."""
        self.output = Output(self, self.attempt, self._started_at, tap.ensure(self.engine))
        self.context.run(OUTPUT.set, self.output)
        if self._said:
            self.output.line(self._said)
            self._said = ""

    def _finish_output(self) -> None:
        """What the attempt has put out is recorded before its end is."""
        if self.output is not None:
            self.output.finish()

    def _again(self) -> None:
        if self._closed:
            return
        self._running = False
        self.scope.in_flight -= 1
        self.begin(self.attempt + 1)

    # what `Body` has

    def begin(self, attempt: int, *, anew: bool = False) -> None:
        """See `Body`."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """See `Body`."""
        raise NotImplementedError

    def _ended(self, attempt: int, outcome: Outcome) -> None:
        raise NotImplementedError

    def _record_start(self) -> None:
        raise NotImplementedError

    def _launch(self) -> None:
        raise NotImplementedError

    def _arm(self) -> None:
        raise NotImplementedError

    def _returned(self, attempt: int, outcome: Outcome) -> None:
        raise NotImplementedError

    def _kind(self, what: str) -> Kind:
        raise NotImplementedError

    def _attempt_body(self) -> dict[str, Any]:
        raise NotImplementedError
