"""`copy … to` in a user's SQL writes one file outside of every store, and nothing else (API.md §4)."""

import os
import subprocess
import sys

import duckdb
import pytest

from nbflow import Engine, WorkflowEntrypoint
from nbflow.errors import UsageError


class Keeps(WorkflowEntrypoint):
    async def run(self, event, step):
        return await step.do("big", lambda: "x" * 2_000_000)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with a store, a way into it by a link to a folder, and one by a link to a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "h.nbflow" / "artifacts")
    (tmp_path / "out" / "link.csv").symlink_to(tmp_path / "h.nbflow" / "artifacts" / "new.csv")
    Engine(tmp_path / "other.duckdb").close()
    (tmp_path / "linked.csv").symlink_to(tmp_path / "other.duckdb")
    os.link(tmp_path / "other.duckdb", tmp_path / "hard.csv")
    duckdb.connect(str(tmp_path / "plain.db")).close()
    (tmp_path / "missing.nbflow" / "journal").mkdir(parents=True)
    databases = [tmp_path / "other.duckdb", tmp_path / "plain.db"]
    before = [path.read_bytes() for path in databases]
    with Engine(tmp_path / "h.duckdb") as engine:
        engine.register(Keeps).create("one").wait(30)
        yield engine
    assert [path.read_bytes() for path in databases] == before
    assert not (tmp_path / "other.duckdb.wal").exists()


def stored(folder):
    """The files of the store that nothing but a step changes, with their content."""
    artifacts = folder / "h.nbflow" / "artifacts"
    return {path.relative_to(artifacts): path.read_bytes() for path in artifacts.rglob("*") if path.is_file()}


INSIDE = [
    "copy (select 1) to '{artifact}' (format csv)",
    "copy (select 1) to '{artifact}' (format parquet)",
    "copy steps to '{artifact}'",
    "copy (select 1) to 'h.nbflow/artifacts/new.csv'",
    "copy (select 1) to 'out/../h.nbflow/journal/new.csv'",
    "copy (select 1) to '~/h.nbflow/new.csv'",
    "copy (select 1) to 'link/new.csv'",
    "copy (select 1) to 'out/link.csv'",
    "copy (select 1) to 'h.duckdb'",
    "copy (select 1) to 'h.duckdb.wal'",
    "copy (select 1) to 'other.nbflow/artifacts/new.csv'",
    "copy (select 1) to 'other.duckdb'",
    "copy (select 1) to 'other.duckdb.wal'",
    "copy (select 1) to 'out/../other.duckdb' (format csv)",
    "copy (select 1) to 'linked.csv'",
    "copy (select 1) to 'hard.csv'",
    "copy (select 1) to 'plain.db'",
    "copy (select 1) to 'missing.duckdb'",
    "copy (select 1) to '.nbflow/new.csv'",
    "explain analyze copy (select 1) to 'link/new.csv'",
    "explain/**/analyze copy (select 1) to 'link/new.csv'",
    "explain (analyze, format json) copy (select 1) to 'link/new.csv'",
    "-- what\nexplain -- it\nanalyze /* takes */ copy (select 1) to 'link/new.csv'",
]
UNTOLD = [
    "copy (select 1) to ('link/' || 'new.csv')",
    "copy (select 1) to $$link/new.csv$$",
    "copy (select 1) to e'link/new.csv'",
    "copy (select 1) to 'li'\n'nk/new.csv'",
    'copy (select 1) to "link/new.csv"',
    "copy (select 1) to 'out/new.csv' csv header",
    "copy (select 1) to 'file:link/new.csv'",
    "copy (select 1) to 'file://{artifact}'",
    "copy (select 1) to 's3://bucket/new.csv'",
    "copy (select 1 as a) to '.' (format csv, partition_by (a), overwrite)",
    "copy (select 1 as a) to 'out' (format csv, per_thread_output true)",
    "copy (select 1 as a) to 'out' (format csv, filename_pattern '../link/new')",
    "copy (select 1 as a) to 'out/new.csv' (use_tmp_file false)",
    "copy (select 1 as a) to 'out/new.csv' (format blob)",
    "copy (select 1 as a) to 'out/new' (format gdal, driver 'GeoJSON')",
]


