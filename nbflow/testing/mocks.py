"""What stands in front of a workflow's steps in a test: rules, and the `step` that keeps to them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from nbflow import ids
from nbflow.core.history import EventRecord, History, StepRecord
from nbflow.core.model import Kind, StepKey, StepType
from nbflow.core.names import quoted
from nbflow.engine.activation import Activation
from nbflow.engine.calls import Call, StepCall
from nbflow.engine.children import Child, call_child
from nbflow.engine.context import bind
from nbflow.engine.functions import Options
from nbflow.engine.outputs import body_of, with_values
from nbflow.engine.step import WorkflowStep, place_here
from nbflow.engine.waits import Asked, Wait
from nbflow.errors import StepTimeoutError, UsageError
from nbflow.values import codec, failures, schemas


@dataclass
class Rules:
    """What a test wants instead of the real thing.

    Attributes:
        served: how many of the events of a type an instance was given; each is given to every instance, once.
        failed: how often a call of `step.child` was made to fail.
    """

    sleeps: bool = True
    retry_delays: bool = True
    results: dict[tuple[str, int], Any] = field(default_factory=dict)
    errors: dict[str, tuple[BaseException, int | None]] = field(default_factory=dict)
    timeouts: dict[str, int | None] = field(default_factory=dict)
    events: dict[str, list[Any]] = field(default_factory=dict)
    event_timeouts: set[str] = field(default_factory=set)
    served: Counter[tuple[int, str]] = field(default_factory=Counter)
    failed: Counter[tuple[int, int, StepKey]] = field(default_factory=Counter)

    def failure(self, name: str) -> tuple[BaseException, int | None] | None:
        """The error that attempts of steps of that name fail with, and how many of each step."""
        if name in self.timeouts:
            return StepTimeoutError(f"step {name!r} was made to time out"), self.timeouts[name]
        return self.errors.get(name)

    def next_event(self, created_seq: int, type: str) -> tuple[Any] | None:  # noqa: A002 - as in `mock_event`
        """The payload that the next wait of that instance for that type is to receive, if any."""
        if not self.has_event(created_seq, type):
            return None
        self.served[created_seq, type] += 1
        return (self.events[type][self.served[created_seq, type] - 1],)

    def has_event(self, created_seq: int, type: str) -> bool:  # noqa: A002 - as in `mock_event`
        """Whether there is one."""
        return self.served[created_seq, type] < len(self.events.get(type, []))


class Kit:
    """Makes the `step` of a workflow's activations; all who look into the workflow, or into one instance, share it."""

    def __init__(self) -> None:
        self._known: list[tuple[int | None, Rules]] = []

    def __call__(self, activation: Activation) -> WorkflowStep:
        """The `step` of an activation."""
        return MockedStep(activation, self)

    def add(self, created_seq: int | None, rules: Rules) -> None:
        """Let rules hold for one instance, or for all."""
        self._known.append((created_seq, rules))

    def rules(self, created_seq: int) -> list[Rules]:
        """Those that hold for an instance, its own first, then the newest."""
        holding = [(whose is None, rules) for whose, rules in reversed(self._known) if whose in (None, created_seq)]
        return [rules for _, rules in sorted(holding, key=lambda each: each[0])]


