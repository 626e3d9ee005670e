"""A store that a stranger made: nothing outside of its folder is read, written or removed, and nothing in it runs."""

import os
import shutil
import stat
import time

import duckdb
import pytest

from nbflow import WorkflowEntrypoint
from nbflow.engine.engine import Engine
from nbflow.errors import StoreCorruptError, StoreError, UsageError
from nbflow.store import queries, shape
from nbflow.store.database import Database, connect, make_schema
from nbflow.store.doctor import Severity, examine

VICTIM = "what nobody may touch"
OLD = time.time() - 1_000_000


class Keeps(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("big", lambda: "x" * 2_000_000)
        return await step.do("small", lambda: {"a": 1})


@pytest.fixture
def victim(tmp_path):
    """A file of the user's, outside of the store."""
    file = tmp_path / "outside" / "deep" / "down" / "0123456789abcdef.json"
    file.parent.mkdir(parents=True)
    file.write_text(VICTIM)
    os.utime(file, (OLD, OLD))
    yield file
    assert file.read_text() == VICTIM
    assert [path.name for path in (tmp_path / "outside").rglob("*")] == ["deep", "down", file.name]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a store in it: one finished instance, nobody at work with it."""
    folder = tmp_path_factory.mktemp("made")
    with Engine(folder / "history.duckdb") as engine:
        engine.register(Keeps).create("one").wait(30)
    return folder


@pytest.fixture
def store(made, tmp_path):
    """The file of a copy of that store."""
    shutil.copytree(made, tmp_path / "made")
    return tmp_path / "made" / "history.duckdb"


def folder_of(store):
    return store.parent / "history.nbflow"


# -- links and pipes

PLACES = ["history.duckdb.news", "history.duckdb.turn", "history.duckdb.lock", "history.duckdb.holder.json", "spill"]
PLACES += ["journal/abc.nbj", "journal/abc.000000000000000.seg", "artifacts/.here", "../history.duckdb.wal"]


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
def test_a_link_or_a_pipe_in_the_place_of_a_file_is_refused_and_not_followed(store, victim, kind):
    for place in PLACES:
        path = folder_of(store) / place
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(victim if kind == "link" else victim.with_name("new"))
        with pytest.raises(StoreError, match="keeps to its own folder"):
            Engine(store)
        assert any(path.name in found.what for found in examine(store, patience=1) if found.severity is Severity.WRONG)
        path.unlink()
    with Engine(store) as engine:
        assert engine.get("one").output == {"a": 1}


@pytest.mark.parametrize("place", ["journal", "artifacts", "."])
def test_a_folder_of_the_store_that_is_a_link_is_refused(store, victim, place):
    path = folder_of(store) / place
    shutil.rmtree(path)
    path = path if place != "." else folder_of(store)
    path.symlink_to(victim.parents[2])
    with pytest.raises(StoreError, match="keeps to its own folder"):
        Engine(store)


@pytest.mark.parametrize("level", ["workflow", "instance", "file"])
def test_delete_and_compact_remove_nothing_that_a_link_leads_to(store, victim, level):
    artifacts = folder_of(store) / "artifacts"
    instance = artifacts / "Keeps" / "one"
    place = {"workflow": artifacts / "Keeps", "instance": instance, "file": instance / victim.name}[level]
    if place.is_dir():
        shutil.rmtree(place)
    to = {"workflow": victim.parents[2], "instance": victim.parent, "file": victim}[level]
    if level == "workflow":  # what the instance's name leads to in there
        (victim.parents[2] / "one").symlink_to(victim.parents[1])
    place.symlink_to(to)
    (artifacts / "linked").symlink_to(victim.parents[2])
    with Engine(store) as engine:
        engine.compact()
        engine.get("one").delete()
        engine.compact()
        engine.backup(store.parent / "copy.duckdb")
    copied = store.parent / "copy.nbflow"
    assert not [
        path for path in copied.rglob("*") if path.is_symlink() or (path.is_file() and VICTIM in path.read_text("latin"))
    ]
    (victim.parents[2] / "one").unlink(missing_ok=True)


def test_a_pipe_in_the_place_of_a_result_is_an_error_not_a_wait(store):
    [file] = (folder_of(store) / "artifacts").rglob("*.json")
    file.unlink()
    os.mkfifo(file)
    with Engine(store) as engine, pytest.raises(Exception, match="no regular file"):
        engine.get("one").step("big").output  # noqa: B018


# -- modes


def modes_of(root):
    return {path: stat.S_IMODE(path.lstat().st_mode) for path in [root, *root.rglob("*")]}


def test_every_file_is_for_the_user_alone_whatever_the_umask(tmp_path, monkeypatch):
    seen = {}

    class Looks(WorkflowEntrypoint):
        async def run(self, event, step):
            def body():
                seen.update(modes_of(tmp_path / "own"))
                return "x" * 2_000_000

            await step.do("looks", body)
            await step.do("there", lambda: "y" * 2_000_000, on="processes")

    def looking(run):
        """The same function, with a look at every file after each call: DuckDB's log is there for milliseconds."""

        def looks(*args, **options):
            result = run(*args, **options)
            seen.update(modes_of(tmp_path / "own"))
            return result

        return looks

    for name in ("rows", "commit", "write", "load", "_attach"):
        monkeypatch.setattr(Database, name, looking(getattr(Database, name)))
    (tmp_path / "own").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path / "own")
    before = os.umask(0)
    try:
        for path, copy in ((None, "copy.duckdb"), ("named.duckdb", "other.duckdb")):
            with Engine(path) as engine:
                engine.register(Looks).create("one").wait(60, "finished")
                engine.compact()
                engine.backup(copy)
                seen.update(modes_of(tmp_path / "own"))
    finally:
        os.umask(before)
    assert {".wal", ".seg", ".json", ".nbj", ".news"} <= {path.suffix for path in seen}
    assert not {path.name for path, mode in seen.items() if mode & 0o077}


