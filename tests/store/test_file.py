import logging
import os
import pwd
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from nbflow.clock import pause
from nbflow.core.model import Kind
from nbflow.errors import StoreCorruptError, StoreError, StoreLockedError, StoreVersionError, UsageError
from nbflow.store import known, migrate
from nbflow.store.database import Database
from nbflow.store.doctor import Severity, examine
from nbflow.store.history_store import FileStore
from nbflow.store.layout import Layout
from tests.store.actors import (
    draft,
    entry,
    eventually,
    finished,
    held_by_outsider,
    killed_after,
    names,
    owner,
    run,
    start_instance,
    started,
)

ROOT = Path(__file__).parents[2]

NOW = migrate.SCHEMA


def outside(file, query, values=None):
    for _ in range(500):
        try:
            connection = duckdb.connect(str(file))
            break
        except duckdb.Error:
            pause(0.01)  # the store has it just now
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.close()


def listing(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def refused(file, error, match):
    """The store is refused with that message, and what is there is left alone."""
    before = file.read_bytes()
    with pytest.raises(error, match=match) as caught:
        FileStore(file)
    assert file.name in str(caught.value)
    assert file.read_bytes() == before
    assert not list((file.parent / f"{file.stem}.nbflow" / "journal").iterdir())


# -- where things are


def test_the_default_store_is_a_hidden_folder_for_its_user_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = FileStore()
    folder = tmp_path / ".nbflow"
    try:
        assert store.path == folder / "history.duckdb"
        assert store.artifacts == folder / "artifacts"
        assert store.created
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
        assert (folder / ".gitignore").read_text() == "*\n"
        start_instance(store)
        store.append(finished(1, "s"))
        store.flush()
        assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (folder / "journal").iterdir()} == {0}
    finally:
        store.close()
    assert Layout.of(folder / "history.duckdb") == Layout.of(None)


def test_a_named_file_has_a_folder_beside_it(opened, tmp_path):
    store = opened(tmp_path / "runs.duckdb")
    assert store.artifacts == tmp_path / "runs.nbflow" / "artifacts"
    assert {path.name for path in tmp_path.iterdir()} == {"runs.duckdb", "runs.nbflow"}


def test_a_link_leads_to_the_same_locks_and_journals(opened, tmp_path):
    real = opened(tmp_path / "history.duckdb")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link.duckdb").symlink_to(real.path)
    linked = opened(tmp_path / "elsewhere" / "link.duckdb")
    created = start_instance(real)
    assert linked.uid == real.uid
    assert linked.claim([created], owner(linked), "cell") == {}
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["link.duckdb"]


def test_a_store_opens_again_with_its_history(opened):
    store = opened()
    created = start_instance(store)
    store.append(finished(created, "s"))
    store.close()
    again = opened()
    assert not again.created
    assert again.uid == store.uid
    assert names(again.read(created)) == ["created", "claimed", "s"]


def test_older_tools_can_read_the_file(opened):
    store = opened()
    start_instance(store)
    store.close()
    connection = duckdb.connect()
    connection.execute(f"attach '{store.path}' as nb (read_only)")
    [(tags,)] = connection.execute("select tags from duckdb_databases() where database_name = 'nb'").fetchall()
    assert tags["storage_version"] == "v1.4.0+"
    assert connection.execute("select block_size from pragma_database_size() where database_name = 'nb'").fetchall() == [
        (16384,)
    ]
    assert connection.execute("select instance_id, status from nb.instances").fetchall() == [("a", "queued")]


def test_tables_and_columns_explain_themselves(opened):
    store = opened()
    assert store.sql("select count(*) from duckdb_tables() where database_name = 'nb' and comment is null").fetchall() == [(0,)]
    columns = store.sql(
        "select column_name, comment from duckdb_columns() where database_name = 'nb' and table_name = 'entries'"
    ).fetchall()
    assert len(columns) == 17
    assert all(comment for _, comment in columns)


