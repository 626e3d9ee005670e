"""Control of an instance that another engine runs (S52)."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import nbflow
from nbflow import Engine, InvalidStatusError, WaitTimeoutError, WorkflowEntrypoint
from nbflow.core.model import Kind, Status, StepKey, StepType
from nbflow.engine.code import owners
from nbflow.engine.recovery import take_up
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


def summing(number):
    async def run(event, step):
        await step.do("before", lambda: 1)
        total = await step.do("sum", sum, [number, 1])
        await step.wait_for_event("w", "go")
        return total

    return entrypoint(run)


def test_what_is_stale_there_is_restarted_there_where_somebody_here_asks_for_it(engines):  # S52, S57
    here, there = engines
    inst = here.register(summing(1), "W", source="s").create("w1")
    inst.wait(20)
    seen = there.get("w1")
    with pytest.raises(WaitTimeoutError, match=r"has restarted nothing in 0\.5 s: no step is stale there"):
        owners.ask_and_hear(there, seen, patience=0.5)
    here.register(summing(2), "W", source="changed")
    eventually(lambda: inst.view().stale_steps)
    plan = owners.ask_and_hear(there, seen)
    assert (plan.kept, [str(key) for key in plan.again]) == (1, ["sum", "w"])
    inst.wait(20)
    inst.pause()
    with pytest.raises(InvalidStatusError, match="paused: resume it first"):
        seen.restart_stale()
    assert inst.status().status is Status.PAUSED
    inst.resume()
    inst.wait(20)
    inst.send_event("go")
    assert inst.wait(20, "finished").output == 3
    here.register(summing(3), "W", source="changed again")
    seen.restart_stale(by="somebody")  # of a finished one: what is stale shows by a replay, which its kernel makes
    eventually(lambda: inst.is_finished() and inst.output == 4)
    assert [entry.body["by"] for entry in inst.history() if entry.kind is Kind.RESTARTED][1:] == ["somebody"]


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


LEFT = """
import os, signal, sys
from nbflow import Engine
from tests.engine.test_elsewhere import Left

