"""A race: the first answer wins, the loser is cancelled, and a replay goes the same way."""

import asyncio

import pytest

from nbflow import WorkflowEntrypoint


class Quote(WorkflowEntrypoint):
    async def run(self, event, step):
        self.env.runs.append(event.instance_id)
        offers = {asyncio.ensure_future(step.do(name, self.env.ask, name)): name for name in ("north", "south")}
        done, pending = await asyncio.wait(offers, return_when=asyncio.FIRST_COMPLETED)
        for loser in pending:
            loser.cancel()
        winner = offers[done.pop()]
        await step.sleep("think it over", "1 day")
        return await step.do("order", lambda: f"from {winner}")


class Patience(WorkflowEntrypoint):
    """A body against a deadline: the sleep is the other runner."""

    async def run(self, event, step):
        job = asyncio.ensure_future(step.wait_for_event("job", "job-done", timeout="30 days"))
        limit = asyncio.ensure_future(step.sleep("deadline", "3 days"))
        done, pending = await asyncio.wait({job, limit}, return_when=asyncio.FIRST_COMPLETED)
        for loser in pending:
            loser.cancel()
        return job.result().payload if job in done else "gave up"


class Offices:
    """The one that answers does so at once, the other never."""

    def __init__(self, fast):
        self.fast, self.asked, self.cancelled = fast, [], []

    async def ask(self, ctx):
        name = ctx.step.name
        self.asked.append(name)
        if name == self.fast:
            return name
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise


@pytest.fixture
def race(engine):
    def begin(fast):
        offices = Offices(fast)

        async def ask(name, ctx):
            return await offices.ask(ctx)

        engine.env.update({"ask": ask, "runs": []})
        return engine.register(Quote).create("q"), offices

    return begin


@pytest.mark.parametrize(("fast", "slow"), [("north", "south"), ("south", "north")])
def test_the_first_wins_and_the_other_is_cancelled(engine, race, fast, slow):
    quote, offices = race(fast)
    engine.clock.advance("1 day")
    assert quote.output == f"from {fast}"
    assert offices.cancelled == [slow]
    assert {s.name: s.status for s in quote.steps if s.type == "do"} == {
        fast: "finished",
        slow: "cancelled",
        "order": "finished",
    }


@pytest.mark.parametrize(("fast", "slow"), [("north", "south"), ("south", "north")])
def test_a_replay_goes_the_same_way_although_the_other_would_now_win(engine, race, fast, slow, reopen):
    _, offices = race(fast)
    engine.clock.advance("1 hour")
    offices.fast = slow
    later = reopen(engine, Quote)
    later.clock.advance("1 day")
    assert later.get("q").output == f"from {fast}"
    assert sorted(offices.asked) == ["north", "south"]
    assert later.env["runs"] == ["q", "q"]


def test_a_deadline_is_the_other_runner_of_a_race(engine):
    workflow = engine.register(Patience)
    early, late = workflow.create("early"), workflow.create("late")
    engine.clock.advance("2 days")
    early.send_event("job-done", "result")
    engine.clock.advance("1 day")
    assert (early.output, late.output) == ("result", "gave up")
    assert {s.name: s.status for s in early.steps} == {"job": "finished", "deadline": "cancelled"}
    assert {s.name: s.status for s in late.steps} == {"job": "cancelled", "deadline": "finished"}
