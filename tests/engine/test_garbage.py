"""What a step leaves in memory: its record. Whatever else it took goes at once, without the garbage collector."""

import asyncio
import gc
import weakref
from collections import Counter

import pytest

COUNT = 60


class Bulky:
    """Stands for a gigabyte that a body was given."""


async def given(bulky):
    return 1


def given_in_thread(bulky):
    return 1


async def sequential(step, args):
    for arg in args:
        await step.do("one", given, arg)


async def in_threads(step, args):
    for arg in args:
        await step.do("one", given_in_thread, arg)


async def gathered(step, args):
    await asyncio.gather(*(step.do("one", given, arg) for arg in args))


async def mapped(step, args):
    await step.map("all", given, args, discard_results=True)


async def retried(step, args):
    async def at_second(bulky, ctx):
        if ctx.attempt == 1:
            raise ValueError
        return 1

    for arg in args:
        await step.do("one", at_second, arg, retries={"limit": 1, "delay": 0})


@pytest.mark.parametrize("ways", [sequential, in_threads, gathered, mapped])
def test_a_step_leaves_no_garbage_in_circles(lab, ways):
    circles: Counter[str] = Counter()

    async def run(event, step):
        args = [Bulky() for _ in range(COUNT)]
        await ways(step, args[:3])  # what is made once is there
        gc.collect()
        gc.disable()
        try:
            await ways(step, args)
            await asyncio.sleep(0)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            circles.update(type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("nbflow."))
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        return "done"

    assert lab.run(run).output == "done"
    assert {kind: count for kind, count in circles.items() if count >= COUNT / 2} == {}  # other threads have garbage, too


@pytest.mark.parametrize("ways", [sequential, in_threads, gathered, mapped, retried])
def test_what_a_body_was_given_goes_when_run_lets_go_of_it(lab, ways):
    left: list[int] = []

    async def run(event, step):
        args = [Bulky() for _ in range(5)]
        alive = weakref.WeakSet(args)
        gc.disable()
        try:
            await ways(step, args)
            await asyncio.sleep(0)
            del args
            for _ in range(500):  # a thread that drew items lets go of them when it has heard that the map is over
                if not alive:
                    break
                await asyncio.sleep(0.01)
            left.append(len(alive))
        finally:
            gc.enable()
        return "done"

    assert lab.run(run).output == "done"
    assert left == [0]
