"""A user's SQL over the history: one statement, read-only, its result taken out of the file at once."""

import functools
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import duckdb

from nbflow.core.log import LogChunk
from nbflow.core.model import Entry
from nbflow.errors import StoreError, UsageError
from nbflow.store import copying, lines, migrate, shape
from nbflow.store.database import NAME, NEW, Database, connect, identifier, make_schema, quoted, translated
from nbflow.store.desk import placed
from nbflow.store.layout import Layout
from nbflow.store.session import Session

MOST = 1_000_000
_WRAPPED = frozenset({"SELECT", "RELATION", "MULTI"})  # multi: a pivot without a list of values, which asks for them first
_ALLOWED = _WRAPPED | {"EXPLAIN", "PRAGMA", "COPY"}
_NO_FILES = "the query reads or writes files, and this engine was made with sql_files=False; ask without them"
_TELLS = re.compile(
    r"pragma\s+(table_info|show|show_tables\w*|database_list|database_size|storage_info|functions|version)\b", re.I
)


def checked(query: str, layout: Layout, *, files: bool = True) -> tuple[str, str]:
    """The one statement in *query*, as it is to run, and its type.

    Raises:
        UsageError: there is none, or several, or it would change the history or a file of the store in *layout*; or it writes
            a file without *files*.
    """
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        msg = f"the query cannot be read: {_first(error)}"
        raise UsageError(msg) from error
    if len(statements) != 1:
        msg = f"sql takes one statement, this is {len(statements)}: call it once for each"
        raise UsageError(msg)
    kind = _kind(statements[0])
    text = statements[0].query.strip().rstrip(";")
    tells = kind != "PRAGMA" or _TELLS.match(text)  # others act, and "import database" counts as one
    if kind not in _ALLOWED or not tells or (kind == "COPY" and copying.reads_in(text)):
        msg = (
            f"sql only reads the history, this is {kind.replace('_', ' ').lower()}: change it by the methods of engine and "
            f"instance, or work on a copy (engine.backup)"
        )
        raise UsageError(msg)
    if kind == "COPY":
        if not files:
            raise UsageError(_NO_FILES)
        text = copying.rebuilt(text, layout, lambda asked: _asked(asked, layout))
    if kind == "EXPLAIN":  # to analyse a statement is to run it
        how, explained = copying.explained(text)
        text = f"{how} {checked(explained, layout, files=files)[0]}"
    return text, kind


def _kind(statement: Any) -> str:
    try:
        return str(statement.type).rpartition(".")[2].upper()
    except ValueError:  # DuckDB has kinds that its Python side has no name for
        return "ANOTHER STATEMENT"


def _asked(query: str, layout: Layout) -> str:
    """The query of a copy: one that could stand by itself."""
    text, kind = checked(query, layout)
    if kind not in _WRAPPED:
        msg = f"a copy writes what a select gives, this is {kind.lower()}"
        raise UsageError(msg)
    return text


def run(
    query: tuple[str, str],
    connection: duckdb.DuckDBPyConnection,
    attach: Callable[[duckdb.DuckDBPyConnection], None],
    *,
    files: bool = True,
) -> duckdb.DuckDBPyRelation:
    """Run a checked query on a connection of its own, with the store attached meanwhile; without *files* it sees no others."""
    text, kind = query
    attach(connection)
    if not files:
        connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")
    try:
        connection.execute(f"use {NAME}")
        try:
            _keep(connection, text, kind)
        except duckdb.PermissionException as error:
            raise UsageError(_NO_FILES) from error
        except duckdb.IOException as error:
            msg = f"the query could not read its files: {_first(error)}"
            raise StoreError(msg) from error
        except duckdb.InterruptException as error:
            msg = "the query was interrupted"
            raise StoreError(msg) from error
        except duckdb.FatalException:
            raise
        except duckdb.Error as error:
            msg = f"the query failed: {_first(error)}"
            raise UsageError(msg) from error
    finally:
        connection.execute("use memory")
        connection.execute(f"detach {NAME}")
    count = connection.execute("select count(*) from memory.main.result").fetchall()[0][0]
    if count > MOST:
        msg = (
            f"the query gives more than {MOST:,} rows, too many to keep: add a condition or a limit, "
            f"or write it to a file: copy ({text}) to 'result.parquet'"
        )
        raise StoreError(msg)
    return connection.table("result")


