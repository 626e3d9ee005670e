import re
import threading
from datetime import UTC, datetime, timedelta

import duckdb
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbflow.clock import pause
from nbflow.core.history import History, status_of
from nbflow.core.model import FENCES, Draft, Kind, StepState, StepType
from nbflow.core.told import as_told
from nbflow.errors import StoreError, UsageError
from nbflow.store import known, lines, queries
from nbflow.store.desk import placed
from nbflow.store.memory import MemoryStore
from tests.core import stories
from tests.store.actors import draft, entry, finished, names, owner, start_instance, started

# -- views tell what the fold tells


def goes_on(history):
    again = (StepState.RETRYING, StepState.INTERRUPTED)
    return [step for step in history.steps.values() if step in history.open_steps() or step.state in again]


@st.composite
def lives(draw):
    """The entries of one instance as engines write them: legal in each moment, with owners gone that still write."""
    pen = stories.Pen()
    tokens = [1]
    events = 0
    for _ in range(draw(st.integers(0, 30))):
        history = pen.history()
        head = history.head
        free = [name for name in "abcdef" if not any(key.name == name for key in history.steps)]
        choices = ["fence", "event", "pause"]
        if not head.finished:
            choices += ["start"] * 6 * bool(free) + ["go on"] * 8 * bool(goes_on(history)) + ["end", "stale", "aside"]
        kind = draw(st.sampled_from(choices))
        if kind == "start":
            name = draw(st.sampled_from(free))
            which = draw(
                st.sampled_from(
                    [Kind.DO_STARTED] * 3
                    + [
                        Kind.DO_FINISHED,
                        Kind.SLEEP_STARTED,
                        Kind.WAIT_STARTED,
                        Kind.DO_RETRYING,
                        Kind.CHILD_STARTED,
                        Kind.ROLLBACK_STARTED,
                    ]
                )
            )
            pen.start(which, name)
        elif kind == "go on":
            step = draw(st.sampled_from(goes_on(history)))
            given_body = {"order": step.order}
            if step.key.type is StepType.DO:
                ends = [Kind.DO_FINISHED, Kind.DO_FAILED, Kind.DO_RETRYING, Kind.DO_CANCELLED]
                which = draw(st.sampled_from(ends)) if step.state is StepState.RUNNING else Kind.DO_STARTED
                given_body["attempt"] = step.attempt + (which is Kind.DO_STARTED)
                if which is not Kind.DO_STARTED:
                    given_body["started_at"] = step.attempts[-1].started_at.isoformat()
            elif step.key.type is StepType.SLEEP:
                which = draw(st.sampled_from([Kind.SLEEP_FINISHED, Kind.SLEEP_CANCELLED]))
            else:
                waiting = history.buffered("go")
                which = Kind.WAIT_FINISHED if waiting else draw(st.sampled_from([Kind.WAIT_FAILED, Kind.WAIT_CANCELLED]))
                if waiting:
                    given_body["event_id"] = waiting[0].event_id
            value = b"j1" if which in (Kind.DO_FINISHED, Kind.WAIT_FINISHED) else None
            if step.key.type is StepType.CHILD:
                which = draw(st.sampled_from([Kind.CHILD_FINISHED, Kind.CHILD_FAILED, Kind.CHILD_CANCELLED]))
            elif step.key.type is StepType.ROLLBACK:
                which = draw(st.sampled_from([Kind.ROLLBACK_FINISHED, Kind.ROLLBACK_FAILED, Kind.ROLLBACK_RETRYING]))
                given_body["attempt"] = step.attempt
            pen.write(which, step.key.name, value=value, **given_body)
        elif kind == "event":
            events += 1
            pen.event(f"e{events}")
        elif kind == "aside":
            if waiting := history.buffered("go"):
                pen.write(Kind.SET_ASIDE, event_id=waiting[0].event_id)
        elif kind == "stale" and tokens[0] != pen.token:
            pen.write(Kind.DO_FINISHED, "a", token=tokens[0], order=1)
        elif kind == "pause":
            pen.write(draw(st.sampled_from([Kind.PAUSING, Kind.PAUSED, Kind.RESUMED])), token=0)
        elif kind == "end":
            pen.write(draw(st.sampled_from([Kind.COMPLETED, Kind.ERRORED, Kind.ROLLING_BACK])))
        elif head.finished:
            if draw(st.booleans()) and head.status != "terminated":
                pen.write(Kind.RETRIED, token=0)
            else:
                pen.restart(draw(st.integers(0, 5)))
        else:
            fence = draw(st.sampled_from(["claim", "restart", "terminate", "roll back"]))
            if fence == "claim":
                pen.claim()
            elif fence == "restart":
                pen.restart(draw(st.integers(0, 5)))
            else:
                pen.token += 1
                pen.write(Kind.TERMINATED if fence == "terminate" else Kind.TERMINATING)
        tokens.append(pen.token)
    return pen.entries


