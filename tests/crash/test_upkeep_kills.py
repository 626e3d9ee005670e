"""A kernel is killed while it deletes and compacts, another engine beside it: what is kept is kept, and the file gets small later."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nbflow.core.model import Kind
from nbflow.store.doctor import Severity, examine
from nbflow.store.history_store import FileStore
from tests.store.actors import draft, finished, names, start_instance

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]

# Deletes the instances named, then compacts, and kills itself before or after that call of that function.
DIES = """
import importlib, os, signal, sys
from nbflow.core.model import Kind
from nbflow.store.history_store import FileStore

file, where, name, when, number, *gone = sys.argv[1:]
module, _, owner = where.partition(":")
place = importlib.import_module(module)
place = getattr(place, owner) if owner else place
real, left = getattr(place, name), int(number)


def dying(*given, **options):
    global left
    left -= 1
    if left == 0 and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    result = real(*given, **options)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return result


store = FileStore(file)
for seq in gone:
    store.command(int(seq), lambda head, entries: [(Kind.DELETED, {"by": "me"}, None)])
    print(seq, flush=True)
setattr(place, name, dying)
store.compact()
"""

POINTS = [
    ("nbflow.store.database:Database", "commit", "before", 1),
    ("nbflow.store.database:Database", "commit", "after", 1),
    ("nbflow.store.upkeep", "_copy", "after", 1),
    ("nbflow.store.desk", "put", "before", 1),
    ("nbflow.store.desk", "put", "after", 1),
    ("nbflow.store.upkeep", "_tidy", "before", 1),
]


def filled(store: FileStore) -> tuple[int, list[int]]:
    kept, *gone = (start_instance(store, name) for name in ("kept", "gone1", "gone2"))
    for number in range(1_000):
        store.append(finished(kept, f"k{number}"))
        for seq in gone:
            store.append(finished(seq, f"g{number}", b"j" + f'"{os.urandom(200).hex()}"'.encode()))
    store.sql("select 1")  # it is in the file
    return kept, gone


def test_a_death_while_deleting_and_compacting_loses_nothing_that_is_kept(tmp_path):
    for place, (where, name, when, number) in enumerate(POINTS):
        folder = tmp_path / str(place)
        folder.mkdir()
        file = folder / "history.duckdb"
        beside = FileStore(file)
        try:
            kept, gone = filled(beside)
            full = beside.facts()["size"]
            command = [sys.executable, "-c", DIES, str(file), where, name, when, str(number), *map(str, gone)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == -signal.SIGKILL, (where, name, done.stderr)
            assert done.stdout.split() == [str(seq) for seq in gone]
            beside.append(finished(kept, "later"))
            [made] = beside.create([draft("new")], None)
            assert made[0].kind is Kind.CREATED
            assert names(beside.read(kept))[2:] == [*(f"k{n}" for n in range(1_000)), "later"], (where, name)
            assert beside.sql("select instance_id from instances order by 1").fetchall() == [("kept",), ("new",)]
        finally:
            beside.close()
        again = FileStore(file)
        try:
            again.compact()
            assert again.facts()["size"] < full / 2
            assert again.sql("select count(*) from steps").fetchall() == [(1_001,)]
        finally:
            again.close()
        assert [finding.what for finding in examine(file) if finding.severity is Severity.WRONG] == [], (where, name)
        assert not list(folder.glob(".*compact*"))
