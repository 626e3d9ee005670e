"""Steps that change the process under the engine: fork, close descriptors, go elsewhere, end it. Nothing hangs or is lost."""

import asyncio
import multiprocessing
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from nbflow import Engine

ROOT = Path(__file__).parents[2]


def ends_as(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# -- forks


@pytest.mark.parametrize(("ends", "code"), [(lambda: None, 0), (lambda: sys.exit(7), 7), (lambda: 1 / 0, 1)])
def test_a_child_that_an_async_body_forks_ends_as_the_body_and_runs_nothing_else(lab, tmp_path, ends, code):  # S54
    async def run(event, step):
        async def forks():
            child = os.fork()
            if child == 0:
                return ends()
            return ends_as(child)

        said = await step.do("fork", forks)
        with (tmp_path / "after").open("a") as file:
            file.write(f"{os.getpid()}\n")
        return said

    assert lab.finish(lab.start(run)).output == code
    assert (tmp_path / "after").read_text().split() == [str(os.getpid())]


def test_a_child_that_run_forks_ends_at_its_next_step(lab, tmp_path):  # S54
    async def run(event, step):
        child = os.fork()

        def says():
            (tmp_path / str(os.getpid())).touch()

        await step.do("says", says)
        return ends_as(child)

    assert lab.finish(lab.start(run)).output == 0
    assert [path.name for path in tmp_path.iterdir()] == [str(os.getpid())]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_pool_of_forked_processes_works_in_a_body(lab):
    async def run(event, step):
        def pools():
            with multiprocessing.get_context("fork").Pool(2) as pool:
                return pool.map(abs, [-1, -2, 3])

        return await step.do("pool", pools)

    assert lab.finish(lab.start(run)).output == [1, 2, 3]


def script(tmp_path: Path, code: str, *, ends: int = 0) -> str:
    before = "import os, sys, time, asyncio\nfrom nbflow import Engine, WorkflowEntrypoint\nimport nbflow\n"
    done = subprocess.run(
        [sys.executable, "-c", before + textwrap.dedent(code), str(tmp_path / "history.duckdb")],
        capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == ends, done.stderr
    return done.stdout


def test_a_forked_copy_of_a_script_may_use_an_engine_of_its_own_and_not_its_parents(tmp_path):  # S54
    said = script(
        tmp_path,
        """
        class One(WorkflowEntrypoint):
            async def run(self, event, step):
                await step.do("one", lambda: 1)
                await step.wait_for_event("wait", "go")

        engine = Engine(sys.argv[1])
        instance = engine.register(One).create("a")
        instance.wait(20)
        child = os.fork()
        if child == 0:
            for what in (instance.pause, lambda: engine.workflow("One").create("b"), lambda: engine.sql("select 1"),
                         lambda: instance.send_event("go"), instance.delete, engine.compact):
                try:
                    what()
                    print("no error", flush=True)
                except nbflow.NbflowError as error:
                    print("belongs to the parent process: make a new Engine in the child" in str(error), flush=True)
            engine.close()
            with Engine(sys.argv[1]) as own:
                own.register(One)
                print(own.workflow("One").get("a").send_event("go") is None, flush=True)
            os._exit(5)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        print(instance.wait(20, until="finished").status, flush=True)
        engine.close()
        """,
    )
    assert said.split() == ["True"] * 7 + ["5", "complete"]


# -- descriptors


@pytest.mark.parametrize("how", ["def", "async def"])
def test_a_body_that_closes_every_descriptor_costs_the_engine_nothing_but_new_ones(tmp_path, how):
    said = script(
        tmp_path,
        f"""
        class Closes(WorkflowEntrypoint):
            async def run(self, event, step):
                {how} closes():
                    os.closerange(3, 4096)
                    return "closed"

                said = await step.do("close", closes)
                mine = os.open(sys.argv[1] + ".mine", os.O_RDWR | os.O_CREAT)
                for i in range(200):
                    await step.do(f"s{{i}}", lambda i=i: i)
                await step.sleep("a while", "1200 ms")
                assert os.fstat(mine).st_size == 0
                await step.wait_for_event("wait", "go")
                return said

        engine = Engine(sys.argv[1])
        instance = engine.register(Closes).create("a")
        print(instance.wait(30).status)
        other = Engine(sys.argv[1])  # it sees that the first one lives
        other.register(Closes)
        other.workflow("Closes").get("a").send_event("go")
        print(instance.wait(30, until="finished").output)
        other.close()
        engine.close()
        engine = Engine(sys.argv[1])
        print(engine.store.warnings, engine.sql("select count(*) from steps where status = 'finished'").fetchall())
        engine.close()
        """,
    )
    assert said.split() == ["waiting", "closed", "[]", "[(203,)]"]


def test_an_idle_loop_whose_descriptors_were_closed_hears_again_within_a_moment(lab):
    loop = lab.engine.thread.loop
    epoll = loop._selector._selector.fileno()
    told = []
    lab.engine.thread.post(lambda: told.append(1))
    end = time.monotonic() + 5
    while not told:
        assert time.monotonic() < end
        time.sleep(0.01)
    os.close(epoll)
    taken = os.open(os.devnull, os.O_RDONLY)  # the number is somebody else's now
    try:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)
        os.fstat(taken)
    finally:
        os.close(taken)


@pytest.mark.parametrize("end", ["_ssock", "_csock"])
def test_a_loop_whose_wake_up_pipe_alone_was_closed_hears_again(lab, end):
    loop = lab.engine.thread.loop
    lost = getattr(loop, end)
    os.close(lost.fileno())
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)
    began = time.monotonic()
    while loop.__dict__[end] is lost:
        assert time.monotonic() < began + 10
        time.sleep(0.01)
    began = time.monotonic()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)
    assert time.monotonic() - began < 0.9


