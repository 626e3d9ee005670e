"""Run the body of one `do` step: attempts on the loop, in a thread or on the main thread, timeouts, retries, its end.

Lives on the workflow loop; only the bodies themselves and the encoding of large outputs run elsewhere.
"""

import asyncio
import contextvars
import types
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from nbflow.core import replay
from nbflow.core.config import DEFAULT, ResolvedConfig, delay_after
from nbflow.core.durations import duration, text
from nbflow.core.head import moment_text
from nbflow.core.model import KINDS, Kind, StepKey
from nbflow.engine.calls import Call, nothing_to_stop
from nbflow.engine.context import bind, context_of, is_async
from nbflow.engine.delays import DelayQuestion, may_retry
from nbflow.engine.executors.bodies import HERE, OnExecutors
from nbflow.engine.loop import ACTIVATION
from nbflow.engine.outputs import body_of, encode_value, has_references, is_light, record_bytes, tells_of, with_values, withheld
from nbflow.engine.threads import Outcome, ThreadJob
from nbflow.engine.timers import Timer
from nbflow.errors import RetryAfter, StepTimeoutError, UndecodableError, UsageError
from nbflow.values import failures
from nbflow.values.nodes import type_name

if TYPE_CHECKING:
    from nbflow.engine.scope import Scope

BODY: contextvars.ContextVar["Body | None"] = contextvars.ContextVar("nbflow_body", default=None)
"""The step whose body runs in this context."""

GRACE = 5.0  # seconds a cancelled async body has to end before its attempt is closed without it

_LEFT = contextvars.Context()


def _enter(body: "Body") -> None:
    """From here on the context is that of a body, no more of `run`."""
    ACTIVATION.set(None)
    BODY.set(body)


