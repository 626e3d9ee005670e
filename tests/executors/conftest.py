"""Executors of every kind, made once for all tests that are kind to them, and engines that use them."""

import concurrent.futures
import multiprocessing
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import nbflow
from nbflow import Engine, WorkflowEntrypoint, WorkflowInstance
from nbflow.core.model import Status

PATIENCE = 60.0  # real seconds before a test gives up: other processes may have the machine

HERE = ("loop", "thread")
ELSEWHERE = ("processes", "pool", "loky", "dask")
KINDS = (*HERE, "threads", *ELSEWHERE)


def eventually(what: Callable[[], Any], says: str = "", patience: float = PATIENCE) -> Any:
    """Give what *what* gives as soon as that is true."""
    end = time.monotonic() + patience
    while not (found := what()):
        assert time.monotonic() < end, f"did not happen: {says or what}"
        time.sleep(0.01)
    return found


class Shared:
    """Executors that live as long as the tests, each made when it is first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._client: Any = None

    def executor(self, kind: str) -> Any:
        if kind not in self._made:
            self._made[kind] = getattr(self, f"_{kind}")()
        return self._made[kind]

    @property
    def client(self) -> Any:
        self.executor("dask")
        return self._client

    def _threads(self) -> Any:
        return concurrent.futures.ThreadPoolExecutor(2)

    def _processes(self) -> Any:
        return nbflow.process_executor(2)

    def _pool(self) -> Any:
        return concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))

    def _loky(self) -> Any:
        import loky

        return loky.get_reusable_executor(2)

    def _dask(self) -> Any:
        self._client = local_client()
        return nbflow.dask_executor(self._client)

    def close(self) -> None:
        for kind in ("threads", "pool", "loky"):
            if kind in self._made:
                self._made[kind].shutdown(wait=True)
        if self._client is not None:
            close_client(self._client)


def local_client(workers: int = 2, threads: int = 1) -> Any:
    """A client of a small cluster of processes."""
    import dask
    from distributed import Client, LocalCluster

    # It gives up a worker that is away 15 seconds after it was lost, even where it was lost again just then.
    dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"})
    of = {"n_workers": workers, "threads_per_worker": threads, "processes": True}
    cluster = LocalCluster(**of, dashboard_address=":0", silence_logs=50)
    return Client(cluster, set_as_default=False)


def close_client(client: Any) -> None:
    client.close()
    client.cluster.close()


@pytest.fixture(scope="session")
def shared() -> Iterator[Shared]:
    made = Shared()
    yield made
    made.close()


class Bench:
    """An engine of real time on a store in memory, and where its bodies run."""

    def __init__(self, kind: str, executor: Any, **settings: Any) -> None:
        self.kind = kind
        self.engine = Engine(":memory:", **settings)
        self.on = None if kind in HERE else "x"
        if self.on is not None:
            self.engine.executors["x"] = executor

    @property
    def elsewhere(self) -> bool:
        """Whether bodies are pickled."""
        return self.kind in ELSEWHERE

    def start(self, run: Callable[..., Any], params: Any = None) -> WorkflowInstance:
        class Flow(WorkflowEntrypoint):
            async def run(self, event: Any, step: Any) -> Any:
                return await run(event, step)

        return self.engine.register(Flow, "Flow", source="").create(params=params)

    def wait(self, instance: WorkflowInstance) -> WorkflowInstance:
        status = instance.wait(PATIENCE, until="finished")
        assert status.status in (Status.COMPLETE, Status.ERRORED), status
        return instance

    def do(self, fn: Callable[..., Any], *args: Any, **options: Any) -> WorkflowInstance:
        """An instance of one step, finished."""
        options.setdefault("on", self.on)
        options.setdefault("retries", 0)

        async def run(event: Any, step: Any) -> Any:
            return await step.do("it", fn, *args, **options)

        return self.wait(self.start(run))

    def output(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return self.do(fn, *args, **options).output

    def failure(self, fn: Callable[..., Any], *args: Any, **options: Any) -> BaseException:
        instance = self.do(fn, *args, **options)
        with pytest.raises(Exception) as caught:
            _ = instance.output
        assert caught.value.__cause__ is not None
        return caught.value.__cause__

    def attempts(self, instance: WorkflowInstance, name: str = "it") -> list[str]:
        """How each attempt of a step ended."""
        return [str(attempt.status) for attempt in instance.step(name).attempts]


def bench_of(kind: str, shared: Shared, **settings: Any) -> Bench:
    return Bench(kind, None if kind in HERE else shared.executor(kind), **settings)


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, shared: Shared) -> Iterator[Bench]:
    """Everywhere that a body can run."""
    made = bench_of(request.param, shared)
    with made.engine:
        yield made


@pytest.fixture(params=ELSEWHERE)
def away(request: pytest.FixtureRequest, shared: Shared) -> Iterator[Bench]:
    """Every kind of executor that bodies travel to."""
    made = bench_of(request.param, shared)
    with made.engine:
        yield made
