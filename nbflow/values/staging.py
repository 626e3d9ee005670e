"""Large results on their way from a worker to the store: written where the worker can, published by the engine alone.

What an attempt writes stands beside its place under a name that only that attempt uses. Nothing of it counts before the
engine has put it in its place, so the late result of an attempt that is no longer waited for cannot (S26).
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from nbflow import ids
from nbflow.errors import UndecodableError
from nbflow.values.artifacts import ArtifactFolder, Payload, write_whole

MARK = ".here"
"""The file in the artefact root by which a worker knows that what it sees under that path is this store."""


class Staged(msgspec.Struct, frozen=True):
    """One file of a result, not published yet.

    Attributes:
        source: its path in the instance's folder, or its URL in the place the user gave; empty where *data* holds it.
        name: what it will be called.
        digest, size: its SHA-256 in hex, and its bytes.
        data: the content itself, where the worker sees neither.
    """

    source: str
    name: str
    digest: str
    size: int
    data: bytes = b""


class StagingFolder(ArtifactFolder):
    """An instance's artefacts as a worker sees them: it may read them, and writes only what the engine publishes.

    Args:
        root, relative: as for `ArtifactFolder`.
        mark: content of the root's mark; a root without it is another one, or not there.
        url: where results go instead, an fsspec URL.
        attempt: key of the attempt, part of the names of its files.
    """

    __slots__ = ("_attempt", "_mark", "_url", "staged")

    def __init__(self, root: str, relative: str, mark: str, url: str | None, attempt: str) -> None:
        super().__init__(Path(root), relative)
        self.staged: list[Staged] = []
        self._mark, self._url, self._attempt = mark, url, attempt

    def write(self, ext: str, payload: Payload) -> tuple[str, str, int]:
        """Write a file of the result; gives the URI that it will have, its SHA-256 and size."""
        name = f".{self._attempt}-{ids.new_uid()[:8]}.part"
        if self._url is not None:
            data = _bytes_of(payload)
            source = f"{self._url.rstrip('/')}/{name[1:]}"
            with _fsspec().open(source, "wb") as file:
                file.write(data)
            return self._note(source, ext, hashlib.sha256(data).hexdigest(), len(data))
        if not sees(str(self.root), self._mark):
            data = _bytes_of(payload)
            return self._note("", ext, hashlib.sha256(data).hexdigest(), len(data), data)
        try:
            self._make()
            digest, size = write_whole(self.path / name, payload)
        except OSError:  # the engine waits for room; here nothing could
            (self.path / name).unlink(missing_ok=True)
            data = _bytes_of(payload)
            return self._note("", ext, hashlib.sha256(data).hexdigest(), len(data), data)
        return self._note(name, ext, digest, size)

    def _note(self, source: str, ext: str, digest: str, size: int, data: bytes = b"") -> tuple[str, str, int]:
        name = f"{digest[:16]}.{ext}"
        self.staged.append(Staged(source, name, digest, size, data))
        return f"{self.relative}/{name}", digest, size


def sees(root: str, mark: str) -> bool:
    """Whether *root* is here the folder that the engine means."""
    try:
        return Path(root, MARK).read_text("ascii") == mark
    except (OSError, UnicodeDecodeError):
        return False


def mark(root: Path) -> str:
    """Put the mark into an artefact root where it has none; gives its content."""
    path = root / MARK
    try:
        return path.read_text("ascii")
    except OSError:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = ids.new_uid()
        temporary = root / f"{MARK}.{text}"
        try:
            write_whole(temporary, text.encode())
            try:
                os.link(temporary, path)  # never over a mark that somebody else has just made
            except FileExistsError:
                text = path.read_text("ascii")
            except OSError:  # a file system without links
                os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        return text


def publish(staged: list[Staged], files: ArtifactFolder) -> None:
    """Put the files of a result in their places; durable when this returns.

    Raises:
        UndecodableError: a file is not there, or not what the worker said it wrote.
        UnwrittenError: the disk refuses one of them now; the same call may succeed later.
    """
    for each in staged:
        if each.data or not each.source:
            files.write(each.name.rpartition(".")[2], each.data)
            continue
        source = _local(each, files)
        if source is not None:
            uri, digest, size = files.adopt(source, each.name, each.digest, each.size)
        else:
            with _fsspec().open(each.source, "rb") as remote:
                uri, digest, size = files.write(each.name.rpartition(".")[2], _copying(remote))
        if (digest, size) != (each.digest, each.size):
            msg = f"a worker wrote {each.source!r} for artefact {uri!r}, and what is found there is something else"
            raise UndecodableError(msg, needs=f"file {uri}")
    discard(staged, files)


def discard(staged: list[Staged], files: ArtifactFolder) -> None:
    """Remove what is left of a result's files."""
    for each in staged:
        source = _local(each, files)
        if source is not None:
            source.unlink(missing_ok=True)
        elif each.source:
            try:
                filesystem, path = _fsspec().core.url_to_fs(each.source)
                filesystem.rm(path)
            except Exception:  # noqa: BLE001 - what a place of the user's cannot remove stays there
                pass


def _local(each: Staged, files: ArtifactFolder) -> Path | None:
    return files.path / each.source if each.source and "/" not in each.source else None


def _copying(source: Any) -> Callable[[BinaryIO], None]:
    return lambda target: shutil.copyfileobj(source, target, 1 << 20)


def _bytes_of(payload: Payload) -> bytes:
    if isinstance(payload, bytes):
        return payload
    import io

    file = io.BytesIO()
    payload(file)
    return file.getvalue()


def _fsspec() -> Any:
    import fsspec

    return fsspec
