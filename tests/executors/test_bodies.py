"""A body does the same wherever it runs: results, errors, context, refusals (API.md §7)."""

import asyncio
import dataclasses
import enum
import functools
import importlib
import logging
import os
import sys
import threading
import time

import pytest
from tqdm import tqdm

import nbflow
from nbflow import (
    NonRetryableError,
    NotSerialisableError,
    RetryAfter,
    StepError,
    StepTimeoutError,
    UsageError,
    WorkflowEntrypoint,
)
from tests.executors.conftest import ELSEWHERE, Bench, bench_of, eventually

FACTOR = 10


def double(x):
    return 2 * x


async def double_async(x):
    await asyncio.sleep(0)
    return 2 * x


def scaled(x):
    return helper(x) * FACTOR


def helper(x):
    return x + 1


@dataclasses.dataclass
class Doc:
    title: str
    size: int = 0


class Colour(enum.Enum):
    RED = "red"


class Odd(Exception):
    """Cannot be pickled, nor made again from its args."""

    def __init__(self, code, *, lock=None):
        super().__init__(f"code {code}")
        self.code = code
        self.lock = lock or threading.Lock()


# -- results ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [double, double_async, lambda x: 2 * x, functools.partial(lambda a, x: a * x, 2)])
def test_a_body_of_every_form_gives_its_value(bench, fn):
    assert bench.output(fn, 21) == 42


def test_globals_and_functions_of_the_module_go_along(bench):
    assert bench.output(scaled, 1) == 2 * FACTOR


def test_values_of_the_notebooks_own_classes_come_back(bench):
    def make():
        return {"doc": Doc("a", 3), "colour": Colour.RED, "many": [Doc("b")]}

    assert bench.output(make) == {"doc": Doc("a", 3), "colour": Colour.RED, "many": [Doc("b")]}
    assert bench.output(lambda doc: dataclasses.replace(doc, size=doc.size + 1), Doc("c", 1)) == Doc("c", 2)


def test_the_context_tells_the_same_everywhere(bench):
    def tell(x, ctx):
        return {**{name: ctx[name] for name in ("attempt", "instance_id", "key", "index", "idempotency_key")}, "x": x,
                "step": (ctx.step.name, ctx.step.count), "limit": ctx.config["retries"]["limit"]}  # fmt: skip

    instance = bench.do(tell, 5)
    found = instance.output
    assert found["step"] == ("it", 1)
    assert (found["x"], found["attempt"], found["limit"]) == (5, 1, 0)
    assert found["instance_id"] == instance.id
    assert len(found["idempotency_key"]) == 32


class Middle:
    def method(self, a, ctx, b):
        return a, b, ctx.attempt

    async def __call__(self, a, ctx, b):
        return a, b, ctx.attempt


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (functools.partial(Middle().method, 1), (2,)),
        (functools.partial(functools.partial(Middle(), 1), b=2), ()),
        (functools.partial(functools.partial(Middle().method), b=2), (1,)),
        (functools.update_wrapper(functools.partial(lambda a, ctx, /, b: (a, b, ctx.attempt), 1), print), (2,)),
    ],
)
def test_partials_get_the_context_where_their_function_has_it(bench, fn, args):
    assert bench.output(fn, *args) == (1, 2, 1)


def test_an_array_over_1_mib_is_stored_once_and_whole(bench):
    def table():
        import numpy as np

        return np.arange(400_000)

    instance = bench.do(table)
    assert len(instance.output) == 400_000
    folder = bench.engine.store.artifacts / "Flow" / instance.id
    assert [path.suffix for path in folder.iterdir()] == [".npy"]


def test_a_reference_given_as_an_argument_arrives_as_its_value(bench):
    async def run(event, step):
        reference = await step.do("make", lambda: ["x"] * 500_000, on=bench.on, lazy=True)
        return await step.do("count", len, reference, on=bench.on)

    assert bench.wait(bench.start(run)).output == 500_000


