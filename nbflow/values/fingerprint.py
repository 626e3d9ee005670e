"""What tells one value from another without keeping it: a hash of its content, as stored (S57)."""

import hashlib
from typing import Any

from nbflow.errors import NotSerialisableError
from nbflow.values import codec
from nbflow.values.nodes import INLINE_LIMIT

_SMALL = frozenset({type(None), bool, int, float})
_ATOMS = _SMALL | {str}
_PARTS = 20_000


def fingerprint(value: Any) -> str:
    """16 hex digits, equal for values that are equal when encoded (the order of dicts ignored, S4).

    Empty for what has no stored form, and for what is over 1 MiB: nothing is said of those. A named tuple whose class cannot be
    imported, as rows of `DataFrame.itertuples()` are, counts as a tuple.
    """
    if type(value) not in _SMALL and _large(value):
        return ""
    try:
        data = codec.encode(value, None, with_preview=False, parts=_PARTS).data
    except NotSerialisableError:
        return fingerprint(tuple(tuple.__iter__(value))) if _is_named_tuple(value) else ""
    except Exception:  # noqa: BLE001 - whatever an object of the user's raises when it is looked at
        return ""
    if len(data) > INLINE_LIMIT:
        return ""
    if type(value) not in _ATOMS:
        data = codec.canonical(data).encode()
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _is_named_tuple(value: Any) -> bool:
    cls = type(value)
    return cls is not tuple and tuple in cls.__mro__ and "_fields" in cls.__dict__


def _large(value: Any) -> bool:
    """Whether it is surely over the limit: what can be known without encoding a gigabyte."""
    cls = type(value)
    try:
        if cls in (str, bytes, bytearray, list, tuple, dict, set, frozenset):
            return len(value) > INLINE_LIMIT
        library = cls.__module__.partition(".")[0]
        if library == "numpy" or library == "pyarrow":
            return int(value.nbytes) > INLINE_LIMIT
        if library == "pandas":
            return len(value) > _PARTS or int(value.size) * 8 > INLINE_LIMIT
        if library == "polars":
            return int(value.estimated_size()) > INLINE_LIMIT
    except Exception:  # noqa: BLE001 - then the encoder decides
        return False
    return False
