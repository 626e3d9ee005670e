"""One lease of the DuckDB file: attached, checked, in one transaction; detached, which checkpoints, before it is given back.

What others wrote comes first: a session begins by taking notice of their entries, loads journals, and only then writes.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from nbflow.core.history import Head, fold_head
from nbflow.core.log import LogChunk
from nbflow.core.model import Entry, Kind, StepKey
from nbflow.errors import StoreCorruptError, StoreError
from nbflow.store import desk as desks
from nbflow.store import known, lease, mending, migrate, segments, shape
from nbflow.store.descriptor import Descriptor
from nbflow.store.desk import Desk, Opening, placed

ROWS = 5_000
"""As many are loaded or read in one lease, so that nobody waits long for his turn."""

_log = logging.getLogger("nbflow")


class Session:
    """What can be asked and written while the lease is held.

    Args:
        desk: what the sessions of this engine share.
        horizon: where each journal ended when more was in it than one lease loads: whoever asks need not wait for more, or
            he would wait for ever for an engine that records faster. Shared by the leases of one question; None for all.

    Attributes:
        when_committed: called once what was written is durable, before it is folded into the file.
    """

    def __init__(self, desk: Desk, horizon: dict[str, int] | None = None) -> None:
        self._desk = desk
        self._horizon = horizon
        self._database = desk.database
        self._dirty = False
        self._positions: dict[str, tuple[int, bool]] = {}
        self._registered: set[str] = set()
        self._buried: dict[str, Descriptor | None] = {}
        self._lost: dict[str, str] = {}
        self._last = 0
        self._whole = self._mending = False
        self._own_before = 0
        self._replacement: Path | None = None
        self.when_committed: Callable[[], None] | None = None

    # -- begin and end ------------------------------------------------------------------------------------------------

    def begin(self, opening: Opening | None = None) -> None:
        """Attach and check the file, then take notice of what others wrote."""
        desk = self._desk
        self._whole = not desk.layout.wal.exists()
        if opening is not None:
            opening.make()
        elif not desk.layout.file.exists():
            msg = (
                f"{str(desk.layout.file)!r} was deleted or moved away while engines were at work; put it back: "
                f"what was recorded since waits in the journal in {str(desk.layout.journal)!r}"
            )
            raise StoreCorruptError(msg)
        if mending.attach(desk):
            self._whole = False
        if opening is not None:
            opening.bring_up_to_date()
        self._check()
        desk.noticed = desk.counter.read()
        self._database.rows("begin")
        for journal, position, closed in self._database.rows("select journal, position, closed from nb.loaded"):
            self._positions[journal] = (position, closed)
        self._registered = set(self._positions)
        self._last = mending.last(self._database.rows, desk.meta)
        mending.notice(desk, self._last, opening=opening is not None)
        self._mending = bool(desk.expected)
        self._notice()

    def end(self) -> None:
        """Commit what was written, detach, remove journals that are in the file for good."""
        desk, database = self._desk, self._database
        if self._dirty:
            desk.noticed = desk.counter.bump()
            if not desk.lease.intact():
                msg = f"the lock beside {str(desk.layout.file)!r} was deleted meanwhile: nothing was written; try again"
                raise StoreError(msg)
            database.commit()
            if not desk.expected:
                desk.counter.reached(self._last)
        else:
            database.rows("commit")
        desk.seen = self._last
        desk.own = self._positions.get(desk.engine, (0, False))[0]
        if self.when_committed is not None:
            self.when_committed()
        if not database.detach():
            _log.warning("%s: committed, but its log could not be folded in; that is made up for later", desk.layout.file)
        if database.left_log():
            self.let_go()
            return
        if self._replacement is not None:
            desks.put(self._replacement, desk.layout.file)
        if self._whole and desk.journal is not None:
            desk.journal.remove_until(self._own_before)
        for engine in self._buried:
            desks.bury(desk.layout.journal, engine, damaged=self._mending or engine in self._lost)
        self.let_go()

    def abort(self) -> None:
        """Leave the file as it was."""
        self._database.drop()
        self.let_go()

    def let_go(self) -> None:
        """Give back the life locks of dead engines whose journals stay."""
        for lock in self._buried.values():
            if lock is not None:
                lease.let_go(lock)
        self._buried = {}

    def _check(self) -> None:
        desk = self._desk
        try:
            meta = self._database.meta()
        except duckdb.CatalogException:
            meta = {}
        if "store" not in meta:
            raise shape.no_history(desk.layout)
        migrate.check(desk.layout.file, meta.get("schema", ""))
        if desk.uid and meta["store"] != desk.uid:
            msg = (
                f"{str(desk.layout.file)!r} was replaced by another store while this engine was at work; put the former file "
                f"back: what was recorded since waits in the journal in {str(desk.layout.journal)!r}"
            )
            raise StoreCorruptError(msg)
        desk.uid, desk.meta = meta["store"], meta

    # -- what others wrote --------------------------------------------------------------------------------------------

    def _notice(self) -> None:
        desk = self._desk
        position = self._own_before = self._positions.get(desk.engine, (0, False))[0]
        if desk.seen < 0:
            desk.seen, desk.own = self._last, position
            return
        if self._last > desk.seen:
            entries = self._database.entries("seq > $1 and step is null order by seq", [desk.seen])
            if position > desk.own:
                entries = desk.without_own(entries, position)
            desk.news += entries
            desk.foreign = True
        desk.seen, desk.own = self._last, position

    # -- journals -----------------------------------------------------------------------------------------------------

    def load_own(self, *, strict: bool = False) -> bool:
        """Load what this engine has recorded so far; False where some is left for another lease.

        Without *strict* a disk that is full now is no error: what is not synced was not promised either.
        """
        desk = self._desk
        if desk.journal is None:
            return True
        if desk.journal.thread.is_alive():
            try:
                desk.journal.flush()
            except StoreError:
                if strict:
                    raise
        start = self._positions.get(desk.engine, (0, False))[0]
        end = desk.journal.synced
        if start >= end:
            return True
        stretch = segments.known_good(desk.layout.journal, desk.engine, start, end, ROWS)
        if stretch.end == start:
            raise segments.missing(desk.layout.journal, desk.engine, start, end)
        self._take(desk.engine, stretch)
        return stretch.last or self._far_enough(desk.engine)

    def load(self, engine: str, *, strict: bool = False) -> bool:
        """Load the journal of any engine to its last good line; False where some is left for another lease."""
        return self._load(engine, strict=strict) or self._far_enough(engine)

    def _far_enough(self, engine: str) -> bool:
        if self._horizon is None:
            return False
        if engine not in self._horizon:
            self._horizon[engine] = segments.journal_end(self._desk.layout.journal, engine)
        return self._positions.get(engine, (0, False))[0] >= self._horizon[engine]

    def _load(self, engine: str, *, strict: bool = False) -> bool:
        desk = self._desk
        if engine == desk.engine:
            return self.load_own(strict=strict)
        start, closed = self._positions.get(engine, (0, False))
        if closed:
            return True
        folder = desk.layout.journal
        if segments.journal_end(folder, engine) <= start:
            return True
        if self._foreign(engine):
            return True
        living = engine not in self._buried and lease.lives(folder, engine) is True
        promised = lease.promised(folder, engine)
        stretch = segments.readable(folder, engine, start, ROWS, store=desk.uid, living=living, promised=promised)
        self._take(engine, stretch)
        return stretch.last

    def load_all(self) -> bool:
        """Load every journal that is here."""
        complete = self.load_own()
        return self.load_others() and complete

    def load_others(self) -> bool:
        """Load every journal that is here but the own."""
        complete = True
        for engine in segments.engines(self._desk.layout.journal) - {self._desk.engine}:
            complete &= self.load(engine)
        return complete

    def _foreign(self, engine: str) -> bool:
        """Whether a journal is of another store that was here before; one of an engine that is known here cannot be."""
        known = engine in self._registered
        return not known and segments.store_of(self._desk.layout.journal, engine) not in (self._desk.uid, None)

    def lost(self, engine: str) -> str | None:
        """What to say where a dead engine's journal, which `bury` came for, is not what the file remembers of it."""
        return self._lost.get(engine)

    def _compare(self, engine: str, *, locked: bool) -> None:
        position, closed = self._positions.get(engine, (-1, False))
        folder = self._desk.layout.journal
        if closed or not mending.short(folder, engine, position, self._desk.meta, locked=locked):
            return  # one that the file did not know had recorded nothing yet
        left = segments.segments(folder, engine)
        kept = f"; what is left of it stays in {str(folder)!r}, its name ending in .damaged" if left else ""
        self._lost[engine] = (
            f"the journal of engine {engine} is missing or cut: what it recorded in its last second may be lost{kept}"
        )

    def bury(self, engine: str) -> bool | None:
        """Take over a dead engine's journal: load the rest, and have it removed when this lease ends.

        Returns True when all of it is loaded, False where some is left for another lease, None where the engine lives.
        """
        desk = self._desk
        if self._foreign(engine):
            return True
        if engine not in self._buried:
            life, lock = lease.seize(desk.layout.journal, engine)
            if life:
                return None
            self._buried[engine] = lock
            self._compare(engine, locked=lock is not None)
        if not self._load(engine):
            if (lock := self._buried.pop(engine)) is not None:
                lease.let_go(lock)
            return False
        if self._buried[engine] is None:
            del self._buried[engine]  # nobody's lock file is here to vouch for its death: its files stay
            return True
        self._set_position(engine, max(0, self._positions.get(engine, (0, False))[0]), closed=True)
        return True

    def clear(self, engine: str) -> None:
        """Have what is there of a journal removed whose engine ended in order: a power cut can bring its files back."""
        if self._positions.get(engine, (0, False))[1]:
            self._buried[engine] = None

    def mend(self) -> None:
        """When an engine opens and all journals are loaded: say what is missing all the same."""
        after = mending.mend(self._desk, self._last)
        if after != self._last:
            self._last, self._dirty = after, True

    def close_own(self) -> None:
        """The orderly end of this engine: its journal is loaded and goes."""
        self._set_position(self._desk.engine, self._positions.get(self._desk.engine, (0, False))[0], closed=True)
        self._buried[self._desk.engine] = None

    def register(self) -> None:
        """Tell the file that this engine exists, so that its journal can be missed."""
        self._set_position(self._desk.engine, 0, closed=False)

    def unregister(self) -> None:
        """This engine does not come to work after all."""
        self.change("delete from nb.loaded where journal = $1", [self._desk.engine])

    def _take(self, engine: str, stretch: segments.Stretch) -> None:
        if stretch.end > stretch.start:
            self._last += self._database.load(stretch.data, self._last)
            self._set_position(engine, stretch.end, closed=False)

    def _set_position(self, engine: str, position: int, *, closed: bool) -> None:
        if engine in self._registered:
            self._database.rows(
                "update nb.loaded set position = $2, closed = $3 where journal = $1", [engine, position, closed]
            )
        else:
            self._database.rows("insert into nb.loaded values ($1, $2, $3)", [engine, position, closed])
            self._registered.add(engine)
        self._positions[engine] = (position, closed)
        self._dirty = True

    # -- entries ------------------------------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """The highest seq, with what this session has written."""
        return self._last

    def write(self, entries: Sequence[Entry]) -> list[Entry]:
        """Append entries directly; gives them with their seqs."""
        if not entries:
            return []
        written = [
            msgspec.structs.replace(entry, seq=seq, created_seq=seq if entry.kind is Kind.CREATED else entry.created_seq)
            for seq, entry in enumerate(entries, self._last + 1)
        ]
        self._database.write(placed(written), self._last)
        self._last += len(written)
        self._dirty = True
        return written

    def entries(self, created_seq: int, after: int = 0, upto: int | None = None, limit: int | None = None) -> list[Entry]:
        """Entries of one instance, oldest first."""
        ends = f" limit {limit:d}" if limit is not None else ""
        return self._database.entries(
            f"created_seq = $1 and seq > $2 and seq <= $3 order by seq{ends}", [created_seq, after, upto or self._last]
        )

    def find(self, where: str, values: Sequence[Any]) -> list[Entry]:
        """Entries of which *where*, a condition and an order, is true."""
        return self._database.entries(where, values)

    def heads(self, created_seqs: Iterable[int]) -> dict[int, Head]:
        """Instances as the file has them, deleted ones too."""
        wanted = list(created_seqs)
        if not wanted:
            return {}
        where = "created_seq = $1" if len(wanted) == 1 else "created_seq in (select unnest($1))"
        rows = self._database.entries(f"{where} and step is null order by seq", [wanted[0] if len(wanted) == 1 else wanted])
        grouped: dict[int, list[Entry]] = {}
        for entry in rows:
            grouped.setdefault(entry.created_seq, []).append(entry)
        return {seq: fold_head(entries) for seq, entries in grouped.items()}

    def log(self, created_seq: int, key: StepKey | None) -> list[LogChunk]:
        """What all attempts of a step have put out, without a key the last of all steps."""
        return self._database.log(created_seq, key)

    def rows(self, query: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Ask anything."""
        return self._database.rows(query, values)

    def make_known_again(self) -> None:
        """Make again, from the entries, what is known of instances and steps."""
        known.rebuild(self._database.rows)
        self._dirty = True

    @contextmanager
    def outside_transaction(self) -> Iterator[None]:
        """Copying a database takes no part in a transaction over another; the lease keeps everyone out all the same."""
        self._database.rows("commit")
        try:
            yield
        finally:
            self._database.rows("begin")

    def replace_by(self, file: Path) -> None:
        """Put *file*, which holds the same, in the place of the DuckDB file when this session has ended."""
        self._replacement = file

    def views_as_made(self, expected: shape.Described) -> bool:
        """Whether the views are those of a store just made, *expected*."""
        return shape.as_made(self._desk.layout, shape.described(self._database.rows), expected)

    def renew_views(self) -> None:
        """Make the views anew, where they are not as nbflow makes them."""
        migrate.make_views_anew(self._database)
        self._dirty = True

    def change(self, statement: str, values: Sequence[Any] | None = None) -> None:
        """Change what is not an entry; `reread_meta` after what is in `meta`."""
        self._database.rows(statement, values)
        self._dirty = True

    def reread_meta(self) -> None:
        """Know what the file says of itself now."""
        self._desk.meta = self._database.meta()
