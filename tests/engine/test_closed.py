"""Instances whose engine is closed: what is known of them is told, nobody waits for what cannot come (S5, S54)."""

import asyncio
import threading
import time

import pytest

from nbflow import InvalidStatusError, StoreError
from nbflow.core.model import Status
from tests.engine.conftest import Gate, revive


async def nothing(event, step):
    return event.payload


async def asks(event, step):
    return (await step.wait_for_event("ask", "answer")).payload


async def sleeps_an_hour(event, step):
    await step.sleep("z", "1 hour")


def _awaited(instance):
    async def main():
        return await instance

    return asyncio.run(main())


def _followed(instance):
    async def main():
        return [entry.kind async for entry in instance.follow()]

    return asyncio.run(main())


WAITS = {
    "wait": lambda instance: instance.wait(),
    "wait until finished": lambda instance: instance.wait(until="finished"),
    "wait a minute": lambda instance: instance.wait(60),
    "await": _awaited,
    "follow": _followed,
}


@pytest.mark.parametrize("begun", ["before", "after"])
@pytest.mark.parametrize("how", WAITS)
def test_nobody_waits_for_an_unfinished_instance_of_a_closed_engine(lab, how, begun):  # S54
    instance = lab.start(sleeps_an_hour)
    lab.idle()
    if begun == "after":
        lab.engine.close()
    raised = []

    def waits():
        with pytest.raises(InvalidStatusError, match="this engine is closed"):
            WAITS[how](instance)
        raised.append(how)

    waiter = threading.Thread(target=waits)
    waiter.start()
    if begun == "before":
        time.sleep(0.2)
        assert raised == []
        lab.engine.close()
    waiter.join(5)
    assert raised == [how]


def test_what_has_come_before_an_engine_closed_is_told_after_it(lab):  # S54
    finished, asking, paused = lab.run(nothing), lab.start(asks, name="Asks"), lab.start(sleeps_an_hour, name="Paused")
    lab.idle()
    paused.pause()
    assert paused.wait().status is Status.PAUSED
    lab.engine.close()
    for instance, status in ((finished, Status.COMPLETE), (asking, Status.WAITING), (paused, Status.PAUSED)):
        assert instance.wait().status is status
        assert instance.status().interrupted is None
    assert _awaited(finished) == finished.output == {}
    with pytest.raises(InvalidStatusError, match="closed"):
        asking.wait(until="finished")


@pytest.mark.parametrize("run", [asks, sleeps_an_hour])
def test_an_instance_that_waited_still_waits_when_its_engine_has_closed(lab, run):  # S5, S54
    instance = lab.start(run)
    lab.idle()
    before = instance.status()
    lab.engine.close()
    assert instance.status().status is Status.WAITING
    assert instance.status().waiting_for == before.waiting_for
    assert instance.status().interrupted is None
    assert not instance.view().here


def test_an_instance_that_was_at_work_says_that_its_kernel_has_ended_when_its_engine_has_closed(lab):  # S5, S54
    gate = Gate()

    async def run(event, step):
        await step.do("s", gate)

    instance = lab.start(run)
    gate.reached()
    lab.engine.close(timeout=0.1)
    here = instance.status()
    assert (here.status, here.interrupted) == (Status.RUNNING, "its kernel has ended (a.ipynb)")
    there = revive(lab.entries(), lab).engine.get(instance.id)  # the farewell is left out there
    assert there.status().status is here.status
    gate.open()


def test_a_store_that_takes_nothing_more_ends_waits_too(lab):  # S54
    instance = lab.start(sleeps_an_hour)
    lab.idle()
    lab.engine.broke(StoreError("the disk is full"))
    for wait in WAITS.values():
        with pytest.raises(StoreError, match="the disk is full"):
            wait(instance)


def test_a_thread_that_has_the_identity_of_a_loop_that_ended_may_wait(lab):
    instance = lab.run(nothing)
    lab.engine.close()
    assert lab.engine.thread.ident == 0
    assert not lab.engine.thread.here
    assert instance.wait().status is Status.COMPLETE
