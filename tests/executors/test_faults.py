"""What real processes do to bodies: each fault ends promptly, with a record that says what happened (API.md §7)."""

import asyncio
import concurrent.futures
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import nbflow
from nbflow import UsageError
from nbflow.engine.executors import remote
from tests.executors.conftest import PATIENCE, Bench, close_client, eventually, local_client

KILLABLE = ("processes", "pool", "loky", "dask")


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """What is lost is tried again without a pause: nothing here needs time to come back."""
    monkeypatch.setattr("nbflow.engine.executors.attempt.DELAYS", (0.0, 0.1, 0.1))


@pytest.fixture(params=KILLABLE)
def mortal(request, shared):
    """An engine on an executor whose workers may be killed."""
    kind = request.param
    if kind == "processes":
        executor = nbflow.process_executor(2)
    elif kind == "pool":
        executor = concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))
    elif kind == "loky":
        import loky

        executor = loky.get_reusable_executor(2, kill_workers=True)
    else:
        executor = shared.executor("dask")
    bench = Bench(kind, executor)
    with bench.engine:
        yield bench
    if kind == "pool":
        executor.shutdown(wait=False, cancel_futures=True)


def dies_once(path):
    """Kill the own process the first time, after as long as it takes to be noticed as running."""
    if not os.path.exists(path):
        open(path, "w").close()
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


# -- workers ------------------------------------------------------------------------------------------------------------


def test_a_worker_killed_in_mid_step_costs_an_attempt_and_no_retry(mortal, tmp_path):
    instance = mortal.do(dies_once, str(tmp_path / "died"), retries=0)
    assert instance.output == "alive"
    assert mortal.attempts(instance) == ["interrupted", "finished"]
    lost = instance.step("it").attempts[0].error
    assert lost.type == "StepInterruptedError"
    assert "attempt 1 was lost with" in lost.message


def test_a_body_that_always_kills_its_worker_fails_after_four(mortal):
    began = time.monotonic()

    def dies():
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)

    instance = mortal.do(dies, retries=5)
    error = instance.status().error
    assert error.type == "StepInterruptedError"
    assert "lost what it ran on" in error.message
    assert "is not tried again" in error.message
    assert set(mortal.attempts(instance)) == {"interrupted", "failed"}
    assert 1 <= len(instance.step("it").attempts) <= 4
    assert time.monotonic() - began < PATIENCE


def test_a_pool_that_breaks_counts_only_what_had_begun_there():
    spawned = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawned) as pool:
        bench = Bench("pool", pool)

        def dies():
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)

        async def run(event, step):
            await asyncio.gather(*(step.do("s", dies, on=bench.on, retries=0) for _ in range(4)), return_exceptions=True)

        with bench.engine:
            instance = bench.wait(bench.start(run))
            assert [str(step.status) for step in instance.steps] == ["failed"] * 4
            # Each has four tries of its own: what its neighbours cost it while it was queued is not counted.
            assert max(len(step.attempts) for step in instance.steps) > 4


def test_a_worker_that_ends_itself_is_a_loss_with_its_exit_code(shared):
    bench = Bench("processes", nbflow.process_executor(1))
    with bench.engine:
        instance = bench.do(lambda: os._exit(3), retries=0)
    assert "ended with exit code 3" in instance.status().error.message
    assert bench.attempts(instance) == ["interrupted"] * 3 + ["failed"]


def test_neighbours_of_a_killed_process_notice_nothing(tmp_path):
    bench = Bench("processes", nbflow.process_executor(2))

    async def run(event, step):
        return await asyncio.gather(
            step.do("dies", dies_once, str(tmp_path / "died"), on="x"),
            step.do("lives", lambda: time.sleep(1.5) or "lives", on="x"),
        )

    with bench.engine:
        instance = bench.wait(bench.start(run))
        assert instance.output == ["alive", "lives"]
        assert bench.attempts(instance, "lives") == ["finished"]


