"""Rollback handlers are bodies: where all bodies run on an executor they do too, and here where they cannot (S46, S47, API.md §7)."""

import functools
import os
import signal
import threading

import pytest

from nbflow.core.model import Status
from tests.executors.conftest import HERE, KINDS, PATIENCE, bench_of


class Refused(Exception):
    """Cannot be made again from its args."""

    def __init__(self, code, *, lock=None):
        super().__init__(f"code {code}")
        self.code, self.lock = code, lock or threading.Lock()


class Rows:
    """No result: nothing stores it."""


def noted(path, *words):
    with open(path, "a") as file:
        file.write(" ".join(map(str, words)) + "\n")
    return Rows()


@pytest.fixture(params=KINDS)
def bench(request, shared):
    """An engine whose bodies run there by default."""
    on = {} if request.param in HERE else {"default_executor": "x"}
    made = bench_of(request.param, shared, **on)
    with made.engine:
        yield made


def undone(status):
    assert status.rollback == ("complete", None), status
    return status


def test_a_handler_runs_where_all_bodies_run_and_gets_what_it_names(bench, tmp_path):
    """API.md §7: by value, its data as arguments; the error is of its class, also where it cannot be pickled."""
    path = str(tmp_path / "told")

    def plain(ctx, output, error, step_name):
        where = "here" if os.getpid() == home else "elsewhere"
        return noted(path, where, ctx.step.name, ctx.attempt, output, isinstance(error, Refused), error.code, step_name)

    async def later(**given):
        noted(path, sorted(given), given["output"], given["ctx"].key)

    def nothing():
        return noted(path, "nothing")

    async def run(event, step):
        await step.do("a", lambda: {"rows": 3}, rollback=functools.partial(plain))
        await step.do("b", lambda: [1], rollback=later)
        await step.do("c", lambda: None, rollback=nothing)
        raise Refused(402)

    home = os.getpid()
    instance = bench.start(run)
    undone(instance.wait(PATIENCE, until="finished"))
    where = "elsewhere" if bench.elsewhere else "here"
    assert (tmp_path / "told").read_text().splitlines() == [
        "nothing",
        "['ctx', 'error', 'output', 'step_name'] [1] None",
        f"{where} a 1 {{'rows': 3}} True 402 a",
    ]


def test_the_items_of_a_map_are_undone_there_last_first(bench, tmp_path):
    """S46: each item with its own output and key."""
    path = str(tmp_path / "told")

    def undo(ctx, output):
        noted(path, ctx.key, ctx.index, output)

    async def run(event, step):
        await step.map("m", lambda x: 10 * x, [1, 2], rollback=undo, concurrency=1)
        raise ValueError("no more")

    undone(bench.start(run).wait(PATIENCE, until="finished"))
    assert (tmp_path / "told").read_text().splitlines() == ["1 1 20", "0 0 10"]


def test_terminating_with_rollback_undoes_there(bench, tmp_path):
    """S49: handlers found by a replay go where those of a failure go."""
    path = str(tmp_path / "told")

    async def run(event, step):
        await step.do("a", lambda: 1, rollback=lambda output, error: noted(path, output, error))
        await step.wait_for_event("w", "never")

    instance = bench.start(run)
    instance.wait(PATIENCE)
    instance.terminate(rollback=True)
    status = undone(instance.wait(PATIENCE, until="finished"))
    assert status.status is Status.TERMINATED
    assert (tmp_path / "told").read_text() == "1 None\n"


def test_a_handler_that_cannot_go_there_runs_here_and_its_log_says_why(bench):
    """S46: what was done is to be undone; a handler has no `on=` by which it could be kept here."""
    engine, seen = bench.engine, []

    def uses_engine(output):
        seen.append((output, len(engine.list()), os.getpid()))

    async def uses_lock(output):
        with lock:
            seen.append((output, 1, os.getpid()))

    async def run(event, step):
        await step.do("a", lambda: "A", rollback=uses_engine)
        await step.do("b", lambda: "B", rollback=uses_lock)
        raise ValueError("no more")

    lock = threading.Lock()
    instance = bench.start(run)
    undone(instance.wait(PATIENCE, until="finished"))
    assert seen == [("B", 1, os.getpid()), ("A", 1, os.getpid())]
    handlers = {step.name: step for step in instance.steps if step.type == "rollback"}
    assert [str(attempt.status) for attempt in handlers["a"].attempts] == ["finished"]
    if bench.on is not None:
        assert "it runs here: the body of step 'undo a' captures 'engine'" in handlers["a"].logs


def test_a_worker_that_dies_in_a_handler_costs_an_attempt_only(shared, tmp_path):
    """S27, S47: a lost worker is no failure of the handler."""
    bench = bench_of("processes", shared, default_executor="x")
    died = str(tmp_path / "died")

    def undo(ctx):
        if not os.path.exists(died):
            open(died, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        noted(died, ctx.attempt)

    async def run(event, step):
        await step.do("a", lambda: 1, rollback=undo, rollback_config={"retries": 0})
        raise ValueError("no more")

    with bench.engine:
        instance = bench.start(run)
        undone(instance.wait(PATIENCE, until="finished"))
        handler = next(step for step in instance.steps if step.type == "rollback")
        assert [str(attempt.status) for attempt in handler.attempts] == ["interrupted", "finished"]
    assert (tmp_path / "died").read_text() == "2\n"
