"""The public test kit, used the way its users would (API.md §10)."""

import asyncio
import threading
from typing import Literal

import pytest

from nbflow import (
    EventTimeoutError,
    NonRetryableError,
    NotFoundError,
    NotSerialisableError,
    Status,
    UsageError,
    WorkflowEntrypoint,
    testing,
)
from nbflow.core.model import Kind
from nbflow.testing import introspect
from tests.engine.conftest import eventually


class Order(WorkflowEntrypoint):
    async def run(self, event, step):
        charge = await step.do("charge", charge_card, event.payload["card"])
        await step.sleep("cool down", "7 days")
        answer = await step.wait_for_event("approval", "approved", timeout="2 days")
        shipped = await step.do("ship", ship, charge)
        return [charge, answer.payload, shipped]


def charge_card(card):
    raise AssertionError("the real service must not be called")


def ship(charge):
    return f"shipped {charge}"


def test_results_sleeps_and_events_can_be_mocked(nbflow_engine):
    workflow = nbflow_engine.register(Order)
    kit = introspect(workflow)
    kit.disable_sleeps()
    kit.mock_step_result("charge", "paid")
    kit.mock_event("approved", {"ok": True})
    workflow.create(params={"card": 1})
    assert kit.wait_for_step_result("ship") == "shipped paid"
    kit.wait_for_status("complete")
    assert kit.output() == ["paid", {"ok": True}, "shipped paid"]


def test_virtual_time_lets_days_pass(nbflow_engine):
    workflow = nbflow_engine.register(Order)
    kit = introspect(workflow)
    kit.mock_step_result("charge", "paid")
    instance = workflow.create(params={"card": 1})
    nbflow_engine.clock.advance("7 days")
    assert instance.status().waiting_for[0].event_type == "approved"
    instance.send_event("approved", 1)
    nbflow_engine.clock.advance("1 second")
    assert instance.output == ["paid", 1, "shipped paid"]


def test_errors_can_be_forced_for_some_attempts(nbflow_engine):
    workflow = nbflow_engine.register(Order)
    kit = introspect(workflow)
    kit.disable_sleeps()
    kit.disable_retry_delays()
    kit.mock_step_result("charge", "paid")
    kit.mock_step_error("ship", OSError("truck is late"), times=2)
    kit.mock_event("approved")
    instance = workflow.create(params={"card": 1})
    kit.wait_for_status(Status.COMPLETE)
    assert [attempt.status for attempt in instance.step("ship").attempts] == ["failed", "failed", "finished"]


@pytest.mark.parametrize("first", ["errors", "timeouts"])
def test_a_step_with_a_mocked_result_can_fail_before_it_gives_it(nbflow_engine, first):
    workflow = nbflow_engine.register(Order)
    kit = introspect(workflow)
    kit.disable_retry_delays()
    kit.mock_step_result("charge", "paid")
    if first == "errors":
        kit.mock_step_error("charge", OSError("bank is down"), times=2)
    else:
        kit.force_step_timeout("charge", times=2)
    instance = workflow.create(params={"card": 1})
    assert kit.wait_for_step_result("charge") == "paid"
    assert [attempt.status for attempt in instance.step("charge").attempts] == ["failed", "failed", "finished"]


def test_errors_for_good_reach_run(nbflow_engine):
    workflow = nbflow_engine.register(Order)
    kit = introspect(workflow)
    kit.mock_step_error("charge", NonRetryableError("no such card"))
    workflow.create(params={"card": 1})
    kit.wait_for_status("errored")
    assert kit.error().message == "no such card"
    with pytest.raises(AssertionError, match="no such card"):
        kit.wait_for_step_result("charge")


