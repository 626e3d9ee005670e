"""Kernels are killed while their steps return arrays: what an entry names is whole, what nothing names is only a leftover."""

import os
import random
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest

from nbflow.clock import pause
from nbflow.store import contents, doctor
from nbflow.store.history_store import FileStore

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("NBFLOW_KILLS", "6"))

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300 + 30 * ROUNDS)]

# Makes arrays until it is killed, at a moment that the test chooses, or between a file and its entry.
WORKER = """
import os, signal, sys
import numpy as np
import nbflow
from nbflow.values.artifacts import ArtifactFolder

file, point, after = sys.argv[1], sys.argv[2], int(sys.argv[3])
write = ArtifactFolder.write
calls = [after]


def dying(self, ext, payload):
    calls[0] -= 1
    if point == "half" and calls[0] <= 0:
        def half(out):
            out.write(b"x" * 1000)
            out.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        payload = half
    told = write(self, ext, payload)
    if point == "between" and calls[0] <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return told


ArtifactFolder.write = dying


class Arrays(nbflow.WorkflowEntrypoint):
    async def run(self, event, step):
        for number in range(2000):
            back = await step.do("array", lambda: np.full(5_000, number, "i4"))
            assert back[-1] == number


engine = nbflow.Engine(file)
found = engine.register(Arrays).list()
instance = found[0] if found else engine.workflow("Arrays").create(id="a")
print("began", flush=True)
instance.wait(until="finished")
"""


def killed(file, point, rng):
    command = [sys.executable, "-c", WORKER, str(file), point, str(rng.randrange(1, 30))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        process.stdout.readline()  # "began", where it lives so long
        if point == "random":
            pause(rng.random() * 0.3)
            process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL


def named_and_there(file):
    """What the history names, all of it whole, and the files that it does not name."""
    store = FileStore(file)
    root = store.artifacts
    store.sql("select 1")
    store.close()
    with duckdb.connect() as connection:
        connection.execute(f"attach '{file}' as nb (read_only)")
        stored = contents.stored_files(lambda query: connection.execute(query).fetchall())
        uris = {uri for (uri,) in connection.execute("select uri from nb.entries where uri is not null").fetchall()}
    assert uris == set(stored)
    for uri, (digest, _) in stored.items():
        assert contents.trouble_of(root, uri, digest) is None, uri
    return set(stored), {path for path in root.rglob("*") if path.is_file()} - {root / uri for uri in stored}


def test_after_a_kill_every_entry_has_its_file_whole_and_a_file_without_one_is_a_leftover(tmp_path):
    file, rng = tmp_path / "history.duckdb", random.Random(int(os.environ.get("NBFLOW_SEED", "7")))
    before: set[str] = set()
    orphans = 0
    for number in range(ROUNDS):
        point = ("random", "between", "half")[number % 3]
        killed(file, point, rng)
        named, left = named_and_there(file)
        assert before <= named
        before = named
        orphans += len(left)
        if point == "between":
            assert left
    assert len(before) > ROUNDS
    assert orphans
    _, left = named_and_there(file)
    yesterday = datetime.now(UTC).timestamp() - 86_400
    for path in left:  # a young one may be named in a moment
        os.utime(path, (yesterday, yesterday))
    findings = doctor.examine(file)
    assert [finding for finding in findings if finding.severity is doctor.Severity.WRONG] == []
    told = [finding for finding in findings if finding.severity is doctor.Severity.NOTE and "file" in finding.what]
    assert bool(told) == bool(left), findings
