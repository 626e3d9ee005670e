"""Retries, delays, timeouts, and what `run` sees when a step has failed for good (S22 to S31; API.md §9)."""

import asyncio
import threading
import traceback
from datetime import timedelta

import pytest

from nbflow import (
    NonRetryableError,
    NotSerialisableError,
    RetryAfter,
    StepError,
    StepTimeoutError,
    UsageError,
    WorkflowEntrypoint,
)
from nbflow.core.model import StepState
from tests.engine.conftest import Gate, Lab, entrypoint, eventually, failure_of, kinds


class Flaky:
    """Fails so many times, and says at what times it was tried."""

    def __init__(self, lab: Lab, times: int, error: object = ValueError) -> None:
        self.lab, self.times, self.error = lab, times, error
        self.tried: list[float] = []

    def __call__(self, ctx):
        self.tried.append(self.lab.clock.monotonic())
        if len(self.tried) <= self.times:
            raise self.error(f"attempt {ctx.attempt}") if isinstance(self.error, type) else self.error
        return ctx.attempt

    @property
    def delays(self) -> list[float]:
        return [round(b - a, 6) for a, b in zip(self.tried, self.tried[1:], strict=False)]


def one_step(fn, **options):
    async def run(event, step):
        return await step.do("s", fn, **options)

    return run


# -- how often, how long ----------------------------------------------------------------------------------------------


def test_by_default_six_attempts_with_exponential_delays_from_ten_seconds(lab):  # S22, S23
    flaky = Flaky(lab, 99)
    error = lab.failure(one_step(flaky))
    assert str(error) == "attempt 6"
    assert flaky.delays == [10, 20, 40, 80, 160]


@pytest.mark.parametrize(
    ("backoff", "wanted"), [("constant", [3, 3, 3, 3]), ("linear", [3, 6, 9, 12]), ("exponential", [3, 6, 12, 24])]
)
def test_the_delay_after_a_failed_attempt_follows_the_backoff(lab, backoff, wanted):  # S23
    flaky = Flaky(lab, 4)
    retries = {"limit": 4, "delay": "3 seconds", "backoff": backoff}
    assert lab.output(one_step(flaky, retries=retries)) == 5
    assert flaky.delays == wanted


@pytest.mark.parametrize(
    ("retries", "attempts"),
    [(0, 1), (1, 2), ({"limit": 0}, 1), ({"limit": 2}, 3), ({"delay": 0}, 6), ({"limit": 2, "delay": 0}, 3)],
)
def test_attempts_are_the_limit_of_retries_and_one(lab, retries, attempts):  # S22
    flaky = Flaky(lab, 99)
    lab.failure(one_step(flaky, retries=retries))
    assert len(flaky.tried) == attempts


def test_only_the_named_errors_are_retried(lab):  # API.md §1
    retries = {"limit": 3, "delay": 1, "errors": (KeyError, OSError)}
    other, named = Flaky(lab, 99, ValueError), Flaky(lab, 99, FileNotFoundError)
    lab.failure(one_step(other, retries=retries))
    lab.failure(one_step(named, retries=retries))
    assert (len(other.tried), len(named.tried)) == (1, 4)


NOTEBOOK = {"__name__": "__main__"}
exec(  # code as of a cell: its module is __main__
    """
def typo(ctx): tried.append(1); return undefinedd
def unbound(ctx):
    tried.append(1)
    print(x); x = 1
def missing(ctx): tried.append(1); import no_such_library
def syntax(ctx): tried.append(1); eval("1 +")
def honest(ctx): tried.append(1); raise ValueError
""",
    NOTEBOOK,
)


@pytest.mark.parametrize("name", ["typo", "unbound", "missing", "syntax"])
def test_mistakes_in_notebook_code_that_do_not_heal_are_not_retried(lab, name):  # S22
    NOTEBOOK["tried"] = tried = []
    lab.failure(one_step(NOTEBOOK[name]))
    assert len(tried) == 1