@pytest.mark.parametrize("kind", ["processes", "dask"])
def test_a_frozen_worker_is_left_when_the_step_times_out(kind, shared):
    client = None
    if kind == "dask":
        client = local_client(2)
    bench = Bench(kind, nbflow.process_executor(2) if client is None else nbflow.dask_executor(client))

    def freezes_once(ctx):
        if ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return os.getpid()

    try:
        with bench.engine:
            bench.output(os.getpid)
            instance = bench.do(freezes_once, timeout=3, retries={"limit": 2, "delay": 0})
            assert instance.output > 0
            assert instance.step("it").attempts[0].error.type == "StepTimeoutError"
    finally:
        for process in psutil.Process().children(recursive=True):
            if process.status() == psutil.STATUS_STOPPED:
                process.kill()
        if client is not None:
            close_client(client)


def test_items_of_a_map_go_on_when_a_worker_is_killed(mortal, tmp_path):
    died = str(tmp_path / "died")

    def item(number, ctx):
        if number == 3:
            dies_once(died)
        return number * 2, ctx.key, ctx.index

    async def run(event, step):
        return await step.map("items", item, range(8), on="x", concurrency=2, retries=2)

    instance = mortal.wait(mortal.start(run))
    assert instance.output == [(number * 2, str(number), number) for number in range(8)]


# -- what a worker has --------------------------------------------------------------------------------------------------


def test_a_worker_with_other_versions_is_named_and_nothing_is_retried(monkeypatch):
    monkeypatch.setattr(remote, "versions", lambda: {"Python": "3.9", "nbflow": "0.0.1", "cloudpickle": "3.1"})
    monkeypatch.setattr("nbflow.engine.executors.attempt.versions", remote.versions)
    bench = Bench("processes", nbflow.process_executor(1))
    with bench.engine:
        error = bench.failure(os.getpid, retries=5)
    assert isinstance(error, UsageError)
    assert "where this kernel has 3.9" in str(error)
    assert "where this kernel has 0.0.1" in str(error)


WITHOUT_NBFLOW = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "nbflow"]:
    del sys.modules[name]
sys.modules["nbflow"] = None
"""
WITH_IT_AGAIN = "import sys; del sys.modules['nbflow']"


def test_a_dask_worker_without_nbflow_is_an_error_and_no_wait():
    client = local_client(1)
    try:
        client.run(exec, WITHOUT_NBFLOW)
        bench = Bench("dask", nbflow.dask_executor(client))
        with bench.engine:
            error = bench.failure(os.getpid, retries=5)
        assert isinstance(error, UsageError)
        assert "cannot import nbflow" in str(error)
        client.run(exec, WITH_IT_AGAIN)
        bench = Bench("dask", nbflow.dask_executor(client))
        with bench.engine:
            bench.output(os.getpid)
            client.run(exec, WITHOUT_NBFLOW)  # one that joined later, say: found by the body itself
            error = bench.failure(os.getpid, retries=5)
        assert isinstance(error, UsageError)
        assert "cannot import nbflow" in str(error)
    finally:
        close_client(client)


def test_a_cluster_without_workers_is_said_and_the_time_in_its_queue_does_not_count(caplog):
    client = local_client(1)
    try:
        bench = Bench("dask", nbflow.dask_executor(client))
        with bench.engine:
            bench.output(os.getpid)
            client.cluster.scale(0)
            eventually(lambda: not client.nthreads(), "the workers go")

            async def run(event, step):
                return await step.do("it", os.getpid, on="x", timeout=2, retries=0)

            instance = bench.start(run)
            eventually(lambda: "wait for workers" in caplog.text, "it is said that there are none")
            eventually(lambda: "wait for workers" in instance.step("it").logs, "its log says so too")
            time.sleep(2.5)
            assert not instance.is_finished()
            client.cluster.scale(1)
            bench.wait(instance)
            assert instance.output > 0
            assert bench.attempts(instance) == ["finished"]
    finally:
        close_client(client)


# -- the scheduler ------------------------------------------------------------------------------------------------------


class Cluster:
    """A scheduler and a worker in processes of their own, as on a real cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.processes: list[subprocess.Popen] = []

    def start(self) -> None:
        python, log = sys.executable, open(self.folder / "cluster.log", "ab")  # noqa: SIM115 - the processes' own
        scheduler = [python, "-m", "distributed.cli.dask_scheduler", "--port", str(self.port), "--no-dashboard"]
        worker = [python, "-m", "distributed.cli.dask_worker", self.address, "--nthreads", "1", "--no-dashboard", "--no-nanny"]
        for argv in (scheduler, worker):
            argv[1:3] = ["-c", f"import sys; sys.argv[0] = 'dask'; from {argv[2]} import main; main()"]
            self.processes.append(subprocess.Popen(argv, cwd=self.folder, stdout=log, stderr=log))
        log.close()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes.clear()


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    made.start()
    yield made
    made.kill()


