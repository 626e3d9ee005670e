"""`FileStore`: a journal that makes steps durable at the disk's speed, in front of a DuckDB file that everybody can query."""

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nbflow import ids
from nbflow.clock import Clock, SystemClock
from nbflow.core.history import Head
from nbflow.core.log import LogChunk
from nbflow.core.model import Draft, Entry, Kind, Owner, Status, StepKey
from nbflow.errors import StoreError
from nbflow.store import claims, direct, forks, lines, queries, searching, upkeep
from nbflow.store import journal as journals
from nbflow.store import lease as leases
from nbflow.store.database import Database, connect
from nbflow.store.desk import Desk
from nbflow.store.layout import Layout
from nbflow.store.loader import Loader
from nbflow.store.newest import alike, newest, numbered, standing
from nbflow.store.opening import Entrance
from nbflow.store.session import ROWS, Session

T = TypeVar("T")

_CLOSING = 2.0
_OF_PARENT = "this engine belongs to the parent process: make a new Engine in the child"
_time = SystemClock()
# The one that is asked for, and others with it: who compares code asks for many.
_SOURCES = "select hash, text from nb.sources where hash = $1 union all (select hash, text from nb.sources limit 2000)"

_log = logging.getLogger("nbflow")


class FileStore:
    """The history in a DuckDB file; see `Store` for what each method promises.

    Args:
        path: the DuckDB file; None for `.nbflow/history.duckdb` in the working directory.
        notebook: what others are told of who holds the file.
        clock: gives entries written directly their time.
        lock_timeout: seconds that whatever needs the file waits while others hold it.
        segment: bytes after which the journal begins a new file.

    Attributes:
        folder_id: the journal folder as the system knows it; goes into claims (S52).
        created: whether this store was made by opening it.
        warnings: what is wrong with the store without keeping it from working, in words.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        notebook: str = "",
        clock: Clock | None = None,
        lock_timeout: float = 10.0,
        segment: int = journals.SEGMENT,
    ) -> None:
        self.engine_id = ids.new_uid()
        self.on_news: Callable[[list[Entry]], None] | None = None
        self.on_acked: Callable[[list[Callable[[], None]]], None] | None = None
        self.warnings: list[str] = []
        self.created = False
        self._clock = clock or SystemClock()
        self._layout = layout = Layout.of(path)
        self.path: Path | None = layout.file
        self.artifacts = layout.artifacts
        self._closing = threading.Lock()
        self._closed = self._forked = self._views_seen = False
        self._sources: dict[str, str] = {}
        with layout.refusals():
            layout.prepare()
            self.folder_id = layout.folder_id()
        lease = leases.Lease(layout, leases.own_holder(self.engine_id, notebook))
        self._desk = Desk(layout, self.engine_id, self._clock, Database(layout), lease, leases.News(layout))
        self._loader = Loader(self._desk, lock_timeout, self._tell)
        self._entrance = Entrance(self._loader, self._warn)
        try:
            self._loader.call(self._entrance.open)
            self.created = self._entrance.created
            self.uid = self._desk.uid
            with layout.refusals():
                self._journal = journals.Journal(layout.journal, self.engine_id, self.uid, self._acknowledge, segment=segment)
            self._desk.take(self._journal)
        except BaseException:
            self._loader.stop(1.0)
            self._let_go()
            raise
        forks.living.add(self)
        atexit.register(self.close)

    # -- closing ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable, load it if the lease is free within 2 s, release locks. Idempotent."""
        if self._forked:
            return
        with self._closing:
            if self._closed:
                return
            self._closed = True
            atexit.unregister(self.close)
            self._loader.closing = True
            self._journal.close()
            try:
                self._loader.call(self._finish, patience=1.0)
            except StoreError as error:
                _log.info("the journal is left for the next engine to load: %s", error)
            self._loader.stop(1.0)
            self._let_go()

    def _finish(self) -> None:
        """Load the rest; then nothing of this engine's journal is left."""
        deadline = _time.monotonic() + _CLOSING
        complete = False
        while not complete and _time.monotonic() < deadline:
            with self._loader.session(max(0.01, deadline - _time.monotonic())) as session:
                complete = session.load_own()
                if complete and not self._journal.behind:
                    session.close_own()

    def _let_go(self) -> None:
        """Close what is locked; the file of the life lock stays for whoever buries us, where that has not been done."""
        if self._desk.life is not None:
            self._desk.life.release()
        self._desk.lease.forget()
        self._desk.counter.forget()

    @property
    def attaching(self) -> threading.Lock:
        """Held while the file is attached."""
        return self._loader.attaching

    def leave_to_parent(self) -> None:
        """In a forked child: hold no lock, be unusable (S54)."""
        self._forked = self._closed = True
        self._journal.leave_to_parent(StoreError(_OF_PARENT))
        self._desk.lease.forget()
        self._desk.counter.forget()
        if self._desk.life is not None:
            self._desk.life.forget()

    # -- what an owner records ----------------------------------------------------------------------------------------

    def append(self, entry: Entry, acked: Callable[[], None] | None = None) -> None:
        """Journal an entry; see `Store.append`."""
        self._journal.append(lines.of_entry(entry), acked)

    def append_log(self, chunk: LogChunk) -> None:
        """Journal what an attempt put out; see `Store.append_log`."""
        self._journal.append(lines.of_log(chunk))

    def read_log(self, created_seq: int, key: StepKey | None) -> list[LogChunk]:
        """What all attempts of a step have put out, without a key the last of all steps."""
        return self._fresh(lambda session: session.log(created_seq, key))

    def write(self) -> None:
        """Put everything appended so far into the journal's file; see `Store.write`."""
        self._journal.write()

    def attend(self, thread: int) -> None:
        """That thread promises to call `sync` before it rests; see `Store.attend`."""
        self._journal.syncer = thread

    def sync(self) -> None:
        """Acknowledge what the attending thread has appended; see `Store.sync`."""
        self._journal.sync()

    def when_durable(self, acked: Callable[[], None]) -> None:
        """Acknowledge everything appended so far; see `Store.when_durable`."""
        self._journal.append(b"", acked)

    def flush(self) -> None:
        """Return when everything appended so far is durable."""
        self._usable()
        self._journal.flush()

    def _acknowledge(self, acks: list[Callable[[], None]]) -> None:
        try:
            if self.on_acked is not None:
                self.on_acked(acks)
                return
            for acked in acks:
                acked()
        except Exception:  # noqa: BLE001 - the journal's thread must live on
            _log.exception("what follows an acknowledgement failed")

    # -- what goes to the file directly -------------------------------------------------------------------------------

    def create(self, drafts: Sequence[Draft], owner: Owner | None) -> list[list[Entry] | Head]:
        """Create what does not exist; see `Store.create`."""
        here = None if owner is None else self._here(owner)
        return self._ask(lambda: direct.create(self._loader, self._clock, drafts, here))

    def claim(self, created_seqs: Sequence[int], owner: Owner, by: str, *, force: bool = False) -> dict[int, list[Entry]]:
        """Take instances over; see `Store.claim`."""
        return self._ask(lambda: self._claimed(claims.these(created_seqs), owner, by, force=force))

    def claim_unfinished(self, workflow: str, wanted: Callable[[Head], bool], owner: Owner, by: str) -> dict[int, list[Entry]]:
        """Take over what is unfinished of a workflow; see `Store.claim_unfinished`."""
        return self._ask(lambda: self._claimed(claims.unfinished(workflow, wanted), owner, by))

    def _claimed(self, parts: Iterable[claims.Part], owner: Owner, by: str, *, force: bool = False) -> dict[int, list[Entry]]:
        def gone(former: Owner) -> bool:
            life = self.alive(former)
            return life is False or (life is None and force)

        claimed = claims.claim(self._loader, self._clock, parts, self._here(owner), by, gone)
        return {seq: self._read(seq, one.claim.seq) if one.entries is None else one.entries for seq, one in claimed.items()}

    def command(self, created_seq: int, decide: direct.Decide) -> list[Entry]:
        """Write what somebody else says about an instance; see `Store.command`."""
        return self._ask(lambda: direct.command(self._loader, self._clock, created_seq, decide))

    # -- what others wrote --------------------------------------------------------------------------------------------

    def moved(self) -> bool:
        """Whether others have written since the last look."""
        with self._layout.refusals():
            return self._desk.counter.read() != self._desk.noticed

    def look(self, then: Callable[[], None]) -> None:
        """Look at what others wrote, then call *then*; see `Store.look`."""
        self._usable()
        self._loader.look(then)

    def _tell(self, entries: list[Entry]) -> None:
        if self.on_news is not None:
            self.on_news(entries)

    # -- reading ------------------------------------------------------------------------------------------------------

    def find(self, instance_id: str, workflow: str | None = None) -> list[Head]:
        """Instances of that id, deleted ones left out."""
        query = "select created_seq from nb.known_instances where instance_id = $1 and ($2 is null or workflow = $2) order by 1"

        def work(session: Session) -> list[Head]:
            found = session.heads(seq for (seq,) in session.rows(query, [instance_id, workflow]))
            return [head for head in found.values() if not head.deleted]

        return self._fresh(work)

    def heads(self, workflow: str | None = None, *, limit: int | None = 100, status: Status | None = None) -> list[Head]:
        """Instances, newest first, deleted ones left out; see `Store.heads`."""
        if status is None:
            return self._ask(lambda: newest(self._loader, workflow, limit=limit))
        if not self._views_seen:
            self._fresh(self._see_to_views)
        return self._ask(lambda: standing(self._loader, workflow, status, limit=limit))

    def alike(self, workflow: str, params: bytes) -> list[Head]:
        """Those whose params may be equal to these; see `Store.alike`."""
        return self._ask(lambda: alike(self._loader, workflow, params))

    def numbered(self, workflow: str, instance_id: str) -> list[Head]:
        """The instance of that id, and those with a number behind it."""
        return self._ask(lambda: numbered(self._loader, workflow, instance_id))

    def head(self, created_seq: int) -> Head | None:
        """One instance, None where it is deleted or was never there."""
        head = self._fresh(lambda session: session.heads([created_seq]).get(created_seq))
        return None if head is None or head.deleted else head

    def read(self, created_seq: int, after: int = 0) -> list[Entry]:
        """The entries of one instance beyond *after*, oldest first."""

        def job() -> list[Entry]:
            def first(session: Session) -> tuple[int, list[Entry]]:
                return session.last, session.entries(created_seq, after, session.last, ROWS)

            last, entries = self._loader.after(Session.load_all, first)
            return entries if len(entries) < ROWS else entries + self._read(created_seq, last, entries[-1].seq)

        return self._ask(job)

    def item_entries(self, created_seq: int, step: str, count: int, keys: Sequence[str]) -> list[Entry]:
        """The entries of items of a map, oldest first; see `Store.item_entries`."""
        wanted = "created_seq = $1 and step = $2 and count = $3 and starts_with(kind, 'map.') and key in (select unnest($4))"
        values = [created_seq, step, count, list(keys)]
        return self._fresh(lambda session: session.find(f"{wanted} order by seq", values))

    def items_saying(self, created_seq: int, step: str, count: int, text: str, kinds: Sequence[Kind]) -> dict[str, Kind]:
        """Items of a map whose outcome says *text*; see `Store.items_saying`."""
        return self._fresh(lambda session: searching.in_file(session.rows, created_seq, step, count, text, kinds))

    def _read(self, created_seq: int, last: int, after: int = 0) -> list[Entry]:
        entries: list[Entry] = []
        while True:
            with self._loader.session() as session:
                part = session.entries(created_seq, entries[-1].seq if entries else after, last, ROWS)
            entries += part
            if len(part) < ROWS:
                return entries

    def alive(self, owner: Owner) -> bool | None:
        """Whether that engine lives; None where it cannot be known."""
        if owner.engine == self.engine_id:
            return not self._closed
        with self._layout.refusals():
            return leases.alive(self._layout, owner)

    def save_source(self, code_hash: str, text: str) -> None:
        """Keep a source text once per hash; it goes through the journal, so it never waits for the file."""
        if code_hash not in self._sources:
            self._journal.append(lines.of_source(code_hash, text))
            self._sources[code_hash] = text

    def source(self, code_hash: str) -> str | None:
        """The text kept under this hash."""
        if code_hash not in self._sources:
            self._sources.update(self._fresh(lambda session: session.rows(_SOURCES, [code_hash])))
        return self._sources.get(code_hash)

    def save_setting(self, key: str, value: str | None) -> None:
        """Keep a text under a key, in the file; None removes it."""

        def work(session: Session) -> None:
            session.change("delete from nb.meta where key = $1", [f"setting:{key}"])
            if value is not None:
                session.change("insert into nb.meta values ($1, $2)", [f"setting:{key}", value])
            session.reread_meta()

        self._ask(lambda: self._loader.after(lambda _session: True, work))

    def settings(self, prefix: str) -> dict[str, str]:
        """The texts kept under keys that begin with *prefix*."""
        self._usable()
        if self.moved():
            self._ask(lambda: self._loader.after(lambda _session: True, lambda _session: None))
        start = f"setting:{prefix}"
        return {key.removeprefix("setting:"): text for key, text in self._desk.meta.items() if key.startswith(start)}

    def sql(self, query: str, *, files: bool = True) -> Any:
        """Run *query* read-only over everything recorded; see `Store.sql`."""
        asked = queries.checked(query, self._layout, files=files)

        def job() -> Any:
            self._loader.after(Session.load_all, self._see_to_views)
            connection = connect(threads=None, memory=None)
            work = partial(queries.run, asked, connection, queries.file_attached(self._layout), files=files)
            return self._loader.query(connection, lambda: self._loader.leased(work))

        return self._ask(job)

    def _see_to_views(self, session: Session) -> None:
        if not self._views_seen:
            queries.see_to_views(session)
            self._views_seen = True

    @property
    def trouble(self) -> str:
        """What keeps entries from the journal or the file now; see `Store.trouble`."""
        return str(self._loader.trouble_of_writing or "")

    def facts(self) -> Mapping[str, Any]:
        """What `%workflow store` shows; never waits long for the file."""
        known = {"entries": self._ask(lambda: upkeep.entries(self._loader)), "uid": self.uid, "warnings": list(self.warnings)}
        return upkeep.facts(self._loader, self._journal.synced) | known

    # -- keeping house ------------------------------------------------------------------------------------------------

    def backup(self, path: str | os.PathLike[str]) -> Path:
        """Copy the history and its artefacts, as they are now, to a new store."""
        target = Layout.of(path)
        return self._ask(lambda: upkeep.backup(self._loader, target))

    def compact(self) -> tuple[int, int]:
        """Remove entries of deleted instances and rewrite the file; gives its size before and after, in bytes."""
        return self._ask(lambda: upkeep.compact(self._loader))

    # -- inner --------------------------------------------------------------------------------------------------------

    def _ask(self, job: Callable[[], T]) -> T:
        self._usable()
        return self._loader.call(job)

    def _fresh(self, work: Callable[[Session], T]) -> T:
        return self._ask(lambda: self._loader.after(Session.load_all, work))

    def _usable(self) -> None:
        if self._forked:
            raise StoreError(_OF_PARENT)
        if self._closed:
            msg = "this engine is closed; make a new Engine"
            raise StoreError(msg)

    def _here(self, owner: Owner) -> Owner:
        return replace(owner, folder=self.folder_id) if owner.engine == self.engine_id else owner

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)
            _log.warning("%s", text)