def test_timeouts_of_steps_and_events_can_be_forced(nbflow_engine):
    workflow = nbflow_engine.register(Order)
    kit = introspect(workflow)
    kit.disable_sleeps()
    kit.disable_retry_delays()
    kit.mock_step_result("charge", "paid")
    kit.force_event_timeout("approval")
    workflow.create(params={"card": 1})
    kit.wait_for_status("errored")
    assert kit.error().type == "EventTimeoutError"

    second = introspect(workflow)
    second.force_step_timeout("ship")
    second.mock_step_result("charge", "paid")
    second.disable_sleeps()
    second.disable_retry_delays()
    second.mock_event("approved")
    workflow.create(params={"card": 2})
    second.wait_for_status("errored")
    assert second.error().type == "StepTimeoutError"


def test_rules_of_one_instance_leave_the_others_alone(nbflow_engine):
    workflow = nbflow_engine.register(Order)
    everyone = introspect(workflow)
    everyone.mock_step_result("charge", "paid")
    everyone.disable_sleeps()
    one, two = workflow.create(params={"card": 1}), workflow.create(params={"card": 2})
    one.wait(10)
    two.wait(10)
    kit = introspect(one)
    kit.mock_step_result("ship", "by hand")
    kit.mock_event("approved")
    kit.wait_for_status("complete")
    assert kit.output()[2] == "by hand"
    two.send_event("approved")
    assert two.wait(10, "finished").output[2] == "shipped paid"


