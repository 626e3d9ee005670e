"""Parallel steps, races and cancellation (S18 to S21)."""

import asyncio
from collections import Counter

import pandas as pd
import pytest

from nbflow.core.model import Status, StepState
from tests.engine.conftest import Gate, eventually, failure_of, kinds


def has_failed(lab, instance):
    """Whether an error has left `run`, though bodies are still in flight."""
    activation = lab.engine.live[instance.created_seq].activation
    return activation is not None and activation.failure is not None


def test_after_a_death_only_the_unfinished_of_parallel_steps_run_again(lab):  # S18
    ran = []
    gate = Gate("slow")

    async def run(event, step):
        async def quick(ctx):
            ran.append(ctx.step.name)
            return ctx.step.name

        def slow(ctx):
            ran.append("slow")
            return gate() if ctx.attempt == 1 else "again"

        return await asyncio.gather(step.do("a", quick), step.do("slow", slow), step.do("b", quick))

    lab.start(run, id="one")
    gate.reached()
    eventually(
        lambda: len(lab.engine.get("one").status().waiting_for) == 0 and kinds(lab.engine.get("one")).count("do.finished b")
    )
    ran.clear()
    later = lab.revive()
    later.workflow(run)
    assert later.finish(later.engine.get("one")).output == ["a", "again", "b"]
    assert ran == ["slow"]
    gate.open()


def test_with_gather_the_error_reaches_run_at_once_and_siblings_go_on(lab):  # S19
    gate = Gate("sibling")
    seen = []

    async def run(event, step):
        sibling = step.do("sibling", gate)
        try:
            await asyncio.gather(sibling, step.do("bad", lambda: 1 / 0, retries=0))
        except ZeroDivisionError:
            seen.append(gate.came)
        return await step.do("after", lambda: "after")

    instance = lab.start(run)
    gate.reached()
    eventually(lambda: seen)
    eventually(lambda: "do.finished after" in kinds(instance))
    assert not instance.is_finished()
    gate.open()
    assert lab.finish(instance).output == "after"
    assert instance.step("sibling").output == "sibling"


def test_an_error_that_leaves_run_starts_nothing_new_and_waits_for_bodies_in_flight(lab):  # S19
    gate = Gate("sibling")
    ran = []

    async def run(event, step):
        async def chain():
            await step.do("sibling", gate)
            await step.do("next", lambda: ran.append("next"))

        async def flaky():
            await step.do("flaky", lambda: ran.append("flaky") or 1 / 0, retries={"limit": 5, "delay": "1 hour"})

        await asyncio.gather(chain(), flaky(), step.do("bad", lambda: gate.reached() or 1 / 0, retries=0))

    instance = lab.start(run)
    gate.reached()
    eventually(lambda: has_failed(lab, instance))
    assert instance.status().status == "running"
    gate.open()
    eventually(instance.is_finished)
    assert isinstance(failure_of(instance), ZeroDivisionError)
    assert instance.step("sibling").status is StepState.FINISHED
    lab.advance("1 day")
    assert ran == ["flaky"]


def test_a_failed_body_in_flight_is_not_retried_after_the_error_has_left_run(lab):  # S19
    gate = Gate()
    ran = []

    async def run(event, step):
        def late():
            ran.append(1)
            gate()
            raise ValueError

        await asyncio.gather(step.do("late", late), step.do("bad", lambda: gate.reached() or 1 / 0, retries=0))

    instance = lab.start(run)
    eventually(lambda: has_failed(lab, instance))
    gate.open()
    eventually(instance.is_finished)
    lab.advance("1 day")
    assert ran == [1]
    assert instance.step("late").status is StepState.FAILED


def test_a_thread_past_its_timeout_does_not_hold_the_end_up(lab):  # S19
    gate = Gate()

    async def run(event, step):
        await asyncio.gather(
            step.do("stuck", gate, timeout="1 minute"), step.do("bad", lambda: gate.reached() or 1 / 0, retries=0)
        )

    instance = lab.start(run)
    eventually(lambda: "do.failed bad" in kinds(instance))
    lab.move("1 minute")
    eventually(instance.is_finished)
    assert isinstance(failure_of(instance), ZeroDivisionError)
    gate.open()


def test_results_reach_run_one_at_a_time(lab):  # S20
    async def run(event, step):
        told = []

        async def one(name):
            await step.do(name, lambda: name)
            told.append(f"{name} in")
            for _ in range(10):
                await asyncio.sleep(0)
            told.append(f"{name} out")

        await asyncio.gather(*(one(name) for name in "abcdef"))
        return told

    told = lab.output(run)
    for first, second in zip(told[::2], told[1::2], strict=True):
        assert first.removesuffix(" in") == second.removesuffix(" out")


