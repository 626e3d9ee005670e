"""A descriptor of ours, whatever user code does: `os.closerange` closes it, and the next file gets its number."""

import os

Identity = tuple[int, int]


def identity(status: os.stat_result) -> Identity:
    """What tells a file from every other one."""
    return status.st_dev, status.st_ino


class Descriptor:
    """An open file, known by more than its number.

    Attributes:
        number: what to give to the system, after a look at `good`.
        file: which file it is.
    """

    __slots__ = ("file", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.file = identity(os.fstat(number))

    @property
    def good(self) -> bool:
        """Whether the number still leads to the file."""
        try:
            return identity(os.fstat(self.number)) == self.file
        except OSError:
            return False

    def close(self) -> None:
        """Close it, unless that is done: the number may be somebody else's by now."""
        if self.number >= 0 and self.good:
            os.close(self.number)
        self.number = -1
