"""Following along: `inst.follow()`, `Engine(retention=)` (API.md §4)."""

import asyncio

from nbflow.core.model import Kind
from nbflow.engine.engine import Engine
from nbflow.engine.entrypoint import WorkflowEntrypoint
from nbflow.store.memory import MemoryStore
from nbflow.testing import ManualClock


class Asks(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("first", lambda: 1)
        await step.wait_for_event("w", "go", timeout="300 days")
        return await step.do("second", lambda: 2)


def test_follow_gives_history_first_then_live_entries_then_ends():
    with Engine(":memory:") as engine:
        instance = engine.register(Asks).create()
        instance.wait(10)

        async def main():
            seen = []
            async for entry in instance.follow():
                seen.append(entry)
                if entry.kind is Kind.WAIT_STARTED:
                    instance.send_event("go")
            return seen

        seen = asyncio.run(asyncio.wait_for(main(), 20))
        assert [entry.seq for entry in seen] == [entry.seq for entry in instance.history()]
        assert seen[0].kind is Kind.CREATED
        assert seen[-1].kind is Kind.COMPLETED


def test_follow_after_a_seq_gives_only_what_came_later():
    with Engine(":memory:") as engine:
        instance = engine.register(Asks).create()
        instance.wait(10)
        instance.send_event("go")
        instance.wait(10, "finished")
        middle = instance.history()[3].seq

        async def main():
            return [entry.seq async for entry in instance.follow(after=middle)]

        assert asyncio.run(main()) == [entry.seq for entry in instance.history() if entry.seq > middle]


def test_retention_deletes_what_ended_long_ago_and_nothing_unfinished():
    clock = ManualClock()
    store = MemoryStore(clock)
    close, store.close = store.close, lambda: None  # the store outlives the first engines here
    with Engine(clock=clock, store=store) as engine:
        wf = engine.register(Asks)
        wf.create(id="old").wait(10)
        engine.get("old").send_event("go")
        engine.get("old").wait(10, "finished")
        wf.create(id="open").wait(10)
        clock.advance("20 days")
    with Engine(clock=clock, store=store, retention="30 days") as engine:
        assert [one.id for one in engine.list()] == ["open", "old"]
    clock.advance("20 days")
    with Engine(clock=clock, store=store, retention="30 days") as engine:
        assert [one.id for one in engine.list()] == ["open"]
    close()


def test_follow_works_from_another_engine_on_the_same_file(tmp_path):
    with Engine(tmp_path / "h.duckdb") as runs, Engine(tmp_path / "h.duckdb") as watches:
        instance = runs.register(Asks).create(id="one")
        instance.wait(10)

        async def main():
            seen = []
            async for entry in watches.get("one").follow():
                seen.append(entry.kind)
                if entry.kind is Kind.WAIT_STARTED:
                    watches.get("one").send_event("go")
            return seen

        seen = asyncio.run(asyncio.wait_for(main(), 20))
        assert seen[0] is Kind.CREATED
        assert Kind.WAIT_FINISHED in seen
        assert seen[-1] is Kind.COMPLETED
