"""Pause, resume, terminate, restart, delete (S40 to S45), from any thread."""

import asyncio
import threading
from datetime import timedelta

import pytest

from nbflow import (
    AlreadyExistsError,
    Engine,
    InvalidStatusError,
    NotFoundError,
    UsageError,
    WaitTimeoutError,
    WorkflowEntrypoint,
)
from nbflow.core.model import Status, StepState
from tests.engine.conftest import Gate, entrypoint, eventually, kinds, source_of
from tests.engine.test_sleeps_and_events import waits


def status_is(instance, wanted):
    return eventually(lambda: instance.status().status == wanted, f"{instance!r} is {wanted}")


# -- pause and resume -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["sleep", "wait", "retry"])
def test_a_pause_of_what_only_waits_has_happened_when_it_returns(lab, what):  # S40
    async def run(event, step):
        match what:
            case "sleep":
                await step.sleep("nap", "1 hour")
            case "wait":
                await step.wait_for_event("ask", "go")
            case _:
                await step.do("s", lambda: 1 / 0)

    instance = lab.start(run)
    lab.idle()
    instance.pause()
    assert instance.status().status == "paused"
    assert instance.is_settled()


def test_a_pause_lets_bodies_in_flight_end_and_records_them(lab):  # S40
    gate = Gate("done")
    ran = []

    async def run(event, step):
        await asyncio.gather(step.do("long", gate), step.do("long too", gate))
        await step.do("next", lambda: ran.append("next"))

    instance = lab.start(run)
    gate.reached(2)
    instance.pause()
    assert instance.status().status == "waitingForPause"
    gate.open()
    status_is(instance, "paused")
    assert [s.status for s in instance.steps] == [StepState.FINISHED, StepState.FINISHED]
    assert ran == []
    lab.advance("1 day")
    assert ran == []


def test_a_pause_twice_or_of_a_finished_instance_has_no_effect(lab):  # S40
    instance = lab.start(waits("ask"))
    lab.idle()
    instance.pause()
    before = len(instance.history())
    instance.pause()
    assert len(instance.history()) == before
    done = lab.run(lambda event, step: asyncio.sleep(0), name="Done")
    before = len(done.history())
    done.pause()
    assert (len(done.history()), done.status().status) == (before, "complete")


def test_resume_while_waiting_for_the_pause_takes_it_back_without_a_replay(lab):  # S41
    gate = Gate("done")
    tops = []

    async def run(event, step):
        tops.append(1)
        return await step.do("long", gate), await step.do("next", lambda: "next")

    instance = lab.start(run)
    gate.reached()
    instance.pause()
    instance.resume()
    assert instance.status().status == "running"
    gate.open()
    assert lab.finish(instance).output == ("done", "next")
    assert tops == [1]


def test_what_fell_due_during_a_pause_taken_back_is_not_lost(lab):  # S41
    gate, short = Gate("done"), Gate("short")

    async def run(event, step):
        flaky = {"tried": 0}

        def fails_once():
            flaky["tried"] += 1
            if flaky["tried"] == 1:
                raise ValueError
            return "second try"

        async def ask():
            try:
                await step.wait_for_event("ask", "go", timeout="1 hour")
            except TimeoutError:
                return "timed out"

        return await asyncio.gather(
            step.do("long", gate, timeout="1 day"),
            step.do("short", short),
            step.do("flaky", fails_once, retries={"limit": 1, "delay": "1 hour"}),
            step.sleep("nap", "1 hour"),
            ask(),
        )

    instance = lab.start(run)
    gate.reached()
    short.reached()
    eventually(lambda: instance.step("flaky").status is StepState.RETRYING)
    instance.pause()
    short.open()
    eventually(lambda: instance.step("short").status is StepState.FINISHED)
    lab.move("2 hours")
    assert instance.status().status == "waitingForPause"
    instance.resume()
    gate.open()
    assert lab.finish(instance).output == ["done", "short", "second try", None, "timed out"]


