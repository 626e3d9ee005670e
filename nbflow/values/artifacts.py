"""Files beside the store: one folder per instance, named by content, written whole or not at all.

A URI is relative to the artefact root and always `<workflow>/<instance>/<hash16>.<ext>`. Nothing is shared between
instances, so deleting an instance is deleting its folder.
"""

import errno
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from nbflow import ids
from nbflow.errors import StoreError, UndecodableError, UsageError, refusal
from nbflow.system import open_file, sync_folder

Payload = bytes | Callable[[BinaryIO], None]

_NAME = re.compile(r"[0-9a-f]{16}\.[a-z0-9]{1,12}")
_EXT = re.compile(r"[a-z0-9]{1,12}")
_PART = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]*")
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


class UnwrittenError(StoreError):
    """The disk refuses a file now: whoever writes the same again later may succeed; *why* says what keeps it."""

    def __init__(self, path: Path, error: OSError) -> None:
        self.why = refusal(error)
        super().__init__(f"{str(path)!r} cannot be written: {self.why} and try again")


class ArtifactFolder:
    """The artefacts of one instance; nothing outside its folder can be reached through it.

    Args:
        root: the store's artefact root.
        relative: `<workflow>/<instance>`.
        allow_pickle: the user's switch, which holds for all values that are stored or read with this folder.

    Raises:
        UsageError: *relative* would leave the root.
    """

    __slots__ = ("_made", "_unsynced", "allow_pickle", "path", "relative", "root")

    def __init__(self, root: Path, relative: str, *, allow_pickle: bool = False) -> None:
        if not all(_PART.fullmatch(part) for part in relative.split("/")):
            msg = f"{relative!r} is no artefact folder: it must be names joined by '/', none starting with a dot"
            raise UsageError(msg)
        self.root = Path(root)
        self.relative = relative
        self.path = self.root.joinpath(*relative.split("/"))
        self._made = False
        self._unsynced: set[Path] = set()
        self.allow_pickle = allow_pickle

    def __repr__(self) -> str:
        return f"ArtifactFolder({self.relative!r})"

    def write(self, ext: str, payload: Payload) -> tuple[str, str, int]:
        """Store bytes, or what a function writes to the file it is given; durable when this returns.

        Returns:
            URI, SHA-256 in hex, size in bytes. Content that is there already and undamaged is not written again.

        Raises:
            UnwrittenError: the disk refuses it now; nothing of it is left there.
        """
        if not _EXT.fullmatch(ext):
            msg = f"{ext!r} is no file extension: use 1 to 12 of a–z and 0–9"
            raise UsageError(msg)
        try:
            return self._write(ext, payload)
        except OSError as error:
            raise UnwrittenError(self.path, error) from error

    def _write(self, ext: str, payload: Payload) -> tuple[str, str, int]:
        self._make()
        if isinstance(payload, bytes):
            digest = hashlib.sha256(payload).hexdigest()
            uri, path = self._place(digest, ext)
            if self._holds(path, digest, len(payload)):
                return uri, digest, len(payload)
        temporary = self.path / f".{ids.new_uid()}.tmp"
        try:
            digest, size = write_whole(temporary, payload)
            uri, path = self._place(digest, ext)
            if not self._holds(path, digest, size):
                os.replace(temporary, path)
                self._sync(self.path)
            return uri, digest, size
        finally:
            temporary.unlink(missing_ok=True)

    def _sync(self, folder: Path) -> None:
        """Make the names in a folder last; where that fails, what is written next does it first."""
        self._unsynced.add(folder)
        sync_folder(folder)
        self._unsynced.discard(folder)

    def adopt(self, source: Path, name: str, digest: str, size: int) -> tuple[str, str, int]:
        """Give a file that is already in this folder its name; durable when this returns, and no error the second time.

        Returns:
            URI, SHA-256 in hex and size of what was found there; *digest* and *size* are what it should be.

        Raises:
            UndecodableError: there is no such file.
            UnwrittenError: the disk refuses it now.
        """
        try:
            self._make()
            try:
                with os.fdopen(open_file(source, os.O_RDONLY), "rb") as file:
                    found = hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size
            except FileNotFoundError:
                uri, path = self._place(digest, name.rpartition(".")[2])
                if not self._holds(path, digest, size):
                    raise
                return uri, digest, size
            uri, path = self._place(found[0], name.rpartition(".")[2])
            os.replace(source, path)
            self._sync(self.path)
        except FileNotFoundError as error:
            msg = f"a worker wrote {source.name!r}, and it is not there: {error.strerror}"
            raise UndecodableError(msg, needs=f"file {source.name}") from error
        except OSError as error:
            raise UnwrittenError(self.path, error) from error
        return uri, *found

    def open(self, uri: str, digest: str | None = None) -> BinaryIO:
        """Open an artefact for reading, its content checked first.

        Args:
            uri: as `write` returned it.
            digest: the SHA-256 it must have; the 16 digits in its name are checked without it.

        Raises:
            UndecodableError: it is missing, damaged, or not in this folder.
        """
        name = self._name(uri)
        needs = f"file {uri}"
        try:
            self._check_folder(uri)
            file = os.fdopen(open_file(self.path / name, os.O_RDONLY), "rb")
        except OSError as error:
            why = "a symbolic link stands in its place" if error.errno == errno.ELOOP else (error.strerror or str(error))
            msg = f"artefact {uri!r} cannot be read: {why}; put the file back or restart the step that made it"
            raise UndecodableError(msg, needs=needs) from error
        try:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                msg = f"artefact {uri!r} is no regular file; put the file back"
                raise UndecodableError(msg, needs=needs)
            found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != (digest or found) or not name.startswith(found[:16]):
                msg = (
                    f"artefact {uri!r} is damaged: its content is not what was stored; "
                    "put the file back from a backup or restart the step that made it"
                )
                raise UndecodableError(
                    msg,
                    needs=needs,
                )
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file

    def read(self, uri: str, digest: str | None = None) -> bytes:
        """Read an artefact whole; the same checks and errors as `open`."""
        with self.open(uri, digest) as file:
            return file.read()

    def remove(self) -> None:
        """Remove the folder with all that is in it; what a symbolic link leads to is not in it."""
        if self._is_inside():
            shutil.rmtree(self.path, ignore_errors=True)

    def _name(self, uri: str) -> str:
        folder, _, name = uri.rpartition("/")
        if folder != self.relative or not _NAME.fullmatch(name):
            msg = f"artefact {uri!r} is not in the folder {self.relative!r} of its instance, nothing else may be read"
            raise UndecodableError(
                msg,
                needs=f"file {uri}",
            )
        return name

    def _is_inside(self) -> bool:
        expected = os.path.join(os.path.realpath(self.root), *self.relative.split("/"))
        return os.path.realpath(self.path) == expected

    def _check_folder(self, uri: str) -> None:
        if not self._is_inside():
            msg = (
                f"artefact {uri!r} cannot be read: a symbolic link leads out of the artefact root; "
                "put the real folder in its place"
            )
            raise UndecodableError(
                msg,
                needs=f"file {uri}",
            )

    def _place(self, digest: str, ext: str) -> tuple[str, Path]:
        name = f"{digest[:16]}.{ext}"
        return f"{self.relative}/{name}", self.path / name

    def _holds(self, path: Path, digest: str, size: int) -> bool:
        """Whether the file is there with that content: a damaged one is written anew, not trusted for its name."""
        try:
            with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_size != size:
                    return False
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    return False
                os.utime(file.fileno() if os.utime in os.supports_fd else path)  # young again: `compact` leaves it alone
                return True
        except OSError:
            return False

    def _make(self) -> None:
        """Make the folder and those above it, each only for the user's own eyes."""
        for folder in tuple(self._unsynced):
            self._sync(folder)
        if self._made and self.path.is_dir():
            return
        missing = []
        folder = self.path
        while not folder.is_dir():
            missing.append(folder)
            if folder == folder.parent:
                break
            folder = folder.parent
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
            self._sync(folder.parent)
        self._check_folder(self.relative)
        self._made = True