def test_such_mistakes_are_retried_when_the_step_says_so_and_others_always(lab):  # S22
    NOTEBOOK["tried"] = tried = []
    lab.failure(one_step(NOTEBOOK["typo"], retries=2))
    assert len(tried) == 3
    tried.clear()
    lab.failure(one_step(NOTEBOOK["honest"]))
    assert len(tried) == 6


def test_the_module_that_defines_the_workflow_is_notebook_code_too(lab):  # S22
    """As with `nbflow run FILE.py:Class`."""
    tried = []

    def body():
        tried.append(1)
        return undefined_name  # noqa: F821

    class Typo(WorkflowEntrypoint):
        async def run(self, event, step):
            await step.do("s", body)

    assert lab.finish(lab.engine.register(Typo).create()).status().error.type == "NameError"
    assert tried == [1]


def test_such_mistakes_deep_in_a_library_are_retried(lab):  # S22
    flaky = Flaky(lab, 2, NameError)
    assert lab.output(one_step(flaky)) == 3


def test_a_step_in_its_delay_is_retrying_and_its_instance_waits(lab):  # S5
    flaky = Flaky(lab, 1)
    instance = lab.start(one_step(flaky))
    lab.idle()
    assert instance.step("s").status is StepState.RETRYING
    status = instance.status()
    assert status.status == "waiting"
    (waiting,) = status.waiting_for
    assert (waiting.name, waiting.kind, waiting.until) == ("s", "retry", lab.clock.now() + timedelta(seconds=10))
    assert not instance.is_settled()


def test_retry_now_ends_all_delays(lab):
    flaky, other = Flaky(lab, 1), Flaky(lab, 1)

    async def run(event, step):
        return await asyncio.gather(step.do("a", flaky), step.do("b", other))

    instance = lab.start(run)
    lab.idle()
    instance.retry_now()
    lab.idle()
    assert instance.output == [2, 2]
    assert flaky.delays == [0]


def test_the_remainder_of_a_retry_delay_is_waited_after_a_death(lab):  # S25
    flaky = Flaky(lab, 1)
    run = one_step(flaky, retries={"limit": 2, "delay": "1 hour"})
    lab.start(run, id="one")
    lab.advance("40 minutes")
    later = lab.revive()
    later.workflow(run)
    later.advance("19 minutes")
    assert len(flaky.tried) == 1
    later.advance("1 minute")
    assert flaky.delays == [3600]
    assert later.engine.get("one").output == 2


def test_a_retry_deadline_that_passed_while_the_kernel_was_down_is_over_at_once(lab):  # S25
    flaky = Flaky(lab, 1)
    run = one_step(flaky, retries={"limit": 2, "delay": "1 hour"})
    lab.start(run, id="one")
    lab.idle()
    later = lab.revive()
    later.advance("5 hours")
    later.workflow(run)
    later.idle()
    assert later.engine.get("one").output == 2


def test_recorded_retries_and_timeout_keep_while_the_code_is_the_same(lab):  # S13
    limit = 3
    flaky = Flaky(lab, 99)

    async def run(event, step):
        return await step.do("s", flaky, retries={"limit": limit, "delay": 10})

    instance = lab.start(run, id="one")
    lab.idle()
    limit = 0
    later = lab.revive()
    later.workflow(run)
    later.finish(later.engine.get("one"))
    assert len(flaky.tried) == 4
    assert instance.id == "one"


def test_a_delay_function_is_taken_live(lab):  # S13
    asked = []
    flaky = Flaky(lab, 3)

    def delay(ctx, error):
        asked.append(ctx.attempt)
        return 60

    run = one_step(flaky, retries={"limit": 3, "delay": delay})
    lab.start(run, id="one")
    lab.idle()
    later = lab.revive()
    later.workflow(run)
    assert later.finish(later.engine.get("one")).output == 4
    assert asked == [1, 2, 3]
    assert flaky.delays == [60, 60, 60]


# -- delay functions and RetryAfter -----------------------------------------------------------------------------------


async def delay_async(ctx, error):
    await asyncio.sleep(0)
    return f"{ctx.attempt * 7} seconds"


