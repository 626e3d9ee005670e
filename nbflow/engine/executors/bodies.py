"""The part of a body that is about queues and executors: what an attempt over there comes to, what is recorded of one that
was lost, and of one that had not begun when nothing new was to start."""

import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbflow.core.model import Kind
from nbflow.engine.logs import tap
from nbflow.engine.logs.output import OUTPUT, Output
from nbflow.engine.threads import Outcome, ThreadJob
from nbflow.engine.timers import Timer
from nbflow.errors import StepInterruptedError
from nbflow.values import failures, sealing

if TYPE_CHECKING:
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
        losses: attempts that were lost with what they ran on.
        unbegun: those of them that had not begun.
    """

    scope: "Scope"
    engine: "Engine"
    call: "Call"
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
    sensitive: bool

    def __init__(self) -> None:
        self.attempt = self.losses = self.unbegun = 0
        self._away: RemoteAttempt | None = None
        self._for_main: Callable[[], None] | None = None  # it, where it is queued for the main thread
        self.output: Output | None = None

    @property
    def seals(self) -> bool:
        """Whether the value is a secret that is written sealed, which only this process can do."""
        return self.sensitive and sealing.wanted()

    def arrived(self, attempt: int, outcome: Outcome) -> None:
        """An attempt has ended."""
        self._away = None
        self._ended(attempt, outcome)

    def interrupted(self, error: BaseException, delay: float | None) -> None:
        """Record that an attempt was lost with what it ran on; the next begins after *delay* seconds, retries untouched.

        Without a delay nothing begins: it goes on already.
        """
        if self._closed:
            return
        self._finish_output()
        body = self._attempt_body() | {"error": failures.record_error(error)}
        self.scope.unacked += 1
        self.scope.record(self._kind("interrupted"), self.call.key, body, acked=self.scope.acked)
        if delay is not None:
            self._away, self._awaited = None, 0
            self._timer = self.engine.timers.after(delay, self._again)

    def withdraw(self) -> None:
        """Nothing new starts: an attempt that has not begun leaves its queue, and is recorded as interrupted (S19, S40)."""
        if self.parent is not None or not self._running or not self._leave_queue():
            return  # what a body in flight has called belongs to it (S15)
        why = "the instance was stopped" if self.scope.stopping else "the workflow or the map has failed"
        self.interrupted(StepInterruptedError(f"attempt {self.attempt} had not begun and left its queue: {why}"), None)
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
        """The stop was taken back (S41)."""
        self.begin(self.attempt + 1)

    def ran_again(self) -> int:
        """Record the attempt that a cluster began by itself; gives its number."""
        if self._closed:
            return self.attempt
        self.attempt += 1
        self._awaited = self.attempt
        entry = self.scope.record(self._kind("started"), self.call.key, self._fixed | {"attempt": self.attempt})
        if entry is not None:
            self._started_at = entry.recorded_at.isoformat()
            self._begin_output()
        return self.attempt

    def give_up(self, error: BaseException) -> None:
        """What it runs on was lost too often."""
        self._away, self._awaited = None, 0
        if not self._closed:
            self.fail(error)

    def _begin_output(self) -> None:
        """What is put out from now on is the present attempt's."""
        self.output = Output(self, self.attempt, self._started_at, tap.ensure(self.engine))
        self.context.run(OUTPUT.set, self.output)

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

    def _kind(self, what: str) -> Kind:
        raise NotImplementedError

    def _attempt_body(self) -> dict[str, Any]:
        raise NotImplementedError
