"""The lines of a journal: JSON objects whose first member is a frame of length and checksum.

    {"f":"<length><crc>","kind":"do.finished","created_seq":1,…}      an entry
    {"f":"<length><crc>","source":"<hash>","text":"…"}                a source text
    {"f":"<length><crc>","log":{"created_seq":1,…}}                   what an attempt put out
    {"f":"<length><crc>","journal":1,"store":"<uid>","synced":4096,"engine":"<id>","at":4096}   the header of a batch

Each line is whole JSON, so DuckDB reads a stretch of a journal as it is and the frame costs no parsing of its own.
"""

import json
import zlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from nbflow.core.log import LogChunk
from nbflow.core.model import Entry
from nbflow.errors import UsageError

FORMAT = 1
FRAME = len('{"f":"0000000000000000",')
_HEADER = b'"journal":'
_SOURCE = b'"source":'
_LOG = b'"log":'


class _Line(msgspec.Struct, omit_defaults=True):
    kind: str
    created_seq: int
    token: int
    recorded_at: datetime
    step: str | None = None
    count: int | None = None
    key: str | None = None
    body: str = "{}"
    value: str | None = None
    value64: bytes | None = None
    order: int | None = None
    attempt: int | None = None
    started_at: str | None = None
    uri: str | None = None
    sensitive: bool | None = None


class _Header(msgspec.Struct):
    journal: int
    store: str
    synced: int
    engine: str = ""  # of an nbflow that did not say yet
    at: int = -1


class _Source(msgspec.Struct):
    source: str
    text: str


class _Log(msgspec.Struct):
    log: LogChunk


_encode = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(_Header).decode
_decode_line = msgspec.json.Decoder(_Line).decode
_decode_json = msgspec.json.Decoder().decode


def body_text(body: dict[str, Any]) -> str:
    """A body as JSON text."""
    try:
        return _encode(body).decode()
    except (UnicodeEncodeError, OverflowError, TypeError, ValueError):
        return json.dumps(_shown(body), ensure_ascii=False, default=str)


def _shown(value: Any) -> Any:
    """Half of a surrogate pair has no place in JSON and would break SQL over the column: bodies show it escaped."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_shown(str(key)): _shown(item) for key, item in value.items()}
        case list() | tuple():
            return [_shown(item) for item in value]
        case _:
            return value


def parse_body(text: str) -> dict[str, Any]:
    """The body that *text* is."""
    try:
        body: dict[str, Any] = _decode_json(text)
    except msgspec.DecodeError:
        body = json.loads(text)
    return body


def of_entry(entry: Entry) -> bytes:
    """An entry as JSON, not framed yet.

    Raises:
        UsageError: the name or key of the step is no text that can be stored.
    """
    text = encoded = None
    if entry.value is not None:
        try:
            text = entry.value.decode()
        except UnicodeDecodeError:
            encoded = entry.value
    try:
        return _encode(
            _Line(
                entry.kind, entry.created_seq, entry.token, entry.recorded_at, entry.step, entry.count, entry.key,
                body_text(entry.body), text, encoded, *(_NOTHING if entry.step is None else said(entry.body)),
            )
        )  # fmt: skip
    except UnicodeEncodeError as error:
        name = entry.step if entry.key is None else entry.key
        msg = f"{name!r} cannot be stored: it holds half of a surrogate pair; use ordinary text for names and keys"
        raise UsageError(msg) from error


_NOTHING: tuple[None, ...] = ()


def said(body: dict[str, Any], order: int | None = 0) -> tuple[Any, ...]:
    """What of the body has columns of its own, in the order of `_Line`; an entry of a step always says its order."""
    get = body.get
    return get("order", order), get("attempt"), get("started_at"), get("uri"), get("sensitive")


def of_source(code_hash: str, text: str) -> bytes:
    """A source text as JSON, not framed yet."""
    return _encode(_Source(code_hash, text.encode("utf-8", "backslashreplace").decode()))


def of_log(chunk: LogChunk) -> bytes:
    """A part of a log as JSON, not framed yet."""
    return _encode(_Log(chunk))


def header(store: str, synced: int, engine: str, at: int) -> bytes:
    """The first line of a batch, framed: whose it is, where it is, up to where the journal was synced when it was written."""
    return framed(_encode(_Header(FORMAT, store, synced, engine, at)))


def framed(line: bytes) -> bytes:
    """A line as it stands in the file."""
    rest = line[1:]
    return b'{"f":"%08x%08x",%b\n' % (len(rest), zlib.crc32(rest), rest)


def _good(data: bytes, start: int, end: int) -> bool:
    if data[start : start + 6] != b'{"f":"' or data[start + 22 : start + FRAME] != b'",':
        return False
    try:
        length, crc = int(data[start + 6 : start + 14], 16), int(data[start + 14 : start + 22], 16)
    except ValueError:
        return False
    return start + FRAME + length == end and zlib.crc32(data[start + FRAME : end]) == crc


def good_end(data: bytes, limit: int) -> tuple[int, int]:
    """Where the good lines at the start of *data* end, and how many they are, *limit* at most."""
    start = lines = 0
    while lines < limit:
        end = data.find(b"\n", start)
        if end < 0 or not _good(data, start, end):
            break
        start = end + 1
        lines += 1
    return start, lines


def line_end(data: bytes, limit: int) -> tuple[int, int]:
    """The same for bytes that are known to be good."""
    start = lines = 0
    while lines < limit:
        end = data.find(b"\n", start)
        if end < 0:
            break
        start = end + 1
        lines += 1
    return start, lines


def highest_synced(data: bytes) -> int:
    """The highest position that any good header in *data* calls synced, wherever damage lies between; -1 for none."""
    highest, start = -1, 0
    while (end := data.find(b"\n", start)) >= 0:
        if data[start + FRAME : start + FRAME + len(_HEADER)] == _HEADER and _good(data, start, end):
            highest = max(highest, _decode_header(b"{" + data[start + FRAME : end]).synced)
        start = end + 1
    return highest


@dataclass(frozen=True, slots=True)
class Origin:
    """What a header says of itself: of which store and engine it is, where it stands, in which format.

    The engine is empty and the place -1 where an nbflow wrote it that did not say.
    """

    store: str
    engine: str
    at: int
    version: int


def origin(data: bytes) -> Origin | None:
    """What the header says that *data* begins with, None where that is no header."""
    end = data.find(b"\n")
    if end < 0 or data[FRAME : FRAME + len(_HEADER)] != _HEADER or not _good(data, 0, end):
        return None
    header = _decode_header(b"{" + data[FRAME:end])
    return Origin(header.store, header.engine, header.at, header.journal)


def holds_sources(data: bytes) -> bool:
    """Whether source texts may be among these lines."""
    return b'",' + _SOURCE in data


def holds_logs(data: bytes) -> bool:
    """Whether parts of logs may be among these lines."""
    return b'",' + _LOG in data


def is_entry(data: bytes, start: int) -> bool:
    """Whether the line at *start* is an entry."""
    return data[start + FRAME : start + FRAME + 7] == b'"kind":'


def instance_entries(data: bytes) -> list[tuple[str, int, int, datetime, str]]:
    """What tells apart the entries in *data* that are about an instance itself, not a step of it."""
    found = []
    start = 0
    while (end := data.find(b"\n", start)) >= 0:
        if is_entry(data, start):
            line = _decode_line(b"{" + data[start + FRAME : end])
            if line.step is None:
                found.append((line.kind, line.created_seq, line.token, line.recorded_at, line.body))
        start = end + 1
    return found
