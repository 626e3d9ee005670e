"""Versions of the schema: what is refused, what is brought up to date, and how."""

import re
from pathlib import Path

from nbflow.errors import StoreCorruptError, StoreVersionError
from nbflow.store import appending, known
from nbflow.store.database import (
    NEW,
    Database,
    entries_schema,
    identifier,
    keep_private,
    known_schema,
    log_schema,
    quoted,
    view_schema,
)
from nbflow.store.desk import free_name, put

SCHEMA = 6


def _columns_from_bodies() -> str:
    paths = ", ".join(f"'$.{column}'" for column in appending.SAID)
    order, attempt, started_at, *rest = (
        f"try_cast(said[{place}] as {kind})" for place, kind in enumerate(appending.SAID.values(), 1)
    )
    return f"""
alter table entries rename to former;
{entries_schema()}
insert into entries
select
  seq, recorded_at, created_seq, token, kind, step, count, key,
  case when step is not null then coalesce({order}, 0) end, {attempt}, {started_at},
  kind in ('do.finished', 'map.finished') and {attempt} = 1 and {started_at} is not null and a.seq is not null,
  {", ".join(rest)}, body, value, null
from (select *, case when json_valid(body) then json_extract_string(body, [{paths}]) end as said from former)
left join (
  select max(seq) as seq
  from former
  where step is not null
  group by created_seq, split_part(kind, '.', 1), step, count, key
  having count(*) = 1
) as a using (seq);
drop table former;
"""  # noqa: S608 - no text of a user is in it


def _began_at() -> str:
    """The column and what explains it, where a step before this one has not made it."""
    comments = [line for line in entries_schema().splitlines() if re.match("comment on column entries.(whole|began_at) ", line)]
    return "\n".join(("alter table entries add column if not exists began_at timestamptz;", *comments, ""))


def _comments() -> str:
    """What explains the tables of what is known."""
    return "\n".join(line for line in known_schema().splitlines() if line.startswith("comment on "))


STEPS: dict[int, str] = {1: log_schema(), 2: "", 3: _columns_from_bodies(), 4: _began_at() + known_schema(), 5: _comments()}
"""SQL that leads the tables from a version to the next; the file is attached as `nb` and in use.

Views are made anew, and so is what is known of instances and steps.
"""


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
    database.rows("checkpoint nb")
    copy = _copied(database, file, version)
    database.rows("use nb")
    try:
        database.rows("begin")
        _drop_views(database)  # first: none of what is in them may be taken for a function of DuckDB meanwhile
        for step in range(version, SCHEMA):
            if STEPS[step]:
                database.connection.execute(STEPS[step])
        database.connection.execute(view_schema())
        known.rebuild(database.rows)
        database.rows("update meta set value = $1 where key = 'schema'", [str(SCHEMA)])
        database.commit()
    except BaseException:
        database.rows("rollback")
        raise
    finally:
        database.rows("use memory")
    database.rows("checkpoint nb")
    return copy


def _copied(database: Database, file: Path, version: int) -> Path:
    """A copy of the store as it is; what an attempt that failed has left of one is no hindrance."""
    unfinished = file.with_name(f".{file.stem}.schema{version}{file.suffix}")
    unfinished.unlink(missing_ok=True)
    database.rows(f"attach {quoted(unfinished)} as copy ({NEW})")
    keep_private(unfinished)
    try:
        database.rows("copy from database nb to copy")
    finally:
        database.rows("detach copy")
    copy = free_name(file.with_name(f"{file.stem}.schema{version}{file.suffix}"))
    put(unfinished, copy)
    return copy


def make_views_anew(database: Database) -> None:
    """Make the views of an attached store as they are to be, within the transaction that is open."""
    database.rows("use nb")
    try:
        _drop_views(database)
        database.connection.execute(view_schema())
    finally:
        database.rows("use memory")


def _drop_views(database: Database) -> None:
    of_nb = "where database_name = 'nb' and not internal"
    for (name,) in database.rows(f"select view_name from duckdb_views() {of_nb} and schema_name = 'main'"):  # noqa: S608
        database.rows(f"drop view {identifier(name)}")
    macros = f"select distinct function_name from duckdb_functions() {of_nb} and schema_name = 'main'"  # noqa: S608
    for kind, of_that_kind in (("macro", "macro"), ("macro table", "table_macro")):
        for (name,) in database.rows(f"{macros} and function_type = '{of_that_kind}'"):
            database.rows(f"drop {kind} {identifier(name)}")
    database.rows("drop schema if exists internal cascade")