# -- what is no store


def test_a_text_file_is_refused(file):
    file.write_text("not a database\n" * 100)
    refused(file, StoreCorruptError, "is not a DuckDB file.*move it away or name another file. Nothing was changed")


def test_an_empty_file_is_refused(file):
    file.touch()
    refused(file, StoreCorruptError, "Nothing was changed")


def test_a_sqlite_file_is_refused_without_any_download(file):
    with sqlite3.connect(file) as connection:
        connection.execute("create table t(x)")
    connection.close()
    refused(file, StoreCorruptError, "is not a DuckDB file")


def test_somebody_elses_duckdb_file_is_refused(file):
    outside(file, "create table mine as select 1 as x")
    refused(file, StoreCorruptError, "is a DuckDB file, but no history of nbflow: name another file")


def test_an_empty_duckdb_file_becomes_a_store(file, opened):
    outside(file, "select 1")
    store = opened()
    assert store.created
    assert start_instance(store) == 1


def test_a_folder_and_a_missing_folder_are_named(tmp_path):
    with pytest.raises(UsageError, match="is a folder, not a DuckDB file"):
        FileStore(tmp_path)
    with pytest.raises(StoreError, match=r"the folder '.*nowhere' does not exist; make it first"):
        FileStore(tmp_path / "nowhere" / "x.duckdb")


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.6, 0.9])
def test_a_truncated_file_is_refused_and_left_alone(file, fraction):
    with_rows(file, 3_000)
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * fraction)])
    cut = file.read_bytes()
    with pytest.raises(StoreCorruptError, match=r"history\.duckdb' .*Nothing was changed"):
        FileStore(file)
    assert file.read_bytes() == cut


def with_rows(file, count):
    store = FileStore(file)
    created = start_instance(store)
    for number in range(count):
        store.append(finished(created, f"s{number}", os.urandom(40)))
    store.close()


def test_a_row_that_is_missing_is_noticed_when_the_store_opens(file):
    with_rows(file, 10)
    outside(file, "delete from entries where seq = 5")
    refused(file, StoreCorruptError, "is not whole: 12 were recorded, 11 are there and 0 were purged")


def test_a_newer_schema_is_refused_and_named(file):
    FileStore(file).close()
    outside(file, "update meta set value = '7' where key = 'schema'")
    refused(file, StoreVersionError, f"has schema version 7, this nbflow knows {NOW}.*upgrade nbflow and restart")


def test_a_schema_that_became_newer_stops_loading_and_steps_go_on(file, opened):
    store = opened()
    created = start_instance(store)
    eventually(lambda: store._desk.own == store._journal.synced)
    outside(file, "update meta set value = '7' where key = 'schema'")
    acked = []
    store.append(finished(created, "s"), lambda: acked.append(1))
    store.flush()
    assert acked == [1]
    with pytest.raises(StoreVersionError):
        store.read(created)
    outside(file, f"update meta set value = '{NOW}' where key = 'schema'")
    assert names(store.read(created))[2:] == ["s"]


def test_an_older_schema_is_brought_up_to_date_and_a_copy_kept(file, monkeypatch):
    with_rows(file, 10)
    monkeypatch.setattr(migrate, "SCHEMA", NOW + 2)
    steps = {NOW: "create table extra (a integer)", NOW + 1: "insert into meta values ('new', 'x')"}
    monkeypatch.setattr(migrate, "STEPS", steps)
    store = FileStore(file)
    try:
        assert dict(store.sql("select key, value from meta where key in ('schema', 'new')").fetchall()) == {
            "schema": str(NOW + 2),
            "new": "x",
        }
        assert f"brought to schema version {NOW + 2}" in store.warnings[0]
    finally:
        store.close()
    [copy] = file.parent.glob(f"history.schema{NOW}.duckdb")
    assert outside(copy, "select value from meta where key = 'schema'") == [(str(NOW),)]
    assert outside(copy, "select count(*) from entries") == [(12,)]


