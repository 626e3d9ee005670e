"""What falls due while its instance waits for a slot: it waits with it and happens once (S5); who is paused wants no slot."""

import asyncio
import itertools
import threading

import pytest

from nbflow import Engine
from nbflow.core.model import FINISHED, Kind, Status
from nbflow.errors import EventTimeoutError, RetryAfter
from tests.engine.conftest import Gate, entrypoint, eventually


class Due:
    """One kind of thing that falls due in an hour, or with the event `go`.

    Attributes:
        ran: every beginning of a body, (name, attempt).
    """

    def __init__(self):
        self.ran = []

    def _tried(self, name, ctx, error):
        self.ran.append((name, ctx.attempt))
        if ctx.attempt == 1:
            raise error
        return ctx.attempt

    async def sleep(self, step, name):
        return await step.sleep(name, "1 hour")

    async def retry(self, step, name):
        return await step.do(name, lambda ctx: self._tried(name, ctx, OSError("busy")), retries={"delay": "1 hour"})

    async def retry_after(self, step, name):
        return await step.do(name, lambda ctx: self._tried(name, ctx, RetryAfter("1 hour")))

    async def items(self, step, name):
        def body(item, ctx):
            return self._tried(f"{name} {item}", ctx, OSError("busy"))

        return await step.map(name, body, range(3), concurrency=3, retries={"delay": "1 hour"})

    async def rate(self, step, name):
        async def body(item, ctx):
            self.ran.append((f"{name} {item}", ctx.attempt))

        return await step.map(name, body, range(2), rate="1/hour")

    async def timeout(self, step, name):
        with pytest.raises(EventTimeoutError):
            await step.wait_for_event(name, "never", timeout="1 hour")

    async def event(self, step, name):
        return (await step.wait_for_event(name, "go")).payload

    async def child(self, step, name):
        return await step.child(name, "Child")

    async def body_after(self, step, name):
        await step.sleep(name, "1 hour")
        return await step.do(name, lambda ctx: self.ran.append((name, ctx.attempt)))


GIVES = {
    "sleep": None,
    "retry": 2,
    "retry_after": 2,
    "items": [2, 2, 2],
    "rate": [None, None],
    "timeout": None,
    "event": "sent",
    "child": "grown",
    "body_after": None,
}


def ran_once(first, second):
    """Every body that the two have, each attempt once."""
    bodies = {"retry": [""], "retry_after": [""], "items": [" 0", " 1", " 2"]}
    once = {"rate": [" 0", " 1"], "body_after": [""]}
    found = []
    for name, kind in (("a", first), ("b", second)):
        found += [(name + item, attempt) for item in bodies.get(kind, ()) for attempt in (1, 2)]
        found += [(name + item, 1) for item in once.get(kind, ())]
    return sorted(found)


class Bench:
    """One slot, an instance with two things due and another that holds the slot until `gate` is set."""

    def __init__(self, lab, first, second):
        self.lab, self.due, self.gate = lab, Due(), threading.Event()
        self.kinds = first, second
        a, b = getattr(self.due, first), getattr(self.due, second)

        async def two(event, step):
            return await asyncio.gather(a(step, "a"), b(step, "b"))

        async def hold(event, step):
            return await step.do("hold", self.gate.wait, timeout="30 days")

        async def grow(event, step):
            await step.sleep("grow", "1 hour")
            return "grown"

        lab.workflow(grow, "Child")
        self.holds = lab.workflow(hold, "Holder")
        self.instance = lab.start(two)

    def all_fall_due(self):
        """Another takes the slot, then both are due."""
        lab, instance = self.lab, self.instance
        lab.idle()
        assert instance.status().status is Status.WAITING
        self.holder = self.holds.create()
        eventually(lambda: self.holder.status().status is Status.RUNNING)
        if "event" in self.kinds:
            instance.send_event("go", "sent")
            if self.kinds == ("event", "event"):
                instance.send_event("go", "sent")
        lab.move("61 minutes")
        if self.kinds not in {("child", "child")}:  # a child is queued itself, and due when it has ended
            eventually(lambda: instance.status().status is Status.QUEUED)
            assert not instance.is_settled()

    def ended_well(self):
        """Both have happened, and every body ran once."""
        self.lab.finish(self.instance)
        assert self.instance.output == [GIVES[kind] for kind in self.kinds]
        assert sorted(self.due.ran) == ran_once(*self.kinds)


