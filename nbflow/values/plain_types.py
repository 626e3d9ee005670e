"""Exact codecs of Python's own numbers, texts, containers and paths."""

import collections
import math
import struct
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any
from uuid import UUID, SafeUUID

import msgspec

from nbflow.errors import UndecodableError
from nbflow.values.nodes import (
    INLINE_LIMIT,
    LARGEST,
    MAX_BYTES,
    SMALLEST,
    Node,
    Reader,
    Refused,
    Writer,
    decodes,
    encodes,
    forms,
    from_base64,
    key_piece,
    to_base64,
    too_large,
    type_name,
)

_sorted_text = msgspec.json.Encoder(order="sorted").encode
_NAN = struct.pack(">d", math.nan)
Tagged = dict[str, Any]
FormOf = Callable[[Node], Any]


@encodes(type(None), bool)
def _atom(_writer: Writer, value: Any) -> Node:
    return value


@encodes(int)
def _int(_writer: Writer, value: int) -> Node:
    # 64 bits is what every reader of JSON keeps; hexadecimal has no limit on digits as decimal has
    return value if SMALLEST <= value <= LARGEST else {"$": "int", "v": f"{value:x}"}


@decodes("int")
def _int_back(_reader: Reader, node: Tagged) -> int:
    return int(node["v"], 16)


@forms("int")
def _int_form(_form: FormOf, node: Tagged) -> str:
    value = int(node["v"], 16)
    return str(value) if value.bit_length() < 14_000 else f"0x{node['v']}"


@encodes(float)
def _float(_writer: Writer, value: float) -> Node:
    if math.isfinite(value):
        return value
    node = {"$": "float", "v": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
    if math.isnan(value) and (bits := struct.pack(">d", value)) != _NAN:
        node["bits"] = bits.hex()
    return node


@decodes("float")
def _float_back(_reader: Reader, node: Tagged) -> float:
    if "bits" in node:
        (value,) = struct.unpack(">d", bytes.fromhex(node["bits"]))
        return float(value)
    return float(node["v"])


@forms("float")
def _float_form(_form: FormOf, node: Tagged) -> str:
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[node["v"]]


@encodes(complex)
def _complex(writer: Writer, value: complex) -> Node:
    return {"$": "complex", "v": [writer.node(value.real), writer.node(value.imag)]}


@decodes("complex")
def _complex_back(reader: Reader, node: Tagged) -> complex:
    real, imag = map(reader.value, node["v"])
    return complex(real, imag)


@forms("complex")
def _complex_form(form: FormOf, node: Tagged) -> Any:
    return [form(part) for part in node["v"]]


@encodes(str)
def _str(_writer: Writer, value: str) -> Node:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"$": "str", "v": to_base64(value.encode("utf-8", "surrogatepass"))}
    return value


@decodes("str")
def _str_back(_reader: Reader, node: Tagged) -> str:
    return from_base64(node["v"]).decode("utf-8", "surrogatepass")


@forms("str")
def _str_form(_form: FormOf, node: Tagged) -> str:
    return from_base64(node["v"]).decode("utf-8", "replace")


@encodes(bytes, bytearray)
def _bytes(writer: Writer, value: bytes | bytearray) -> Node:
    tag = "bytes" if type(value) is bytes else "bytearray"
    if len(value) > MAX_BYTES:
        raise too_large(tag, len(value))
    if writer.files is not None and len(value) > INLINE_LIMIT:
        return writer.file(tag, "bin", bytes(value))
    return {"$": tag, "v": to_base64(bytes(value))}


def _content(reader: Reader, node: Tagged) -> bytes:
    if node["$"] != "file":
        return from_base64(node["v"])
    with reader.open(node) as file:
        return file.read()


@decodes("bytes")
def _bytes_back(reader: Reader, node: Tagged) -> bytes:
    return _content(reader, node)


@decodes("bytearray")
def _bytearray_back(reader: Reader, node: Tagged) -> bytearray:
    return bytearray(_content(reader, node))


@forms("bytes", "bytearray")
def _bytes_form(_form: FormOf, node: Tagged) -> Any:
    return node.get("v", node.get("uri"))


@encodes(list)
def _list(writer: Writer, value: list[Any]) -> Node:
    return writer.items(value)


@encodes(tuple)
def _tuple(writer: Writer, value: tuple[Any, ...]) -> Node:
    return {"$": "tuple", "v": writer.items(value)}


@decodes("tuple")
def _tuple_back(reader: Reader, node: Tagged) -> tuple[Any, ...]:
    return tuple([reader.value(part) for part in node["v"]])


@encodes(collections.deque)
def _deque(writer: Writer, value: collections.deque[Any]) -> Node:
    return {"$": "deque", "v": writer.items(value), "max": value.maxlen}


@decodes("deque")
def _deque_back(reader: Reader, node: Tagged) -> collections.deque[Any]:
    return collections.deque((reader.value(part) for part in node["v"]), node["max"])


@forms("tuple", "deque", "set", "frozenset", "slice")
def _list_form(form: FormOf, node: Tagged) -> list[Any]:
    return [form(part) for part in node["v"]]


@encodes(set, frozenset)
def _set(writer: Writer, value: set[Any] | frozenset[Any]) -> Node:
    nodes = [writer.child(f"{{<{type_name(type(member))}>}}", member) for member in value]
    # sorted, so that equal sets are equal when encoded: the order of a set differs between processes
    nodes.sort(key=_sorted_text)
    return {"$": "set" if type(value) is set else "frozenset", "v": nodes}


@decodes("set")
def _set_back(reader: Reader, node: Tagged) -> set[Any]:
    return {reader.value(part) for part in node["v"]}