def test_a_store_made_before_logs_were_kept_is_brought_up_to_date(file):
    with_rows(file, 10)
    forget_what_is_known(file)
    outside(file, "drop view logs; drop table log_chunks; update meta set value = '1' where key = 'schema'")
    store = FileStore(file)
    try:
        assert store.sql("select count(*) from logs").fetchall() == [(0,)]
        assert store.sql("select value from meta where key = 'schema'").fetchall() == [(str(NOW),)]
    finally:
        store.close()


def test_a_store_of_schema_5_learns_for_which_error_an_instance_is_rolled_back(file):
    error = {"type": "ValueError", "message": "no more", "traceback": ""}
    with closing(FileStore(file)) as store:
        store.append(entry(Kind.ROLLING_BACK, start_instance(store), error=error))
        store.flush()
    outside(file, "delete from known_values where error_type is not null; update known_instances set ended_seq = null")
    outside(file, "update meta set value = '5' where key = 'schema'")
    with closing(FileStore(file)) as store:
        told = store.sql("select status, error_type, error_message from instances").fetchall()
        assert told == [("rollingBack", "ValueError", "no more")]
        assert store.sql("select value from meta where key = 'schema'").fetchall() == [(str(NOW),)]


def forget_what_is_known(file):
    """Make the tables of a store those of schema 4."""
    outside(file, "; ".join(f"drop table {table}" for table in known.TABLES))


def as_schema_3(file):
    """Make the tables and views of a store those of schema 3."""
    forget_what_is_known(file)
    views = ("instances", "steps", "attempts", "events", "history", "logs")
    outside(file, "drop schema internal cascade; " + "; ".join(f"drop view {view}" for view in views))
    columns = "seq, recorded_at, created_seq, token, kind, step, count, key, body, value"
    outside(file, f"create table other as select {columns} from entries order by seq; drop table entries")
    outside(file, "alter table other rename to entries; update meta set value = '3' where key = 'schema'")


def test_a_store_of_schema_3_gets_its_columns_filled_from_the_bodies(file):
    with_rows(file, 4)
    columns = 'select seq, kind, "order", attempt, started_at, whole, uri, sensitive, body from entries'
    outside(file, "insert into entries (seq, recorded_at, created_seq, token, kind, step, count, body) "
            "select 7, now(), 1, 1, 'do.started', 's1', 1, 'no json'")  # fmt: skip
    before = outside(file, f"{columns} order by seq")
    as_schema_3(file)
    store = FileStore(file)
    try:
        after = store.sql(f"{columns} order by seq").fetchall()
        assert [row[:5] for row in after[:-1]] == [row[:5] for row in before[:-1]]
        assert [row[6:] for row in after] == [row[6:] for row in before]
        assert [row[0] for row in after if row[5]] == [3, 4, 5, 6]  # the first end of each step
        assert store.sql("select count(*), min(status) from steps").fetchall() == [(4, "finished")]
    finally:
        store.close()


def test_a_store_of_schema_4_tells_the_same_before_and_after(file):
    """What is known of instances and steps is made from the entries that are there."""
    with_rows(file, 4)
    asked = ("from instances", "from steps order by all", "from attempts order by all", "from events")
    with closing(FileStore(file)) as store:
        created = start_instance(store, "open", params=b'j{"n":1}')
        store.append(started(created, "slow"))
        store.sql("select 1")
        store.append(finished(created, "slow"))
        store.append(started(created, "runs"))
        before = [store.sql(query).fetchall() for query in asked]
    forget_what_is_known(file)
    outside(
        file,
        "update entries set whole = null; alter table entries drop column began_at; update meta set value = '4' where key = 'schema'",
    )
    with closing(FileStore(file)) as store:
        assert [store.sql(query).fetchall() for query in asked] == before
        store.append(finished(created, "runs"))
        assert store.sql("select count(*) from steps where status = 'finished'").fetchall() == [(6,)]