@pytest.fixture
def bench(make_lab):
    made = []

    def make(first, second):
        made.append(Bench(make_lab(max_running=1), first, second))
        return made[-1]

    yield make
    for one in made:
        one.gate.set()


@pytest.mark.parametrize(("first", "second"), itertools.product(GIVES, GIVES))
def test_all_that_falls_due_in_the_queue_happens_once_there_is_a_slot(bench, first, second):  # S5, S23, S25
    one = bench(first, second)
    one.all_fall_due()
    before = list(one.due.ran)
    one.lab.move("1 minute")
    assert one.due.ran == before
    one.gate.set()
    one.ended_well()
    assert one.holder.is_finished()


SOME = [("retry", "items"), ("sleep", "retry"), ("event", "rate"), ("child", "retry_after")]


@pytest.mark.parametrize(("first", "second"), SOME)
@pytest.mark.parametrize("resumed", ["in the queue", "after it"])
def test_a_pause_in_the_queue_loses_nothing_that_is_due(bench, first, second, resumed):  # S40, S41
    one = bench(first, second)
    one.all_fall_due()
    one.instance.pause()
    assert one.instance.status().status is Status.PAUSED
    if resumed == "in the queue":
        one.instance.resume()
        eventually(lambda: one.instance.status().status is Status.QUEUED)
    one.gate.set()
    one.lab.finish(one.holder)
    one.instance.resume()
    one.ended_well()


@pytest.mark.parametrize(("first", "second"), SOME)
def test_a_stop_that_is_taken_back_loses_nothing_that_is_due(bench, first, second):  # S41
    one = bench(first, second)
    one.all_fall_due()
    live = one.lab.engine.live[one.instance.created_seq]

    def stop_and_go_on():
        live.activation.stop()
        live.rest.gives_way()
        assert not live.slots.queued(live.created_seq)
        live.activation.take_stop_back()

    one.lab.engine.on_loop(stop_and_go_on)
    eventually(lambda: one.instance.status().status is Status.QUEUED)
    one.gate.set()
    one.ended_well()


@pytest.mark.parametrize(("first", "second"), SOME)
def test_a_restart_in_the_queue_forgets_what_was_due(bench, first, second):  # S44
    one = bench(first, second)
    one.all_fall_due()
    one.instance.restart()
    eventually(lambda: one.instance.status().status is Status.QUEUED)
    one.due.ran.clear()
    one.gate.set()
    if "event" in one.kinds:
        one.instance.send_event("go", "sent")
    one.ended_well()


@pytest.mark.parametrize("way", ["terminate", "delete"])
@pytest.mark.parametrize(("first", "second"), SOME)
def test_whoever_is_terminated_or_deleted_in_the_queue_does_no_more_and_keeps_no_slot(bench, first, second, way):  # S43, S45
    one = bench(first, second)
    one.all_fall_due()
    before = list(one.due.ran)
    getattr(one.instance, way)()
    next_one = one.holds.create()
    one.gate.set()
    one.lab.finish(next_one)
    one.lab.idle()
    assert one.due.ran == before


@pytest.mark.parametrize(("first", "second"), SOME)
def test_what_is_due_in_the_queue_outlives_the_engine(bench, first, second):  # S25, S54
    one = bench(first, second)
    one.all_fall_due()
    one.gate.set()
    lab = one.lab
    lab.die()
    after = lab.revive(kernel_dies=False)
    for name, workflow in lab.engine.registry.all().items():
        after.engine.register(workflow.cls, name)
    one.lab, one.instance = after, after.engine.get("W/" + one.instance.id)
    one.ended_well()


# -- who is paused wants no slot ---------------------------------------------------------------------------------------