def told_by_fold(history):
    head = history.head
    told = {key: as_told(history, step) for key, step in history.steps.items()}
    steps = {(str(key.type), key.name, key.count): (str(step.state), step.attempt, step.ended_at) for key, step in told.items()}
    events = {(event.event_id, event.taken_at) for event in history.events.values()}
    attempts = {
        (
            key.name,
            attempt.number,
            str(attempt.state),
            attempt.started_at,
            attempt.ended_at if attempt.state is not StepState.INTERRUPTED else None,
        )
        for key, step in told.items()
        for attempt in step.attempts
        if key.type is not StepType.ROLLBACK
    }
    return (
        str(status_of(history)),
        head.started_at,
        head.ended_at if head.finished else None,
        (head.error or {}).get("type"),
        (head.error or {}).get("message"),
        steps,
        events,
        attempts,
    )


def told_by_views(ask):
    about = "status, started_at, ended_at, error_type, error_message"
    [(status, started_at, ended_at, *error)] = ask(f"select {about} from instances")
    steps = {
        (kind, name, count): (state, attempts, ended)
        for kind, name, count, state, attempts, ended in ask("select type, name, count, status, attempts, ended_at from steps")
    }
    events = set(
        ask(
            "select h.body ->> '$.event_id', e.consumed_at from events e join history h on h.recorded_at = e.sent_at and h.kind = 'event'"
        )
    )
    attempts = {
        (name, number, state, begun, ended if state != "interrupted" else None)
        for name, number, state, begun, ended in ask("select name, attempt, status, started_at, ended_at from attempts")
    }
    return status, started_at, ended_at, *error, steps, events, attempts


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(lives(), st.lists(st.integers(1, 20), max_size=3))
def test_views_tell_what_the_fold_tells(history, entries, ways):
    """Through journals, in however many loads, and written directly."""
    fold = told_by_fold(History(entries))
    empty(history)
    history.write(placed(entries), 0)
    assert told_by_views(history.rows) == fold
    empty(history)
    stretch = []
    for each in placed(entries):
        if each.kind in FENCES:  # before anything of others, the journal is loaded
            load_in_parts(history, stretch, ways)
            history.write([each], last_of(history))
            stretch = []
        else:
            stretch.append(each)
    load_in_parts(history, stretch, ways)
    assert told_by_views(history.rows) == fold
    assert known.differences(history.rows) == {}
    known.rebuild(history.rows)
    assert told_by_views(history.rows) == fold
    history.write([entry(Kind.DELETED, 1, token=99)], last_of(history))
    assert [history.rows(f"from {view}") for view in queries.VIEWS] == [[]] * len(queries.VIEWS)
    assert known.differences(history.rows) == {}


def empty(history):
    for table in ("entries", *known.TABLES):
        history.rows(f"delete from {table}")


def last_of(history):
    return history.rows("select coalesce(max(seq), 0) from entries")[0][0]


def load_in_parts(history, entries, ways):
    rest = [lines.framed(lines.of_entry(each)) for each in entries]
    for size in [*ways, len(rest)]:
        if rest[:size]:
            history.load(b"".join(rest[:size]), last_of(history))
            rest = rest[size:]