def test_what_is_known_of_instances_is_made_again_where_it_is_missing(file):
    with_rows(file, 3)
    before = outside(file, "from instances"), outside(file, "from steps")
    outside(file, "delete from known_instances")
    assert outside(file, "from steps") == []
    with closing(FileStore(file)) as store:
        assert "made again from their entries" in store.warnings[0]
    assert (outside(file, "from instances"), outside(file, "from steps")) == before


def test_an_attempt_at_the_next_schema_that_failed_is_no_hindrance_to_another(file, monkeypatch):
    with_rows(file, 10)
    monkeypatch.setattr(migrate, "SCHEMA", NOW + 1)
    monkeypatch.setattr(migrate, "STEPS", {NOW: "select nonsense"})
    for _ in range(2):
        with pytest.raises(StoreError, match="nonsense"):
            FileStore(file)
    monkeypatch.setattr(migrate, "STEPS", {NOW: "select 1"})
    FileStore(file).close()
    assert outside(file, "select value from meta where key = 'schema'") == [(str(NOW + 1),)]


def test_a_step_to_the_next_schema_that_fails_changes_nothing(file, monkeypatch):
    with_rows(file, 10)
    monkeypatch.setattr(migrate, "SCHEMA", NOW + 1)
    monkeypatch.setattr(migrate, "STEPS", {NOW: "update meta set value = '9'; create table t(x int); select nonsense"})
    with pytest.raises(StoreError):
        FileStore(file)
    assert outside(file, "select value from meta where key = 'schema'") == [(str(NOW),)]


def test_no_schema_is_changed_under_another_engine(file, opened, monkeypatch):
    opened()
    monkeypatch.setattr(migrate, "SCHEMA", NOW + 1)
    monkeypatch.setattr(migrate, "STEPS", {NOW: "select 1"})
    with pytest.raises(StoreError, match=r"1 other kernel.s. work with it: close them"):
        FileStore(file)


def test_a_store_of_schema_1_gets_the_views_of_today_and_hides_what_is_internal(file):
    with_rows(file, 10)
    outside(file, "drop schema internal cascade")
    outside(file, "drop table log_chunks")
    forget_what_is_known(file)
    for view in ("instances", "steps", "attempts", "events", "history", "logs"):
        outside(file, f"drop view if exists {view}")
    outside(file, "create view _instances as select 1 as one")
    outside(file, "create macro _withheld(body) as body = 'x'")
    outside(file, "create view steps as select one from _instances where _withheld('x')")
    outside(file, "update meta set value = '1' where key = 'schema'")
    store = FileStore(file)
    try:
        shown = [row[0] for row in store.sql("show tables").fetchall()]
        views = ["attempts", "events", "history", "instances", "logs", "steps"]
        assert shown == sorted([*views, *known.TABLES, "entries", "loaded", "log_chunks", "meta", "sources"])
        assert store.sql("select count(*), min(status), max(name) from steps").fetchall() == [(10, "finished", "s9")]
        left = "select function_name from duckdb_functions() where schema_name = 'main' and starts_with(function_name, '_withheld')"
        assert store.sql(left).fetchall() == []
    finally:
        store.close()
    assert [path.name for path in file.parent.glob("*schema1*")] == ["history.schema1.duckdb"]


def test_an_unknown_kind_of_entry_asks_for_a_newer_nbflow(file, opened):
    with_rows(file, 1)
    outside(
        file,
        "insert into entries select * replace (seq + 1 as seq, 'do.dreamt' as kind) from entries where seq = 3",
    )
    with pytest.raises(StoreVersionError, match=r"kind 'do.dreamt'"):
        opened().read(1)


