"""Versions of the schema: what is refused, what is brought up to date, and how."""

from pathlib import Path

from nbflow.errors import StoreCorruptError, StoreVersionError
from nbflow.store.database import Database, log_schema, quoted, view_schema

SCHEMA = 3

STEPS: dict[int, str] = {1: log_schema(), 2: ""}
"""SQL that leads the tables from a version to the next; the file is attached as `nb` and in use. Views are made anew."""


def check(file: Path, version: str) -> int:
    """The version of a store, where this nbflow can work with it.

    Raises:
        StoreVersionError: a newer nbflow wrote it.
        StoreCorruptError: it says no version.
    """
    if not version.isdigit():
        msg = f"{str(file)!r} does not say its schema version; restore it from a backup. Nothing was changed"
        raise StoreCorruptError(msg)
    if int(version) > SCHEMA:
        msg = (
            f"{str(file)!r} has schema version {version}, this nbflow knows {SCHEMA}: a newer nbflow has worked with it; "
            f"upgrade nbflow and restart this kernel. Nothing was changed"
        )
        raise StoreVersionError(msg)
    return int(version)


def bring_up_to_date(database: Database, file: Path, version: int) -> Path | None:
    """Lead an attached store to SCHEMA, under the lease; a copy of it as it was is left beside it and given back.

    The caller has made sure that no other engine lives and that every journal is loaded.
    """
    if version >= SCHEMA:
        return None
    copy = file.with_name(f"{file.stem}.schema{version}{file.suffix}")
    database.rows("checkpoint nb")
    database.rows(f"attach {quoted(copy)} as copy (storage_version 'v1.4.0', block_size 16384)")
    try:
        database.rows("copy from database nb to copy")
    finally:
        database.rows("detach copy")
    database.rows("use nb")
    try:
        database.rows("begin")
        for step in range(version, SCHEMA):
            if STEPS[step]:
                database.connection.execute(STEPS[step])
        _make_views_anew(database)
        database.rows("update meta set value = $1 where key = 'schema'", [str(SCHEMA)])
        database.rows("commit")
    finally:
        database.rows("use memory")
    database.rows("checkpoint nb")
    return copy


def _make_views_anew(database: Database) -> None:
    of_nb = "where database_name = 'nb' and not internal"
    for (name,) in database.rows(f"select view_name from duckdb_views() {of_nb} and schema_name = 'main'"):  # noqa: S608
        database.rows(f'drop view "{name}"')
    macros = f"select distinct function_name from duckdb_functions() {of_nb} and schema_name = 'main'"  # noqa: S608
    for (name,) in database.rows(f"{macros} and function_type = 'macro'"):
        database.rows(f'drop macro "{name}"')
    database.rows("drop schema if exists internal cascade")
    database.connection.execute(view_schema())
