"""Rollback: which handlers run, in which order, what they are given, and what is left behind (S46 to S50)."""

import asyncio
import threading

import pytest

from nbflow.core.model import Kind, Status
from nbflow.engine.engine import Engine
from nbflow.engine.entrypoint import WorkflowEntrypoint
from nbflow.errors import InvalidStatusError, NonRetryableError, UsageError
from nbflow.store.memory import MemoryStore
from nbflow.store.wording import plan_text
from nbflow.testing import ManualClock
from tests.engine.conftest import eventually


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def engine(clock):
    with Engine(":memory:", clock=clock) as engine:
        yield engine


def run(engine, body, **params):
    class Flow(WorkflowEntrypoint):
        async def run(self, event, step):
            return await body(event, step)

    return engine.register(Flow).create(params=params)


def test_handlers_run_in_reverse_order_of_start_with_what_they_name(engine):
    """S46, API.md §1: ctx, error, output and step_name, by keyword."""
    seen = []

    async def body(event, step):
        await step.do("a", lambda: "A", rollback=lambda output, step_name: seen.append((step_name, output)))
        await step.do("plain", lambda: 1)

        async def undo(ctx, error, **rest):
            seen.append((ctx.step.name, str(error), sorted(rest)))

        await step.do("b", lambda: "B", rollback=undo)
        raise ValueError("no more")

    instance = run(engine, body)
    status = instance.wait(10, until="finished")
    assert seen == [("b", "no more", ["output", "step_name"]), ("a", "A")]
    assert status.status is Status.ERRORED
    assert status.error.message == "no more"
    assert status.rollback == ("complete", None)


def test_a_failed_and_caught_step_is_rolled_back_too(engine):
    """S46."""
    undone = []

    async def body(event, step):
        def fails():
            raise NonRetryableError("half done")

        try:
            await step.do("charge", fails, rollback=lambda output: undone.append(output))
        except NonRetryableError:
            pass
        raise RuntimeError("later")

    assert run(engine, body).wait(10, until="finished").rollback == ("complete", None)
    assert undone == [None]


def test_success_runs_no_handler(engine):
    """S50."""
    undone = []

    async def body(event, step):
        return await step.do("a", lambda: 1, rollback=lambda: undone.append(1))

    status = run(engine, body).wait(10, until="finished")
    assert (status.status, status.rollback, undone) == (Status.COMPLETE, None, [])


def test_without_handlers_there_is_no_rollback(engine):
    """S48."""

    async def body(event, step):
        raise ValueError("x")

    assert run(engine, body).wait(10, until="finished").rollback is None


def test_the_first_handler_that_fails_for_good_stops_the_chain(engine):
    """S47, S48: NonRetryableError ends its retries; the instance's error stays the original."""
    undone = []

    async def body(event, step):
        await step.do("first", lambda: 1, rollback=lambda: undone.append("first"))

        def refuse():
            raise NonRetryableError("cannot undo")

        await step.do("second", lambda: 2, rollback=refuse)
        await step.do("third", lambda: 3, rollback=lambda: undone.append("third"))
        raise ValueError("original")

    status = run(engine, body).wait(10, until="finished")
    assert undone == ["third"]
    assert status.error.message == "original"
    assert status.rollback[0] == "failed"
    assert status.rollback[1].message == "cannot undo"


def test_handlers_are_retried_with_the_defaults_or_their_own_config(engine, clock):
    """S47."""
    tries = []

    async def body(event, step):
        def undo(ctx):
            tries.append(ctx.attempt)
            if ctx.attempt < 3:
                raise OSError("busy")

        await step.do("a", lambda: 1, rollback=undo, rollback_config={"retries": {"limit": 4, "delay": "1 hour"}})
        raise ValueError("x")

    instance = run(engine, body)
    clock.advance("1 minute")
    assert instance.status().status is Status.ROLLING_BACK
    clock.advance("5 hours")
    assert instance.status().rollback == ("complete", None)
    assert tries == [1, 2, 3]


def test_steps_are_refused_during_rollback(engine):
    """S50."""
    refused = []

    async def body(event, step):
        async def undo():
            try:
                await step.do("more", lambda: 1)
            except UsageError as error:
                refused.append(str(error))

        await step.do("a", lambda: 1, rollback=undo)
        raise ValueError("x")

    assert run(engine, body).wait(10, until="finished").rollback == ("complete", None)
    assert len(refused) == 1
    assert "during rollback" in refused[0]


def test_bodies_in_flight_end_before_the_rollback_begins(engine):
    """S19."""
    events = []

    async def body(event, step):
        async def slow():
            await asyncio.sleep(0.05)
            events.append("slow ended")
            return 1

        async def fails():
            raise NonRetryableError("now")

        await asyncio.gather(
            step.do("slow", slow, rollback=lambda output: events.append(f"undo {output}")), step.do("fails", fails)
        )

    assert run(engine, body).wait(10, until="finished").rollback == ("complete", None)
    assert events == ["slow ended", "undo 1"]


