"""The door between user values and stored bytes: exact or refused (API.md §2).

The first character of the stored text is its format: `j` plain JSON that comes back exactly, `t` tagged JSON (see
`nodes.py`), `a` a reference to an artefact, `x` a sealed one of these (see `sealing.py`).
"""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import msgspec

from nbflow.errors import UndecodableError
from nbflow.values import arrays, models, moments, pandas_types, plain_types, sealing, tables  # noqa: F401 - they fill nodes.py
from nbflow.values import preview as previews
from nbflow.values.artifacts import ArtifactFolder, ArtifactRef
from nbflow.values.classes import register
from nbflow.values.nodes import (
    INLINE_LIMIT,
    LARGEST,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_PARTS,
    SMALLEST,
    NoForm,
    Reader,
    Refused,
    Writer,
    decodes,
    encodes,
    form,
    forms,
    too_large,
    too_many_parts,
    type_name,
)

_to_json = msgspec.json.Encoder().encode
_to_sorted_json = msgspec.json.Encoder(order="sorted").encode
_from_json = msgspec.json.Decoder().decode
_ATOMS = frozenset({str, bool, type(None)})
_JSON, _TAGGED, _FILE = 106, 116, 97  # j, t, a


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """A value as the history holds it.

    Attributes:
        data: UTF-8 text, the first character its format.
        type: name of the value's type.
        json: the plain JSON form for SQL where *data* is not plain JSON itself and there is one.
        uri: the artefact that holds the whole value, relative to the artefact root.
        preview: see `preview.py`; empty when not asked for.
    """

    data: bytes
    type: str
    json: str | None
    uri: str | None
    preview: dict[str, Any]


def encode(
    value: Any,
    files: ArtifactFolder | None,
    *,
    allow_pickle: bool = False,
    with_preview: bool = True,
    parts: int = MAX_PARTS,
) -> Encoded:
    """Turn a value into what the history holds.

    Args:
        value: anything of API.md §2.
        files: the instance's artefact folder; None keeps tables, arrays and large values inside the data.
        allow_pickle: pickle what would be refused; *files* may say so, too.
        with_preview: make the preview, too.
        parts: containers that the value may have, shared ones counted each time.

    Raises:
        NotSerialisableError: it would not come back exactly; names the type and the path inside the value (S31).
    """
    cls = type(value)
    try:
        if cls is str or ((cls is dict or cls is list) and _plain(value, MAX_DEPTH, [parts])):
            data = b"j" + _to_json(value)
            preview = previews.of_json(value, data) if with_preview else {}
            if len(data) <= INLINE_LIMIT:
                return Encoded(data, cls.__name__, None, None, preview)
            return _large("json", data, cls.__name__, preview, files)
        if value is None or cls is bool or (cls is int and _fits(value)) or (cls is float and math.isfinite(value)):
            data = b"j" + _to_json(value)
            name = "None" if value is None else cls.__name__
            return Encoded(data, name, None, None, previews.of_atom(data) if with_preview else {})
    except Refused as refused:
        raise refused.error() from None
    except (UnicodeEncodeError, RecursionError):
        pass  # lone surrogates; a structure for which the tagged way has the better error
    try:
        return _encode_tagged(value, Writer(files, allow_pickle=allow_pickle, parts=parts), with_preview=with_preview)
    except Refused as refused:
        raise refused.error() from refused.__cause__
    except RecursionError:
        deep = Refused(type_name(cls), "it is nested too deeply for the call stack here", "return a flat form")
        raise deep.error() from None
    except RuntimeError as error:  # a dict, set or deque that another thread changes while we walk it
        changed = Refused(type_name(cls), f"it changed while it was stored ({error})", "return a copy of it")
        raise changed.error() from error


