"""What steps cost on a store with files: one after another, many at once, many instances at once, in a file that is not empty."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

from nbflow import Engine, WorkflowEntrypoint

SEQUENTIAL = 100
GATHERED = 1_000
INSTANCES, STEPS = 100, 20


async def from_loop() -> int:
    return 1


def from_thread() -> int:
    return 1


class Sequential(WorkflowEntrypoint):
    """Gives the milliseconds of one step."""

    async def run(self, event, step):
        body = from_thread if event.payload["plain"] else from_loop
        await step.do("first", body)
        took = []
        for _ in range(SEQUENTIAL):
            started = perf_counter()
            await step.do("next", body)
            took.append(perf_counter() - started)
        return median(took) * 1000


class Gathered(WorkflowEntrypoint):
    """Gives the steps per second of one gather."""

    async def run(self, event, step):
        await step.do("first", from_loop)
        count = event.payload.get("count", GATHERED)
        started = perf_counter()
        await asyncio.gather(*(step.do("next", from_loop) for _ in range(count)))
        return count / (perf_counter() - started)


class Short(WorkflowEntrypoint):
    """Gives when it began and ended."""

    async def run(self, event, step):
        started = perf_counter()
        for _ in range(STEPS):
            await step.do("next", from_loop)
        return started, perf_counter()


class Steps:
    """The measures on one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sequential = engine.register(Sequential)
        self._gathered = engine.register(Gathered)
        self._short = engine.register(Short)

    def sequential_async(self) -> float:
        return self._run(self._sequential, {"plain": False})

    def sequential_plain(self) -> float:
        return self._run(self._sequential, {"plain": True})

    def gather(self) -> float:
        return self._run(self._gathered, {})

    def instances(self) -> float:
        """Steps a second from the first step of the first instance to the last of the last."""
        made = self._short.create_batch([{} for _ in range(INSTANCES)])
        made.wait(120, until="finished")
        times = made.outputs()
        return INSTANCES * STEPS / (max(ended for _, ended in times) - min(started for started, _ in times))

    def fill(self, entries: int) -> int:
        """Put at least that many entries into the history's file; how many there are then."""
        while (found := self._engine.sql("select count(*) from history").fetchall()[0][0]) < entries:
            self._run(self._gathered, {"count": 5_000})
        return found

    def _run(self, workflow, params) -> float:
        instance = workflow.create(params=params)
        instance.wait(300, until="finished")
        return instance.output


@contextmanager
def steps_in(folder: Path) -> Iterator[Steps]:
    folder.mkdir()
    with Engine(folder / "history.duckdb", notebook="bench.ipynb") as engine:
        yield Steps(engine)
