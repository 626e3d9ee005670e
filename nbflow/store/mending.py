"""What is done about a DuckDB file that is less than it was: a half-written block, a log that DuckDB refuses, a lost end."""

from collections.abc import Mapping
from pathlib import Path

from nbflow.errors import StoreCorruptError
from nbflow.store import desk as desks
from nbflow.store import lease, segments, torn
from nbflow.store.database import DamagedLogError
from nbflow.store.desk import Desk
from nbflow.store.known import Asked
from nbflow.system import sync_folder

REACHED = "reached"
"""The key in `meta` of the seq that the next one follows, where the rows up to it are gone."""


def last(rows: Asked, meta: Mapping[str, str]) -> int:
    """The highest seq that was ever given."""
    [(highest,)] = rows("select coalesce(max(seq), 0) from nb.entries")
    return max(int(highest), int(meta.get(REACHED, "0")))


def attach(desk: Desk) -> bool:
    """Attach the file; True where that took leaving out its log, which is kept under another name.

    Raises:
        StoreCorruptError: it cannot be opened without its log either.
        StoreError: as of `Database.attach`.
    """
    layout = desk.layout
    torn.make_good(layout)
    try:
        desk.database.attach()
    except DamagedLogError as error:
        aside = desks.free_name(layout.wal.with_name(f"{layout.wal.name}.damaged"))
        layout.wal.rename(aside)
        try:
            desk.database.attach()
        except Exception as second:
            aside.rename(layout.wal)
            msg = (
                f"{str(layout.file)!r} cannot be opened, with its log or without: {error}; restore it from a backup. "
                f"Nothing was changed"
            )
            raise StoreCorruptError(msg) from second
        sync_folder(layout.file.parent)
        desk.warn(
            f"{str(layout.file)!r}: DuckDB refused its log ({error}), which is kept as {aside.name!r}; entries of journals are "
            f"loaded again, a command or creation that was just being written may be missing"
        )
        return True
    return False


COPIED = "copied"
"""The key in `meta` of the engines that were at work when this copy was made, or had died: what they recorded is in it."""


def short(folder: Path, engine: str, position: int, meta: Mapping[str, str], *, locked: bool = True) -> bool:
    """Whether a dead engine's journal may be less than what was recorded; *position* is how much of it was loaded.

    It ends before what was loaded or promised, or what is left cannot be told to be a journal; or nothing is left, not even
    its lock. Nothing is missing of an engine whose lock says that it died before its first sync, of one of an nbflow whose
    locks said nothing then, nor in a copy of the engines of the original.
    """
    if not locked:
        return bool(segments.segments(folder, engine)) or engine not in meta.get(COPIED, "").split()
    promised, end = lease.promised(folder, engine), segments.journal_end(folder, engine)
    if max(position, promised or 0) > end or segments.unread(folder, engine, promised):
        return True
    return promised is None and bool(lease.written(folder, engine)) and not segments.segments(folder, engine)


def notice(desk: Desk, last: int, *, opening: bool) -> None:
    """Notice that the file ends at *last*, before the highest seq that was recorded; `mend` then does what can be done.

    Raises:
        StoreCorruptError: engines are at work that know more of this history than the file.
    """
    highest = max(desk.counter.highest(), desk.seen)
    if last >= highest or desk.expected:
        return
    file, folder = str(desk.layout.file), desk.layout.journal
    if opening and not any(lease.lives(folder, engine) for engine in segments.engines(folder)):
        desk.expected, desk.found = highest, last
        return
    msg = (
        f"{file!r} ends at entry {last:,} although {highest:,} were recorded: an older copy was put in its place, or its end "
        f"is lost, while engines were at work; put the newer file back, or close them all to go on from what is there: what "
        f"was recorded since waits in the journals in {str(folder)!r}"
    )
    raise StoreCorruptError(msg)


def mend(desk: Desk, last: int) -> int:
    """Say what was missing once all journals are loaded; gives the seq that the next one follows.

    None is given a second time: what named a lost entry must not be taken for something else.
    """
    highest, found, desk.expected = desk.expected, desk.found, 0
    if not highest:
        return last
    desk.warn(
        f"{str(desk.layout.file)!r} ended at entry {found:,} although {highest:,} were recorded: its end was lost, or it is an "
        f"older copy; {last - found:,} entries came back from journals, creations and commands among the others are missing: "
        f"if you have the newer file, close all engines and put it back"
    )
    if last >= highest:
        return last
    rows = desk.database.rows
    rows(f"delete from nb.meta where key = '{REACHED}'")  # noqa: S608 - ours
    rows("insert into nb.meta values ($1, $2)", [REACHED, str(highest)])
    rows("update nb.meta set value = (value::bigint + $1)::varchar where key = 'purged'", [highest - last])
    return highest
