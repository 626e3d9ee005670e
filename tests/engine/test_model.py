"""An engine against a model of it: whatever is asked of it, in whatever order, and however often its kernel dies.

The model is a dictionary of small sequential machines. It shares nothing with the engine: it knows stories, a clock and
the rules (S4 to S8, S22, S25, S32 to S38, S40 to S49, S53), and foretells each status, each output and each run of a body.
"""

import copy
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nbflow import (
    AlreadyExistsError,
    EventTimeoutError,
    InvalidStatusError,
    NotFoundError,
    WorkflowEntrypoint,
    WorkflowInstance,
)
from nbflow.core.history import History, moment
from nbflow.core.model import FINISHED, Entry, Kind, Status
from tests.engine.conftest import Lab

IDS = ("a", "b", "c")
TYPES = ("red", "blue")
HOUR = timedelta(hours=1)


class BrokenError(Exception):
    pass


@dataclass
class World:
    """What bodies do: each run is noted, some fail while the world is broken."""

    broken: bool = False
    ran: Counter[tuple[str, str]] = field(default_factory=Counter)

    def do(self, ctx: Any) -> str:
        self.ran[ctx.instance_id, ctx.step.name] += 1
        kind, _, rest = ctx.step.name.partition(" ")
        if kind == "fragile" and self.broken:
            raise BrokenError(ctx.step.name)
        if kind == "flaky" and ctx.attempt <= int(rest.split()[0]):
            raise BrokenError(ctx.attempt)
        return ctx.step.name

    def undo(self, ctx: Any) -> None:
        self.ran[ctx.instance_id, f"undo {ctx.step.name}"] += 1


class Story(WorkflowEntrypoint):
    """Tells what its params say, step by step."""

    async def run(self, event, step):
        world, told = self.env.world, []
        for name in event.payload["story"]:
            match name.split():
                case ["do", *_]:
                    told.append(await step.do(name, world.do))
                case ["undoable", *_]:
                    told.append(await step.do(name, world.do, rollback=world.undo))
                case ["fragile", *_]:
                    told.append(await step.do(name, world.do, retries=0))
                case ["flaky", *_]:
                    retries = {"limit": 3, "delay": "1 hour", "backoff": "constant"}
                    told.append(await step.do(name, world.do, retries=retries))
                case ["sleep", hours, *_]:
                    told.append(await step.sleep(name, f"{hours} hours"))
                case ["until", hours, *_]:
                    told.append(await step.sleep_until(name, event.timestamp + int(hours) * HOUR))
                case ["wait", kind, hours, *_]:
                    try:
                        told.append((await step.wait_for_event(name, kind, timeout=f"{hours} hours")).payload)
                    except EventTimeoutError:
                        told.append("too late")
        return told


class Failed(Enum):
    """What a failed step gave; an enum, so that a copy of the model has the same."""

    FAILED = auto()


FAILED = Failed.FAILED


@dataclass
class Sent:
    type: str
    payload: int
    taken_by: str | None = None


