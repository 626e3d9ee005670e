"""Control of an instance that another engine runs (S52)."""

import pytest

from nbflow import Engine, InvalidStatusError
from nbflow.core.model import StepKey, StepType
from tests.engine.conftest import entrypoint, eventually


@pytest.fixture
def engines(tmp_path):
    with Engine(tmp_path / "h.duckdb", notebook="a.ipynb") as here, Engine(tmp_path / "h.duckdb", notebook="b.ipynb") as there:
        yield here, there


def test_retry_delays_of_an_instance_that_runs_elsewhere_can_be_ended(engines):
    here, there = engines
    tried: list[str] = []

    def attempt(ctx):
        tried.append(ctx.step.name)
        if ctx.attempt == 1:
            raise ConnectionError

    async def run(event, step):
        import asyncio

        await asyncio.gather(*(step.do(name, attempt, retries={"limit": 1, "delay": "1 hour"}) for name in "ab"))

    inst = here.register(entrypoint(run), "W", source="s").create("w1")
    eventually(lambda: inst.view().retrying == 2)
    seen = there.get("w1")
    seen.retry_now(StepKey(StepType.DO, "b"))
    eventually(lambda: len(tried) == 3)
    assert tried[2] == "b"
    seen.retry_now()
    eventually(inst.is_finished)
    assert sorted(tried) == ["a", "a", "b", "b"]
    seen.retry_now()  # nothing to do


def test_where_nobody_runs_it_there_is_nobody_to_try_again(tmp_path):
    async def run(event, step):
        await step.do("a", lambda: 1 / 0, retries={"limit": 1, "delay": "1 hour"})

    with Engine(tmp_path / "h.duckdb", notebook="a.ipynb") as here:
        inst = here.register(entrypoint(run), "W", source="s").create("w1")
        eventually(lambda: inst.view().retrying == 1)
    with Engine(tmp_path / "h.duckdb", notebook="b.ipynb") as there, pytest.raises(InvalidStatusError, match="resume it first"):
        there.get("w1").retry_now()
