"""The workflows of the recorded histories. Their histories are kept: add classes, do not change these.

A body says that it runs by `act`, so a replay shows which bodies ran.
"""

import asyncio
import sys
import types
from dataclasses import make_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from nbflow import EventTimeoutError, InstanceFailedError, WorkflowEntrypoint

RAN: list[str] = []
BROKEN: set[str] = set()


class BrokenError(Exception):
    pass


def act(name, gives=None):
    """Do something to the world: noted, and failing where the world is broken."""
    RAN.append(name)
    if name in BROKEN:
        raise BrokenError(f"{name} is broken")
    return gives


async def for_ever(name):
    act(name)
    await asyncio.get_running_loop().create_future()


async def long_body():
    RAN.append("long")
    if "long" in BROKEN:
        await asyncio.get_running_loop().create_future()
    return 2


class Nap(WorkflowEntrypoint):
    async def run(self, event, step):
        before = await step.do("before", act, "before", event.payload.get("n"))
        await step.sleep("nap", event.payload.get("for", "1 day"))
        return [before, await step.do("after", act, "after", "woken")]


class Tick(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.sleep("wait a little", "30 minutes")
        return await step.do("tick", act, "tick", event.schedule["scheduled_time"])


class Chain(WorkflowEntrypoint):
    async def run(self, event, step):
        return [await step.do(name, act, name, name.upper(), retries=0) for name in ("first", "second", "third")]


class Trip(WorkflowEntrypoint):
    async def run(self, event, step):
        again = {"retries": {"limit": 1, "delay": "1 hour", "backoff": "constant"}}
        await step.do("flight", act, "flight", 1, rollback=lambda: act("undo flight"), rollback_config=again)
        await step.do("hotel", act, "hotel", 2, rollback=lambda: act("undo hotel"), rollback_config=again)
        await step.do("pay", act, "pay", retries=0)
        await step.wait_for_event("bon voyage", "back-home", timeout="300 days")
        return "home"


class Answers(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.sleep("before", "1 hour")
        first = await step.wait_for_event("answer", "answer", timeout="2 days", schema=int, prompt="How many?")
        try:
            await step.wait_for_event("late", "never", timeout="1 hour")
        except EventTimeoutError:
            late = "timed out"
        raced = asyncio.ensure_future(step.wait_for_event("raced", "raced"))
        limit = asyncio.ensure_future(step.sleep("limit", "1 hour"))
        await asyncio.wait({raced, limit}, return_when=asyncio.FIRST_COMPLETED)
        raced.cancel()
        last = await step.wait_for_event("last", "answer", timeout="300 days")
        return [first.payload, late, last.payload]


class Work(WorkflowEntrypoint):
    async def run(self, event, step):
        import numpy as np

        async def outer():
            return await step.do("inner", act, "inner", 1) + act("outer", 1)

        nested = await step.do("outer", outer)
        try:
            await step.do("doomed", act, "doomed", retries=0)
        except BrokenError as error:
            doomed = str(error)
        slow = asyncio.ensure_future(step.do("slow", for_ever, "slow"))
        fast = asyncio.ensure_future(step.do("fast", act, "fast", {"won": True}))
        await asyncio.wait({slow, fast}, return_when=asyncio.FIRST_COMPLETED)
        slow.cancel()
        array = await step.do("array", lambda: act("array", np.arange(6).reshape(2, 3)))
        typed = {"at": datetime(2026, 5, 1, tzinfo=UTC), "price": Decimal("9.90"), "tags": {"a"}, "pair": (1, b"\xff")}
        kept = await step.do("typed", act, "typed", typed)
        secret = await step.do("secret", act, "secret", "s3cret", sensitive="output")
        config = {"limit": 3, "delay": "1 hour", "backoff": "constant"}
        flaky = await step.do("flaky", act, "flaky", "at last", retries=config)
        return [nested, doomed, fast.result(), int(array.sum()), kept == typed, len(secret), flaky]


class CutOff(WorkflowEntrypoint):
    async def run(self, event, step):
        before = await step.do("before", act, "before", 1)
        return [before, await step.do("long", long_body)]


class Naps(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.sleep("short", "1 minute")
        naps = [asyncio.ensure_future(step.sleep("race", timedelta(hours=n))) for n in (1, 9)]
        await asyncio.wait(naps, return_when=asyncio.FIRST_COMPLETED)
        naps[1].cancel()
        await step.sleep_until("a moment", datetime(2026, 3, 1, tzinfo=UTC))
        return "rested"


class Child(WorkflowEntrypoint):
    async def run(self, event, step):
        if event.payload["wait"]:
            await step.wait_for_event("parents", "grown-up", timeout="300 days")
        return await step.do("grow", act, f"grow {event.payload['name']}", event.payload["name"].upper())


class Parent(WorkflowEntrypoint):
    async def run(self, event, step):
        good = await step.child("good", "Child", {"name": "good", "wait": False})
        try:
            await step.child("bad", "Child", {"wait": False})
        except InstanceFailedError as error:
            bad = "KeyError" in str(error)
        slow = asyncio.ensure_future(step.child("slow", "Child", {"name": "slow", "wait": True}))
        limit = asyncio.ensure_future(step.sleep("limit", "1 hour"))
        await asyncio.wait({slow, limit}, return_when=asyncio.FIRST_COMPLETED)
        slow.cancel()
        return [good, bad, await step.child("open", "Child", {"name": "open", "wait": True}, id="the-open-one")]


LIBRARY = "nbflow_recorded_library"


def provide_library():
    """Load the module whose class a recorded value needs (S17)."""
    module = types.ModuleType(LIBRARY)
    module.Doc = make_dataclass("Doc", ["title", "pages"], namespace={"__module__": LIBRARY})
    sys.modules[LIBRARY] = module


def take_library_away():
    sys.modules.pop(LIBRARY, None)


class Reader(WorkflowEntrypoint):
    async def run(self, event, step):
        doc = await step.do("load", lambda: act("load", sys.modules[LIBRARY].Doc("Durable", 12)))
        await step.wait_for_event("read it", "read", timeout="300 days")
        return f"{doc.title}, {doc.pages} pages"


async def press(grape):
    act(f"press {grape}")
    if f"{grape} hangs" in BROKEN:
        await asyncio.get_running_loop().create_future()
    return grape.upper()


class Harvest(WorkflowEntrypoint):
    """Its grapes one after another; those of the stream have keys, and what comes after the first `enough` is left."""

    async def run(self, event, step):
        grapes, enough = list(event.payload["grapes"]), event.payload.get("enough", 9)
        errors = event.payload.get("errors", False)
        retries = {"limit": 1, "delay": "1 hour"}
        pressed = await step.map("press", press, grapes, concurrency=1, retries=retries, return_exceptions=errors)
        bottles = []
        async for bottle in step.map("fill", press, grapes, key=lambda grape: grape[::-1], concurrency=2, rate="2/minute"):
            bottles.append(await step.do("cork", act, f"cork {bottle}", bottle))
            if len(bottles) == enough:
                break
        return [[str(one) for one in pressed], bottles]


FLOWS = (Nap, Tick, Chain, Trip, Answers, Work, CutOff, Naps, Child, Parent, Reader, Harvest)