def test_run_may_end_during_a_pause_that_is_taken_back(lab):  # S41
    gate = Gate("late")
    go = threading.Event()

    async def run(event, step):
        step.do("forgotten", gate)
        await asyncio.to_thread(go.wait)
        return "returned"

    instance = lab.start(run)
    gate.reached()
    instance.pause()
    go.set()
    eventually(lambda: lab.engine.live[instance.created_seq].activation.returned)
    instance.resume()
    gate.open()
    assert lab.finish(instance).output == "returned"


def test_resume_moves_deadlines_by_the_time_paused_but_not_named_moments(lab):  # S41
    woken = {}
    flaky = []

    async def run(event, step):
        async def mark(name, call):
            try:
                await call
            except TimeoutError:
                pass
            woken.setdefault(name, lab.clock.now())

        def fails_once():
            flaky.append(1)
            if len(flaky) == 1:
                raise ValueError

        await asyncio.gather(
            mark("nap", step.sleep("nap", "10 hours")),
            mark("moment", step.sleep_until("moment", event.timestamp + timedelta(hours=10))),
            mark("ask", step.wait_for_event("ask", "go", timeout="10 hours")),
            mark("retry", step.do("s", fails_once, retries={"limit": 1, "delay": "10 hours"})),
        )

    instance = lab.start(run)
    lab.advance("4 hours")
    instance.pause()
    lab.advance("3 hours")
    instance.resume()
    lab.advance("1 day")
    assert instance.is_finished()
    hours = {name: (when - instance.created_at) / timedelta(hours=1) for name, when in woken.items()}
    assert hours == {"nap": 13, "moment": 10, "ask": 13, "retry": 13}


def test_moved_deadlines_stay_moved_after_a_death(lab):  # S41
    async def run(event, step):
        await step.sleep("nap", "10 hours")
        return "awake"

    instance = lab.start(run, id="one")
    lab.advance("4 hours")
    instance.pause()
    lab.advance("3 hours")
    instance.resume()
    later = lab.revive()
    later.workflow(run)
    later.advance("5 hours 59 minutes")
    assert not later.engine.get("one").is_finished()
    later.advance("1 minute")
    assert later.engine.get("one").output == "awake"


def test_a_paused_instance_rests_over_a_death_until_resumed(lab):  # S51
    run = waits("ask")
    instance = lab.start(run, id="one")
    lab.idle()
    instance.pause()
    later = lab.revive()
    later.workflow(run)
    later.idle()
    instance = later.engine.get("one")
    assert instance.status().status == "paused"
    instance.send_event("go", 1)
    assert instance.status().status == "paused"
    instance.resume()
    later.idle()
    assert instance.output == [1]


@pytest.mark.parametrize("how", ["registered", "its cell run", "resumed"])
def test_a_pause_whose_bodies_died_with_their_engine_has_happened(lab, how):  # S40
    gate = Gate(1)

    async def run(event, step):
        return await step.do("a", gate), await step.do("b", lambda: 2)

    instance = lab.start(run, id="one")
    gate.reached()
    instance.pause()
    assert instance.status().status == "waitingForPause"
    later = lab.revive()
    workflow = later.engine.register(entrypoint(run), "W", source=source_of(run), resume=how == "registered")
    if how == "its cell run":
        opened = later.engine.open(workflow, "one")
        opened.start()
        assert opened.line == "one is paused, 0 steps from history; resume it to go on"
    instance = later.engine.get("one")
    if how != "resumed":
        later.idle()
        assert instance.status().status == "paused"
        assert instance.wait(20).status == "paused"
        assert gate.came == 1
    instance.resume()
    gate.open()
    later.idle()
    assert instance.output == (1, 2)


