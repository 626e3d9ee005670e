"""Losses that come again and again: nothing waits for ever, and only what is guilty fails (API.md §7)."""

import asyncio
import concurrent.futures
import multiprocessing
import os
import signal
import threading
import time
from functools import partial

import pytest

import nbflow
from tests.executors.conftest import PATIENCE, Bench, close_client, eventually, local_client


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """What is lost is tried again without a pause: nothing here needs time to come back."""
    monkeypatch.setattr("nbflow.engine.executors.attempt.DELAYS", (0.0, 0.1, 0.1))


# -- what executors do in their own time --------------------------------------------------------------------------------


def test_workers_of_loky_that_die_one_after_another_cost_attempts_only(tmp_path):  # API.md §7
    import loky

    bench = Bench("loky", loky.get_reusable_executor(2, kill_workers=True))

    def body(died, number):
        time.sleep(0.05)
        if number == 2 and not os.path.exists(died):
            open(died, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    async def run(event, step):
        return await step.map("items", partial(body, event.payload), range(5), on="x", retries=0)

    with bench.engine:
        for turn in range(5):
            instance = bench.wait(bench.start(run, str(tmp_path / f"died-{turn}")))
            assert instance.output == list(range(5))


class Slow(concurrent.futures.Executor):
    """Takes a body only when it is let, and ends a cancelled one likewise."""

    def __init__(self):
        self.asked, self.let = threading.Event(), threading.Event()
        self.futures = []

    def submit(self, fn, /, *args, **kwargs):
        self.asked.set()
        assert self.let.wait(PATIENCE)
        self.futures.append(concurrent.futures.Future())
        return self.futures[-1]


def test_an_executor_that_takes_its_turnholds_no_workflow():  # API.md §7
    slow = Slow()
    bench = Bench("pool", slow)
    with bench.engine:
        instance = bench.start(lambda event, step: step.do("it", os.getpid, on="x"))
        assert slow.asked.wait(PATIENCE)
        instance.pause()
        other = bench.start(lambda event, step: step.do("here", lambda: "done"))
        assert bench.wait(other).output == "done"
        instance.terminate()
        slow.let.set()
        eventually(lambda: slow.futures and slow.futures[0].cancelled(), "what nobody waits for is not begun")


def test_bodies_of_threads_that_are_shut_down_do_not_wait_for_ever():  # API.md §7
    executor = concurrent.futures.ThreadPoolExecutor(1)
    go = threading.Event()
    bench = Bench("threads", executor)

    async def run(event, step):
        first = step.do("first", lambda: go.wait(PATIENCE) or "late", on="x")
        return await asyncio.gather(first, step.do("it", os.getpid, on="x"), return_exceptions=True)

    with bench.engine:
        instance = bench.start(run)
        eventually(lambda: len(instance.steps) == 2, "the second is queued behind the first")
        executor.shutdown(wait=False, cancel_futures=True)
        eventually(lambda: str(instance.step("it").status) == "failed", "it is said that nothing is taken any more")
        assert "takes no more work" in instance.step("it").error.message
        go.set()
        bench.wait(instance)


# -- another executor under the name ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["processes", "pool", "threads"])
def test_what_has_not_begun_goes_to_the_executor_that_takes_the_name(kind, tmp_path):  # API.md §7
    spawned = multiprocessing.get_context("spawn")
    makers = {
        "processes": lambda: nbflow.process_executor(1),
        "pool": lambda: concurrent.futures.ProcessPoolExecutor(1, spawned),
        "threads": lambda: concurrent.futures.ThreadPoolExecutor(1),
    }
    old, new = makers[kind](), makers[kind]()
    bench = Bench(kind, old)
    go, begun = tmp_path / "go", tmp_path / "begun"

    def waits(go, begun):
        begun.touch()
        while not go.exists():
            time.sleep(0.01)

    async def run(event, step):
        await asyncio.gather(step.do("first", waits, go, begun, on="x"), *(step.do("it", os.getpid, on="x") for _ in range(5)))

    with bench.engine:
        instance = bench.start(run)
        eventually(begun.exists, "the first has begun")
        eventually(lambda: len(instance.steps) == 6, "the others are queued")
        bench.engine.executors["x"] = new
        # The pool has taken one or two beforehand, which nobody can take back.
        done = lambda: sum(str(step.status) == "finished" for step in instance.steps)  # noqa: E731
        eventually(lambda: done() >= (3 if kind == "pool" else 5), "they run on the new one")
        assert bench.attempts(instance, "first") == ["running"]
        go.touch()
        bench.wait(instance)
        assert all(len(step.attempts) == 1 for step in instance.steps)
    for executor in (old, new):
        if kind != "processes":
            executor.shutdown()


@pytest.mark.parametrize("how", ["closed", "without workers"])
def test_what_a_dead_cluster_had_goes_to_the_cluster_that_takes_its_name(how, shared, tmp_path):  # API.md §7
    old = local_client(2)
    bench = Bench("dask", nbflow.dask_executor(old))
    go = tmp_path / "go"

    def waits(folder, go, number):
        (folder / f"began-{number}").touch()
        while not go.exists():
            time.sleep(0.01)
        return number

    async def run(event, step):
        return await step.map("items", partial(waits, tmp_path, go), range(6), on="x", retries=0)

    try:
        with bench.engine:
            instance = bench.start(run)
            eventually(lambda: len(list(tmp_path.glob("began-*"))) >= 2, "bodies run")
            if how == "closed":
                old.cluster.close()
            else:
                old.cluster.scale(0)
                eventually(lambda: not old.nthreads(), "the workers go")
            go.touch()
            began = time.monotonic()
            bench.engine.executors["x"] = shared.executor("dask")
            bench.wait(instance)
            assert instance.output == list(range(6))
            assert time.monotonic() - began < 30
            assert all(len(item.attempts) <= 2 for item in instance.items("items")[1])
    finally:
        close_client(old)


# -- the guilty one -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["processes", "pool", "loky", "dask", "dask of two threads"])
def crowd(request):
    """An engine on an executor that runs two bodies at once."""
    kind, client = request.param, None
    if kind == "processes":
        executor = nbflow.process_executor(2)
    elif kind == "pool":
        executor = concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
    elif kind == "loky":
        import loky

        executor = loky.get_reusable_executor(2, kill_workers=True)
    else:
        client = local_client(2, threads=2 if "threads" in kind else 1)
        executor = nbflow.dask_executor(client)
    bench = Bench(kind, executor)
    with bench.engine:
        yield bench
    if client is not None:
        close_client(client)
    if kind == "pool":
        executor.shutdown(wait=False, cancel_futures=True)


def test_of_bodies_that_run_together_only_the_one_that_kills_its_worker_fails(crowd, tmp_path):  # API.md §7, as S27
    def item(folder, number):
        with open(folder / f"ran-{number}", "a") as file:
            file.write("x")
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.2)
        return number

    async def run(event, step):
        found = await step.map("items", partial(item, tmp_path), range(6), on="x", retries=0, return_exceptions=True)
        return [one if isinstance(one, int) else type(one).__name__ for one in found]

    instance = crowd.wait(crowd.start(run))
    assert instance.output == [0, 1, "StepInterruptedError", 3, 4, 5]
    (guilty,) = instance.items("items", state="failed")[1]
    assert len(guilty.attempts) == 4
    assert (tmp_path / "ran-2").read_text() == "xxxx"  # begun three times more, and by nobody else
    assert "lost what it ran on 4 times" in guilty.error.message


def test_a_body_that_is_queued_behind_one_that_timed_out_on_its_worker_does_not_time_out(tmp_path):  # API.md §7
    client = local_client(1)
    go = tmp_path / "go"

    def stuck(begun, go):
        begun.touch()
        while not go.exists():
            time.sleep(0.01)

    async def run(event, step):
        first = step.do("stuck", stuck, tmp_path / "begun", go, on="x", retries=0, timeout=2)
        second = step.do("it", os.getpid, on="x", retries=0, timeout=2)
        return (await asyncio.gather(first, second, return_exceptions=True))[1]

    bench = Bench("dask", nbflow.dask_executor(client))
    try:
        with bench.engine:
            instance = bench.start(run)
            eventually(lambda: len(instance.steps) == 2 and str(instance.step("stuck").status) == "failed", "it times out")
            looked = time.monotonic() + 3
            eventually(lambda: time.monotonic() > looked or str(instance.step("it").status) != "running", "its timeout is over")
            assert str(instance.step("it").status) == "running"
            go.touch()
            assert bench.wait(instance).output > 0
            assert bench.attempts(instance) == ["finished"]
    finally:
        close_client(client)