def test_a_long_replay_lets_others_on_the_loop_have_their_turns(lab):  # S20
    seen: list[list[int]] = []
    turns = 0

    async def run(event, step):
        seen.append([])
        for _ in range(1_000):
            await step.do("one", lambda: None)
            seen[-1].append(turns)
        await step.wait_for_event("go", "go")

    lab.start(run, id="one")
    lab.idle()
    later = lab.revive()

    def turn() -> None:
        nonlocal turns
        turns += 1
        if len(seen) < 2 or len(seen[1]) < 1_000:
            later.engine.loop.call_soon(turn)

    later.engine.on_loop(turn)
    later.workflow(run)
    later.idle()
    assert later.engine.get("one").status().status is Status.WAITING
    assert max(Counter(seen[1]).values()) <= 101


@pytest.mark.parametrize("result", ["plain", "failed", "table", "lazy"])
def test_results_of_a_replay_that_are_awaited_late_come_as_they_came(lab, result):  # S20
    told: list[list[str]] = []

    def body():
        if result == "failed":
            raise ZeroDivisionError
        return pd.DataFrame({"n": range(100_000)}) if result == "table" else 1

    async def run(event, step):
        told.append([])

        async def take(name, call):
            try:
                await call
            except ZeroDivisionError:
                pass
            told[-1].append(name)
            await asyncio.sleep(0)
            told[-1].append(f"after {name}")

        options = {"retries": 0, "lazy": result == "lazy"}
        calls = {name: step.do(name, body, **options) for name in "abc"}
        await take("a", calls["a"])
        await asyncio.gather(*(take(name, calls[name]) for name in "cb"))
        await take("d", step.do("d", body, **options))
        await step.wait_for_event("go", "go")

    lab.start(run, id="one")
    lab.idle()
    later = lab.revive()
    later.workflow(run)
    later.idle()
    assert told[0] == told[1]
    assert len(told[0]) == 8


@pytest.mark.parametrize("cancel", [True, False])
def test_a_race_goes_the_same_way_again(lab, cancel):  # S20, S21
    gates = {name: Gate(name) for name in "ab"}
    winners = []

    async def run(event, step):
        tasks = {name: asyncio.ensure_future(step.do(name, gates[name])) for name in "ab"}
        done, pending = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        winners.append([name for name, task in tasks.items() if task in done])
        if cancel:
            for task in pending:
                task.cancel()
        await step.wait_for_event("go", "go")
        return winners[-1]

    lab.start(run, id="one")
    for gate in gates.values():
        gate.reached()
    gates["b"].open()
    eventually(lambda: winners)
    gates["a"].open()
    eventually(lambda: cancel or "do.finished a" in kinds(lab.engine.get("one")))
    lab.idle()
    later = lab.revive()
    later.workflow(run)
    later.idle()
    assert winners == [["b"], ["b"]]
    assert [gate.came for gate in gates.values()] == [1, 1]
    later.engine.get("one").send_event("go")
    assert later.finish(later.engine.get("one")).output == ["b"]


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_cancelled_call_is_recorded_and_its_body_cancelled_or_abandoned(lab, kind):  # S21
    gate = Gate("never heard")
    seen = []

    async def run(event, step):
        async def body():
            seen.append("begun")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        task = asyncio.ensure_future(step.do("s", body if kind == "async" else gate))
        await step.wait_for_event("ask", "go")
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"

    instance = lab.start(run)
    eventually(lambda: gate.came or seen)
    instance.send_event("go")
    assert lab.finish(instance).output == "cancelled"
    assert instance.step("s").status is StepState.CANCELLED
    assert instance.step("s").attempts[-1].status is StepState.CANCELLED
    gate.open()
    lab.idle()
    assert instance.step("s").status is StepState.CANCELLED
    assert seen == (["begun", "cancelled"] if kind == "async" else [])


def test_a_call_cancelled_before_its_task_ran_is_recorded_as_cancelled(lab):  # S21
    async def run(event, step):
        task = asyncio.ensure_future(step.do("s", lambda: 1))
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    instance = lab.run(run)
    assert instance.output is True
    assert instance.step("s").status is StepState.CANCELLED