def test_columns_repeat_what_the_body_says(history):
    said = {"order": 3, "attempt": 2, "started_at": "2030-01-01T00:00:00+00:00"}
    made = [
        entry(Kind.DO_FINISHED, 1, step="s", value=b"j1", **said, uri="W/a/1", sensitive=True),
        entry(Kind.DO_FINISHED, 1, step="t", value=b"j1"),
        entry(Kind.COMPLETED, 1, uri="W/a/2"),
        entry(Kind.EVENT, 1, event_id="e", sensitive=True),
    ]
    columns = 'select "order", attempt, started_at, uri, sensitive from entries order by seq'
    told = [
        (3, 2, datetime(2030, 1, 1, tzinfo=UTC), "W/a/1", True),
        (0, None, None, None, None),
        (None, None, None, "W/a/2", None),
        (None, None, None, None, True),
    ]
    empty(history)
    history.write(made, 0)
    assert history.rows(columns) == told
    empty(history)
    of_an_older_nbflow = [re.sub(rb',"order":.*(?=}$)', b"", lines.of_entry(one)) for one in made]
    history.load(b"".join(lines.framed(line) for line in of_an_older_nbflow), 0)
    assert history.rows(columns) == [told[0], (None, *told[1][1:]), *told[2:]]


def test_of_a_step_that_has_ended_one_entry_tells_all(history):
    def load(*made):
        load_in_parts(history, made, [])

    empty(history)
    load(started(1, "fast"), finished(1, "fast"), started(1, "slow"))
    load(finished(1, "slow"), started(1, "again"), entry(Kind.DO_RETRYING, 1, step="again", order=1, attempt=1),
         started(1, "again", attempt=2), finished(1, "again", attempt=2))  # fmt: skip
    load(started(1, "again"), entry(Kind.DO_CANCELLED, 1, step="slow", order=1))
    told = "select step, kind, attempt, began_at is null from entries where whole order by seq"
    assert history.rows(told) == [
        ("fast", "do.finished", 1, True),
        ("slow", "do.finished", 1, False),
        ("again", "do.finished", 2, False),
    ]


@pytest.mark.parametrize(
    "kind", ["created", "activated", "errored", "retried", "restarted", "do.started", "do.retrying", "wait.started"]
)
def test_a_body_that_is_no_json_keeps_nothing_from_being_known(history, kind):
    empty(history)
    history.write(placed([entry(Kind.CREATED, 1, token=0, workflow="W", id="a")]), 0)
    step = ("s", 1) if "." in kind else (None, None)
    row = "(seq, recorded_at, created_seq, token, kind, step, count, key, body)"
    history.rows(
        f"insert into entries {row} values (2, now(), 1, 1, $1, $2, $3, $4, 'no json')",
        [kind, *step, "W/b" if kind == "created" else None],
    )
    known.keep_up(history.rows, 1)
    kept = [history.rows(f"from {table}") for table in known.TABLES]
    known.rebuild(history.rows)
    assert [history.rows(f"from {table}") for table in known.TABLES] == kept
    assert known.differences(history.rows) == {}


def test_a_view_of_many_instances_keeps_them_apart(opened):
    store = opened()
    seqs = [start_instance(store, f"i{n}") for n in range(5)]
    for number, created in enumerate(seqs):
        for step in range(number):
            store.append(finished(created, f"s{step}", f"j{number}".encode()))
    rows = store.sql("select instance_id, count(*), any_value(output) from steps group by instance_id order by 1").fetchall()
    assert rows == [(f"i{n}", n, str(n)) for n in range(1, 5)]


# -- columns


def test_instances_have_the_columns_of_the_contract_and_right_values(opened):
    store = opened()
    [made] = store.create([draft("a", params=b'j{"source": [1, 2]}', parent="p-1")], owner(store))
    created = made[0].created_seq
    store.append(entry(Kind.ACTIVATED, created, number=1, code_hash="c1"))
    store.append(entry(Kind.COMPLETED, created, value=b'r{"x"}', json='{"n": 1}'))
    relation = store.sql("from instances")
    assert relation.columns == [
        "workflow", "instance_id", "created_seq", "status", "created_at", "started_at", "ended_at", "params", "output",
        "error_type", "error_message", "code_hash", "parent_id",
    ]  # fmt: skip
    [row] = relation.fetchall()
    assert row[:4] == ("W", "a", 1, "complete")
    assert row[4] <= row[5] <= row[6]
    assert row[7:] == ('{"source": [1, 2]}', '{"n": 1}', None, None, "c1", "p-1")
    assert store.sql("select params ->> '$.source[1]', output -> 'n' from instances").fetchall() == [("2", "1")]