@pytest.mark.parametrize(
    ("delay", "more", "wanted"),
    [
        (lambda ctx, error: 7, {}, [7, 7]),
        (lambda ctx, error: timedelta(minutes=ctx.attempt), {}, [60, 120]),
        (delay_async, {}, [7, 14]),
        (lambda ctx, error: 0, {}, [0, 0]),
        (lambda ctx, error: int(str(error)[-1]), {}, [1, 2]),
        (lambda ctx, error: 5, {"backoff": "exponential"}, [5, 10]),  # scaled only when backoff is named beside it
        (lambda ctx, error: 5, {"backoff": "linear"}, [5, 10]),
        (lambda ctx, error: 5, {"backoff": "constant"}, [5, 5]),
    ],
)
def test_a_delay_function_gets_context_and_error_and_its_answer_is_the_delay(lab, delay, more, wanted):  # S24
    flaky = Flaky(lab, 2)
    assert lab.output(one_step(flaky, retries={"limit": 2, "delay": delay, **more})) == 3
    assert flaky.delays == wanted


def test_a_delay_function_is_asked_once_per_attempt_that_will_be_retried(lab):  # S24
    asked = []
    flaky = Flaky(lab, 99)
    lab.failure(one_step(flaky, retries={"limit": 2, "delay": lambda ctx, error: asked.append((ctx.attempt, str(error))) or 1}))
    assert asked == [(1, "attempt 1"), (2, "attempt 2")]


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (-1, "-1"),
        ("soon", "soon"),
        (None, "None"),
        (float("nan"), "nan"),
        ([], "[]"),
        (ValueError("no idea"), "no idea"),
        (SystemExit("out"), "out"),
    ],
)
def test_a_delay_function_that_fails_or_gives_nonsense_fails_the_step_at_once_and_says_why(lab, answer, word):  # S24
    def delay(ctx, error):
        if isinstance(answer, BaseException):
            raise answer
        return answer

    flaky = Flaky(lab, 99)
    error = lab.failure(one_step(flaky, retries={"limit": 3, "delay": delay}))
    assert len(flaky.tried) == 1
    assert "delay function of step 's'" in str(error)
    assert word in str(error)
    assert "attempt 1" in str(error)


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_delay_function_that_does_not_answer_in_5_seconds_fails_the_step(lab, kind):  # S24
    gate = Gate(1)

    async def never(ctx, error):
        await asyncio.Event().wait()

    flaky = Flaky(lab, 99)
    delay = never if kind == "async" else lambda ctx, error: gate()
    instance = lab.start(one_step(flaky, retries={"limit": 3, "delay": delay}))
    eventually(lambda: flaky.tried and lab.engine.time.next_due() is not None)
    if kind == "thread":
        gate.reached()
    lab.move("4.9 seconds")
    assert not instance.is_finished()
    lab.move("0.2 seconds")
    eventually(instance.is_finished)
    assert "5 s" in str(failure_of(instance))
    gate.open()
    lab.idle()
    assert len(flaky.tried) == 1


def test_retry_after_waits_exactly_that_long_and_counts_as_an_attempt(lab):  # S24
    flaky = Flaky(lab, 99, RetryAfter("42 seconds"))
    error = lab.failure(one_step(flaky, retries={"limit": 2, "delay": 1, "backoff": "exponential"}))
    assert flaky.delays == [42, 42]
    assert isinstance(error, RetryAfter)


def test_retry_after_comes_before_the_delay_function_and_the_named_errors(lab):  # S24
    flaky = Flaky(lab, 1, RetryAfter(9))
    retries = {"limit": 2, "delay": lambda ctx, error: 1, "errors": (KeyError,)}
    assert lab.output(one_step(flaky, retries=retries)) == 2
    assert flaky.delays == [9]


def test_a_senseless_retry_after_fails_the_step_and_names_it(lab):
    flaky = Flaky(lab, 99, RetryAfter("a while"))
    error = lab.failure(one_step(flaky))
    assert "'a while'" in str(error)
    assert len(flaky.tried) == 1


# -- failures as run sees them ----------------------------------------------------------------------------------------


class ServiceError(Exception):
    def __init__(self, code, response):
        super().__init__(f"service said {code}")
        self.code, self.response = code, response


