"""numpy scalars and arrays, and pictures."""

import io
import sys
import warnings
from collections.abc import Callable
from typing import Any, BinaryIO

from nbflow.errors import UndecodableError
from nbflow.values import preview as previews
from nbflow.values.image import Image
from nbflow.values.nodes import (
    ENCODERS,
    FINDERS,
    MAX_BYTES,
    Encoder,
    Node,
    NoForm,
    Reader,
    Refused,
    Writer,
    decodes,
    encodes,
    forms,
    from_base64,
    to_base64,
    too_large,
    type_name,
)

Tagged = dict[str, Any]
_HEADER = 1 << 24  # its parser takes literals only, and the file's hash has been checked


def library(name: str) -> Any:
    """Import one of the libraries that this package knows, or say that it is missing."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        root = name.partition(".")[0]
        msg = f"a value of {root} cannot be read: {root} is not installed; install it"
        raise UndecodableError(msg, needs=f"library {root}") from error


def _scalar(_writer: Writer, value: Any) -> Node:
    import numpy as np

    cls, dtype = type(value), value.dtype
    if cls is np.str_:
        return {"$": "np", "d": "U", "v": _writer.node(str.__str__(value))}
    if cls is np.bytes_:
        return {"$": "np", "d": "S", "v": to_base64(bytes(value))}
    if dtype.hasobject or not _dtype_survives(dtype):
        raise _refused_dtype(dtype, type_name(cls))
    node: Tagged = {"$": "np", "d": dtype.str, "v": to_base64(value.tobytes())}
    if dtype.kind == "V":
        node = {"$": "np", "d": "npy", "v": to_base64(_npy(np.array(value)))}
    elif dtype.kind in "biufc":
        node["text"] = str(value)
        if dtype.char in "qQ":  # a type of its own, of the same width as int64
            node["char"] = dtype.char
    return node


def _npy(array: Any) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=_version(array.dtype), allow_pickle=False)
    return buffer.getvalue()


def _version(dtype: Any) -> tuple[int, int]:
    """The version of the .npy format: 3 has long headers and any field names."""
    return (1, 0) if dtype.names is None else (3, 0)


@decodes("np")
def _scalar_back(reader: Reader, node: Tagged) -> Any:
    np = library("numpy")
    if node["d"] == "U":
        return np.str_(reader.value(node["v"]))
    content = from_base64(node["v"])
    if node["d"] == "S":
        return np.bytes_(content)
    if node["d"] == "npy":
        return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False, max_header_size=_HEADER)[()]
    return np.frombuffer(content, dtype=np.dtype(node.get("char", node["d"])))[0]


@forms("np")
def _scalar_form(form: Callable[[Node], Any], node: Tagged) -> Any:
    if node["d"] == "U":
        return form(node["v"])
    text = node.get("text")
    if text is None:
        if node["d"][1:2] in ("M", "m"):
            try:
                return str(_scalar_back(Reader(None), node))
            except ValueError:  # a moment without a unit has no text
                raise NoForm from None
        raise NoForm
    if text in ("True", "False"):
        return text == "True"
    kind = node["d"][1:2]
    if kind in "iu":
        return int(text)
    return float(text) if kind == "f" and text not in ("nan", "inf", "-inf") else text


def _dtype_survives(dtype: Any) -> bool:
    """Whether a `.npy` header gives exactly this dtype back."""
    import numpy as np

    if dtype.metadata is not None:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            back = np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype))
    except Exception:  # noqa: BLE001 - whatever numpy objects to, it would not come back
        return False
    return (
        bool(back == dtype)
        and (back.type is dtype.type or dtype.kind in "iu")
        and back.isalignedstruct == dtype.isalignedstruct
    )


def _refused_dtype(dtype: Any, name: str) -> Refused:
    if dtype.hasobject:
        why, advice = (
            f"its dtype {str(dtype)!r} holds Python objects",
            "give it a numeric or fixed-width dtype, or return a list",
        )
    else:
        why, advice = f"its dtype {str(dtype)!r} would not come back from a .npy file", "convert it with .astype"
    return Refused(name, why, advice)


def _array(writer: Writer, value: Any) -> Node:
    import numpy as np

    if value.nbytes > MAX_BYTES:
        raise too_large("numpy.ndarray", value.nbytes)
    if value.dtype.hasobject or not _dtype_survives(value.dtype):
        raise _refused_dtype(value.dtype, "numpy.ndarray")

    def write(file: BinaryIO) -> None:
        np.lib.format.write_array(file, value, version=_version(value.dtype), allow_pickle=False)

    char = {"char": value.dtype.char} if value.dtype.char in "qQ" else {}
    return writer.file("npy", "npy", write, type="numpy.ndarray", **char)


@decodes("npy")
def _array_back(reader: Reader, node: Tagged) -> Any:
    np = library("numpy")
    with reader.open(node) as file:
        array = np.lib.format.read_array(file, allow_pickle=False, max_header_size=_HEADER)
    return array.view(np.dtype(node["char"]).newbyteorder(array.dtype.byteorder)) if "char" in node else array


@encodes(Image)
def _image(writer: Writer, value: Image) -> Node:
    return writer.file("png", "png", value.png, type="nbflow.Image", width=value.width, height=value.height)


@decodes("png")
def _image_back(reader: Reader, node: Tagged) -> Image:
    with reader.open(node) as file:
        return Image(file.read())


def _picture(writer: Writer, value: Any) -> Node:
    return _image(writer, drawn(value))


def drawn(value: Any) -> Any:
    """The picture of a figure or image, and anything else as it is."""
    cls = type(value)
    return Image(_png_of(value)) if cls not in ENCODERS and _find(cls) is _picture else value


def _png_of(value: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        if hasattr(value, "savefig"):
            value.savefig(buffer, format="png", bbox_inches="tight")
        else:
            value.save(buffer, format="PNG")
    except Exception as error:
        raise Refused(
            type_name(type(value)),
            f"it cannot be drawn as PNG: {type(error).__name__}: {error}",
            "convert it first, for instance image.convert('RGB')",
        ) from error
    return buffer.getvalue()


def _preview_array(value: Any, _node: Tagged) -> previews.Preview:
    return previews.of_array(value)


def _preview_image(value: Image, node: Tagged) -> previews.Preview:
    return previews.of_image(value.png, node["width"], node["height"])


previews.MADE_BY.update({"npy": _preview_array, "png": _preview_image})


def _find(cls: type) -> Encoder | None:
    root = cls.__module__.partition(".")[0]
    if root == "numpy" and (np := sys.modules.get("numpy")) is not None:
        if cls is np.ndarray:
            return _array
        if issubclass(cls, np.generic) and cls is not np.object_ and cls is not np.record:
            return _scalar
    if root == "matplotlib" and (figure := sys.modules.get("matplotlib.figure")) is not None and cls is figure.Figure:
        return _picture
    pillow = sys.modules.get("PIL.Image")
    if root == "PIL" and pillow is not None and issubclass(cls, pillow.Image):
        return _picture
    return None


FINDERS.append(_find)