def write_whole(path: Path, payload: Payload) -> tuple[str, int]:
    """Write a new file to the disk, only for the user's own eyes; gives its SHA-256 in hex and its bytes."""
    with os.fdopen(open_file(path, _NEW), "w+b") as file:
        if isinstance(payload, bytes):
            file.write(payload)
        else:
            payload(file)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return digest, os.fstat(file.fileno()).st_size


class ArtifactRef:
    """A stored value not read yet (`step.do(..., lazy=True)`): small, storable, accepted as a step's argument.

    Attributes:
        uri: path of its file under the artefact root, None where the value stands in the history itself.
        type: name of the value's type.
        preview: the summary made when it was stored.
        encoded: the value as the history holds it.
    """

    __slots__ = ("_files", "encoded", "preview", "type", "uri")

    def __init__(
        self,
        encoded: bytes,
        files: ArtifactFolder | None,
        *,
        type: str,  # noqa: A002 - the public attribute's name
        uri: str | None,
        preview: dict[str, Any],
    ) -> None:
        self.encoded = encoded
        self.type = type
        self.uri = uri
        self.preview = preview
        self._files = files

    @property
    def files(self) -> ArtifactFolder | None:
        """The folder its file lies in."""
        return self._files

    def load(self) -> object:
        """Read the value.

        Raises:
            UndecodableError: its file is missing or damaged, or its class is not there now.
        """
        from nbflow.values.codec import decode

        return decode(self.encoded, self._files)

    def __eq__(self, other: object) -> bool:
        if type(other) is not ArtifactRef:
            return NotImplemented
        from nbflow.values.codec import equal

        return equal(self.encoded, other.encoded)

    def __hash__(self) -> int:
        return hash(self.type)

    def __repr__(self) -> str:
        return f"<ArtifactRef {self.type} {self.preview.get('line', '')}>"