# -- no access


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("what", ["folder", "file", "folder above"])
def test_without_write_access_the_message_says_what_and_nothing_is_made(tmp_path, what):
    nobody = pwd.getpwnam("nobody").pw_uid
    folder = tmp_path / "shared"
    folder.mkdir()
    for parent in [folder, *folder.parents]:
        if parent.owner() == "root" and parent not in (Path("/"), Path("/tmp")):
            parent.chmod(parent.stat().st_mode | 0o055)
    file = folder / "history.duckdb"
    if what == "file":
        with_rows(file, 3)
        file.chmod(0o444)
    if what == "folder above":
        folder.chmod(0o700)
        file = folder / "inner" / "history.duckdb"
    before = listing(folder)
    done = run(
        """
        import os, sys
        from nbflow.errors import StoreError
        from nbflow.store.history_store import FileStore
        os.setuid(int(sys.argv[2]))
        try:
            FileStore(sys.argv[1])
        except StoreError as error:
            print(type(error).__name__, error)
        """,
        file,
        nobody,
        cwd=ROOT,
    )
    assert done.stdout.startswith("StoreError '"), (done.stdout, done.stderr)
    assert str(folder) in done.stdout
    assert "write access" in done.stdout
    assert listing(folder) == before


def test_a_file_that_an_outsider_holds_cannot_be_opened_and_he_is_named(file):
    FileStore(file).close()
    with held_by_outsider(file) as outsider, pytest.raises(StoreLockedError, match=r"in use by python.* \(PID \d+\)") as caught:
        FileStore(file, lock_timeout=0.2)
    assert f"PID {outsider.pid}" in str(caught.value)
    FileStore(file).close()


def test_the_users_own_connection_in_this_process_is_named(file, opened):
    store = opened(lock_timeout=0.2)
    mine = duckdb.connect(str(file))
    try:
        with pytest.raises(StoreLockedError, match=r"in this very process|this process"):
            store.heads()
    finally:
        mine.close()
    assert store.heads() == []


# -- the file goes away under a living engine


def test_a_file_that_was_deleted_is_not_made_anew(file, opened):
    store = opened()
    created = start_instance(store)
    aside = file.with_name("aside")
    file.rename(aside)
    store.append(finished(created, "s"))
    store.flush()
    with pytest.raises(StoreCorruptError, match="was deleted or moved away while engines were at work; put it back"):
        store.read(created)
    assert not file.exists()
    with pytest.raises(StoreCorruptError, match=r"is not there, but the journal of 1 engine.s. that worked with it is"):
        FileStore(file)
    assert not file.exists()
    aside.rename(file)
    assert names(store.read(created))[2:] == ["s"]


def test_a_file_that_was_replaced_by_another_store_gets_nothing(tmp_path, opened):
    store = opened(tmp_path / "a.duckdb")
    other = opened(tmp_path / "b.duckdb")
    created = start_instance(store)
    other.close()
    (tmp_path / "a.duckdb").rename(tmp_path / "aside")
    shutil.copy(tmp_path / "b.duckdb", tmp_path / "a.duckdb")
    store.append(finished(created, "s"))
    store.flush()
    with pytest.raises(StoreCorruptError, match="was replaced by another store"):
        store.head(created)
    (tmp_path / "aside").replace(tmp_path / "a.duckdb")
    assert names(store.read(created))[2:] == ["s"]


def test_journals_of_another_store_are_left_alone(tmp_path, opened):
    engine = killed_after(
        tmp_path / "history.duckdb", "created = start_instance(store); store.append(finished(created, 's')); store.flush()"
    )
    (tmp_path / "history.duckdb").unlink()
    FileStore(tmp_path / "new.duckdb").close()
    (tmp_path / "new.duckdb").rename(tmp_path / "history.duckdb")
    store = opened()
    assert store.sql("select count(*) from entries").fetchall() == [(0,)]
    assert list((tmp_path / "history.nbflow" / "journal").glob(f"{engine}*.seg"))


# -- DuckDB's own log


