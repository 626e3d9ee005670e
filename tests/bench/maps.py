"""What `step.map` costs per item, and how much memory it takes while its values stream by."""

from pathlib import Path
from time import perf_counter

from nbflow import Engine, WorkflowEntrypoint

ITEMS = 100_000
FEW = 10_000


async def trivial(x):
    return x


def resident() -> float:
    """Megabytes that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


class Mapped(WorkflowEntrypoint):
    """Gives the items per second of one map at concurrency 4."""

    async def run(self, event, step):
        items = range(event.payload["items"])
        started = perf_counter()
        await step.map("trivial", trivial, items, concurrency=4, discard_results=True)
        return len(items) / (perf_counter() - started)


class Streamed(WorkflowEntrypoint):
    """Gives the megabytes that the last nine tenths of a stream add to what the first took."""

    async def run(self, event, step):
        total, count, early = event.payload["items"], 0, 0.0
        async for _ in step.map("trivial", trivial, range(total), concurrency=4):
            count += 1
            if count == total // 10:
                early = resident()
        return resident() - early


class Maps:
    """The measures on one engine."""

    def __init__(self, engine: Engine) -> None:
        self._mapped, self._streamed = engine.register(Mapped), engine.register(Streamed)

    def items(self, count: int = FEW) -> float:
        """Items per second."""
        return self._run(self._mapped, count)

    def growth(self, count: int = ITEMS) -> float:
        """Megabytes."""
        return self._run(self._streamed, count)

    def _run(self, workflow, count: int) -> float:
        instance = workflow.create(params={"items": count})
        instance.wait(600, until="finished")
        return instance.output