def gated(hold):
    async def run(event, step):
        if event.payload.get("waits"):
            await step.wait_for_event("w", "go")
        await step.do("hold", hold, timeout="30 days")
        return event.payload.get("n")

    return run


def statuses(instances):
    return [one.status().status for one in instances]


@pytest.fixture
def gate():
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.mark.parametrize("woken", [False, True], ids=["new", "with an event"])
@pytest.mark.parametrize("act", ["pause", "terminate", "delete"])
def test_who_leaves_the_queue_leaves_its_slot_to_the_next(make_lab, gate, act, woken):  # S5, S40
    lab = make_lab(max_running=1)
    workflow = lab.workflow(gated(gate.wait))
    woken_ones = [workflow.create(params={"waits": True}) for _ in range(2 if woken else 0)]
    lab.idle()
    at_work = workflow.create()
    eventually(lambda: at_work.status().status is Status.RUNNING)
    for one in woken_ones:
        one.send_event("go")
    leave = woken_ones or [workflow.create() for _ in range(2)]
    eventually(lambda: statuses(leave) == [Status.QUEUED, Status.QUEUED])
    last = workflow.create(params={"n": 7})
    for one in leave:
        getattr(one, act)()
    if act == "pause":
        assert statuses(leave) == [Status.PAUSED, Status.PAUSED]
    gate.set()
    lab.finish(last)
    assert last.output == 7
    if act == "pause":
        for one in leave:
            one.resume()
            lab.finish(one)
            assert one.status().status is Status.COMPLETE


def test_who_is_resumed_is_queued_again_behind_the_others(make_lab, gate):  # S5, S41
    lab = make_lab(max_running=1)
    workflow = lab.workflow(gated(gate.wait))
    at_work, paused, other = workflow.create(), workflow.create(), workflow.create()
    paused.pause()
    eventually(lambda: statuses([at_work, paused, other]) == [Status.RUNNING, Status.PAUSED, Status.QUEUED])
    paused.resume()
    eventually(lambda: paused.status().status is Status.QUEUED)
    gate.set()
    for one in (at_work, paused, other):
        lab.finish(one)
    began = [entry.created_seq for entry in lab.entries() if entry.kind is Kind.ACTIVATED]
    assert began == [at_work.created_seq, other.created_seq, paused.created_seq]


def test_a_pause_at_work_gives_the_slot_on_when_its_bodies_have_ended(make_lab):  # S5, S40
    lab, gate = make_lab(max_running=1), Gate()
    workflow = lab.workflow(gated(gate))
    first, second = workflow.create(), workflow.create(params={"n": 2})
    gate.reached()
    first.pause()
    eventually(lambda: statuses([first, second]) == [Status.WAITING_FOR_PAUSE, Status.QUEUED])
    gate.open()
    lab.finish(second)
    assert first.status().status is Status.PAUSED
    first.resume()
    assert lab.finish(first).status().status is Status.COMPLETE


def test_an_event_to_a_paused_instance_takes_no_slot_before_it_is_resumed(make_lab, gate):  # S5, S38
    lab = make_lab(max_running=1)
    workflow = lab.workflow(gated(gate.wait))
    paused = workflow.create(params={"waits": True})
    lab.idle()
    paused.pause()
    paused.send_event("go")
    other = workflow.create(params={"n": 1})
    eventually(lambda: other.status().status is Status.RUNNING)
    paused.resume()
    eventually(lambda: paused.status().status is Status.QUEUED)
    gate.set()
    for one in (other, paused):
        assert lab.finish(one).status().status is Status.COMPLETE


def test_failing_in_a_pause_and_after_it_gives_the_slot_on(make_lab, gate):  # S40, S46
    lab = make_lab(max_running=1)
    undone = []

    async def run(event, step):
        def fails():
            gate.wait()
            raise OSError("no")

        await step.do("fails", fails, retries=0, rollback=lambda: undone.append(event.instance_id))

    workflow = lab.workflow(run)
    first, second = workflow.create(), workflow.create()
    eventually(lambda: first.status().status is Status.RUNNING)
    first.pause()
    gate.set()
    lab.finish(second)
    assert first.status().status is Status.PAUSED
    first.resume()
    lab.finish(first)
    assert undone == [second.id, first.id]
    assert set(statuses([first, second])) == {Status.ERRORED} <= FINISHED


