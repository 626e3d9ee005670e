"""`":memory:"`: no files, no journal; the entries in a list, and a DuckDB table made from it when `sql` asks."""

import os
import re
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nbflow import ids
from nbflow.clock import Clock, SystemClock
from nbflow.core.history import Head, History, fold_head, status_of
from nbflow.core.log import LAST, LogChunk
from nbflow.core.maps import ITEM_KINDS
from nbflow.core.model import FENCES, Draft, Entry, Kind, Owner, Status, StepKey
from nbflow.errors import NotFoundError, StoreError, UsageError
from nbflow.store import searching
from nbflow.store.base import Decision
from nbflow.store.newest import length


def claim_body(owner: Owner, by: str) -> dict[str, Any]:
    """What a `claimed` entry says of who runs the instance from now on."""
    return {
        "engine": owner.engine,
        "pid": owner.pid,
        "host": owner.host,
        "folder": owner.folder,
        "notebook": owner.notebook,
        "by": by,
    }


class MemoryStore:
    """A history that ends with the process; everything is "durable" as soon as it is said."""

    trouble = ""

    def __init__(self, clock: Clock | None = None) -> None:
        self.engine_id, self.uid = ids.new_uid(), ids.new_uid()
        self.path: Path | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="nbflow-")
        self.artifacts = Path(self._folder.name)
        self.on_news: Callable[[list[Entry]], None] | None = None
        self.on_acked: Callable[[list[Callable[[], None]]], None] | None = None
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._entries: list[Entry] = []
        self._by_instance: dict[int, list[Entry]] = {}
        self._heads: dict[int, Head] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._sources: dict[str, str] = {}
        self._logs: dict[int, list[LogChunk]] = {}
        self._settings: dict[str, str] = {}
        self._closed = False

    def create(self, drafts: Sequence[Draft], owner: Owner | None) -> list[list[Entry] | Head]:
        """Create what does not exist; see `Store.create`."""
        made: list[list[Entry] | Head] = []
        with self._lock:
            for draft in drafts:
                known = self._ids.get((draft.workflow, draft.instance_id))
                if known is not None and not self._heads[known].deleted:
                    made.append(self._heads[known])
                    continue
                seq = len(self._entries) + 1
                created = self._add(Kind.CREATED, seq, 0, draft.body, draft.params)
                self._ids[draft.workflow, draft.instance_id] = seq
                made.append([created])
                if owner is not None:
                    made[-1] = [created, self._add(Kind.CLAIMED, seq, 1, claim_body(owner, "create"), None)]
        return made

    def claim(
        self,
        created_seqs: Sequence[int],
        owner: Owner,
        by: str,
        *,
        force: bool = False,  # noqa: ARG002 - whether an owner lives is always known here
    ) -> dict[int, list[Entry]]:
        """Take over what nobody runs; entries put here by hand may be those of an engine that is gone."""
        claimed: dict[int, list[Entry]] = {}
        with self._lock:
            for seq in created_seqs:
                head = self._heads.get(seq)
                if head is None or head.deleted or (head.owner is not None and self.alive(head.owner)):
                    continue
                self._add(Kind.CLAIMED, seq, head.token + 1, claim_body(owner, by), None)
                claimed[seq] = list(self._by_instance[seq])
        return claimed

    def claim_unfinished(self, workflow: str, wanted: Callable[[Head], bool], owner: Owner, by: str) -> dict[int, list[Entry]]:
        """The same for what is unfinished of a workflow and wanted."""
        with self._lock:
            heads = [head for head in self.heads(workflow, limit=None) if not head.finished and wanted(head)]
            return self.claim([head.created_seq for head in heads], owner, by)

    def append(self, entry: Entry, acked: Callable[[], None] | None = None) -> None:
        """Take an entry in; it is acknowledged at once."""
        with self._lock:
            if self._closed:
                msg = "this engine is closed; nothing more is recorded"
                raise StoreError(msg)
            self._append(entry)
            if acked is None:
                return
            if self.on_acked is not None:
                self.on_acked([acked])
            else:
                acked()

    def append_log(self, chunk: LogChunk) -> None:
        """Take a part of a log in."""
        with self._lock:
            self._logs.setdefault(chunk.created_seq, []).append(chunk)

    def read_log(self, created_seq: int, key: StepKey | None) -> list[LogChunk]:
        """The log of a step, without a key the last of all steps."""
        with self._lock:
            if key is None:
                return list(self._logs.get(created_seq, ()))[-LAST:]
            return [chunk for chunk in self._logs.get(created_seq, ()) if chunk.holds(key)]

    def write(self) -> None:
        """Nothing can be lost before the process is."""

    def attend(self, thread: int) -> None:
        """Nothing waits for a sync."""

    def sync(self) -> None:
        """Nothing waits for a sync."""

    def when_durable(self, acked: Callable[[], None]) -> None:
        """It is, at once."""
        if self.on_acked is not None:
            self.on_acked([acked])
        else:
            acked()

    def flush(self) -> None:
        """Nothing can be lost before the process is."""

    def moved(self) -> bool:
        """Whether there are others who write: never."""
        return False

    def look(self, then: Callable[[], None]) -> None:
        """Nobody else writes."""
        then()

    def command(self, created_seq: int, decide: Callable[[Head, Callable[[], list[Entry]]], Sequence[Decision]]) -> list[Entry]:
        """Write what is said about an instance that nobody runs."""
        with self._lock:
            head = self._heads.get(created_seq)
            if head is None or head.deleted:
                msg = f"instance {created_seq} does not exist"
                raise NotFoundError(msg)
            written = []
            for kind, body, value in decide(head, lambda: list(self._by_instance[created_seq])):
                token = self._heads[created_seq].token + 1 if kind in FENCES else 0
                written.append(self._add(kind, created_seq, token, body, value))
            return written

    def find(self, instance_id: str, workflow: str | None = None) -> list[Head]:
        """Instances of that id, at most one per workflow."""
        with self._lock:
            return [
                self._heads[seq]
                for (name, known_id), seq in self._ids.items()
                if known_id == instance_id and workflow in (None, name) and not self._heads[seq].deleted
            ]

    def heads(self, workflow: str | None = None, *, limit: int | None = 100, status: Status | None = None) -> list[Head]:
        """Instances, newest first."""
        with self._lock:
            found = [head for head in reversed(self._heads.values()) if not head.deleted and workflow in (None, head.workflow)]
        if status is not None:
            found = [head for head in found if status_of(History(self.read(head.created_seq))) is status]
        return found[:limit]

    def alike(self, workflow: str, params: bytes) -> list[Head]:
        """Those whose params may be equal to these."""
        return [head for head in self.heads(workflow, limit=None) if length(head.params) == length(params)]

    def numbered(self, workflow: str, instance_id: str) -> list[Head]:
        """The instance of that id, and those with a number behind it."""
        called = re.compile(f"{re.escape(instance_id)}(-[1-9][0-9]{{0,8}})?").fullmatch
        return [head for head in self.heads(workflow, limit=None) if called(head.instance_id)]

    def head(self, created_seq: int) -> Head | None:
        """One instance."""
        head = self._heads.get(created_seq)
        return None if head is None or head.deleted else head

    def read(self, created_seq: int, after: int = 0) -> list[Entry]:
        """The entries of one instance beyond *after*, oldest first."""
        with self._lock:
            return [entry for entry in self._by_instance.get(created_seq, ()) if entry.seq > after]

    def item_entries(self, created_seq: int, step: str, count: int, keys: Sequence[str]) -> list[Entry]:
        """The entries of items of a map, oldest first."""
        wanted = set(keys)
        with self._lock:
            its = tuple(self._by_instance.get(created_seq, ()))
        return [e for e in its if e.key in wanted and (e.step, e.count) == (step, count) and e.kind in ITEM_KINDS]

    def items_saying(self, created_seq: int, step: str, count: int, text: str, kinds: Sequence[Kind]) -> dict[str, Kind]:
        """Items of a map whose outcome says *text*."""
        with self._lock:
            its = tuple(self._by_instance.get(created_seq, ()))
        return searching.in_memory((e for e in its if (e.step, e.count) == (step, count)), text, kinds)

    def alive(self, owner: Owner) -> bool | None:
        """Only this engine can own anything here."""
        return owner.engine == self.engine_id and not self._closed

    def save_source(self, code_hash: str, text: str) -> None:
        """Keep a source text once per hash."""
        self._sources.setdefault(code_hash, text)

    def source(self, code_hash: str) -> str | None:
        """The text kept under this hash."""
        return self._sources.get(code_hash)

    def save_setting(self, key: str, value: str | None) -> None:
        """Keep a text under a key; None removes it."""
        with self._lock:
            self._settings.pop(key, None)
            if value is not None:
                self._settings[key] = value

    def settings(self, prefix: str) -> dict[str, str]:
        """The texts kept under keys that begin with *prefix*."""
        with self._lock:
            return {key: value for key, value in self._settings.items() if key.startswith(prefix)}

    def sql(self, query: str, *, files: bool = True) -> Any:
        """Run *query* over a DuckDB table made of the entries so far."""
        from nbflow.store.queries import relation_of

        with self._lock:
            entries, sources = list(self._entries), dict(self._sources)
            logs = [chunk for chunks in self._logs.values() for chunk in chunks]
        return relation_of(entries, sources, logs, self.artifacts, query, files=files)

    def facts(self) -> Mapping[str, Any]:
        """Where it is and how much is in it."""
        return {"path": ":memory:", "size": 0, "entries": len(self._entries), "journalled": 0, "holder": None}

    def compact(self) -> tuple[int, int]:
        """There is no file."""
        msg = "a history in memory has no file to compact"
        raise UsageError(msg)

    def backup(self, path: str | os.PathLike[str]) -> Path:
        """There is no file."""
        msg = f"a history in memory cannot be backed up to {os.fspath(path)!r}; give the Engine a file"
        raise UsageError(msg)

    def close(self) -> None:
        """Forget the artefacts' folder; the entries go with the object."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._folder.cleanup()

    def _add(self, kind: Kind, created_seq: int, token: int, body: dict[str, Any], value: bytes | None) -> Entry:
        return self._append(Entry(kind, created_seq, token, self._clock.now(), body=body, value=value))

    def _append(self, entry: Entry) -> Entry:
        seq = len(self._entries) + 1
        stored = Entry(
            entry.kind,
            entry.created_seq,
            entry.token,
            entry.recorded_at,
            entry.step,
            entry.count,
            entry.key,
            entry.body,
            entry.value,
            seq,
        )
        self._entries.append(stored)
        self._by_instance.setdefault(entry.created_seq, []).append(stored)
        head = self._heads.get(entry.created_seq)
        if head is None:
            self._heads[entry.created_seq] = fold_head([stored])
        else:
            head.apply(stored)
        return stored
