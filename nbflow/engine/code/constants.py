"""Small constants: what counts by value where code reads it (S56)."""

from types import NoneType
from typing import Any

SMALL = 1024  # bytes of text; the rule says 1 kB
_BITS = 8 * SMALL
# By id: asking a class of the user's for its hash, or whether it is equal, may call what he wrote.
_PLAIN = frozenset(map(id, (NoneType, bool, int, float, complex, str, bytes)))
_DEPTH = 8


def is_small(value: object, depth: int = _DEPTH) -> bool:
    """Whether it is None, a bool, a number, a text or bytes of 1 kB at most, or a tuple of them; exact types only."""
    cls = type(value)
    if id(cls) in _PLAIN:
        if cls is str or cls is bytes:
            return len(value) <= SMALL  # type: ignore[arg-type]
        return cls is not int or value.bit_length() <= _BITS  # type: ignore[attr-defined]
    return cls is tuple and depth > 0 and len(value) <= SMALL and all(is_small(item, depth - 1) for item in value)  # type: ignore[arg-type, attr-defined]


def token(value: Any) -> str:
    """Text that is the same for the same constant of the same type, and for no other."""
    if type(value) is tuple:
        return f"tuple:({','.join(map(token, value))})"
    if type(value) is int:
        return f"int:{value:x}"  # Python refuses to write very long integers in decimal
    return f"{type(value).__name__}:{value!r}"


def texts_of(value: Any) -> list[str]:
    """The texts in it, as a program would write them."""
    if type(value) is tuple:
        return [text for item in value for text in texts_of(item)]
    if type(value) is str:
        return [value]
    return [repr(value)[2:-1]] if type(value) is bytes else []