def test_resume_of_an_errored_instance_goes_on_at_the_failed_step(lab):  # S41
    ran = []
    broken = True

    def body(ctx):
        ran.append((ctx.step.name, ctx.attempt))
        if ctx.step.name == "b" and broken:
            raise ValueError
        return ctx.step.name

    async def run(event, step):
        return [await step.do(name, body, retries=0) for name in "abc"]

    instance = lab.run(run)
    assert instance.status().status == "errored"
    broken = False
    instance.resume()
    assert lab.finish(instance).output == ["a", "b", "c"]
    assert ran == [("a", 1), ("b", 1), ("b", 1), ("c", 1)]
    assert instance.status().error is None


def test_resume_has_no_effect_on_what_runs_or_is_complete(lab):  # S41
    instance = lab.start(waits("ask"))
    lab.idle()
    before = kinds(instance)
    instance.resume()
    instance.resume()
    assert kinds(instance) == before
    instance.send_event("go")
    lab.finish(instance)
    before = kinds(instance)
    instance.resume()
    assert (kinds(instance), instance.status().status) == (before, "complete")


# -- a stop cannot be swallowed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("catch", [Exception, BaseException])
def test_user_code_cannot_swallow_a_stop(lab, catch):  # S42
    ran, caught = [], []
    gate = Gate()

    async def run(event, step):
        number = 0
        while True:
            number += 1
            try:
                await step.do(f"step {number}", gate if number == 1 else lambda: ran.append(1))
                await asyncio.sleep(0)
            except catch as error:
                caught.append(type(error).__name__)

    instance = lab.start(run)
    gate.reached()
    instance.pause()
    gate.open()
    status_is(instance, "paused")
    assert ran == []
    instance.terminate()
    lab.idle()
    assert ran == []
    assert "CancelledError" not in caught or catch is BaseException


def test_the_first_call_after_a_stop_raises_and_later_ones_wait_for_ever(lab):  # S42
    seen = []
    stopped, go = threading.Event(), threading.Event()
    gate = Gate()

    async def run(event, step):
        step.do("in flight", gate)
        await asyncio.to_thread(go.wait)
        for number in range(3):
            try:
                seen.append(f"call {number}")
                await step.do(f"more {number}", lambda: seen.append("ran"))
            except BaseException as error:
                seen.append(type(error).__name__)
                stopped.set()

    instance = lab.start(run)
    gate.reached()
    instance.pause()
    go.set()
    assert stopped.wait(5)
    lab.engine.on_loop(lambda: None)
    assert seen == ["call 0", "StopSignal", "call 1"]
    gate.open()
    status_is(instance, "paused")
    lab.engine.on_loop(lambda: None)
    assert "ran" not in seen


def test_a_stop_signal_does_not_cancel_bodies_that_a_task_group_holds(lab):  # S40, S42
    gate = Gate("kept")
    go = threading.Event()

    async def run(event, step):
        async def other():
            await asyncio.to_thread(go.wait)
            await step.do("new", lambda: 1)

        async with asyncio.TaskGroup() as group:
            long = group.create_task(step.do("long", gate))
            group.create_task(other())
        return long.result()

    instance = lab.start(run)
    gate.reached()
    instance.pause()
    go.set()
    eventually(lambda: lab.engine.live[instance.created_seq].activation.signalled)
    gate.open()
    status_is(instance, "paused")
    assert instance.step("long").status is StepState.FINISHED
    instance.resume()
    assert lab.finish(instance).output == "kept"
    assert gate.came == 1


def test_code_that_does_not_end_after_a_stop_is_dropped_with_a_line_in_the_log(lab, caplog):  # S42
    began = threading.Event()

    async def run(event, step):
        began.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

    instance = lab.start(run)
    assert began.wait(5)
    instance.terminate()
    assert instance.status().status == "terminated"
    lab.engine.on_loop(lambda: None)
    assert caplog.records == []
    lab.move("5 seconds")
    lab.engine.on_loop(lambda: None)
    assert "user code did not end 5 s after it was stopped" in caplog.text


