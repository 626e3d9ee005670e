"""Whether a DuckDB file is made as nbflow makes it: its tables, its views, and nothing in it that stands in for DuckDB's own.

A file may come from a stranger. A view by the name of a table, a column that is computed, a macro by the name of a function
would have our own statements, and the user's, run what the stranger wrote: read any file, for one.
"""

import functools
import re

from nbflow.errors import StoreCorruptError, listed
from nbflow.store.database import schema
from nbflow.store.known import Asked
from nbflow.store.layout import Layout

_MAIN = "database_name = 'nb' and schema_name = 'main'"
_OURS = "database_name = 'nb' and schema_name in ('main', 'internal')"
_TABLE = re.compile(r"create table (\w+) \(\n(.*?)\n\);", re.DOTALL)
_COLUMN = re.compile(r'\s*"?(\w+)"? (\w+)')
_WRITTEN = {"timestamptz": "TIMESTAMP WITH TIME ZONE"}


@functools.cache
def _tables() -> dict[str, list[str]]:
    """The columns of each table, as DuckDB tells them of a store just made."""
    made = {}
    for name, columns in _TABLE.findall(schema()):
        pairs = [_COLUMN.match(line) for line in columns.splitlines()]
        made[name] = [f"{pair[1]} {_WRITTEN.get(pair[2], pair[2].upper())}" for pair in pairs if pair is not None]
    return made


def tables_as_made(layout: Layout, rows: Asked) -> None:
    """The tables of the present schema are there with exactly their columns, plain ones, and nothing acts on a write.

    Raises:
        StoreCorruptError: they are not; says which.
    """
    nothing_acts(layout, rows)
    tables = {name for (name,) in rows(f"select table_name from duckdb_tables() where {_MAIN}")}  # noqa: S608 - ours
    found: dict[str, list[str]] = {}
    columns = "select table_name, column_name || ' ' || data_type, is_generated or column_default is not null"
    for table, column, made in rows(f"{columns} from duckdb_columns() where {_MAIN} order by table_oid, column_index"):
        found.setdefault(table, []).append("a computed one" if made else column)
    _refuse(layout, [name for name, wanted in _tables().items() if name not in tables or found[name] != wanted])


def nothing_acts(layout: Layout, rows: Asked) -> None:
    """No trigger and no check, which run what somebody wrote when we write.

    Raises:
        StoreCorruptError: there is one; says of which table.
    """
    checks = f"select table_name from duckdb_constraints() where {_MAIN} and constraint_type = 'CHECK'"  # noqa: S608 - ours
    triggers = f"select table_name from duckdb_triggers() where {_MAIN}"  # noqa: S608 - ours
    _refuse(layout, [name for query in (checks, triggers) for (name,) in rows(query) if name in _tables()])


def no_history(layout: Layout) -> StoreCorruptError:
    """The error for a DuckDB file of something else."""
    return StoreCorruptError(
        f"{str(layout.file)!r} is a DuckDB file, but no history of nbflow: name another file. Nothing was changed"
    )


def _refuse(layout: Layout, odd: list[str]) -> None:
    if odd:
        msg = (
            f"{str(layout.file)!r} is no history as nbflow makes it: {listed(sorted(set(odd)))} in it is something "
            f"else than nbflow's plain table; restore the file from a backup, or name another one. Nothing was changed"
        )
        raise StoreCorruptError(msg)


Described = frozenset[tuple[str, str, str, str]]
"""Kind, schema, name and text of views, macros and types."""


def described(rows: Asked) -> Described:
    """The views, macros and types of an attached store."""
    views = f"select 'view', schema_name, view_name, sql from duckdb_views() where {_OURS}"  # noqa: S608 - ours
    types = f"select 'type', schema_name, type_name, logical_type from duckdb_types() where {_OURS} and not internal"  # noqa: S608 - ours
    of_macros = f"{_OURS} and function_type in ('macro', 'table_macro')"
    macros = (
        "select 'macro', schema_name, function_name, parameters::varchar || macro_definition "  # noqa: S608 - ours
        f"from duckdb_functions() where {of_macros}"
    )
    return frozenset((str(a), str(b), str(c), str(d)) for query in (views, types, macros) for a, b, c, d in rows(query))


def as_made(layout: Layout, found: Described, expected: Described) -> bool:
    """Whether the views and their macros are those of a store just made, *expected*.

    Raises:
        StoreCorruptError: there are macros or types that DuckDB would take for its own of that name.
    """
    if odd := sorted({f"{kind} {name!r}" for kind, schema, name, _ in found if schema == "main" and kind != "view"}):
        msg = (
            f"{str(layout.file)!r} has what nbflow did not make and DuckDB may take for its own: {', '.join(odd[:5])}; "
            f"drop it by DuckDB's shell, or restore the file from a backup. Nothing was asked"
        )
        raise StoreCorruptError(msg)
    return expected <= found and not {one for one in found if one[1] == "internal"} - expected
