"""What a text may say that a JSON schema gives a format, read with what Python brings (S39).

The readers of the libraries that jsonschema would ask are not used: a text that fits in one process would not in another.
"""

import base64
import binascii
import functools
import ipaddress
import re
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

Reader = Callable[[str], object]

# Each of these takes time in proportion to the text: no part can begin where the one before it could have gone on.
_NUMBER = r"\d+([.,]\d+)?"
_DURATION = rf"[+-]?P(?=[\dT])(\d+Y)?(\d+M)?({_NUMBER}W)?({_NUMBER}D)?(T(?=\d)({_NUMBER}H)?({_NUMBER}M)?({_NUMBER}S)?)?"
_CLOCK = r"[+-]?(\d+ ?d(ays?)?,? )?[+-]?\d+:\d\d(:\d\d([.,]\d+)?)?"  # how Python writes a timedelta
_EMAIL = r'("[^"]+"|[^\s@"]+)@[^\s@]+'
_LABEL = r"(?!-)[a-z\d-]{1,63}(?<!-)"
_ANY_LABEL = r"(?!-)[^\s.@:/_<>]{1,63}(?<!-)"
_POINTER = r"(/([^~/]|~[01])*)*"
_ABSOLUTE = r"[a-z][a-z\d+.-]*:[^\s<>\x00-\x1f\x7f]+"


def _matching(pattern: str) -> Reader:
    fits = re.compile(pattern, re.IGNORECASE).fullmatch

    def read(text: str) -> object:
        return _must(fits(text))

    return read


def _must(found: object) -> object:
    if not found:
        raise ValueError
    return found


def _uuid_of(version: int) -> Reader:
    return lambda text: _must(UUID(text).version == version)


def _hostname(label: str) -> Reader:
    named = _matching(rf"{label}(\.{label})*\.?")
    return lambda text: _must(len(text) <= 254 and named(text))


def _base64(text: str, alphabet: bytes = b"+/") -> object:
    """Lines of it, too, as mail breaks it."""
    return base64.b64decode(re.sub(r"[\r\n]+", "", text).encode("ascii"), alphabet, validate=True)


_ADDRESSES: dict[str, Reader] = {
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "ipv4network": ipaddress.IPv4Network,
    "ipv6network": ipaddress.IPv6Network,
    "ipv4interface": ipaddress.IPv4Interface,
    "ipv6interface": ipaddress.IPv6Interface,
    "ipvanyaddress": ipaddress.ip_address,
    "ipvanynetwork": ipaddress.ip_network,
    "ipvanyinterface": ipaddress.ip_interface,
    "hostname": _hostname(_LABEL),
    "idn-hostname": _hostname(_ANY_LABEL),
    "email": _matching(_EMAIL),
    "idn-email": _matching(_EMAIL),
    "name-email": _matching(rf"{_EMAIL}|[^<>]*<{_EMAIL.replace('@]+', '@>]+')}>"),
    **dict.fromkeys(("uri", "iri", "multi-host-uri"), _matching(_ABSOLUTE)),
    **dict.fromkeys(("uri-reference", "iri-reference"), _matching(r"[^\s<>\x00-\x1f\x7f]*")),
    "uri-template": _matching(r"([^\s{}]|\{[^\s{}]+\})*"),
}

# "uuid4" and its like, the addresses of networks, "decimal" and "partial-time" are what pydantic and msgspec say of types.
READERS: dict[str, Reader] = {
    "date": date.fromisoformat,
    "date-time": lambda text: datetime.fromisoformat(text.upper()),  # RFC 3339 writes "t" and "z" as well
    "time": lambda text: time.fromisoformat(text.upper()),
    "partial-time": lambda text: _must(time.fromisoformat(text.upper()).tzinfo is None),
    "duration": _matching(f"{_DURATION}|{_CLOCK}"),
    "decimal": Decimal,
    "uuid": UUID,
    **{f"uuid{version}": _uuid_of(version) for version in (1, 3, 4, 5, 6, 7, 8)},
    **_ADDRESSES,
    "base64": _base64,
    "base64url": functools.partial(_base64, alphabet=b"-_"),
    "json-pointer": _matching(_POINTER),
    "relative-json-pointer": _matching(rf"(0|[1-9]\d*)(#|{_POINTER})"),
    "regex": lambda text: _must(len(text) <= 10_000) and re.compile(text),  # making one ready takes its time
}

ENCODINGS: dict[str, Reader] = {
    "base64": _base64,
    "base64url": READERS["base64url"],
    "base32": base64.b32decode,
    "base16": functools.partial(base64.b16decode, casefold=True),
}

_UNREADABLE = (ValueError, InvalidOperation, re.error, OverflowError, RecursionError, binascii.Error)


def fits(readers: dict[str, Reader], name: object, value: Any) -> bool:
    """Whether a value is what *name* names; what no reader is known for, and what is no text, may be anything."""
    read = readers.get(name) if isinstance(name, str) else None
    if read is None or not isinstance(value, str):
        return True
    try:
        read(value)
    except _UNREADABLE:
        return False
    return True
