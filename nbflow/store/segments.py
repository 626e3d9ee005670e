"""Read journals back: which files a journal has, and the stretch of good lines from a position on.

Positions count bytes from the engine's start; a file is named by the position of its first byte. Behind the last line there
may be zeros, `AHEAD` at most, which are none of the journal: no line holds a zero byte.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nbflow.errors import StoreCorruptError, StoreVersionError
from nbflow.store import lines
from nbflow.store.files import open_own
from nbflow.system import read_at, sync_data

SUFFIX = ".seg"
AHEAD = bytes(64 * 1024)
_CHUNK = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Segment:
    """One file: the bytes from *first* to *end* of a journal."""

    path: Path
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """Good lines of a journal from *start* to *end*; *last* where nothing follows now."""

    data: bytes
    start: int
    end: int
    last: bool


def segment_path(folder: Path, engine: str, first: int) -> Path:
    """The file of a journal that begins at *first*."""
    return folder / f"{engine}.{first:015d}{SUFFIX}"


def segments(folder: Path, engine: str) -> list[Segment]:
    """The files of a journal in order; each ends where the next begins, whatever it holds beyond."""
    found = []
    prefix = f"{engine}."
    for entry in _listed(folder):
        if entry.name.startswith(prefix) and entry.name.endswith(SUFFIX) and not entry.is_symlink():
            first = entry.name[len(prefix) : -len(SUFFIX)]
            if first.isdigit():
                try:
                    found.append((int(first), entry.path, entry.stat().st_size))
                except FileNotFoundError:
                    continue  # its owner has just removed it: it is in the DuckDB file
    found.sort()
    ends = [first for first, _, _ in found[1:]]
    return [
        Segment(Path(path), first, min(first + size, ends[i]) if i < len(ends) else first + _used(path, size))
        for i, (first, path, size) in enumerate(found)
    ]


def _used(path: str, size: int) -> int:
    """How many bytes of a file are not the zeros at its end; one that can't be opened is for its reader to report."""
    start = max(size - len(AHEAD), 0)
    try:
        return start + len(_read(Segment(Path(path), 0, size), start, size).rstrip(b"\0"))
    except OSError:
        return size


def engines(folder: Path) -> set[str]:
    """The ids of engines that have a lock file or a journal here."""
    names = (entry.name for entry in _listed(folder))
    return {name.partition(".")[0] for name in names if name.endswith((SUFFIX, ".nbj")) and not name.startswith(".")}


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []  # somebody removed the folder: no journal is there, and whoever misses one says so


def known_good(folder: Path, engine: str, start: int, end: int, rows: int) -> Stretch:
    """Lines of one's own journal, which are good up to *end* because it was synced."""
    parts: list[bytes] = []
    position, left = start, rows
    for segment in segments(folder, engine):
        if not (segment.first <= position < segment.end) or position >= end or not left:
            continue
        data, count, _ = _lines(segment, position, min(segment.end, end), left, lines.line_end)
        parts.append(data)
        position += len(data)
        left -= count
        if position < segment.end:
            break
    return Stretch(b"".join(parts), start, position, last=position >= end or position == start)


def readable(
    folder: Path, engine: str, start: int, rows: int, *, store: str, living: bool, promised: int | None = 0
) -> Stretch:
    """Lines of somebody's journal, from *start* to its last good line or *rows* lines on.

    Bytes that are not there although they were *promised* are for the caller to notice: the stretch ends before. None is for
    a lock that does not tell what was promised.

    Raises:
        StoreCorruptError: a line of a dead engine's journal is bad that had been synced, or a file of it is another one.
        StoreVersionError: a newer nbflow wrote it.
    """
    found = segments(folder, engine)
    parts: list[bytes] = []
    position, left = start, rows
    last = True
    for number, segment in enumerate(found):
        if segment.end <= position:
            continue
        if segment.first > position:
            if living:  # its owner has removed what was loaded, or is beginning a file
                break
            raise missing(folder, engine, position, segment.first)
        _check_origin(segment, engine, store)
        data, count, whole = _lines(segment, position, segment.end, left, lines.good_end, sync=living)
        parts.append(data)
        position += len(data)
        left -= count
        if not left or not whole:
            last = False
            break
        if position < segment.end:
            if not living:
                _check_end(found[number:], position, promised)
            break
    return Stretch(b"".join(parts), start, position, last)


