"""What a panel reads of an instance: lines of steps, the last of all logs, what a restart would do."""

import asyncio

import pytest

from nbflow.core.model import StepKey, StepState, StepType
from nbflow.engine import log as logs
from nbflow.engine import reading
from nbflow.errors import NotFoundError
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
