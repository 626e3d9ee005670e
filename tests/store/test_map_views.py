"""What SQL says of maps and of instances that have one is what the fold says (S5): a map waits while all its open items do."""

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbflow.core.history import History, status_of
from nbflow.core.model import Kind, StepState
from nbflow.store import known
from nbflow.store.desk import placed
from tests.core import stories


@st.composite
def lives(draw):
    """A map of one instance as engines record it: items begin, wait for another attempt, end; kernels die, others go on."""
    pen = stories.Pen()
    attempts: dict[str, int] = {}
    going = {"order": 1}
    pen.write(Kind.MAP_STARTED, "m", **going)
    called = True
    for _ in range(draw(st.integers(0, 20))):
        step = pen.history().steps[next(iter(pen.history().steps))]
        assert step.items is not None
        running = [item.key for item in step.items.running()]
        held = [key for key, item in step.items.open.items() if item.state is not StepState.RUNNING]
        free = [str(n) for n in range(4) if step.items.state(str(n)) is None]
        does = draw(
            st.sampled_from(
                ["die"] + ["begin"] * 3 * bool(free) + ["again"] * 2 * bool(held) + ["retry", "end", "fail"] * bool(running)
            )
        )
        if does == "die":
            pen.claim()
            called = False
            continue
        if not called:  # the replay comes to the map before any of its items runs
            called = True
            pen.write(Kind.MAP_STARTED, "m", **going)
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
    [step] = fold.steps.values()
    for table in ("entries", *known.TABLES):
        history.rows(f"delete from {table}")
    for base, each in enumerate(placed(entries)):
        history.write([each], base)
    assert history.rows("select status from instances") == [(status_of(fold).value,)]
    assert history.rows("select status from steps where key is null") == [(step.state.value,)]
    assert known.differences(history.rows) == {}