def test_references_that_partials_bind_and_dependencies_arrive_as_values(bench):
    def both(a, ctx, b, *, c):
        return len(a) + len(b) + len(c) + ctx.attempt

    async def run(event, step):
        @step.do(on=bench.on, lazy=True)
        def make():
            return ["x"] * 500_000

        @step.do(on=bench.on)
        def count(make, ctx):
            return len(make) + ctx.attempt

        ref = await make()
        return await count(), await step.do("both", functools.partial(both, ref, c=ref), ref, on=bench.on)

    assert bench.wait(bench.start(run)).output == (500_001, 1_500_001)


@functools.cache
def model():
    loads.append(1)
    return object()


loads = []


def test_what_a_cached_function_gives_is_kept_in_each_worker(bench):
    def uses(_):
        return os.getpid(), id(model()), id(model())

    async def run(event, step):
        return [await step.do("use", uses, number, on=bench.on) for number in range(6)]

    found = bench.wait(bench.start(run)).output
    assert all(first == second for _, first, second in found)
    assert len({(pid, first) for pid, first, _ in found}) == len({pid for pid, _, _ in found})


@functools.lru_cache(maxsize=100)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def test_a_cached_function_that_calls_itself_goes_along(bench):
    assert bench.output(fibonacci, 80) == 23416728348467685


# -- failures -----------------------------------------------------------------------------------------------------------


def test_errors_arrive_with_class_attributes_and_the_line_that_raised_them(bench):
    def fails():
        raise LookupError("no such document", 404)

    instance = bench.do(fails)
    with pytest.raises(Exception) as caught:
        _ = instance.output
    error = caught.value.__cause__
    assert isinstance(error, LookupError)
    assert error.args == ("no such document", 404)
    recorded = instance.status().error
    assert 'raise LookupError("no such document", 404)' in recorded.traceback
    assert "nbflow/engine" not in recorded.traceback


def test_an_error_that_cannot_be_pickled_arrives(bench):
    def fails():
        raise Odd(7)

    error = bench.failure(fails)
    assert type(error).__name__ == "Odd"
    assert str(error) == "code 7"
    assert error.code == 7


@pytest.mark.parametrize("stop", [SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError])
def test_what_would_end_a_process_is_a_failure_of_the_step(bench, stop):
    def fails():
        raise stop("enough")

    error = bench.failure(fails)
    assert isinstance(error, MemoryError if stop is MemoryError else StepError)
    assert stop.__name__ in str(error) or "enough" in str(error)
    assert bench.output(double, 1) == 2


def test_a_result_that_cannot_be_stored_fails_at_once(bench):
    error = bench.failure(threading.Lock, retries=3)
    assert isinstance(error, NotSerialisableError)
    assert "'it' returned what cannot be stored" in str(error)


def test_failed_attempts_are_retried_and_counted(bench):
    def third_time(ctx):
        if ctx.attempt < 3:
            raise ValueError(ctx.attempt)
        return ctx.attempt

    instance = bench.do(third_time, retries={"limit": 3, "delay": 0})
    assert instance.output == 3
    assert bench.attempts(instance) == ["failed", "failed", "finished"]


def test_retries_by_class_and_signals_for_retries_work(bench):
    def fails(error):
        raise error

    assert (
        len(bench.do(fails, KeyError("x"), retries={"limit": 2, "delay": 0, "errors": (ValueError,)}).step("it").attempts) == 1
    )
    assert len(bench.do(fails, NonRetryableError("x"), retries={"limit": 2, "delay": 0}).step("it").attempts) == 1
    assert len(bench.do(fails, RetryAfter(0.01), retries={"limit": 1, "delay": "1 hour"}).step("it").attempts) == 2


def test_what_was_edited_between_attempts_counts_for_the_next(bench, monkeypatch):
    def edited(ctx, error):
        monkeypatch.setattr(sys.modules[__name__], "FACTOR", 1000)
        monkeypatch.setattr(sys.modules[__name__], "helper", lambda x: x)
        return 0

    def fails_once(ctx):
        if ctx.attempt == 1:
            raise ValueError("edit me")
        return scaled(2)

    assert bench.output(fails_once, retries={"limit": 1, "delay": edited}) == 2000