def test_terminate_with_rollback_undoes_what_started(engine):
    """S49."""
    undone = []

    async def body(event, step):
        await step.do("a", lambda: "A", rollback=lambda output, error: undone.append((output, error)))
        await step.wait_for_event("wait", "never")

    instance = run(engine, body)
    instance.wait(10)
    instance.terminate(rollback=True)
    status = instance.wait(10, until="finished")
    assert status.status is Status.TERMINATED
    assert status.rollback == ("complete", None)
    assert undone == [("A", None)]


def test_what_waits_while_it_is_rolled_back_is_no_open_wait_and_takes_no_answer(engine):
    """S49: it would never return, and the answer would be lost."""
    undoing, go_on = threading.Event(), threading.Event()

    def undo():
        undoing.set()
        assert go_on.wait(30)

    async def body(event, step):
        await step.do("a", lambda: "A", rollback=undo)
        await step.wait_for_event("gate", "approval")

    instance = run(engine, body)
    instance.wait(10)
    assert [wait.name for wait in instance.view().waits] == ["gate"]
    instance.terminate(rollback=True)
    assert undoing.wait(30)
    assert instance.view().waits == ()
    with pytest.raises(InvalidStatusError, match=r"'gate' .* is not open any more: the instance is rolling back.* \(S49\)"):
        instance.answer("gate", 1, {"approved": True})
    go_on.set()
    assert instance.wait(30, until="finished").status is Status.TERMINATED


def test_resuming_a_rolled_back_instance_runs_the_undone_steps_again(engine):
    """S48: a step whose handler has ended no longer counts as done."""
    ran, fail = [], [True]

    async def body(event, step):
        await step.do("load", lambda: ran.append("load"))
        await step.do("charge", lambda: ran.append("charge"), rollback=lambda: ran.append("undo charge"))
        await step.do("after", lambda: ran.append("after"))
        if fail[0]:
            raise ValueError("x")
        return "done"

    instance = run(engine, body)
    instance.wait(10, until="finished")
    with pytest.raises(InvalidStatusError, match="rolled back"):
        instance.restart("after")
    fail[0] = False
    instance.resume()
    assert instance.wait(10, until="finished").output == "done"
    assert ran == ["load", "charge", "after", "undo charge", "charge", "after"]


def test_a_death_in_the_middle_of_the_chain_goes_on_without_repeating_handlers(clock):
    """S47, S49: found again by a replay that runs nothing."""
    ran = []
    gate = [True]

    class Flow(WorkflowEntrypoint):
        async def run(self, event, step):
            await step.do("a", lambda: ran.append("a"), rollback=lambda: ran.append("undo a"))

            def undo_b():
                ran.append("undo b")
                if gate[0]:
                    raise OSError("busy")

            await step.do("b", lambda: ran.append("b"), rollback=undo_b)
            await step.do("c", lambda: ran.append("c"), rollback=lambda: ran.append("undo c"))
            raise ValueError("x")

    store = MemoryStore(clock)
    first = Engine(clock=clock, store=store)
    instance = first.register(Flow).create(id="one")
    clock.advance("1 second")
    assert ran == ["a", "b", "c", "undo c", "undo b"]
    second_store = MemoryStore(clock)
    for entry in instance.history():
        if entry.kind is not Kind.RELEASED:
            second_store._append(entry)
    second_store._heads[instance.created_seq].owner = None
    second_store._ids["Flow", "one"] = instance.created_seq
    first.close()
    gate[0] = False
    ran.clear()
    second = Engine(clock=clock, store=second_store)
    second.register(Flow)
    clock.advance("1 hour")
    status = second.get("one").status()
    second.close()
    assert ran == ["undo b", "undo a"]
    assert status.status is Status.ERRORED
    assert status.error.message == "x"
    assert status.rollback == ("complete", None)


def test_a_handler_that_cannot_be_found_stops_the_chain_and_names_the_step(clock):
    """S49: the code has changed since."""
    store = MemoryStore(clock)

    class Flow(WorkflowEntrypoint):
        async def run(self, event, step):
            await step.do("a", lambda: 1, rollback=lambda: None)
            await step.wait_for_event("w", "go")

    with Engine(clock=clock, store=store) as engine:
        instance = engine.register(Flow, source="one").create()
        instance.wait(10)

        class Flow(WorkflowEntrypoint):
            async def run(self, event, step):
                await step.do("renamed", lambda: 1, rollback=lambda: None)
                await step.wait_for_event("w", "go")

        engine.register(Flow, source="two")
        clock.advance("1 second")
        instance.terminate(rollback=True)
        status = instance.wait(10, until="finished")
    assert status.status is Status.TERMINATED
    assert status.rollback[0] == "failed"
    assert "handler not found for step 'a'" in status.rollback[1].message


