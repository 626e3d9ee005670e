"""Bodies that wait for a thread or on an executor: nothing new starts once an instance stops or has failed (S19, S40 to S43)."""

import asyncio
import concurrent.futures
import itertools
import threading
import time

import pytest

from nbflow import Engine, NonRetryableError, StepInterruptedError, WorkflowEntrypoint
from nbflow.core.model import StepState
from tests.engine.conftest import eventually, failure_of

LIMIT, COUNT = 2, 6


class Bodies:
    """Bodies that stand until they are let go, and what has begun of them."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.free = threading.Event()

    def body(self, number: int) -> int:
        self.begun.append(number)
        assert self.free.wait(20)
        return number


@pytest.fixture
def bodies():
    made = Bodies()
    yield made
    made.free.set()


@pytest.fixture(params=["threads", "pool"])
def lab(request, make_lab):
    """An engine with two places for bodies."""
    if request.param == "threads":
        yield make_lab(max_threads=LIMIT)
        return
    with concurrent.futures.ThreadPoolExecutor(LIMIT) as pool:
        lab = make_lab(default_executor="pool")
        lab.engine.executors["pool"] = pool
        yield lab


def gathered(bodies):
    async def run(event, step):
        return await asyncio.gather(*(step.do(f"s{n}", bodies.body, n, retries=0) for n in range(COUNT)))

    return run


def mapped(bodies):
    async def run(event, step):
        return await step.map("m", bodies.body, range(COUNT), concurrency=COUNT, retries=0)

    return run


def started(lab, bodies, run):
    instance = lab.start(run, id="a")
    eventually(lambda: len(bodies.begun) >= LIMIT, "as many bodies begin as there are places")
    return instance


def nothing_begins(bodies):
    bodies.free.set()
    time.sleep(0.1)
    assert len(bodies.begun) == LIMIT


@pytest.mark.parametrize("shape", [gathered, mapped])
def test_a_pause_waits_for_bodies_that_have_begun_only(lab, bodies, shape):  # S40
    instance = started(lab, bodies, shape(bodies))
    instance.pause()
    bodies.free.set()
    lab.idle()
    assert str(instance.status().status) == "paused"
    assert sorted(bodies.begun) == [0, 1]
    instance.resume()
    lab.idle()
    assert instance.output == list(range(COUNT))
    assert sorted(bodies.begun) == list(range(COUNT))  # each once


def paused_with_some_queued(lab, bodies):
    instance = started(lab, bodies, gathered(bodies))
    instance.pause()
    bodies.free.set()
    lab.idle()
    return instance


def test_what_waited_for_a_thread_has_no_record_before_it_begins(make_lab, bodies):  # S53
    lab = make_lab(max_threads=LIMIT)
    instance = paused_with_some_queued(lab, bodies)
    assert [(step.name, step.status) for step in instance.steps] == [("s0", StepState.FINISHED), ("s1", StepState.FINISHED)]
    instance.resume()
    lab.idle()
    assert [len(step.attempts) for step in instance.steps] == [1] * COUNT


def test_what_left_the_queue_of_an_executor_is_recorded_as_interrupted_and_costs_no_retry(make_lab, bodies):
    with concurrent.futures.ThreadPoolExecutor(LIMIT) as pool:
        lab = make_lab(default_executor="pool")
        lab.engine.executors["pool"] = pool
        instance = paused_with_some_queued(lab, bodies)
        states = [step.status for step in instance.steps]
        assert states == [StepState.FINISHED] * LIMIT + [StepState.INTERRUPTED] * (COUNT - LIMIT)
        [attempt] = instance.step("s5").attempts
        assert attempt.error.type == StepInterruptedError.__name__
        assert "had not begun and left its queue" in attempt.error.message
        instance.resume()
        lab.idle()
        assert [len(step.attempts) for step in instance.steps] == [1] * LIMIT + [2] * (COUNT - LIMIT)


def test_an_attempt_lasts_from_when_its_body_begins(tmp_path):
    class Gathers(WorkflowEntrypoint):
        async def run(self, event, step):
            await asyncio.gather(*(step.do(f"s{n}", time.sleep, 0.01) for n in range(COUNT)))

    with Engine(tmp_path / "history.duckdb", max_threads=1) as engine:
        engine.register(Gathers).create().wait(30, until="finished")
        times = engine.sql("select started_at, ended_at from steps order by name").fetchall()
        assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(times))
        assert engine.sql("select started_at, ended_at from attempts order by name").fetchall() == times


def test_a_retry_that_waits_for_a_thread_begins_once_there_is_one_and_counts_as_one(make_lab, bodies):
    lab = make_lab(max_threads=1)
    tries: list[int] = []

    def fails_once(ctx):
        tries.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError

    async def run(event, step):
        await asyncio.gather(step.do("fails", fails_once, retries={"delay": 0}), step.do("stands", bodies.body, 0))

    instance = lab.start(run)
    eventually(lambda: bodies.begun == [0])
    time.sleep(0.1)
    assert tries == [1]
    assert str(instance.status().status) == "running"
    instance.pause()
    instance.resume()  # before it was paused
    bodies.free.set()
    lab.idle()
    assert tries == [1, 2]
    assert str(instance.status().status) == "complete"


def test_a_call_that_is_cancelled_in_the_queue_never_begins_and_is_cancelled_on_replay(make_lab, bodies):  # S21
    lab = make_lab(max_threads=LIMIT)
    cancelled = threading.Event()

    async def run(event, step):
        calls = [asyncio.ensure_future(step.do(f"s{n}", bodies.body, n)) for n in range(COUNT)]
        while len(bodies.begun) < LIMIT:
            await asyncio.sleep(0.001)
        calls[-1].cancel()
        cancelled.set()
        await asyncio.gather(*calls[:-1])
        await step.wait_for_event("stay", "never")

    instance = started(lab, bodies, run)
    assert cancelled.wait(20)
    bodies.free.set()
    lab.idle()
    assert sorted(bodies.begun) == list(range(COUNT - 1))
    assert instance.step("s5").status is StepState.CANCELLED
    instance.pause()
    instance.resume()
    lab.idle()
    assert sorted(bodies.begun) == list(range(COUNT - 1))
    assert [one.name for one in instance.status().waiting_for] == ["stay"]


@pytest.mark.parametrize("of_map", [False, True])
def test_what_never_began_is_not_rolled_back(lab, bodies, of_map):  # S46
    undone: list[int] = []

    def body(number):
        if number:
            return bodies.body(number)
        bodies.begun.append(0)
        msg = "over"
        raise NonRetryableError(msg)

    def undo(ctx, step_name):
        undone.append(ctx.index if of_map else int(step_name))

    async def run(event, step):
        if of_map:
            await step.map("m", body, range(100), concurrency=100, rollback=undo)
        await asyncio.gather(*(step.do(f"{n}", body, n, rollback=undo) for n in range(100)))

    instance = started(lab, bodies, run)
    time.sleep(0.2)  # until the failure has come to `run`
    bodies.free.set()
    lab.idle()
    assert instance.status().rollback == ("complete", None)
    assert len(bodies.begun) < 10
    assert sorted(undone) == sorted(bodies.begun)


@pytest.mark.parametrize("of_map", [False, True])
def test_what_left_its_queue_is_rolled_back_once_it_has_begun(lab, bodies, of_map):  # S46
    undone: list[str] = []

    async def run(event, step):
        undo = lambda ctx, step_name: undone.append(step_name if ctx.index is None else f"s{ctx.index}")  # noqa: E731
        if of_map:
            await step.map("m", bodies.body, range(COUNT), concurrency=COUNT, rollback=undo)
        else:
            await asyncio.gather(*(step.do(f"s{n}", bodies.body, n, rollback=undo) for n in range(COUNT)))
        await step.do("fails", undo_all)

    def undo_all():
        msg = "over"
        raise NonRetryableError(msg)

    instance = started(lab, bodies, run)
    for _ in range(2):  # once more, before it has begun
        instance.pause()
        instance.resume()
    instance.pause()
    bodies.free.set()
    lab.idle()
    instance.resume()
    lab.idle()
    assert instance.status().rollback == ("complete", None)
    assert sorted(undone) == [f"s{n}" for n in range(COUNT)]


@pytest.mark.parametrize("shape", [gathered, mapped])
def test_a_pause_that_is_taken_back_lets_them_go_on(lab, bodies, shape):  # S41
    instance = started(lab, bodies, shape(bodies))
    instance.pause()
    assert str(instance.status().status) == "waitingForPause"
    instance.resume()
    bodies.free.set()
    lab.idle()
    assert instance.output == list(range(COUNT))
    assert sorted(bodies.begun) == list(range(COUNT))


def test_after_an_uncaught_failure_only_bodies_that_have_begun_end(lab, bodies):  # S19
    release = threading.Event()

    async def run(event, step):
        others = [asyncio.ensure_future(step.do(f"s{n}", bodies.body, n, retries=0)) for n in range(COUNT)]
        await step.do("fails", fails, retries=0, on="local")
        await asyncio.gather(*others)

    async def fails():
        while not release.is_set():
            await asyncio.sleep(0.001)
        msg = "over"
        raise ValueError(msg)

    instance = started(lab, bodies, run)
    release.set()
    eventually(lambda: instance.status().status == "running" and instance.step("fails").status is StepState.FAILED)
    eventually(lambda: "s5" not in {step.name for step in instance.steps if step.status is StepState.RUNNING})
    nothing_begins(bodies)
    lab.idle()
    assert str(failure_of(instance)) == "over"


def test_the_first_item_that_fails_for_good_keeps_queued_ones_from_beginning(lab, bodies):  # API.md §6
    first = threading.Event()

    def body(number):
        if number == 0 and not first.is_set():
            bodies.begun.append(0)
            assert first.wait(20)
            raise ValueError(number)
        return bodies.body(number)

    async def run(event, step):
        return await step.map("m", body, range(COUNT), concurrency=COUNT, retries=0)

    instance = started(lab, bodies, run)
    first.set()  # another takes its place in the same moment, at most
    eventually(lambda: instance.step("m").items.failed == 1)
    bodies.free.set()
    lab.idle()
    assert str(instance.status().status) == "errored"
    assert len(bodies.begun) in {LIMIT, LIMIT + 1}
    instance.retry_failed()
    lab.idle()
    assert instance.output == list(range(COUNT))
    assert sorted(bodies.begun[1:]) == list(range(COUNT))  # each once, but for the one that had failed


@pytest.mark.parametrize("how", ["terminate", "delete"])
@pytest.mark.parametrize("shape", [gathered, mapped])
def test_what_is_queued_does_not_begin_when_its_instance_is_stopped(lab, bodies, shape, how):  # S42, S43
    instance = started(lab, bodies, shape(bodies))
    getattr(instance, how)()
    nothing_begins(bodies)


def test_a_restart_begins_nothing_of_before(make_lab, bodies):  # S44
    lab = make_lab(max_threads=LIMIT)
    instance = started(lab, bodies, gathered(bodies))
    instance.restart()
    bodies.free.set()
    eventually(instance.is_finished)
    assert instance.output == list(range(COUNT))
    assert sorted(bodies.begun) == sorted([0, 1, *range(COUNT)])


def test_a_step_called_by_a_body_in_flight_is_part_of_it_and_begins(make_lab):  # S15
    lab = make_lab(max_threads=1)
    holding, called, free = threading.Event(), threading.Event(), threading.Event()

    def holds():
        holding.set()
        assert free.wait(20)

    async def run(event, step):
        async def outer():
            inner = step.do("inner", lambda: 1)
            called.set()
            return await inner

        await asyncio.gather(step.do("holds", holds), step.do("outer", outer))

    instance = lab.start(run)
    assert holding.wait(20)
    assert called.wait(20)
    instance.pause()
    free.set()
    lab.idle()
    assert str(instance.status().status) == "paused"
    assert {step.name: step.status for step in instance.steps} == dict.fromkeys(["holds", "outer", "inner"], StepState.FINISHED)
