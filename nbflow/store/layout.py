"""Where the files of a store are: everything beside the real path of the DuckDB file."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nbflow.core.names import quoted
from nbflow.errors import StoreError, UsageError, passes, refusal
from nbflow.store.files import strangers, write_own
from nbflow.system import sync_folder

DEFAULT = Path(".nbflow") / "history.duckdb"


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one store.

    Attributes:
        file: the DuckDB file, links followed: whoever comes by another name finds the same locks.
        folder: holds everything else; the file itself too where it is the default `.nbflow/history.duckdb`.
    """

    file: Path
    folder: Path

    @classmethod
    def of(cls, path: str | os.PathLike[str] | None) -> "Layout":
        """The layout for a DuckDB file, the default one for None; nothing is made."""
        try:
            file = Path(os.path.realpath(DEFAULT if path is None else Path(path).expanduser()))
        except FileNotFoundError as error:
            msg = f"{str(path or DEFAULT)!r} stands in no folder: the working directory was removed; go to one that is there"
            raise StoreError(msg) from error
        try:
            is_folder = file.is_dir()
        except OSError as error:  # a folder above it is closed to this user
            raise unwritable(file, error) from error
        if is_folder:
            msg = f"{str(file)!r} is a folder, not a DuckDB file: name a file in it, such as 'history.duckdb'"
            raise UsageError(msg)
        default = (file.parent.name, file.name) == DEFAULT.parts[-2:]
        layout = cls(file, file.parent if default else file.with_name(f"{file.name.removesuffix('.duckdb')}.nbflow"))
        try:
            layout.beside("holder.json").lstat()  # the longest name that it needs; said before anything is made
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise _too_long(file) from error
        return layout

    @property
    def journal(self) -> Path:
        """The folder of the journals of living engines."""
        return self.folder / "journal"

    @property
    def artifacts(self) -> Path:
        """The folder of the artefacts."""
        return self.folder / "artifacts"

    @property
    def wal(self) -> Path:
        """DuckDB's own log, there only inside a lease."""
        return self.file.with_name(f"{self.file.name}.wal")

    def beside(self, what: str) -> Path:
        """One of the small files that go with the DuckDB file: turn, lock, holder.json, news."""
        return self.folder / f"{self.file.name}.{what}"

    @property
    def spill(self) -> Path:
        """Where DuckDB puts what does not fit into memory."""
        return self.folder / "spill"

    def strangers(self) -> Iterator[tuple[Path, str]]:
        """What stands in the place of a file or folder of the store and is neither, and what it is."""
        yield from strangers((self.folder, self.journal, self.artifacts, self.spill, self.wal, self.artifacts / ".here"))
        yield from strangers(self.beside(what) for what in ("turn", "lock", "holder.json", "news"))
        if os.access(self.journal, os.R_OK | os.X_OK) and not self.journal.is_symlink():
            yield from strangers(self.journal.iterdir())

    def prepare(self) -> None:
        """Make the folders, only for the user's own eyes.

        Raises:
            StoreError: they can't be made, or a link would lead out of the store: nothing is read or written beyond it.
        """
        for path, what in self.strangers():
            msg = (
                f"{str(path)!r} is {what}, and a store keeps to its own folder: put the real file or folder in its place, "
                f"or name another file with NBFLOW_STORE or Engine(path). Nothing was changed"
            )
            raise StoreError(msg)
        default = self.folder == self.file.parent
        if not default and not self.file.parent.is_dir():
            msg = f"{str(self.file)!r} cannot be made: the folder {str(self.file.parent)!r} does not exist; make it first"
            raise StoreError(msg)
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if default:
                    write_own(self.folder / ".gitignore", "*\n")
                sync_folder(self.folder.parent)
            for folder in (self.journal, self.artifacts):
                if not folder.is_dir():
                    folder.mkdir(mode=0o700, exist_ok=True)
                    sync_folder(self.folder)
        except OSError as error:
            raise unwritable(self.folder, error) from error

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Say as errors of the store what the system refuses meanwhile."""
        try:
            yield
        except OSError as error:
            raise self.refused(error) from error

    def refused(self, error: OSError) -> StoreError | UsageError:
        """What to say where the system refuses something about a file of the store that was expected to work."""
        name = error.filename2 or error.filename  # of two, the one that is written
        path = Path(os.fsdecode(name)) if isinstance(name, str | bytes) else self.folder
        if passes(error) or error.errno == errno.ENAMETOOLONG:
            return unwritable(path, error)
        return StoreError(
            f"{str(path)!r} of the store {str(self.file)!r}: {error.strerror or error}; see what keeps this user from it, "
            f"and try again"
        )

    def folder_id(self) -> str:
        """The journal folder as the system knows it: a copy of it is another one (S52)."""
        status = self.journal.stat()
        return f"{status.st_dev}:{status.st_ino}"


def _too_long(path: Path) -> UsageError:
    return UsageError(f"{quoted(str(path))} is too long for a file of this system; name the store by a shorter path")


def unwritable(path: Path, error: OSError) -> StoreError | UsageError:
    """What to say where the system refuses to write."""
    if error.errno == errno.ENAMETOOLONG:
        return _too_long(path)
    if passes(error):
        return StoreError(f"{str(path)!r} cannot be written: {refusal(error)} and try again")
    return StoreError(
        f"{str(path)!r} cannot be written: {error.strerror or error}; give this user write access, "
        f"or name another file with NBFLOW_STORE or Engine(path)"
    )