@dataclass
class Instance:
    """The model of one instance.

    Attributes:
        ends: what ended steps gave, FAILED for a failure.
        orders: of the steps that have started, the number of their start.
        undone: steps whose handler has ended, with the handler's own order.
        due: when what it waits for is over.
        runs: bodies it has to run, by name.
    """

    story: tuple[str, ...]
    created_at: datetime
    status: Status = Status.RUNNING
    ends: dict[str, Any] = field(default_factory=dict)
    orders: dict[str, int] = field(default_factory=dict)
    attempts: Counter[str] = field(default_factory=Counter)
    undone: dict[str, int] = field(default_factory=dict)
    events: list[Sent] = field(default_factory=list)
    due: datetime | None = None
    last_order: int = 0
    paused_at: datetime | None = None
    terminating: bool = False
    rolled_back: bool = False
    runs: Counter[str] = field(default_factory=Counter)

    @property
    def finished(self) -> bool:
        return self.status in FINISHED

    @property
    def current(self) -> str | None:
        """The step it waits in."""
        return next((name for name in self.orders if name not in self.ends), None)

    @property
    def output(self) -> list[Any]:
        return ["too late" if self.ends[name] is FAILED else self.ends[name] for name in self.story]

    # -- telling the story

    def go_on(self, now: datetime, *, broken: bool) -> None:
        """Go on as far as it can at that moment."""
        if self.status is Status.ROLLING_BACK:
            self._roll_back()
        if self.status not in (Status.RUNNING, Status.WAITING):
            return
        for name in self.story:
            if name not in self.ends:
                if name not in self.orders:
                    self._start(name)
                    self.due = None
                if not self._step(name, now, broken=broken):
                    self.status = Status.WAITING
                    return
                self.due = None
            if self.ends[name] is FAILED and not name.startswith("wait"):
                self._roll_back()
                return
        self.status = Status.COMPLETE

    def _start(self, name: str) -> None:
        self.last_order += 1
        self.orders[name] = self.last_order

    def _step(self, name: str, now: datetime, *, broken: bool) -> bool:
        """Whether that step ends now."""
        match name.split():
            case ["sleep", hours, *_]:
                self.due = self.due or now + int(hours) * HOUR
                if now < self.due:
                    return False
                self.ends[name] = None
            case ["until", hours, *_]:
                self.due = self.created_at + int(hours) * HOUR
                if now < self.due:
                    return False
                self.ends[name] = None
            case ["wait", kind, hours, *_]:
                self.due = self.due or now + int(hours) * HOUR
                return self._take(name, kind, now)
            case _:
                return self._attempt(name, now, broken=broken)
        return True

    def _take(self, name: str, kind: str, now: datetime) -> bool:
        sent = next((one for one in self.events if one.type == kind and one.taken_by is None), None)
        if sent is not None:
            sent.taken_by, self.ends[name] = name, sent.payload
            return True
        assert self.due is not None
        if now < self.due:
            return False
        self.ends[name] = FAILED
        return True

    def _attempt(self, name: str, now: datetime, *, broken: bool) -> bool:
        if self.due is not None and now < self.due:
            return False  # in its retry delay
        self.attempts[name] += 1
        self.runs[name] += 1
        kind, _, rest = name.partition(" ")
        if kind == "flaky" and self.attempts[name] <= int(rest.split()[0]):
            self.due = now + HOUR
            return False
        self.ends[name] = FAILED if kind == "fragile" and broken else name
        return True

    def _roll_back(self) -> None:
        for name in self.to_undo():
            self.last_order += 1
            self.undone[name] = self.last_order
            self.runs[f"undo {name}"] += 1
            self.rolled_back = True
        self.status = Status.TERMINATED if self.terminating else Status.ERRORED
        self.due = None

    def to_undo(self) -> list[str]:
        started = [name for name in self.orders if name.startswith("undoable") and name not in self.undone]
        return sorted(started, key=lambda name: -self.orders[name])

    # -- what is done to it

    def pause(self, now: datetime) -> None:
        if self.status is Status.WAITING:
            self.status, self.paused_at = Status.PAUSED, now

    def resume(self, now: datetime) -> None:
        if self.status is Status.PAUSED:
            assert self.paused_at is not None
            if self.due is not None and self.current is not None and not self.current.startswith("until"):
                self.due += now - self.paused_at
            self.status, self.paused_at = Status.RUNNING, None
        elif self.status is Status.ERRORED:
            if self.undone:
                self._keep_below(min(self.orders[name] for name in self.undone))
            for name in [name for name, end in self.ends.items() if end is FAILED]:
                self._forget(name)
            self._begin_again()

    def terminate(self, *, rollback: bool) -> None:
        if rollback and self.to_undo():
            self.terminating = True
            self._roll_back()
        self.status, self.due = Status.TERMINATED, None

    def restart(self, from_step: str | None) -> None:
        if from_step is None:
            self._keep_below(0)
            self.events = []
        else:
            self._keep_below(self.orders[from_step])
        self._begin_again()

    def _begin_again(self) -> None:
        self.undone, self.terminating, self.rolled_back = {}, False, False
        self.status, self.paused_at = Status.RUNNING, None

    def _keep_below(self, order: int) -> None:
        for name in [name for name, its in self.orders.items() if its >= order]:
            self._forget(name)
        self.last_order = max(self.orders.values(), default=0)
        for sent in self.events:
            if sent.taken_by not in self.orders:
                sent.taken_by = None

    def _forget(self, name: str) -> None:
        if name == self.current:
            self.due = None
        self.orders.pop(name)
        self.ends.pop(name, None)
        self.attempts.pop(name, None)

    # -- what was recorded before a death

    def hear(self, entry: Entry) -> None:
        """Believe what the history says, entry by entry."""
        name, body = entry.step, entry.body
        if name is None:
            ended = {Kind.COMPLETED: Status.COMPLETE, Kind.ERRORED: Status.ERRORED, Kind.ROLLING_BACK: Status.ROLLING_BACK}
            self.status = ended.get(entry.kind, self.status)
            return
        self.last_order = max(self.last_order, body["order"])
        if entry.kind is Kind.ROLLBACK_FINISHED:
            self.undone[name], self.rolled_back = body["order"], True
        if entry.kind.startswith("rollback"):
            return
        self.orders.setdefault(name, body["order"])
        self.attempts[name] = body.get("attempt", 0)
        self.due = moment(body.get("due_at") or body.get("retry_at"))
        match entry.kind:
            case Kind.DO_FINISHED:
                self.ends[name] = name
            case Kind.SLEEP_FINISHED:
                self.ends[name] = None
            case Kind.DO_FAILED | Kind.WAIT_FAILED:
                self.ends[name] = FAILED
            case Kind.WAIT_FINISHED:
                self._take(name, body["event_type"], entry.recorded_at)