# -- DuckDB's own means


def altered(store, *statements):
    with duckdb.connect(str(store)) as connection:
        for statement in statements:
            connection.execute(statement)


def test_the_tables_that_an_opening_expects_are_those_of_the_schema(tmp_path):
    connection = connect()
    connection.execute("attach ':memory:' as nb")
    make_schema(connection, {})
    shape.tables_as_made(None, lambda query: connection.execute(query).fetchall())


ALTERED = {
    "entries is a view": ["alter table entries rename to old", "create view entries as from old"],
    "meta is a view": ["alter table meta rename to old", "create view meta as from old"],
    "loaded is a view of a file": [
        "drop table loaded",
        "create view loaded as select content as journal, 0 as position, true as closed from read_text('{victim}')",
    ],
    "a column is computed": [
        "drop table sources",
        "create table sources (hash varchar, text varchar generated always as (hash))",
    ],
    "a column has a default": ["alter table meta alter value set default 'x'"],
    "a column is more": ["alter table entries add column more varchar"],
    "a column is of another type": ["drop table loaded", "create table loaded (journal blob, position bigint, closed boolean)"],
    "a table has a check": ["drop table meta", "create table meta (key varchar, value varchar check (length(value) < 99))"],
    "a table is gone": ["drop table sources"],
}


@pytest.mark.parametrize("name", ALTERED)
def test_a_file_whose_tables_are_not_nbflows_is_refused_and_left_as_it_is(store, victim, name):
    altered(store, *(one.format(victim=victim) for one in ALTERED[name]))
    before = store.read_bytes()
    with pytest.raises(StoreCorruptError, match="Nothing was changed"):
        Engine(store)
    assert store.read_bytes() == before
    assert "wrong" in [found.severity for found in examine(store)]


def test_a_trigger_in_a_file_of_a_newer_format_is_refused(store):
    newer = store.with_name("newer.duckdb")
    with duckdb.connect() as connection:
        connection.execute(f"attach '{store}' as old")
        connection.execute(f"attach '{newer}' as new (storage_version 'v2.0.0')")
        connection.execute("copy from database old to new")
        connection.execute("use new")
        connection.execute("create trigger t after insert on entries for each statement insert into meta values ('a', 'b')")
    newer.replace(store)
    with pytest.raises(StoreCorruptError, match="'entries' in it is something else"):
        Engine(store)


def test_views_that_a_stranger_redefined_are_made_anew_before_anything_is_asked(store, victim):
    evil = f"select content as workflow, * from read_text('{victim}')"
    altered(
        store,
        *(f"create or replace view {name} as {evil}" for name in ("steps", "instances", "history", "internal.void")),
        f"create or replace macro internal.json(value, body, hidden) as (select content from read_text('{victim}'))",
        "drop view events",
    )
    with Engine(store) as engine:
        told = [engine.sql(f"from {name}").fetchall() for name in ("instances", "steps", "attempts", "events", "history")]
        assert VICTIM not in str(told)
        assert engine.sql("select output ->> 'a' from steps where name = 'small'").fetchall() == [("1",)]
    with Engine(store) as engine:  # and they stay
        assert VICTIM not in str(engine.sql("from steps").fetchall())


