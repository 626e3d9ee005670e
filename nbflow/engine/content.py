"""The hash of arguments and map items by their encoded content (S57)."""

import hashlib
from typing import Any

from nbflow.values import codec
from nbflow.values.artifacts import ArtifactRef

LIMIT = 1 << 20  # encoded bytes; what is larger is not compared
_LIGHT = 16 << 10
_TABLE = 1 << 18  # a table's strings take more than it says
_LIBRARIES = frozenset({"numpy", "pandas", "polars", "pyarrow"})


class Contents:
    """Hashes of values; of larger ones that come again, the same object is not encoded twice."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int, bytes | None]] = {}

    def of(self, values: tuple[Any, ...]) -> str | None:
        """16 hex digits for these values, None where their encoded content is too much to look at."""
        encoded = []
        for value in values:
            part = self._of(value)
            if part is None:
                return None
            encoded.append(part)
        return _digest(b"".join(b"%d:%b" % (len(part), part) for part in encoded))

    def _of(self, value: Any) -> bytes | None:
        size = _size(value, LIMIT)
        if size > LIMIT:
            return None
        if size < _LIGHT:
            return _encoded(value)
        known = self._known.get(id(value))
        if known is not None and known[0] is value and known[1] == size:
            return known[2]
        hashed = content_hash(value)
        found = None if hashed is None else hashed.encode()
        if len(self._known) > 64:
            self._known.clear()
        self._known[id(value)] = value, size, found
        return found


def content_hash(value: Any) -> str | None:
    """Hash one value by its encoded content, by the name of its type where it has no encoding; None above 1 MiB."""
    data = _encoded(value) if _size(value, LIMIT) <= LIMIT else None
    return None if data is None else _digest(data)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _encoded(value: Any) -> bytes | None:
    if type(value) is ArtifactRef:
        return f"a{value.uri}".encode()  # named by content
    try:
        data = codec.encode(value, None, with_preview=False).data
    except Exception:  # noqa: BLE001 - a model, a client, a function: what it is counts, not what it holds
        cls = type(value)
        return f"?{cls.__module__}.{cls.__qualname__}".encode()
    return None if len(data) > LIMIT else data


def _size(value: Any, budget: int) -> int:
    """About how many bytes a value takes, counted up to *budget*."""
    cls = type(value)
    if cls is str or cls is bytes or cls is bytearray:
        return len(value)
    if cls is dict:
        return _sizes([*value.keys(), *value.values()] if len(value) < budget // 8 else (), budget, len(value))
    if cls in (list, tuple, set, frozenset):
        return _sizes(value if len(value) < budget // 2 else (), budget, len(value))
    if cls.__module__.partition(".")[0] in _LIBRARIES:
        return _size_of_table(value, budget)
    return 8


def _sizes(items: Any, budget: int, count: int) -> int:
    total = 2 * count
    for item in items:
        if total > budget:
            break
        total += _size(item, budget - total)
    return total


def _size_of_table(value: Any, budget: int) -> int:
    if callable(getattr(value, "memory_usage", None)) and hasattr(value, "iloc"):
        used = value.memory_usage()
        return int(used if isinstance(used, int) else used.sum()) * (budget // _TABLE)
    if callable(getattr(value, "estimated_size", None)):
        return int(value.estimated_size())
    size = getattr(value, "nbytes", 8)
    return size if isinstance(size, int) else 8