def decode(data: bytes, files: ArtifactFolder | None, *, allow_pickle: bool = False) -> Any:
    """Turn what the history holds back into the value.

    Raises:
        UndecodableError: its class, library or file is not there now (S17), or it is a pickle and *allow_pickle* is off.
    """
    try:
        if data[:1] == b"j":
            return _from_json(data[1:])
        if data[:1] == b"x":
            data = sealing.unsealed(data, files)
        return Reader(files, allow_pickle=allow_pickle).value(_from_json(data[1:]))
    except (UndecodableError, KeyboardInterrupt, SystemExit):
        raise
    except RecursionError as error:
        raise UndecodableError("the value is nested too deeply to be read from here", needs="a shorter call stack") from error
    except BaseException as error:  # a panic in Rust is no Exception
        msg = f"a stored value cannot be read: {type(error).__name__}: {error}; update the library it belongs to"
        raise UndecodableError(msg, needs="a library that reads it") from error


def reference(encoded: Encoded, files: ArtifactFolder | None) -> ArtifactRef:
    """What `step.do(..., lazy=True)` gives in place of the value."""
    return ArtifactRef(encoded.data, files, type=encoded.type, uri=encoded.uri, preview=encoded.preview)


def register_codec(
    type: type,  # noqa: A002 - the name in the public contract
    encode: Callable[[Any], object],
    decode: Callable[[Any], object],
    name: str | None = None,
) -> None:
    """Make instances of exactly one class storable.

    Args:
        type: the class; its subclasses need codecs of their own.
        encode: gives for an instance something that is storable without this codec.
        decode: gives the instance back.
        name: what the history calls the codec; defaults to the class's module and name. Keep it when the class moves.

    Raises:
        UsageError: the class has a codec of nbflow's own, or *name* belongs to another class.
    """
    register(type, encode, decode, name)


def equal(a: bytes, b: bytes) -> bool:
    """Whether two stored values are the same: equal when encoded, the order of dicts ignored (S4)."""
    return a == b or canonical(a) == canonical(b)


def canonical(data: bytes) -> str:
    """A digest that ignores the order of dicts and where files lie; what can't be read is like nothing but itself."""
    try:
        return _canonical(data)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return hashlib.sha256(b"?" + data).hexdigest()


def _canonical(data: bytes) -> str:
    node = _from_json(data[1:])
    if data[0] != _JSON and type(node) is dict and node.get("$") == "file" and "canon" in node:
        return str(node["canon"])
    # the two formats apart: a dict that looks like a tagged node is none
    kind, node = (b"j", node) if data[0] == _JSON else (b"t", _unplaced(node))
    return hashlib.sha256(kind + _to_sorted_json(node)).hexdigest()


def _unplaced(node: Any) -> Any:
    """A node without what says where its files lie, and with its dicts' pairs in one order."""
    if type(node) is list:
        return [_unplaced(part) for part in node]
    if type(node) is not dict:
        return node
    tag = node.get("$")
    plain = {key: _unplaced(part) for key, part in node.items()}
    if tag == "file":
        for key in ("uri", "data", "ext"):
            plain.pop(key, None)
    elif tag in ("dict", "Counter"):
        plain["v"].sort(key=_to_sorted_json)
    elif tag == "ref":
        return {"$": "ref", "v": canonical(node["v"].encode())}
    return plain


def _encode_tagged(value: Any, writer: Writer, *, with_preview: bool) -> Encoded:
    value = arrays.drawn(value)
    name = type_name(type(value))
    node = writer.node(value)
    preview = previews.of_value(value, node, name) if with_preview else {}
    if type(node) is dict and node.get("$") == "file":
        kind = b"a" if "uri" in node else b"t"
        preview = previews.with_file(preview, node)
        return Encoded(kind + _to_json(node), node.get("type", name), None, node.get("uri"), preview)
    data = b"t" + _to_json(node)
    if len(data) > INLINE_LIMIT:
        return _large("tagged", data, name, preview, writer.files)
    try:
        plain = _to_json(form(node)).decode()
    except NoForm:
        plain = None
    return Encoded(data, name, plain, None, preview)


