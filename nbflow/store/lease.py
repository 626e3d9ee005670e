"""Who may touch the DuckDB file now, who is alive, and whether others have written.

All by the operating system's locks and one small file each; a lock dies with its process, however that ends.
"""

import json
import os
import re
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbflow.clock import SystemClock, pause
from nbflow.core.model import Owner
from nbflow.errors import StoreError
from nbflow.store.descriptor import Descriptor, named
from nbflow.store.files import open_own, write_own
from nbflow.store.layout import Layout, unwritable
from nbflow.system import read_at, sync_data, sync_folder, try_lock, unlock, write_at

Count = tuple[int, int]

LIFE = ".nbj"
_POLL = 0.001
_SIGNED = 4096  # bytes of a signature; it is shown in messages
_PROMISE = re.compile(rb"\d{15}\n")


def _try_lock(descriptor: int, path: Path, *, shared: bool = False) -> bool:
    try:
        return try_lock(descriptor, shared=shared)
    except OSError as error:
        msg = (
            f"{str(path)!r} cannot be locked: {error.strerror or error}; this file system has no lock service: "
            f"put the store on a local disk (NBFLOW_STORE)"
        )
        raise StoreError(msg) from error


def _unlock(lock: Descriptor) -> None:
    """Give a lock back before its descriptor is closed: a child that is just being forked has that descriptor too."""
    with suppress(OSError):  # user code closes it at this moment
        if lock.good:
            unlock(lock.number)


def let_go(lock: Descriptor) -> None:
    """Give a lock back for good."""
    _unlock(lock)
    lock.close()


class FileLock:
    """An exclusive lock on a file of its own, which may be deleted under us and is then made again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: Descriptor | None = None

    def try_acquire(self) -> bool:
        """Take it if it is free."""
        for _ in range(10):
            if self._held is None or not self._held.good:
                self._held = self._open()
            if not _try_lock(self._held.number, self.path):
                if self.in_place():
                    return False
            elif self.in_place():
                return True
            self.forget()  # somebody deleted the file: whoever comes now locks another one
        return False

    def in_place(self) -> bool:
        """Whether the file that is locked is still the one of that name."""
        return self._held is not None and self._held.good and self._held.file == named(self.path)

    def release(self) -> None:
        """Give it back."""
        if self._held is not None:
            _unlock(self._held)

    def forget(self) -> None:
        """Close the descriptor; in a forked child the parent's lock stays."""
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def _open(self) -> Descriptor:
        try:
            return Descriptor(open_own(self.path, os.O_RDWR | os.O_CREAT))
        except OSError as error:
            raise unwritable(self.path, error) from error


class Lease:
    """The right to have the DuckDB file attached: first a turn, then the lock, so that nobody starves."""

    def __init__(self, layout: Layout, holder: dict[str, Any]) -> None:
        self._turn, self._lock = FileLock(layout.beside("turn")), FileLock(layout.beside("lock"))
        self._holder_path, self._holder = layout.beside("holder.json"), holder
        self._time = SystemClock()

    def acquire(self, seconds: float, stopped: Callable[[], bool]) -> bool:
        """Wait for it at most *seconds*, or until *stopped* says so."""
        deadline = self._time.monotonic() + seconds
        if not self._poll(self._turn, deadline, stopped):
            return False
        try:
            if not self._poll(self._lock, deadline, stopped):
                return False
        finally:
            self._turn.release()
        self._sign()
        return True

    def release(self) -> None:
        """Let the next one in."""
        self._lock.release()

    def intact(self) -> bool:
        """Whether it is still ours: deleting the lock's file would let a second holder in."""
        return self._lock.in_place()

    def holder(self) -> str:
        """Who has it, in words."""
        try:
            with os.fdopen(open_own(self._holder_path, os.O_RDONLY), "rb") as file:
                signed = json.loads(file.read(_SIGNED))
            pid, host, since = int(signed["pid"]), signed["host"], signed["since"]
            name = f"{signed['notebook']}, " if signed.get("notebook") else ""
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return "another process"
        stopped = ", stopped (Ctrl-Z?)" if host == socket.gethostname() and stopped_process(pid) else ""
        return f"{name}PID {pid} on {host} since {since}{stopped}"

    def forget(self) -> None:
        """Close the descriptors."""
        self._turn.forget()
        self._lock.forget()

    def _poll(self, lock: FileLock, deadline: float, stopped: Callable[[], bool]) -> bool:
        while not lock.try_acquire():
            if stopped() or self._time.monotonic() >= deadline:
                return False
            pause(_POLL)
        return True

    def _sign(self) -> None:
        temporary = self._holder_path.with_name(f"{self._holder_path.name}.{self._holder['engine']}")
        since = self._time.now().strftime("%Y-%m-%d %H:%M:%S UTC")
        try:
            write_own(temporary, json.dumps({**self._holder, "since": since}))
            temporary.replace(self._holder_path)
        except OSError:  # it only serves messages; a full disk must not keep anyone out
            with suppress(OSError):
                temporary.unlink()


