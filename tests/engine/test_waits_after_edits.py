"""What an instance waits for when its code was corrected while it waited (S58, S39, S9)."""

import asyncio
import itertools

import pytest

from nbflow import InvalidStatusError
from nbflow.values.schemas import UnfitPayloadError
from tests.engine.conftest import entrypoint, kinds, revive, source_of


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