@decodes("frozenset")
def _frozenset_back(reader: Reader, node: Tagged) -> frozenset[Any]:
    return frozenset([reader.value(part) for part in node["v"]])


def _pairs(writer: Writer, items: Iterable[tuple[Any, Any]]) -> list[list[Node]]:
    pairs = []
    for key, value in items:
        piece = key_piece(key)
        pairs.append([writer.child(f".keys(){piece}", key), writer.child(piece, value)])
    return pairs


@encodes(dict)
def _dict(writer: Writer, value: dict[Any, Any]) -> Node:
    nodes: dict[str, Node] = {}
    for key in value:
        if type(key) is not str or key == "$" or type(_str(writer, key)) is not str:
            return {"$": "dict", "v": _pairs(writer, value.items())}
    for key, part in value.items():
        try:
            nodes[key] = writer.node(part)
        except Refused as refused:
            refused.pieces.append(key_piece(key))
            raise
    return nodes


@encodes(collections.OrderedDict, collections.Counter)
def _dict_kind(writer: Writer, value: dict[Any, Any]) -> Node:
    tag = "Counter" if type(value) is collections.Counter else "OrderedDict"
    if extra := vars(value):
        raise Refused(tag, f"it has attributes of its own ({', '.join(map(repr, extra))})", "return a plain dict")
    return {"$": tag, "v": _pairs(writer, value.items())}


def _pairs_back(reader: Reader, node: Tagged) -> Iterable[tuple[Any, Any]]:
    return [(reader.value(key), reader.value(value)) for key, value in node["v"]]


@decodes("dict")
def _dict_back(reader: Reader, node: Tagged) -> dict[Any, Any]:
    return dict(_pairs_back(reader, node))


@decodes("OrderedDict")
def _ordered_back(reader: Reader, node: Tagged) -> collections.OrderedDict[Any, Any]:
    return collections.OrderedDict(_pairs_back(reader, node))


@decodes("Counter")
def _counter_back(reader: Reader, node: Tagged) -> collections.Counter[Any]:
    counter: collections.Counter[Any] = collections.Counter()
    for key, value in _pairs_back(reader, node):
        counter[key] = value
    return counter


@forms("dict", "OrderedDict", "Counter")
def _dict_form(form: FormOf, node: Tagged) -> Any:
    pairs = [(form(key), form(value)) for key, value in node["v"]]
    texts = {_key_text(key) for key, _ in pairs}
    if None in texts or len(texts) < len(pairs):
        return [[key, value] for key, value in pairs]
    return {_key_text(key): value for key, value in pairs}


def _key_text(key: Any) -> str | None:
    if type(key) is str:
        return key
    return None if type(key) in (list, dict) else msgspec.json.encode(key).decode()


@encodes(range, slice)
def _range(writer: Writer, value: range | slice) -> Node:
    parts = ("start", "stop", "step")
    return {"$": type(value).__name__, "v": [writer.child(f".{part}", getattr(value, part)) for part in parts]}


@decodes("range")
def _range_back(reader: Reader, node: Tagged) -> range:
    return range(*map(reader.value, node["v"]))


@forms("range")
def _range_form(form: FormOf, node: Tagged) -> Any:
    start, stop, step = map(form, node["v"])
    return {"start": start, "stop": stop, "step": step}


@decodes("slice")
def _slice_back(reader: Reader, node: Tagged) -> slice:
    return slice(*map(reader.value, node["v"]))


@encodes(Decimal, Fraction)
def _number(_writer: Writer, value: Decimal | Fraction) -> Node:
    if type(value) is Fraction:
        return {"$": "Fraction", "v": f"{value.numerator:x}/{value.denominator:x}"}
    return {"$": "Decimal", "v": str(value)}


@decodes("Decimal")
def _decimal_back(_reader: Reader, node: Tagged) -> Decimal:
    return Decimal(node["v"])


@decodes("Fraction")
def _fraction_back(_reader: Reader, node: Tagged) -> Fraction:
    numerator, denominator = (int(part, 16) for part in node["v"].split("/"))
    return Fraction(numerator, denominator)


@forms("Fraction")
def _fraction_form(_form: FormOf, node: Tagged) -> str:
    parts = [int(part, 16) for part in node["v"].split("/")]
    return "/".join(str(part) if part.bit_length() < 14_000 else hex(part) for part in parts)


@encodes(UUID)
def _uuid(_writer: Writer, value: UUID) -> Node:
    node: Tagged = {"$": "UUID", "v": str(value)}
    if value.is_safe is not SafeUUID.unknown:
        node["safe"] = value.is_safe.value
    return node


@decodes("UUID")
def _uuid_back(_reader: Reader, node: Tagged) -> UUID:
    return UUID(node["v"], is_safe=SafeUUID(node.get("safe")))


@forms("Decimal", "UUID")
def _text_form(_form: FormOf, node: Tagged) -> str:
    return str(node["v"])


_PATHS = {cls.__name__: cls for cls in (PosixPath, WindowsPath, PurePosixPath, PureWindowsPath)}


@encodes(*_PATHS.values())
def _path(writer: Writer, value: PurePosixPath | PureWindowsPath) -> Node:
    return {"$": "path", "c": type(value).__name__, "v": writer.node(str(value))}


@decodes("path")
def _path_back(reader: Reader, node: Tagged) -> Any:
    cls = _PATHS[node["c"]]
    try:
        return cls(reader.value(node["v"]))
    except NotImplementedError as error:
        msg = f"a {node['c']!r} cannot be made on this system; return a PurePath from steps that cross systems"
        raise UndecodableError(
            msg,
            needs=f"a system with {node['c']}",
        ) from error


@forms("path")
def _path_form(form: FormOf, node: Tagged) -> Any:
    return form(node["v"])