class Refused(NonRetryableError):
    pass


def test_a_failure_reaches_run_and_again_on_replay_without_running_the_body(lab):  # S28
    ran = []

    def body():
        ran.append(1)
        raise ServiceError(503, threading.Lock())

    seen = []

    async def run(event, step):
        try:
            await step.do("s", body, retries={"limit": 1, "delay": 1})
        except ServiceError as error:
            with pytest.raises(AttributeError, match="was not kept"):
                _ = error.response
            note = traceback.format_exception_only(error)[-1]
            seen.append((str(error), error.code, type(error).__name__, note, isinstance(error.__cause__, ServiceError)))
        await step.wait_for_event("go", "go")
        return "caught"

    lab.start(run, id="one")
    lab.advance("1 minute")
    later = lab.revive()
    later.workflow(run)
    later.idle()
    assert len(ran) == 2
    wanted = ("service said 503", 503, "ServiceError", "step 's' failed after 2 attempts\n")
    # The live original is the cause on the first run only (API.md §9).
    assert seen == [(*wanted, True), (*wanted, False)]
    later.engine.get("one").send_event("go")
    assert later.finish(later.engine.get("one")).output == "caught"


def test_a_failure_says_its_message_in_the_step_and_in_the_instance(lab):  # S28
    def body():
        raise ServiceError(503, None)

    instance = lab.run(one_step(body, retries=0))
    for error in (instance.step("s").error, instance.status().error):
        assert error.type == "ServiceError"
        assert error.message == "service said 503"
        assert "raise ServiceError(503, None)" in error.traceback
    assert instance.status().rollback is None


@pytest.mark.parametrize("error", [NonRetryableError("no"), Refused("no")])
def test_a_non_retryable_error_has_one_attempt_and_is_replayed(lab, error):  # S29
    flaky = Flaky(lab, 99, error)

    async def run(event, step):
        try:
            await step.do("s", flaky)
        except type(error) as failure:
            await step.wait_for_event("go", "go")
            return str(failure)

    lab.start(run, id="one")
    lab.idle()
    later = lab.revive()
    later.workflow(run)
    later.engine.get("one").send_event("go")
    assert later.finish(later.engine.get("one")).output == "no"
    assert len(flaky.tried) == 1


def test_a_non_retryable_error_in_run_fails_the_instance(lab):  # S29
    async def run(event, step):
        raise Refused("by me")

    error = lab.failure(run)
    assert isinstance(error, Refused)


BASE = [
    StopIteration("v"),
    StopAsyncIteration("v"),
    KeyboardInterrupt("v"),
    SystemExit(3),
    GeneratorExit("v"),
    asyncio.CancelledError("v"),
    BaseException("v"),
]


@pytest.mark.parametrize("kind", ["plain", "async", "coroutine"])
@pytest.mark.parametrize("error", BASE, ids=lambda e: type(e).__name__)
def test_whatever_a_body_raises_is_a_failure_of_its_attempt(lab, error, kind):  # S30
    attempts = []

    def plain(ctx):
        attempts.append(ctx.attempt)
        raise error

    async def of_the_loop(ctx):
        plain(ctx)

    body = {"plain": plain, "async": of_the_loop, "coroutine": lambda ctx: of_the_loop(ctx)}[kind]

    async def run(event, step):
        try:
            await step.do("s", body, retries={"limit": 1, "delay": 1})
        except Exception as failure:
            caught = type(failure).__name__
        return caught, await step.do("after", lambda: "alive")

    instance = lab.run(run)
    # API.md §9: the two that asyncio cannot carry are RuntimeErrors, what is no Exception a StepError.
    wanted = "RuntimeError" if isinstance(error, StopIteration | StopAsyncIteration) else "StepError"
    assert instance.output == (wanted, "alive")
    assert attempts == [1, 2]
    assert instance.step("s").error.type in (type(error).__name__, "RuntimeError")
    assert lab.output(one_step(lambda: "the engine lives")) == "the engine lives"


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("error", BASE[:2], ids=lambda e: type(e).__name__)
def test_a_stop_iteration_is_the_cause_of_what_run_sees_the_first_time_and_on_replay(lab, error, kind):  # API.md §9
    causes: list[str] = []

    def plain():
        raise error

    async def of_the_loop():
        raise error

    async def run(event, step):
        try:
            await step.do("s", plain if kind == "plain" else of_the_loop, retries=0)
        except RuntimeError as failure:
            causes.append(type(failure.__cause__).__name__)
        await step.wait_for_event("stay", "never")

    instance = lab.start(run)
    lab.idle()
    instance.pause()
    instance.resume()
    lab.idle()
    assert causes == [type(error).__name__] * 2