# -- the process's surroundings


def test_a_body_that_goes_to_another_folder_takes_neither_store_nor_files_along(tmp_path, monkeypatch):
    import numpy as np

    monkeypatch.chdir(tmp_path)
    from nbflow import WorkflowEntrypoint

    class Goes(WorkflowEntrypoint):
        async def run(self, event, step):
            await step.do("go", lambda: os.chdir("/"))
            array = await step.do("array", lambda: np.arange(1000))
            return int(array.sum())

    with Engine() as engine:
        assert engine.register(Goes).create("a").wait(20, until="finished").output == 499500
        assert str(engine.store.path) == str(tmp_path / ".nbflow" / "history.duckdb")
        assert engine.sql("select count(*) from steps").fetchall() == [(2,)]
    assert [path.name for path in tmp_path.iterdir()] == [".nbflow"]
    monkeypatch.chdir(tmp_path)
    with Engine() as engine:
        engine.register(Goes)
        assert engine.workflow("Goes").get("a").output == 499500


def test_time_zone_and_locale_of_a_body_change_no_record(tmp_path):
    said = script(
        tmp_path,
        """
        import locale

        class Moves(WorkflowEntrypoint):
            async def run(self, event, step):
                def moves():
                    os.environ["TZ"] = "Asia/Tokyo"
                    time.tzset()
                    for name in ("de_DE.UTF-8", "tr_TR.UTF-8", "C"):
                        try:
                            locale.setlocale(locale.LC_ALL, name)
                            break
                        except locale.Error:
                            pass

                await step.do("move", moves)
                began = time.monotonic()
                await step.sleep("wait", 0.3)
                return time.monotonic() - began, 1.5, event.timestamp.utcoffset().total_seconds()

        with Engine(sys.argv[1]) as engine:
            waited, number, offset = engine.register(Moves).create("a").wait(20, until="finished").output
            print(0.25 < waited < 10, number, offset)
            print(engine.sql("select max(ended_at) - min(started_at) < interval '20 seconds' from steps").fetchall())
        with Engine(sys.argv[1]) as engine:
            [entry] = [e for e in engine.register(Moves).get("a").history() if e.kind == "created"]
            print(abs(entry.recorded_at.timestamp() - time.time()) < 60)
        """,
    )
    assert said.split() == ["True", "1.5", "0.0", "[(True,)]", "True"]


def test_a_body_that_ends_the_process_is_found_after_three_deaths_and_all_before_it_is_kept(tmp_path):  # S27
    code = """
        class Ends(WorkflowEntrypoint):
            async def run(self, event, step):
                await step.do("before", lambda: print("before", flush=True))
                await step.do("ends", lambda: os._exit(3))

        engine = Engine(sys.argv[1])
        workflow = engine.register(Ends)
        try:
            instance = workflow.get("a")
        except nbflow.NotFoundError:
            instance = workflow.create("a")
        status = instance.wait(30, until="finished")
        print(status.status, status.error.type, "'ends'" in status.error.message or "ends" in status.error.message, flush=True)
        engine.close()
    """
    assert script(tmp_path, code, ends=3).split() == ["before"]  # no death in vain: something was recorded
    for _ in range(3):
        assert script(tmp_path, code, ends=3).split() == []
    assert script(tmp_path, code).split() == ["errored", "StepInterruptedError", "True"]