def test_a_pause_stops_code_that_never_rests(lab):  # S40, S42
    began = threading.Event()

    async def run(event, step):
        began.set()
        while True:
            await asyncio.sleep(0)

    instance = lab.start(run)
    assert began.wait(5)
    instance.pause()
    eventually(lambda: lab.engine.time.next_due() is not None)
    lab.move("5 seconds")
    status_is(instance, "paused")


def test_a_step_of_a_body_in_flight_runs_though_a_pause_is_wanted(lab):  # S15, S40
    gate = Gate()
    ran = []

    async def run(event, step):
        async def outer():
            await asyncio.to_thread(gate)
            inner = await step.do("inner", lambda: (ran.append("inner"), 1)[1])
            return inner + await step.do("inner", lambda: (ran.append("inner"), 2)[1])

        value = await step.do("outer", outer)
        await step.do("next", lambda: ran.append("next"))
        return value

    instance = lab.start(run)
    gate.reached()
    instance.pause()
    gate.open()
    status_is(instance, "paused")
    assert ran == ["inner", "inner"]
    assert instance.step("outer").output == 3
    instance.resume()
    assert lab.finish(instance).output == 3
    assert ran == ["inner", "inner", "next"]


# -- terminate --------------------------------------------------------------------------------------------------------


def test_terminate_ends_at_once_and_ends_of_bodies_in_flight_are_never_recorded(lab):  # S43
    gate = Gate()
    cancelled = []

    async def run(event, step):
        async def waiting():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        await asyncio.gather(step.do("thread", gate), step.do("loop", waiting))

    instance = lab.start(run)
    gate.reached()
    eventually(lambda: len(instance.steps) == 2)
    instance.terminate()
    assert instance.status().status == "terminated"
    before = len(instance.history())
    gate.open()
    eventually(lambda: cancelled)
    lab.idle()
    assert len(instance.history()) == before
    assert {s.status for s in instance.steps} == {StepState.INTERRUPTED}


@pytest.mark.parametrize("first", ["complete", "terminated", "errored"])
def test_terminate_of_a_finished_instance_is_refused_and_names_the_status(lab, first):  # S43
    async def run(event, step):
        if first == "errored":
            raise ValueError
        if first == "terminated":
            await step.wait_for_event("ask", "go")

    instance = lab.start(run)
    lab.idle()
    if first == "terminated":
        instance.terminate()
    with pytest.raises(InvalidStatusError, match=first):
        instance.terminate()


def test_terminate_works_on_a_paused_instance(lab):  # S43
    instance = lab.start(waits("ask"))
    lab.idle()
    instance.pause()
    instance.terminate()
    assert instance.status().status == "terminated"
    instance.resume()
    assert instance.status().status == "terminated"


# -- restart ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["waiting", "complete", "errored", "terminated", "paused", "running"])
def test_restart_works_from_any_state_with_the_same_id_params_and_timestamp(lab, state):  # S44
    seen = []
    gate = Gate()
    first = True

    async def run(event, step):
        seen.append((event.instance_id, event.payload, event.timestamp))
        await step.do("a", lambda: 1)
        if not first:
            return "second"
        match state:
            case "waiting" | "terminated" | "paused":
                await step.wait_for_event("ask", "go")
            case "errored":
                raise ValueError
            case "running":
                await step.do("b", gate)
        return "first"

    instance = lab.start(run, {"x": 1}, id="one")
    if state == "running":
        gate.reached()
    else:
        lab.idle()
    if state == "terminated":
        instance.terminate()
    if state == "paused":
        instance.pause()
    assert instance.status().status == state
    lab.advance("1 day") if state != "running" and state != "waiting" else None
    first = False
    instance.restart()
    gate.open()
    eventually(lambda: instance.is_finished())
    assert instance.output == "second"
    assert len(set(map(str, seen))) == 1
    assert len(seen) == 2
    assert [s.name for s in instance.steps] == ["a"]
    lab.idle()
    assert instance.output == "second"


