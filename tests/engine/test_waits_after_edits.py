"""What an instance waits for when its code was corrected while it waited (S58, S39, S9)."""

import asyncio
import itertools

import pytest

from nbflow import InvalidStatusError
from nbflow.values.schemas import UnfitPayloadError
from tests.engine.conftest import Gate, entrypoint, kinds, revive, source_of


def asking(event_type="go", schema=None, prompt=None, timeout="24 hours"):
    async def run(event, step):
        return (await step.wait_for_event("ask", event_type, timeout=timeout, schema=schema, prompt=prompt)).payload

    return run


def edit(lab, after, how="cell run again"):
    """Go on with *after*, in the same kernel or in the next one."""
    if how == "kernel restarted":
        lab = lab.revive()
    lab.engine.register(entrypoint(after), "W", source=f"{source_of(after)}edits = {next(EDITS)}")
    lab.idle()
    return lab, lab.engine.get("one")


def edited(lab, before, after, how):
    """An instance that waits under *before* and goes on with *after*."""
    lab.start(before, id="one")
    lab.idle()
    return edit(lab, after, how)


EDITS = itertools.count()
HOW = pytest.mark.parametrize("how", ["cell run again", "kernel restarted"])


@HOW
def test_a_corrected_schema_decides_what_senders_may_send(lab, how):  # S39, S58
    lab, instance = edited(lab, asking(schema=int, prompt="old"), asking(schema=str, prompt="new"), how)
    (wait,) = instance.view().waits
    assert (wait.schema, wait.prompt) == ({"type": "string"}, "new")
    with pytest.raises(UnfitPayloadError):
        instance.send_event("go", 5)
    instance.send_event("go", "x")
    assert lab.finish(instance).output == "x"


@HOW
def test_a_corrected_event_type_is_the_one_that_is_waited_for_and_answered(lab, how):  # S58
    lab, instance = edited(lab, asking("go", int), asking("ok"), how)
    assert [wait.event_type for wait in instance.status().waiting_for] == ["ok"]
    assert lab.engine.sql("select status from instances").fetchall() == [("waiting",)]
    instance.send_event("go", "of the old type")
    lab.idle()
    assert instance.is_settled()
    assert lab.engine.sql("select status from instances").fetchall() == [("waiting",)]
    instance.answer("ask", 1, "yes")
    assert lab.finish(instance).output == "yes"
    assert instance.step("ask").event_type == "ok"


@HOW
def test_the_deadline_order_and_begin_of_a_corrected_wait_stay_as_recorded(lab, how):  # S33, S58
    lab.start(asking(prompt="old", timeout="2 hours"), id="one")
    lab.advance("1 hour")
    before = lab.engine.get("one").step("ask")
    lab, instance = edit(lab, asking(prompt="new", timeout="9 hours"), how)
    assert instance.step("ask").prompt == "new"
    after = instance.step("ask")
    assert (after.due_at, after.order, after.started_at) == (before.due_at, before.order, before.started_at)
    told = lab.engine.sql("select name, status, started_at from steps").fetchall()
    assert told == [("ask", "waiting", before.started_at)]
    lab.advance("1 hour")
    assert lab.finish(instance).status().error.type == "EventTimeoutError"
    told = lab.engine.sql("select name, status, started_at from steps").fetchall()
    assert told == [("ask", "failed", before.started_at)]


def test_a_paused_wait_that_is_corrected_keeps_the_time_it_was_paused(lab):  # S41, S58
    instance = lab.start(asking(prompt="old", timeout="2 hours"), id="one")
    lab.idle()
    instance.pause()
    lab.advance("5 hours")
    edit(lab, asking(prompt="new"))
    instance.resume()
    lab.idle()
    assert instance.step("ask").prompt == "new"
    due = instance.step("ask").due_at
    assert (due - lab.clock.now()).total_seconds() == 2 * 3600
    later = lab.revive()
    assert later.engine.get("one").step("ask").due_at == due