def leave_a_log(file, monkeypatch):
    """Rows in the file, and rows and a direct entry in its log, as a death inside the lease leaves them."""
    engine = killed_after(
        file,
        """
        created = start_instance(store)
        for i in range(50):
            store.append(finished(created, f"s{i}"))
        store.read(created)
        for i in range(50, 100):
            store.append(finished(created, f"s{i}"))
        store.flush()
        import nbflow.store.database as database
        database.Database.detach = lambda self: (print(store.engine_id, flush=True), os.kill(os.getpid(), signal.SIGKILL))
        store._ask(lambda: store._loader.after(lambda s: s.load_all(), lambda s: None))
        """,
    )
    assert file.with_name("history.duckdb.wal").exists()
    return engine


def test_a_log_of_a_death_inside_the_lease_is_replayed(file, opened, monkeypatch):
    leave_a_log(file, monkeypatch)
    store = opened()
    assert names(store.read(1))[2:] == [f"s{i}" for i in range(100)]
    assert not file.with_name("history.duckdb.wal").exists()


@pytest.mark.parametrize("at", [0.1, 0.3, 0.5, 0.7, 0.95])
def test_a_log_that_duckdb_refuses_is_set_aside_and_the_journal_fills_the_gap(file, opened, monkeypatch, caplog, at):
    leave_a_log(file, monkeypatch)
    log = file.with_name("history.duckdb.wal")
    data = bytearray(log.read_bytes())
    data[int(len(data) * at)] ^= 8
    log.write_bytes(data)
    with caplog.at_level(logging.WARNING, logger="nbflow"):
        store = opened()
    entries = store.read(1)
    assert names(entries)[2:] == [f"s{i}" for i in range(100)]
    assert [e.seq for e in entries] == list(range(1, 103))
    aside = file.with_name("history.duckdb.wal.damaged")
    if aside.exists():  # some flips are harmless
        assert aside.read_bytes() == data
        assert "may be missing" in caplog.text


@pytest.mark.parametrize("cut", [0, 10, 0.4, 0.9])
def test_a_log_that_lost_its_tail_loses_nothing_that_was_journalled(file, opened, monkeypatch, cut):
    leave_a_log(file, monkeypatch)
    log = file.with_name("history.duckdb.wal")
    data = log.read_bytes()
    log.write_bytes(data[: cut if isinstance(cut, int) else int(len(data) * cut)])
    assert names(opened().read(1))[2:] == [f"s{i}" for i in range(100)]


def test_a_checkpoint_that_fails_at_detach_is_committed_all_the_same(file, opened, monkeypatch, caplog):
    store = opened()
    created = start_instance(store)
    real = Database.detach
    failing = [True]

    def detach(database):
        given = real(database)
        return given and not (failing and failing.pop())

    monkeypatch.setattr(Database, "detach", detach)
    with caplog.at_level(logging.WARNING, logger="nbflow"):
        store.command(created, lambda head, entries: [(Kind.EVENT, {"event_id": "1", "type": "go"}, b"j1")])
    assert "could not be folded in" in caplog.text
    assert names(store.read(created)) == ["created", "claimed", "event"]


def test_a_fatal_error_of_duckdb_costs_no_entry(file, opened, monkeypatch):
    store = opened()
    created = start_instance(store)
    failing = [True]
    real = Database.load

    def load(database, data, base):
        count = real(database, data, base)
        if failing:
            failing.pop()
            raise duckdb.FatalException("database has been invalidated")
        return count

    monkeypatch.setattr(Database, "load", load)
    store.append(finished(created, "s"))
    with pytest.raises(StoreError, match=r"DuckDB stopped over .* and was started anew"):
        store.read(created)
    assert names(store.read(created))[2:] == ["s"]


# -- backup and compact


