"""How long an instance with 1,000 finished steps takes up to its first new body, in an engine that is open already."""

import threading
from pathlib import Path
from time import perf_counter

from nbflow import Engine, WorkflowEntrypoint

FINISHED = 1_000
new_body = threading.Event()
began = 0.0
passes = 0


async def finished() -> int:
    return 1


async def new() -> None:
    global began
    began = perf_counter()
    new_body.set()


class Resumed(WorkflowEntrypoint):
    """1,000 steps, then one more each time it is resumed."""

    async def run(self, event, step):
        for _ in range(FINISHED):
            await step.do("finished", finished)
        for number in range(passes):
            await step.do(f"new {number}", new)
        await step.wait_for_event("stay", "never")


class Resume:
    """One unfinished instance in a store; each measure opens the store, resumes and closes it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._path = folder / "history.duckdb"
        with self._engine() as engine:
            engine.register(Resumed).create(id="resumed").wait(120)

    def _engine(self) -> Engine:
        return Engine(self._path, notebook="bench.ipynb")

    def up_to_new_body(self) -> float:
        """Milliseconds from registering the class, which resumes, to the first new body."""
        global passes
        passes += 1
        new_body.clear()
        with self._engine() as engine:
            started = perf_counter()
            engine.register(Resumed)
            assert new_body.wait(60), engine.get("resumed").status()
            engine.get("resumed").wait(60)
        return (began - started) * 1000
