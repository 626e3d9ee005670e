"""What the dead noted that they did, held against what the history says: after every kill both must agree."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from nbflow.core.model import Entry, Kind, StepType
from nbflow.engine import reading
from nbflow.engine.instance import WorkflowInstance
from nbflow.jupyter import snapshot
from nbflow.store import contents
from tests.crash.work import NOTES

Mark = tuple[Any, ...]
ENDS = (".finished", ".failed")


def mark_of(entry: Entry) -> Mark:
    """What must never change of an entry."""
    return (entry.seq, entry.kind.value, entry.token, entry.step, entry.count, entry.key, entry.value, json.dumps(entry.body))


def body_key(entry: Entry) -> Mark:
    """The body that an entry is about, as bodies note themselves."""
    return entry.step, entry.count, entry.key


@dataclass
class Told:
    """What was noted about one instance."""

    ended: set[Mark] = field(default_factory=set)
    undone: set[str] = field(default_factory=set)
    values: dict[str, str] = field(default_factory=dict)
    sent: list[int] = field(default_factory=list)
    created: bool = False
    deleted: bool = False
    finished: list[Any] | None = None
    entries: list[Mark] = field(default_factory=list)
    runs: int = 0


class Ledger:
    """Reads what one process after another noted, life after life.

    Attributes:
        told: what was noted, by instance.
    """

    def __init__(self, folder: Path, notes: str = NOTES) -> None:
        self._path, self._at = folder / notes, 0
        self.told: dict[str, Told] = {}

    def __getitem__(self, instance: str) -> Told:
        return self.told.setdefault(instance, Told())

    def lines(self) -> list[list[Any]]:
        """What was noted since the last `take`."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            return [json.loads(line) for line in file if line.endswith(b"\n")]  # the last one may be on its way

    def take(self) -> int:
        """Hold what the dead noted against what was recorded before it began; gives how many results `run` saw first."""
        fresh, new = self.lines(), 0
        self._at = self._path.stat().st_size if self._path.exists() else 0
        begun: Counter[Mark] = Counter()
        for what, *rest in fresh:
            assert what != "cell failed", rest
            if what == "ready":
                continue
            told = self[rest[0]]
            match what:
                case "begin":
                    name, count, key = rest[1:4]
                    assert (name, count, key) not in told.ended, f"{rest}: a recorded body ran again"
                    begun[tuple(rest)] += 1
                    assert begun[tuple(rest)] == 1, f"{rest}: an attempt ran twice in one life"
                case "undo":
                    assert rest[1] not in told.undone, f"{rest}: a recorded handler ran again"
                case "got":
                    new += rest[1] not in told.values
                    known = told.values.setdefault(rest[1], rest[2])
                    assert known == rest[2], f"{rest}: `run` was given another value before: {known}"
                case "created":
                    told.created = True
                case "sent":
                    assert rest[1] == len(told.sent) or rest[1] not in told.sent, f"{rest}: an event was sent twice"
                    told.sent.append(rest[1])
                case "finished":
                    told.finished = rest[1:]
                case "deleted":
                    told.deleted = True
                case "run":
                    told.runs += 1
        return new

    def check(self, name: str, entries: list[Entry]) -> None:
        """Hold what was noted about an instance against its entries."""
        told = self[name]
        marks = [mark_of(entry) for entry in entries]
        lasting = [mark for mark, entry in zip(marks, entries) if not entry.kind.value.endswith(".started")]
        seqs = [mark[0] for mark in marks]
        assert seqs == sorted(set(seqs)), "entries are out of order, or came twice"
        there = set(marks)
        missing = [mark[:6] for mark in told.entries if mark not in there]
        assert not missing, f"{name}: recorded before, and gone or changed: {missing}"
        told.entries = lasting

        ends = [entry for entry in entries if entry.kind.value.endswith(ENDS)]
        twice = [mark for mark, n in Counter((e.kind.value.split(".")[0], *body_key(e)) for e in ends).items() if n > 1]
        assert not twice, f"{name}: ended twice: {twice}"
        told.ended = {body_key(e) for e in ends if e.kind.value.startswith(("do.", "map."))}
        told.undone = {e.step or "" for e in ends if e.kind.value.startswith("rollback.")}
        waits = {e.step for e in ends if e.kind.value.startswith("wait.")}
        self._check_seen(name, told, waits)

        events = [entry.value for entry in entries if entry.kind is Kind.EVENT]
        assert events == [f"j{n}".encode() for n in range(len(events))], f"{name}: events came twice or in disorder"
        assert set(told.sent) <= set(range(len(events))), f"{name}: an event that was sent is lost"
        if told.created:
            assert entries, f"{name}: it was created and is lost"
        if told.finished is None:
            told.finished = end_of(entries)
        if told.finished is not None:
            kinds = {entry.kind for entry in entries}
            assert {"complete": Kind.COMPLETED, "errored": Kind.ERRORED}[told.finished[0]] in kinds

    def _check_seen(self, name: str, told: Told, waits: set[str | None]) -> None:
        """Every result that `run` was given is recorded."""
        steps = {step for step, _, key in told.ended if key is None}
        for seen in told.values:
            if seen.startswith("ask "):
                assert seen in waits, f"{name}: `run` had seen {seen!r}, which is lost"
            elif seen.startswith("stream "):
                key = seen.removeprefix("stream ")
                assert ("stream", 1, key) in told.ended, f"{name}: `run` had seen {seen!r}, which is lost"
            elif seen != "first":  # computed by `run`
                assert seen in steps, f"{name}: `run` had seen {seen!r}, which is lost"


