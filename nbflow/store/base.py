"""What the engine asks of a store. Two answer: `FileStore` (journal + DuckDB file) and `MemoryStore`."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from nbflow.core.history import Head
from nbflow.core.log import LogChunk
from nbflow.core.model import Draft, Entry, Kind, Owner, Status, StepKey

Decision = tuple[Kind, dict[str, Any], bytes | None]
"""An entry to write on behalf of somebody who is not the owner: kind, body, value."""


class Store(Protocol):
    """A history. Every method may be called from any thread; errors are of `nbflow.errors`.

    Attributes:
        engine_id: the id of the one engine that has this store open.
        uid: the store's own id, the same for everyone who opens it.
        path: the DuckDB file, None in memory.
        artifacts: the folder of artefacts; one folder per instance in it.
        on_news: called (from a store thread) with the entries about instances that others wrote since the last call,
            oldest first, and an empty list when only steps of others are new. Set by the engine.
        on_acked: where set, the journal's thread hands it the *acked* callables of a whole batch in one call instead of
            calling each. Set by the engine.
    """

    engine_id: str
    uid: str
    path: Path | None
    artifacts: Path
    on_news: Callable[[list[Entry]], None] | None
    on_acked: Callable[[list[Callable[[], None]]], None] | None

    def create(self, drafts: Sequence[Draft], owner: Owner | None) -> list[list[Entry] | Head]:
        """Create what does not exist, durably, in one transaction.

        Returns, for each draft in order, its entries (`created`, and `claimed` with token 1 where *owner* is given) or the
        Head of the instance that has this workflow and id already; a draft that repeats an earlier one gets that one's.
        """
        ...

    def claim(self, created_seqs: Sequence[int], owner: Owner, by: str, *, force: bool = False) -> dict[int, list[Entry]]:
        """Take instances over: those that nobody living runs, all their entries given back, the new claim last.

        Left out of the answer: those that a living engine runs (or one whose death cannot be known, unless *force*), and
        deleted ones. An instance that this engine runs already is left out too.
        """
        ...

    def claim_unfinished(self, workflow: str, wanted: Callable[[Head], bool], owner: Owner, by: str) -> dict[int, list[Entry]]:
        """The same for the unfinished instances of a workflow of which *wanted* is true, the newest first.

        *wanted* is called from the store's thread, under its lease: it must not call the store.
        """
        ...

    def append(self, entry: Entry, acked: Callable[[], None] | None = None) -> None:
        """Journal an entry about an instance that this engine owns; returns at once.

        *acked* is called from the journal's thread, in the order of the appends, when the entry is durable: it must only
        note that fact. An entry without *acked* (the start of an attempt) causes no sync of its own: it is synced with the
        next batch, or within a second. Entries of one thread keep their order. Raises StoreError when the journal has
        failed for good.
        """
        ...

    def append_log(self, chunk: LogChunk) -> None:
        """Journal what an attempt put out; as an entry without *acked*."""
        ...

    def read_log(self, created_seq: int, key: StepKey | None) -> list[LogChunk]:
        """What all attempts of a step have put out, those that a restart dropped too; in no order.

        Without a key: of all steps the last chunks, at most `core.log.LAST`.
        """
        ...

    def write(self) -> None:
        """Put everything appended so far into the journal's file, from the calling thread, without waiting for a sync.

        After it the death of the process cannot lose those entries (a power cut can): called before a body runs (S53).
        """
        ...

    def attend(self, thread: int) -> None:
        """The thread of that identity promises to call `sync` whenever it has nothing else to do: its appends wake nobody."""
        ...

    def sync(self) -> None:
        """Make durable, and acknowledge, what the attending thread has appended; where syncs are slow, have it done soon.

        Cheap where there is nothing to do; it may hold the attending thread for a millisecond. Called by another thread, it
        has the syncs done without waiting for them: while the attending thread is held by user code.
        """
        ...

    def when_durable(self, acked: Callable[[], None]) -> None:
        """Call *acked*, as for `append`, when everything appended so far is durable; returns at once."""
        ...

    def flush(self) -> None:
        """Return when everything appended so far is durable (S53); raises what kept it from that."""
        ...

    def command(self, created_seq: int, decide: Callable[[Head, Callable[[], list[Entry]]], Sequence[Decision]]) -> list[Entry]:
        """Write what somebody who is not its owner says about an instance, durably, in the one order for all (S52).

        Under the lease the journal of the instance's owner is loaded first; then *decide* is called with the head as the
        file has it and a function that reads the instance's step entries, and what it returns is written: with token 0,
        or with the next token for a fence. *decide* must be quick and may raise to have nothing written.
        """
        ...

    def moved(self) -> bool:
        """Whether others have written since the last look: one read of the news counter, some microseconds."""
        ...

    def look(self, then: Callable[[], None]) -> None:
        """Look at once, from the store's own thread, at what others wrote: `on_news` first, then *then*, in that thread.

        While the file is held by others it goes on trying. Before a wait takes an event or times out (S37).
        """
        ...

    def find(self, instance_id: str, workflow: str | None = None) -> list[Head]:
        """Instances of that id, at most one per workflow, deleted ones left out. Includes what is not loaded yet."""
        ...

    def heads(self, workflow: str | None = None, *, limit: int | None = 100, status: Status | None = None) -> list[Head]:
        """Instances, newest first, deleted ones left out; only those that stand so, as far as their entries tell."""
        ...

    def alike(self, workflow: str, params: bytes) -> list[Head]:
        """Those of a workflow whose params may be equal to these, newest first: they are as long, in whatever order."""
        ...

    def numbered(self, workflow: str, instance_id: str) -> list[Head]:
        """The instance of that id and those called so with a number behind it (`ID-2`), newest first."""
        ...

    def head(self, created_seq: int) -> Head | None:
        """One instance, None where it is deleted or was never there."""
        ...

    def read(self, created_seq: int, after: int = 0) -> list[Entry]:
        """The entries of one instance beyond the seq *after*, oldest first, those in the journals of engines too."""
        ...

    def item_entries(self, created_seq: int, step: str, count: int, keys: Sequence[str]) -> list[Entry]:
        """The entries of these items of one map, oldest first, those in journals too; from any thread but the loop."""
        ...

    def items_saying(self, created_seq: int, step: str, count: int, text: str, kinds: Sequence[Kind]) -> dict[str, Kind]:
        """Keys of items of one map whose last outcome says *text*, with the kind of its entry, one of *kinds*.

        At most `searching.MOST`, of more the failed ones first; from any thread but the loop.
        """
        ...

    def alive(self, owner: Owner) -> bool | None:
        """Whether that engine lives, by the operating system's locks; None where it cannot be known (S52)."""
        ...

    def save_source(self, code_hash: str, text: str) -> None:
        """Keep a source text once per hash."""
        ...

    def source(self, code_hash: str) -> str | None:
        """The text kept under this hash."""
        ...

    def save_setting(self, key: str, value: str | None) -> None:
        """Keep a text under a key, durable for all engines on this store; None removes it."""
        ...

    def settings(self, prefix: str) -> dict[str, str]:
        """The texts kept under keys that begin with *prefix*."""
        ...

    def sql(self, query: str, *, files: bool = True) -> Any:
        """Load everything recorded, run *query* read-only, return a DuckDB relation of the materialised result.

        Without *files* it reads and writes none but the history.
        """
        ...

    @property
    def trouble(self) -> str:
        """What keeps entries from the journal or the file now, such as a full disk; they wait. Empty where nothing does."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """For `%workflow store`: path, size in bytes, entries in the file, entries waiting in the journal, holder."""
        ...

    def compact(self) -> tuple[int, int]:
        """Remove what deleted instances left; gives the file's size before and after, in bytes."""
        ...

    def backup(self, path: str | os.PathLike[str]) -> Path:
        """Copy everything recorded so far to a new store; refuses to overwrite."""
        ...

    def close(self) -> None:
        """Make everything durable, load it if the lease is free within 2 s, release locks. Idempotent."""
        ...