# -- files beside the notebook ------------------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that only this process can import, and a way to edit it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "beside_the_notebook.py"

    def write(factor):
        path.write_text(f"class Thing:\n    factor = {factor}\n\ndef work(x):\n    return x * Thing.factor\n")
        importlib.invalidate_caches()
        if "beside_the_notebook" in sys.modules:
            loaded = sys.modules["beside_the_notebook"]
            exec(compile(path.read_text(), str(path), "exec"), vars(loaded))  # what %autoreload does to it
            return loaded
        return importlib.import_module("beside_the_notebook")

    yield write
    sys.modules.pop("beside_the_notebook", None)


def test_a_module_that_only_the_notebook_has_goes_along_and_its_reload_too(bench, module):
    beside = module(3)
    assert bench.output(beside.work, 2) == 6
    assert bench.output(lambda: beside.work(1)) == 3
    beside = module(5)
    assert bench.output(beside.work, 2) == 10
    assert bench.output(lambda: beside.work(1)) == 5


# -- time ---------------------------------------------------------------------------------------------------------------


def test_a_body_that_takes_too_long_fails_and_its_late_end_is_not_heard(bench, tmp_path):
    late = tmp_path / "late"

    def slow(path, ctx):
        if ctx.attempt == 1:
            time.sleep(3)
            open(path, "w").close()
            return ["late"] * 300_000
        return "in time"

    warm(bench)
    instance = bench.do(slow, str(late), timeout=1.5, retries={"limit": 1, "delay": 0})
    assert instance.output == "in time"
    first = instance.step("it").attempts[0]
    assert (first.error.type, first.status) == ("StepTimeoutError", "failed")
    if bench.kind == "processes":
        assert "its process was killed" in first.error.message
        assert not late.exists()
    else:
        assert "still running" in first.error.message
        eventually(late.exists, "the abandoned body ends")
        time.sleep(0.3)
    folder = bench.engine.store.artifacts / "Flow" / instance.id
    assert [path.name for path in folder.glob("*") if path.suffix != ".part"] == []
    assert instance.output == "in time"


def test_the_time_that_a_process_takes_to_start_is_not_the_bodys(tmp_path):
    began = tmp_path / "began"
    bench = Bench("processes", nbflow.process_executor(1))
    with bench.engine:
        instance = bench.do(began.touch, timeout=0.1)  # less than a Python takes to start
        assert str(instance.status().status) == "complete"
        assert began.exists()
        assert bench.attempts(instance) == ["finished"]


def test_a_process_that_does_not_start_is_a_loss_that_says_how_it_ended(monkeypatch):
    monkeypatch.setattr("nbflow.engine.executors.attempt.DELAYS", (0.0, 0.0, 0.0))
    monkeypatch.setattr("nbflow.engine.executors.processes.BOOT", "import sys; sys.exit(7)")
    bench = Bench("processes", nbflow.process_executor(1))
    with bench.engine:
        error = bench.failure(double, 1)
    assert "no process could be started" in str(error)
    assert "exit code 7" in str(error)


def test_a_process_that_takes_too_long_to_start_is_killed(monkeypatch):
    monkeypatch.setattr("nbflow.engine.executors.attempt.DELAYS", (0.0, 0.0, 0.0))
    monkeypatch.setattr("nbflow.engine.executors.processes.BOOT", "import time; time.sleep(600)")
    monkeypatch.setattr("nbflow.engine.executors.processes.START", 0.1)
    bench = Bench("processes", nbflow.process_executor(1))
    with bench.engine:
        error = bench.failure(double, 1)
    assert "no process could be started" in str(error)
    assert "SIGKILL" in str(error)


def warm(bench):
    """Have two workers stand ready."""

    async def run(event, step):
        await asyncio.gather(*(step.do("warm", time.sleep, 0.5, on=bench.on) for _ in range(2)))

    bench.wait(bench.start(run))


def test_a_timeout_can_be_caught(bench):
    async def run(event, step):
        try:
            await step.do("slow", lambda: time.sleep(1), on=bench.on, timeout=0.3, retries=0)
        except StepTimeoutError as error:
            return str(error)

    assert "longer than" in bench.wait(bench.start(run)).output


# -- what is written ----------------------------------------------------------------------------------------------------


