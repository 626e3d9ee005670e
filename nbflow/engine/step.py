"""`step`: the durable calls that a workflow makes. Parses and names things, then hands over to the activation."""

import contextvars
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from nbflow.core import names, replay
from nbflow.core.config import ResolvedConfig, resolve
from nbflow.core.durations import deadline, duration
from nbflow.core.history import StepRecord
from nbflow.core.model import Kind, StepType
from nbflow.engine.bodies import BODY, Body
from nbflow.engine.calls import Call, StepCall
from nbflow.engine.children import call_child
from nbflow.engine.entrypoint import ReceivedEvent
from nbflow.engine.executors.bodies import HERE
from nbflow.engine.functions import Decorator, Options, StepFunction, handler_of
from nbflow.engine.loop import ACTIVATION
from nbflow.engine.maps.calls import MapCall, asked_for, call_map
from nbflow.engine.waits import Asked, Wait
from nbflow.errors import UsageError, article
from nbflow.values import schemas

if TYPE_CHECKING:
    from nbflow.engine.activation import Activation

YEAR = timedelta(days=365)
SUSPICIOUS = 2  # deaths in a row after which steps in flight together run one at a time (S27)
_DO = StepType.DO  # looked up once: see core/history.py
_MISSING: Any = object()  # `step.do("load", None)` is a mistake, not a decorator