@pytest.mark.parametrize("error", BASE, ids=lambda e: type(e).__name__)
def test_whatever_run_raises_is_a_failure_of_its_instance(lab, error):  # S30
    async def run(event, step):
        await step.do("s", lambda: 1)
        raise error

    instance = lab.run(run)
    assert instance.status().status == "errored"
    assert lab.output(one_step(lambda: "the engine lives")) == "the engine lives"


def test_system_exit_of_one_instance_leaves_others_running(lab):  # S30
    gate = Gate("fine")
    other = lab.start(one_step(gate), name="Other")
    gate.reached()

    async def run(event, step):
        raise SystemExit

    lab.run(run)
    gate.open()
    assert lab.finish(other).output == "fine"


def test_a_result_that_cannot_be_stored_is_not_retried_and_can_be_caught(lab):  # S31
    ran = []

    async def run(event, step):
        try:
            await step.do("fit", lambda: (ran.append(1), {"model": threading.Lock()})[1])
        except NotSerialisableError as error:
            return str(error)

    message = lab.output(run)
    assert "'fit'" in message
    assert "lock" in message
    assert "model" in message
    assert len(ran) == 1


def test_an_error_whose_class_is_gone_is_a_step_error_with_its_fields(lab):  # API.md §9
    def body():
        Gone = type("Gone", (Exception,), {"__module__": "nowhere"})
        error = Gone("away")
        error.code = 7
        raise error

    async def run(event, step):
        try:
            await step.do("s", body, retries=0)
        except StepError as error:
            return error.type, error.message, error.attributes["code"], str(error)

    assert lab.output(run) == ("Gone", "away", 7, "away")


# -- timeouts ---------------------------------------------------------------------------------------------------------


def test_an_async_body_past_its_timeout_is_cancelled_and_retried(lab):  # S26
    seen = []

    async def body(ctx):
        if ctx.attempt == 2:
            return "second"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    instance = lab.start(one_step(body, timeout="1 minute", retries={"limit": 1, "delay": 5}))
    eventually(lambda: lab.engine.time.next_due() is not None)
    lab.move("59 seconds")
    assert seen == []
    lab.move("1 second")
    eventually(lambda: seen == ["cancelled"])
    lab.idle()
    assert instance.step("s").status is StepState.RETRYING
    lab.advance("5 seconds")
    assert instance.output == "second"
    first, second = instance.step("s").attempts
    assert first.error.type == "StepTimeoutError"
    assert (first.status, second.status) == (StepState.FAILED, StepState.FINISHED)


def test_a_timed_out_attempt_counts_and_is_a_timeout_error(lab):  # S26
    async def body():
        await asyncio.Event().wait()

    async def run(event, step):
        try:
            await step.do("s", body, timeout=3, retries={"limit": 1, "delay": 0})
        except TimeoutError as error:
            return type(error) is StepTimeoutError, str(error)

    instance = lab.start(run)
    for _ in range(2):
        eventually(lambda: lab.engine.time.next_due() is not None)
        lab.move("3 seconds")
        eventually(lambda: lab.engine.time.idle() or not instance.step("s").attempts[-1].ended_at)
    exact, message = lab.finish(instance).output
    assert exact
    assert "3s" in message
    assert len(instance.step("s").attempts) == 2


