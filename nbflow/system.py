"""What differs between operating systems: opening files, locks on them, places in them, making them last, forks.

The locks are of open files, not of processes: two handles of one process keep each other out, and a lock dies with its
process, however that ends.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = [
    "at_fork", "has_modes", "open_file", "open_folder", "read_at", "sync_data", "sync_folder", "sync_whole", "try_lock",
    "unlock", "write_at",
]  # fmt: skip

if sys.platform == "win32":
    from nbflow.windows import open_file, read_at, sync_data, try_lock, unlock, write_at
else:
    import errno
    import fcntl

    _FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    _HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)

    def open_file(path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
        """Open a file that is no link, never waiting for a pipe, for this process alone; gives its descriptor."""
        return os.open(path, flags | _FLAGS, mode)

    def read_at(descriptor: int, size: int, place: int) -> bytes:
        """Read at most *size* bytes from *place* on; the offset of the file stays."""
        return os.pread(descriptor, size, place)

    def write_at(descriptor: int, data: bytes, place: int) -> int:
        """Write to *place*, the offset of the file stays; gives how many bytes were written."""
        return os.pwrite(descriptor, data, place)

    def try_lock(descriptor: int, *, shared: bool = False) -> bool:
        """Lock an open file if nobody else has it locked.

        Raises:
            OSError: the file system has no locks.
        """
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                return False
            raise
        return True

    def unlock(descriptor: int) -> None:
        """Give the lock of an open file back."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    if sys.platform == "darwin":

        def sync_data(descriptor: int) -> None:
            """Make what was written to a file last; on macOS only this reaches the disk itself."""
            try:
                fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY):
                    raise
                os.fsync(descriptor)  # a file system that does not know it

    else:

        def sync_data(descriptor: int) -> None:
            """Make what was written to a file last, as far as reading it needs."""
            os.fdatasync(descriptor)


def open_folder(path: Path) -> int | None:
    """Open a folder to `os.fsync` its names; None on Windows, where names last by themselves."""
    if sys.platform == "win32":
        return None
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def sync_folder(path: Path) -> None:
    """Make names made, changed and removed in a folder last (S53)."""
    descriptor = open_folder(path)
    if descriptor is not None:
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_whole(path: Path) -> None:
    """Make a file last that somebody else has written."""
    descriptor = open_file(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def has_modes() -> bool:
    """Whether the mode of a file says who may look into it; on Windows its folder does."""
    return sys.platform != "win32"


def at_fork(
    *,
    before: Callable[[], None] | None = None,
    after_in_parent: Callable[[], None] | None = None,
    after_in_child: Callable[[], None] | None = None,
) -> None:
    """Have these called at each fork of this process, where there are forks."""
    if sys.platform != "win32":
        given = {"before": before, "after_in_parent": after_in_parent, "after_in_child": after_in_child}
        os.register_at_fork(**{name: act for name, act in given.items() if act is not None})
