"""Maps against a model of them: random items, failures, kernels that die at any entry, and what is asked in between (S61).

What must hold however it goes: every item runs to a recorded end exactly once unless it failed and was tried again, results
stand in the order of the items, a stream hands on each value once and in order, and SQL tells the same as the fold.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbflow.core.model import FENCES, Entry, Kind, Status
from tests.engine.conftest import Lab, eventually

FAILS = "fails"


@dataclass(frozen=True)
class Plan:
    """One map, and what befalls it.

    Attributes:
        items: what each item does: how often it fails before it succeeds; FAILS for as long as the world is broken.
        deaths: after how many entries of its own the kernel dies, one after another.
    """

    items: tuple[Any, ...]
    keyed: bool
    drawn: bool
    stream: bool
    exceptions: bool
    discard: bool
    concurrency: int
    plain: bool
    deaths: tuple[int, ...]


@dataclass
class World:
    broken: bool = True
    ends: Counter[int] = field(default_factory=Counter)
    streamed: list[list[Any]] = field(default_factory=list)


plans = st.builds(
    Plan,
    items=st.lists(st.sampled_from([0, 0, 0, 1, 2, FAILS]), max_size=12).map(tuple),
    keyed=st.booleans(),
    drawn=st.booleans(),
    stream=st.booleans(),
    exceptions=st.booleans(),
    discard=st.booleans(),
    concurrency=st.integers(1, 4),
    plain=st.booleans(),
    deaths=st.lists(st.integers(1, 12), max_size=2).map(tuple),
)


def workflow(plan: Plan, world: World) -> Any:
    def act(item, ctx):
        index, does = item
        assert ctx.index == index
        if (does == FAILS and world.broken) or (does != FAILS and ctx.attempt <= does):
            raise ValueError(index)
        world.ends[index] += 1
        return index * 10

    async def act_async(item, ctx):
        return act(item, ctx)

    async def run(event: Any, step: Any) -> Any:
        items = list(enumerate(plan.items))
        call = step.map(
            "m",
            act if plan.plain else act_async,
            (item for item in items) if plan.drawn else items,
            key=(lambda item: f"item {item[0]}") if plan.keyed else None,
            concurrency=plan.concurrency,
            retries={"limit": 2, "delay": "1 minute", "backoff": "constant"},
            return_exceptions=plan.exceptions,
            discard_results=plan.discard and not plan.stream,
        )
        if not plan.stream:
            results = await call
        else:
            results = []
            world.streamed.append(results)
            async for value in call:
                results.append(await step.do("use", lambda value=value: value if isinstance(value, int) else "failed"))
        if isinstance(results, int):
            return results
        return [one if isinstance(one, int) else "failed" for one in results]

    return run


def cut(entries: list[Entry], after: int) -> list[Entry]:
    """What a death leaves after so many entries of the activation."""
    begins = max(place for place, entry in enumerate(entries) if entry.kind in FENCES or entry.kind is Kind.CREATED)
    return entries[: begins + 1 + after]


def expected(plan: Plan, world: World) -> Any:
    if plan.discard and not plan.stream:
        return len(plan.items)
    return ["failed" if does == FAILS and world.broken else index * 10 for index, does in enumerate(plan.items)]


def until_it_rests(lab: Lab, instance: Any) -> Any:
    def rests() -> bool:
        if instance.is_finished():
            return True
        if lab.engine.time.idle() and (due := lab.engine.time.next_due()) is not None:
            lab.move(max(0.0, (due - lab.clock.now()).total_seconds()))
        return False

    eventually(rests, f"the end of {instance!r}")
    return instance


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans)
def test_every_item_runs_to_one_recorded_end_whatever_dies(plan):
    world = World()
    lab = first = Lab()
    try:
        run = workflow(plan, world)
        instance = until_it_rests(lab, lab.start(run, id="a"))
        for after in plan.deaths:
            entries = cut(lab.entries(), after)
            ended = {int(e.key.split()[-1]) for e in entries if e.key is not None and e.kind is Kind.MAP_FINISHED}
            world.ends = Counter(dict.fromkeys(ended, 1))  # the others have not happened as far as anybody knows
            lab = lab.revive(entries)
            lab.workflow(run)
            instance = until_it_rests(lab, lab.engine.get("a"))
            if not plan.exceptions:
                assert all(count == 1 for count in world.ends.values()), "a finished item ran again"
        if FAILS in plan.items and not plan.exceptions:
            assert instance.status().status is Status.ERRORED
            assert instance.status().failed_items >= 1
            world.broken = False
            instance.resume()
            until_it_rests(lab, instance)
        assert instance.status().status is Status.COMPLETE, instance.status()
        assert instance.output == expected(plan, world)
        if world.broken and FAILS in plan.items:
            assert instance.status().failed_items == plan.items.count(FAILS)
            world.broken = False
            instance.retry_failed()
            until_it_rests(lab, instance)
            assert instance.output == expected(plan, world)
        assert world.ends == Counter(range(len(plan.items)))
        assert instance.status().failed_items == 0
        compare_sql(lab, plan)
        if plan.stream:
            assert world.streamed[-1] == expected(plan, world)
    finally:
        first.close()


def compare_sql(lab: Lab, plan: Plan) -> None:
    rows = lab.engine.sql("select status, count(*) from steps where type = 'map' and key is not null group by all").fetchall()
    assert rows == ([("finished", len(plan.items))] if plan.items else [])
    assert lab.engine.sql("select status from steps where type = 'map' and key is null").fetchall() == [("finished",)]
    keys = [one.key.key for one in lab.engine.get("a").items("m")[1]]
    assert sorted(keys) == sorted(f"item {n}" if plan.keyed else str(n) for n in range(len(plan.items)))