def test_a_body_that_swallows_its_cancellation_has_timed_out_all_the_same(lab):  # S26
    async def body():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "too late"

    instance = lab.start(one_step(body, timeout=3, retries=0))
    eventually(lambda: lab.engine.time.next_due() is not None)
    lab.move(3)
    lab.finish(instance)
    assert isinstance(failure_of(instance), StepTimeoutError)


def test_a_thread_past_its_timeout_is_abandoned_and_its_late_result_thrown_away(lab):  # S26
    gate = Gate("late")

    def body(ctx):
        return gate() if ctx.attempt == 1 else "in time"

    instance = lab.start(one_step(body, timeout="1 minute", retries={"limit": 1, "delay": 1}))
    gate.reached()
    lab.move("1 minute")
    lab.idle()
    assert "abandoned, still running in its thread" in instance.step("s").attempts[0].error.message
    lab.advance("1 second")
    assert instance.output == "in time"
    entries = len(instance.history())
    gate.open()
    lab.idle()
    assert len(instance.history()) == entries
    assert instance.output == "in time"


def test_the_timeout_is_for_each_attempt(lab):  # S22
    gates = [Gate(), Gate()]

    def body(ctx):
        if ctx.attempt == 1:
            gates[0]()
            raise ValueError
        return gates[1]()

    instance = lab.start(one_step(body, timeout=10, retries={"limit": 1, "delay": 0}))
    gates[0].reached()
    lab.move(9)
    gates[0].open()
    gates[1].reached()
    lab.move(9)
    assert not instance.is_finished()
    gates[1].open()
    assert lab.finish(instance).output is None


def test_a_queued_bodys_timeout_has_not_begun(make_lab):  # API.md, where code runs
    lab = make_lab(max_threads=1)
    first, second = Gate(1), Gate(2)

    async def run(event, step):
        return await asyncio.gather(step.do("a", first, timeout="1 hour"), step.do("b", second, timeout="1 minute", retries=0))

    instance = lab.start(run)
    first.reached()
    lab.move("30 minutes")
    assert second.came == 0
    first.open()
    second.reached()
    lab.move("59 seconds")
    second.open()
    assert lab.finish(instance).output == [1, 2]


def test_an_abandoned_thread_does_not_use_the_pool_up(make_lab):  # API.md, where code runs
    lab = make_lab(max_threads=1)
    stuck, next_one = Gate(), Gate("next")
    instance = lab.start(one_step(stuck, timeout=5, retries=0))
    stuck.reached()
    other = lab.start(one_step(next_one), name="Other")
    lab.move(5)
    next_one.reached()
    next_one.open()
    assert lab.finish(other).output == "next"
    assert isinstance(failure_of(lab.finish(instance)), StepTimeoutError)
    stuck.open()


def test_a_coroutine_given_by_a_plain_body_is_under_the_same_timeout(lab):  # API.md §1
    seen = []

    async def slow():
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    instance = lab.start(one_step(lambda: slow(), timeout=60, retries=0))
    eventually(lambda: seen)
    lab.move(60)
    lab.finish(instance)
    assert isinstance(failure_of(instance), StepTimeoutError)
    assert seen == ["begun", "cancelled"]


# -- deaths -----------------------------------------------------------------------------------------------------------


def test_an_attempt_cut_off_by_a_death_does_not_count_against_the_limit(lab):  # S27
    gate = Gate()
    attempts = []

    def body(ctx):
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            gate()
        raise ValueError(ctx.attempt)

    run = one_step(body, retries={"limit": 1, "delay": 1})
    lab.start(run, id="one")
    gate.reached()
    later = lab.revive()
    later.workflow(run)
    instance = later.finish(later.engine.get("one"))
    assert instance.status().status == "errored"
    assert attempts == [1, 2, 3]
    assert [a.status for a in instance.step("s").attempts] == [StepState.INTERRUPTED, StepState.FAILED, StepState.FAILED]
    gate.open()


def die(lab: Lab, run, times: int, reached) -> Lab:
    """Let the kernel die so often while *reached* says that its bodies run."""
    for death in range(1, times + 1):
        reached(death)
        lab = lab.revive()
        lab.workflow(run)
    return lab


