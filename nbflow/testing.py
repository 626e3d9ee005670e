"""The public kit for testing workflows."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import structs

from nbflow import ids
from nbflow.clock import Follower, SystemClock, pause
from nbflow.core.durations import duration
from nbflow.core.model import ENDED, ErrorInfo, InstanceStatus, Kind, Status, StepState, StepType
from nbflow.engine.activation import Activation
from nbflow.engine.calls import StepCall
from nbflow.engine.functions import Options
from nbflow.engine.instance import WorkflowInstance
from nbflow.engine.outputs import body_of
from nbflow.engine.registry import Workflow
from nbflow.engine.step import WorkflowStep
from nbflow.errors import StepTimeoutError, WaitTimeoutError
from nbflow.store.views import StepView
from nbflow.values import codec

PATIENCE = 30.0  # real seconds that an engine may take to become idle


class ManualClock:
    """A clock that moves only when told: days of sleeping pass in milliseconds.

    Args:
        start: the first moment, aware; 2026-01-01 UTC by default.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._start = self._now = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._followers: list[Follower] = []

    def now(self) -> datetime:
        """The moment it was moved to."""
        return self._now

    def monotonic(self) -> float:
        """Seconds since it was made, by its own time."""
        return (self._now - self._start).total_seconds()

    def subscribe(self, follower: Follower) -> None:
        """Let *follower* know whenever time has moved."""
        self._followers.append(follower)

    def unsubscribe(self, follower: Follower) -> None:
        """Forget *follower*: its engine is closed."""
        self._followers = [one for one in self._followers if one is not follower]

    def advance(self, span: Any) -> None:
        """Move on by a duration, stopping at every deadline on the way; returns when the engines are idle.

        Raises:
            TimeoutError: an engine did not become idle within 30 real seconds: a body blocks.
        """
        end = self._now + duration(span, what="advance()")
        self._settle()
        while (due := self._next_due()) is not None and due <= end:
            self._now = max(self._now, due)
            self._fire()
        self._now = end
        self._fire()

    def _next_due(self) -> datetime | None:
        return min((due for follower in self._followers if (due := follower.next_due()) is not None), default=None)

    def _fire(self) -> None:
        for follower in self._followers:
            follower.time_moved()
        self._settle()

    def _settle(self) -> None:
        real = SystemClock()
        limit = real.monotonic() + PATIENCE
        while not all(follower.idle() for follower in self._followers):
            if real.monotonic() > limit:
                msg = f"the engine did not become idle within {PATIENCE:g} seconds of real time; does a body block?"
                raise TimeoutError(msg)
            pause(0.0005)


@dataclass
class _Rules:
    """What a test wants instead of the real thing."""

    sleeps: bool = True
    retry_delays: bool = True
    results: dict[tuple[str, int], Any] = field(default_factory=dict)
    errors: dict[str, tuple[BaseException, int | None]] = field(default_factory=dict)
    timeouts: dict[str, int | None] = field(default_factory=dict)
    events: dict[str, list[Any]] = field(default_factory=dict)
    event_timeouts: set[str] = field(default_factory=set)


class Introspection:
    """Says what a workflow, or one instance of it, meets in a test, and what became of it.

    Rules of a workflow hold for all its instances, from their next activation or call on; those of an instance for it alone.
    """

    def __init__(self, target: Workflow | WorkflowInstance) -> None:
        self._rules = _Rules()
        self._instance = target if isinstance(target, WorkflowInstance) else None
        workflow = target if isinstance(target, Workflow) else target.engine.workflow(target.workflow_name)
        self._workflow = workflow
        inner = workflow.make_step
        workflow.make_step = lambda activation: self._step_for(activation, inner)
        if self._instance is not None:
            self._apply_now(self._instance)

    def _step_for(self, activation: Activation, inner: Callable[[Activation], WorkflowStep]) -> WorkflowStep:
        wanted = self._instance
        if wanted is not None and activation.live.created_seq != wanted.created_seq:
            return inner(activation)
        return MockedStep(activation, self._rules)

    def _apply_now(self, instance: WorkflowInstance) -> None:
        """An instance that waits already is replayed, so that its calls meet the rules."""
        live = instance.engine.live.get(instance.created_seq)
        if live is not None:
            instance.engine.on_loop(live.replace_code)

    # -- rules --------------------------------------------------------------------------------------------------------

    def disable_sleeps(self) -> None:
        """Sleeps that begin from now on are over at once."""
        self._rules.sleeps = False

    def disable_retry_delays(self) -> None:
        """Failed attempts are retried at once."""
        self._rules.retry_delays = False

    def mock_step_result(self, name: str, value: Any, count: int = 1) -> None:
        """Let the count-th step of that name give *value*; its body does not run."""
        self._rules.results[name, count] = value

    def mock_step_error(self, name: str, error: BaseException, times: int | None = None) -> None:
        """Let attempts of steps of that name fail: the first *times* of each step, or all; then a mocked result counts."""
        self._rules.errors[name] = (error, times)

    def force_step_timeout(self, name: str, times: int | None = None) -> None:
        """Let attempts of steps of that name time out: the first *times* of each step, or all."""
        self._rules.timeouts[name] = times

    def mock_event(self, type: str, payload: Any = None) -> None:  # noqa: A002 - the contract's name
        """Let the next wait for that type receive *payload*; once for each call."""
        self._rules.events.setdefault(type, []).append(payload)
        if self._instance is not None and any(wait.event_type == type for wait in self._instance.view().waits):
            self._rules.events[type].pop()
            self._instance.send_event(type, payload, by="mock")

    def force_event_timeout(self, name: str) -> None:
        """Let waits of that name time out at once."""
        self._rules.event_timeouts.add(name)

    # -- what became of it --------------------------------------------------------------------------------------------

    @property
    def instance(self) -> WorkflowInstance:
        """The instance, of a workflow its newest."""
        if self._instance is not None:
            return self._instance
        return self._workflow.engine.list(self._workflow.name, limit=1)[0]

    def wait_for_step_result(self, name: str, count: int = 1, timeout: float = PATIENCE) -> Any:
        """Block until that step has ended; gives its output. *timeout* in real seconds.

        Raises:
            NotFoundError: the instance ended without such a step.
            WaitTimeoutError: the step did not end.
        """

        def ended() -> StepView | None:
            found = next((s for s in self.instance.steps if (s.name, s.count) == (name, count)), None)
            if found is not None and found.status in ENDED:
                return found
            return self.instance.step(name, count) if self.instance.is_finished() else None

        step = _until(ended, f"step {name!r} number {count}", timeout)
        if step.status is StepState.FAILED:
            msg = f"step {name!r} failed: {step.error}"
            raise AssertionError(msg)
        return step.output

    def wait_for_status(self, status: Status | str, timeout: float = PATIENCE) -> InstanceStatus:
        """Block until the instance has that status. *timeout* in real seconds."""
        wanted = Status(status)
        _until(lambda: self.instance.view().status is wanted or None, f"status {wanted.value!r}", timeout)
        return self.instance.status()

    def output(self) -> Any:
        """The output of the complete instance."""
        return self.instance.output

    def error(self) -> ErrorInfo | None:
        """The error of an errored instance."""
        return self.instance.status().error