def _lines(
    segment: Segment,
    start: int,
    stop: int,
    rows: int,
    measure: Callable[[bytes, int], tuple[int, int]],
    *,
    sync: bool = False,
) -> tuple[bytes, int, bool]:
    """Lines from *start* on, how many, and whether all up to *stop* was looked at."""
    size = _CHUNK
    while True:
        until = min(stop, start + size)
        data = _read(segment, start, until, sync=sync)
        length, count = measure(data, rows)
        if length or until == stop:
            return data[:length], count, until == stop
        size *= 4  # one line longer than that


def missing(folder: Path, engine: str, start: int, end: int) -> StoreCorruptError:
    """What to say where a journal has no file of the bytes from *start* to *end*."""
    following = segment_path(folder, engine, end)
    advice = f"put it back, or move {following.name!r} and what follows it out of the folder to go on without those entries"
    return StoreCorruptError(
        f"the journal of engine {engine} in {str(folder)!r} misses the bytes from {start} to {end}: a file of it was removed "
        f"or cut; {advice if following.exists() else 'put it back'}. Nothing was changed"
    )


def _check_end(found: list[Segment], bad: int, promised: int | None) -> None:
    """Tell the torn end of a journal from damage in its middle: what was synced had no bad line.

    Where nothing tells any more what was synced, a file without a good line at its start is no journal's end.
    """
    segment = found[0]
    synced = found[1].first if len(found) > 1 else lines.highest_synced(_read(segment, segment.first, segment.end))
    if bad < synced or (not _begins_well(segment) if promised is None else bad < promised <= segment.end):
        msg = (
            f"{str(segment.path)!r} is damaged at byte {bad - segment.first}: lines that were safely on disk cannot be read; "
            f"restore the file from a backup, or move it out of the folder to go on without its last entries. "
            f"Nothing was changed"
        )
        raise StoreCorruptError(msg)


def _begins_well(segment: Segment) -> bool:
    return bool(_lines(segment, segment.first, segment.end, 1, lines.good_end)[1])


def unread(folder: Path, engine: str, promised: int | None) -> bool:
    """Whether a dead engine's journal has a file that cannot be told to be one of a journal, torn at most at its end.

    A file that holds more than zeros has a good line at its start, wherever what comes after it was torn. Where no promise
    says that nothing is missing, each has lines, and nothing but lines before the zeros at its end.
    """
    for segment in segments(folder, engine):
        if promised is not None and _begins_well(segment):
            continue
        data = _read(segment, segment.first, segment.end)
        end, count = lines.good_end(data, len(data))
        if (not count or end < len(data)) if promised is None else data.strip(b"\0"):
            return True
    return False


def journal_end(folder: Path, engine: str) -> int:
    """Where the files of a journal end, good or not; 0 without files."""
    found = segments(folder, engine)
    return found[-1].end if found else 0


def store_of(folder: Path, engine: str) -> str | None:
    """The id of the store that a journal belongs to, None where it does not say."""
    found = segments(folder, engine)
    said = _origin(found[0]) if found else None
    return None if said is None else said.store


def _origin(segment: Segment) -> lines.Origin | None:
    return lines.origin(_read(segment, segment.first, min(segment.end, segment.first + 4096)))


def _check_origin(segment: Segment, engine: str, store: str) -> None:
    """A file that was put in the place of another is not read as that one."""
    said = _origin(segment)
    if said is None:
        return
    if said.version > lines.FORMAT:
        msg = (
            f"{str(segment.path)!r} was written by a newer nbflow (journal format {said.version}, this one knows "
            f"{lines.FORMAT}): upgrade nbflow and restart this kernel. Nothing was changed"
        )
        raise StoreVersionError(msg)
    if said.store != store or said.engine not in ("", engine) or said.at not in (-1, segment.first):
        msg = (
            f"{str(segment.path)!r} is not the file that was written there: it says that it is of store {said.store!r}, "
            f"engine {said.engine!r}, from byte {said.at} on; put the right file back, or move this one out of the folder to "
            f"go on without its entries. Nothing was changed"
        )
        raise StoreCorruptError(msg)


def count_entries(folder: Path, engine: str, start: int, end: int) -> int:
    """How many entries one's own journal holds between two positions."""
    total = 0
    while start < end:
        stretch = known_good(folder, engine, start, end, 100_000)
        if stretch.end == start:
            break
        total += stretch.data.count(b',"kind":"')
        start = stretch.end
    return total


def _read(segment: Segment, start: int, stop: int, *, sync: bool = False) -> bytes:
    try:
        descriptor = open_own(segment.path, os.O_RDWR if sync else os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        if sync:
            sync_data(descriptor)  # what is loaded must not be ahead of what lasts
        parts = []
        position = start
        while position < stop:
            part = read_at(descriptor, stop - position, position - segment.first)
            if not part:
                break
            parts.append(part)
            position += len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)