def test_a_whole_restart_drops_buffered_events_and_runs_all_steps_again(lab):  # S44
    ran = []

    async def run(event, step):
        await step.do("a", lambda: ran.append("a"))
        return (await step.wait_for_event("ask", "go")).payload

    instance = lab.start(run)
    instance.send_event("other", 1)
    lab.idle()
    instance.send_event("go", "old")
    lab.idle()
    instance.restart()
    lab.idle()
    assert instance.status().status == "waiting"
    assert ran == ["a", "a"]
    instance.send_event("go", "new")
    lab.idle()
    assert instance.output == "new"


def sequence(ran):
    async def run(event, step):
        def body(ctx):
            ran.append(f"{ctx.step.name}{ctx.step.count}")
            return ctx.step.name

        await step.do("a", body)
        await step.do("b", body)
        await step.sleep("a", 1)
        await step.do("a", body)
        return await step.do("c", body)

    return run


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("a", ["a1", "b1", "a2", "c1"]),
        ("b", ["b1", "a2", "c1"]),
        (("a", 2), ["a2", "c1"]),
        ("c", ["c1"]),
        ({"name": "a", "count": 2}, ["a2", "c1"]),
        ({"name": "a", "type": "sleep"}, ["a2", "c1"]),
        ({"name": "c"}, ["c1"]),
    ],
)
def test_restart_from_a_step_keeps_what_started_before_it(lab, where, wanted):  # S44
    ran = []
    instance = lab.run(sequence(ran))
    ran.clear()
    instance.restart(from_step=where)
    lab.finish(instance)
    assert ran == wanted
    assert instance.output == "c"
    assert [s.order for s in instance.steps] == [1, 2, 3, 4, 5]


def test_restart_from_a_step_view(lab):  # S44
    ran = []
    instance = lab.run(sequence(ran))
    ran.clear()
    instance.restart(from_step=instance.step("b"))
    lab.finish(instance)
    assert ran == ["b1", "a2", "c1"]


def test_of_parallel_steps_those_called_later_go_although_they_ended_earlier(lab):  # S44
    ran = []

    async def run(event, step):
        async def body(ctx, turns):
            ran.append(ctx.step.name)
            for _ in range(turns):
                await asyncio.sleep(0)

        await asyncio.gather(step.do("slow", body, 20), step.do("fast", body, 0))

    instance = lab.run(run)
    ran.clear()
    instance.restart(from_step="slow")
    lab.finish(instance)
    assert ran == ["slow", "fast"]
    ran.clear()
    instance.restart(from_step="fast")
    lab.finish(instance)
    assert ran == ["fast"]


def test_restart_from_a_step_keeps_events_that_nobody_took_and_what_kept_waits_took(lab):  # S44
    async def run(event, step):
        first = await step.wait_for_event("first", "go")
        await step.do("a", lambda: 1)
        second = await step.wait_for_event("second", "stop")
        return first.payload, second.payload

    instance = lab.start(run)
    instance.send_event("go", 1)
    lab.idle()
    instance.send_event("go", "not taken")
    instance.restart(from_step="a")
    lab.idle()
    instance.send_event("stop", 2)
    lab.idle()
    assert instance.output == (1, 2)


@pytest.mark.parametrize("where", ["nothing", ("a", 3), {"name": "b", "type": "sleep"}, ("b", "key")])
def test_restart_from_an_unknown_step_touches_nothing(lab, where):  # S44
    instance = lab.run(sequence([]))
    before = instance.history()
    with pytest.raises(NotFoundError, match="recorded are"):
        instance.restart(from_step=where)
    assert instance.history() == before
    assert instance.status().status == "complete"