ODD = {"type": "object", "enum": [{"a": (1, 2)}], "title": "half \ud800", "default": float("nan")}


@pytest.mark.parametrize("schema", [None, int, ODD])
@pytest.mark.parametrize("prompt", [None, "half \ud800", "p" * 5000])
def test_replays_of_a_wait_that_asks_for_the_same_record_nothing(lab, schema, prompt):
    lab.start(asking(schema=schema, prompt=prompt), id="one")
    lab.idle()
    for _ in range(3):
        edit(lab, asking(schema=schema, prompt=prompt, timeout="1 hour"))
        lab = lab.revive()
        lab.workflow(asking(schema=schema, prompt=prompt))
        lab.idle()
    assert kinds(lab.engine.get("one")).count("wait.started ask") == 1


# -- what the present code does not call any more (S9) -----------------------------------------------------------------


def fails():
    raise ValueError("it always does")


async def child(event, step):
    await step.wait_for_event("never", "never")


async def with_sleep(step):
    await step.sleep("old", "4 hours")


async def with_retry(step):
    await step.do("old", fails, retries={"limit": 9, "delay": "4 hours"})


async def with_wait(step):
    await step.wait_for_event("old", "go", timeout="4 hours", schema=int)


async def with_child(step):
    await step.child("old", "C", id="kid")


async def with_map(step):
    await step.map("old", lambda item: fails(), [1, 2], retries={"limit": 9, "delay": "4 hours"})


OLD = pytest.mark.parametrize("old", [with_sleep, with_retry, with_wait, with_child, with_map])


def flow(*parts):
    async def run(event, step):
        for part in parts:
            await part(step)
        return (await step.wait_for_event("ask", "go", schema=str, timeout="300 days")).payload

    return run


@OLD
@HOW
def test_what_the_present_code_does_not_call_is_waited_for_by_nobody_and_shows_as_unreached(lab, old, how):  # S9, S58
    lab.workflow(child, "C")
    lab, instance = edited(lab, flow(old), flow(), how)
    status = instance.status()
    assert (status.status, [wait.name for wait in status.waiting_for]) == ("waiting", ["ask"])
    assert [str(key) for key in status.unreached] == ["old"]
    assert ([wait.name for wait in instance.view().waits], instance.view().children) == (["ask"], ())
    assert (instance.view().running, instance.view().retrying) == (0, 0)
    assert instance.is_settled()
    before = len(instance.history())
    lab.advance("10 hours")  # past what was due
    assert instance.is_settled()
    assert instance.status().status == "waiting"
    assert len(instance.history()) == before  # nothing is said of it: the code may be put back
    with pytest.raises(UnfitPayloadError):
        instance.send_event("go", 5)
    instance.send_event("go", "x")
    assert lab.finish(instance).output == "x"
    assert [str(key) for key in instance.status().unreached] == ["old"]
    assert [str(key) for key in lab.revive().engine.get("one").status().unreached] == ["old"]


@OLD
def test_code_that_is_put_back_goes_on_with_what_was_recorded(lab, old):  # S9, S33
    lab.workflow(child, "C")
    lab.start(flow(old), id="one")
    lab.advance("1 hour")
    instance = lab.engine.get("one")
    before = instance.step("old")
    edit(lab, flow())
    lab.advance("1 hour")
    edit(lab, flow(old))
    status = instance.status()
    assert [wait.name for wait in status.waiting_for] == ["old"]
    assert [str(key) for key in status.unreached] == ["ask"]  # which is behind it now
    assert instance.step("old").order == before.order
    if old in (with_sleep, with_wait):
        assert instance.step("old").due_at == before.due_at
    assert not instance.is_settled() or old in (with_wait, with_child)


