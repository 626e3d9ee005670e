"""The machine's clock is set back and forth by hours in mid-run: monotonic time, order and ids do not mind."""

from datetime import timedelta

import pytest

from nbflow import Engine, WorkflowEntrypoint
from nbflow.clock import SystemClock


class SetClock(SystemClock):
    """The machine's clock, set forward or back by somebody."""

    def __init__(self) -> None:
        self.off = timedelta()

    def now(self):
        return super().now() + self.off


JUMPS = [timedelta(hours=5), timedelta(hours=-9), timedelta(hours=2), timedelta(hours=-30)]


@pytest.mark.parametrize("hours", [-9, -1, 1, 9])
def test_steps_timeouts_and_their_order_do_not_mind_a_clock_that_is_set(tmp_path, hours):
    clock = SetClock()

    class Jumps(WorkflowEntrypoint):
        async def run(self, event, step):
            for number in range(6):
                clock.off = timedelta(hours=hours) if number % 2 else timedelta()
                await step.do(f"s{number}", lambda n=number: n, timeout="5 minutes")
            return "done"

    with Engine(tmp_path / "history.duckdb", clock=clock) as engine:
        instance = engine.register(Jumps).create("a")
        assert instance.wait(20, until="finished").output == "done"
        assert [step.name for step in instance.steps] == [f"s{n}" for n in range(6)]
        assert [step.attempts and len(step.attempts) for step in instance.steps] == [1] * 6
        seqs = [entry.seq for entry in instance.history()]
        assert seqs == sorted(seqs)
    with Engine(tmp_path / "history.duckdb", clock=clock) as engine:
        assert engine.register(Jumps).get("a").output == "done"
        assert engine.store.warnings == []


def test_a_sleep_ends_when_the_clock_says_so_and_an_event_sent_before_comes_first(tmp_path):  # S32, S37
    clock = SetClock()

    class Sleeps(WorkflowEntrypoint):
        async def run(self, event, step):
            await step.sleep("an hour", "1 hour")
            return (await step.wait_for_event("answer", "go", timeout="2 hours")).payload

    with Engine(tmp_path / "history.duckdb", clock=clock) as engine:
        instance = engine.register(Sleeps).create("a")
        end = clock.monotonic() + 20
        while not instance.status().waiting_for:
            assert clock.monotonic() < end
        clock.off = timedelta(hours=-3)  # set back: it goes on sleeping
        instance.send_event("go", "first")
        instance.send_event("go", "second")
        assert instance.status().status == "waiting"
        clock.off = timedelta(hours=9)  # set forward: over, and the event sent "long ago" is still the one that is taken
        assert instance.wait(20, until="finished").output == "first"


def test_ids_are_unique_and_leases_and_deaths_are_no_matter_of_the_clock(tmp_path):
    clock = SetClock()

    class One(WorkflowEntrypoint):
        async def run(self, event, step):
            await step.do("one", lambda: 1)
            await step.wait_for_event("wait", "go")

    with Engine(tmp_path / "history.duckdb", clock=clock) as first, Engine(tmp_path / "history.duckdb", clock=clock) as second:
        workflow = first.register(One)
        made = []
        for jump in JUMPS:
            clock.off = jump
            made.append(workflow.create())
            made[-1].wait(10)
        second.register(One)
        assert len({instance.id for instance in made}) == len(JUMPS)
        assert [instance.id for instance in workflow.list()] == [instance.id for instance in reversed(made)]
        for instance in made:
            second.workflow("One").get(instance.id).send_event("go")
        for instance in made:
            assert instance.wait(20, until="finished").status == "complete"
            assert {entry.token for entry in instance.history()} <= {0, 1}  # nobody took it over
