"""A descriptor of ours, whatever user code does: `os.closerange` closes it, and the next file gets its number."""

import os
import stat
from pathlib import Path

from nbflow import ids
from nbflow.system import open_folder

Identity = tuple[int, int]

_FAR = 1 << 40
_DELETED = " (deleted)"


def identity(status: os.stat_result) -> Identity:
    """What tells a file from every other one."""
    return status.st_dev, status.st_ino


def named(path: str | os.PathLike[str]) -> Identity | None:
    """The file that has this name now, None where none has."""
    try:
        return identity(os.stat(path))
    except OSError:
        return None


class Descriptor:
    """An open file, known by more than its number. It is read and written by position: its offset is its mark.

    Asking the system for the state of a file that is being written makes the next write give it a finer time stamp, and the
    sync after that takes a third longer (Linux 6.13 and later). So the common question is answered without: nobody else
    leaves an open file at an offset of a terabyte and some.

    Attributes:
        number: what to give to the system, after a look at `good`.
        file: which file it is.
    """

    __slots__ = ("_mark", "file", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        status = os.fstat(number)
        self.file = identity(status)
        self._mark = _mark(number) if stat.S_ISREG(status.st_mode) else None

    @property
    def good(self) -> bool:
        """Whether the number still leads to the file."""
        try:
            if self._mark is not None and os.lseek(self.number, 0, os.SEEK_CUR) == self._mark:
                return True
            return identity(os.fstat(self.number)) == self.file
        except OSError:
            return False

    @property
    def named(self) -> bool:
        """Whether the file still has a name; without one, what is written to it is gone when it is closed."""
        try:
            if not os.readlink(f"/proc/self/fd/{self.number}").endswith(_DELETED):
                return True
        except OSError:
            pass  # not Linux, or a path too long to be told
        return os.fstat(self.number).st_nlink > 0

    def close(self) -> None:
        """Close it, unless that is done: the number may be somebody else's by now."""
        if self.number >= 0 and self.good:
            os.close(self.number)
        self.number = -1


def of_folder(folder: Path) -> Descriptor | None:
    """A folder, open to make its names last; None where that needs none."""
    number = open_folder(folder)
    return None if number is None else Descriptor(number)


def _mark(number: int) -> int | None:
    """Move the offset to where nobody else's is; None on a file system without such places."""
    try:
        return os.lseek(number, _FAR + int(ids.new_uid()[:10], 16), os.SEEK_SET)
    except OSError:
        return None