def test_a_step_that_is_called_later_is_open_again_with_its_deadline(lab):  # S9, S33
    async def before(event, step):
        await step.sleep("nap", "4 hours")

    async def after(event, step):
        await step.wait_for_event("ask", "go")
        await step.sleep("nap", "9 hours")

    lab, instance = edited(lab, before, after, "cell run again")
    due = instance.step("nap").due_at
    assert instance.is_settled()
    assert [str(key) for key in instance.status().unreached] == ["nap"]
    instance.send_event("go")
    lab.idle()
    status = instance.status()
    assert [(wait.name, wait.until) for wait in status.waiting_for] == [("nap", due)]
    assert status.unreached == ()
    assert not instance.is_settled()
    lab.advance("4 hours")
    assert instance.status().status == "complete"


def test_a_wait_that_is_not_called_any_more_takes_no_answer_and_refuses_no_payload(lab):  # S9, S39
    lab, instance = edited(lab, flow(with_wait), flow(with_sleep), "kernel restarted")
    with pytest.raises(InvalidStatusError, match="does not call it"):
        instance.answer("old", 1, 5)
    instance.send_event("go", "for the wait to come")
    assert [wait.name for wait in instance.status().waiting_for] == ["old"]
    lab.advance("4 hours")
    assert lab.finish(instance).output == "for the wait to come"


def test_a_pause_moves_the_deadline_of_what_is_not_called_now_too(lab):  # S41
    lab, instance = edited(lab, flow(with_sleep), flow(), "cell run again")
    instance.pause()
    lab.advance("2 hours")
    instance.resume()
    lab.idle()
    assert [wait.name for wait in instance.status().waiting_for] == ["ask"]
    edit(lab, flow(with_sleep))
    assert (instance.step("old").due_at - lab.clock.now()).total_seconds() == 4 * 3600


def test_an_instance_that_left_memory_is_woken_by_what_its_code_waits_for_alone(make_lab):  # S62
    lab = make_lab()
    lab.engine.waiting.keep = 0
    lab, instance = edited(lab, flow(with_wait), flow(with_nap), "cell run again")
    live = lab.engine.live[instance.created_seq]
    assert live.rest.hibernating
    assert [wait.name for wait in instance.status().waiting_for] == ["nap"]
    assert [str(key) for key in instance.status().unreached] == ["old"]
    instance.send_event("go", "x")
    lab.idle()
    assert live.rest.hibernating
    assert instance.status().status == "waiting"
    lab.advance("5 hours")
    assert live.rest.hibernating
    lab.advance("300 days")
    assert lab.finish(instance).output == "x"


async def with_nap(step):
    await step.sleep("nap", "200 days")


def test_a_cut_off_step_that_was_renamed_shows_as_unreached(lab):  # S9
    gate = Gate()

    async def before(event, step):
        await step.do("load", gate)

    lab.start(before, id="one")
    gate.reached()
    lab, instance = edit(lab, flow(), "kernel restarted")
    gate.open()
    assert [str(key) for key in instance.status().unreached] == ["load"]
    assert instance.is_settled()


# -- what an event that is there will end (S34) ------------------------------------------------------------------------


def test_a_wait_that_a_sent_event_will_end_is_not_waited_for(lab):  # S34, S35
    async def run(event, step):
        await asyncio.gather(step.wait_for_event("first", "go"), step.wait_for_event("second", "go", schema=int))

    instance = lab.start(run, id="one")
    lab.idle()
    entries = lab.entries()
    elsewhere = revive(entries, lab)  # it does not have the workflow: the event waits for a kernel that does
    instance = elsewhere.engine.get("one")
    assert [wait.name for wait in instance.status().waiting_for] == ["first", "second"]
    instance.send_event("go", "any")
    status = instance.status()
    assert (status.status, [wait.name for wait in status.waiting_for]) == ("running", ["second"])
    assert [wait.name for wait in instance.view().waits] == ["second"]
    with pytest.raises(UnfitPayloadError):  # the next one goes to the second
        instance.send_event("go", "any")
    with pytest.raises(InvalidStatusError, match="answered by"):
        instance.answer("first", 1, 1)
    instance.answer("second", 1, 1)
    assert instance.status().waiting_for == ()