@pytest.mark.parametrize(
    "statement",
    [
        "create macro count(x) as 7",
        "create macro split_part(a, b, c) as 'evil'",
        "create macro read_parquet(x) as table select 1",
        "create type json as enum ('a')",
    ],
)
def test_what_would_stand_in_for_functions_of_duckdb_is_refused_by_name(store, statement):
    altered(store, statement)
    with Engine(store) as engine:
        assert engine.get("one").output == {"a": 1}
        with pytest.raises(StoreCorruptError, match=statement.split()[2].split("(")[0]):
            engine.sql("from steps")


def test_a_view_whose_name_is_a_statement_runs_as_none(store):
    altered(store, 'create view "x""; create table nb.hit as select 1; --" as select 1', "drop view steps")
    with Engine(store) as engine:
        assert engine.sql("select count(*) from steps").fetchall() == [(2,)]
        assert "hit" not in str(engine.sql("select table_name from duckdb_tables()").fetchall())


@pytest.mark.parametrize(
    "uri", ["../../../../../../etc/passwd", "/etc/passwd", "Keeps/../../x/0123456789abcdef.json", ".a/b/c.json"]
)
def test_a_path_in_the_history_that_leaves_the_artefacts_is_no_output_uri(store, uri):
    altered(store, f"update entries set uri = '{uri}' where uri is not null")
    with Engine(store) as engine:
        assert engine.sql("select output_uri from steps where name = 'big'").fetchall() == [(None,)]


# -- SQL of the user's that is to leave files alone

FILES = [
    "from read_text('{victim}')",
    "from read_csv('{victim}')",
    "from glob('{folder}/*')",
    "from sniff_csv('{victim}')",
    "select * from read_blob('{victim}')",
    "copy (select 1) to '{folder}/new'",
    "explain analyze copy (select 1) to '{folder}/new'",
    "from read_duckdb('{store}.copy')",
]
CHANGES = [
    "attach '{folder}/new.duckdb' as new",
    "insert into entries select * from entries",
    "explain analyze insert into meta values ('a', 'b')",
    "export database '{folder}'",
    "import database '{folder}'",
    "install httpfs",
    "load httpfs",
    "set enable_external_access = true",
    "set lock_configuration = false",
    "reset lock_configuration",
    "explain analyze set enable_external_access = true",
    "select * from enable_logging(storage = 'file', storage_path = '{folder}')",
    "copy from database nb to memory",
    "copy meta from '{victim}'",
    "create secret s (type s3)",
    "prepare p as select 1",
    "call enable_logging()",
    "detach nb",
    "use memory",
    "pragma enable_profiling",
    "with x as (insert into meta values ('a', 'b') returning *) from x",
    "select 1; drop table entries",
    "select getenv('HOME')",
    "from read_csv('http://127.0.0.1:9/x')",
    "from '{victim}'",
]


@pytest.fixture(params=["file", "memory"])
def closed(request, store):
    """An engine whose SQL is to leave files alone."""
    with Engine(store if request.param == "file" else ":memory:", sql_files=False) as engine:
        if request.param == "memory":
            engine.register(Keeps).create("one").wait(30)
        yield engine


def test_without_sql_files_a_query_neither_reads_nor_writes_files(closed, store, victim):
    for query in FILES:
        with pytest.raises(UsageError, match="sql_files=False"):
            closed.sql(query.format(victim=victim, folder=victim.parent, store=store))
    for query in CHANGES:
        with pytest.raises((UsageError, StoreError)):
            closed.sql(query.format(victim=victim, folder=victim.parent, store=store))
    assert closed.sql("select count(*) from steps where output_uri is not null").fetchall() == [(1,)]


def test_with_sql_files_stored_results_join_the_history_and_nothing_else_changes(store, victim):
    with Engine(store) as engine:
        uris = [uri for (uri,) in engine.sql("select output_uri from steps where name = 'big'").fetchall()]
        join = f"select s.name, f.size from steps s join read_text({uris}) f on f.filename = s.output_uri"
        assert engine.sql(join).fetchall() == [("big", 2_000_002)]
        for query in CHANGES[1:]:
            with pytest.raises((UsageError, StoreError)):
                engine.sql(query.format(victim=victim, folder=victim.parent, store=store))


def test_a_cursor_keeps_to_what_sql_may_see(store, victim):
    for files in (False, True):
        with Engine(store, sql_files=files) as engine:
            connection = queries.snapshot(engine.sql, files=engine.sql_files)
            assert connection.execute("select count(*) from steps").fetchall() == [(2,)]
            if files:
                assert connection.execute(f"select content from read_text('{victim}')").fetchall() == [(VICTIM,)]
                continue
            for query in (f"from read_text('{victim}')", "set enable_external_access = true", f"attach '{victim}.x' as x"):
                with pytest.raises(duckdb.Error):
                    connection.execute(query)