def test_a_scheduler_that_is_killed_and_replaced_costs_attempts_only(cluster, tmp_path):
    bench = Bench("dask", nbflow.dask_executor(cluster.address))

    def slow(path):
        with open(path, "a") as file:
            file.write("x")
        time.sleep(1.5)
        return "done"

    runs = tmp_path / "runs"

    async def run(event, step):
        return await step.do("it", slow, str(runs), on="x", retries=0)

    with bench.engine:
        instance = bench.start(run)
        eventually(lambda: runs.exists() and runs.read_text(), "the body runs")
        cluster.kill()
        cluster.start()
        bench.wait(instance)
        assert instance.output == "done"
        found = bench.attempts(instance)
        assert found[-1] == "finished"
        assert set(found[:-1]) == {"interrupted"}


def test_a_scheduler_that_was_replaced_while_nothing_ran_tells_what_begins(cluster):
    bench = Bench("dask", nbflow.dask_executor(cluster.address))
    with bench.engine:
        bench.output(os.getpid)
        client = bench.engine.executors.place("x")._client
        cluster.kill()
        cluster.start()
        eventually(lambda: client.status == "closed" or client.nthreads(), "the client has found it, or given up")
        instance = bench.do(time.sleep, 30, timeout=2, retries=0)
        assert instance.step("it").attempts[0].error.type == "StepTimeoutError"


def test_a_scheduler_that_never_comes_back_ends_the_step_with_advice(cluster, monkeypatch):
    monkeypatch.setattr("nbflow.engine.executors.dask.LIMIT", 1.0)
    monkeypatch.setattr("nbflow.engine.executors.dask.RETURN", 20.0)
    bench = Bench("dask", nbflow.dask_executor(cluster.address))
    with bench.engine:
        eventually(lambda: bench.do(os.getpid).status().status == "complete", "the cluster is there")

        async def run(event, step):
            return await step.do("it", time.sleep, 30, on="x", retries=5)

        monkeypatch.setattr("nbflow.engine.executors.dask.RETURN", 2.0)
        instance = bench.start(run)
        time.sleep(1)
        cluster.kill()
        bench.wait(instance)
        error = instance.status().error
        assert error.type == "StepInterruptedError"
        assert "does not answer" in error.message
        assert "nbflow.dask_executor(client)" in error.message


# -- the kernel ---------------------------------------------------------------------------------------------------------

EIGHT = """
import asyncio, os, sys, time
import nbflow
from nbflow import Engine, WorkflowEntrypoint

folder = sys.argv[1]

def work(number, folder):
    with open(os.path.join(folder, f"ran-{number}"), "a") as file:
        file.write("x")
    if number >= 4:
        while not os.path.exists(os.path.join(folder, "go")):
            time.sleep(0.05)
    return number

class Eight(WorkflowEntrypoint):
    async def run(self, event, step):
        return await asyncio.gather(*(step.do(f"s{n}", work, n, folder, on="processes") for n in range(8)))

engine = Engine(os.path.join(folder, "history.duckdb"), notebook="n")
engine.executors["processes"] = nbflow.process_executor(4)
workflow = engine.register(Eight, source="eight")
instance = workflow.list()[0] if workflow.list() else workflow.create("one")
print("started", flush=True)
print(instance.wait(60, until="finished").status, instance.output, flush=True)
engine.close()
"""


def test_a_kernel_killed_while_bodies_run_leaves_no_process_and_repeats_no_finished_step(tmp_path):
    def kernel():
        return subprocess.Popen([sys.executable, "-c", EIGHT, str(tmp_path)], stdout=subprocess.PIPE, text=True)

    def runs(number):
        path = tmp_path / f"ran-{number}"
        return len(path.read_text()) if path.exists() else 0

    first = kernel()
    assert first.stdout.readline() == "started\n"
    eventually(lambda: all(runs(number) for number in range(8)), "all bodies have begun")
    time.sleep(0.3)
    children = psutil.Process(first.pid).children(recursive=True)
    assert len(children) == 4
    first.kill()
    first.communicate()
    eventually(lambda: not any(child.is_running() and child.status() != "zombie" for child in children), "they end with it")
    (tmp_path / "go").touch()
    second = kernel()
    out, _ = second.communicate(timeout=PATIENCE)
    assert out.endswith("complete [0, 1, 2, 3, 4, 5, 6, 7]\n")
    assert [runs(number) for number in range(8)] == [1, 1, 1, 1, 2, 2, 2, 2]