def test_steps_have_the_columns_of_the_contract_and_right_values(opened):
    store = opened()
    created = start_instance(store)
    store.append(finished(created, "t", b"rParquet", output_type="DataFrame", uri="W/a/00.parquet", code_hash="h", attempt=3))
    store.append(entry(Kind.DO_FAILED, created, step="f", order=2, attempt=1, error={"type": "ValueError", "message": "no"}))
    store.append(entry(Kind.MAP_FINISHED, created, step="m", key="k", order=3, attempt=1, value=b"j2"))
    relation = store.sql("from steps order by name desc")
    assert relation.columns == [
        "workflow", "instance_id", "created_seq", "name", "count", "key", "type", "status", "attempts", "started_at",
        "ended_at", "duration_s", "output", "output_type", "output_uri", "error_type", "error_message", "code_hash",
    ]  # fmt: skip
    table, mapped, failed = relation.fetchall()
    assert table[3:9] == ("t", 1, None, "do", "finished", 3)
    assert table[11] == pytest.approx((table[10] - table[9]) / timedelta(seconds=1))
    assert table[12:] == (None, "DataFrame", str(store.artifacts / "W/a/00.parquet"), None, None, "h")
    assert mapped[3:9] == ("m", 1, "k", "map", "finished", 1)
    assert mapped[12] == "2"
    assert failed[7] == "failed"
    assert failed[15:17] == ("ValueError", "no")


def test_output_uri_joins_a_stored_table_with_the_history(opened):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    store = opened()
    created = start_instance(store)
    folder = store.artifacts / "W" / "a"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"x": [1, 2, 3]}), folder / "00.parquet")
    store.append(finished(created, "t", b"r", uri="W/a/00.parquet"))
    [(uri,)] = store.sql("select output_uri from steps").fetchall()
    assert store.sql(f"select sum(x) from read_parquet('{uri}')").fetchall() == [(6,)]


def test_events_and_attempts_and_history_have_right_values(opened):
    store = opened()
    created = start_instance(store)
    store.command(created, lambda head, entries: [(Kind.EVENT, {"event_id": "e1", "type": "go", "by": "me"}, b'j{"ok": true}')])
    store.append(entry(Kind.WAIT_STARTED, created, step="w", order=1, due_at="2030-01-01T00:00:00+00:00", event_type="go"))
    store.append(entry(Kind.WAIT_FINISHED, created, step="w", order=1, event_id="e1", event_type="go", value=b'j{"ok": true}'))
    for attempt in (1, 2):
        store.append(entry(Kind.DO_RETRYING, created, step="s", order=2, attempt=attempt, error={"type": "E", "message": "m"}))
    events = store.sql("from events")
    assert events.columns == ["workflow", "instance_id", "created_seq", "type", "payload", "sent_at", "sent_by", "consumed_at"]
    [event] = events.fetchall()
    assert event[3:5] == ("go", '{"ok": true}')
    assert event[6] == "me"
    assert event[7] >= event[5]
    attempts = store.sql("from attempts order by attempt")
    assert attempts.columns == [
        "workflow", "instance_id", "created_seq", "name", "count", "key", "attempt", "status", "started_at", "ended_at",
        "error_type", "error_message",
    ]  # fmt: skip
    assert [(row[3], row[6], row[7], row[10]) for row in attempts.fetchall()] == [
        ("s", 1, "failed", "E"),
        ("s", 2, "failed", "E"),
    ]
    history = store.sql("from history order by seq")
    assert history.columns[:6] == ["seq", "recorded_at", "workflow", "instance_id", "created_seq", "kind"]
    assert [row[5] for row in history.fetchall()] == [
        "created", "claimed", "event", "wait.finished", "do.retrying", "do.retrying",
    ]  # fmt: skip


