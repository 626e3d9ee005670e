"""What a step on an executor costs beside the bare executor: the same body, in the same run, in turns.

A step does two things, it runs a body over there and it makes the outcome durable. So it is held against both: the bare
executor's call, and the same step with its body here.
"""

import asyncio
import concurrent.futures
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import cloudpickle

import nbflow
from nbflow import Engine, WorkflowEntrypoint
from tests.bench.measure import Measured, in_turns, ratios

AT_ONCE = 64
FACTOR = 3
CALL = "__import__('pickle').loads(body)()"


def body() -> int:
    """As trivial as a body can be that reads a global."""
    return FACTOR


class OneByOne(WorkflowEntrypoint):
    async def run(self, event: Any, step: Any) -> None:
        count, on = event.payload
        for _ in range(count):
            await step.do("body", body, on=on)


class Gathered(WorkflowEntrypoint):
    async def run(self, event: Any, step: Any) -> None:
        count, on = event.payload
        limit = asyncio.Semaphore(AT_ONCE)

        async def one() -> None:
            async with limit:
                await step.do("body", body, on=on)

        await asyncio.gather(*(one() for _ in range(count)))


class Comparison:
    """An engine with one executor, and the bare executor beside it."""

    def __init__(self, folder: Path, count: int, bare: concurrent.futures.Executor, ours: Any) -> None:
        self.count, self._bare = count, bare
        folder.mkdir(parents=True)
        self._engine = Engine(folder / "history.duckdb", notebook="bench")
        self._engine.executors["there"] = ours
        self._one_by_one, self._gathered = self._engine.register(OneByOne), self._engine.register(Gathered)
        self._steps(self._gathered, "there", AT_ONCE)  # every worker is there and has loaded what it needs
        self._bare_gathered(AT_ONCE)

    def measures(self) -> dict[str, Callable[[], float]]:
        """Milliseconds for one body."""
        return {
            "bare": self._bare_one_by_one,
            "step": lambda: self._steps(self._one_by_one, "there", self.count),
            "here": lambda: self._steps(self._one_by_one, "local", self.count),
            "bare, 64 at once": lambda: self._bare_gathered(self.count),
            "step, 64 at once": lambda: self._steps(self._gathered, "there", self.count),
            "here, 64 at once": lambda: self._steps(self._gathered, "local", self.count),
        }

    def close(self) -> None:
        self._engine.close()

    def _steps(self, workflow: Any, on: str, count: int) -> float:
        instance = workflow.create(params=[count, on])
        started = perf_counter()
        instance.wait(300, until="finished")
        took = (perf_counter() - started) / count * 1000
        assert str(instance.status().status) == "complete"
        return took

    def _bare_one_by_one(self) -> float:
        started = perf_counter()
        for _ in range(self.count):
            self._bare.submit(eval, CALL, {"body": cloudpickle.dumps(body)}).result()
        return (perf_counter() - started) / self.count * 1000

    def _bare_gathered(self, count: int) -> float:
        async def main() -> None:
            loop, limit = asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE)

            async def one() -> None:
                async with limit:
                    await loop.run_in_executor(self._bare, eval, CALL, {"body": cloudpickle.dumps(body)})

            await asyncio.gather(*(one() for _ in range(count)))

        started = perf_counter()
        asyncio.run(main())
        return (perf_counter() - started) / count * 1000


def pools() -> Iterator[tuple[str, int, concurrent.futures.Executor, Any, Callable[[], None]]]:
    """Name, number of bodies, the bare executor, ours, how to end it."""
    spawned = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(2, mp_context=spawned)
    yield "processes", 1000, pool, nbflow.process_executor(2), pool.shutdown
    pool = concurrent.futures.ProcessPoolExecutor(2, mp_context=spawned)
    yield "ProcessPoolExecutor", 1000, pool, pool, pool.shutdown
    import loky

    reusable = loky.get_reusable_executor(2)
    yield "loky", 1000, reusable, reusable, reusable.shutdown
    from distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50)
    client = Client(cluster, set_as_default=False)

    def end() -> None:
        client.close()
        cluster.close()

    yield "Dask", 1000, client.get_executor(pure=False), nbflow.dask_executor(client), end


def executors(folder: Path, rounds: int) -> Iterator[Measured]:
    """Trivial bodies on each kind of executor, one after another and 64 at once."""
    for name, count, bare, ours, end in pools():
        comparison = Comparison(folder / name, count, bare, ours)
        found = in_turns(rounds, **comparison.measures())
        comparison.close()
        end()
        for how in ("", ", 64 at once"):
            alone, step, here = found[f"bare{how}"], found[f"step{how}"], found[f"here{how}"]
            yield Measured(f"{name}{how}: bare", alone, "ms")
            yield Measured(f"{name}{how}: step", step, "ms")
            yield Measured("  ÷ bare", ratios(step, alone), "×")
            both = [theirs + durable for theirs, durable in zip(alone, here, strict=True)]
            yield Measured("  ÷ (bare + the same step here)", ratios(step, both), "×", 1.2)
