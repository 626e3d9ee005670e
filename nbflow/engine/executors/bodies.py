"""The part of a body that is about executors: what an attempt over there comes to, and what is recorded of losses."""

import contextvars
from typing import TYPE_CHECKING, Any

from nbflow.core.model import Kind
from nbflow.engine.logs import tap
from nbflow.engine.logs.output import OUTPUT, Output
from nbflow.engine.threads import Outcome
from nbflow.engine.timers import Timer
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