def test_a_backup_is_a_store_of_its_own(opened, tmp_path):
    store = opened()
    created = start_instance(store)
    store.append(finished(created, "s", uri="W/a/0123456789abcdef.npy"))
    (store.artifacts / "W" / "a").mkdir(parents=True)
    (store.artifacts / "W" / "a" / "0123456789abcdef.npy").write_bytes(b"array")
    there = store.backup(tmp_path / "copy.duckdb")
    assert outside(there, "select output_uri from steps") == [
        (str(tmp_path / "copy.nbflow/artifacts/W/a/0123456789abcdef.npy"),)
    ]
    assert (tmp_path / "copy.nbflow/artifacts/W/a/0123456789abcdef.npy").read_bytes() == b"array"
    copy = opened(there)
    assert copy.read(created) == store.read(created)
    with pytest.raises(UsageError, match="a backup never overwrites"):
        store.backup(there)


@pytest.mark.parametrize("end", ["it lives", "it closed", "it died", "a copy of a copy"])
def test_a_backup_misses_no_journal_of_the_engines_of_the_original(opened, file, tmp_path, end):
    if end == "it died":
        killed_after(file, "created = start_instance(store); store.append(finished(created, 's')); store.flush()")
    store = opened()
    created = 1 if end == "it died" else start_instance(store)
    store.append(finished(created, "t"))
    there = store.backup(tmp_path / "copy.duckdb")
    if end == "a copy of a copy":
        there = opened(there).backup(tmp_path / "second.duckdb")
    if end == "it closed":
        store.close()
    assert [f.what for f in examine(there) if f.severity is Severity.WRONG] == []
    copy = opened(there)
    assert copy.warnings == []
    assert "lost" not in copy.claim([created], owner(copy), "cell", force=True)[created][-1].body
    copy.close()
    assert [f.what for f in examine(there) if f.severity is Severity.WRONG] == []


def test_a_backup_in_the_place_of_the_original_gets_what_journals_hold_beyond_it(file, opened, tmp_path):
    killed_after(
        file,
        """
        created = start_instance(store)
        store.append(finished(created, "s")); store.flush()
        store.backup(store.path.with_name("copy.duckdb"))
        store.append(finished(created, "t")); store.flush()
        """,
    )
    (tmp_path / "copy.duckdb").replace(file)
    assert names(opened().read(1))[2:] == ["s", "t"]


def test_compact_removes_what_is_deleted_and_keeps_seqs(opened, file):
    store, other = opened(), opened()
    kept, gone = start_instance(store, "kept"), start_instance(store, "gone")
    for number in range(3_000):
        store.append(finished(gone, f"s{number}", os.urandom(60)))
    store.append(finished(kept, "k"))
    store.command(gone, lambda head, entries: [(Kind.DELETED, {"by": "me"}, None)])
    before, after = store.compact()
    assert after < before / 2
    assert file.stat().st_size == after
    [again] = store.create([draft("gone")], None)
    assert again[0].created_seq == 3_007
    assert names(other.read(kept)) == ["created", "claimed", "k"]
    assert [h.instance_id for h in other.heads()] == ["gone", "kept"]
    store.close()
    other.close()
    third = opened()
    assert third.sql("select value from meta where key = 'purged'").fetchall() == [("3002",)]
    third.compact()
    assert outside_version(file) == "v1.4.0+"


def outside_version(file):
    done = run(
        "import duckdb, sys; c = duckdb.connect(); c.execute(f\"attach '{sys.argv[1]}' as nb (read_only)\");"
        "print(c.execute(\"select tags['storage_version'] from duckdb_databases() where database_name = 'nb'\").fetchall()[0][0])",
        file,
    )
    return done.stdout.strip()


def test_facts_say_where_and_how_much(opened):
    store = opened(notebook="a.ipynb")
    created = start_instance(store)
    store.append(finished(created, "s"))
    facts = store.facts()
    assert facts["path"] == str(store.path)
    assert facts["size"] == store.path.stat().st_size
    assert facts["entries"] == 2
    assert facts["engines"] == 1
    assert facts["uid"] == store.uid
