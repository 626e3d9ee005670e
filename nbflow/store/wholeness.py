"""Whether a DuckDB file holds all that it should: DuckDB itself opens a file that was cut."""

from collections.abc import Mapping

from nbflow.errors import StoreCorruptError
from nbflow.store import mending
from nbflow.store.known import Asked
from nbflow.store.layout import Layout

_HEADERS = 3 * 4096  # of a DuckDB file, before its blocks


def wholeness(layout: Layout, rows: Asked, meta: Mapping[str, str]) -> None:
    """No block of the file may be missing, and no row: seqs have no gaps but those of purged rows.

    Raises:
        StoreCorruptError: it is not whole; says what is missing.
    """
    [(block,)] = rows("select block_size from pragma_database_size() where database_name = 'nb'")
    _has_blocks(layout, _last_block(rows, "nb.entries") + 1, block)
    last, [(count,)] = mending.last(rows, meta), rows("select count(*) from nb.entries")
    purged = int(meta.get("purged", "0"))
    if last - count != purged:
        msg = (
            f"{str(layout.file)!r} is not whole: {last:,} were recorded, {count:,} are there and {purged:,} were purged; "
            f"restore it from a backup (nbflow backup). Nothing was changed"
        )
        raise StoreCorruptError(msg)


def all_blocks(layout: Layout, rows: Asked) -> None:
    """No block of any table, nor of what describes tables and views, may be missing; for a file that nobody is writing.

    What the file's header counts is no measure: free blocks at the end are cut off and stay counted.

    Raises:
        StoreCorruptError: it is shorter.
    """
    [(block,)] = rows("select block_size from pragma_database_size() where database_name = 'nb'")
    [(last,)] = rows("select coalesce(max(block_id), -1) from pragma_metadata_info('nb')")
    tables = rows("select schema_name || '.' || table_name from duckdb_tables() where database_name = 'nb'")
    _has_blocks(layout, max(last, *(_last_block(rows, f"nb.{name}") for (name,) in tables)) + 1, block)


def _last_block(rows: Asked, table: str) -> int:
    query = (
        "select coalesce(max(greatest(block_id, coalesce(list_max(additional_block_ids), -1))), -1) "  # noqa: S608 - ours
        f"from pragma_storage_info('{table}')"
    )
    last: int = rows(query)[0][0]
    return last


def _has_blocks(layout: Layout, blocks: int, block: int) -> None:
    expected, size = _HEADERS + blocks * block, layout.file.stat().st_size
    if size < expected:
        msg = (
            f"{str(layout.file)!r} was cut: it has {size:,} bytes of at least {expected:,}; restore it from a backup "
            f"(nbflow backup). Nothing was changed"
        )
        raise StoreCorruptError(msg)