@pytest.mark.parametrize("where", [5, ["a"], ("a",), {"count": 1}, b"a"])
def test_restart_from_nonsense_is_a_usage_error(lab, where):
    instance = lab.run(sequence([]))
    with pytest.raises(UsageError, match="from_step"):
        instance.restart(from_step=where)


def test_dropped_entries_stay_in_the_history(lab):  # S44
    instance = lab.run(sequence([]))
    before = instance.history()
    instance.restart()
    lab.finish(instance)
    assert instance.history()[: len(before)] == before


def test_restart_survives_a_death(lab):  # S44
    ran = []
    run = sequence(ran)
    instance = lab.run(run, id="one")
    instance.restart(from_step=("a", 2))
    entries = lab.entries()
    restarted = next(i for i, e in enumerate(entries) if e.kind == "restarted")
    later = lab.revive(entries[: restarted + 1])
    ran.clear()
    later.workflow(run)
    assert later.finish(later.engine.get("one")).output == "c"
    assert ran == ["a2", "c1"]


def test_a_restart_begins_as_soon_as_the_old_body_has_ended(lab, caplog):  # S26
    gates = [Gate("old"), Gate("new")]

    async def run(event, step):
        return await step.do("s", lambda: gates.pop(0)())

    old, new = gates
    instance = lab.start(run)
    old.reached()
    instance.restart()
    old.open()
    new.reached()
    new.open()
    assert lab.finish(instance).output == "new"
    assert caplog.text == ""


def test_a_body_of_before_the_restart_cannot_end_the_step_after_it(lab, caplog):  # S26, S44
    gates = [Gate("old"), Gate("new")]

    async def run(event, step):
        return await step.do("s", lambda: gates.pop(0)())

    old, new = gates
    instance = lab.start(run)
    old.reached()
    instance.restart()
    lab.engine.on_loop(lambda: None)
    assert new.came == 0
    lab.move("10 seconds")  # it waits so long for the old body
    new.reached()
    assert "'s'" in caplog.text
    assert "two may overlap" in caplog.text
    old.open()
    lab.engine.on_loop(lambda: None)
    assert instance.status().status == "running"
    new.open()
    assert lab.finish(instance).output == "new"


# -- delete -----------------------------------------------------------------------------------------------------------


def test_delete_frees_the_id_and_removes_it_from_every_view(lab):  # S45
    run = waits("ask")
    instance = lab.start(run, id="one")
    lab.idle()
    with pytest.raises(AlreadyExistsError, match="'one'"):
        lab.start(run, id="one")
    instance.delete()
    assert lab.engine.list() == []
    with pytest.raises(NotFoundError):
        lab.engine.get("one")
    with pytest.raises(NotFoundError):
        instance.status()
    again = lab.start(run, id="one")
    again.send_event("go", "fresh")
    lab.idle()
    assert again.output == ["fresh"]


def test_delete_stops_what_runs(lab):  # S45
    gate = Gate()
    ran = []

    async def run(event, step):
        await step.do("s", gate)
        await step.do("next", lambda: ran.append(1))

    instance = lab.start(run)
    gate.reached()
    instance.delete()
    gate.open()
    lab.idle()
    assert ran == []


@pytest.mark.parametrize("act", ["pause", "resume", "terminate", "restart", "retry_failed", "retry_now", "status", "delete"])
def test_what_is_asked_of_a_deleted_instance_names_it_and_says_that_it_is_gone(lab, act):  # S45
    async def run(event, step):
        return 1

    instance = lab.run(run, id="gone")
    instance.delete()
    with pytest.raises(NotFoundError, match="'gone'"):
        getattr(instance, act)()


def test_delete_removes_the_artefacts(lab):  # S45
    async def run(event, step):
        await step.do("large", lambda: "x" * 3_000_000)

    instance = lab.run(run, id="one")
    folder = lab.store.artifacts / "W" / "one"
    assert list(folder.iterdir())
    assert len(instance.step("large").output) == 3_000_000
    instance.delete()
    assert not folder.exists()


