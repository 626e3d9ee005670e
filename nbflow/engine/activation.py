"""One pass of `run` from the top: which calls it has made, what is handed to it and when, how it ends.

Lives on the workflow loop. Everything that reaches `run` goes through `_turn`, one result at a time and only when nothing of
the activation is runnable (S20); everything it causes goes through `LiveInstance.record`.
"""

import asyncio
import contextvars
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from nbflow.core.config import ResolvedConfig
from nbflow.core.delivery import Deliveries
from nbflow.core.history import StepRecord
from nbflow.core.model import Kind, StepKey, StepState, StepType
from nbflow.core.names import step_name
from nbflow.engine.bodies import BODY
from nbflow.engine.calls import Call, unseen, unseen_failure
from nbflow.engine.handing import Handing
from nbflow.engine.logs.output import OUTPUT
from nbflow.engine.loop import ACTIVATION, keep_for_ever
from nbflow.engine.scope import Scope
from nbflow.engine.suspects import Suspects
from nbflow.errors import StopSignal, UsageError
from nbflow.values.nodes import type_name

if TYPE_CHECKING:
    from nbflow.engine.live import LiveInstance

RollbackHandler = tuple[Callable[..., Any], ResolvedConfig]

log = logging.getLogger("nbflow")

_DO, _ROLLBACK = StepType.DO, StepType.ROLLBACK  # looked up once: see core/history.py
_OVER = frozenset({StepState.FINISHED, StepState.FAILED})

GRACE = 5.0  # seconds that stopped user code has to end (S42)