def stopped_process(pid: int) -> bool:
    """Whether a process of this machine is stopped by a signal."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in ("T", "t")


def process_name(pid: int) -> str:
    """What runs as *pid*, as far as the system tells."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


class LifeLock:
    """A file that an engine keeps locked for as long as it lives; in it stands how much its journal holds for good.

    That number is written after each sync and not synced again itself: it may be behind, never ahead, so a journal that ends
    before it was cut by something else than a crash.
    """

    def __init__(self, folder: Path, engine: str) -> None:
        self.path = folder / f"{engine}{LIFE}"
        self._promised = _promise(0)
        self._held = self._locked()

    def _locked(self) -> Descriptor:
        temporary = self.path.with_name(f".{self.path.name}")
        try:
            held = Descriptor(open_own(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        except OSError as error:
            raise unwritable(temporary, error) from error
        try:
            if not _try_lock(held.number, temporary):
                msg = f"{str(temporary)!r} is locked by somebody else; make a new Engine"
                raise StoreError(msg)
            write_at(held.number, self._promised, 0)
            sync_data(held.number)  # a lock that says nothing was harmed, then, and not left so by a power cut
            temporary.replace(self.path)
            sync_folder(self.path.parent)
        except BaseException as error:
            held.close()
            with suppress(OSError):
                temporary.unlink()
            if isinstance(error, OSError):
                raise unwritable(self.path, error) from error
            raise
        return held

    def promise(self, position: int) -> None:
        """Say that the journal is durable up to there."""
        self._promised = _promise(position)
        try:
            if self._held.good:
                write_at(self._held.number, self._promised, 0)
        except OSError:
            pass  # a second opinion of what the journal itself holds: without it less is noticed, nothing lost

    def keep(self) -> None:
        """Lock it anew where its file was deleted or its descriptor closed; others would take this engine for dead."""
        if self._held.number < 0 or (self._held.good and self._held.file == named(self.path)):
            return
        if named(self.path) is None:
            self._held.close()
            self._held = self._locked()
        elif not self._held.good:
            again = Descriptor(open_own(self.path, os.O_RDWR))
            for _ in range(20):  # who looks whether it is held has it for some microseconds; else the next time will do
                if _try_lock(again.number, self.path):
                    self._held = again
                    return
                pause(_POLL)
            again.close()

    def remove(self) -> None:
        """An engine that never came to work: nothing is left of it."""
        self.path.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Give it back: this engine is at its end."""
        let_go(self._held)

    def forget(self) -> None:
        """Close the descriptor; in a forked child the parent's lock stays."""
        self._held.close()


def seize(folder: Path, engine: str) -> tuple[bool | None, Descriptor | None]:
    """Whether an engine's life lock is held, None where there is none; with the lock, shared, where it is free.

    Shared, so that all who look at the same time see the same, and so does who looks while somebody loads the journal of a
    dead engine: whoever has it knows that the engine neither lives nor can begin to.
    """
    path = folder / f"{engine}{LIFE}"
    for _ in range(10):
        try:
            lock = Descriptor(open_own(path, os.O_RDONLY))
        except FileNotFoundError:
            return None, None
        free = _try_lock(lock.number, path, shared=True)
        if lock.file == named(path):
            if free:
                return False, lock
            lock.close()
            return True, None
        let_go(lock)  # removed or made anew at this moment: that file says nothing of the engine any more
    return True, None


def lives(folder: Path, engine: str) -> bool | None:
    """Whether an engine's life lock is held; None where there is no such file."""
    life, lock = seize(folder, engine)
    if lock is not None:
        let_go(lock)
    return life


def _promise(position: int) -> bytes:
    return b"%015d\n" % position


def promised(folder: Path, engine: str) -> int | None:
    """Up to where an engine has called its journal durable, None where its lock does not tell."""
    said = written(folder, engine)
    return int(said) if _PROMISE.fullmatch(said) else None


def written(folder: Path, engine: str) -> bytes:
    """What stands in an engine's life lock, nothing where there is none or it was made by an older nbflow."""
    try:
        descriptor = open_own(folder / f"{engine}{LIFE}", os.O_RDONLY)
    except OSError:
        return b""
    try:
        return read_at(descriptor, 32, 0)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def alive(layout: Layout, owner: Owner) -> bool | None:
    """Whether the engine of a claim lives; None where the locks here cannot tell (S52)."""
    if owner.host != socket.gethostname():
        return None
    life = lives(layout.journal, owner.engine)
    if life is None:  # dead only if this is the folder where it was made: a copy or another mount knows nothing
        return False if layout.journal.is_dir() and owner.folder == layout.folder_id() else None
    return life


class News:
    """A counter that rises before each commit: who polls it learns that others may have written.

    Beside it the highest seq that was committed, written after the commit and never synced: it may be behind, never ahead,
    so a file that ends before it has lost its end.
    """

    def __init__(self, layout: Layout) -> None:
        self._path = layout.beside("news")
        self._file: Descriptor | None = None
        self._reading = threading.Lock()

    def read(self) -> Count:
        """The counter, and the file it is in: one made anew counts from the start again."""
        return self._inode_and(0)

    def highest(self) -> int:
        """The highest seq that was committed, 0 where that is not known."""
        return self._inode_and(8)[1]

    def reached(self, seq: int) -> None:
        """Note the highest seq after its commit, under the lease."""
        with self._reading:
            write_at(self._opened().number, struct.pack("<Q", seq), 8)

    def _inode_and(self, place: int) -> Count:
        with self._reading:
            file = self._opened()
            data = read_at(file.number, 8, place)
            return file.file[1], int(struct.unpack("<Q", data)[0]) if len(data) == 8 else 0

    def there(self) -> bool:
        """Whether anything was ever counted."""
        return self._path.exists()

    def bump(self) -> Count:
        """Raise it, under the lease; gives the new count."""
        inode, count = self.read()
        with self._reading:
            write_at(self._opened().number, struct.pack("<Q", count + 1), 0)
        return inode, count + 1

    def forget(self) -> None:
        """Close the descriptor."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _opened(self) -> Descriptor:
        file = self._file
        if file is None or not file.good or file.file != named(self._path):
            self.forget()
            try:
                file = Descriptor(open_own(self._path, os.O_RDWR | os.O_CREAT))
            except OSError as error:
                raise unwritable(self._path, error) from error
            self._file = file
        return file


def own_holder(engine: str, notebook: str) -> dict[str, Any]:
    """What an engine signs the lease with."""
    return {"engine": engine, "pid": os.getpid(), "host": socket.gethostname(), "notebook": notebook}


__all__ = [
    "LIFE", "FileLock", "Lease", "LifeLock", "News", "alive", "let_go", "lives", "own_holder", "process_name", "promised",
    "seize", "stopped_process", "written",
]  # fmt: skip
