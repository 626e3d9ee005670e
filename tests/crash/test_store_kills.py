"""Writers are killed, again and again, under a second engine and an outside reader: nothing acknowledged may be lost."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from nbflow.clock import pause
from nbflow.core.history import History
from nbflow.core.model import Kind
from nbflow.store.doctor import Severity, examine
from nbflow.store.history_store import FileStore
from tests.store.actors import entry, eventually, owner

ROOT = Path(__file__).parents[2]
ROUNDS = 44  # on one file: what is checked grows with each
FILES = -(-int(os.environ.get("NBFLOW_KILLS", "44")) // ROUNDS)

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]

# Claims what the last one left, and records numbered steps until it dies. What it says on stdout was acknowledged.
WRITER = """
import os, random, signal, sys
from nbflow.clock import pause
from nbflow.core.model import Kind
from nbflow.store import database, desk, journal, segments
from nbflow.store.history_store import FileStore
from tests.store.actors import draft, entry, owner

file, point, after = sys.argv[1], sys.argv[2], int(sys.argv[3])


def dying(module, name, *, before=True):
    real = getattr(module, name)
    calls = [after]

    def call(*given, **options):
        calls[0] -= 1
        if before and calls[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*given, **options)
        if not before and calls[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(module, name, call)


def torn(real):
    def pwrite(descriptor, data, offset):
        if random.random() < 0.02:
            real(descriptor, data[: random.randrange(len(data) + 1)], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(descriptor, data, offset)
    return pwrite


POINTS = {
    "random": lambda: None,
    "torn write": lambda: setattr(os, "pwrite", torn(os.pwrite)),
    "before sync": lambda: dying(os, "fdatasync"),
    "after sync": lambda: dying(os, "fdatasync", before=False),
    "new segment": lambda: dying(journal.Journal, "_open_segment", before=False),
    "before load": lambda: dying(database.Database, "load"),
    "after load": lambda: dying(database.Database, "load", before=False),
    "before detach": lambda: dying(database.Database, "detach"),
    "after detach": lambda: dying(database.Database, "detach", before=False),
    "before removal": lambda: dying(journal.Journal, "remove_until"),
    "burying": lambda: dying(desk, "bury"),
    "buried": lambda: dying(desk, "bury", before=False),
    "writing directly": lambda: dying(database.Database, "write", before=False),
}
POINTS[point]()
store = FileStore(file, segment=20_000, lock_timeout=60)
store.create([draft("chain")], None)
[entries] = store.claim([1], owner(store), "cell").values()
token = entries[-1].token
number = sum(e.kind is Kind.DO_FINISHED for e in entries)
out = os.open(sys.argv[4], os.O_WRONLY | os.O_APPEND)
while True:
    for _ in range(random.choice((1, 1, 1, 5, 40))):
        number += 1
        body = {"order": number, "attempt": 1}
        store.append(entry(Kind.DO_STARTED, 1, token=token, step="n", count=number, **body))
        if number % 3 == 0:
            store.write()
        said = f"{token} {number}\\n".encode()
        store.append(
            entry(Kind.DO_FINISHED, 1, token=token, step="n", count=number, value=b"j" + str(number).encode(), **body),
            lambda said=said: os.write(out, said),
        )
    store.flush()
    if number % 50 == 0:
        pause(0.02)
"""


def spawn(file: Path, point: str, after: int, said: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(file), point, str(after), str(said)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def look_in_from_outside(file: Path) -> int:
    """What a database tool sees, where it gets in: rows without a gap."""
    try:
        connection = duckdb.connect(str(file), read_only=True)
    except duckdb.Error:
        return 0
    try:
        [(last, count)] = connection.execute("select coalesce(max(seq), 0), count(*) from entries").fetchall()
        pause(random.uniform(0, 0.2))
    finally:
        connection.close()
    assert last == count
    return 1


def checked(store: FileStore, said: Path, events: list[str]) -> None:
    """All that was acknowledged is there, once and in order; all that counts follows without a gap."""
    entries = store.read(1)
    assert [e.seq for e in entries] == sorted({e.seq for e in entries})
    ends = [(e.token, e.count) for e in entries if e.kind is Kind.DO_FINISHED]
    assert len(ends) == len(set(ends)), "an entry came twice"
    acknowledged = [tuple(map(int, line.split())) for line in said.read_text().splitlines()]
    there = set(ends)
    assert [pair for pair in acknowledged if pair not in there] == [], "an acknowledged entry is lost"
    place = {pair: number for number, pair in enumerate(ends)}
    assert [place[pair] for pair in acknowledged] == sorted(place[pair] for pair in acknowledged), "out of order"
    history = History(entries)
    assert [step.key.count for step in history.steps.values() if step.ended] == list(range(1, len(there) + 1))
    claims = [e.token for e in entries if e.kind is Kind.CLAIMED]
    assert claims == list(range(1, len(claims) + 1))
    assert [e.body["event_id"] for e in entries if e.kind is Kind.EVENT] == events


@pytest.mark.parametrize("number", range(FILES))
def test_kills_at_every_point_lose_double_and_disorder_nothing(tmp_path, number):
    file, said = tmp_path / "history.duckdb", tmp_path / "said"
    said.touch()
    chance = random.Random(7 + 10_000 * number + int(os.environ.get("NBFLOW_SEED", "0")))
    inner = [
        "torn write", "before sync", "after sync", "new segment", "before load", "after load", "before detach", "after detach",
        "before removal", "burying", "buried", "writing directly",
    ]  # fmt: skip
    watcher = FileStore(file, lock_timeout=60)
    told: list[int] = []
    watcher.on_news = lambda entries: told.extend(e.seq for e in entries)
    events: list[str] = []
    outside = 0
    died = {"by itself": 0, "killed": 0}
    process = None
    try:
        for round_ in range(ROUNDS):
            point = "random" if round_ % 2 else inner[(round_ // 2) % len(inner)]
            many = point in ("before sync", "after sync")
            process = spawn(file, point, chance.randint(3, 60) if many else chance.randint(1, 4), said)
            size = said.stat().st_size
            deadline = chance.uniform(0.05, 0.9)
            eventually(lambda was=size, p=process: said.stat().st_size > was or p.poll() is not None, 60)
            if chance.random() < 0.5:
                outside += look_in_from_outside(file)
            if point != "random":
                deadline = 3.0
            if chance.random() < 0.5 and watcher.head(1) is not None:
                event = f"e{len(events)}"
                watcher.command(1, lambda head, read, e=event: [(Kind.EVENT, {"event_id": e, "type": "go"}, b"j1")])
                events.append(event)
            try:
                process.wait(deadline)
                died["by itself"] += 1
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait(60)
                died["killed"] += 1
            complaint = process.stderr.read()
            process.stderr.close()
            assert process.returncode == -9, complaint
            if round_ % 5 == 4:
                checked(watcher, said, events)
        checked(watcher, said, events)
        assert told == sorted(told)
        [entries] = watcher.claim([1], owner(watcher), "cell").values()
        watcher.append(entry(Kind.COMPLETED, 1, token=entries[-1].token, value=b"j1"))
    finally:
        if process is not None:
            process.kill()
            process.wait(60)
        watcher.close()
    last = FileStore(file)
    try:
        checked(last, said, events)
        assert list((file.with_suffix(".nbflow") / "journal").glob("*.seg")) == []
        assert last.warnings == []
    finally:
        last.close()
    assert look_in_from_outside(file) == 1
    assert [finding for finding in examine(file) if finding.severity is not Severity.FINE] == []
    assert died["by itself"] >= ROUNDS // 6, died
    assert died["killed"] >= ROUNDS // 4, died