class Activation(Scope):
    """One activation of one instance.

    Attributes:
        ready: callbacks of it that are ready to run; zero is quiet (counted by the loop).
        rollbacks: the handlers of steps that were called with one, by step (S46).
        collecting: it replays only to find rollback handlers: nothing runs (S49).
        decoding: a result that is large is being read: nothing is handed out before it.
        failed_calls: those that were given an error.
        left: recorded steps that have not ended and that it has not called (yet).
    """

    def __init__(self, live: "LiveInstance", run: Callable[..., Any]) -> None:
        super().__init__(live)
        self._run = run
        history = live.history
        self.ready = 0
        self.deliveries = Deliveries(history.delivered)
        self.left = {key for key, step in history.steps.items() if step.state not in _OVER and key.type is not _ROLLBACK}
        self.handing = Handing(self)
        self.next_order = history.last_order + 1
        # Calls so far. Those of a body are counted for it alone: when it does not run again, nobody else's numbers change.
        self.counts: Counter[tuple[StepType, str, str | None]] = Counter()
        self.do_calls = 0
        self.calls: dict[StepKey, Call] = {}
        self.functions: dict[str, Any] = {}
        self.rollbacks: dict[StepKey, RollbackHandler] = {}
        self.collecting: Callable[[], None] | None = None
        self.signalled = False
        self.returned = False
        self.output: object = None
        self._turn_due = self._holds_back = False
        self.decoding = False
        self.failed_calls: list[Call] = []
        self._failed_tasks: list[asyncio.Task[Any]] = []
        self.suspects = Suspects()
        self._main: asyncio.Task[Any] | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self, context: contextvars.Context) -> None:
        """Call `run`, in a copy of the context of the cell that started it, so that its prints go there."""
        context.run(ACTIVATION.set, self)
        context.run(OUTPUT.set, None)
        context.run(BODY.set, None)  # a body may have created or resumed it: it is no part of that body
        self._main = context.run(asyncio.Task, self._run(), loop=self.engine.loop, context=context)
        self.tasks.add(self._main)
        self._main.add_done_callback(self._run_ended, context=self.engine.loop.uncounted)

    def on_quiet(self) -> None:
        """Nothing of it is ready to run any more: take a turn, outside its own count."""
        if not self._turn_due:
            self._turn_due = True
            self.engine.loop.call_soon(self._turn, context=self.engine.loop.uncounted)

    @property
    def turns_otherwise(self) -> bool:
        """Whether a turn now would do something else than hand out the next result."""
        ending = self.stopping or self.over or self.failure is not None or self.live.activation is not self
        return ending or self.decoding or self.collecting is not None or self.returned

    @property
    def idle(self) -> bool:
        """Nothing of it runs: whatever it still wants must come from outside (S5)."""
        busy = self.ready or self.in_flight or self.drawing or self.unacked or self._turn_due or self.decoding or self.over
        # `run` has ended, and that is looked at in a later pass of the loop.
        ending = self._main in self.tasks and self._main is not None and self._main.done()
        return not (busy or ending or self.deliveries.pending)

    def task_ended(self, task: asyncio.Task[Any]) -> None:
        """A task of user code has ended; a failure that nobody looks at may be that of a step (S16)."""
        self.tasks.discard(task)
        if task.cancelled() or not task._log_traceback:  # noqa: SLF001 - "nobody has looked at it"
            return
        if self.over or isinstance(task._exception, StopSignal):  # noqa: SLF001 - without looking
            task.exception()  # nobody's failure, and nothing for asyncio to complain of
            return
        self._failed_tasks = [*filter(unseen, self._failed_tasks), task]

    def stop(self) -> None:
        """Start nothing more and hand nothing out; bodies in flight go on, user code that never rests is not waited for."""
        super().stop()
        self.withdraw()
        self.engine.timers.after(GRACE, self._stop_restless)

    def _stop_restless(self) -> None:
        if self.stopping and not self.over:
            self.engine.timers.after(GRACE, self._stop_restless)
            self._wind_down()

    def abandon(self) -> None:
        """End it at once: bodies are cancelled or left to their threads, nothing of it is recorded any more (S43)."""
        self.stopping = self.over = True
        for call in list(self.calls.values()):
            call.cancel()
        self.drop_tasks()

    def drop_tasks(self) -> None:
        """Cancel what user code still has; what does not end in time is dropped with a line in the log (S42)."""
        self.stopping = self.over = True
        for close in self.closers:
            close()
        tasks = [task for task in self.tasks if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            self.engine.timers.after(GRACE, partial(self._report_stuck, tasks))

    def _report_stuck(self, tasks: list[asyncio.Task[Any]]) -> None:
        stuck = [task for task in tasks if not task.done()]
        for task in stuck:
            keep_for_ever(task)
        if stuck:
            log.warning("%s: user code did not end %g s after it was stopped; it is dropped", self.live.name, GRACE)

    # -- calls --------------------------------------------------------------------------------------------------------

    def open_call(self, kind: StepType, name: str, place: str | None = None) -> tuple[Call, StepRecord | None]:
        """Note a call of a step: its key, its order, what is recorded of it; *place* is the body that makes it (S15)."""
        inner = place is not None
        if self.over and not inner:  # before anything else: code that catches everything would ask for ever, in any thread
            return self._refused_call(kind, name), None
        self._check_caller(kind)
        if self.live.rolling_back:
            msg = f"step {name!r} was called during rollback, where steps, sleeps and waits are refused (S50)"
            raise UsageError(msg)
        if (self.stopping or self.failure is not None) and (self.over or not inner):
            return self._refused_call(kind, name), None
        step_name(name)
        if kind is _DO:
            self._count_step(name)
        count = self.counts[kind, name, place] + 1
        self.counts[kind, name, place] = count
        key = StepKey(kind, name, count, place)
        known = self.live.history.steps.get(key)
        order = known.order if known is not None else self.next_order
        if known is None:
            self.next_order += 1
        elif self.left:
            self.left.discard(key)
        call = Call(key, order, asyncio.Future(loop=self.engine.loop))
        call.inner = inner
        self.calls[key] = call
        if inner:  # the count of ready callbacks does not know of bodies
            self.on_quiet()
        return call, known

    def _count_step(self, name: str) -> None:
        self.do_calls += 1
        if self.do_calls > self.engine.max_steps:
            msg = (
                f"step {name!r} is call {self.do_calls} of step.do in one activation, and {self.engine.max_steps} are allowed "
                f"(S14); use step.map for many items, or Engine(max_steps=)"
            )
            raise UsageError(msg)

    def _check_caller(self, kind: StepType) -> None:
        if not self.engine.thread.here:
            msg = (
                f"a step ({kind}) was called outside the workflow loop; call steps in `run` or in an async body, "
                f"not in a plain def or another thread"
            )
            raise UsageError(msg)
        if self.engine.closing:
            self.stopping = True

    def _refused_call(self, kind: StepType, name: str) -> Call:
        """The first call after a stop raises, every later one waits for ever: user code cannot swallow a stop (S42)."""
        if self.signalled:
            return Call(StepKey(kind, name, 0), 0, self.engine.loop.create_future())
        self.signalled = True
        msg = f"{self.live.name} was stopped"
        raise StopSignal(msg)

    def call_cancelled(self, call: Call) -> None:
        """User code cancelled this call: say so in the history, unless it had ended or all is stopping (S21)."""
        if (self.signalled or self.failure is not None) and not call.inner and not self.over:
            return  # our stop made user code do this: the body goes on to its end (S19, S40)
        if self.calls.pop(call.key, None) is None or self.over:
            return
        self.deliveries.leave(call.key)
        call.future.cancel()
        record = self.live.history.steps.get(call.key)
        if record is not None and record.ended:
            return
        call.cancel()
        self.suspects.ended(call.key)
        kind = Kind(f"{call.key.type}.cancelled")
        body: dict[str, Any] = {"order": call.order}
        if record is not None and record.attempt:
            body |= {"attempt": record.attempt, "started_at": record.attempts[-1].started_at.isoformat()}
        if record is not None and kind is Kind.CHILD_CANCELLED:  # whoever wants it after all waits for the same child
            body |= {name: record.body[name] for name in ("workflow", "id") if name in record.body}
        self.record(kind, call.key, body, acked=self.acked)
        self.unacked += 1

    def ended(self, kind: Kind, call: Call, body: dict[str, Any], value: bytes | None = None) -> None:
        """Record the end of a step; when it is durable, its result takes its turn."""
        self.unacked += 1
        self.record(kind, call.key, body, value, acked=partial(self._arrived, call.key))
        self.suspects.ended(call.key)

    def _arrived(self, key: StepKey) -> None:
        self.unacked -= 1
        self.deliveries.arrive(key)
        if not self.ready:  # else it takes its turn when the last of that has run
            self.take_turn()

    def take_turn(self) -> None:
        """Take a turn at once: a pass of the loop costs more than the turn, and a pause of what only waits has happened
        when `pause` returns (S40)."""
        if self.returned and not self.calls:
            self.on_quiet()  # the end waits for what tasks that have just ended still have to say (S16)
        else:
            self._turn()

    # -- turns --------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        try:
            self._take_turn()
        except BaseException as wrong:  # noqa: BLE001 - an object of the user's that raises when it is looked at
            msg = f"the engine could not go on with what `run` gave it: looking at it raised {type_name(type(wrong))}"
            log.error("%s: %s", self.live.name, msg)
            if not self.over or self.live.activation is self:
                self.over = True
                self.live.fail(self, UsageError(msg))

    def _take_turn(self) -> None:
        self._turn_due = False
        if self.ready or self.decoding or self.over:
            return
        if self.collecting is not None and (self.failure is not None or self.returned) and not self.stopping:
            self._collected(self.collecting)
            return
        if self.stopping or self.failure is not None:
            self._wind_down()
            return
        if self.live.activation is not self:
            return  # somebody ends it at this moment, in another thread
        key = self.deliveries.next(self.calls)
        if key is not None:
            if self.live.rest.may_work(self.on_quiet):
                self.handing.deliver(self.calls[key])
            else:
                self.deliveries.put_back(key)
        elif self.collecting is not None:
            self._collected(self.collecting)
        elif not self._revive_cancelled() and not self.live.match_events(self):
            if self.returned and not self.calls and not self.in_flight:
                self._conclude()
            elif self.idle:
                self.live.noted_idle()

    def _collected(self, then: Callable[[], None]) -> None:
        """All that can be reached without running anything has been: the handlers are known (S49)."""
        self.over = True
        then()
        self.drop_tasks()

    def unreached(self) -> tuple[StepKey, ...]:
        """Recorded steps that `run` has not asked for (S9); those of a body that did not run again are no news."""
        steps = self.live.history.steps
        left = sorted(self.left & steps.keys(), key=lambda key: steps[key].order)
        return tuple(key for key in (*self.deliveries.unreached(), *left) if key in steps and steps[key].parent is None)

    def hold_back(self, call: Call, begin: Callable[[], None]) -> None:
        """A call that was cancelled before is expected to be again: it begins only if all is quiet without that (S21)."""
        call.begin, self._holds_back = begin, True

    def _revive_cancelled(self) -> bool:
        """All is quiet and recorded cancellations have not come again: the code has changed, so they run (S21)."""
        if not self._holds_back:
            return False
        self._holds_back = False
        revived = [call for call in self.calls.values() if call.begin is not None]
        for call in revived:
            begin, call.begin = call.begin, None
            assert begin is not None
            begin()
        return bool(revived)

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _run_ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        error = asyncio.CancelledError("`run` was cancelled") if task.cancelled() else task.exception()
        if self.over or self.signalled:
            self.on_quiet()
            return
        if error is None:
            self.returned, self.output = True, task.result()
        else:
            self.failure = error
            self.withdraw()
        self.on_quiet()

    def _conclude(self) -> None:
        """`run` has returned and every step it started has ended (S16)."""
        self.failure = unseen_failure(self.failed_calls, self._failed_tasks)
        if self.failure is not None:
            self._wind_down()
            return
        self.over = True
        self.live.complete(self, self.output)

    def _wind_down(self) -> None:
        """Bodies in flight end and are recorded, nothing else happens; then the activation is over (S19, S40)."""
        if self.in_flight:  # what their own steps gave is part of them (S15)
            key = self.deliveries.out_of_turn([key for key, call in self.calls.items() if call.inner])
            if key is not None:
                self.handing.deliver(self.calls[key])
                return
        if self.over or self.in_flight or self.unacked:
            return
        self.over = True
        if self.failure is not None and not self.stopping:
            self.live.fail(self, self.failure)
        else:
            self.live.stopped(self)
        self.drop_tasks()
