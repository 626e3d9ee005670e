"""The tagged form: any exact value as a tree of JSON nodes, and back.

A node is a JSON atom, a list (a list), an object without the key "$" (a dict with text keys), or an object whose "$" says
what it is. Encoders are found by exact type, decoders by tag; the modules beside this one fill the tables.
"""

import base64
import hashlib
import io
import re
import sys
from collections.abc import Callable, Hashable
from typing import Any, BinaryIO

from nbflow.errors import NotSerialisableError, UndecodableError
from nbflow.values.artifacts import ArtifactFolder, Payload

Node = Any
Encoder = Callable[["Writer", Any], Node]
Decoder = Callable[["Reader", dict[str, Any]], Any]
Form = Callable[[Callable[[Node], Any], dict[str, Any]], Any]

MAX_DEPTH = 150
MAX_BYTES = 2 << 30
INLINE_LIMIT = 1 << 20
SMALLEST, LARGEST = -(2**63), 2**63 - 1
STORE_IT = "store it yourself and return its key"

LEAVES = frozenset({type(None), bool, int, float, str, bytes})
ENCODERS: dict[type, Encoder] = {}
DECODERS: dict[str, Decoder] = {}
FORMS: dict[str, Form] = {}
FINDERS: list[Callable[[type], Encoder | None]] = []

_WORD = re.compile(r"[^\W\d]\w*")
# Containers in one value. [x, x] of itself forty times over is small in memory and endless on paper.
MAX_PARTS = 5_000_000

_HINTS = {
    "collections.defaultdict": "return dict(value)",
    "builtins.generator": "return list(value)",
    "builtins.coroutine": "await it and return what it gives",
    "nbflow.engine.calls.StepCall": "await it: this is the call of a step, not its result",
    "builtins.memoryview": "return bytes(value)",
    "numpy.ma.MaskedArray": "return value.filled() or its data and mask",
    "numpy.matrix": "return numpy.asarray(value)",
    "numpy.recarray": "return value.view(numpy.ndarray) with a plain dtype",
    "polars.LazyFrame": "return value.collect()",
    "torch.Tensor": "return value.numpy(force=True)",
    "pyarrow.RecordBatch": "return pyarrow.table(value)",
}


class Refused(Exception):  # noqa: N818 - never seen outside: becomes NotSerialisableError at the door
    """A value that can't be stored exactly; containers add where they held it on the way out.

    Attributes:
        final: pickling would not help either.
    """

    def __init__(self, subject: str, why: str, advice: str = STORE_IT) -> None:
        super().__init__(subject)
        self.subject = subject
        self.why = why
        self.advice = advice
        self.final = False
        self.pieces: list[str] = []

    def error(self) -> NotSerialisableError:
        """The error users see."""
        path = "$" + "".join(reversed(self.pieces))
        return NotSerialisableError(f"cannot store a '{self.subject}' at {path}: {self.why}; {self.advice}")


