"""The values of a map one by one: whatever stops at a bound goes on when there is room again (API.md §6, S61)."""

import asyncio
import queue
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbflow.core.model import Kind
from nbflow.engine.maps import run as map_run
from nbflow.engine.maps import sources, streams
from tests.engine.conftest import Lab, eventually


def values(run):
    """The same, with what came out of the stream in each activation."""
    seen = []

    async def noting(event, step):
        seen.append([])
        async for value in run(step):
            seen[-1].append(value)
        return len(seen[-1])

    return noting, seen


@pytest.mark.parametrize("key", [None, str])
@pytest.mark.parametrize("how", ["retry_failed", "restart"])
def test_more_values_than_may_wait_come_after_an_early_item_ran_again(lab, monkeypatch, key, how):
    monkeypatch.setattr(streams, "AT_ONCE", 10)
    broken = {1}

    async def body(x):
        if x in broken:
            raise ValueError(x)
        return x

    run, seen = values(lambda step: step.map("m", body, range(50), key=key, retries=0, return_exceptions=True))
    instance = lab.run(run)
    broken.clear()
    instance.retry_failed() if how == "retry_failed" else instance.restart(("m", "1"))
    assert lab.finish(instance).output == 50
    assert seen[-1] == list(range(50))


def test_what_is_let_out_late_is_recorded_many_at_once(lab):
    run, seen = values(lambda step: step.map("m", lambda x: x, range(3_000), return_exceptions=True))
    instance = lab.run(run)
    before = len(lab.entries())
    instance.restart(("m", "0"))
    lab.finish(instance)
    assert seen[-1] == list(range(3_000))
    assert sum(entry.kind is Kind.MAP_STARTED and "out" in entry.body for entry in lab.entries()[before:]) < 20


@pytest.mark.parametrize("source", ["generator", "async generator"])
def test_an_iterable_that_waits_for_the_values_of_its_items_goes_on_after_a_resume(lab, source):
    asked: Any = None

    async def body(x):
        return x

    def given():
        yield 0
        for _ in range(4):
            yield asked.get(timeout=20) + 1

    async def given_async():
        yield 0
        for _ in range(4):
            yield await asked.get() + 1

    async def run(event, step):
        nonlocal asked
        asked = queue.Queue() if source == "generator" else asyncio.Queue()
        seen = []
        async for value in step.map("m", body, given() if source == "generator" else given_async()):
            seen.append(value)
            asked.put_nowait(value)
        return seen

    instance = lab.run(run)
    instance.restart(("m", "0"))  # what stands behind it has ended, and has not gone out
    assert lab.finish(instance).output == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("key", [None, str])
@pytest.mark.parametrize("number", [1, 3])
def test_a_stream_that_is_left_at_its_last_value_lets_the_instance_end(lab, key, number):  # its keys are encoded meanwhile
    async def run(event, step):
        async for value in step.map("m", lambda x: x, range(number), key=key, concurrency=4):
            if value == number - 1:
                break
        return value

    for _ in range(5):
        assert lab.output(run) == number - 1


