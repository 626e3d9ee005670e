"""Control of an instance that another engine runs (S52)."""

import asyncio
import threading

import pytest

from nbflow import Engine, InvalidStatusError
from nbflow.core.model import Kind, StepKey, StepType
from tests.engine.conftest import entrypoint, eventually


@pytest.fixture
def engines(tmp_path):
    with Engine(tmp_path / "h.duckdb", notebook="a.ipynb") as here, Engine(tmp_path / "h.duckdb", notebook="b.ipynb") as there:
        yield here, there


def test_retry_delays_of_an_instance_that_runs_elsewhere_can_be_ended(engines):
    here, there = engines
    tried: list[str] = []

    def attempt(ctx):
        tried.append(ctx.step.name)
        if ctx.attempt == 1:
            raise ConnectionError

    async def run(event, step):
        await asyncio.gather(*(step.do(name, attempt, retries={"limit": 1, "delay": "1 hour"}) for name in "ab"))

    inst = here.register(entrypoint(run), "W", source="s").create("w1")
    eventually(lambda: inst.view().retrying == 2)
    seen = there.get("w1")
    seen.retry_now(StepKey(StepType.DO, "b"))
    eventually(lambda: len(tried) == 3)
    assert tried[2] == "b"
    seen.retry_now()
    eventually(inst.is_finished)
    assert sorted(tried) == ["a", "a", "b", "b"]
    seen.retry_now()  # nothing to do


def test_where_nobody_runs_it_there_is_nobody_to_try_again(tmp_path):
    async def run(event, step):
        await step.do("a", lambda: 1 / 0, retries={"limit": 1, "delay": "1 hour"})

    with Engine(tmp_path / "h.duckdb", notebook="a.ipynb") as here:
        inst = here.register(entrypoint(run), "W", source="s").create("w1")
        eventually(lambda: inst.view().retrying == 1)
    with Engine(tmp_path / "h.duckdb", notebook="b.ipynb") as there, pytest.raises(InvalidStatusError, match="resume it first"):
        there.get("w1").retry_now()


@pytest.mark.parametrize("doing", ["waits", "sleeps", "works in a thread", "works on the loop", "retries"])
def test_what_is_terminated_with_rollback_elsewhere_is_rolled_back_here_and_goes_no_further(engines, doing):  # S43, S49
    here, there = engines
    undone: list[str] = []
    later: list[str] = []
    free = threading.Event()
    at_work = threading.Event()

    def stands():
        at_work.set()
        assert free.wait(20)

    async def stands_there():
        at_work.set()
        while not free.is_set():
            await asyncio.sleep(0.005)

    def fails():
        at_work.set()
        raise ConnectionError

    async def run(event, step):
        undo = lambda step_name: undone.append(step_name)  # noqa: E731
        await step.do("first", lambda: 1, rollback=undo)
        await step.do("second", lambda: 2, rollback=undo)
        match doing:
            case "waits":
                await step.wait_for_event("ask", "go")
            case "sleeps":
                await step.sleep("rest", "1 hour")
            case "retries":
                await step.do("third", fails, retries={"delay": "1 hour"})
            case _:
                await step.do("third", stands if doing == "works in a thread" else stands_there)
        later.append("ran on")

    inst = here.register(entrypoint(run), "W", source="s").create("w1")
    if doing in ("waits", "sleeps"):
        eventually(lambda: inst.status().waiting_for)
    else:
        assert at_work.wait(20)
    there.get("w1").terminate(rollback=True)
    assert there.get("w1").status().status in ("rollingBack", "terminated")
    eventually(lambda: there.get("w1").status().status == "terminated")
    free.set()
    assert undone == ["second", "first"]
    assert inst.status().rollback == ("complete", None)
    assert later == []
    assert [one[0] for one in there.sql("select status from instances").fetchall()] == ["terminated"]
    assert Kind.COMPLETED not in [entry.kind for entry in there.get("w1").history()]


@pytest.fixture
def of_another_host(engines, monkeypatch):
    """An instance that works under an engine of which nobody can tell from here whether it lives."""
    here, there = engines
    free = threading.Event()

    async def run(event, step):
        await step.do("first", lambda: 1)
        return await step.do("second", lambda: free.wait(20) and 2)

    inst = here.register(entrypoint(run), "W", source="s").create("w1")
    eventually(lambda: len(inst.steps) == 2)
    monkeypatch.setattr("nbflow.store.lease.socket.gethostname", lambda: "elsewhere")
    yield inst, there, run, free
    free.set()


def test_where_nobody_can_tell_whether_its_owner_lives_that_is_said_and_nothing_is_taken_over(of_another_host):  # S52
    _, there, run, _ = of_another_host
    workflow = there.register(entrypoint(run), "W", source="s")
    seen = there.get("w1")
    assert "cannot be known from here: resume takes it over" in seen.status().interrupted
    assert seen.is_settled()
    assert seen.wait(5).status == "running"
    opened = there.open(workflow, "w1")
    assert "Take over: nbflow resume w1, then run this again" in opened.line
    with pytest.raises(TimeoutError, match="resume takes it over"):
        seen.wait(0.1, until="finished")
    assert [entry.kind for entry in seen.history()].count(Kind.CLAIMED) == 1


def test_a_resume_takes_over_where_nobody_can_tell_whether_its_owner_lives(of_another_host):  # S52
    inst, there, run, free = of_another_host
    there.register(entrypoint(run), "W", source="s")
    seen = there.get("w1")
    seen.resume()
    free.set()
    assert seen.wait(20, until="finished").output == 2
    assert len([1 for entry in seen.history() if entry.kind is Kind.CLAIMED]) == 2
    assert inst.status().output == 2  # what lived after all has stopped


def test_a_resume_where_its_workflow_is_unknown_leaves_it_to_whoever_registers_that_next(of_another_host, tmp_path):  # S52
    _, there, run, free = of_another_host
    there.get("w1").resume()
    assert there.get("w1").status().interrupted.startswith("its kernel has ended")
    free.set()
    with Engine(tmp_path / "h.duckdb", notebook="a.ipynb") as third:
        third.register(entrypoint(run), "W", source="s")
        assert third.get("w1").wait(20, until="finished").output == 2