def _large(codec: str, data: bytes, name: str, preview: dict[str, Any], files: ArtifactFolder | None) -> Encoded:
    """Put a long JSON text into a file of its own."""
    if len(data) > MAX_BYTES:
        raise too_large(name, len(data)).error()
    if files is None:
        return Encoded(data, name, None, None, preview)
    uri, digest, size = files.write("json", data[1:])
    node = {"$": "file", "codec": codec, "uri": uri, "hash": digest, "size": size, "canon": canonical(data)}
    return Encoded(b"a" + _to_json(node), name, None, uri, previews.with_file(preview, node))


@decodes("json")
def _json_file(reader: Reader, node: dict[str, Any]) -> Any:
    with reader.open(node) as file:
        return _from_json(file.read())


@decodes("tagged")
def _tagged_file(reader: Reader, node: dict[str, Any]) -> Any:
    with reader.open(node) as file:
        return reader.value(_from_json(file.read()))


@encodes(ArtifactRef)
def _ref(writer: Writer, value: ArtifactRef) -> Any:
    data = value.encoded
    here, there = writer.files, value.files
    if there is not None and (here is None or (here.root, here.relative) != (there.root, there.relative)):
        # nothing is shared between instances: its files come along, so that deleting the other takes nothing away
        data = data[:1] + _to_json(_moved(_from_json(data[1:]), there, writer)) if data[0] != _JSON else data
        data = (b"a" if writer.files else b"t") + data[1:] if data[0] == _FILE else data
    node = _from_json(data[1:]) if data[0] == _FILE else {}
    return {"$": "ref", "v": data.decode(), "type": value.type, "uri": node.get("uri"), "preview": value.preview}


@decodes("ref")
def _ref_back(reader: Reader, node: dict[str, Any]) -> ArtifactRef:
    return ArtifactRef(
        node["v"].encode(),
        reader.files,
        type=node["type"],
        uri=node["uri"],
        preview=node["preview"],
    )


@forms("ref")
def _ref_form(_form: Any, node: dict[str, Any]) -> Any:
    return {"uri": node["uri"], "type": node["type"]}


def _moved(node: Any, source: ArtifactFolder, writer: Writer) -> Any:
    """Nodes with the files they name copied to the writer's folder."""
    if type(node) is list:
        return [_moved(part, source, writer) for part in node]
    if type(node) is not dict:
        return node
    if node.get("$") == "ref":
        return writer.node(_ref_back(Reader(source), node))
    node = {key: _moved(part, source, writer) for key, part in node.items()}
    if node.get("$") == "file" and "uri" in node:
        content = source.read(node["uri"], node["hash"])
        if node["codec"] in ("json", "tagged"):
            text = content if node["codec"] == "json" else _to_json(_moved(_from_json(content), source, writer))
            moved = writer.file(node["codec"], "json", text)
            return {**moved, "canon": node["canon"]}
        extra = {key: part for key, part in node.items() if key not in ("$", "codec", "uri", "hash", "size")}
        return writer.file(node["codec"], node["uri"].rpartition(".")[2], content, **extra)
    return node


def _fits(value: int) -> bool:
    """Whether every reader of JSON keeps this int: 64 bits."""
    return SMALLEST <= value <= LARGEST


def _plain(value: Any, depth: int, left: list[int]) -> bool:
    """Whether JSON gives exactly this list or dict back; *left* counts down the containers that it may have."""
    left[0] -= 1
    if left[0] < 0:
        raise too_many_parts(type_name(type(value)))
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                return False
        value = value.values()
    if len(value) > 32 and (uniform := _uniform(value)) is not None:
        return uniform
    for item in value:
        cls = type(item)
        if cls in _ATOMS:
            continue
        if cls is int:
            if not SMALLEST <= item <= LARGEST:
                return False
        elif cls is float:
            if item - item != 0.0:  # inf and nan
                return False
        elif (cls is not list and cls is not dict) or depth <= 1 or not _plain(item, depth - 1, left):
            return False
    return True


def _uniform(items: Any) -> bool | None:
    """The answer for long collections of one kind of atom, found without a Python loop; None for others."""
    kinds = set(map(type, items))
    if kinds <= _ATOMS:
        return True
    if kinds == {float}:
        return all(map(math.isfinite, items))
    if kinds == {int}:
        return _fits(min(items)) and _fits(max(items))
    return None
