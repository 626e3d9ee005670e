"""What a row of the history must be to be an entry: whoever folds entries relies on the types that are checked here.

The file may come from a stranger. Unknown members of a body are let through, for newer versions write them.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec

from nbflow.core.maps import ITEM_KINDS
from nbflow.core.model import Kind
from nbflow.errors import StoreCorruptError
from nbflow.store import lines

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONG = 1 << 20
"""Characters of a body beyond which its preview is weighed: what nbflow writes is much smaller."""
_DEEPEST = 410
"""Levels of a body: values and schemas that nbflow records are not as deep, and what shows one in Python must not reach the
limit of the call stack. Readers of JSON have limits of their own, which differ with the version of Python."""
_NAME = 4_096
_EXACT = 4 * 10**15
"""Microseconds since 1970, in the year 2096, up to which a float of as many seconds tells them apart."""
_AHEAD = 100_000
"""By so much the index of an item may be ahead of its entry's seq: each before it has an entry, or is about to."""

_NO_SIGNS = bytes(set(range(256)) - set(b'{}[]"'))
_AS_LISTS = bytes.maketrans(b"{}", b"[]")

_Moment = Annotated[datetime, msgspec.Meta(tz=True)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Seconds = Annotated[float, msgspec.Meta(ge=-1e10, le=1e10)]
_Few = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
_Map = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9} ")]

_NULLS = frozenset({"schema", "prompt", "rollback", "error", "config", "total"})


class _Error(msgspec.Struct):
    type: str = ""
    message: str = ""
    traceback: str = ""


class _Preview(msgspec.Struct):
    kind: str = ""
    line: str = ""


class _Retries(msgspec.Struct):
    limit: int | float | None = 0


class _Config(msgspec.Struct):
    retries: _Retries | None = None


class _Served(msgspec.Struct):
    code_hash: str = ""
    bound: dict[str, Any] = {}


class _Undone(msgspec.Struct):
    map: _Map
    keys: list[str]


class _Body(msgspec.Struct):
    """What any body may hold, each of its type."""

    order: _Number | None = None
    attempt: _Number | None = None
    number: _Number | None = None
    total: _Number | None = None
    index: _Number | None = None
    keep_below: _Number | None = None
    due_at: _Moment | None = None
    started_at: _Moment | None = None
    retry_at: _Moment | None = None
    sent_at: _Moment | None = None
    workflow: str | None = None
    id: str | None = None
    notebook: str | None = None
    code_hash: str | None = None
    reach: str | None = None
    why: str | None = None
    by: str | None = None
    type: str | None = None
    event_id: str | None = None
    event_type: str | None = None
    prompt: str | None = None
    output_type: str | None = None
    uri: str | None = None
    json: str | None = None
    args_hash: str | None = None
    hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{0,16}$")] | None = None
    parent: str | dict[str, Any] | None = None
    preview: _Preview | None = None
    error: _Error | None = None
    config: _Config | None = None
    bound: dict[str, Any] | None = None
    gone: tuple[_Few, _Few] | None = None
    served: _Served | None = None
    stale: list[str] | None = None
    schedule: dict[str, Any] | None = None
    schema: Any = None
    unreached: list[str] | None = None
    maps: list[_Map] | None = None
    undone: _Undone | None = None
    rate: tuple[_Few, float] | None = None
    out: _Few | list[str] | None = None
    shift_s: _Seconds | None = None
    rollback: bool | tuple[str, _Error | None] | None = None
    sensitive: bool | None = None
    anew: bool | None = None
    terminate: bool | None = None
    fixed: bool | None = None


class _Created(_Body, kw_only=True):
    workflow: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_\-]{0,255}\Z")]
    id: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.\-]{0,255}\Z")]


class _Claimed(_Body, kw_only=True):
    engine: str
    pid: int
    host: str
    folder: str


class _Event(_Body, kw_only=True):
    event_id: str
    type: str


class _Due(_Body, kw_only=True):
    due_at: _Moment


class _Wait(_Due, kw_only=True):
    event_type: str