LEAVES = """
import os, sys, time
import nbflow
from nbflow import Engine, WorkflowEntrypoint

class W(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("endless", endless, on="processes")

def endless():
    open(sys.argv[1] if len(sys.argv) > 1 else os.environ["BEGUN"], "w").close()
    while True:
        time.sleep(0.1)

engine = nbflow.current_engine()
engine.register(W, source="w").create("one")
while not os.path.exists(os.environ["BEGUN"]):
    time.sleep(0.05)
print("leaving", flush=True)
"""


def test_an_interpreter_that_ends_while_bodies_run_ends_within_seconds_and_leaves_nothing(tmp_path):
    env = {**os.environ, "BEGUN": str(tmp_path / "begun"), "NBFLOW_STORE": str(tmp_path / "h.duckdb")}
    kernel = subprocess.Popen([sys.executable, "-c", LEAVES], stdout=subprocess.PIPE, text=True, env=env)
    assert kernel.stdout.readline() == "leaving\n"
    children = psutil.Process(kernel.pid).children(recursive=True)
    left = time.monotonic()
    kernel.communicate(timeout=PATIENCE)
    assert time.monotonic() - left < 5
    eventually(lambda: not any(child.is_running() and child.status() != "zombie" for child in children), "no process stays")


def test_closing_an_engine_ends_its_processes():
    bench = Bench("processes", nbflow.process_executor(2))
    pid = bench.output(os.getpid)
    assert psutil.pid_exists(pid)
    bench.engine.close()
    eventually(lambda: not psutil.pid_exists(pid), "the process ends", patience=5)


def test_terminating_an_instance_kills_the_process_of_its_body(tmp_path):
    bench = Bench("processes", nbflow.process_executor(1))
    path = tmp_path / "pid"

    def endless(path):
        Path(path).write_text(str(os.getpid()))
        while True:
            time.sleep(0.1)

    async def run(event, step):
        await step.do("it", endless, str(path), on="x")

    with bench.engine:
        instance = bench.start(run)
        pid = int(eventually(lambda: path.exists() and path.read_text()))
        instance.terminate()
        eventually(lambda: not psutil.pid_exists(pid), "the process is killed", patience=5)
        assert bench.output(os.getpid) != pid


# -- sizes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["processes", "dask"])
def test_a_result_of_200_mb_is_written_over_there_and_only_referred_to_here(kind, shared):
    away = Bench(kind, shared.executor(kind))

    def large():
        import numpy as np

        return np.zeros(25_000_000)

    async def run(event, step):
        reference = await step.do("it", large, on=away.on, lazy=True)
        return reference.type, await step.do("size", lambda array: array.nbytes, reference, on=away.on)

    began = time.monotonic()
    with away.engine:
        instance = away.wait(away.start(run))
    assert instance.output == ("numpy.ndarray", 200_000_000)
    assert time.monotonic() - began < PATIENCE


def test_results_take_the_way_of_the_users_url_where_workers_do_not_see_the_store(shared, tmp_path):
    client = shared.client
    bench = Bench("dask", nbflow.dask_executor(client, results=f"file://{tmp_path}/results"))
    (tmp_path / "results").mkdir()

    def large():
        return ["x"] * 500_000

    with bench.engine:
        assert len(bench.output(large)) == 500_000
        assert list((tmp_path / "results").iterdir()) == []  # fetched and removed


