"""What a panel reads of an instance: lines of steps, the last of all logs, what a restart would do."""

import asyncio
import threading
from dataclasses import replace

import pytest

from nbflow.core.model import StepKey, StepState, StepType
from nbflow.core.plans import RestartPlan
from nbflow.engine import reading
from nbflow.engine.logs import log as logs
from nbflow.errors import NonRetryableError, NotFoundError
from nbflow.jupyter import snapshot
from nbflow.store.wording import plan_text
from tests.engine.conftest import eventually


@pytest.fixture(autouse=True)
def _in_a_notebook():
    logs.set_echo(lambda: False)
    yield
    logs.set_echo(None)


def everything(total: int) -> tuple[int, int]:
    return 0, total


def test_the_last_of_all_logs_is_in_order_of_time_and_a_restart_drops_what_it_drops(lab):
    rounds = iter(range(9))

    async def run(event, step):
        await step.do("one", lambda: print("one", next(rounds)))
        lab.move(1)
        await step.do("two", lambda: print("two", next(rounds)))

    instance = lab.run(run)
    assert [(str(key), item.text) for key, item in reading.log_of_all(instance)] == [("one", "one 0\n"), ("two", "two 1\n")]
    lab.move(1)
    instance.restart(from_step="two")
    lab.finish(instance)
    assert [(str(key), item.text) for key, item in reading.log_of_all(instance)] == [("one", "one 0\n"), ("two", "two 2\n")]


def test_many_steps_of_a_name_are_one_line_with_states_and_times(lab):
    async def run(event, step):
        await step.do("first", lambda: 1)
        await asyncio.gather(*(step.do("many", lambda: 2) for _ in range(30)))
        await step.do("last", lambda: 3)

    instance = lab.run(run)
    page = reading.lines(instance, everything)
    assert [getattr(line, "name", "") for line, _ in page.lines] == ["first", "many", "last"]
    group = page.lines[1][0]
    assert (group.total, group.states, group.opened, group.rate) == (30, {StepState.FINISHED: 30}, False, None)
    assert group.ended_at is not None
    opened = reading.lines(instance, everything, frozenset({(StepType.DO, "many")}))
    assert (opened.total, sum(inside for _, inside in opened.lines)) == (33, 30)
    found = reading.lines(instance, lambda total: (total - 1, total), wanted=lambda step: step.key.name == "many")
    assert (found.total, found.start, found.lines[0][0].count) == (30, 29, 30)


def test_a_plan_counts_what_a_restart_then_does(lab):
    async def run(event, step):
        for name in ("a", "b", "c"):
            await step.do(name, lambda: None)

    instance = lab.run(run)
    plan = reading.plan_of(instance, StepKey(StepType.DO, "b"))
    assert (plan.kept, [str(key) for key in plan.again]) == (1, ["b", "c"])
    assert reading.plan_of(instance, None).kept == 0
    with pytest.raises(NotFoundError, match="'gone'"):
        reading.plan_of(instance, StepKey(StepType.DO, "gone"))
    instance.restart(from_step="b")
    lab.finish(instance)
    assert [step.name for step in instance.steps if step.from_history] == ["a"]


def test_a_plan_from_an_item_counts_it_and_what_started_after_its_map_ended_and_a_restart_does_that(lab):  # S44
    ran: list[str] = []

    async def run(event, step):
        async def work(item):
            await step.do(f"inside {item}", lambda: ran.append(f"inside {item}"))
            ran.append(item)

        await step.do("before", lambda: ran.append("before"))
        await step.map("work", work, "abc", key=str)
        await step.do("after", lambda: ran.append("after"))

    instance = lab.run(run)
    item = StepKey(StepType.MAP, "work", 1, "b")
    plan = reading.plan_of(instance, item)
    assert ([str(key) for key in plan.again], plan.items) == (["work[b]", "inside b[work[b]]", "after"], 2)
    assert plan.kept == 3  # before, inside a and inside c; the map itself goes on
    with pytest.raises(NotFoundError, match="z"):
        reading.plan_of(instance, StepKey(StepType.MAP, "work", 1, "z"))
    ran.clear()
    instance.restart(item)
    lab.finish(instance)
    assert ran == ["inside b", "b", "after"]


def test_a_plan_from_an_item_of_a_map_that_still_runs_drops_that_item_alone(lab):  # S44
    go = threading.Event()

    async def run(event, step):
        await step.do("before", lambda: None)
        await step.map("work", lambda item: item or go.wait(30), [1, 2, 0])

    instance = lab.start(run)
    eventually(lambda: reading.step_of(instance, StepKey(StepType.MAP, "work", 1, "2")) is not None)
    plan = reading.plan_of(instance, StepKey(StepType.MAP, "work", 1, "1"))
    assert ([str(key) for key in plan.again], plan.kept, plan.items) == (["work[1]"], 1, 1)
    go.set()
    lab.finish(instance)


def test_retry_now_of_one_step_leaves_the_others_waiting(lab):
    tried: list[str] = []

    async def run(event, step):
        def body(ctx):
            tried.append(ctx.step.name)
            if tried.count(ctx.step.name) == 1:
                raise OSError

        await asyncio.gather(*(step.do(name, body, retries={"limit": 2, "delay": "1 hour"}) for name in ("a", "b")))

    instance = lab.start(run)
    eventually(lambda: instance.view().retrying == 2)
    instance.retry_now(StepKey(StepType.DO, "b"))
    eventually(lambda: instance.step("b").status is StepState.FINISHED)
    assert sorted(tried) == ["a", "b", "b"]
    assert instance.step("a").status is StepState.RETRYING