class _Ended(_Body, kw_only=True):
    rollback: tuple[str, _Error | None] | None = None


class _Restarted(_Body, kw_only=True):
    item: tuple[str, _Number, str] | None = None


_CHECKED = {
    Kind.CREATED: _Created,
    Kind.CLAIMED: _Claimed,
    Kind.EVENT: _Event,
    Kind.SLEEP_STARTED: _Due,
    Kind.WAIT_STARTED: _Wait,
    Kind.COMPLETED: _Ended,
    Kind.ERRORED: _Ended,
    Kind.TERMINATED: _Ended,
    Kind.RESTARTED: _Restarted,
}
_check = {kind: msgspec.json.Decoder(_CHECKED.get(kind, _Body)).decode for kind in Kind}


def checked(kind: Kind, row: Sequence[Any]) -> tuple[datetime, dict[str, Any]]:
    """The time and the body of a row (seq, microseconds, created_seq, token, kind, step, count, key, body, value), checked.

    Raises:
        StoreCorruptError: no nbflow has written this row.
    """
    seq, micros, created_seq, token, _, step, count, key, text, _ = row
    try:
        if None in (seq, micros, created_seq, token) or seq < 0 or created_seq < 0 or token < 0:
            raise ValueError("it lacks what every entry has")
        recorded_at = _time(micros)
        if len(text) > _DEEPEST:
            _check_depth(text)
        body = lines.parse_body(text)
        _check_types(kind, text, body)
        if "null" in text:  # as good as left out, where nbflow never writes it
            body = {name: value for name, value in body.items() if value is not None or name in _NULLS}
        _check_place(kind, step, count, key)
        if kind in ITEM_KINDS and key is not None and "index" not in body and not _is_index(key, seq):
            raise ValueError("the key of its item is no index that can be")
        return recorded_at, body if len(text) <= _LONG else _weighed(body)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        msg = f"entry {seq} of the history ({kind}) is not as nbflow writes it: {error}; restore the file from a backup"
        raise StoreCorruptError(msg) from error


def _time(micros: int) -> datetime:
    if 0 <= micros < _EXACT:
        return datetime.fromtimestamp(micros / 1_000_000, UTC)  # in half the time
    return _EPOCH + timedelta(microseconds=micros)


def _check_depth(text: str) -> None:
    if text.count("{") + text.count("[") <= _DEEPEST:
        return
    unescaped = text.encode("utf-8", "surrogatepass").replace(b"\\\\", b"").replace(b'\\"', b"")
    left = b"".join(unescaped.translate(_AS_LISTS, _NO_SIGNS).split(b'"')[::2])  # what is in no string
    for _ in range(_DEEPEST):
        if not left:
            return
        left = left.replace(b"[]", b"")  # a level less
    if left:
        raise ValueError("it is nested more deeply than anything that nbflow records")


def _check_types(kind: Kind, text: str, body: Any) -> None:
    try:
        _check[kind](text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:  # what only the other reader of JSON takes: nan, or numbers without end
        msgspec.convert(body, _CHECKED.get(kind, _Body))


def _check_place(kind: Kind, step: str | None, count: int | None, key: str | None) -> None:
    if ("." in kind) is (step is None):
        raise ValueError("it is of a step, and none is named" if step is None else "a step is named, and it is of none")
    if (count is not None and not 0 < count < 2**31) or len(step or "") > _NAME or len(key or "") > 2 * _NAME:
        raise ValueError("the name, number or key of its step is none")


def _is_index(key: str, seq: int) -> bool:
    return key.isascii() and key.isdigit() and len(key) < 16 and int(key) <= seq + _AHEAD


def _weighed(body: dict[str, Any]) -> dict[str, Any]:
    """The same without a preview that no display could show."""
    preview = body.get("preview")
    if preview is not None and (size := len(json.dumps(preview))) > _LONG:
        line = f"(a preview of {size:,} bytes, not shown)"
        body["preview"] = {"kind": "text", "text": line, "line": line}
    return body