def test_a_value_called_sensitive_is_shown_nowhere(opened):
    store = opened()
    created = start_instance(store)
    store.append(finished(created, "s", b'j"secret"', sensitive=True, uri="W/a/secret.npy"))
    error = {"type": "E", "message": "secret"}
    store.append(entry(Kind.DO_FAILED, created, step="f", order=2, attempt=1, error=error, sensitive=True))
    for view in ("instances", "steps", "attempts", "events"):
        assert "secret" not in str(store.sql(f"from {view}").fetchall()), view
    assert store.sql("select value from history where step = 's'").fetchall() == [(None,)]
    assert store.sql("select output from steps where name = 's'").fetchall() == [('"[REDACTED]"',)]
    assert store.read(created)[2].value == b'j"secret"'


def test_a_deleted_instance_is_in_no_view(opened):
    store = opened()
    created = start_instance(store)
    store.append(finished(created, "s"))
    store.command(
        created, lambda head, entries: [(Kind.EVENT, {"event_id": "1", "type": "go"}, b"j1"), (Kind.DELETED, {}, None)]
    )
    for view in ("instances", "steps", "attempts", "events", "history"):
        assert store.sql(f"from {view}").fetchall() == [], view


@pytest.mark.parametrize("view", ["instances", "steps", "attempts", "events", "history", "logs"])
def test_views_and_their_columns_are_described(opened, view):
    store = opened()
    [(comment,)] = store.sql(
        f"select comment from duckdb_views() where view_name = '{view}' and schema_name = 'main'"
    ).fetchall()
    assert comment
    columns = f"select column_name, comment from duckdb_columns() where table_name = '{view}' and schema_name = 'main'"
    assert [name for name, told in store.sql(columns).fetchall() if not told] == []


def test_the_file_is_readable_by_other_tools_under_any_name(opened, file):
    store = opened()
    created = start_instance(store)
    store.append(finished(created, "s"))
    store.close()
    with duckdb.connect() as connection:
        connection.execute(f"attach '{file}' as other (read_only)")
        for view in ("instances", "steps", "attempts", "history"):
            assert connection.execute(f"select count(*) > 0 from other.{view}").fetchall() == [(True,)], view
    with duckdb.connect(str(file), read_only=True) as connection:
        assert connection.execute("select name, status from steps").fetchall() == [("s", "finished")]


# -- what sql allows


@pytest.mark.parametrize(
    "query",
    [
        "insert into entries select * from entries",
        "delete from entries",
        "update meta set value = 'x'",
        "drop table entries",
        "create table nb.t(x int)",
        "create view nb.v as select 1",
        "alter table entries add column x int",
        "attach 'other.duckdb' as o",
        "detach nb",
        "begin",
        "copy entries from 'x.csv'",
        "checkpoint",
        "truncate entries",
        "with x as (select 1) insert into meta select 'a', 'b'",
        "install httpfs",
        "load httpfs",
        "set threads = 1",
        "reset threads",
        "use memory",
        "call checkpoint()",
        "pragma force_checkpoint",
        "pragma memory_limit = '1GB'",
        "export database 'x'",
        "import database 'x'",
        "vacuum",
        "create temp table t(x int)",
        "create macro m() as 1",
        "comment on table entries is 'x'",
        "copy from database nb to memory",
        "select * from query('delete from entries')",
        "explain analyze delete from entries",
        "prepare p as select 1",
        "pivot entries on kind using count(*); delete from entries",
        "pivot (select * from query('delete from entries')) on kind using count(*)",
    ],
)
def test_what_would_change_something_is_refused(opened, query):
    store = opened()
    created = start_instance(store)
    with pytest.raises(UsageError, match=r"only reads the history|the query failed|takes one statement"):
        store.sql(query)
    assert names(store.read(created)) == ["created", "claimed"]
    assert store.sql("select count(*) from meta").fetchall() == [(4,)]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "takes one statement, this is 0"),
        ("select 1; select 2", "takes one statement, this is 2"),
        ("selec 1", "cannot be read"),
        ("select nothing from instances", "the query failed: Binder Error.*nothing"),
    ],
)
def test_a_query_that_is_wrong_is_a_usage_error(opened, query, message):
    with pytest.raises(UsageError, match=message):
        opened().sql(query)


