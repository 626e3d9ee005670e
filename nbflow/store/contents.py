"""The files that a history names: which there must be, what is wrong with one, which belong to nothing."""

import hashlib
import os
import re
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nbflow.store.files import strangers
from nbflow.store.known import Asked
from nbflow.store.layout import Layout
from nbflow.store.lease import LIFE

# A reference inside a stored value, as values/codec.py writes it.
_REFERENCE = re.compile(rb'"uri":"([^"\\]+)","hash":"([0-9a-f]{64})"')
_SAFE = re.compile(r"[\w\-][\w.\-]*/[\w\-][\w.\-]*/[0-9a-f]{16}\.[a-z0-9]{1,12}")

SETTLED = timedelta(hours=1)
"""A file is written before its entry, so a young one that nothing names may be named in a moment."""


def stored_files(rows: Asked) -> dict[str, tuple[str, str]]:
    """Every file that values of instances that are not deleted name: its SHA-256 and the step that it is of, by URI."""
    found: dict[str, tuple[str, str]] = {}
    query = """
        select coalesce(step, kind), value
        from nb.entries
        where value >= 'a'::blob and value < 'y'::blob and contains(decode(value), 'uri')
          and created_seq not in (select created_seq from nb.entries where kind = 'deleted')
        order by seq
    """
    for step, value in rows(query):
        for uri, digest in references(value):
            found[uri] = digest, step
    return found


def references(data: bytes) -> Iterator[tuple[str, str]]:
    """URI and SHA-256 of each file that stored values in *data* name; *data* may be a stretch of a journal."""
    for uri, digest in _REFERENCE.findall(data.replace(b'\\"', b'"')):
        if _SAFE.fullmatch(name := uri.decode("utf-8", "replace")):
            yield name, digest.decode()


def trouble_of(root: Path, uri: str, digest: str) -> str | None:
    """What is wrong with a stored file, None where its content is what was stored."""
    path = root / uri
    folder = path.parent
    try:
        while folder != root:
            if folder.is_symlink():
                return "behind a symbolic link that stands in the place of a folder"
            folder = folder.parent
        if path.is_symlink() or not path.is_file():
            return "missing" if not path.is_symlink() else "a symbolic link instead"
        with path.open("rb") as file:
            return None if hashlib.file_digest(file, "sha256").hexdigest() == digest else "damaged"
    except OSError as error:
        return f"unreadable ({error.strerror})"


def leftovers(root: Path, stored: Collection[str], now: datetime) -> list[Path]:
    """Files older than SETTLED that no value names: of crashes between file and entry, and of instances long deleted."""
    return sorted(
        path for path in _files_of_instances(root) if path.relative_to(root).as_posix() not in stored and _is_settled(path, now)
    )


def half_made(layout: Layout, now: datetime) -> list[Path]:
    """Small files older than SETTLED whose maker died before it gave them their name."""
    found = [*layout.journal.glob(f".*{LIFE}"), *layout.folder.glob(f"{layout.beside('holder.json').name}.*")]
    return [path for path in found if not path.is_symlink() and _is_settled(path, now)]


def _files_of_instances(root: Path) -> Iterator[Path]:
    """What lies in the folders of instances; what stands beside them is no result: the mark for workers.

    No link is followed: one that leads out of the store would have strangers' files removed.
    """
    folders = [root] if root.is_dir() else []
    for _ in range(2):
        folders = [Path(entry) for folder in folders for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    for folder in folders:
        yield from (Path(entry) for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False))


def strange(folder: str, names: Collection[str]) -> set[str]:
    """Those of the names in a folder that are neither files nor folders: a backup leaves them out."""
    return {path.name for path, _ in strangers(Path(folder, name) for name in names)}


def empty_folders(root: Path, now: datetime) -> list[Path]:
    """Folders with nothing in them, the deepest first; a young one may be about to be filled."""
    folders = sorted((path for path in root.rglob("*") if path.is_dir() and not path.is_symlink()), reverse=True)
    return [folder for folder in folders if _is_settled(folder, now) and not any(folder.iterdir())]


def _is_settled(path: Path, now: datetime) -> bool:
    return now - datetime.fromtimestamp(path.stat().st_mtime, UTC) > SETTLED