def test_three_deaths_in_a_row_fail_the_instance_and_name_the_step(lab):  # S27
    gate = Gate()
    run = one_step(gate)
    lab.start(run, id="one")
    later = die(lab, run, 3, gate.reached)
    instance = later.engine.get("one")
    eventually(instance.is_finished)
    error = failure_of(instance)
    assert type(error).__name__ == "StepInterruptedError"
    assert "'s'" in str(error)
    assert gate.came == 3
    gate.open()


def test_a_finished_step_between_deaths_starts_the_count_anew(lab):  # S27
    gate = Gate()

    async def run(event, step):
        for i in range(4):
            await step.do(f"ok {i}", lambda: 1)
            await step.do(f"deadly {i}", lambda ctx: ctx.attempt if ctx.attempt > 1 else gate())
        return "through"

    lab.start(run, id="one")
    later = die(lab, run, 4, gate.reached)
    assert later.finish(later.engine.get("one")).output == "through"
    gate.open()


def test_from_the_second_death_on_steps_in_flight_together_run_one_at_a_time(lab):  # S27
    gates = {name: Gate() for name in "abc"}

    async def run(event, step):
        return await asyncio.gather(*(step.do(name, gates[name]) for name in "abc"))

    def all_three(times):
        for gate in gates.values():
            gate.reached(times)

    lab.start(run, id="one")
    later = die(lab, run, 2, all_three)
    gates["a"].reached(3)
    later.engine.on_loop(lambda: None)
    assert [gate.came for gate in gates.values()] == [3, 2, 2]
    gates["a"].open()
    gates["b"].reached(3)
    assert gates["c"].came == 2
    last = die(later, run, 1, lambda _: None)
    # "a" has ended meanwhile, so the guilty one is known to be "b", and the count began anew.
    instance = last.engine.get("one")
    assert not instance.is_finished()
    for gate in gates.values():
        gate.open()
    assert last.finish(instance).output == [None, None, None]


def test_the_message_after_three_deaths_names_only_what_ran_at_the_last(lab):  # S27
    gates = {name: Gate() for name in "abc"}

    async def run(event, step):
        return await asyncio.gather(*(step.do(name, gates[name]) for name in "abc"))

    def reached(times):
        for gate in list(gates.values())[: 3 if times < 3 else 1]:
            gate.reached(times)

    lab.start(run, id="one")
    later = die(lab, run, 3, reached)
    message = str(failure_of(later.finish(later.engine.get("one"))))
    assert "'a'" in message
    assert "'b'" not in message
    for gate in gates.values():
        gate.open()


def test_resuming_grants_three_more_deaths(lab):  # S27
    gate = Gate("done")
    run = one_step(gate)
    lab.start(run, id="one")
    later = die(lab, run, 3, gate.reached)
    instance = later.engine.get("one")
    eventually(instance.is_finished)
    instance.resume()
    later = die(later, run, 2, lambda death: gate.reached(3 + death))
    gate.open()
    assert later.finish(later.engine.get("one")).output == "done"


def test_a_usage_error_in_a_body_is_retried_like_any_error(lab):
    flaky = Flaky(lab, 1, UsageError)
    assert lab.output(one_step(flaky)) == 2


def test_kinds_of_entries_tell_the_story_of_a_retried_step(lab):
    flaky = Flaky(lab, 1)
    assert kinds(lab.run(one_step(flaky))) == [
        "created",
        "claimed",
        "activated",
        "do.started s",
        "do.retrying s",
        "do.started s",
        "do.finished s",
        "completed",
    ]


@pytest.mark.parametrize("what", ["sleep", "event", "retry"])
def test_a_death_while_it_only_waits_is_no_fault_of_its(lab, what):  # S27
    tried = []

    def body():
        tried.append(1)
        if what == "retry" and len(tried) == 1:
            raise OSError

    async def run(event, step):
        if what == "sleep":
            await step.sleep("s", "30 days")
        if what == "event":
            await step.wait_for_event("w", "go", timeout="40 days")
        await step.do("d", body, retries={"limit": 1, "delay": "30 days"})
        return "through"

    lab.start(run, id="one")
    lab.idle()
    later = lab
    for _ in range(5):
        later.advance("1 day")
        later = later.revive()
        later.workflow(run)
        later.idle()
    instance = later.engine.get("one")
    assert instance.status().status == "waiting"
    if what == "event":
        instance.send_event("go")
    later.advance("30 days")
    assert instance.output == "through"