def test_what_run_begins_by_itself_while_it_waits_needs_a_slot(make_lab, gate):  # S5
    lab = make_lab(max_running=1)
    own, ran = [], []

    async def run(event, step):
        async def by_itself():
            own.append((asyncio.get_running_loop(), future := asyncio.Future()))
            await future
            await step.do("mine", lambda: ran.append("mine"))

        await asyncio.gather(step.sleep("s", "1 minute"), by_itself())

    instance = lab.start(run)
    lab.idle()
    other = lab.workflow(gated(gate.wait), "Other").create()
    eventually(lambda: other.status().status is Status.RUNNING)
    loop, future = own[0]
    loop.call_soon_threadsafe(future.set_result, None)
    eventually(lambda: instance.status().status is Status.QUEUED)
    assert ran == []
    gate.set()
    lab.finish(instance)
    assert ran == ["mine"]


@pytest.mark.parametrize("revived", [False, True])
def test_a_rollback_between_two_attempts_leaves_its_slot_to_others_and_waits_for_one(make_lab, gate, revived):  # S5, S47
    lab = make_lab(max_running=1)
    tried = []

    async def run(event, step):
        def undo(ctx):
            tried.append(ctx.attempt)
            if ctx.attempt == 1:
                raise OSError("busy")

        await step.do("a", lambda: 1, rollback=undo, rollback_config={"retries": {"delay": "1 hour"}})
        raise ValueError("no more")

    instance = lab.start(run, id="one")
    lab.idle()
    if revived:
        lab = lab.revive()
        instance = lab.workflow(run).get("one")
        lab.idle()
    other = lab.workflow(gated(gate.wait), "Other").create()
    eventually(lambda: other.status().status is Status.RUNNING)
    lab.move("61 minutes")
    lab.move("1 minute")
    assert (tried, instance.status().status) == ([1], Status.ROLLING_BACK)
    gate.set()
    lab.finish(other)
    lab.finish(instance)
    assert tried == [1, 2]
    assert instance.status().rollback == ("complete", None)


@pytest.mark.parametrize("paused", [False, True])
def test_who_has_left_memory_is_queued_when_it_is_due_and_may_be_paused_there(make_lab, gate, paused):  # S40, S62
    lab = make_lab(max_running=1)
    lab.engine.waiting.keep = 0

    async def run(event, step):
        await step.sleep("s", "1 hour")
        return await step.do("after", lambda: event.instance_id)

    workflow = lab.workflow(run)
    sleepers = [workflow.create(name) for name in "abc"]
    lab.idle()
    assert all(lab.engine.live[one.created_seq].rest.hibernating for one in sleepers)
    holder = lab.workflow(gated(gate.wait), "Holder").create()
    eventually(lambda: holder.status().status is Status.RUNNING)
    lab.move("61 minutes")
    eventually(lambda: statuses(sleepers) == [Status.QUEUED] * 3)
    if paused:
        sleepers[0].pause()
        assert sleepers[0].status().status is Status.PAUSED
    gate.set()
    for one in sleepers[1:]:
        assert lab.finish(one).output == one.id
    sleepers[0].resume()
    assert lab.finish(sleepers[0]).output == "a"


def test_a_pause_from_another_engine_takes_it_out_of_the_queue_too(tmp_path, gate):  # S40, S52
    store = tmp_path / "h.duckdb"
    with Engine(store, max_running=1) as engine, Engine(store) as other:
        workflow = engine.register(entrypoint(gated(gate.wait)), "W")
        at_work, queued, last = (workflow.create(id=name, params={"n": name}) for name in "abc")
        eventually(lambda: statuses([at_work, queued]) == [Status.RUNNING, Status.QUEUED])
        other.get("b").pause()
        eventually(lambda: queued.status().status is Status.PAUSED)
        gate.set()
        assert last.wait(20, "finished").output == "c"
        other.get("b").resume()
        assert queued.wait(20, "finished").output == "b"