def test_delete_by_age_takes_only_what_has_finished_long_ago(lab):
    old = lab.run(lambda event, step: asyncio.sleep(0), id="old")
    lab.advance("10 days")
    new = lab.run(lambda event, step: asyncio.sleep(0), id="new")
    waiting = lab.start(waits("ask", timeout="100 days"), id="waiting", name="Other")
    lab.idle()
    assert lab.engine.delete(older_than="20 days") == 0
    assert lab.engine.delete(older_than="5 days", status="errored") == 0
    assert lab.engine.delete(older_than="5 days") == 1
    assert {one.id for one in lab.engine.list()} == {new.id, waiting.id}
    assert old.id == "old"


# -- from anywhere ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("what", ["pause", "terminate", "restart", "delete"])
def test_control_methods_may_be_called_from_a_body_of_the_instance_itself(lab, what, kind):  # API.md, where code runs
    called = []

    async def run(event, step):
        def act(ctx):
            if not called:
                called.append(1)
                getattr(lab.engine.get(ctx.instance_id), what)()
            return "acted"

        async def act_async(ctx):
            return act(ctx)

        value = await step.do("act", act if kind == "plain" else act_async)
        await step.do("after", lambda: 1)
        return value

    instance = lab.start(run, id="one")
    match what:
        case "pause":
            status_is(instance, "paused")
            assert instance.step("act").output == "acted"
            instance.resume()
            lab.finish(instance)
            assert instance.output == "acted"
        case "terminate":
            status_is(instance, "terminated")
        case "restart":
            lab.move("10 seconds")
            assert lab.finish(instance).output == "acted"
        case "delete":
            eventually(lambda: lab.engine.list() == [])


def test_wait_on_the_workflow_loop_is_refused_and_says_what_to_do(lab):  # API.md, where code runs
    other = lab.start(waits("ask"), name="Other")

    async def run(event, step):
        async def body():
            other.wait()

        try:
            other.wait()
        except UsageError as error:
            message = str(error)
        try:
            await step.do("s", body, retries=0)
        except UsageError as error:
            return message, str(error)

    for message in lab.output(run):
        assert "await" in message


def test_awaiting_another_instance_in_run_works(lab):
    other = lab.start(waits("ask"), name="Other")

    async def run(event, step):
        return await other

    instance = lab.start(run)
    other.send_event("go", "answer")
    eventually(instance.is_finished)
    assert instance.output == ["answer"]


def test_a_plain_body_that_waits_for_the_engine_does_not_use_its_thread_up(make_lab):  # API.md, where code runs
    lab = make_lab(max_threads=1)

    async def child(event, step):
        return await step.do("s", lambda: "child")

    workflow = lab.workflow(child, "Child")

    async def run(event, step):
        def body():
            instance = workflow.create()
            instance.wait(20)
            return instance.output

        return await step.do("s", body)

    assert lab.output(run) == "child"


def test_wait_returns_when_settled_and_until_finished_when_asked(lab):
    instance = lab.start(waits("ask"))
    assert instance.wait(5).status == "waiting"
    with pytest.raises(WaitTimeoutError, match=r"0\.05"):
        instance.wait(0.05, until="finished")
    assert not instance.is_finished()
    threading.Timer(0.02, instance.send_event, ("go", 1)).start()
    assert instance.wait(5, until="finished").output == [1]
    with pytest.raises(UsageError, match="'done'"):
        instance.wait(until="done")


