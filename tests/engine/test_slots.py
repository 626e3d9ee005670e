"""Slots and hibernation: who works at once, and who leaves memory while waiting (S5, S62)."""

import asyncio
import threading
from typing import ClassVar

import pytest

from nbflow.core.model import Status
from nbflow.engine.engine import Engine
from nbflow.engine.entrypoint import WorkflowEntrypoint
from nbflow.testing import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


def test_instances_beyond_max_running_are_queued_until_a_slot_is_free(clock):
    """S5."""
    gate = threading.Event()

    class Slow(WorkflowEntrypoint):
        async def run(self, event, step):
            await step.do("hold", gate.wait)
            return event.payload["n"]

    with Engine(":memory:", clock=clock, max_running=2) as engine:
        many = engine.register(Slow).create_batch([{"params": {"n": n}} for n in range(5)])
        for one in many:
            one.is_settled()
        _until(lambda: [one.view().status for one in many].count(Status.RUNNING) == 2)
        assert [one.view().status for one in many].count(Status.QUEUED) == 3
        gate.set()
        many.wait(10, "finished")
        assert many.outputs() == [0, 1, 2, 3, 4]


def test_waiting_instances_do_not_count(clock):
    """S5: a wait gives its slot to the next."""

    class Waits(WorkflowEntrypoint):
        async def run(self, event, step):
            await step.wait_for_event("w", "go")
            return await step.do("after", lambda: event.payload["n"])

    with Engine(":memory:", clock=clock, max_running=1) as engine:
        many = engine.register(Waits).create_batch([{"params": {"n": n}} for n in range(20)])
        many.wait(10)
        assert {one.view().status for one in many} == {Status.WAITING}
        for one in many:
            one.send_event("go")
        many.wait(10, "finished")
        assert many.outputs() == list(range(20))


def test_a_retry_delay_gives_the_slot_back_and_waits_for_one(clock):
    """S5."""
    tried = []

    class Flaky(WorkflowEntrypoint):
        async def run(self, event, step):
            def flaky(ctx):
                tried.append((event.payload["n"], ctx.attempt))
                if ctx.attempt == 1:
                    raise OSError("busy")
                return ctx.attempt

            return await step.do("flaky", flaky, retries={"limit": 2, "delay": "1 hour"})

    with Engine(":memory:", clock=clock, max_running=1) as engine:
        many = engine.register(Flaky).create_batch([{"params": {"n": n}} for n in range(3)])
        clock.advance("1 second")
        assert sorted(tried) == [(0, 1), (1, 1), (2, 1)]
        clock.advance("2 hours")
        assert many.outputs() == [2, 2, 2]


class Trial(WorkflowEntrypoint):
    outside: ClassVar[list] = []

    async def run(self, event, step):
        self.outside.append(event.instance_id)
        first = await step.do("first", lambda: 1)
        await step.sleep("trial", event.payload["for"])
        got = await step.wait_for_event("answer", "yes", timeout="300 days")
        return [first, got.payload]


def test_beyond_the_number_kept_those_due_last_hibernate_and_wake_by_replay(clock):
    """S62: code outside steps runs again when they wake (S10), steps do not."""
    Trial.outside = []
    with Engine(":memory:", clock=clock) as engine:
        engine.waiting.keep = 2
        wf = engine.register(Trial)
        many = wf.create_batch([{"id": f"t{n}", "params": {"for": f"{n + 1} days"}} for n in range(4)])
        clock.advance("1 minute")
        asleep = {one.id for one in many if engine.live[one.created_seq].rest.hibernating}
        assert asleep == {"t2", "t3"}
        assert {one.view().status for one in many} == {Status.WAITING}
        clock.advance("10 days")
        for one in many:
            one.send_event("yes", one.id)
        many.wait(10, "finished")
        assert many.outputs() == [[1, f"t{n}"] for n in range(4)]
        assert Trial.outside.count("t0") == 1
        assert Trial.outside.count("t3") > 1


def test_an_instance_with_a_wait_of_its_own_does_not_hibernate(clock):
    """S62: only if every task of it waits for the engine."""
    own = []

    class Mixed(WorkflowEntrypoint):
        async def run(self, event, step):
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            own.append((loop, future))
            await asyncio.gather(step.wait_for_event("w", "go"), future)
            return "both"

    with Engine(":memory:", clock=clock) as engine:
        engine.waiting.keep = 0
        one = engine.register(Mixed).create()
        clock.advance("1 second")
        assert not engine.live[one.created_seq].rest.hibernating
        loop, future = own[0]
        loop.call_soon_threadsafe(future.set_result, 1)
        one.send_event("go")
        assert one.wait(10, "finished").output == "both"
        assert len(own) == 1


def test_gathered_waits_hibernate_and_controls_work_on_the_sleeper(clock):
    class Two(WorkflowEntrypoint):
        async def run(self, event, step):
            return await asyncio.gather(step.sleep("s", "5 days"), step.wait_for_event("w", "go", timeout="30 days"))

    with Engine(":memory:", clock=clock) as engine:
        engine.waiting.keep = 0
        wf = engine.register(Two)
        one, two = wf.create(), wf.create()
        clock.advance("1 second")
        assert engine.live[one.created_seq].rest.hibernating
        one.pause()
        assert one.status().status is Status.PAUSED
        one.resume()
        clock.advance("6 days")
        one.send_event("go")
        assert one.wait(10, "finished").status is Status.COMPLETE
        two.terminate()
        assert two.status().status is Status.TERMINATED


def test_ten_thousand_instances_wait(clock):
    """S62."""

    class Waits(WorkflowEntrypoint):
        async def run(self, event, step):
            return (await step.wait_for_event("w", "go")).payload

    with Engine(":memory:", clock=clock) as engine:
        many = engine.register(Waits).create_batch([{} for _ in range(10_000)])
        many[-1].wait(60)
        _until(lambda: all(engine.live[one.created_seq].is_settled() for one in many))
        awake = sum(1 for live in engine.live.values() if live.activation is not None)
        assert awake <= 1000
        for one in (many[0], many[5000], many[-1]):
            one.send_event("go", one.id)
            assert one.wait(10, "finished").output == one.id


def _until(reached, seconds=20.0):
    pause = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if reached():
            return
        pause.wait(0.01)
    raise AssertionError("not reached")
