"""A map that waits for its rate: nothing of it runs, so it waits (S5), and others may work meanwhile."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from nbflow.core.model import StepState
from tests.engine.conftest import eventually

START = datetime(2026, 1, 1, tzinfo=UTC)


async def double(item):
    return 2 * item


def rated(rate, count=5, **options):
    async def run(event, step):
        return await step.map("m", double, range(count), rate=rate, **options)

    return run


def test_it_is_waiting_until_its_next_attempt_may_begin(lab):
    instance = lab.start(rated("2/hour"))
    lab.idle()
    for hours, done in ((1, 2), (2, 4)):
        status = instance.status()
        [wait] = status.waiting_for
        assert status.status == "waiting"
        assert (wait.name, wait.kind, wait.until, wait.event_type) == ("m", "rate", START + timedelta(hours=hours), None)
        assert instance.step("m").items.done == done
        assert not instance.is_settled()
        lab.advance("59 minutes 59 s")
        assert instance.step("m").items.done == done
        lab.advance("1 s")
    assert instance.output == [0, 2, 4, 6, 8]
    assert instance.status().waiting_for == ()


def test_a_wait_that_is_short_changes_no_status(lab):
    instance = lab.start(rated("2/500 ms", count=20))
    lab.idle()
    assert instance.status().status == "running"
    lab.advance("10 s")
    assert instance.output == [2 * item for item in range(20)]


def test_it_is_running_while_a_body_runs_and_waits_beside_other_waits(lab):
    async def run(event, step):
        many = step.map("m", double, range(3), rate="1/hour")
        await step.wait_for_event("ask", "go")
        return await many

    instance = lab.start(run)
    lab.idle()
    assert instance.status().status == "waiting"
    assert {(wait.name, wait.kind) for wait in instance.status().waiting_for} == {("m", "rate"), ("ask", "event")}
    assert not instance.is_settled()
    lab.advance("3 hours")
    assert instance.step("m").status is StepState.FINISHED
    assert instance.is_settled()
    instance.send_event("go")
    lab.idle()
    assert instance.output == [0, 2, 4]


@pytest.mark.parametrize("stream", [False, True])
def test_others_may_work_meanwhile_and_it_takes_its_turn_again(make_lab, stream):
    lab = make_lab(max_running=1)
    order = []

    async def body(item):
        order.append(item)
        return item

    async def run(event, step):
        if stream:
            return [value async for value in step.map("m", body, range(3), rate="1/hour")]
        return await step.map("m", body, range(3), rate="1/hour")

    async def other(event, step):
        await step.do("s", lambda: order.append("other"))
        await step.wait_for_event("ask", "go")
        return "done"

    first = lab.start(run, name="First")
    lab.idle()
    second = lab.start(other, name="Second")
    lab.idle()
    assert order == [0, "other"]
    assert [str(each.status().status) for each in (first, second)] == ["waiting", "waiting"]
    lab.advance("2 hours")
    assert first.output == [0, 1, 2]
    assert order == [0, "other", 1, 2]


def test_it_waits_for_a_slot_where_others_have_them_when_its_time_has_come(make_lab):
    lab = make_lab(max_running=1)
    order = []

    async def body(item):
        order.append(item)

    async def slow():
        order.append("slow begins")
        while not done:
            await asyncio.sleep(0.001)
        order.append("slow ends")

    done: list[bool] = []

    async def run(event, step):
        await step.map("m", body, range(2), rate="1/hour")

    async def other(event, step):
        await step.do("slow", slow, timeout="10 hours")

    first = lab.start(run, name="First")
    lab.idle()
    second = lab.start(other, name="Second")
    eventually(lambda: order[-1] == "slow begins")
    lab.move("2 hours")
    assert first.status().status == "queued"
    done.append(True)
    lab.finish(second)
    lab.finish(first)
    assert order == [0, "slow begins", "slow ends", 1]


@pytest.mark.parametrize("how", ["pause", "terminate", "restart", "die"])
def test_it_can_be_stopped_and_goes_on(lab, how):
    instance = lab.start(rated("2/hour"), id="a")
    lab.idle()
    if how == "pause":
        instance.pause()
        assert instance.status().status == "paused"
        lab.advance("30 minutes")
        instance.resume()
    elif how == "terminate":
        instance.terminate()
        assert instance.status().status == "terminated"
        assert instance.status().waiting_for == ()
        return
    elif how == "restart":
        instance.restart()
    else:
        lab = lab.revive()
        lab.workflow(rated("2/hour"))
        instance = lab.engine.get("a")
    lab.idle()
    assert instance.status().status == "waiting"
    lab.advance("3 hours")
    assert instance.output == [0, 2, 4, 6, 8]


def test_an_instance_whose_map_waits_for_its_rate_stays_in_memory(make_lab):
    lab = make_lab()
    lab.engine.waiting.keep = 1

    async def run(event, step):
        many = step.map("m", double, range(3), rate="1/hour")
        await step.sleep("nap", "30 days")
        return await many

    instances = [lab.start(run, id=f"i{number}") for number in range(4)]
    lab.advance("3 hours")
    assert [each.step("m").items.done for each in instances] == [3] * 4
    lab.advance("30 days")
    assert [each.output for each in instances] == [[0, 2, 4]] * 4
