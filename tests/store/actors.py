"""What tests of the store say and ask: engines in the small, outsiders, killed writers."""

import os
import socket
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nbflow.clock import pause
from nbflow.core.model import Draft, Entry, Kind, Owner
from nbflow.store.history_store import FileStore


def owner(store: FileStore, notebook: str = "") -> Owner:
    return Owner(store.engine_id, os.getpid(), socket.gethostname(), "", notebook)


def draft(instance_id: str = "a", workflow: str = "W", params: bytes = b"j{}", **body: Any) -> Draft:
    return Draft(workflow, instance_id, params, {"code_hash": "c0", **body})


def start_instance(store: FileStore, instance_id: str = "a", **more: Any) -> int:
    """Create an instance that this store's engine runs; gives its created_seq."""
    [entries] = store.create([draft(instance_id, **more)], owner(store))
    assert isinstance(entries, list)
    return entries[0].created_seq


def entry(kind: Kind, created_seq: int, *, token: int = 1, value: bytes | None = None, step: str | None = None,
          count: int | None = None, key: str | None = None, **body: Any) -> Entry:  # fmt: skip
    if step is not None and count is None:
        count = 1
    return Entry(kind, created_seq, token, datetime.now(UTC), step, count, key, body, value)


def finished(created_seq: int, step: str, value: bytes = b"j1", **body: Any) -> Entry:
    given = {"order": 1, "attempt": 1, "started_at": "2026-11-01T00:00:00+00:00", "output_type": "int", **body}
    return entry(Kind.DO_FINISHED, created_seq, step=step, value=value, **given)


def started(created_seq: int, step: str, **body: Any) -> Entry:
    return entry(Kind.DO_STARTED, created_seq, step=step, **{"order": 1, "attempt": 1, **body})


def names(entries: list[Entry]) -> list[str]:
    return [e.step or e.kind.value for e in entries]


class Heard:
    """Collects what `on_news` tells."""

    def __init__(self, store: FileStore) -> None:
        self.calls: list[list[Entry]] = []
        self.rang = threading.Event()
        store.on_news = self._take

    def _take(self, entries: list[Entry]) -> None:
        self.calls.append(entries)
        self.rang.set()

    @property
    def entries(self) -> list[Entry]:
        return [e for call in self.calls for e in call]


def eventually(condition: Any, seconds: float = 10.0) -> None:
    """Wait for something that happens in another thread or process."""
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        pause(0.01)
    raise AssertionError("it did not happen in time")


def run(code: str, *args: object, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python code in another process."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)
    if check and done.returncode:
        raise AssertionError(done.stderr)
    return done


@contextmanager
def held_by_outsider(file: Path, *, read_only: bool = False) -> Any:
    """Another program has the DuckDB file open, as a database tool would."""
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == 'True'); print('open', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(file), str(read_only)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline().strip() == "open"
        yield process
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


# A process that opens the store, records, and is killed as its last act: its journal is what a death leaves.
DIES = """
import os, signal, sys
from datetime import UTC, datetime
from nbflow.store.history_store import FileStore
from tests.store.actors import draft, entry, finished, owner, start_instance, started
from nbflow.core.model import Kind
import nbflow.store.loader as loader
loader.LOAD_EVERY = 1e9
store = FileStore(sys.argv[1], **eval(sys.argv[3]))
loader_pause = store._loader
store._loader._next_load = 1e18
exec(sys.argv[2])
print(store.engine_id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_after(file: Path, doing: str, **options: Any) -> str:
    """Let another process do something with the store and die of it; gives its engine's id. Nothing is loaded meanwhile."""
    done = run(DIES, file, textwrap.dedent(doing), repr(options), check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == -9, done.stderr
    return done.stdout.split()[-1]
