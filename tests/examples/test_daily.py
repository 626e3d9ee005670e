"""A report every day, and on Mondays one for the week that is made of them."""

from datetime import UTC, datetime

import pytest

from nbflow import Engine, WorkflowEntrypoint
from nbflow.testing import ManualClock


class Daily(WorkflowEntrypoint):
    async def run(self, event, step):
        day = event.schedule["scheduled_time"]
        count = await step.do("count visitors", self.env.visitors, day.date())

        if day.weekday() == 0:

            async def begin_weekly():
                weekly = await self.env.Weekly.create(id=f"week-{day:%Y-%m-%d}", params={"until": day})
                return weekly.id

            await step.do("begin the weekly report", begin_weekly)
        return count


class Weekly(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.sleep("until the office opens", "2 hours")
        return await step.do("add up", self.env.last_seven, event.payload["until"])


@pytest.fixture
def engine():
    wednesday = datetime(2026, 1, 7, 12, tzinfo=UTC)
    with Engine(":memory:", clock=ManualClock(wednesday), notebook="") as engine:

        def last_seven(until):
            days = [one for one in engine.list("Daily") if one.is_finished() and one.created_at <= until]
            return sum(one.output for one in days[:7])

        engine.env.update({"visitors": lambda day: day.day, "last_seven": last_seven})
        engine.register(Weekly)
        engine.register(Daily).schedule("0 6 * * *")
        yield engine


def test_one_report_a_day_and_one_follow_up_a_week(engine):
    engine.clock.advance("14 days")
    days = sorted(one.id for one in engine.list("Daily"))
    assert days == [f"Daily-202601{day:02}T0600Z" for day in range(8, 22)]
    assert sorted(one.id for one in engine.list("Weekly")) == ["week-2026-01-12", "week-2026-01-19"]
    assert engine.get("week-2026-01-12").output == 8 + 9 + 10 + 11 + 12
    assert engine.get("week-2026-01-19").output == sum(range(13, 20))


def test_a_day_knows_its_own_moment(engine):
    engine.clock.advance("1 day")
    (day,) = engine.list("Daily")
    assert day.output == 8
    assert engine.get(day.id).created_at == datetime(2026, 1, 8, 6, tzinfo=UTC)


def test_the_follow_up_comes_two_hours_later(engine):
    engine.clock.advance("5 days")
    week = engine.get("week-2026-01-12")
    assert week.is_finished()
    assert {s.name: s.ended_at for s in week.steps}["add up"] == datetime(2026, 1, 12, 8, tzinfo=UTC)