def test_a_result_is_a_relation_that_lives_on_without_the_file(opened, file):
    store = opened()
    created = start_instance(store)
    store.append(finished(created, "s"))
    relation = store.sql("select name, output from steps -- what there is\n;")
    store.close()
    file.unlink()
    assert relation.fetchall() == [("s", "1")]
    assert relation.filter("name = 's'").df().to_dict("list") == {"name": ["s"], "output": ["1"]}
    assert relation.pl().rows() == [("s", "1")]


def test_order_and_equal_names_survive(opened):
    store = opened()
    assert store.sql("select range as n from range(3) order by n desc").fetchall() == [(2,), (1,), (0,)]
    assert store.sql("select 1 as a, 2 as a").fetchall() == [(1, 2)]


def test_describing_and_explaining_and_writing_a_file_work(opened, tmp_path):
    store = opened()
    start_instance(store)
    assert [row[0] for row in store.sql("describe instances").fetchall()][:2] == ["workflow", "instance_id"]
    assert [row[0] for row in store.sql("show tables").fetchall()] == [
        "attempts", "dropped", "entries", "events", "history", "instances", "known_attempts", "known_instances",
            "known_steps", "known_values", "loaded", "log_chunks", "logs", "meta", "sources", "steps",
    ]  # fmt: skip
    assert "Scan" in str(store.sql("explain select * from instances").fetchall())
    store.sql(f"copy (select workflow from instances) to '{tmp_path}/out.csv'")
    assert (tmp_path / "out.csv").read_text() == "workflow\nW\n"


@pytest.mark.parametrize(
    "query", ["pivot steps on status using count(*) group by instance_id", "from (pivot steps on status using count(*)) "]
)
def test_a_pivot_is_a_question_like_any_other(opened, query):
    store = opened()
    created = start_instance(store)
    store.append(finished(created, "s"))
    store.append(started(created, "t"))
    relation = store.sql(query)
    assert {"finished", "running"} <= set(relation.columns)
    store.append(finished(created, "u"))
    assert len(store.sql(query).fetchall()) >= 1


def test_too_many_rows_are_an_error_that_knows_the_way_out(opened, monkeypatch):
    monkeypatch.setattr(queries, "MOST", 10)
    with pytest.raises(StoreError, match=r"more than 10 rows.*copy \(select \* from range\(11\)\) to"):
        opened().sql("select * from range(11)")


def test_variables_of_ours_are_no_tables(opened):
    with pytest.raises(UsageError, match="Table with name text does not exist"):
        opened().sql("select * from text")


def test_a_long_query_can_be_interrupted_and_the_store_goes_on(opened):
    store = opened()
    errors = []

    def ask():
        try:
            store.sql("select count(*) from range(100000000) a, range(1000) b where (a.range * b.range) % 7 = 3")
        except StoreError as error:
            errors.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    while store._loader._running is None:
        pause(0.01)
    pause(0.2)
    store._loader.interrupt_query()
    thread.join(20)
    assert errors == ["the query was interrupted"]
    assert start_instance(store) == 1


def test_a_history_in_memory_of_nothing_is_asked_like_any_other():
    store = MemoryStore()
    try:
        assert store.sql("select 1").fetchall() == [(1,)]
        for view in queries.VIEWS:
            assert store.sql(f"from {view}").fetchall() == []
        assert queries.snapshot(store.sql).execute("select count(*) from instances").fetchall() == [(0,)]
    finally:
        store.close()


def test_queries_over_a_history_in_memory_see_the_same_views():
    store = MemoryStore()
    try:
        [made] = store.create([Draft("W", "a", b"j[1]", {"workflow": "W", "id": "a"})], None)
        store.save_source("h", "text")
        store.append(msgspec.structs.replace(started(made[0].created_seq, "s"), token=0))
        assert store.sql("select instance_id, params from instances").fetchall() == [("a", "[1]")]
        assert store.sql("select name, status from steps").fetchall() == [("s", "running")]
        assert store.sql("from sources").fetchall() == [("h", "text")]
        with pytest.raises(UsageError, match="only reads"):
            store.sql("delete from entries")
    finally:
        store.close()