@pytest.mark.parametrize("kind", ["processes", "dask"])
def test_workers_that_do_not_see_the_store_get_values_and_send_theirs(kind, shared, monkeypatch):
    bench = Bench(kind, shared.executor(kind))
    monkeypatch.setattr(bench.engine.executors, "root", lambda: ("/nowhere", "another place"))

    async def run(event, step):
        reference = await step.do("make", lambda: ["x"] * 500_000, on="x", lazy=True)
        return await step.do("count", len, reference, on="x"), await step.do("again", len, reference, on="x")

    with bench.engine:
        instance = bench.wait(bench.start(run))
        assert instance.output == [500_000, 500_000] or instance.output == (500_000, 500_000)
        assert bench.engine.executors.place("x").blind
        folder = bench.engine.store.artifacts / "Flow" / instance.id
        assert [path.suffix for path in folder.iterdir()] == [".json"]


def test_executors_are_checked_when_they_are_given():
    with nbflow.Engine(":memory:") as engine:
        assert list(engine.executors) == ["processes"]
        for name, value, says in [
            ("gpu", print, "is no executor"),
            ("gpu", concurrent.futures.ThreadPoolExecutor, "make one of it"),
            ("main", nbflow.process_executor(1), "cannot name an executor"),
        ]:
            with pytest.raises(UsageError, match=says):
                engine.executors[name] = value
        with pytest.raises(UsageError, match="give the number of processes"):
            nbflow.process_executor(0)
        with pytest.raises(UsageError, match=r"give a distributed\.Client"):
            nbflow.dask_executor(print)


def test_an_unknown_executor_is_refused_at_the_call_and_the_default_one_is_used(shared):
    bench = Bench("threads", shared.executor("threads"), default_executor="x")

    async def run(event, step):
        with pytest.raises(UsageError, match="on='nowhere' names no executor"):
            step.do("a", os.getpid, on="nowhere")
        import threading

        return [
            await step.do("there", lambda: threading.current_thread().name),
            await step.do("here", lambda: threading.current_thread().name, on="local"),
        ]

    with bench.engine:
        there, here = bench.wait(bench.start(run)).output
        assert there.startswith("ThreadPoolExecutor")
        assert here.startswith("nbflow-body")


class NoFutures(concurrent.futures.Executor):
    """Calls and gives what came of it, or raises."""

    def submit(self, fn, /, *args, **kwargs):
        if "raise" in vars(self):
            msg = "no licence"
            raise LookupError(msg)
        return 7


def test_an_executor_that_does_not_do_as_executors_do_is_named_and_goes_on():
    odd = NoFutures()
    bench = Bench("pool", odd)
    with bench.engine:
        error = bench.failure(os.getpid, retries=2)
        assert isinstance(error, UsageError)
        assert "executor 'x': its submit() gave an int, not a Future" in str(error)
        vars(odd)["raise"] = True
        assert "executor 'x' did not take the body: LookupError: no licence" in str(bench.failure(os.getpid))


@pytest.mark.parametrize("kind", ["processes", "pool"])
def test_bodies_that_are_queued_on_an_executor_do_not_begin_after_a_pause(kind, tmp_path):  # S40
    spawned = multiprocessing.get_context("spawn")
    executor = nbflow.process_executor(1) if kind == "processes" else concurrent.futures.ProcessPoolExecutor(1, spawned)
    bench = Bench(kind, executor)
    free = tmp_path / "free"

    def body(number):
        (tmp_path / f"{number}-{os.getpid()}-{time.monotonic_ns()}").touch()
        while not free.exists():
            time.sleep(0.01)
        return number

    def begun():
        return len(list(tmp_path.glob("*-*")))

    async def run(event, step):
        return await asyncio.gather(*(step.do("s", body, n, on=bench.on) for n in range(8)))

    with bench.engine:
        instance = bench.start(run)
        eventually(lambda: begun() == 1, "a body begins")
        time.sleep(0.2)  # the pool takes one or two more beforehand, which nobody can take back
        instance.pause()
        free.touch()
        eventually(lambda: str(instance.status().status) == "paused", "the instance is paused")
        assert 1 <= begun() <= (1 if kind == "processes" else 3)
        instance.resume()
        assert bench.wait(instance).output == list(range(8))
        assert begun() == 8
    if kind == "pool":
        executor.shutdown()


def test_an_executor_that_was_shut_down_is_named():
    executor = concurrent.futures.ThreadPoolExecutor(1)
    executor.shutdown()
    bench = Bench("threads", executor)
    with bench.engine:
        assert "takes no more work" in str(bench.failure(os.getpid, retries=5))