def end_of(entries: list[Entry]) -> list[Any] | None:
    """What a kernel would have noted of an instance that has ended, had it not died before: its cell would try it again."""
    aside = (Kind.CLAIMED, Kind.RELEASED, Kind.EVENT, Kind.SET_ASIDE)
    last = next((entry for entry in reversed(entries) if entry.step is None and entry.kind not in aside), None)
    if last is None or last.kind not in (Kind.COMPLETED, Kind.ERRORED):
        return None
    rollback = last.body.get("rollback")
    return ["complete" if last.kind is Kind.COMPLETED else "errored", rollback and rollback[0], None]


def whole_artifacts(root: Path, entries: list[Entry]) -> int:
    """Look at every file that the entries name; gives how many there are."""
    found = {}
    for entry in entries:
        if entry.value is not None:
            found |= dict(contents.references(entry.value))
    for uri, digest in found.items():
        assert (trouble := contents.trouble_of(root, uri, digest)) is None, f"{uri} is {trouble}"
    return len(found)


def panel_state(inst: WorkflowInstance) -> dict[str, Any]:
    """What a panel would push to the page now."""
    page = reading.lines(inst, snapshot.last_lines)
    return snapshot.state_json(inst.view(), page, engine="e", seq=1, now=inst.engine.clock.now())


class Outsider:
    """A connection of DuckDB's own to a store that nobody has open."""

    def __init__(self) -> None:
        self._connection = duckdb.connect(config={"threads": "1"})

    def close(self) -> None:
        """Be done."""
        self._connection.close()

    @contextmanager
    def attached(self, file: Path) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
        """Ask the file."""
        self._connection.execute(f"attach '{file}' as store (read_only)")
        self._connection.execute("use store")
        try:
            yield lambda query: self._connection.execute(query).fetchall()
        finally:
            self._connection.execute("use memory")
            self._connection.execute("detach store")


def check_panel(state: dict[str, Any], created_seq: int, sql: Callable[[str], list[tuple[Any, ...]]]) -> None:
    """Hold what the panel showed against SQL over the history, which computes it another way."""
    head, rows = state["head"], state["rows"]
    where = f"where created_seq = {created_seq}"
    [(status,)] = sql(f"select status from instances {where}")
    assert head["status"] == status, f"the panel says {head['status']}, SQL {status}: {rows['items']}"
    steps = sql(f"select type, name, count, key, status from steps {where}")
    shown = {tuple(row["key"]): row["state"] for row in rows["items"]}
    there = {(kind, name, count, key): state for kind, name, count, key, state in steps if key is None}
    unlike = {key: (shown.get(key), there.get(key)) for key in {*shown, *there} if shown.get(key) != there.get(key)}
    assert not unlike, f"the panel shows, and SQL: {unlike}"
    own = [(key, state) for kind, _, _, key, state in steps if kind != StepType.ROLLBACK.value and key is None]
    counts = (sum(state == "finished" for _, state in own), len(own))
    assert (head["done"], head["total"]) == counts, f"the panel counts {head['done']} of {head['total']}, SQL {counts}"
    items = Counter((name, state) for _, name, _, key, state in steps if key is not None)
    for row in rows["items"]:
        if row["key"][0] == "map":
            counts = {state: n for (name, state), n in items.items() if name == row["key"][1]}
            told = {state: n for state, n in row["counts"].items() if n}
            for untold in ("cancelled", "interrupted"):
                counts.pop(untold, None)
            assert told == counts, f"the panel counts {told} of {row['key']}, SQL {counts}"