def _keep(connection: duckdb.DuckDBPyConnection, text: str, kind: str) -> None:
    if kind in _WRAPPED:
        connection.execute(f"create table memory.main.result as select * from (\n{text}\n) limit {MOST + 1}")  # noqa: S608 - his own SQL
        return
    found = connection.execute(text)
    names = [column[0] for column in found.description or []] or ["result"]
    rows = found.fetchall()
    columns = ", ".join(f"{identifier(name)} varchar" for name in names)
    connection.execute(f"create table memory.main.result ({columns})")
    marks = ", ".join(f"${i}" for i in range(1, len(names) + 1))
    for row in rows:
        values = [None if value is None else str(value) for value in row]
        connection.execute(f"insert into memory.main.result values ({marks})", values)  # noqa: S608 - marks only


def file_attached(layout: Layout) -> Callable[[duckdb.DuckDBPyConnection], None]:
    """How a query sees the store's file: read-only."""

    def attach(connection: duckdb.DuckDBPyConnection) -> None:
        try:
            connection.execute(f"attach {quoted(layout.file)} as {NAME} (type duckdb, read_only)")
        except duckdb.Error as error:
            raise translated(error, layout) from error

    return attach


def relation_of(
    entries: Iterable[Entry],
    sources: Mapping[str, str],
    logs: Iterable[LogChunk],
    artifacts: Path,
    query: str,
    *,
    files: bool = True,
) -> Any:
    """Run *query* over entries that are in no file."""
    asked = checked(query, Layout(artifacts, artifacts), files=files)

    def attach(connection: duckdb.DuckDBPyConnection) -> None:
        connection.execute(f"attach ':memory:' as {NAME}")
        make_schema(connection, {"schema": str(migrate.SCHEMA), "purged": "0", "artifacts": str(artifacts)})
        database = Database(Layout(artifacts, artifacts))
        database.use(connection)
        database.write(placed(entries), 0)
        for code_hash, text in sources.items():
            database.load(lines.framed(lines.of_source(code_hash, text)), 0)
        for chunk in logs:
            database.load(lines.framed(lines.of_log(chunk)), 0)

    return run(asked, connect(threads=None, memory=None), attach, files=files)


@functools.cache
def _expected() -> shape.Described:
    """What the views of a store just made are, as a file gives them back."""
    connection = connect()
    with tempfile.TemporaryDirectory() as folder:
        attach = f"attach {quoted(Path(folder, 'made.duckdb'))} as {NAME} (type duckdb, {NEW})"
        connection.execute(attach)
        make_schema(connection, {})
        connection.execute(f"detach {NAME}")
        connection.execute(attach)
        found = shape.described(lambda query, values=None: connection.execute(query, values).fetchall())
        connection.execute(f"detach {NAME}")
    connection.close()
    return found


def see_to_views(session: Session) -> None:
    """What is asked is answered by views as nbflow makes them, whoever has written the file.

    Raises:
        StoreCorruptError: what is in it cannot be told apart from DuckDB's own.
    """
    if not session.views_as_made(_expected()):
        session.renew_views()


def _first(error: duckdb.Error) -> str:
    return str(error).strip().splitlines()[0]


VIEWS = ("instances", "steps", "attempts", "events", "logs", "history")


def snapshot(ask: Callable[[str], Any], *, files: bool = True) -> duckdb.DuckDBPyConnection:
    """A connection of the user's own, with the views as tables, as they are now; the history's file is free again."""
    connection = connect(threads=None, memory=None)
    for view in VIEWS:
        try:
            table = ask(f"from {view}").to_arrow_table()
        except ImportError as error:
            msg = "a cursor needs pyarrow, which is not installed; install it, or ask by sql()"
            raise UsageError(msg) from error
        connection.register("told", table)
        connection.execute(f"create table {view} as from told")
        connection.unregister("told")
    if not files:
        connection.execute("set enable_external_access = false")
        connection.execute("set lock_configuration = true")
    return connection
