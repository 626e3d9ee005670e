"""Blocks of a DuckDB file that a death left half written, and how they are made good.

DuckDB keeps where everything is in blocks of metadata, 64 parts each. A checkpoint fills free parts of them and writes such a
block again to the same place, just before the header that makes the new parts count. Whoever dies in the middle of that write
leaves pages of the old block beside pages of the new one. No part that the header names differs between the two, so all that
counts is there; only the sum over the block belongs to neither, and DuckDB refuses to open the file. The block is given the sum
of what it holds, and DuckDB goes on from the header and its log, as after any other death in a checkpoint.
"""

import logging
import os
import re
import struct
from collections.abc import Iterable, Iterator

import duckdb

from nbflow.store.database import NAME, connect, quoted
from nbflow.store.files import open_own
from nbflow.store.layout import Layout
from nbflow.system import read_at, write_at

_HEADERS = 3 * 4096  # before the blocks
_BLOCK_SIZE_AT = 4096 + 40
_SUM = 8  # bytes, before what they are the sum of
_REFUSED = re.compile(r"computed checksum (\d+) does not match stored checksum (\d+) in block at location (\d+)")
# What DuckDB writes into its log before it writes metadata and header: "a checkpoint, to this place", and "so far".
_BEGUN = re.compile(rb"d\x00ce\x00.{0,24}?\xff\xff\xff\xff\x05\x00{7}.{8}d\x00d\xff\xff\Z", re.DOTALL)
_TAIL = 80
_MASK = (1 << 64) - 1

_log = logging.getLogger("nbflow")


def in_checkpoint(layout: Layout) -> bool:
    """Whether the file was left in the middle of a checkpoint, as far as DuckDB's log tells.

    A log without a byte is one, too: a large commit is a checkpoint of its own, without a word in the log.
    """
    try:
        descriptor = open_own(layout.wal, os.O_RDONLY)
    except OSError:
        return False
    try:
        size = os.fstat(descriptor).st_size
        return not size or _BEGUN.search(read_at(descriptor, _TAIL, max(0, size - _TAIL))) is not None
    finally:
        os.close(descriptor)


def explains(layout: Layout, refusal: str) -> bool:
    """Whether DuckDB's refusal of a file is of a block that is made good when an engine opens it."""
    return in_checkpoint(layout) and _refused(layout, refusal) is not None


def make_good(layout: Layout) -> None:
    """Give half-written blocks of metadata their sums; does nothing to a file that was left in any other way."""
    if not in_checkpoint(layout):
        return
    given: dict[int, int] = {}
    while True:
        try:
            places = _metadata(layout)
        except duckdb.Error as error:
            place = _refused(layout, str(error))
            if place is None or place in given:
                break  # something else is wrong with it; who attaches it hears what
            given[place] = _give_sum(layout, place)
            continue
        for place in _bad(layout, places):
            given[place] = _give_sum(layout, place)
        for place in given.keys() - set(places):
            _put_sum(layout, place, given.pop(place))  # no death in a checkpoint does that: it stays refused
        break
    for place, former in given.items():
        _log.info("%s: a death left the block at byte %d half written; its sum was %d", layout.file, place, former)


def _metadata(layout: Layout) -> list[int]:
    """Where the blocks of metadata are, as DuckDB knows them; reading changes neither file nor log."""
    connection = connect()
    try:
        connection.execute(f"attach {quoted(layout.file)} as {NAME} (type duckdb, read_only)")
        rows = connection.execute(f"select distinct block_id from pragma_metadata_info('{NAME}')").fetchall()  # noqa: S608
    finally:
        connection.close()
    size = _block_size(layout)
    return [_HEADERS + number * size for (number,) in rows]


def _refused(layout: Layout, refusal: str) -> int | None:
    """Where the block begins that DuckDB speaks of, None unless it is one whose sum is wrong in the way that it says."""
    found = _REFUSED.search(refusal)
    if found is None:
        return None
    place = int(found[3])
    sums = _sums(layout, place) if place >= _HEADERS and (place - _HEADERS) % _block_size(layout) == 0 else None
    return place if sums == (int(found[1]), int(found[2])) else None


def _bad(layout: Layout, places: Iterable[int]) -> Iterator[int]:
    for place in places:
        sums = _sums(layout, place)
        if sums is not None and sums[0] != sums[1]:
            yield place


def _give_sum(layout: Layout, place: int) -> int:
    """Write the sum of what a block holds; gives the one that was there."""
    sums = _sums(layout, place)
    assert sums is not None  # it was found bad, so it is there
    _put_sum(layout, place, sums[0])
    return sums[1]


def _put_sum(layout: Layout, place: int, number: int) -> None:
    descriptor = open_own(layout.file, os.O_RDWR)
    try:
        write_at(descriptor, struct.pack("<Q", number), place)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _block_size(layout: Layout) -> int:
    data = _read(layout, _BLOCK_SIZE_AT, 8)
    size: int = struct.unpack("<Q", data)[0] if len(data) == 8 else 0
    return size if 4096 <= size <= 1 << 20 else 1 << 20


def _sums(layout: Layout, place: int) -> tuple[int, int] | None:
    """The sum of what a block holds and the one that it says, None where it is not whole."""
    size = _block_size(layout)
    data = _read(layout, place, size)
    return (sum_of(data[_SUM:]), int(struct.unpack_from("<Q", data)[0])) if len(data) == size else None


def sum_of(data: bytes) -> int:
    """DuckDB's sum over the content of a block."""
    total = 5381
    for (word,) in struct.iter_unpack("<Q", data):
        total ^= (word * 0xBF58476D1CE4E5B9) & _MASK
    return total


def _read(layout: Layout, start: int, size: int) -> bytes:
    try:
        descriptor = open_own(layout.file, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return read_at(descriptor, size, start)
    finally:
        os.close(descriptor)