def test_a_map_is_one_line_with_its_items_below_it_when_opened_or_asked_for_by_state(lab):
    def body(item):
        print("saw", item)
        if item == "bad":
            raise ValueError(item)
        return item.upper()

    async def run(event, step):
        await step.do("first", lambda: 1)
        await step.map("shout", body, [f"k{n}" for n in range(40)] + ["bad"], retries=0, return_exceptions=True)
        await step.do("last", lambda: 2)

    instance = lab.run(run)
    folded = reading.lines(instance, everything)
    assert [line.name for line, _ in folded.lines] == ["first", "shout", "last"]
    assert repr(instance.steps) == (
        "[<do 'first' · finished · 1>, <map 'shout' · finished · 40 of 41 items · 1 failed>, <do 'last' · finished · 2>]"
    )
    assert repr(instance.items("shout", state="failed")[1]) == "[<map 'shout[40]' · failed · ValueError: bad>]"
    assert (folded.lines[1][0].items.done, folded.lines[1][0].items.failed) == (40, 1)
    opened = frozenset({(StepType.MAP, "shout")})
    page = reading.lines(instance, lambda total: (30, 60), opened)
    assert (page.total, page.start) == (44, 30)
    assert [line.key.key for line, inside in page.lines if inside] == [str(n) for n in range(28, 41)]
    assert page.lines[-1][0].name == "last"
    top = reading.lines(instance, lambda total: (0, 4), opened)
    assert [(line.name, inside) for line, inside in top.lines] == [
        ("first", False),
        ("shout", False),
        ("shout", True),
        ("shout", True),
    ]
    called = reading.lines(instance, lambda _: (1, 3), wanted=lambda _: False, text="shout[3")
    assert (called.total, [line.key.key for line, _ in called.lines]) == (11, ["30", "31"])
    assert reading.lines(instance, everything, wanted=lambda _: False, text="[40]", state=StepState.FINISHED).total == 0
    assert reading.lines(instance, everything, wanted=lambda _: False, text="[40]", state=StepState.FAILED).total == 1
    assert reading.lines(instance, everything, wanted=lambda _: False, text="shout").total == 0  # the map itself is called so
    failed = reading.lines(instance, everything, wanted=lambda step: step.state is StepState.FAILED, state=StepState.FAILED)
    assert [line.key.key for line, _ in failed.lines] == ["40"]
    item = reading.step_of(instance, failed.lines[0][0].key)
    assert (item.error.type, item.attempts) == ("ValueError", 1)
    assert reading.step_of(instance, page.lines[0][0].key).output == "K28"
    assert reading.step_of(instance, StepKey(StepType.MAP, "shout", 1, "none")) is None
    assert item.logs == "saw bad\n"
    assert ("shout[40]", "saw bad\n") in [(str(key), one.text) for key, one in reading.log_of_all(instance)]
    assert len(reading.log_of_all(instance)) == 41


def test_a_body_that_nobody_waits_for_is_told_as_long_as_it_runs(lab):
    begun, go = threading.Event(), threading.Event()

    def body():
        begun.set()
        go.wait(10)

    async def run(event, step):
        await step.do("slow", body, timeout=0.05, retries={"limit": 1, "delay": "1 hour"})

    instance = lab.start(run)
    assert begun.wait(5)
    # The timeout begins when the loop hears that the body does.
    eventually(lambda: lab.move(1) or instance.view().retrying == 1)
    page = reading.lines(instance, everything)
    assert set(page.abandoned) == {"slow"}
    assert snapshot.line_json(page, 0)["abandoned"]
    go.set()
    eventually(lambda: not reading.lines(instance, everything).abandoned)


def test_what_the_present_code_does_not_reach_is_told_in_its_row(lab):
    async def run(event, step):
        await step.do("kept", lambda: 1)

    instance = lab.run(run)
    page = reading.lines(instance, everything)
    marked = replace(page, unreached=[page.lines[0][0].key])
    assert "unreached" not in snapshot.line_json(page, 0)
    assert snapshot.line_json(marked, 0)["unreached"]


def test_a_plan_is_said_in_words():  # S44, S48
    def said(kept=0, again=(), asked=0, **more):
        return plan_text(RestartPlan(kept, tuple(StepKey(StepType.DO, name) for name in again), asked, **more))

    assert said(2, "b") == "2 steps kept, 1 step run again (b)"
    assert said(1, "abcdefghi") == "1 step kept, 9 steps run again (a, b, c, d, e, f, …)"
    assert said(0, "a", 1) == "0 steps kept, 1 step run again (a); 1 answer is dropped and asked for again"
    assert said(0, "a", 2).endswith("; 2 answers are dropped and asked for again")
    assert said(2, "a", items=1) == "2 steps and 1 other item kept, 1 step run again (a)"
    assert said(0, "a", items=4095) == "4,095 other items kept, 1 step run again (a)"
    assert said(3, rolled_back=True) == "rolled back: 3 steps kept, 0 steps run again"


def test_a_plan_of_a_retry_counts_what_it_then_does(lab):  # S41, S48, S61
    ran: list[str] = []
    broken = {"c", "last"}

    def work(item):
        ran.append(item)
        if item in broken:
            raise NonRetryableError(item)

    async def run(event, step):
        await step.do("before", work, "before")
        await step.map("m", work, "abcd", key=str)
        await step.do("last", work, "last")

    instance = lab.run(run)
    assert reading.retry_plan_of(instance, items=False) == RestartPlan(1, (StepKey(StepType.MAP, "m"),), 0, 2)
    ran.clear()
    broken.discard("c")
    instance.resume()
    lab.finish(instance)
    assert ran == ["c", "d", "last"]
    assert reading.retry_plan_of(instance, items=False) == RestartPlan(2, (StepKey(StepType.DO, "last"),), 0)
    broken.clear()
    instance.resume()
    lab.finish(instance)
    assert reading.retry_plan_of(instance, items=False) is None