def test_many_threads_may_control_at_once(lab):
    async def run(event, step):
        return [(await step.wait_for_event(f"w{n}", "go")).payload for n in range(40)]

    instance = lab.start(run)

    def send(start):
        for n in range(start, start + 10):
            instance.send_event("go", n)
            instance.pause()
            instance.resume()

    threads = [threading.Thread(target=send, args=(10 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    instance.resume()
    eventually(instance.is_finished, f"{instance!r}: {instance.status()}")
    # Each event is taken once, and those of one sender in the order in which they were sent.
    assert sorted(instance.output) == list(range(40))
    for start in range(0, 40, 10):
        assert [n for n in instance.output if start <= n < start + 10] == list(range(start, start + 10))


def test_restarts_and_terminations_from_many_threads_leave_a_truthful_history(lab):
    async def run(event, step):
        for n in range(5):
            await step.do(f"s{n}", lambda ctx: ctx.step.name)
        await step.wait_for_event("ask", "go")

    instance = lab.start(run)

    def storm(what):
        for _ in range(15):
            try:
                what()
            except InvalidStatusError:
                pass

    acts = (instance.restart, instance.terminate, lambda: instance.restart(from_step="s0"), instance.pause, instance.resume)

    def quiet(act):
        def once():
            try:
                act()
            except NotFoundError:
                pass

        return once

    threads = [threading.Thread(target=storm, args=(quiet(act),)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    instance.restart()
    eventually(lambda: instance.status().status is Status.WAITING, f"{instance!r} {instance.status()}")
    assert [s.name for s in instance.steps] == ["s0", "s1", "s2", "s3", "s4", "ask"]
    instance.send_event("go")
    eventually(instance.is_finished)
    assert instance.status().status is Status.COMPLETE


@pytest.mark.parametrize("state", ["finished", "sleeping", "running"])
@pytest.mark.parametrize("how", ["create", "create_batch"])
def test_the_id_of_a_deleted_instance_is_free_at_once(tmp_path, state, how):  # S3, S45
    hold = threading.Event()

    class Naps(WorkflowEntrypoint):
        async def run(self, event, step):
            if state == "running" and event.payload["first"]:
                await step.do("hold", lambda: hold.wait(60))
            if state == "sleeping" and event.payload["first"]:
                await step.sleep("nap", "1 hour")
            return event.payload["first"]

    with Engine(tmp_path / "h.duckdb") as engine:
        workflow = engine.register(Naps)
        first = workflow.create("one", {"first": True})
        wanted = {"finished": Status.COMPLETE, "sleeping": Status.WAITING, "running": Status.RUNNING}[state]
        eventually(lambda: first.status().status is wanted)
        first.delete()
        if how == "create":
            second = workflow.create("one", {"first": False})
        else:
            [second] = workflow.create_batch([{"id": "one", "params": {"first": False}}])
        hold.set()
        assert second.wait(20, "finished").output is False
        assert [each.created_seq for each in engine.list()] == [second.created_seq]


@pytest.mark.parametrize(
    "wanted", [{"name": "s", "cnt": 3}, {"name": "s", "count": "3"}, {"name": "s", "count": True}, ("s", True), ("s", 1, 2), 5]
)
def test_a_restart_from_what_names_no_step_is_refused_before_anything_is_dropped(lab, wanted):  # S44
    async def run(event, step):
        await step.do("s", lambda: 1)

    instance = lab.run(run)
    before = kinds(instance)
    with pytest.raises(UsageError, match="from_step="):
        instance.restart(from_step=wanted)
    assert kinds(instance) == before


@pytest.mark.parametrize("config", [5, "retries", ["retries"]])
def test_a_config_that_is_none_is_refused_at_the_call(lab, config):
    async def run(event, step):
        await step.do("s", lambda: 1, config=config)

    error = lab.failure(run)
    assert isinstance(error, UsageError)
    assert "write a dict" in str(error)


def test_a_batch_of_what_is_no_mapping_is_refused_before_anything_is_created(lab):  # S3
    async def run(event, step):
        return 1

    workflow = lab.workflow(run)
    with pytest.raises(UsageError, match="instance 1 of the batch is 3"):
        workflow.create_batch([{"id": "a"}, 3])
    assert lab.engine.list() == []