def numbered(kinds: list[str]) -> tuple[str, ...]:
    return tuple(f"{kind} #{number}" for number, kind in enumerate(kinds))


stories = st.lists(
    st.sampled_from(
        ["do", "undoable", "undoable", "fragile", "fragile", "flaky 1", "flaky 2", "sleep 1", "sleep 30", "until 5", "until 50"]
    )
    | st.builds("wait {} {}".format, st.sampled_from(TYPES), st.sampled_from([2, 40])),
    min_size=2,
    max_size=6,
).map(numbered)
ids = st.sampled_from(IDS)
numbers = st.integers(0, len(IDS) - 1)
hours = st.sampled_from([1, 2, 7, 40])


def some(machine: "Engines") -> bool:
    return bool(machine.model)


class Engines(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.model: dict[str, Instance] = {}
        self.payloads = 0
        self.lab = Lab()

    @initialize(keep=st.sampled_from([0, 1, 1000]), broken=st.booleans(), a=stories, b=stories)
    def open(self, keep: int, broken: bool, a: tuple[str, ...], b: tuple[str, ...]) -> None:
        self.prepare(keep)
        self.create("a", a, broken)
        self.create("b", b, broken)

    def prepare(self, keep: int) -> None:
        """Also those that hibernate behave like this, so some engines keep few or none in memory."""
        self.lab.engine.waiting.keep = keep
        self.lab.engine.env["world"] = self.world
        self.lab.engine.register(Story)
        self.settle()

    def settle(self) -> None:
        self.lab.idle()
        for one in self.model.values():
            one.go_on(self.lab.clock.now(), broken=self.world.broken)

    def pick(self, number: int) -> tuple[WorkflowInstance, Instance]:
        """One of the instances, and its model."""
        instance_id = sorted(self.model)[number % len(self.model)]
        return self.lab.engine.get(instance_id), self.model[instance_id]

    # -- what users do

    @rule(instance_id=ids, story=stories, broken=st.booleans())
    def create(self, instance_id: str, story: tuple[str, ...], broken: bool) -> None:
        self.world.broken = broken
        workflow = self.lab.engine.workflow("Story")
        if instance_id in self.model:
            with pytest.raises(AlreadyExistsError):
                workflow.create(instance_id, {"story": ["do #0"]})
            return
        workflow.create(instance_id, {"story": list(story)})
        self.model[instance_id] = Instance(story, self.lab.clock.now())
        self.settle()

    @precondition(some)
    @rule(number=numbers, other=st.none() | st.sampled_from(TYPES))
    def send_event(self, number: int, other: str | None) -> None:
        """What it asks for, or another."""
        handle, one = self.pick(number)
        asked = (one.current or "").split()
        kind = other or (asked[1] if asked[:1] == ["wait"] else TYPES[0])
        self.payloads += 1
        if one.finished:
            with pytest.raises(InvalidStatusError):
                handle.send_event(kind, self.payloads)
            return
        handle.send_event(kind, self.payloads)
        one.events.append(Sent(kind, self.payloads))
        self.settle()

    @precondition(some)
    @rule(number=numbers)
    def pause(self, number: int) -> None:
        handle, one = self.pick(number)
        handle.pause()
        one.pause(self.lab.clock.now())

    @precondition(some)
    @rule(number=numbers, broken=st.booleans())
    def resume(self, number: int, broken: bool) -> None:
        self.world.broken = broken
        handle, one = self.pick(number)
        handle.resume()
        one.resume(self.lab.clock.now())
        self.settle()

    @precondition(some)
    @rule(number=numbers, rollback=st.booleans())
    def terminate(self, number: int, rollback: bool) -> None:
        handle, one = self.pick(number)
        if one.finished:
            with pytest.raises(InvalidStatusError):
                handle.terminate(rollback=rollback)
            return
        handle.terminate(rollback=rollback)
        one.terminate(rollback=rollback)
        self.settle()

    @precondition(some)
    @rule(number=numbers, step=st.none() | st.integers(0, 6))
    def restart(self, number: int, step: int | None) -> None:
        handle, one = self.pick(number)
        name = None if step is None else "another step" if step == 6 else one.story[step % len(one.story)]
        if name is not None and name not in one.orders:
            with pytest.raises(NotFoundError):
                handle.restart(name)
            return
        if name is not None and one.undone and one.orders[name] > min(one.orders[n] for n in one.undone):
            with pytest.raises(InvalidStatusError):
                handle.restart(name)
            return
        handle.restart(name)
        one.restart(name)
        self.settle()

    @precondition(some)
    @rule(number=numbers)
    def delete(self, number: int) -> None:
        handle, _ = self.pick(number)
        handle.delete()
        del self.model[handle.id]
        for key in [key for key in self.world.ran if key[0] == handle.id]:
            del self.world.ran[key]
        with pytest.raises(NotFoundError):
            self.lab.engine.get(handle.id)

    # -- time and death

    @precondition(some)
    @rule(span=hours, broken=st.booleans())
    def advance(self, span: int, broken: bool) -> None:
        self.world.broken = broken
        end = self.lab.clock.now() + span * HOUR
        self.lab.advance(f"{span} hours")
        self.foretell(end)

    def foretell(self, end: datetime) -> None:
        """Move the model on, from deadline to deadline."""
        while True:
            due = [one.due for one in self.model.values() if one.status is Status.WAITING and one.due is not None]
            now = min([*due, end])
            for one in self.model.values():
                one.go_on(now, broken=self.world.broken)
            if now == end and not any(
                one.status is Status.WAITING and one.due is not None and one.due <= end for one in self.model.values()
            ):
                return

    @rule(keep=st.sampled_from([0, 1, 1000]))
    def crash(self, keep: int) -> None:
        self.lab = self.lab.revive()
        self.prepare(keep)

    @precondition(some)
    @rule(span=hours, part=st.floats(0, 1))
    def crash_on_the_way(self, span: int, part: float) -> None:
        """Time passes, and the kernel dies after any entry that is written meanwhile; the rest has never been."""
        before, known = len(self.lab.entries()), copy.deepcopy(self.model)
        self.lab.advance(f"{span} hours")
        entries = self.lab.entries()
        cut = before + round(part * (len(entries) - before))
        if any(one.head.deaths >= 2 for one in fold(entries).values()):
            cut = len(entries)  # a third death in a body would fail the instance; that has its own tests (S27)
        self.lab = self.lab.revive(entries[:cut])
        self.model = known
        heads = {seq: one.head for seq, one in fold(entries[:cut]).items()}
        for entry in entries[before:cut]:
            self.model[heads[entry.created_seq].instance_id].hear(entry)
        # What ran after the cut is forgotten by all: from here on bodies are counted anew.
        self.world.ran.clear()
        for one in self.model.values():
            one.runs.clear()
        self.prepare(1000)

    # -- what always holds

    @invariant()
    def it_is_as_foretold(self) -> None:
        now = self.lab.clock.now()
        for instance_id, one in self.model.items():
            status = self.lab.engine.get(instance_id).status()
            assert status.status is one.status, (now, instance_id, status, one)
            if one.status is Status.COMPLETE:
                assert status.output == one.output
            if one.status is Status.WAITING:
                (waiting,) = status.waiting_for
                assert (waiting.name, waiting.until) == (one.current, one.due)
            if one.finished:
                assert status.rollback == (("complete", None) if one.rolled_back else None)

    @invariant()
    def bodies_run_when_they_must_and_never_else(self) -> None:
        foretold = {(instance_id, name): n for instance_id, one in self.model.items() for name, n in one.runs.items()}
        assert dict(self.world.ran) == foretold

    @invariant()
    def each_event_serves_one_wait(self) -> None:
        """The first sent is the first taken: what waits gave is as foretold, step by step."""
        for instance_id, one in self.model.items():
            steps = {s.name: s for s in self.lab.engine.get(instance_id).steps if s.type == "wait" and s.status == "finished"}
            assert {name: s.output for name, s in steps.items()} == {
                name: end for name, end in one.ends.items() if name.startswith("wait") and end is not FAILED
            }

    def teardown(self) -> None:
        self.lab.close()


def fold(entries: list[Entry]) -> dict[int, History]:
    found: dict[int, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.created_seq, []).append(entry)
    return {seq: History(its) for seq, its in found.items()}


Engines.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestEngines = Engines.TestCase