def deadly_handler(gate):
    async def run(event, step):
        await step.do("first", lambda: 1, rollback=gate)
        raise ValueError("original")

    return run


def test_three_deaths_in_a_handler_end_the_rollback_and_name_it(lab):  # S27, S47, S48
    gate = Gate()
    run = deadly_handler(gate)
    lab.start(run, id="one")
    # The activation in which "first" ended has got on: it is the first of none.
    instance = die(lab, run, 4, gate.reached).engine.get("one")
    eventually(instance.is_finished)
    status = instance.status()
    assert (str(status.status), status.error.type, status.error.message) == ("errored", "ValueError", "original")
    outcome, error = status.rollback
    assert (outcome, error.type) == ("failed", "StepInterruptedError")
    assert "'undo first'" in error.message
    assert gate.came == 4
    gate.open()


def test_three_deaths_in_a_handler_end_the_rollback_of_a_terminated_one_too(lab):  # S27, S49
    gate = Gate()

    async def run(event, step):
        await step.do("first", lambda: 1, rollback=gate)
        await step.wait_for_event("w", "never")

    instance = lab.start(run, id="one")
    lab.idle()
    instance.terminate(rollback=True)
    instance = die(lab, run, 3, gate.reached).engine.get("one")
    eventually(instance.is_finished)
    assert (str(instance.status().status), instance.status().rollback[0]) == ("terminated", "failed")
    gate.open()


def test_a_handler_that_ends_between_deaths_starts_the_count_anew(lab):  # S27, S47
    gate = Gate()

    async def run(event, step):
        for number in range(4):
            await step.do(f"ok {number}", lambda: 1, rollback=lambda ctx: None if ctx.attempt > 2 else gate())
        raise ValueError("original")

    lab.start(run, id="one")
    later = die(lab, run, 8, gate.reached)
    assert later.finish(later.engine.get("one")).status().rollback == ("complete", None)
    gate.open()


def open_cell(lab, run, source):
    """Run its cell in a new kernel."""
    later = lab.revive()
    workflow = later.engine.register(entrypoint(run), "W", source=source, resume=False)
    opened = later.engine.open(workflow, "one", None, again=False)
    opened.start()
    return later, opened


def test_running_the_cell_by_hand_after_each_death_does_not_start_the_count_anew(lab):  # S27
    gate = Gate("done")
    run = one_step(gate)
    later, _ = open_cell(lab, run, "s")
    for death in (1, 2):
        gate.reached(death)
        later, opened = open_cell(later, run, "s")
        assert opened.what == "resumed"
    gate.reached(3)
    later, opened = open_cell(later, run, "s")
    assert "fails: the kernel died 3 times in a row while 's' ran" in opened.line
    assert failure_of(later.finish(opened.instance)).args[0].endswith("run the cell again for three more tries")
    for death in (4, 5):
        later, _ = open_cell(later, run, "s")
        gate.reached(death)
    gate.open()
    later, opened = open_cell(later, run, "s")
    assert later.finish(opened.instance).output == "done"


@pytest.mark.parametrize("how", ["other code", "resumed"])
def test_other_code_and_the_word_to_resume_start_the_count_anew(lab, how):  # S27, S58
    gate = Gate("done")
    run = one_step(gate)
    later, _ = open_cell(lab, run, "s")
    for death in (1, 2):
        gate.reached(death)
        later, _ = open_cell(later, run, "s")
    gate.reached(3)
    if how == "other code":
        later, opened = open_cell(later, run, "changed")
        instance = opened.instance
    else:
        later = later.revive()
        later.engine.register(entrypoint(run), "W", source="s", resume=False)
        instance = later.engine.get("one")
        instance.resume()
    gate.reached(4)
    gate.open()
    assert later.finish(instance).output == "done"