def test_rollback_must_be_callable_and_its_config_needs_it(engine):
    async def body(event, step):
        with pytest.raises(UsageError, match="not callable"):
            step.do("a", lambda: 1, rollback="undo")
        with pytest.raises(UsageError, match="without a rollback="):
            step.do("a", lambda: 1, rollback_config={"timeout": 1})
        return "ok"

    assert run(engine, body).wait(10, until="finished").output == "ok"


def test_a_cell_says_how_many_steps_run_again_and_does_not_count_the_handlers(engine):
    """S48: said beforehand."""
    fails = [True]

    def last():
        if fails:
            raise NonRetryableError("not yet")

    class Flow(WorkflowEntrypoint):
        async def run(self, event, step):
            await step.do("kept", lambda: 0)
            await step.do("a", lambda: 1, rollback=lambda: None)
            await step.do("b", lambda: 2, rollback=lambda: None)
            await step.do("c", last)

    workflow = engine.register(Flow)
    instance = workflow.create("one")
    instance.wait(10, "finished")
    fails.clear()
    said = plan_text(instance.view().undone)  # what the panel asks before it resumes
    opened = engine.open(workflow, "one", None)
    assert said == "rolled back: 1 step kept, 3 steps run again (a, b, c)"
    assert opened.line == "resumed one: 1 step from history, rolled back: 3 steps run again"
    assert instance.view().undone is None
    opened.start()
    assert instance.wait(10, "finished").status is Status.COMPLETE


@pytest.mark.parametrize("paused", [False, True])
def test_terminating_with_rollback_undoes_a_paused_instance_too(engine, clock, paused):
    """S43, S49."""
    undone = []

    async def body(event, step):
        await step.do("a", lambda: 1, rollback=lambda: undone.append("a"))
        await step.sleep("s", "1 day")

    instance = run(engine, body)
    clock.advance("1 minute")
    if paused:
        instance.pause()
    instance.terminate(rollback=True)
    clock.advance("1 minute")
    assert (instance.status().status, instance.status().rollback) == (Status.TERMINATED, ("complete", None))
    assert undone == ["a"]


def in_sql(engine):
    return engine.sql("select status, error_type, error_message from instances").fetchall()


@pytest.mark.parametrize("ends", ["terminated", "terminated twice", "well"])
def test_while_and_after_a_rollback_sql_tells_the_error_that_status_tells(tmp_path, ends):
    """API.md §4, S46: the original error while it is rolled back and after; none of what was terminated (S43)."""
    file, began, go = tmp_path / "history.duckdb", threading.Event(), threading.Event()

    class Undone(WorkflowEntrypoint):
        async def run(self, event, step):
            await step.do("a", lambda: 1, rollback=lambda: (began.set(), go.wait(20)))
            await step.do("b", lambda: 1, rollback=lambda: None)
            if ends == "terminated twice":
                await step.wait_for_event("never", "never")
            await step.do("c", lambda: 1 / 0, retries=0)

    with Engine(file) as engine:
        instance = engine.register(Undone).create("a")
        if ends == "terminated twice":
            instance.wait(20)
            instance.terminate(rollback=True)
        assert began.wait(20)
        now, error = instance.status(), ("ZeroDivisionError", "division by zero")
        if ends == "terminated twice":
            error = (None, None)
        assert now.status is Status.ROLLING_BACK
        assert (now.error.type, now.error.message) == error if now.error else error == (None, None)
        assert in_sql(engine) == [("rollingBack", *error)]
        if ends == "well":
            go.set()
            assert instance.wait(20, until="finished").rollback == ("complete", None)
        else:
            instance.terminate()
            go.set()
    for _ in range(2):
        with Engine(file) as engine:
            now = engine.instance("a").status()
            if ends == "well":
                assert (now.status, now.error.type, now.rollback) == (Status.ERRORED, "ZeroDivisionError", ("complete", None))
                assert in_sql(engine) == [("errored", "ZeroDivisionError", "division by zero")]
            else:
                assert (now.status, now.error, now.rollback[0]) == (Status.TERMINATED, None, "failed")
                assert "handlers that had not ended did not run" in now.rollback[1].message
                assert in_sql(engine) == [("terminated", None, None)]
            engine.compact()


def test_what_is_terminated_before_anything_is_undone_has_no_rollback(engine):
    """S48: no handlers ran: None."""

    async def body(event, step):
        await step.do("a", lambda: 1, rollback=lambda: None)
        await step.wait_for_event("never", "never")

    instance = run(engine, body)
    instance.wait(10)
    instance.terminate()
    assert (instance.status().rollback, instance.status().error) == (None, None)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "from another engine"])
