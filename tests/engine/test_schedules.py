"""Schedules: one instance per match, missed ones caught up once, never the same twice (S59)."""

from datetime import UTC, datetime

import pytest

from nbflow import NotFoundError, UsageError, WorkflowEntrypoint
from nbflow.engine.engine import Engine
from nbflow.store.memory import MemoryStore
from nbflow.testing import ManualClock


class Hourly(WorkflowEntrypoint):
    async def run(self, event, step):
        return event.schedule and [event.schedule["cron"], event.schedule["scheduled_time"].isoformat()]


@pytest.fixture
def clock():
    return ManualClock(datetime(2026, 3, 27, 12, 30, tzinfo=UTC))


@pytest.fixture
def engine(clock):
    with Engine(":memory:", clock=clock) as engine:
        yield engine


def ids(engine):
    return sorted(one.id for one in engine.list())


def test_one_instance_per_match_with_the_time_in_its_id_and_event(engine, clock):
    engine.register(Hourly).schedule("0 * * * *")
    clock.advance("3 hours")
    assert ids(engine) == ["Hourly-20260327T1300Z", "Hourly-20260327T1400Z", "Hourly-20260327T1500Z"]
    assert engine.get("Hourly-20260327T1400Z").output == ["0 * * * *", "2026-03-27T14:00:00+00:00"]


def test_a_match_in_local_time_follows_daylight_saving(engine, clock):
    """Clocks go forward in Berlin on 29 March 2026: nine o'clock is 8:00 UTC before and 7:00 UTC after."""
    engine.register(Hourly).schedule("0 9 * * *", tz="Europe/Berlin")
    clock.advance("4 days")
    assert ids(engine) == [
        "Hourly-20260328T0800Z",
        "Hourly-20260329T0700Z",
        "Hourly-20260330T0700Z",
        "Hourly-20260331T0700Z",
    ]


@pytest.mark.parametrize(("catch_up", "expected"), [(True, ["Hourly-20260327T1800Z"]), (False, [])])
def test_a_missed_stretch_makes_one_instance_for_its_last_time_or_none(clock, catch_up, expected):
    store = MemoryStore(clock)
    close, store.close = store.close, lambda: None
    with Engine(clock=clock, store=store) as engine:
        engine.register(Hourly).schedule("0 * * * *", catch_up=catch_up)
    clock.advance("6 hours")
    with Engine(clock=clock, store=store) as engine:
        engine.register(Hourly)
        assert ids(engine) == expected
        clock.advance("1 hour")
        assert ids(engine) == [*expected, "Hourly-20260327T1900Z"]
    close()


def test_registering_again_leaves_the_schedule_and_unschedule_removes_it(engine, clock):
    workflow = engine.register(Hourly)
    workflow.schedule("0 * * * *")
    engine.register(Hourly)
    clock.advance("1 hour")
    assert len(ids(engine)) == 1
    workflow.unschedule()
    clock.advance("5 hours")
    assert len(ids(engine)) == 1
    with pytest.raises(NotFoundError, match="no schedule"):
        workflow.unschedule()


def test_a_new_line_replaces_the_old_one(engine, clock):
    workflow = engine.register(Hourly)
    workflow.schedule("0 * * * *")
    workflow.schedule("30 14 * * *")
    clock.advance("1 day")
    assert ids(engine) == ["Hourly-20260327T1430Z"]


@pytest.mark.parametrize("cron", ["", "* * * *", "61 * * * *", "0 0 0 * * *", "often"])
def test_a_line_that_cannot_be_read_is_refused(engine, cron):
    with pytest.raises(UsageError, match="cannot be read"):
        engine.register(Hourly).schedule(cron)
    assert engine.schedules.all() == {}


def test_an_unknown_time_zone_is_refused(engine):
    with pytest.raises(UsageError, match="time zone"):
        engine.register(Hourly).schedule("0 * * * *", tz="Mars/Olympus")


def test_schedules_are_kept_in_the_file(tmp_path, clock):
    with Engine(tmp_path / "h.duckdb", clock=clock) as engine:
        engine.register(Hourly).schedule("0 * * * *")
    with Engine(tmp_path / "h.duckdb", clock=clock) as engine:
        assert engine.schedules.all()["Hourly"].cron == "0 * * * *"
        engine.register(Hourly)
        clock.advance("1 hour")
        assert ids(engine) == ["Hourly-20260327T1300Z"]