class Writer:
    """Turns one value into nodes.

    Attributes:
        files: where tables, arrays and large values go; None keeps everything in the nodes.
        allow_pickle: the user's switch; that of the folder counts as well.
    """

    __slots__ = ("_open", "_parts", "allow_pickle", "files")

    def __init__(self, files: ArtifactFolder | None, *, allow_pickle: bool = False, parts: int = MAX_PARTS) -> None:
        self.files = files
        self._parts = parts
        self.allow_pickle = allow_pickle or (files is not None and files.allow_pickle)
        self._open: set[int] = set()

    def node(self, value: Any) -> Node:
        """The node of *value*; Refused where there is none."""
        cls = type(value)
        encoder = ENCODERS.get(cls) or self._find(cls)
        if cls in LEAVES:
            return encoder(self, value)
        identity = id(value)
        if identity in self._open:
            raise Refused(type_name(cls), "it contains itself", "cut the cycle, or return keys in place of objects")
        if len(self._open) >= MAX_DEPTH:
            raise Refused(
                type_name(cls),
                f"it lies deeper than {MAX_DEPTH} levels",
                "return a flat form, such as a list of links",
            )
        self._parts -= 1
        if self._parts < 0:
            raise too_many_parts(type_name(cls))
        self._open.add(identity)
        try:
            return encoder(self, value)
        except Refused as refused:
            if not self.allow_pickle or refused.pieces or refused.final:
                raise
            return _pickled(self, value)  # a table that Parquet would change, an object with more than its fields
        finally:
            self._open.discard(identity)

    def child(self, piece: str, value: Any) -> Node:
        """The node of a part of the value; *piece* is its step in the path, such as `.head` or `[3]`."""
        try:
            return self.node(value)
        except Refused as refused:
            refused.pieces.append(piece)
            raise

    def items(self, values: Any) -> list[Node]:
        """The nodes of an ordered collection."""
        nodes: list[Node] = []
        try:
            for value in values:
                nodes.append(self.node(value))  # noqa: PERF401 - the length says which item was refused
        except Refused as refused:
            refused.pieces.append(f"[{len(nodes)}]")
            raise
        return nodes

    def file(self, codec: str, ext: str, payload: Payload, **extra: Any) -> Node:
        """A node for bytes that belong into a file of their own."""
        node: dict[str, Any] = {"$": "file", "codec": codec}
        if self.files is not None:
            node["uri"], node["hash"], node["size"] = self.files.write(ext, payload)
        else:
            content = payload if isinstance(payload, bytes) else _written(payload)
            node["hash"], node["size"] = hashlib.sha256(content).hexdigest(), len(content)
            node["ext"], node["data"] = ext, to_base64(content)
        if node["size"] > MAX_BYTES:
            msg = f"a '{codec}' value"
            raise too_large(msg, node["size"])
        node.update(extra)
        return node

    def _find(self, cls: type) -> Encoder:
        for find in FINDERS:
            if (encoder := find(cls)) is not None:
                return encoder
        if self.allow_pickle:
            return _pickled
        raise refusal(cls)


class Reader:
    """Turns nodes back into a value. Nothing stored can make it import or run anything."""

    __slots__ = ("allow_pickle", "files")

    def __init__(self, files: ArtifactFolder | None, *, allow_pickle: bool = False) -> None:
        self.files = files
        self.allow_pickle = allow_pickle or (files is not None and files.allow_pickle)

    def value(self, node: Node) -> Any:
        """The value of a node."""
        cls = type(node)
        if cls is list:
            return [self.value(part) for part in node]
        if cls is not dict:
            return node
        tag = node.get("$")
        if tag is None:
            return {key: self.value(part) for key, part in node.items()}
        decoder = DECODERS.get(node["codec"] if tag == "file" else tag)
        if decoder is None:
            named = node["codec"] if tag == "file" else tag
            msg = f"this nbflow cannot read a {named!r} value: it was written by a newer one; update nbflow"
            raise UndecodableError(
                msg,
                needs="a newer nbflow",
            )
        return decoder(self, node)

    def open(self, node: dict[str, Any]) -> BinaryIO:
        """The content of a file node, checked."""
        if "data" in node:
            return io.BytesIO(from_base64(node["data"]))
        if self.files is None:
            msg = f"artefact {node['uri']!r} cannot be read: the folder of artefacts is not known here"
            raise UndecodableError(
                msg,
                needs=f"file {node['uri']}",
            )
        return self.files.open(node["uri"], node["hash"])


def encodes(*classes: type) -> Callable[[Encoder], Encoder]:
    """Register an encoder for exactly these classes."""

    def register(function: Encoder) -> Encoder:
        for cls in classes:
            ENCODERS[cls] = function
        return function

    return register


def decodes(tag: str) -> Callable[[Decoder], Decoder]:
    """Register the decoder of a tag, or of a file's codec."""

    def register(function: Decoder) -> Decoder:
        DECODERS[tag] = function
        return function

    return register


def forms(*tags: str) -> Callable[[Form], Form]:
    """Register what these tags look like as plain JSON."""

    def register(function: Form) -> Form:
        for tag in tags:
            FORMS[tag] = function
        return function

    return register


class NoForm(Exception):  # noqa: N818 - a signal between two functions
    """The value has no plain JSON form."""


