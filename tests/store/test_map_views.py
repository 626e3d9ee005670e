"""What SQL says of maps, their items and their instance is what the fold says (S5): a map waits while all its open items do."""

from functools import partial

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbflow.core.history import History, status_of
from nbflow.core.maps import item_records
from nbflow.core.model import Kind, StepKey, StepState, StepType
from nbflow.core.told import as_told, item_state
from nbflow.store import known
from nbflow.store.desk import placed
from tests.core import stories


@st.composite
def lives(draw):
    """A map of one instance as engines record it: items begin, wait for another attempt, end; kernels die, others go on."""
    pen = stories.Pen()
    attempts: dict[str, int] = {}
    going = {"order": 1}
    pen.write(Kind.WAIT_STARTED, "w", order=2, due_at=stories.seconds(900).isoformat(), event_type="go")
    pen.write(Kind.MAP_STARTED, "m", **going)
    called = True
    for _ in range(draw(st.integers(0, 20))):
        history = pen.history()
        step = history.steps[StepKey(StepType.MAP, "m", 1)]
        assert step.items is not None
        running = [item.key for item in step.items.running()]
        held = [key for key, item in step.items.open.items() if item.state is not StepState.RUNNING]
        free = [str(n) for n in range(4) if step.items.state(str(n)) is None]
        does = draw(
            st.sampled_from(
                ["die", "leave", "over", "end of map"]
                + ["begin"] * 3 * bool(free)
                + ["again"] * 2 * bool(held)
                + ["retry", "end", "fail"] * bool(running)
            )
        )
        if does == "die":
            pen.claim()
            called = False
            continue
        if does == "over":
            end = draw(st.sampled_from([Kind.COMPLETED, Kind.ERRORED, Kind.TERMINATED]))
            pen.token += end is Kind.TERMINATED
            pen.write(end)
            break
        if does in ("leave", "end of map"):
            end = Kind.MAP_CANCELLED if does == "leave" else draw(st.sampled_from([Kind.MAP_FINISHED, Kind.MAP_FAILED]))
            if step.ended or not called or (does != "leave" and step.items.running()):
                continue
            pen.write(end, "m", started_at=step.started_at.isoformat(), **going)
            continue
        if step.ended and (called or step.state is not StepState.CANCELLED):
            continue  # nothing of it runs, unless a replay under another claim calls it
        called = called and not step.ended
        if not called:  # the replay comes to the map before any of its items runs
            called = True
            pen.write(Kind.MAP_STARTED, "m", started_at=step.started_at.isoformat(), **going)
        key = draw(st.sampled_from({"begin": free, "again": held}.get(does, running)))
        if does in ("begin", "again"):
            attempts[key] = attempts.get(key, 0) + 1
        kind = {
            "begin": Kind.MAP_STARTED,
            "again": Kind.MAP_STARTED,
            "retry": Kind.MAP_RETRYING,
            "end": Kind.MAP_FINISHED,
            "fail": Kind.MAP_FAILED,
        }[does]
        body = {"attempt": attempts[key], "hash": "1", **going}
        if does not in ("begin", "again"):
            body["started_at"] = stories.seconds(1).isoformat()
        if does == "retry":
            body["retry_at"] = stories.seconds(90).isoformat()
        made = pen.write(kind, "m", value=b"j1" if does == "end" else None, **body)
        pen.entries[-1] = msgspec.structs.replace(made, key=key, body=body)
    return pen.entries


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(lives())
def test_a_map_and_its_instance_stand_in_sql_as_in_the_fold(history, entries):
    fold = History(entries)
    [the_map] = [step for step in fold.steps.values() if step.items is not None]
    for table in ("entries", *known.TABLES):
        history.rows(f"delete from {table}")
    for base, each in enumerate(placed(entries)):
        history.write([each], base)
    assert history.rows("select status from instances") == [(status_of(fold).value,)]
    for step in map(partial(as_told, fold), fold.steps.values()):
        [told] = history.rows(f"select status, started_at, ended_at from steps where name = '{step.key.name}' and key is null")
        assert told == (step.state.value, step.started_at, step.ended_at)
    records = item_records(History(), the_map, [each for each in entries if each.key is not None and each.step == "m"])
    items = {key: as_told(fold, record) for key, record in records.items()}
    assert {key: item_state(fold, the_map, key) for key in items} == {key: item.state for key, item in items.items()}
    assert dict(history.rows("select key, (status, ended_at) from steps where key is not null")) == {
        key: (item.state.value, item.ended_at) for key, item in items.items()
    }
    assert dict(history.rows("select (key, attempt), status from attempts where key is not null")) == {
        (key, attempt.number): attempt.state.value for key, item in items.items() for attempt in item.attempts
    }
    assert known.differences(history.rows) == {}
    known.rebuild(history.rows)
    assert history.rows("select status from instances") == [(status_of(fold).value,)]