engine = Engine(sys.argv[1], notebook="a.ipynb")
engine.register(Left).create("w1")
Left.at_work.wait(20)
os.kill(os.getpid(), signal.SIGKILL)
"""


class Left(WorkflowEntrypoint):
    """Stands in its second step for as long as its first process lives."""

    at_work = threading.Event()

    async def run(self, event, step):
        await step.do("first", lambda: 1)
        return await step.do("second", self.stands, retries=0)

    def stands(self, ctx):
        self.at_work.set()
        return ctx.attempt if ctx.attempt > 1 else threading.Event().wait(60)


@pytest.fixture
def there(tmp_path, monkeypatch):
    """An engine that cannot tell whether the one that left `w1` lives: that was on another host."""
    file = tmp_path / "h.duckdb"
    dead = subprocess.run([sys.executable, "-c", LEFT, str(file)], cwd=Path(__file__).parents[2], timeout=60, check=False)
    assert dead.returncode == -9
    monkeypatch.setattr("nbflow.store.lease.socket.gethostname", lambda: "elsewhere")
    with Engine(file, notebook="b.ipynb") as engine:
        yield engine


def claims(instance):
    return [entry.kind for entry in instance.history()].count(Kind.CLAIMED)


def test_where_nobody_can_tell_whether_its_owner_lives_that_is_said_and_nothing_is_taken_over(there):  # S52
    workflow = there.register(Left)
    seen = there.get("w1")
    assert "cannot be known from here: resume takes it over" in seen.status().interrupted
    assert seen.wait(5).status == "running"
    opened = there.open(workflow, "w1")
    assert "Take over: nbflow resume w1, then run this again" in opened.line
    opened.start()
    with pytest.raises(TimeoutError, match="resume takes it over"):
        seen.wait(0.1, until="finished")
    assert claims(seen) == 1


def test_a_resume_takes_over_where_nobody_can_tell_whether_its_owner_lives(there):  # S52
    there.register(Left)
    seen = there.get("w1")
    seen.resume()
    assert seen.wait(20, until="finished").output == 2
    assert claims(seen) == 2


def test_a_resume_where_its_workflow_is_unknown_leaves_it_to_whoever_registers_that_next(there):  # S52
    there.get("w1").resume()
    assert there.get("w1").status().interrupted.startswith("its kernel has ended")
    with Engine(there.store.path, notebook="a.ipynb") as third:
        third.register(Left)
        assert third.get("w1").wait(20, until="finished").output == 2


TELLS = {
    "resume": lambda instance: instance.resume(),
    "retry_failed": lambda instance: instance.retry_failed(),
    "restart": lambda instance: instance.restart(),
    "restart from a step": lambda instance: instance.restart("first"),
}


class Told:
    """A workflow whose second step fails until it may go on, in an engine that is gone; what follows happens elsewhere."""

    def __init__(self, tmp_path, *, paused):
        self.may = False
        self.undone: list[str] = []
        self.file = tmp_path / "h.duckdb"
        with Engine(self.file, notebook="a.ipynb") as gone:
            inst = gone.register(entrypoint(self.run), "W", source="s").create("w1")
            if paused:
                eventually(lambda: inst.status().waiting_for)
                inst.pause()
            inst.wait(20)

    async def run(self, event, step):
        await step.do("first", lambda: 1, rollback=lambda: self.undone.append("first"))
        await step.do("second", self.second, retries={"limit": 1, "delay": "1 hour"} if not self.may else 0)
        return "went on"

    def second(self):
        if not self.may:
            raise ConnectionError if not self.fails else nbflow.NonRetryableError("no")

    fails = False


@pytest.mark.parametrize("how", TELLS)
def test_what_is_told_from_outside_to_go_on_goes_on_in_a_living_engine_of_its_notebook(tmp_path, monkeypatch, how):  # S51
    monkeypatch.setattr(Told, "fails", True)
    told = Told(tmp_path, paused=False)
    told.may = True
    with Engine(told.file, notebook="a.ipynb") as living, Engine(told.file, notebook="other") as shell:
        wf = living.register(entrypoint(told.run), "W", source="s")
        assert wf.get("w1").status().status == "errored"
        TELLS[how](shell.get("w1"))
        eventually(lambda: shell.get("w1").status().status == "complete")
        assert shell.get("w1").output == "went on"


def test_what_was_paused_goes_on_or_is_undone_there_too(tmp_path):  # S41, S49
    told = Told(tmp_path, paused=True)
    with Engine(told.file, notebook="a.ipynb") as living, Engine(told.file, notebook="other") as shell:
        living.register(entrypoint(told.run), "W", source="s")
        seen = shell.get("w1")
        seen.resume()
        eventually(lambda: seen.view().owner is not None and seen.view().retrying == 1)
        seen.pause()
        eventually(lambda: seen.status().status == "paused")
    with Engine(told.file, notebook="a.ipynb") as living, Engine(told.file, notebook="other") as shell:
        living.register(entrypoint(told.run), "W", source="s")
        shell.get("w1").terminate(rollback=True)
        eventually(lambda: shell.get("w1").status().status == "terminated")
        assert told.undone == ["first"]


def test_another_notebook_leaves_it_alone_unless_it_has_the_very_same_code(tmp_path, monkeypatch):  # S51
    monkeypatch.setattr(Told, "fails", True)
    told = Told(tmp_path, paused=False)
    told.may = True

    async def nothing(event, step):
        return "ran"

    with Engine(told.file, notebook="b.ipynb") as living, Engine(told.file, notebook="other") as shell:
        living.register(entrypoint(told.run), "W", source="another")
        living.register(entrypoint(nothing), "V", source="v")
        shell.get("w1").resume()
        shell.register(entrypoint(nothing), "V", source="v").create("later").wait(20)  # so the news was looked at
        assert shell.get("w1").view().unattended
        with Engine(told.file, notebook="c.ipynb") as same:
            same.register(entrypoint(told.run), "W", source="s")
            eventually(lambda: shell.get("w1").status().status == "complete")
            assert shell.get("w1").view().owner.notebook == "c.ipynb"


def test_a_list_by_status_is_what_each_instance_says_from_every_engine(engines):  # S5, API.md §4
    here, there = engines

    async def run(event, step):
        match event.payload:
            case "errored":
                await step.do("fails", lambda: 1 / 0, retries=0)
            case "waiting" | "paused" | "terminated":
                await step.wait_for_event("ask", "go")
            case "sleeping":
                await step.sleep("rest", "1 hour")
            case "retrying":
                await step.do("fails", lambda: 1 / 0, retries={"delay": "1 hour"})

    ways = ["complete", "errored", "waiting", "paused", "terminated", "sleeping", "retrying"]
    wf = here.register(entrypoint(run), "W", source="s")
    made = [wf.create(f"{way}-{number}", way) for number in range(2) for way in ways]
    eventually(lambda: all(one.status().status != "running" for one in made))
    for one in made:
        if one.id.startswith("paused"):
            one.pause()
        if one.id.startswith("terminated"):
            one.terminate()
    eventually(lambda: [one.status().status for one in made].count("paused") == 2)
    for engine in (here, there):
        everyone = engine.list()
        for status in Status:
            same = [one.id for one in everyone if one.status().status is status]
            assert [one.id for one in engine.list(status=status)] == same
            assert [one.id for one in engine.list("W", status=status, limit=1)] == same[:1]
        assert len(engine.list(status="waiting")) == 6
        assert not engine.list("V", status="waiting")


def test_what_was_just_made_in_a_kernel_that_died_is_left_to_its_notebook(tmp_path):  # S51
    file = tmp_path / "h.duckdb"
    dead = subprocess.run([sys.executable, "-c", LEFT, str(file)], cwd=Path(__file__).parents[2], timeout=60, check=False)
    assert dead.returncode == -9
    with Engine(file, notebook="a.ipynb") as living:
        living.register(Left, resume=False)
        made = living.get("w1")
        take_up(living, made.created_seq, new=True)
        assert made.view().unattended
        take_up(living, made.created_seq, new=False)
        assert made.wait(20, "finished").output == 2