class Slow(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.sleep("a month", "30 days")
        try:
            await step.wait_for_event("ask", "approval")
        except EventTimeoutError:
            return await step.map("m", self.body, [1, 2])

    @staticmethod
    def body(item, ctx):
        if ctx.attempt < 3:
            raise ValueError
        return [item, ctx.attempt]


def test_rules_of_an_instance_hold_for_what_it_waits_for_already(nbflow_engine):
    kit = introspect(nbflow_engine.register(Slow).create())
    kit.wait_for_status("waiting")
    kit.disable_sleeps()
    assert kit.wait_for_step_result("a month") is None
    kit.force_event_timeout("ask")
    introspect(kit.instance)  # who only looks changes nothing
    eventually(lambda: [step for step in kit.instance.steps if step.name == "m"])
    kit.disable_retry_delays()
    kit.wait_for_status("complete")
    assert kit.output() == [[1, 3], [2, 3]]


def test_several_sets_of_rules_hold_together_those_of_the_instance_first(nbflow_engine):
    workflow = nbflow_engine.register(Slow)
    introspect(workflow).disable_sleeps()
    introspect(workflow).mock_step_result("m", ["everyone"])
    instance = workflow.create()
    kit = introspect(instance)
    kit.mock_step_result("m", ["mine"])
    kit.force_event_timeout("ask")
    kit.wait_for_status("complete")
    assert kit.output() == ["mine"]


def test_maps_meet_mocked_errors(nbflow_engine):
    workflow = nbflow_engine.register(Slow)
    kit = introspect(workflow)
    kit.disable_sleeps()
    kit.disable_retry_delays()
    kit.force_event_timeout("ask")
    kit.mock_step_error("m", KeyError("mocked"), times=3)
    assert workflow.create().wait(30, "finished").output == [[1, 4], [2, 4]]
    kit.mock_step_error("m", KeyError("mocked"))
    assert workflow.create().wait(30, "finished").error.type == "KeyError"


def test_what_cannot_be_is_a_usage_error(nbflow_engine):
    with pytest.raises(UsageError, match="introspect"):
        introspect(Slow)
    with pytest.raises(UsageError, match="'queued', 'running'"):
        introspect(nbflow_engine.register(Slow)).wait_for_status("done")


class Asks(WorkflowEntrypoint):
    async def run(self, event, step):
        try:
            await step.wait_for_event("ask", "approval", timeout="1 hour")
        except EventTimeoutError:
            return "in time"


def test_a_wait_that_is_over_is_not_settled(nbflow_engine):
    for _ in range(20):
        workflow = nbflow_engine.register(Asks)
        introspect(workflow).force_event_timeout("ask")
        assert workflow.create().wait(10).output == "in time"


@pytest.mark.parametrize(("kind", "real"), [("loop", "ON_LOOP"), ("thread", "IN_THREADS")])
def test_time_that_is_moved_over_the_timeout_of_a_body_ends_its_attempt(nbflow_engine, monkeypatch, kind, real):
    monkeypatch.setattr(testing, real, 0.1)
    never, ended = threading.Event(), []

    class Blocks(WorkflowEntrypoint):
        async def run(self, event, step):
            async def on_loop():
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append("cancelled")

            def in_thread():
                never.wait(60)

            await step.do("stuck", on_loop if kind == "loop" else in_thread, timeout="10 minutes", retries=0)

    instance = nbflow_engine.register(Blocks).create()
    nbflow_engine.clock.advance("11 minutes")
    never.set()
    assert instance.status().status is Status.ERRORED
    assert instance.status().error.type == "StepTimeoutError"
    assert ended == (["cancelled"] if kind == "loop" else [])


def test_time_waits_for_bodies_that_end(nbflow_engine):
    class Works(WorkflowEntrypoint):
        async def run(self, event, step):
            def work():
                threading.Event().wait(0.5)
                return "done"

            found = await step.do("work", work, timeout="1 minute", retries=0)
            await step.sleep("a day", "1 day")
            return found

    instance = nbflow_engine.register(Works).create()
    nbflow_engine.clock.advance("2 days")
    assert instance.wait(10).output == "done"


def test_what_no_step_and_no_event_can_give_is_refused_at_the_call(lab):
    workflow = lab.workflow(waits_and_does)
    kit = introspect(workflow)
    with pytest.raises(NotSerialisableError):
        kit.mock_step_result("a", object())
    with pytest.raises(NotSerialisableError):
        kit.mock_event("go", object())
    with pytest.raises(UsageError, match="event type"):
        kit.mock_event("bad type")
    with pytest.raises(UsageError, match=r"mock_step_error\('a', 'text'\): give an exception"):
        kit.mock_step_error("a", "text")
    with pytest.raises(NotFoundError, match="has no instance yet"):
        kit.output()
    kit.mock_event("go", 1)
    kit.mock_step_result("a", 2)
    assert lab.finish(workflow.create()).output == kit.output() == [1, 2]


async def waits_and_does(event, step):
    return [(await step.wait_for_event("ask", "go")).payload, await step.do("a", lambda: 0)]


# -- children


async def has_child(event, step):
    try:
        return await step.child("kid", "Child", {"n": 1})
    except Exception as error:
        return f"{type(error).__name__}: {error}"


async def child(event, step):
    return (await step.wait_for_event("ask", "go")).payload


def children(lab):
    return lab.engine.list("Child")


def test_a_child_with_a_mocked_result_is_not_made(lab):
    lab.workflow(child, "Child")
    workflow = lab.workflow(has_child)
    introspect(workflow).mock_step_result("kid", {"mocked": 1})
    instance = lab.finish(workflow.create())
    assert instance.output == {"mocked": 1}
    assert instance.step("kid").output == {"mocked": 1}
    assert children(lab) == []
    later = lab.revive()
    assert later.engine.get(instance.id).step("kid").output == {"mocked": 1}


@pytest.mark.parametrize("error", [LookupError("no child"), LookupError])
def test_a_child_that_is_made_to_fail_is_not_made(lab, error):
    lab.workflow(child, "Child")
    workflow = lab.workflow(has_child)
    kit = introspect(workflow)
    kit.mock_step_error("kid", error)
    kit.mock_step_result("kid", "after the error")
    assert lab.finish(workflow.create()).output == f"LookupError: {error if isinstance(error, LookupError) else ''}"
    assert children(lab) == []


def test_a_child_can_be_made_to_time_out(lab):
    lab.workflow(child, "Child")
    workflow = lab.workflow(has_child)
    introspect(workflow).force_step_timeout("kid")
    assert lab.finish(workflow.create()).output == "StepTimeoutError: step 'kid' was made to time out"
    assert children(lab) == []


def test_a_child_that_failed_as_often_as_it_was_to_is_made_when_its_parent_goes_on(lab):
    async def run(event, step):
        return await step.child("kid", "Child"), await step.child("kid", "Child")

    lab.workflow(child, "Child")
    workflow = lab.workflow(run)
    kit = introspect(workflow)
    kit.mock_step_error("kid", LookupError("no child"), times=1)
    kit.mock_step_result("kid", "mocked", count=2)
    instance = lab.finish(workflow.create())
    assert instance.status().error.type == "LookupError"
    instance.resume()
    made = eventually(lambda: children(lab))
    lab.idle()
    made[0].send_event("go", "real")
    lab.finish(instance)
    assert instance.status().error.type == "LookupError"  # the second call fails once, too
    instance.resume()
    assert lab.finish(instance).output == ("real", "mocked")


def test_a_child_that_is_waited_for_meets_the_rules_of_its_parent(lab):
    lab.workflow(child, "Child")
    instance = lab.start(has_child)
    lab.idle()
    assert [wait.kind for wait in instance.status().waiting_for] == ["child"]
    introspect(instance).mock_step_result("kid", "mocked")
    assert lab.finish(instance).output == "mocked"
    [made] = children(lab)
    assert not made.is_finished()  # it goes on by itself


def test_a_step_that_waits_for_its_retry_meets_the_rules_of_its_instance(lab):
    async def run(event, step):
        return await step.do("s", lambda: 1 / 0, retries={"limit": 1, "delay": "1 hour"})

    instance = lab.start(run)
    lab.idle()
    introspect(instance).mock_step_result("s", "mocked")
    assert lab.finish(instance).output == "mocked"
    assert [attempt.status for attempt in instance.step("s").attempts] == ["failed", "finished"]


# -- events of several instances


async def waits_twice(event, step):
    return [(await step.wait_for_event("ask", "go", timeout="1 hour")).payload for _ in range(event.payload)]


def test_mocked_events_of_a_workflow_are_for_each_of_its_instances(lab):
    workflow = lab.workflow(waits_twice)
    kit = introspect(workflow)
    kit.mock_event("go", 1)
    kit.mock_event("go", 2)
    first, second = workflow.create(params=2), workflow.create(params=1)
    assert lab.finish(first).output == [1, 2]
    assert lab.finish(second).output == [1]
    third = workflow.create(params=3)
    lab.idle()
    introspect(third).mock_event("go", 3)  # it waits for that already
    assert lab.finish(third).output == [1, 2, 3]


def test_mocked_events_are_given_once_also_after_a_restart_from_a_step(lab):
    async def run(event, step):
        first = (await step.wait_for_event("ask", "go")).payload
        await step.do("s", lambda: None)
        return first, (await step.wait_for_event("ask", "go")).payload

    workflow = lab.workflow(run)
    kit = introspect(workflow)
    kit.mock_event("go", 1)
    kit.mock_event("go", 2)
    instance = lab.finish(workflow.create())
    for step in ("s", "ask"):
        instance.restart(from_step=step)
        assert lab.finish(instance).output == (1, 2)


@pytest.mark.parametrize("number", [0, -1, 1.0, "1", True])
def test_counts_and_times_that_no_step_has_are_refused(lab, number):
    kit = introspect(lab.workflow(waits_twice))
    with pytest.raises(UsageError, match=rf"mock_step_result\('s', count={number!r}\): calls of a step are counted from 1"):
        kit.mock_step_result("s", 1, count=number)
    with pytest.raises(UsageError, match=rf"mock_step_error\('s', times={number!r}\): give how many attempts"):
        kit.mock_step_error("s", ValueError("no"), times=number)
    with pytest.raises(UsageError, match=rf"force_step_timeout\('s', times={number!r}\): give how many attempts"):
        kit.force_step_timeout("s", times=number)


async def waits_three_times(event, step):
    got = []
    for number in range(3):
        try:
            got.append((await step.wait_for_event(f"w{number}", "go", timeout="1 hour")).payload)
        except EventTimeoutError:
            got.append("late")
    return got


@pytest.mark.parametrize("late", ["w0", "w1", "w2"])
@pytest.mark.parametrize("events", ["mocked before", "mocked after", "sent"])
def test_a_wait_that_is_made_to_time_out_leaves_the_events_at_hand_to_those_after_it(lab, events, late):
    """S36: a wait that timed out is out of the queue; the next event goes to the next wait."""
    workflow = lab.workflow(waits_three_times)
    kit = introspect(workflow)
    if events != "mocked before":
        kit.force_event_timeout(late)
    instance = workflow.create() if events == "sent" else None
    for payload in ("a", "b"):
        kit.mock_event("go", payload) if instance is None else instance.send_event("go", payload)
    if events == "mocked before":
        kit.force_event_timeout(late)
    left = iter(("a", "b"))
    assert lab.finish(instance or workflow.create()).output == ["late" if f"w{n}" == late else next(left) for n in range(3)]
    assert lab.clock.monotonic() == 0  # at once


def test_a_wait_that_has_begun_can_be_made_to_time_out_before_an_event_comes(lab):
    workflow = lab.workflow(waits_three_times)
    instance = workflow.create()
    lab.idle()
    introspect(instance).force_event_timeout("w0")
    for payload in ("a", "b"):
        instance.send_event("go", payload)
    assert lab.finish(instance).output == ["late", "a", "b"]


def test_a_mocked_event_that_does_not_fit_is_set_aside_and_the_next_one_is_offered(lab):
    """S39: an unfit buffered event is set aside with a note, and stays visible."""

    async def run(event, step):
        first = await step.wait_for_event("first", "answer", schema=Literal["x", "y"])
        return first.payload, (await step.wait_for_event("second", "answer")).payload

    workflow = lab.workflow(run)
    kit = introspect(workflow)
    for payload in ("z", 3, "y", "last"):
        kit.mock_event("answer", payload)
    instance = lab.finish(workflow.create())
    assert instance.output == ("y", "last")
    assert sum(entry.kind is Kind.SET_ASIDE for entry in instance.history()) == 2


@pytest.mark.parametrize(
    ("discard", "mocked", "gives"), [(True, 3, 3), (True, 0, 0), (True, "ab", 2), (False, "ab", ["a", "b"])]
)
def test_a_mocked_map_gives_its_results_or_their_number_as_it_was_asked(nbflow_engine, discard, mocked, gives):
    """API.md §6, §10: awaited it gives the list of values, with `discard_results=True` the count."""
    ran = []

    class Flow(WorkflowEntrypoint):
        async def run(self, event, step):
            return await step.map("m", ran.append, [1, 2, 3, 4], discard_results=discard)

    workflow = nbflow_engine.register(Flow)
    introspect(workflow).mock_step_result("m", mocked if type(mocked) is int else list(mocked))
    assert workflow.create().wait(10).output == gives
    assert ran == []


@pytest.mark.parametrize("discard", [True, False])
def test_a_map_mocked_with_what_is_no_result_of_it_says_what_is(nbflow_engine, discard):
    """API.md §10."""

    class Flow(WorkflowEntrypoint):
        async def run(self, event, step):
            return await step.map("m", str, [1], discard_results=discard)

    workflow = nbflow_engine.register(Flow)
    introspect(workflow).mock_step_result("m", -1 if discard else 3)
    error = workflow.create().wait(10).error
    assert error.type == "UsageError"
    assert ("the number of items, or their list" if discard else "the list of results") in error.message
