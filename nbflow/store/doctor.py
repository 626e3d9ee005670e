"""Look a store over and say what is wrong with it and what to do; changes nothing, needs no engine, works on broken files."""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import duckdb

from nbflow.clock import SystemClock, pause
from nbflow.core.head import fold_head
from nbflow.core.model import Entry
from nbflow.errors import NbflowError
from nbflow.store import contents, known, lease, mending, migrate, segments, shape, torn
from nbflow.store.database import NAME, Database, HeldError
from nbflow.store.layout import Layout
from nbflow.store.loader import CLASH
from nbflow.store.wholeness import all_blocks, wholeness
from nbflow.system import has_modes

PATIENCE = 5.0
_LITTLE_ROOM = 1 << 30
_NAMED = 5


class Severity(StrEnum):
    """How much a finding matters."""

    FINE = "fine"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found: what it is, and what to do about it."""

    severity: Severity
    what: str
    advice: str = ""


def examine(path: str | os.PathLike[str] | None, patience: float = PATIENCE) -> list[Finding]:
    """Look at the store of that DuckDB file, the default one for None; waits *patience* seconds for the file."""
    layout = Layout.of(path)
    return [*_guarded(layout, _folders), *_guarded(layout, _file), *_opened(layout, patience)]


def _fine(what: str) -> Finding:
    return Finding(Severity.FINE, what)


def _note(what: str, advice: str) -> Finding:
    return Finding(Severity.NOTE, what, advice)


def _wrong(what: str, advice: str) -> Finding:
    return Finding(Severity.WRONG, what, advice)


def _guarded(layout: Layout, look: Callable[[Layout], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from look(layout)
    except OSError as error:
        yield _wrong(*_unreadable(layout, error))


def _unreadable(layout: Layout, error: OSError) -> tuple[str, str]:
    return f"{error.filename or layout.folder} cannot be read: {error.strerror or error}", "give this user access to it"


# -- files, without opening any ---------------------------------------------------------------------------------------


def _folders(layout: Layout) -> Iterator[Finding]:
    if not layout.folder.is_dir():
        yield _note(f"the folder {layout.folder} is not there", "it is made when an engine opens the store")
        return
    for place, wanted in ((layout.folder, 0o700), (layout.file, 0o600)):
        if has_modes() and place.exists() and (mode := stat.S_IMODE(place.stat().st_mode)) & 0o077:
            yield _note(f"others may look into {place} (mode {mode:04o})", f"chmod {wanted:o} {place}")
        if place.exists() and not os.access(place, os.W_OK):
            yield _wrong(f"{place} cannot be written by this user", f"give this user write access to {place}")
    for place, what in layout.strangers():
        yield _wrong(f"{place} is {what}: a store keeps to its own folder", "put the real file or folder in its place")
    free = shutil.disk_usage(layout.folder).free
    if free < _LITTLE_ROOM:
        yield _note(f"the disk of {layout.folder} has {free / 2**20:,.0f} MB left", "make room: a full disk stops all steps")
    for left in sorted([*layout.folder.rglob("*.damaged*"), *layout.file.parent.glob(f"{layout.file.name}.wal.damaged*")]):
        yield _note(f"{left} was set aside after a crash", "keep it if entries are missing, else remove it")


def _file(layout: Layout) -> Iterator[Finding]:
    file = layout.file
    if not file.exists():
        waiting = _journals_with_entries(layout)
        if waiting:
            yield _wrong(
                f"{file} is not there, but {len(waiting)} journal(s) that belong to it are",
                f"put the file back, or move {layout.folder} away to begin anew",
            )
        else:
            yield _wrong(f"there is no history at {file}", "go to the folder of the notebook, or say --store PATH")
    elif not file.stat().st_size:
        yield _wrong(
            f"{file} is empty, so it is no DuckDB file: it was cut, or something else made it",
            "restore it from a backup; where there never was a history, remove it: an engine makes a new one",
        )


def _journals_with_entries(layout: Layout) -> list[str]:
    folder = layout.journal
    return [name for name in segments.engines(folder) if segments.journal_end(folder, name)] if folder.is_dir() else []


# -- the file, under its lease ----------------------------------------------------------------------------------------


def _opened(layout: Layout, patience: float) -> list[Finding]:
    if not layout.file.exists() or not layout.file.stat().st_size or any(layout.strangers()):
        return []
    if not layout.folder.is_dir():  # whoever works with the store has made it: there is nobody to wait for
        return _read(layout, patience)
    turn = lease.Lease(layout, lease.own_holder("doctor", "nbflow doctor"))
    try:
        if not turn.acquire(patience, lambda: False):
            return [_note(f"{layout.file} is in use: {turn.holder()}", "try again; work goes on meanwhile, in the journals")]
        try:
            return _read(layout, patience)
        finally:
            turn.release()
    except NbflowError as error:
        return [_wrong(*_split(str(error)))]
    finally:
        turn.forget()


def _read(layout: Layout, patience: float) -> list[Finding]:
    database = Database(layout)
    found: list[Finding] = []
    try:
        if layout.wal.exists():
            found.append(_note(f"{layout.wal} was left by a crash", "it is folded in when an engine opens the store"))
        _attach(database, patience)
        found += _inside(layout, database)
    except HeldError as error:
        found.append(_note(f"{layout.file} is open in {error}", "close it there; work goes on meanwhile, in the journals"))
    except (NbflowError, duckdb.Error) as error:
        if torn.explains(layout, str(error)):
            found.append(
                _note(f"a death left a block of {layout.file} half written", "it is made good when an engine opens the store")
            )
            return found
        told = database.translated(error) if isinstance(error, duckdb.Error) else error
        found.append(_wrong(*_split(str(told))))
    except OSError as error:
        found.append(_wrong(*_unreadable(layout, error)))
    except Exception as error:  # noqa: BLE001 - a damaged file may fail in any way, and that is a finding
        found.append(_wrong(f"{layout.file} cannot be read: {error}", "restore it from a backup"))
    finally:
        database.reset()
    return found


def _attach(database: Database, patience: float) -> None:
    """Attach to read, once an outsider who only looks in has gone; HeldError where he stays."""
    time = SystemClock()
    deadline = time.monotonic() + patience
    while True:
        try:
            database.attach_to_read()
        except HeldError:
            if time.monotonic() >= deadline:
                raise
            pause(CLASH)
        else:
            return


def _split(text: str) -> tuple[str, str]:
    """What an error of ours says happened, and what to do."""
    what, _, advice = text.removesuffix(". Nothing was changed").partition("; ")
    return what, advice


def _inside(layout: Layout, database: Database) -> Iterator[Finding]:
    rows = database.rows
    tables = {name for (name,) in rows(f"select table_name from duckdb_tables() where database_name = '{NAME}'")}  # noqa: S608
    if not {"entries", "loaded", "meta"} <= tables:
        yield _wrong(f"{layout.file} is a DuckDB file, but no history of nbflow", "name another file")
        return
    meta = dict(rows("select key, value from nb.meta"))
    version = migrate.check(layout.file, meta.get("schema", ""))
    if version < migrate.SCHEMA:
        yield _note(f"{layout.file} has schema version {version}", "an engine brings it up to date when it opens the store")
    else:
        shape.tables_as_made(layout, rows)
    all_blocks(layout, rows)
    wholeness(layout, rows, meta)
    for table in sorted(tables):
        rows(f"select sum(hash(t)) from nb.{table} as t")  # noqa: S608 - damage inside a block shows when it is read
    [(entries, instances)] = rows("select count(*), count(*) filter (kind = 'created') from nb.entries")
    yield from _end(layout, mending.last(rows, meta))
    yield _fine(f"{layout.file}: {entries:,} entries of {instances:,} instances, whole")
    if version == migrate.SCHEMA:
        yield from _known(layout, rows)
    positions = {name: (position, closed) for name, position, closed in rows("select * from nb.loaded")}
    stored = contents.stored_files(rows)
    yield from _journals(layout, meta, positions, stored)
    yield from _artifacts(layout, stored)
    yield from _interrupted(layout, database)


def _known(layout: Layout, rows: known.Asked) -> Iterator[Finding]:
    """The tables that views read say what the entries say."""
    for table, count in known.differences(rows).items():
        yield _wrong(
            f"{count:,} row(s) of {table} in {layout.file} are not what the entries say",
            "open the store with `nbflow compact`: it makes them again; nothing recorded is lost",
        )


def _end(layout: Layout, last: int) -> Iterator[Finding]:
    counter = lease.News(layout)
    highest = counter.highest() if counter.there() else 0
    counter.forget()
    if last < highest:
        yield _wrong(
            f"{layout.file} ends at entry {last:,} although {highest:,} were recorded: its end is lost, or it is an older copy",
            "put the newer file back if you have it; else an engine goes on from what is there, with what is in journals",
        )


def _journals(
    layout: Layout, meta: dict[str, str], positions: dict[str, tuple[int, bool]], stored: dict[str, tuple[str, str]]
) -> Iterator[Finding]:
    """Each journal can be read from where it was loaded to; adds the files that it names to *stored*."""
    folder, store = layout.journal, meta.get("store", "")
    present = segments.engines(folder)
    for name in sorted(present):
        position, closed = positions.get(name, (0, False))
        living, promised = lease.lives(folder, name) is True, lease.promised(folder, name)
        if name not in positions and segments.store_of(folder, name) not in (store, None):
            yield _note(
                f"a journal in {folder} is of another store: engine {name[:8]}", "it is left alone; put it where it belongs"
            )
            continue
        try:
            stretch = segments.readable(folder, name, position, 10**9, store=store, living=living, promised=promised)
        except NbflowError as error:
            yield _wrong(*_split(str(error)))
            continue
        if not living and not closed and mending.short(folder, name, position, meta):
            yield _lost(name, folder)
        stored |= {uri: (digest, "in a journal") for uri, digest in contents.references(stretch.data)}
        waiting = stretch.data.count(b',"kind":"')
        if living:
            yield _fine(f"engine {name[:8]} is at work; {waiting:,} of its entries wait to be loaded")
        elif waiting:
            yield _note(f"engine {name[:8]} died; {waiting:,} entries of it are safe in its journal", "run the cell again")
    for name, (position, closed) in sorted(positions.items()):
        if not closed and name not in present and mending.short(folder, name, position, meta, locked=False):
            yield _lost(name, folder)


def _lost(name: str, folder: Path) -> Finding:
    what = f"the journal of engine {name[:8]} is missing or cut in {folder}: what it recorded in its last second may be lost"
    return _wrong(what, "put the file back, or run the cell again: steps without a record run once more")


def _artifacts(layout: Layout, stored: dict[str, tuple[str, str]]) -> Iterator[Finding]:
    """Each stored file is there and is what was stored; files that nothing names are left over."""
    bad: dict[str, list[str]] = {}
    for uri, (digest, step) in stored.items():
        trouble = contents.trouble_of(layout.artifacts, uri, digest)
        if trouble is not None:
            bad.setdefault(trouble, []).append(f"{uri} (step {step!r})")
    for trouble, which in bad.items():
        more = f" and {len(which) - _NAMED:,} more" if len(which) > _NAMED else ""
        yield _wrong(
            f"stored files {trouble}, {len(which):,}: {', '.join(which[:_NAMED])}{more}",
            "put them back from a backup, or restart the instance from that step",
        )
    good = len(stored) - sum(map(len, bad.values()))
    yield _fine(f"{good:,} stored files, each with the content that was stored")
    left = contents.leftovers(layout.artifacts, stored, SystemClock().now())
    if left:
        size = sum(path.stat().st_size for path in left)
        yield _note(f"{len(left):,} file(s) of {size:,} bytes belong to nothing recorded", "`nbflow compact` removes them")


def _interrupted(layout: Layout, database: Database) -> Iterator[Finding]:
    rows: dict[int, list[Entry]] = {}
    for entry in database.entries("step is null order by seq", []):
        rows.setdefault(entry.created_seq or entry.seq, []).append(entry)
    for entries in rows.values():
        head = fold_head(entries)
        if head.finished or head.deleted or head.owner is None or lease.alive(layout, head.owner) is not False:
            continue
        name = f"{head.workflow}/{head.instance_id}"
        where = f"in {head.owner.notebook}" if head.owner.notebook else "where its workflow is defined"
        yield _note(f"{name} is unfinished and its kernel is gone", f"run its cell again, {where}")