def test_a_recorded_cancellation_waits_to_come_again(lab):  # S21
    ran = []

    async def run(event, step):
        def body():
            ran.append(1)

        nap = asyncio.ensure_future(step.sleep("nap", "1 day"))
        work = asyncio.ensure_future(step.do("s", body, retries=0))
        ask = asyncio.ensure_future(step.wait_for_event("ask", "go"))
        await work
        nap.cancel()
        ask.cancel()
        await asyncio.wait({nap, ask})
        await step.wait_for_event("end", "end")
        return "ended"

    lab.start(run, id="one")
    lab.idle()
    later = lab.revive()
    later.workflow(run)
    later.idle()
    instance = later.engine.get("one")
    assert kinds(instance).count("sleep.cancelled nap") == 1
    assert kinds(instance).count("wait.cancelled ask") == 1
    assert [w.name for w in instance.status().waiting_for] == ["end"]
    instance.send_event("end")
    later.idle()
    assert instance.output == "ended"
    assert ran == [1]


def test_when_the_code_has_changed_a_cancelled_step_runs_as_a_new_attempt(lab):  # S21
    attempts = []

    def cancels(*, really):
        async def run(event, step):
            async def body(ctx):
                attempts.append(ctx.attempt)
                if ctx.attempt == 1:
                    await asyncio.Event().wait()
                return "ran after all"

            work = asyncio.ensure_future(step.do("s", body))
            nap = asyncio.ensure_future(step.sleep("nap", "1 day"))
            await step.do("b", lambda: 1)
            if really:
                work.cancel()
                nap.cancel()
                await step.wait_for_event("ask", "go")
            await nap
            return await work

        return run

    lab.start(cancels(really=True), id="one")
    lab.idle()
    later = lab.revive()
    later.workflow(cancels(really=False))
    later.idle()
    assert attempts == [1, 2]
    later.advance("1 day")
    assert later.engine.get("one").output == "ran after all"


def test_an_end_that_was_committed_before_the_cancellation_counts(lab):  # S21
    async def run(event, step):
        task = asyncio.ensure_future(step.do("s", lambda: "kept"))
        await asyncio.to_thread(eventually, lambda: "do.finished s" in [f"{e.kind} {e.step}" for e in lab.entries()])
        task.cancel()
        await asyncio.wait({task})
        return await step.do("after", lambda: 1)

    instance = lab.run(run)
    assert instance.step("s").output == "kept"
    assert "do.cancelled s" not in kinds(instance)


def test_a_timeout_around_a_step_cancels_it(lab):  # S21
    async def run(event, step):
        async def body():
            await asyncio.Event().wait()

        try:
            async with asyncio.timeout(0.01):
                await step.do("s", body)
        except TimeoutError:
            return "timed out"

    instance = lab.run(run)
    assert instance.output == "timed out"
    assert instance.step("s").status is StepState.CANCELLED


def test_a_task_group_cancels_the_siblings_of_a_failure(lab):
    gate = Gate()

    async def run(event, step):
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(step.do("slow", gate))
                group.create_task(step.do("bad", lambda: gate.reached() or 1 / 0, retries=0))
        except ExceptionGroup as errors:
            return len(errors.exceptions)

    instance = lab.run(run)
    assert instance.output == 1
    assert instance.step("slow").status is StepState.CANCELLED
    gate.open()


def test_an_error_group_that_leaves_run_keeps_its_parts(lab):
    async def run(event, step):
        async with asyncio.TaskGroup() as group:
            group.create_task(step.do("bad", lambda: 1 / 0, retries=0))

    error = lab.failure(run)
    assert isinstance(error, ExceptionGroup)
    assert [type(part) for part in error.exceptions] == [ZeroDivisionError]


def test_a_step_may_be_awaited_by_shield_and_wait_for(lab):
    async def run(event, step):
        return [
            await asyncio.shield(step.do("a", lambda: 1)),
            await asyncio.wait_for(step.do("b", lambda: 2), 10),
            await asyncio.create_task(step.do("c", lambda: 3)),
            [await task for task in asyncio.as_completed([asyncio.ensure_future(step.do("d", lambda: 4))])],
        ]

    assert lab.output(run) == [1, 2, 3, [4]]


def test_awaiting_a_step_twice_is_the_error_that_python_gives(lab):
    async def run(event, step):
        call = step.do("a", lambda: 1)
        await call
        try:
            await call
        except RuntimeError as error:
            return str(error)

    assert "cannot reuse already awaited coroutine" in lab.output(run)


def test_two_thousand_sleeping_calls_are_possible(lab):
    async def run(event, step):
        await asyncio.gather(*(step.sleep(f"nap {n}", 1 + n % 7) for n in range(2_000)))
        return "awake"

    instance = lab.start(run)
    lab.advance("7 seconds")
    assert instance.output == "awake"