class Body(OnExecutors):
    """The body of one step in one activation, over all its attempts."""

    index: int | None = None  # of a map item
    coded: Callable[..., Any] | None = None  # whose code is recorded where it is wrapped

    def __init__(
        self,
        scope: "Scope",
        call: Call,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        config: ResolvedConfig,
        on: str | None,
        context: contextvars.Context,
        *,
        undoable: bool = False,
        sensitive: bool = False,
    ) -> None:
        super().__init__()
        self.scope, self.call, self.live, self.engine = scope, call, scope.live, scope.engine
        self.key: StepKey = call.key
        self.fn, self.args, self.config, self.on = fn, args, config, on
        self.parent: Body | None = context.get(BODY)
        self._undoable, self.sensitive = undoable, sensitive
        self._fixed = self._fixed_body()
        self.context = context
        context.run(_enter, self)
        self._started_at = ""
        self._anew: dict[str, Any] = {}
        self._code: dict[str, Any] = {}
        self._running = False
        self._awaited = 0
        self._closed = False
        self._timer: Timer | None = None
        self._task: asyncio.Task[Any] | None = None
        self._job: ThreadJob | None = None
        self._timed_out = False
        call.cancel = self.cancel

    @property
    def is_open(self) -> bool:
        """Whether it has neither ended nor been cancelled."""
        return not self._closed

    @property
    def _giving_up(self) -> bool:
        return self.scope.failure is not None

    # -- an attempt begins --------------------------------------------------------------------------------------------

    def _kind(self, what: str) -> Kind:
        return KINDS[self.call.key.type, what]

    def begin(self, attempt: int, *, anew: bool = False) -> None:
        """Record the start of an attempt, then run the body: in this order, whatever happens between (S53).

        *anew*: attempts before this one count no more against the limit (S58).
        """
        if self._closed or self.scope.over:
            return
        if self.parent is None and (self.scope.stopping or self.scope.failure is not None):
            if self.scope.stopping:
                self.scope.hold(partial(self.begin, attempt, anew=anew))
            return  # a step in a body in flight belongs to it and runs (S15)
        if self.parent is None and not self.live.rest.may_work(partial(self.begin, attempt, anew=anew)):
            return
        self.attempt = attempt
        if not self._withdrawn:
            self._anew = {"anew": True} if anew else {}
        self._timed_out = self._withdrawn = False
        self._awaited = attempt
        self._running = True
        self.scope.in_flight += 1
        if self._for_a_thread():
            self._queue_for_a_thread(partial(self._returned, attempt))
        else:
            self._record_start()

    def _record_start(self) -> None:
        """Record that the attempt starts, then have the body run."""
        self._began_before = self._undoable and self._has_begun()
        self._code = self._marks()  # as it is when the attempt begins (S56)
        body = {**self._fixed, **self._code, **self._anew, "attempt": self.attempt}
        # What a rollback undoes must be known even after a power cut: such a start is synced before its body runs (S53).
        acked = partial(self.engine.launch_soon, self._launch) if self._undoable else None
        entry = self.scope.record(self._kind("started"), self.key, body, acked=acked)
        if entry is None:
            self._close()
            self._give_thread_back()
            return
        self._started_at = moment_text(entry.recorded_at)
        if acked is None:
            self.engine.launch_soon(self._launch)

    def resume_at(self, decision: replay.WaitUntil) -> None:
        """Wait out what is left of a retry delay (S25)."""
        self._wait_until(decision.due)

    def _wait_until(self, due: datetime) -> None:
        self._timer = self.engine.timers.at(due, self._retry_is_due)
        self.live.retries[self.key] = self._retry_is_due

    def _retry_is_due(self) -> None:
        """The delay is over, by time or because somebody said "retry now"."""
        self.live.retries.pop(self.key, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._go_on()

    def _launch(self) -> None:
        try:
            self._start()
        except BaseException as error:  # noqa: BLE001 - a callable may fail while it is only looked at
            self._give_thread_back()
            self._ended(self.attempt, (False, error))

    def _start(self) -> None:
        if self._closed:
            return
        self._begin_output()
        if self._job is not None:
            call = self._with_values if has_references(self.fn, self.args) else self._bound(self.fn, self.args)
            self.engine.threads.launch(self._job, self.context.copy(), call)
            self._arm()
        elif (on := self.on or self.engine.default_executor) is not None and on not in HERE:
            self.scope.queued[self] = None
            self.launch_away()
        elif has_references(self.fn, self.args):
            self.engine.threads.submit(contextvars.Context(), partial(with_values, self.fn, self.args), self._loaded)
        else:
            self._run(self.fn, self.args)

    def _bound(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
        return bind(fn, args, partial(context_of, self))

    def _with_values(self) -> Any:
        """In the thread of a plain body: with the values that references among its arguments stand for."""
        return self._bound(*with_values(self.fn, self.args))()

    def _loaded(self, outcome: Outcome) -> None:
        """References among the arguments are values now, or the attempt has failed."""
        if outcome[0]:
            self._run(*outcome[1])
        else:
            self._ended(self.attempt, outcome)

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self._closed:
            return
        call = self._bound(fn, args)
        if self.on == "main" and (self.engine.main_queue.open or not is_async(self.fn)):
            self._for_main = partial(self._run_on_main, self.attempt, call)
            self.engine.main_queue.put(self._for_main)
            self.scope.queued[self] = None
        else:
            drive = self._drive(self.attempt, call)  # its context is no activation's, so the loop need not know the task
            self._task = asyncio.Task(drive, loop=self.engine.loop, name=self.key.name, context=self.context)
            self._arm()

    def _arm(self) -> None:
        self._timer = self.engine.timers.after(self.config.timeout.total_seconds(), self._time_out)

    async def _drive(self, attempt: int, call: Callable[[], Any]) -> None:
        try:
            value = await call()
        except BaseException as error:  # noqa: BLE001 - SystemExit from a body fails its attempt, no more (S30)
            self._ended(attempt, (False, error))
        else:
            self._ended(attempt, (True, value))

    def _returned(self, attempt: int, outcome: Outcome) -> None:
        """A plain body has ended; a coroutine that it gave is awaited here, under the same timeout."""
        if not (outcome[0] and type(outcome[1]) is types.CoroutineType):  # never by isinstance: it asks the object
            self._ended(attempt, outcome)
        elif attempt != self._awaited:
            outcome[1].close()
        else:
            coroutine = outcome[1]
            self._job = None
            self._task = self.engine.loop.create_task(self._drive(attempt, lambda: coroutine), context=self.context)

    # -- an attempt ends ----------------------------------------------------------------------------------------------

    def _time_out(self) -> None:
        self._timed_out = True
        limit = text(self.config.timeout)
        if self._task is not None:
            self._task.cancel()
            # The body may clean up before the next attempt begins; one that will not end is left behind.
            self._timer = self.engine.timers.after(GRACE, partial(self._leave_behind, limit))
            return
        self._leave_behind(limit)

    def _leave_behind(self, limit: str) -> None:
        if self._job is not None:
            self.live.leftovers.add(self._job, str(self.key))
        if self._task is not None:
            self.engine.loop.keep(self._task)
        where = "its thread" if self._task is None else "the workflow loop"
        msg = f"attempt {self.attempt} took longer than {limit}; abandoned, still running in {where}"
        self._settle((False, StepTimeoutError(msg)))

    def _ended(self, attempt: int, outcome: Outcome) -> None:
        self.engine.thread.leave_if_forked(None if outcome[0] else outcome[1])
        if attempt != self._awaited or self._closed:
            return  # the late end of an attempt that is no longer waited for (S26)
        if self._timed_out:
            outcome = (False, StepTimeoutError(f"attempt {attempt} took longer than {text(self.config.timeout)}"))
        self._settle(outcome)

    def _settle(self, outcome: Outcome) -> None:
        self._awaited = 0
        if self._timer is not None:
            self._timer.cancel()
        self._task = self._job = self._timer = self._for_main = None
        self.scope.queued.pop(self, None)
        self._finish_output()
        succeeded, result = outcome
        if not succeeded:
            self._attempt_failed(result)
        elif is_light(result):
            self._encoded(self._encode(result))
        else:
            what, make = f"the value of step {str(self.key)!r}", partial(self._encode, result)
            wanted = lambda: not self._closed  # noqa: E731
            self.engine.keeping.submit(self.live, what, make, lambda made: self._encoded(made[1]), wanted)

    def _encode(self, value: object) -> Outcome:
        return encode_value(value, str(self.key), self.live.files, sensitive=self.sensitive)

    def _encoded(self, outcome: Outcome) -> None:
        if self._closed:
            return
        succeeded, result = outcome
        if not succeeded:
            self._attempt_failed(result)
            return
        body = self._attempt_body() | body_of(result, sensitive=self.sensitive)
        self._close()
        self._end("finished", body, result.data)

    def _attempt_failed(self, error: BaseException) -> None:
        """Retry or fail; an error that raises when it is looked at is replaced by one that says so."""
        try:
            self._failed(error)
        except BaseException as wrong:  # noqa: BLE001 - anything that user objects raise
            if self._running and not self._closed:
                msg = f"an error of type {type_name(type(error))} was raised, and looking at it raised {type_name(type(wrong))}"
                self.fail(UsageError(msg))

    def _failed(self, error: BaseException) -> None:
        if type(error) is UndecodableError:  # a reference among the arguments, or loaded by the body (S17)
            self.live.interrupt(self.scope, self.key, error)
            return
        before = self._failures()
        if before is None:
            self._close()  # restarted at this moment, in another thread
            return
        failed = before + 1
        if self._giving_up or not may_retry(self.config, error, failed, self.live.home):
            self.fail(error)
        elif isinstance(error, RetryAfter):
            try:
                self.retry(error, duration(error.delay, what=f"RetryAfter of step {str(self.key)!r}"))
            except UsageError as wrong:
                self.fail(wrong)
        elif self.config.delay_fn is not None:
            self._timer = DelayQuestion(self, error, failed).ask()
        else:
            self.retry(error, delay_after(self.config, failed))

    def retry(self, error: BaseException, delay: timedelta) -> None:
        """The attempt has failed, and another comes after *delay*."""
        due = self.engine.clock.now() + delay * self.live.patient
        record = failures.record_error(error)
        shown = withheld(record) if self._hides(error) else record
        body = self._attempt_body() | {"error": shown, "retry_at": due.isoformat()}
        self._running = False
        self.scope.in_flight -= 1
        self.scope.unacked += 1
        self.scope.record(self._kind("retrying"), self.key, body, acked=self.scope.acked)
        self._wait_until(due)

    def fail(self, error: BaseException) -> None:
        """The step has failed for good."""
        record = failures.record_error(error)
        self.call.original = error
        self._close()
        if self._hides(error):  # what `run` gets is kept apart from what is shown
            body = self._attempt_body() | {"error": withheld(record), "sensitive": True}
            self._end("failed", body, record_bytes(record, self.live.files))
        else:
            self._end("failed", self._attempt_body() | {"error": record})

    def _hides(self, error: BaseException) -> bool:
        """Whether an error is shown nowhere: of a sensitive step, or come of one that the body has called."""
        return self.sensitive or (bool(self.scope.secrets) and tells_of(error, self.scope.secrets))

    def _marks(self) -> dict[str, Any]:
        return self.live.codes.marks(self.coded or self.fn, self.args)

    def _end(self, what: str, body: dict[str, Any], value: bytes | None = None) -> None:
        self.scope.ended(self._kind(what), self.call, body, value)

    def _failures(self) -> int | None:
        record = self.live.history.steps.get(self.key)
        return None if record is None else record.failures

    def _attempt_body(self) -> dict[str, Any]:
        return {**self._fixed, **self._code, **self._anew, "attempt": self.attempt, "started_at": self._started_at}

    def _fixed_body(self) -> dict[str, Any]:
        """What every entry of this step says."""
        body: dict[str, Any] = {"order": self.call.order}
        if self.config is not DEFAULT:
            body["config"] = self.config.to_json()
        if self.parent is not None:
            body["parent"] = str(self.parent.key)
        if self._undoable:
            body["rollback"] = True
        if self.sensitive:
            body["sensitive"] = True
        return body

    def _close(self) -> None:
        """Nothing comes after it: let go of what holds it in turn, or its value stays until the garbage collector looks."""
        self._closed = True
        self.scope.queued.pop(self, None)
        self.call.cancel = nothing_to_stop
        self.context, self.output = _LEFT, None
        if self.live.retries:
            self.live.retries.pop(self.key, None)
        if self._running:
            self._running = False
            self.scope.in_flight -= 1

    def cancel(self) -> None:
        """Stop caring: an async body is cancelled, one in a thread left to it, its end never recorded (S21, S43)."""
        if self._closed:
            return
        self._finish_output()
        self._close()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._job is not None:
            self.live.leftovers.add(self._job, str(self.key))
        if self._away is not None:
            self._away.leave()
        self.scope.on_quiet()
