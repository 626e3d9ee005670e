"""A store whose every write is a place to die: before it, after it, in its middle, or where it fails; also by a power cut.

Runs in a forked process. What the death leaves is built as a folder of its own, the *image*. A process that dies leaves all
it had written; a power cut leaves what was synced for certain, and of the rest whatever a drawn number says: nothing, all, a
beginning, zeros. A name made, changed or removed is certain once its folder is synced. DuckDB's own files stay as they are
between two statements: what happens inside one is for real kills.
"""

import errno
import itertools
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

DIED = 77
CRASHES = ("before", "after", "torn")
ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO}
_SECTOR = 512
_BY_DUCKDB = ("history.duckdb", "history.duckdb.wal", ".history.duckdb.new", ".history.duckdb.compact")


class Seam:
    """Counts the writes of a store under *root* and makes one of them, or none, go wrong.

    Args:
        root: where the store is.
        image: where to put what a death leaves.
        at: the number of the write, from 1 on.
        how: "before", "after", "torn", "ENOSPC", "EIO".
        power: whether the machine dies, not only the process.
        seed: for what a power cut leaves, and how many writes fail in a row.
    """

    def __init__(self, root: Path, image: Path, at: int, how: str, power: bool, seed: int) -> None:
        self.root, self.image = root, image
        self.at, self.how, self.power = at, how, power
        self.chance = random.Random(seed)
        self.count = 0
        self.names: list[str] = []
        self._lock = threading.RLock()
        self._last = at + (self.chance.choice((0, 0, 1, 4)) if how in ERRORS else 0)
        self._real = {
            name: getattr(os, name) for name in ("pwrite", "fsync", "fdatasync", "rename", "replace", "unlink", "open", "link")
        }
        self._synced: dict[int, bytes] = {}
        self._named: dict[str, dict[str, int]] = {}

    # -- putting it in ------------------------------------------------------------------------------------------------

    def patch(self) -> None:
        """Stand between the store and the system from now on; what is there already is certain."""
        from nbflow.store.database import Database

        for folder, _, files in os.walk(self.root):
            self._sync_names(folder)
            for file in files:
                self._sync(os.path.join(folder, file))
        real = self._real
        os.pwrite = lambda fd, data, offset: self._event(
            "pwrite", lambda part: real["pwrite"](fd, data[: int(len(data) * part)], offset), torn=True
        )
        os.fdatasync = lambda fd: self._event("fdatasync", lambda _: self._synced_by(real["fdatasync"], fd))
        os.fsync = lambda fd: self._event("fsync", lambda _: self._synced_by(real["fsync"], fd))
        for name in ("rename", "replace", "link"):
            setattr(os, name, self._of_paths(name))
        os.unlink = self._of_paths("unlink")
        os.open = self._open
        self._patch_statements(Database)

    def _patch_statements(self, database: Any) -> None:
        rows, attach, detach, load = database.rows, database._attach, database.detach, database.load
        writing = ("begin", "commit", "insert", "update", "delete", "copy", "attach", "detach")

        def of_rows(this: Any, query: str, values: Any = None) -> Any:
            if query.strip().startswith(writing):
                return self._event(f"duckdb {query.split()[0]}", lambda _: rows(this, query, values), duckdb_=True)
            return rows(this, query, values)

        database.rows = of_rows
        database._attach = lambda this, *given: self._event("duckdb attach", lambda _: attach(this, *given))
        database.detach = lambda this: self._event("duckdb detach", lambda _: detach(this))
        database.load = lambda this, *given: self._event("duckdb load", lambda _: load(this, *given), duckdb_=True)

    def _of_paths(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(path: Any, *more: Any, **options: Any) -> Any:
            if not str(path).startswith(str(self.root)):
                return real(path, *more, **options)
            return self._event(f"{name} {_short(path)}", lambda _: real(path, *more, **options))

        return call

    def _open(self, path: Any, flags: int, *more: Any, **options: Any) -> int:
        real = self._real["open"]
        if not flags & os.O_CREAT or not str(path).startswith(str(self.root)) or os.path.exists(path):
            return int(real(path, flags, *more, **options))
        return int(self._event(f"create {_short(path)}", lambda _: real(path, flags, *more, **options)))

    # -- one write ----------------------------------------------------------------------------------------------------

    def _event(self, name: str, act: Callable[[float], Any], *, torn: bool = False, duckdb_: bool = False) -> Any:
        with self._lock:
            self.count += 1
            self.names.append(name)
            hit = self.at <= self.count <= self._last
            if hit and self.how in ERRORS:
                if torn and self.chance.random() < 0.5:
                    return act(self.chance.random() * 0.9)  # a short write
                if duckdb_:
                    msg = "IO Error: could not write file: No space left on device"
                    raise duckdb.IOException(msg)
                if name.startswith("duckdb"):
                    return act(1)
                raise OSError(ERRORS[self.how], os.strerror(ERRORS[self.how]), str(self.root))
            if hit and (self.how == "before" or (self.how == "torn" and torn)):
                if torn and self.how == "torn":
                    act(self.chance.random())
                self._die()
            result = act(1)
            if hit:
                self._die()
            return result

    def _die(self) -> None:
        self.image.parent.mkdir(exist_ok=True)
        self._build()
        os._exit(DIED)

    # -- what is certain ----------------------------------------------------------------------------------------------

    def _synced_by(self, sync: Callable[[int], None], descriptor: int) -> None:
        sync(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(path):
            self._sync_names(path)
        else:
            self._sync(path)

    def _sync(self, path: str) -> None:
        if os.path.basename(path) in _BY_DUCKDB:
            return
        try:
            with open(path, "rb") as file:
                self._synced[os.fstat(file.fileno()).st_ino] = file.read()
        except FileNotFoundError:
            pass  # it has no name any more

    def _sync_names(self, folder: str) -> None:
        self._named[folder] = {entry.name: entry.inode() for entry in os.scandir(folder)}

    # -- what is left -------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        if not self.power:
            shutil.copytree(self.root, self.image, symlinks=True)
            return
        self._build_folder(str(self.root), self.image)

    def _build_folder(self, folder: str, target: Path) -> None:
        target.mkdir(parents=True)
        present = {entry.name: entry for entry in os.scandir(folder)}
        certain = self._named.get(folder, {})
        for name in sorted({*present, *certain}):
            entry = present.get(name)
            inode = None if entry is None else entry.inode()
            before = certain.get(name)
            if name in _BY_DUCKDB:
                if entry is not None:
                    shutil.copyfile(entry.path, target / name)
            elif inode != before and self.chance.random() < 0.5:  # the change of the name did not last
                if before is not None and before in self._synced:
                    (target / name).write_bytes(self._synced[before])
            elif entry is not None and entry.is_dir():
                self._build_folder(entry.path, target / name)
            elif entry is not None:
                (target / name).write_bytes(self._content(entry))

    def _content(self, entry: os.DirEntry[str]) -> bytes:
        present = Path(entry.path).read_bytes()
        certain = self._synced.get(entry.inode(), b"")
        if present == certain:
            return present
        common = bytes(a for a, _ in itertools.takewhile(lambda two: two[0] == two[1], zip(present, certain)))
        some = self.chance.randint(len(common), max(len(common), len(present)))
        zeros = present[: len(common)] + bytes(some - len(common)) + present[some:]
        # What fits into a sector is written whole or not at all; of the rest some may be there, over what was there before.
        begun = present[:some] + certain[some:] if len(common) == len(certain) or len(present) > _SECTOR else certain
        return self.chance.choice((certain, present, begun, zeros))


def _short(path: Any) -> str:
    name = os.path.basename(str(path))
    return ".".join(part for part in name.split(".") if not part.isdigit() and len(part) < 20)


# -- lives of a store --------------------------------------------------------------------------------------------------


class Notes:
    """What was acknowledged, kept outside the store, past all faults."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._write = os.write

    def __call__(self, *words: object) -> None:
        self._write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())


def store_life(folder: str, deeds: list[list[Any]], seam: dict[str, Any]) -> None:
    """Do *deeds* with a store until the seam kills the process, or all are done."""
    import warnings

    from nbflow.store.history_store import FileStore

    warnings.simplefilter("ignore")
    root = Path(folder)
    notes = Notes(root / "notes")
    between = Seam(root / "store", root / "image", **seam)
    (root / "store").mkdir(exist_ok=True)
    between.patch()
    life = Life(lambda: FileStore(root / "store" / "history.duckdb", segment=3_000, lock_timeout=5), notes)
    life.live(deeds)
    Notes(root / "writes")(*[name.replace(" ", "-") for name in between.names])
    shutil.copytree(root / "store", root / "image", symlinks=True)
    os._exit(0)


class Life:
    """One store after another on the same file, and what is done with it."""

    def __init__(self, open_store: Callable[[], Any], notes: Callable[..., None]) -> None:
        self._open, self._note = open_store, notes
        self._store: Any = None
        self._token = 0
        self._step = itertools.count(1)
        self._events = 0
        self._others: list[int] = []

    def live(self, deeds: list[list[Any]]) -> None:
        """Do them; what the store refuses because of a fault is left."""
        from nbflow.errors import NbflowError

        for what, *given in [["open"], *deeds]:
            if self._store is None and what != "open":
                self._try(self.open)
                if self._store is None:
                    continue
            try:
                getattr(self, what)(*given)
            except (NbflowError, OSError):
                if what in ("open", "reopen"):
                    self._store = None
        if self._store is not None:
            self._try(self._store.close)

    def _try(self, act: Callable[[], None]) -> None:
        from nbflow.errors import NbflowError

        try:
            act()
        except (NbflowError, OSError):
            pass

    def open(self) -> None:
        """Open the store and make the one instance that counts ours."""
        from tests.store.actors import draft, owner

        store = self._open()
        try:
            if not store.find("chain"):
                store.create([draft("chain")], None)
                self._note("created", "chain")
            [head] = store.find("chain")
            self._seq = head.created_seq
            [entries] = store.claim([self._seq], owner(store), "cell").values()
            self._token = entries[-1].token
            self._note("claimed", self._token)
        except BaseException:
            self._try(store.close)  # the claim may be written all the same: as long as this one lives, it has the instance
            raise
        self._store = store

    def reopen(self) -> None:
        """Close in order and come back."""
        self._store.close()
        self.open()

    def append(self, number: int) -> None:
        """Record steps."""
        from nbflow.core.model import Kind
        from tests.store.actors import entry

        for _ in range(number):
            n = next(self._step)
            body = {"order": n, "attempt": 1}
            said = ("acked", self._token, n)
            self._store.append(entry(Kind.DO_STARTED, self._seq, token=self._token, step="n", count=n, **body))
            self._store.append(
                entry(Kind.DO_FINISHED, self._seq, token=self._token, step="n", count=n, value=b"j%d" % n, **body),
                lambda said=said: self._note(*said),
            )

    def large(self) -> None:
        """Record a step whose result is a file."""
        import numpy as np

        from nbflow.core.model import Kind
        from nbflow.values import codec
        from nbflow.values.artifacts import ArtifactFolder
        from tests.store.actors import entry

        n = next(self._step)
        encoded = codec.encode(np.full(500, n), ArtifactFolder(self._store.artifacts, "W/chain"))
        said = ("acked", self._token, n)
        self._store.append(
            entry(Kind.DO_FINISHED, self._seq, token=self._token, step="n", count=n, value=encoded.data, order=n, attempt=1),
            lambda: self._note(*said),
        )

    def write(self) -> None:
        """What is done before a body begins."""
        self._store.write()

    def flush(self) -> None:
        """Wait until all is durable."""
        self._store.flush()

    def load(self) -> None:
        """Have everything in the file."""
        self._store.head(self._seq)

    def event(self) -> None:
        """Say something about the instance, as a shell would."""
        from nbflow.core.model import Kind

        name = f"e{self._events}"
        self._store.command(self._seq, lambda head, read: [(Kind.EVENT, {"event_id": name, "type": "go"}, b"j1")])
        self._events += 1
        self._note("event", name)

    def create(self) -> None:
        """Another instance."""
        from tests.store.actors import draft, owner

        name = f"other{len(self._others)}"
        [made] = self._store.create([draft(name)], owner(self._store))
        self._others.append(made[0].created_seq if isinstance(made, list) else made.created_seq)
        self._note("created", name)

    def delete(self) -> None:
        """Delete one of those."""
        from nbflow.core.model import Kind

        if self._others:
            self._store.command(self._others[-1], lambda head, read: [(Kind.DELETED, {"by": "me"}, None)])
            self._note("deleted", f"other{len(self._others) - 1}")
            self._others[-1] = -1

    def compact(self) -> None:
        """Make the file small."""
        self._store.compact()
