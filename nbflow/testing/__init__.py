"""The public kit for testing workflows."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from nbflow.clock import Follower, SystemClock, pause
from nbflow.core import names
from nbflow.core.durations import duration
from nbflow.core.model import ENDED, ErrorInfo, InstanceStatus, Status, StepState
from nbflow.engine.instance import WorkflowInstance
from nbflow.engine.live import LiveInstance
from nbflow.engine.registry import Workflow
from nbflow.errors import NotFoundError, UsageError, WaitTimeoutError, listed
from nbflow.store.views import StepView
from nbflow.testing.mocks import Kit, Rules
from nbflow.values import codec

PATIENCE = 30.0  # real seconds that an engine may take to become idle
ON_LOOP, IN_THREADS = 2.0, 10.0  # real seconds that bodies may take before time goes on without them
TO_APPLY = 1.0  # real seconds for an instance to come to what it waits for, before its rules are applied


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

        Bodies that run have some real time to end first (2 s on the workflow loop, 10 s in threads). Those that take longer
        see time go on: their timeouts fire when they are due.

        Raises:
            TimeoutError: an engine did not become idle within 30 real seconds: a body blocks, and its timeout is not due.
        """
        end = self._now + duration(span, what="advance()")
        self._settle(end)
        while (due := self._next_due()) is not None and due <= end:
            self._now = max(self._now, due)
            self._fire(end)
        self._now = end
        self._fire(end)

    def _next_due(self) -> datetime | None:
        return min((due for follower in self._followers if (due := follower.next_due()) is not None), default=None)

    def _fire(self, end: datetime) -> None:
        for follower in self._followers:
            follower.time_moved()
        self._settle(end)

    def _settle(self, end: datetime) -> None:
        """Wait until nothing happens any more, or only bodies that have something due before *end*."""
        real = SystemClock()
        began = real.monotonic()
        while not all(follower.idle() for follower in self._followers):
            waited = real.monotonic() - began
            enough = IN_THREADS if any(follower.in_threads() for follower in self._followers) else ON_LOOP
            if waited > enough and (due := self._next_due()) is not None and self._now < due <= end:
                return
            if waited > PATIENCE:
                msg = f"the engine did not become idle within {PATIENCE:g} seconds of real time; does a body block?"
                raise TimeoutError(msg)
            pause(0.0005)


