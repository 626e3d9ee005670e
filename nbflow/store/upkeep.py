"""Keeping house: copy a store, make its file small again. Both under the lease, both whole or not at all."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb

from nbflow.clock import SystemClock
from nbflow.errors import StoreError, UsageError
from nbflow.store import contents, mending, migrate, segments
from nbflow.store.database import NEW, keep_private, quoted, translated
from nbflow.store.layout import Layout
from nbflow.store.lease import lives
from nbflow.store.loader import Loader
from nbflow.store.session import Session
from nbflow.system import sync_folder, sync_whole

# The entry that says "deleted" stays: seqs go on from the highest, and nobody's number is given out again.
_OF_DELETED = "created_seq in (select created_seq from nb.entries where kind = 'deleted')"
_PURGED = f"{_OF_DELETED} and kind <> 'deleted'"
# Their journals stay behind. Where the copy is put in the place of the original, what they hold beyond is loaded all the same.
_COPIED = "insert into copy.meta select $1, coalesce(string_agg(journal, ' '), '') from copy.loaded where not closed"


def facts(loader: Loader, synced: int) -> dict[str, Any]:
    """What can be told of a store without its file: where it is, who holds it, what waits in the journal."""
    desk = loader.desk
    folder = desk.layout.journal
    with desk.layout.refusals():
        return {
            "path": str(desk.layout.file),
            "size": desk.layout.file.stat().st_size,
            "journalled": segments.count_entries(folder, desk.engine, desk.own, synced),
            "holder": loader.held_by,
            "trouble": str(trouble) if (trouble := loader.trouble_of_writing) is not None else None,
            "engines": sum(bool(lives(folder, engine)) for engine in segments.engines(folder)),
            "schema": migrate.SCHEMA,
        }


def entries(loader: Loader) -> int | None:
    """How many entries the file has; None where it is held by others, or in trouble that is told beside it."""
    try:
        with loader.session(0.5) as session:
            return int(session.rows("select count(*) from nb.entries")[0][0])
    except StoreError:
        return None


def backup(loader: Loader, target: Layout) -> Path:
    """Copy everything recorded so far to *target*.

    Raises:
        UsageError: something is there already.
    """
    if target.file.exists() or target.folder.exists():
        there = target.file if target.file.exists() else target.folder
        msg = f"{str(there)!r} exists: a backup never overwrites; name another file"
        raise UsageError(msg)
    try:
        with target.refusals():
            target.prepare()
            loader.after(Session.load_all, lambda session: _copy_to(session, target))
            _copy_files(loader.desk.layout.artifacts, target)
            _sync_file(target.file)
    except BaseException:  # what is there of it would be in the way of the next one, and pass for a whole one
        shutil.rmtree(target.folder, ignore_errors=True)
        for left in (target.file, target.wal):
            with suppress(OSError):
                left.unlink()
        raise
    return target.file


def _copy_files(artifacts: Path, target: Layout) -> None:
    def copy(source: str, place: str) -> None:
        with target.refusals():  # of the first that fails: `copytree` would go on, and tell of all
            shutil.copy2(source, place)

    shutil.copytree(artifacts, target.artifacts, ignore=contents.strange, dirs_exist_ok=True, copy_function=copy)


def compact(loader: Loader) -> tuple[int, int]:
    """Rewrite the file without the entries of deleted instances."""
    layout = loader.desk.layout
    before = layout.file.stat().st_size

    def purge(session: Session) -> None:
        count = session.rows(f"select count(*) from nb.entries where {_PURGED}")[0][0]  # noqa: S608
        session.change(f"delete from nb.log_chunks where {_OF_DELETED}")  # noqa: S608
        if count:
            session.change(f"delete from nb.entries where {_PURGED}")  # noqa: S608
            session.change("update nb.meta set value = (value::bigint + $1)::varchar where key = 'purged'", [count])
        session.make_known_again()

    loader.after(Session.load_all, purge)
    fresh = layout.file.with_name(f".{layout.file.name}.compact")
    fresh.unlink(missing_ok=True)
    try:
        with loader.session() as session:
            _copy(session, fresh, None)
            session.replace_by(fresh)
        with loader.session() as session:
            if session.load_all():  # what a journal names and the file does not yet is no leftover
                _tidy(layout, session)
    finally:
        fresh.unlink(missing_ok=True)
    return before, layout.file.stat().st_size


def _tidy(layout: Layout, session: Session) -> None:
    """Remove artefacts that nothing recorded names, what deaths left half made, and folders that are empty then."""
    now = SystemClock().now()
    stored = contents.stored_files(session.rows)
    for path in (*contents.leftovers(layout.artifacts, stored, now), *contents.half_made(layout, now)):
        path.unlink(missing_ok=True)
    for folder in contents.empty_folders(layout.artifacts, now):
        try:
            folder.rmdir()
        except OSError:
            pass  # filled at this moment


def _copy_to(session: Session, target: Layout) -> None:
    try:
        _copy(session, target.file, str(target.artifacts))
    except duckdb.Error as error:  # the disk of the target may be another one
        told = translated(error, target)
        if isinstance(error, duckdb.FatalException) or not isinstance(told, StoreError):
            raise
        raise told from error


def _copy(session: Session, file: Path, artifacts: str | None) -> None:
    with session.outside_transaction():
        session.rows(f"attach {quoted(file)} as copy ({NEW})")
        keep_private(file)
        try:
            session.rows("copy from database nb to copy")
            if artifacts is not None:
                session.rows("update copy.meta set value = $1 where key = 'artifacts'", [artifacts])
                session.rows("delete from copy.meta where key = $1", [mending.COPIED])  # those of a copy that this one is of
                session.rows(_COPIED, [mending.COPIED])
        finally:
            session.rows("detach copy")
    if file.with_name(f"{file.name}.wal").exists():
        msg = f"{str(file)!r} could not be written whole; make room on the disk and try again"
        raise StoreError(msg)


def _sync_file(file: Path) -> None:
    sync_whole(file)
    sync_folder(file.parent)