@pytest.mark.parametrize("query", INSIDE)
def test_a_copy_into_a_store_is_refused_by_whatever_path_it_comes(place, tmp_path, query):
    before = stored(tmp_path)
    [artifact] = (tmp_path / "h.nbflow" / "artifacts" / path for path in before if path.suffix == ".json")
    with pytest.raises(UsageError, match=r"the file of a store or in its folder.*name a file outside"):
        place.sql(query.format(artifact=artifact))
    assert stored(tmp_path) == before
    assert not list(tmp_path.rglob("new.csv"))
    assert len(place.workflow("Keeps").get("one").output) == 2_000_000


def test_a_copy_to_a_database_that_is_open_here_leaves_its_lock_with_it(place, tmp_path):
    with duckdb.connect(str(tmp_path / "open.db")):
        with pytest.raises(UsageError, match="of another DuckDB database"):
            place.sql("copy (select 1) to 'open.db'")
        opens = [sys.executable, "-c", "import duckdb; duckdb.connect('open.db')"]
        assert "Could not set lock" in subprocess.run(opens, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("query", UNTOLD)
def test_a_copy_whose_file_cannot_be_told_for_certain_is_refused(place, tmp_path, query):
    before = stored(tmp_path)
    [artifact] = (tmp_path / "h.nbflow" / "artifacts" / path for path in before if path.suffix == ".json")
    with pytest.raises(UsageError, match=r"cannot be told for certain|is no path|may write more than the one file"):
        place.sql(query.format(artifact=artifact))
    assert stored(tmp_path) == before
    assert os.listdir("out") == ["link.csv"]


@pytest.mark.parametrize(
    "query",
    [
        "update extensions",
        "explain update extensions",
        "export database 'out'",
        "copy steps from 'out/a.csv'",
        "copy steps (name) from 'a to b'",
    ],
)
def test_neither_an_export_nor_a_copy_into_a_table_only_reads(place, query):
    with pytest.raises(UsageError, match="sql only reads the history"):
        place.sql(query)


def test_a_store_in_memory_keeps_its_files_too(tmp_path):
    with Engine(":memory:") as engine:
        engine.register(Keeps).create("one").wait(30)
        [[uri]] = engine.sql("select output_uri from steps where name = 'big'").fetchall()
        with pytest.raises(UsageError, match="the file of a store or in its folder"):
            engine.sql(f"copy (select 1) to '{uri}'")
        engine.sql(f"copy (select 1 as a) to '{tmp_path}/out.csv'")
    assert (tmp_path / "out.csv").read_text() == "a\n1\n"


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("copy (select 'a to ''b''' as t) to 'out/x.csv'", "t\na to 'b'\n"),
        (
            "copy (select ';' as \"to\", (select 1) as b) to 'out/x.csv' (format csv, header true, delimiter '|');",
            "to|b\n;|1\n",
        ),
        ("COPY steps (name, \"type\") TO 'out/x.csv' WITH (HEADER, FORCE_QUOTE (name)) -- done", '"name",type\n"big",do\n'),
        ("copy (with a as (select 'ü€' as n) from a) to './out/x.csv' (format 'csv')", "n\nü€\n"),
        ("copy (select 1 as a) to '~/out/x.csv' (format json)", '{"a":1}\n'),
        ("explain analyze copy (select 1 as a) to 'out/x.csv'", "a\n1\n"),
    ],
)
def test_a_copy_to_a_file_outside_the_store_is_written(place, tmp_path, query, text):
    place.sql(query)
    assert (tmp_path / "out" / "x.csv").read_text() == text


def test_a_copy_asks_a_question_and_changes_nothing(place):
    with pytest.raises(UsageError):
        place.sql("copy (delete from entries returning *) to 'out/x.csv'")
    with pytest.raises(UsageError, match="the query failed"):
        place.sql("copy (select * from query('delete from entries')) to 'out/x.csv'")


@pytest.mark.parametrize(
    "query", ["explain (select 1)", "explain select 1", "explain (format json) (select 1)", "explain from steps"]
)
def test_a_question_in_parentheses_is_explained(place, query):
    assert place.sql(query).fetchall()