def test_a_pause_during_rollback_is_refused_and_the_rollback_goes_on(tmp_path, elsewhere):
    """S40, S46: no handler is left out without a word."""
    gate, undone = threading.Event(), []

    async def body(event, step):
        await step.do("a", lambda: 1, rollback=lambda: undone.append("a"))
        await step.do("b", lambda: 1, rollback=gate.wait)
        raise ValueError("no more")

    with Engine(tmp_path / "h.duckdb") as engine:
        instance = run(engine, body)
        eventually(lambda: instance.status().status is Status.ROLLING_BACK)
        with Engine(tmp_path / "h.duckdb") as other:
            asked = other.get(instance.id) if elsewhere else instance
            with pytest.raises(InvalidStatusError, match=r"is rolling back and cannot be paused: .* terminate it"):
                asked.pause()
        gate.set()
        assert instance.wait(20, until="finished").rollback == ("complete", None)
    assert undone == ["a"]


ROWS = "select name, key, type, status, attempts from steps where type <> 'rollback' order by name, key nulls first"


class Picky:
    """Notes what it does and undoes; what is in `broken` and `stuck` fails."""

    def __init__(self):
        self.did, self.broken, self.stuck = [], set(), set()

    def do(self, item):
        self.did.append(item)
        if item in self.broken:
            raise NonRetryableError(item)
        return item.upper()

    def undo(self, ctx):
        if ctx.key in self.stuck:
            raise NonRetryableError("stuck")
        self.did.append(f"undo {ctx.key}")

    def took(self):
        did, self.did = self.did, []
        return did


@pytest.mark.parametrize("where", ["in the map", "after it"])
def test_of_a_map_undone_in_part_only_what_was_undone_runs_again(tmp_path, clock, where):
    """S48, S61: the chain stopped at an item; those before it count as done, as steps would."""
    picky = Picky()
    picky.broken, picky.stuck = {"d" if where == "in the map" else "last"}, {"b"}

    async def body(event, step):
        await step.do("pre", picky.do, "pre")
        found = await step.map("m", picky.do, "abcd", key=lambda item: item, rollback=picky.undo)
        return [*found, await step.do("last", picky.do, "last")]

    with Engine(tmp_path / "h.duckdb") as engine:
        instance = run(engine, body)
        assert instance.wait(20, until="finished").rollback[0] == "failed"
        last = [] if where == "in the map" else ["last"]
        assert picky.took() == ["pre", "a", "b", "c", "d", *last, "undo d", "undo c"]
        picky.broken.clear()
        picky.stuck.clear()
        with pytest.raises(InvalidStatusError, match="rolled back"):
            instance.restart(from_step=("m", "d"))
        instance.resume()
        assert instance.wait(20, until="finished").output == ["A", "B", "C", "D", "LAST"]
        assert picky.took() == ["c", "d", "last"]
        rows = engine.sql(ROWS).fetchall()
        items = [("m", key, "map", "finished", int(key is not None)) for key in (None, "a", "b", "c", "d")]
        assert rows == [("last", None, "do", "finished", 1), *items, ("pre", None, "do", "finished", 1)]


def test_of_a_map_undone_as_a_whole_all_items_run_again(engine):
    """S48."""
    picky = Picky()
    picky.broken = {"c"}

    async def body(event, step):
        return await step.map("m", picky.do, "abc", key=lambda item: item, rollback=picky.undo)

    instance = run(engine, body)
    assert instance.wait(20, until="finished").rollback == ("complete", None)
    picky.took()
    picky.broken.clear()
    instance.resume()
    assert instance.wait(20, until="finished").output == ["A", "B", "C"]
    assert picky.took() == ["a", "b", "c"]


@pytest.mark.parametrize("outer", ["do", "map"])
def test_a_step_in_whose_body_something_was_undone_runs_again(engine, outer):
    """S15, S48: what is undone counts as done no more, nor what holds it."""
    did, broken = [], {1}

    async def body(event, step):
        async def holds(name):
            did.append(name)
            await step.do(f"inner {name}", did.append, f"inner {name}", rollback=lambda: did.append(f"undo {name}"))
            return name

        if outer == "map":
            found = await step.map("m", holds, "ab", key=lambda item: item, concurrency=1)
        else:
            found = [await step.do(name, holds, name) for name in "ab"]

        def last():
            if broken:
                raise NonRetryableError("no")

        await step.do("last", last)
        return found

    instance = run(engine, body)
    assert instance.wait(20, until="finished").rollback == ("complete", None)
    assert did == ["a", "inner a", "b", "inner b", "undo b", "undo a"]
    did.clear()
    broken.clear()
    instance.resume()
    assert instance.wait(20, until="finished").output == ["a", "b"]
    assert did == ["a", "inner a", "b", "inner b"]