def form(node: Node) -> Any:
    """A node as plain JSON for SQL and display: readable, not exact."""
    cls = type(node)
    if cls is list:
        return [form(part) for part in node]
    if cls is not dict:
        return node
    tag = node.get("$")
    if tag is None:
        return {key: form(part) for key, part in node.items()}
    shown = FORMS.get(node["codec"] if tag == "file" else tag)
    if shown is None:
        raise NoForm
    return shown(form, node)


def key_piece(key: Hashable) -> str:
    """How a dict's key looks in a path. Only keys whose repr runs no user code are shown."""
    if type(key) is str:
        return f".{key}" if _WORD.fullmatch(key) else f"[{key!r}]"
    if type(key) in (int, float, bool, type(None), bytes):
        return f"[{key!r}]"
    return f"[<{type_name(type(key))}>]"


def own_names(cls: type) -> tuple[str, str, str]:
    """Module, qualified name and name of a class, past whatever its metaclass does when it is asked."""
    module, qualname, name = (type.__getattribute__(cls, part) for part in ("__module__", "__qualname__", "__name__"))
    return str(module), str(qualname), str(name)


def type_name(cls: type) -> str:
    """A class's name for people: `int`, `Doc`, `pandas.DataFrame`."""
    module, name, _ = own_names(cls)
    if module in ("builtins", "__main__"):
        return name
    root = module.partition(".")[0]
    if module != root and getattr(sys.modules.get(root), "__dict__", {}).get(name) is cls:
        return f"{root}.{name}"
    return f"{module}.{name}"


def refusal(cls: type) -> Refused:
    """Why an instance of *cls* can't be stored, with advice that fits."""
    name = type_name(cls)
    hint = _HINTS.get(f"builtins.{name}" if cls.__module__ == "builtins" else name)
    base = next((base for base in cls.__mro__[1:-1] if base in ENCODERS), None)
    if hint is None and base is not None:
        hint = f"return {base.__name__}(value)"
    why = f"it is a subclass of '{type_name(base)}', which would come back" if base else "values of this type have no codec"
    advice = f"{STORE_IT}, or add the type by nbflow.register_codec"
    return Refused(name, why, f"{hint}, or {advice}" if hint else advice)


def too_many_parts(subject: str) -> Refused:
    """A value of which so much is in it, or is in it so many times over, that writing it down would not end."""
    return Refused(subject, "it has too many parts, counted as often as they are shared", "return a table, or each part once")


def too_large(subject: str, size: int) -> Refused:
    """A value over the limit (S62)."""
    refused = Refused(
        subject, f"{size:,} bytes are more than {MAX_BYTES:,}", "write it to files of your own and return their paths"
    )
    refused.final = True
    return refused


def to_base64(content: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(content).decode("ascii")


def from_base64(text: str) -> bytes:
    """Text of `to_base64` as bytes."""
    return base64.b64decode(text, validate=True)


def _written(write: Callable[[BinaryIO], None]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def _pickled(writer: Writer, value: Any) -> Node:
    import cloudpickle

    try:
        content = cloudpickle.dumps(value, protocol=5)
    except Exception as error:
        raise Refused(type_name(type(value)), f"pickling it failed: {type(error).__name__}: {error}") from error
    if len(content) > MAX_BYTES:
        raise too_large(type_name(type(value)), len(content))
    return writer.file("pickle", "pkl", content, type=type_name(type(value)))


@decodes("pickle")
def _unpickled(reader: Reader, node: dict[str, Any]) -> Any:
    if not reader.allow_pickle:
        msg = (
            f"a pickled {node['type']!r} is not read, because reading a pickle runs what is in it; "
            "if you trust this history, open it with Engine(allow_pickle=True)"
        )
        raise UndecodableError(
            msg,
            needs="Engine(allow_pickle=True)",
        )
    import pickle

    with reader.open(node) as file:
        try:
            return pickle.load(file)  # noqa: S301 - the user has turned it on
        except Exception as error:
            msg = f"a pickled {node['type']!r} cannot be read: {type(error).__name__}: {error}"
            raise UndecodableError(msg, needs=f"class {node['type']}") from error