class Introspection:
    """Says what a workflow, or one instance of it, meets in a test, and what became of it.

    Rules of a workflow hold for all its instances, from their next activation or call on; those of an instance for it alone,
    before them. An instance that waits already is replayed, so that what it waits for meets its rules.
    """

    def __init__(self, target: Workflow | WorkflowInstance) -> None:
        if not isinstance(target, Workflow | WorkflowInstance):
            msg = f"introspect() got {target!r}; give what engine.register() or workflow.create() gave"
            raise UsageError(msg)
        self._rules = Rules()
        self._instance = target if isinstance(target, WorkflowInstance) else None
        workflow = target if isinstance(target, Workflow) else target.engine.workflow(target.workflow_name)
        self._workflow = workflow
        kit = workflow.make_step
        if not isinstance(kit, Kit):
            kit = workflow.make_step = Kit()
        kit.add(None if self._instance is None else self._instance.created_seq, self._rules)
        self._apply_now()

    def _apply_now(self) -> None:
        """An instance that waits already is replayed."""
        if (live := self._waiting()) is not None:
            live.engine.on_loop(live.replace_code)

    def _waiting(self) -> LiveInstance | None:
        """The instance, if it is one that lives here; when it is about to wait it is given a moment to do so."""
        live = None if self._instance is None else self._instance.engine.live.get(self._instance.created_seq)
        if live is not None:
            real = SystemClock()
            end = real.monotonic() + TO_APPLY
            while (activation := live.activation) is not None and not activation.idle and real.monotonic() < end:
                pause(0.002)
        return live

    # -- rules --------------------------------------------------------------------------------------------------------

    def disable_sleeps(self) -> None:
        """Sleeps are over at once; those of an instance also where they have begun."""
        self._rules.sleeps = False
        self._apply_now()

    def disable_retry_delays(self) -> None:
        """Failed attempts are retried at once; those of an instance also where they wait already."""
        self._rules.retry_delays = False
        if (live := self._waiting()) is not None:
            live.patient = False
            live.engine.on_loop(live.retry_now)

    def mock_step_result(self, name: str, value: Any, count: int = 1) -> None:
        """Let the count-th step of that name give *value*; its body does not run. Of a map: the list of results,
        with `discard_results=True` their number. Of a child: its output, and no child is made.

        Raises:
            UsageError: *count* is no number from 1.
            NotSerialisableError: no step can give that value (S31).
        """
        if type(count) is not int or count < 1:
            msg = f"mock_step_result({name!r}, count={count!r}): calls of a step are counted from 1; give which one is meant"
            raise UsageError(msg)
        self._refuse_unstorable(value)
        self._rules.results[name, count] = value
        self._meet_now(name)

    def mock_step_error(self, name: str, error: BaseException, times: int | None = None) -> None:
        """Let attempts of steps of that name fail: the first *times* of each step, or all; then a mocked result counts.

        A child of that name is not made; `run` gets this very error.

        Raises:
            UsageError: *error* is none, or *times* is no number from 1.
        """
        _check_times("mock_step_error", name, times)
        if not isinstance(error, BaseException) and not (isinstance(error, type) and issubclass(error, BaseException)):
            msg = f"mock_step_error({name!r}, {error!r}): give an exception, such as ValueError({str(error)!r})"
            raise UsageError(msg)
        self._rules.errors[name] = (error() if isinstance(error, type) else error, times)
        self._meet_now(name)

    def force_step_timeout(self, name: str, times: int | None = None) -> None:
        """Let attempts of steps of that name time out, children too: the first *times* of each step, or all.

        Raises:
            UsageError: *times* is no number from 1.
        """
        _check_times("force_step_timeout", name, times)
        self._rules.timeouts[name] = times
        self._meet_now(name)

    def _meet_now(self, name: str) -> None:
        """An instance that waits for a step of that name, or to retry it, is replayed."""
        if self._instance is not None and any(wait.name == name for wait in self._instance.view().waiting_for):
            self._apply_now()

    def mock_event(self, type: str, payload: Any = None) -> None:  # noqa: A002 - the contract's name
        """Let the next wait for that type receive *payload*, of a workflow: of each instance; once for each call.

        A wait that sets it aside, since it does not fit the wait's `schema=` (S39), receives the next one.

        Raises:
            UsageError: no event can have that type (S34).
            NotSerialisableError: no event can bring that payload.
        """
        names.event_type(type)
        self._refuse_unstorable(payload)
        if self._instance is not None and any(wait.event_type == type for wait in self._instance.view().waits):
            self._instance.send_event(type, payload, by="mock")
        else:
            self._rules.events.setdefault(type, []).append(payload)

    def _refuse_unstorable(self, value: Any) -> None:
        codec.encode(value, None, allow_pickle=self._workflow.engine.allow_pickle, with_preview=False)

    def force_event_timeout(self, name: str) -> None:
        """Let waits of that name time out at once, events at hand left to the waits after them.

        Those of an instance do so also where they have begun.
        """
        self._rules.event_timeouts.add(name)
        self._apply_now()

    # -- what became of it --------------------------------------------------------------------------------------------

    @property
    def instance(self) -> WorkflowInstance:
        """The instance, of a workflow its newest.

        Raises:
            NotFoundError: the workflow has none yet.
        """
        if self._instance is not None:
            return self._instance
        newest = self._workflow.engine.list(self._workflow.name, limit=1)
        if not newest:
            msg = f"workflow {self._workflow.name!r} has no instance yet; create() one first"
            raise NotFoundError(msg)
        return newest[0]

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
        """Block until the instance has that status. *timeout* in real seconds.

        Raises:
            UsageError: there is no such status.
            WaitTimeoutError: it was not reached.
        """
        if status not in list(Status):
            msg = f"wait_for_status({status!r}): a status is one of {listed([each.value for each in Status])}"
            raise UsageError(msg)
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


def _check_times(what: str, name: str, times: int | None) -> None:
    if times is not None and (type(times) is not int or times < 1):
        msg = f"{what}({name!r}, times={times!r}): give how many attempts of each step fail, from 1, or None for all"
        raise UsageError(msg)


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
