"""The store's own files: opened for nobody else's eyes, never through a link, and never a pipe that would make us wait.

A store may come from a stranger, in an archive, with links in it that lead anywhere.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from nbflow.system import open_file


def open_own(path: Path, flags: int) -> int:
    """Open a regular file of the store, made with mode 0600 where *flags* say so; gives its descriptor.

    Raises:
        OSError: it can't be opened, or something else stands in its place.
    """
    descriptor = open_file(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return descriptor


def write_own(path: Path, text: str) -> None:
    """Write a new file of the store."""
    with os.fdopen(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="utf-8") as file:
        file.write(text)


def make_own(path: Path) -> None:
    """Make an empty file for DuckDB to fill, which would make one that others may read."""
    try:
        os.close(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        pass  # a crash has left it; DuckDB takes care of it


def strangers(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Those of *paths* that are neither a file nor a folder, and what they are; what is not there is none."""
    for path in paths:
        try:
            mode = path.lstat().st_mode
        except OSError:  # not there, or closed to this user: who opens it says so
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            yield path, "a symbolic link" if stat.S_ISLNK(mode) else "no regular file"