class MockedStep(WorkflowStep):
    """`step` with a test's rules in front."""

    def __init__(self, activation: Activation, kit: Kit) -> None:
        super().__init__(activation)
        self._kit = kit
        self._late: set[StepKey] = set()
        self._hurry()

    def _hurry(self) -> None:
        self._activation.live.patient = all(rules.retry_delays for rules in self._rules)

    @property
    def _rules(self) -> list[Rules]:
        return self._kit.rules(self._activation.live.created_seq)

    def _failing(self, name: str) -> tuple[BaseException, int | None] | None:
        return next((failure for rules in self._rules if (failure := rules.failure(name)) is not None), None)

    def _mocked(self, kind: StepType, name: str) -> tuple[Any] | None:
        """The result that the next call of that name is to give, if any."""
        count = self._activation.counts[kind, name, place_here()] + 1
        return next(((rules.results[name, count],) for rules in self._rules if (name, count) in rules.results), None)

    def _do(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], options: Options) -> StepCall:
        self._hurry()
        if (mocked := self._mocked(StepType.DO, name)) is not None:
            fn, args = (lambda: mocked[0]), ()
        if (failing := self._failing(name)) is not None:
            fn = _failing(fn, *failing)
        return super()._do(name, fn, args, options)

    def map(self, name: str, fn: Callable[..., Any], items: Any, **options: Any) -> Any:
        """Fan out, meeting mocked results and errors."""
        self._hurry()
        if (mocked := self._mocked(StepType.MAP, name)) is not None:
            items, fn = _items_giving(name, mocked[0], counted=bool(options.get("discard_results"))), (lambda value: value)
            options.pop("key", None)
        if (failing := self._failing(name)) is not None:
            fn = _failing(fn, *failing)
        return super().map(name, fn, items, **options)

    def child(self, name: str, workflow: Any, params: Any = None, id: str | None = None) -> Any:  # noqa: A002 - as in `step`
        """Wait for a child, or meet a mocked result or error without one."""
        self._hurry()
        self._refuse_in_body("child", name)
        mocked = self._mocked(StepType.CHILD, name)
        return call_child(self._activation, name, workflow, params, id, make=partial(MockedChild, self._rules, mocked))

    def _sleep_on(self, call: Call, until: datetime) -> None:
        now = self._activation.engine.clock.now()
        super()._sleep_on(call, until if all(rules.sleeps for rules in self._rules) else min(until, now))

    def _open_wait(self, call: Call, asked: Asked) -> None:
        if self._is_late(call.key.name, asked.event_type):
            self._late.add(call.key)
            asked = replace(asked, span=timedelta(0))
        else:
            self._send_mocked(asked)
        super()._open_wait(call, asked)

    def _go_on_waiting(self, call: Call, asked: Asked, due: datetime, known: StepRecord) -> None:
        if any(call.key.name in rules.event_timeouts for rules in self._rules):
            self._late.add(call.key)
        super()._go_on_waiting(call, asked, due, known)

    def _wait_on(self, call: Call, asked: Asked, due: datetime, since: datetime) -> None:
        if call.key in self._late:
            LateWait(self._activation, call, asked, min(due, self._activation.engine.clock.now()), since)
        else:
            super()._wait_on(call, asked, due, since)

    def _is_late(self, name: str, kind: str) -> bool:
        """Whether a wait is made to time out, also where events are at hand: but for those that rules before that one mock."""
        seq = self._activation.live.created_seq
        for rules in self._rules:
            if name in rules.event_timeouts or rules.has_event(seq, kind):
                return name in rules.event_timeouts
        return False

    def _send_mocked(self, asked: Asked) -> None:
        """The mocked event that a wait is to receive, after those that it will set aside (S39)."""
        seq = self._activation.live.created_seq
        while (
            found := next((one for rules in self._rules if (one := rules.next_event(seq, asked.event_type))), None)
        ) is not None:
            self._send(asked.event_type, found[0])
            if asked.described is None or not schemas.problems(asked.described, found[0], asked.schema):
                return

    def _send(self, kind: str, payload: Any) -> None:
        live = self._activation.live
        encoded = codec.encode(payload, live.files)
        body = {"event_id": ids.new_uid(), "type": kind, "by": "mock"} | body_of(encoded)
        live.record(Kind.EVENT, None, body, encoded.data, acked=live.notify)


class LateWait(Wait):
    """A wait that is made to time out: it takes no event, so that those at hand are for the waits after it."""

    def in_time(self, _history: History) -> EventRecord | None:
        """See `Wait`."""
        return None


class MockedChild(Child):
    """A call of `step.child` that a test's rules may answer: then no child is made or waited for."""

    def __init__(self, rules: list[Rules], mocked: tuple[Any] | None, *call: Any) -> None:
        super().__init__(*call)
        self._rules, self._mocked = rules, mocked

    def begin(self) -> None:
        """See `Child`."""
        if not self._answered():
            super().begin()

    def go_on(self, known: StepRecord) -> None:
        """See `Child`; one that was made before the rule goes on by itself."""
        if not self._answered():
            super().go_on(known)

    def _answered(self) -> bool:
        if (error := self._failure()) is not None:
            self.call.original = error
            self._end(Kind.CHILD_FAILED, {"error": failures.record_error(error)})
        elif self._mocked is not None:
            encoded = codec.encode(self._mocked[0], self.activation.live.files)
            self._end(Kind.CHILD_FINISHED, body_of(encoded), encoded.data)
        else:
            return False
        return True

    def _failure(self) -> BaseException | None:
        """The error of this call; where its parent is resumed after it, the call is made again, and counted."""
        head = self.activation.live.history.head
        key = head.created_seq, head.generation, self.call.key
        for rules in self._rules:
            if (failure := rules.failure(self.call.key.name)) is not None:
                error, times = failure
                rules.failed[key] += 1
                return error if times is None or rules.failed[key] <= times else None
        return None


def _items_giving(name: str, mocked: Any, *, counted: bool) -> Any:
    """The items of a map in place of its own, each its own result, by which it gives what is mocked."""
    if counted and type(mocked) is int and mocked >= 0:
        return range(mocked)
    try:
        return list(mocked)
    except TypeError:
        given = "the number of items, or their list, as it has discard_results=True" if counted else "the list of results"
        msg = f"mock_step_result({name!r}, {quoted(mocked)}): a map of that name was called, which gives {given}"
        raise UsageError(msg) from None


def _failing(fn: Callable[..., Any], error: BaseException, times: int | None) -> Callable[..., Any]:
    def body(*items: Any, ctx: Any) -> Any:
        if times is None or ctx.attempt <= times:
            raise error
        return bind(*with_values(fn, items), lambda: ctx)()

    return body