def test_what_a_body_writes_is_in_its_log_while_it_runs(away):
    def chatty(ctx):
        print("one line")
        print("a warning", file=sys.stderr)
        logging.getLogger("user").warning("logged")
        ctx.log("noted")
        for _ in tqdm(range(4), desc="bar"):
            pass
        ctx.progress(1, 2, "half")
        time.sleep(1.5)
        return 1

    async def run(event, step):
        return await step.do("it", chatty, on=away.on, retries=0)

    instance = away.start(run)
    if away.kind in ("processes", "dask"):
        eventually(lambda: instance.steps, "the step begins")
        eventually(lambda: "one line" in instance.step("it").logs, "lines come while it runs")
        eventually(lambda: instance.step("it").progress, "and progress")
        progress = instance.step("it").progress
        assert (progress.done, progress.total, progress.note) == (1, 2, "half")
        assert instance.status().status == "running"
    away.wait(instance)
    logs = instance.step("it").logs
    for text in ("one line\n", "a warning\n", "WARNING user: logged", "noted", "bar: 100%"):
        assert text in logs
    assert ("stdout", "one line\n") in [(item.stream, item.text) for item in instance.step("it").log]


def test_a_body_that_prints_without_end_is_cut(away):
    def floods():
        for _ in range(300):
            print("x" * 10_000)
        return "done"

    instance = away.do(floods)
    assert instance.output == "done"
    assert len(instance.step("it").logs) < 1.2 * (1 << 20)


# -- refusals -----------------------------------------------------------------------------------------------------------


def test_bodies_that_capture_what_stays_here_are_refused_by_name(away):
    engine, lock = away.engine, threading.Lock()
    big = bytearray(40 << 20)

    def uses_engine():
        return engine.list()

    def uses_lock():
        return lock.acquire()

    def calls_it():
        return uses_lock()

    def uses_big():
        return len(big)

    def by_default(other=1, table=big, *, more=2):
        return len(table)

    for fn, named, why in [
        (uses_engine, "'engine'", "the engine, which stays in this kernel"),
        (uses_lock, "'lock'", "cannot be sent to a worker"),
        (calls_it, "'lock'", "cannot be sent to a worker"),
        (uses_big, "'big'", "more than 32 MiB"),
        (by_default, "'table'", "more than 32 MiB"),
    ]:
        error = away.failure(fn, retries=3)
        assert isinstance(error, UsageError), error
        assert f"the body of step 'it' captures {named}" in str(error)
        assert why in str(error)


@pytest.mark.parametrize("kind", ["threads", *ELSEWHERE])
def test_a_body_that_captures_step_or_the_engine_is_refused_by_name(shared, kind):
    bench = bench_of(kind, shared)

    async def run(event, step):
        def uses_step():
            return step.do("inner", double, 1)

        def calls_it():
            return uses_step()

        for body in (uses_step, calls_it, functools.partial(lambda what: what, step)):
            with pytest.raises(UsageError, match="the workflow's `step`, which stays in this kernel"):
                await step.do("it", body, on=bench.on)
        engine = bench.engine
        with pytest.raises(UsageError, match="captures 'engine', the engine"):
            await step.do("it", lambda: engine.list(), on=bench.on)
        return "refused"

    with bench.engine:
        assert bench.wait(bench.start(run)).output == "refused"


@pytest.mark.parametrize("kind", ["threads", *ELSEWHERE])
def test_a_body_that_captures_self_is_refused_by_name(shared, kind):
    bench = bench_of(kind, shared)

    class Mine(WorkflowEntrypoint):
        def body(self):
            return self.env

        async def run(self, event, step):
            with pytest.raises(UsageError, match=r"captures 'self', the workflow itself \(`self`\)"):
                await step.do("it", self.body, on=bench.on)
            return "refused"

    with bench.engine:
        assert bench.wait(bench.engine.register(Mine).create()).output == "refused"


def test_an_argument_that_cannot_be_sent_is_refused_by_its_place(away):
    error = away.failure(lambda x, lock: x, 1, threading.Lock())
    assert isinstance(error, UsageError)
    assert "argument 2" in str(error)
    assert "lock" in str(error)


def test_large_arguments_are_data_and_go(away):
    assert away.output(len, bytes(40 << 20)) == 40 << 20