# -- against small bounds ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """One streamed map, and what befalls it.

    Attributes:
        turns: for each item how many turns of the loop its body takes.
        broken: items that fail until the world is mended.
        takes: what `run` does with each value, in turn: nothing, a step, turns of the loop.
        leaves: after how many values `run` leaves the stream for good.
        then: what is done with the instance one after another.
    """

    turns: tuple[int, ...]
    broken: frozenset[int]
    exceptions: bool
    source: str
    keyed: bool
    concurrency: int
    takes: tuple[str, ...]
    leaves: int | None
    then: tuple[Any, ...]
    looked_at: int
    ready: int
    ahead: int


@dataclass
class World:
    mended: bool = False
    keyed: bool = False
    seen: list[list[Any]] = field(default_factory=list)


acts = st.one_of(
    st.sampled_from(["retry_failed", "resume", "pause", "restart", "revive", "rename"]),
    st.tuples(st.just("item"), st.integers(0, 15)),
    st.tuples(st.just("use"), st.integers(1, 4)),
    st.tuples(st.just("cut"), st.integers(1, 40)),
)

plans = st.builds(
    Plan,
    turns=st.lists(st.integers(0, 6), max_size=16).map(tuple),
    broken=st.frozensets(st.integers(0, 15), max_size=3),
    exceptions=st.booleans(),
    source=st.sampled_from(["list", "generator", "async"]),
    keyed=st.booleans(),
    concurrency=st.integers(1, 4),
    takes=st.lists(st.sampled_from(["", "step", "turns"]), min_size=1, max_size=4).map(tuple),
    leaves=st.one_of(st.none(), st.none(), st.integers(1, 8)),
    then=st.lists(acts, max_size=4).map(tuple),
    looked_at=st.integers(1, 4),
    ready=st.integers(1, 4),
    ahead=st.integers(0, 3),
)


def workflow(plan: Plan, world: World) -> Any:
    async def act(index):
        for _ in range(plan.turns[index]):
            await asyncio.sleep(0)
        if index in plan.broken and not world.mended:
            raise ValueError(index)
        return index

    async def drawn():
        for index in range(len(plan.turns)):
            yield index

    async def run(event: Any, step: Any) -> Any:
        seen: list[Any] = []
        world.seen.append(seen)
        items = {
            "list": list(range(len(plan.turns))),
            "generator": (index for index in range(len(plan.turns))),
            "async": drawn(),
        }
        stream = step.map(
            "m",
            act,
            items[plan.source],
            key=(lambda index: f"item {index}") if world.keyed else None,
            concurrency=plan.concurrency,
            retries=0,
            return_exceptions=plan.exceptions,
        )
        async for value in stream:
            takes = plan.takes[len(seen) % len(plan.takes)]
            if takes == "step":
                await step.do("use", lambda: None)
            elif takes == "turns":
                for _ in range(5):
                    await asyncio.sleep(0)
            seen.append(value if isinstance(value, int) else "failed")
            if len(seen) == plan.leaves:
                break
        return seen

    return run


def then(lab: Lab, run: Any, world: World, what: Any) -> Lab:
    """Do it, where the instance lets it be done."""
    instance = lab.engine.get("a")
    if what == "rename":  # the code of the map passes key=, or no longer does
        world.keyed = not world.keyed
        return lab
    if what == "revive" or what[0] == "cut":
        entries = lab.entries()
        lab = lab.revive(entries if what == "revive" else entries[: max(2, len(entries) - what[1])])
        lab.workflow(run)
        return lab
    asks = {
        "retry_failed": instance.retry_failed,
        "resume": instance.resume,
        "pause": lambda: (instance.restart(), instance.pause(), instance.resume()),
        "restart": instance.restart,
        "item": lambda: instance.restart(("m", f"item {what[1]}" if world.keyed else str(what[1]))),
        "use": lambda: instance.restart(("use", what[1])),
    }
    try:
        asks[what if isinstance(what, str) else what[0]]()
    except Exception:  # no such step, nothing failed: then it stays as it is
        pass
    return lab


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans)
def test_all_values_come_in_order_under_the_smallest_bounds(plan):
    world = World(keyed=plan.keyed)
    lab = first = Lab()
    patch = pytest.MonkeyPatch()
    patch.setattr(streams, "AT_ONCE", plan.ready)
    patch.setattr(sources, "AT_ONCE", plan.looked_at)
    patch.setattr(map_run, "AHEAD", plan.ahead)
    try:
        run = workflow(plan, world)
        lab.start(run, id="a")
        ended(lab)
        for what in plan.then:
            lab = then(lab, run, world, what)
            ended(lab)
        world.mended = True
        lab.engine.get("a").restart()
        ended(lab)
        assert lab.engine.get("a").output == list(range(len(plan.turns)))[: plan.leaves]
        assert all(seen == [("failed" if got == "failed" else at) for at, got in enumerate(seen)] for seen in world.seen)
    finally:
        patch.undo()
        first.close()


def ended(lab: Lab) -> None:
    instance = lab.engine.get("a")
    eventually(instance.is_finished, f"the end of {instance!r}")