def introspect(target: Workflow | WorkflowInstance) -> Introspection:
    """Watch and steer a workflow or one instance in a test.

    Args:
        target: a registered workflow (its rules hold for instances made afterwards), or an instance.
    """
    return Introspection(target)


class MockedStep(WorkflowStep):
    """`step` with a test's rules in front."""

    def __init__(self, activation: Activation, rules: _Rules) -> None:
        super().__init__(activation)
        self._rules = rules

    def _do(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], options: Options) -> StepCall:
        count = self._activation.counts[StepType.DO, name] + 1
        if not self._rules.retry_delays:
            config = replace(options.config, delay=timedelta(0), backoff="constant", delay_fn=None)
            options = structs.replace(options, config=config)
        if (name, count) in self._rules.results:
            value = self._rules.results[name, count]
            fn, args = (lambda: value), ()
        failing = self._rules.errors.get(name)
        if name in self._rules.timeouts:
            failing = (StepTimeoutError(f"step {name!r} was made to time out"), self._rules.timeouts[name])
        if failing is not None:
            fn, args = _failing(fn, args, *failing), ()
        return super()._do(name, fn, args, options)

    def _sleep(self, name: str, due: Callable[[], datetime], *, fixed: bool) -> StepCall:
        now = self._activation.engine.clock.now
        return super()._sleep(name, due if self._rules.sleeps else now, fixed=fixed)

    def wait_for_event(
        self, name: str, event_type: Any, timeout: Any = "24 hours", *, schema: Any = None, prompt: str | None = None
    ) -> Any:
        """Wait, meeting mocked events and forced timeouts."""
        key_count = self._activation.counts[StepType.WAIT, name] + 1
        known = any(
            key.type is StepType.WAIT and key.name == name and key.count == key_count
            for key in self._activation.live.history.steps
        )
        kind = event_type.get("type", "") if isinstance(event_type, dict) else event_type
        if self._rules.events.get(kind) and not known:
            self._send(kind, self._rules.events[kind].pop(0))
        if name in self._rules.event_timeouts:
            timeout = 0
        return super().wait_for_event(name, event_type, timeout, schema=schema, prompt=prompt)

    def _send(self, kind: str, payload: Any) -> None:
        live = self._activation.live
        encoded = codec.encode(payload, live.files)
        body = {"event_id": ids.new_uid(), "type": kind, "by": "mock"} | body_of(encoded)
        live.record(Kind.EVENT, None, body, encoded.data, acked=live.notify)


def _failing(fn: Callable[..., Any], args: tuple[Any, ...], error: BaseException, times: int | None) -> Callable[..., Any]:
    from nbflow.engine.context import bind

    def body(ctx: Any) -> Any:
        if times is None or ctx.attempt <= times:
            raise error
        return bind(fn, args, lambda: ctx)()

    return body


def _until(reached: Callable[[], Any], what: str, timeout: float) -> Any:
    real = SystemClock()
    end = real.monotonic() + timeout
    while (found := reached()) is None:
        if real.monotonic() > end:
            msg = f"{what} was not reached within {timeout:g} seconds of real time"
            raise WaitTimeoutError(msg)
        pause(0.002)
    return found


__all__ = ["Introspection", "ManualClock", "introspect"]