class WorkflowStep:
    """The durable calls of one activation (API.md §1)."""

    def __init__(self, activation: "Activation") -> None:
        self._activation = activation

    def do(
        self,
        name: Any = None,
        fn: Callable[..., Any] = _MISSING,
        *args: Any,
        retries: Any = None,
        timeout: Any = None,
        config: dict[str, Any] | None = None,
        rollback: Callable[..., Any] | None = None,
        rollback_config: dict[str, Any] | None = None,
        sensitive: str | None = None,
        lazy: bool = False,
        on: str | None = None,
        concurrent: bool = False,
    ) -> Any:
        """Run *fn* once to completion and give its stored result; without *fn*, decorate a function (API.md §1).

        Args:
            name: what the step is known by, with its count (S6); of a decorated function, its own name by default.
            fn: the body, async or plain; a parameter named `ctx` receives the step context.
            args: its positional arguments.
            retries, timeout: the limit, or `{"limit", "delay", "backoff", "errors"}`; a duration for one attempt.
            config: `{"retries": …, "timeout": …}`, Cloudflare's spelling of the two.
            rollback, rollback_config: undo this step when the instance fails.
            sensitive: "output" keeps the value from every display.
            lazy: give a reference to the stored value.
            on: where the body runs: None (loop or thread), "main", or a name in `engine.executors`.
            concurrent: resolve the dependencies of a decorated function at the same time.

        Raises:
            UsageError: a wrong name, option or value; raised at the call.
        """
        if callable(name) and fn is _MISSING:
            return self.do()(name)
        if isinstance(config, dict) and "sensitive" in config:  # Cloudflare's place for it
            sensitive, config = config["sensitive"], {key: value for key, value in config.items() if key != "sensitive"}
        if sensitive not in (None, "output"):
            msg = f'sensitive={sensitive!r} of step {name!r}: only "output" is known'
            raise UsageError(msg)
        self._activation.engine.executors.check(on, "step", name)
        resolved = resolve(name or "step.do", retries=retries, timeout=timeout, config=config)
        handler = handler_of(name, rollback, rollback_config)
        options = Options(resolved, on, lazy, concurrent, handler, sensitive is not None)
        if fn is _MISSING:
            return Decorator(self, name, options)
        if not callable(fn):
            given = article(type(fn).__name__)
            msg = f"step {name!r} was given {given} to run, which is not callable; give the function, not its result"
            raise UsageError(msg)
        return self._do(name, fn, args, options)

    def sleep(self, name: str, duration: Any) -> Any:
        """Pass at least that much time by the wall clock; the deadline is durable (S32)."""
        span = duration_of(name, duration)
        return self._sleep(name, lambda: self._activation.engine.clock.now() + span, fixed=False)

    def sleep_until(self, name: str, when: Any) -> Any:
        """Sleep until a moment: an aware datetime, a naive one in local time, or epoch seconds (S33)."""
        due = deadline(when, what=f"sleep_until {name!r}")
        return self._sleep(name, lambda: due, fixed=True)

    def wait_for_event(
        self,
        name: str,
        event_type: str,
        timeout: Any = "24 hours",
        *,
        schema: Any = None,
        prompt: str | None = None,
    ) -> Any:
        """Wait for an event of that type; raise EventTimeoutError when none was sent by the deadline (S34 to S37).

        Args:
            name: what the wait is known by.
            event_type: events are matched by it alone.
            timeout: a duration, at most 365 days.
            schema: what a payload must fit: a type, dataclass, TypedDict, Literal, enum, pydantic model or JSON schema (S39).
            prompt: what the panel asks.

        Returns:
            The event: `.payload`, `.type`, `.timestamp`, also by key.
        """
        if isinstance(event_type, dict):  # Cloudflare's form: {"type": …, "timeout": …}
            timeout = event_type.get("timeout", timeout)
            event_type = event_type.get("type", "")
        names.event_type(event_type)
        span = duration(timeout, what=f"timeout of wait {name!r}", at_most=YEAR)
        described = None if schema is None else schemas.describe(schema, f"schema of wait {name!r}")
        asked = Asked(event_type, span, None if prompt is None else str(prompt)[:2000], described, schema)
        activation = self._activation
        self._refuse_in_body("wait_for_event", name)
        call, known = activation.open_call(StepType.WAIT, name)
        call.payload_of = _received
        match _decision(activation, call, known, StepType.WAIT):
            case replay.WaitForEvent(due) if known is not None:
                self._go_on_waiting(call, asked, due, known)
            case replay.Open():
                self._open_wait(call, asked)
            case replay.HoldForCancel():
                activation.hold_back(call, partial(self._open_wait, call, asked))
        return StepCall(activation, call)

    def map(
        self,
        name: str,
        fn: Callable[..., Any],
        items: Any,
        *,
        key: Callable[[Any], str] | None = None,
        concurrency: int | None = None,
        rate: Any = None,
        retries: Any = None,
        timeout: Any = None,
        rollback: Callable[..., Any] | None = None,
        on: str | None = None,
        return_exceptions: bool = False,
        discard_results: bool = False,
    ) -> MapCall:
        """Run *fn* for each item, each a durable step of its own; await the results, or go through them (API.md §6).

        Args:
            name: what the map is known by; its items by this, its count and their key.
            fn: the body, called with the item; a parameter named `ctx` receives the step context.
            items: any iterable, drawn one ahead of need; drawn again from its start on a replay, recorded items passed over.
            key: gives each item a text of its own; its index by default.
            concurrency: bodies at once; 1 for plain ones, 16 for async ones by default.
            rate: "60/minute": at most so many attempts begin in any such period.
            retries, timeout: as in `do`, for each item.
            rollback: undoes one item when the instance fails, last started first.
            on: where bodies run: None (loop or thread), "main", or a registered executor.
            return_exceptions: put errors in the place of results; else the first item that fails for good ends the map.
            discard_results: keep no results; gives their number.

        Returns:
            To await: the list of results in the order of the items. In `async for`: one after another.

        Raises:
            UsageError: a wrong name, option or value; raised at the call.
        """
        self._refuse_in_body("map", name)
        engine = self._activation.engine
        engine.executors.check(on, "map", name)
        place = on or engine.default_executor
        asked = asked_for(
            name, fn, items, key=key, concurrency=concurrency, rate=rate, retries=retries, timeout=timeout, on=on,
            executor=None if place is None or place in HERE else engine.executors[place],
            rollback=handler_of(name, rollback, None), return_exceptions=return_exceptions, discard_results=discard_results,
        )  # fmt: skip
        call, known = self._activation.open_call(StepType.MAP, name)
        return call_map(self._activation, call, known, asked, _decision(self._activation, call, known, StepType.MAP))

    def child(self, name: str, workflow: Any, params: Any = None, id: str | None = None) -> Any:  # noqa: A002 - the contract's
        """Create an instance of another workflow, wait durably for its end and give its output (S60).

        A replay waits for the same child. A restart that drops the call makes a new one, its id ending in `-r2`, `-r3` and so
        on: the old one was made from other params (S44). Where the child errored and the parent is resumed, the same child is
        resumed, too, unless it was already; from other params a new one is made.

        Args:
            name: what the step is known by.
            workflow: the workflow's name, or its class.
            params: its params.
            id: its id; by default `parent.name-n`, with a hash where the name has other characters than `A-Z a-z 0-9 _ -`,
                or is too long, or that id is taken.

        Raises:
            UsageError: a wrong name or id; raised at the call.
            InstanceFailedError: it errored, with the step's error as cause, or was terminated.
            AlreadyExistsError: an instance of the id that was given exists, and this call did not make it.
        """
        self._refuse_in_body("child", name)
        return call_child(self._activation, name, workflow, params, id)

    # -- the calls behind them ----------------------------------------------------------------------------------------

    def _do(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], options: "Options") -> StepCall:
        activation = self._activation
        call, known = activation.open_call(_DO, name, place_here())
        call.lazy = options.lazy
        decision = _decision(activation, call, known, _DO)
        if options.rollback is not None:
            activation.rollbacks[call.key] = options.rollback
        if known is not None:
            activation.live.codes.called(call.key, known, fn, args)
        if decision is None or isinstance(decision, replay.Recorded):
            return StepCall(activation, call)
        config = options.config
        if known is not None and known.config is not None and not activation.live.code_changed:
            config = ResolvedConfig.from_json(known.config, config)  # what was recorded keeps for this step (S13)
        body = Body(
            activation,
            call,
            fn,
            args,
            config,
            options.on,
            contextvars.copy_context(),
            undoable=options.rollback is not None,
            sensitive=options.sensitive,
        )
        if known is not None:
            body.attempt = known.attempt
        match decision:
            case replay.Execute(attempt) if known is None or activation.live.history.head.deaths < SUSPICIOUS:
                body.begin(attempt)
            case replay.Execute(attempt):
                activation.suspects.begin(call.key, partial(body.begin, attempt))
            case replay.WaitUntil() if activation.live.code_changed:
                body.begin(decision.attempt, anew=True)  # new code is tried at once, its attempts counted anew (S58)
            case replay.WaitUntil():
                body.resume_at(decision)
            case replay.HoldForCancel():
                activation.hold_back(call, partial(body.begin, body.attempt + 1))
        return StepCall(activation, call)

    def _sleep(self, name: str, due: Callable[[], datetime], *, fixed: bool) -> StepCall:
        activation = self._activation
        self._refuse_in_body("sleep", name)
        call, known = activation.open_call(StepType.SLEEP, name)
        match _decision(activation, call, known, StepType.SLEEP):
            case replay.WaitUntil(until):
                self._sleep_on(call, until)
            case replay.Open():
                self._open_sleep(call, due, fixed)
            case replay.HoldForCancel():
                activation.hold_back(call, partial(self._open_sleep, call, due, fixed))
        return StepCall(activation, call)

    def _open_sleep(self, call: Call, due: Callable[[], datetime], fixed: bool) -> None:
        until = due()
        body: dict[str, Any] = {"order": call.order, "due_at": until.isoformat()}
        if fixed:
            body["fixed"] = True  # it names a moment: a pause does not move it (S41)
        self._activation.unacked += 1
        self._activation.record(Kind.SLEEP_STARTED, call.key, body, acked=self._activation.acked)
        self._sleep_on(call, until)

    def _sleep_on(self, call: Call, until: datetime) -> None:
        activation = self._activation
        known = activation.live.history.steps.get(call.key)
        started = known.started_at.isoformat() if known is not None else until.isoformat()

        def over() -> None:
            if activation.stopping:
                activation.hold(over)
            elif activation.failure is None:
                activation.ended(Kind.SLEEP_FINISHED, call, {"order": call.order, "started_at": started})

        timer = activation.engine.timers.at(until, over)
        call.cancel = timer.cancel

    def _open_wait(self, call: Call, asked: Asked) -> None:
        activation = self._activation
        now = activation.engine.clock.now()
        due = now + asked.span
        self._tell_senders(call, asked, due)
        self._wait_on(call, asked, due, now)
        activation.engine.tell(activation.live, "waiting")

    def _go_on_waiting(self, call: Call, asked: Asked, due: datetime, known: StepRecord) -> None:
        """A replay: the deadline stays; other code may ask for something else, which senders are told from now on (S58)."""
        if not asked.is_told(known.body):
            self._tell_senders(call, asked, due)
        self._wait_on(call, asked, due, known.started_at)

    def _tell_senders(self, call: Call, asked: Asked, due: datetime) -> None:
        activation = self._activation
        activation.unacked += 1
        activation.record(Kind.WAIT_STARTED, call.key, asked.body(call.order, due), acked=activation.acked)

    def _wait_on(self, call: Call, asked: Asked, due: datetime, since: datetime) -> None:
        Wait(self._activation, call, asked, due, since)

    # -- refusals -----------------------------------------------------------------------------------------------------

    def _refuse_in_body(self, what: str, name: str) -> None:
        body = BODY.get()
        if body is not None:
            where = f"inside the body of step {str(body.key)!r}"
            msg = f"step.{what} {name!r} was called {where}; move it out of the body, into `run` (S15)"
            raise UsageError(msg)


def place_here() -> str | None:
    """The place of the body that calls, None where `run` does (S15)."""
    body = BODY.get()
    return None if body is None else names.inside(body.key)


def duration_of(name: str, value: Any) -> timedelta:
    """The duration of a sleep."""
    return duration(value, what=f"sleep {name!r}", at_most=YEAR)


def _decision(activation: "Activation", call: Call, known: StepRecord | None, kind: StepType) -> replay.Decision | None:
    """What this call does; None where it waits for ever: after a stop (S42), or where handlers are looked for (S49)."""
    if call.key not in activation.calls:
        return None
    decision = replay.decide(known, kind)
    if activation.collecting is not None and not isinstance(decision, replay.Recorded):
        return None
    return decision


def _received(payload: object, body: dict[str, Any]) -> ReceivedEvent:
    return ReceivedEvent(payload=payload, type=body["event_type"], timestamp=datetime.fromisoformat(body["sent_at"]))


__all__ = ["ACTIVATION", "StepFunction", "WorkflowStep"]
