"""Small, safe summaries, made once when a value is stored.

They are made from what the codec wrote, never by `repr` of a user's object, and hold at most 8 kB of JSON. Every shape has
"kind" and "line", the one line of at most 120 printable characters that a row shows. [x] is there only where it applies:

    json    text, truncated: the value as indented JSON. Cut or not, *text* parses, so that it can be drawn as a tree;
            what was cut is said in place ("… 17 more")
    text    text, truncated: the beginning of a text
    bytes   size, head: hex of the first 64
    table   shape [rows, columns], columns [{name, dtype}] (the first 20), head: at most 50 rows, each a list of texts, one
            for each of *columns*, [index]: a text for each row of *head*, where it says more than the row's number
    array   shape, dtype, min, mean, max (null where there are none), [sampled]: true where they and *heat* were taken of a
            part of a huge array, head: rows of texts, the last axis across, at most 50 × 20,
            [heat]: rows of 0 (min) … 255 (max), null where nothing is finite; each stands for the mean of a block: at most
            16 × 16 of the first two axes, further ones averaged away; of one axis a single row of at most 64
    image   width, height of the picture, [png]: base64 of it, or of a smaller one when it is too large for here

Of a value that lies in a file there is also

    [file]  {uri: path under the artefact root, size: bytes, hash: SHA-256 in hex}
"""

import io
import itertools
import math
from collections.abc import Callable
from typing import Any

import msgspec

from nbflow.values.nodes import FORMS, form, to_base64

Preview = dict[str, Any]

LIMIT = 7_700  # and `file` makes it 8 kB
LINE = 120
_ROWS, _COLUMNS, _CELL = 50, 20, 80
_PNG = 4_400  # 6 kB of base64
_THUMBNAILS = (192, 128, 96, 64, 40)
_HEAT, _STRIP = 16, 64
_SAMPLE = 4_000_000  # cells; a preview costs no second, however large the array
_to_json = msgspec.json.Encoder().encode
_indented = msgspec.json.format


def of_atom(data: bytes) -> Preview:
    """The preview of None, a bool or a number."""
    text = data[1:].decode()
    return {"kind": "json", "text": text, "truncated": False, "line": text}


def of_json(value: Any, data: bytes) -> Preview:
    """The preview of plain JSON; *data* is its stored form."""
    size = len(data)
    if type(value) is str:
        if size < 1_000 and value.isprintable():
            return {"kind": "text", "text": value, "truncated": False, "line": value if size < LINE else one_line(value)}
        return of_text(value)
    if size < LINE:
        line = data[1:].decode()
        return {"kind": "json", "text": _indented(line, indent=2), "truncated": False, "line": one_line(line)}
    return of_tree(value, size)


def of_text(value: str) -> Preview:
    """The preview of a text."""
    shown = value[:LIMIT]
    result = {"kind": "text", "text": shown, "truncated": len(shown) < len(value), "line": one_line(value[: 4 * LINE])}
    while _size(result) > LIMIT:
        shown = shown[: len(shown) * 3 // 4]
        result["text"], result["truncated"] = shown, True
    return result


def of_tree(value: Any, size: int = 0, prefix: str = "") -> Preview:
    """The preview of anything that JSON can show: as much of it as fits."""
    budget = 1_500 if size > 4_000 or not size else 100_000
    while True:
        cut = _Cut(budget)
        shown = cut.part(value, 0)
        text = _indented(_to_json(shown), indent=2).decode()
        line = one_line(prefix + _to_json(shown).decode()[: 4 * LINE])
        result = {"kind": "json", "text": text, "truncated": cut.happened, "line": line}
        if _size(result) <= LIMIT:
            return result
        budget = min(budget, 3_000) // 2


class _Cut:
    """Copies a tree until a budget of characters is used up."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.happened = False

    def part(self, value: Any, depth: int) -> Any:
        if type(value) is str:
            return self._text(value)
        if type(value) is list:
            return self._list(value, depth)
        if type(value) is dict:
            return self._dict(value, depth)
        self.budget -= 8
        return value

    def _text(self, value: str) -> str:
        most = max(20, min(len(value), self.budget // 2))
        self.budget -= most + 4
        if len(value) > most:
            self.happened = True
            return value[:most] + "…"
        return value

    def _list(self, value: list[Any], depth: int) -> Any:
        result: list[Any] = []
        for index, item in enumerate(value):
            if self.budget <= 0 or depth > 20:
                self.happened = True
                result.append(f"… {len(value) - index:,} more")
                break
            self.budget -= 2 * depth + 2
            result.append(self.part(item, depth + 1))
        return result

    def _dict(self, value: dict[str, Any], depth: int) -> Any:
        result: dict[str, Any] = {}
        for index, (key, item) in enumerate(value.items()):
            if self.budget <= 0 or depth > 20:
                self.happened = True
                result["…"] = f"{len(value) - index:,} more"
                break
            self.budget -= 2 * depth + 6
            result[self._text(key)] = self.part(item, depth + 1)
        return result


def of_value(value: Any, node: Any, name: str) -> Preview:
    """The preview of what plain JSON can't hold. Never raises."""
    try:
        return _of_value(value, node, name)
    except Exception:  # noqa: BLE001 - a preview is no reason to fail a step
        return {"kind": "text", "text": name, "truncated": True, "line": one_line(name)}


def _of_value(value: Any, node: Any, name: str) -> Preview:
    root = type(value).__module__.partition(".")[0]
    codec = node.get("codec") if type(node) is dict else None
    if codec in MADE_BY:
        return MADE_BY[codec](value, node)
    if type(value) in (bytes, bytearray):
        return of_bytes(bytes(value[:64]), len(value), name)
    if codec == "pickle":
        return of_text(f"pickled {name}, {node['size']:,} bytes")
    shown = form(_short(node))
    if type(shown) is str:
        return of_text(shown)
    line_prefix = f"{name} " if type(node) is dict and "$" in node and root != "builtins" else ""
    return of_tree(shown, prefix=line_prefix)


def _short(node: Any, items: int = 400) -> Any:
    """A node with its long collections cut, so that a million items cost no second walk."""
    if type(node) is list:
        return [_short(part, 50) for part in node[:items]] + ([f"… {len(node) - items:,} more"] if len(node) > items else [])
    if type(node) is not dict:
        return node
    tag = node.get("$")
    if tag == "file":
        return f"<{node['codec']}, {node['size']:,} bytes>"
    if tag in ("dict", "OrderedDict", "Counter"):
        return {**node, "v": node["v"][:items]}
    if tag is not None and FORMS.get(tag) is None:
        return f"<{tag}>"
    keys = list(node)[:items] if tag is None else node
    return {key: _short(node[key], items if key == "v" else 50) for key in keys}


MADE_BY: dict[str, Callable[[Any, Any], Preview]] = {}


def with_file(preview: Preview, node: dict[str, Any]) -> Preview:
    """The preview of a value that lies in a file, saying which."""
    return {**preview, "file": {name: node[name] for name in ("uri", "size", "hash")}} if preview and "uri" in node else preview


def of_bytes(head: bytes, size: int, name: str = "bytes") -> Preview:
    """The preview of bytes."""
    return {
        "kind": "bytes",
        "size": size,
        "head": head.hex(" "),
        "line": one_line(f"{name}, {size:,} bytes: {head[:16].hex(' ')}"),
    }


def of_image(png: bytes, width: int, height: int) -> Preview:
    """The preview of a picture: itself or a smaller one."""
    result: Preview = {"kind": "image", "width": width, "height": height, "line": f"picture {width}×{height}"}
    shown = png if len(png) <= _PNG else _thumbnail(png)
    if shown is not None:
        result["png"] = to_base64(shown)
    return result


def _thumbnail(png: bytes) -> bytes | None:
    """A picture made small enough; None where the library for it is not installed, or the picture is no picture."""
    try:
        from PIL import Image

        with Image.open(io.BytesIO(png), formats=("PNG",)) as picture:
            picture.thumbnail((_THUMBNAILS[0],) * 2, reducing_gap=2.0)
            small = picture.convert("RGBA" if picture.has_transparency_data else "RGB")
    except Exception:  # noqa: BLE001 - whatever it objects to, the step has its picture and only the small one is missing
        return None
    for side in _THUMBNAILS:
        small.thumbnail((side, side))
        for colours in (256, 32):
            buffer = io.BytesIO()
            small.quantize(colours, method=Image.Quantize.FASTOCTREE).save(buffer, format="PNG", optimize=True)
            if buffer.tell() <= _PNG:
                return buffer.getvalue()
    return None


def of_table(
    name: str, shape: tuple[int, int], columns: list[tuple[str, str]], rows: list[list[Any]], index: list[Any] | None = None
) -> Preview:
    """The preview of a table; *rows* are the first ones, as values."""
    shown = [{"name": _clip(title), "dtype": _clip(dtype)} for title, dtype in columns[:_COLUMNS]]
    result: Preview = {
        "kind": "table",
        "shape": list(shape),
        "columns": shown,
        "head": [],
        "line": one_line(f"{name} {shape[0]:,}×{shape[1]:,}: {', '.join(title for title, _ in columns[:_COLUMNS])}"),
    }
    if index is not None:
        result["index"] = []
    size = _size(result)
    for number, row in enumerate(rows[:_ROWS]):
        cells = [cell(part) for part in row[:_COLUMNS]]
        label = None if index is None else cell(index[number])
        size += _size(cells) + _size(label) + 2
        if size > LIMIT:
            break
        result["head"].append(cells)
        if label is not None:
            result["index"].append(label)
    return result


def of_array(array: Any) -> Preview:
    """The preview of a numpy array."""
    shape = "×".join(map(str, array.shape)) or "0-d"
    result: Preview = {"kind": "array", "shape": list(array.shape), "dtype": _clip(str(array.dtype)), "head": []}
    result["line"] = one_line(f"array {shape} {array.dtype}")
    for word in ("min", "mean", "max"):
        result[word] = None
    if array.size and array.dtype.kind in "biuf":
        _statistics(array, result)
    size = _size(result)
    for row in _head(array):
        cells = [cell(part) for part in row.tolist()] if array.dtype.kind != "V" else [cell(str(part)) for part in row]
        size += _size(cells) + 2
        if size > LIMIT:
            break
        result["head"].append(cells)
    return result


def _head(array: Any) -> list[Any]:
    """The first rows, the last axis across; never reshaped, which of a view would copy all of it."""
    import numpy as np

    if not array.ndim:
        return [array.reshape(1)]
    places = np.ndindex(array.shape[:-1]) if array.size else ()
    return [array[place][:_COLUMNS] for place in itertools.islice(places, _ROWS)]


def _statistics(array: Any, result: Preview) -> None:
    import numpy as np

    sample = array
    while sample.size > _SAMPLE:  # every second of the longest axis, until it is few enough
        longest = max(range(sample.ndim), key=lambda axis: sample.shape[axis])
        sample = sample[(*[slice(None)] * longest, slice(None, None, 2))]
        result["sampled"] = True
    sample = sample.astype(np.float64)
    finite = sample[np.isfinite(sample)]
    if not finite.size:
        return
    with np.errstate(all="ignore"):
        low, mean, high = float(finite.min()), float(finite.mean()), float(finite.max())
    if not all(map(math.isfinite, (low, mean, high))):
        return
    result["min"], result["mean"], result["max"] = low, mean, high
    result["line"] = one_line(f"{result['line']}: {low:.4g} … {high:.4g}")
    if array.ndim and array.size > 1:
        result["heat"] = _heat(sample, low, high)


def _heat(sample: Any, low: float, high: float) -> list[list[int | None]]:
    """Means of blocks, from 0 for the lowest number in the array to 255 for the highest."""
    import numpy as np

    shape = sample.shape[:2] if sample.ndim > 1 else (1, sample.shape[0])
    most = (_HEAT, _HEAT) if sample.ndim > 1 else (1, _STRIP)
    known = np.isfinite(sample)
    with np.errstate(all="ignore"):
        values = np.where(known, (sample - low) / ((high - low) or 1.0), 0.0).reshape(*shape, -1).sum(axis=-1)
        counts = known.reshape(*shape, -1).sum(axis=-1)
        for axis in (0, 1):
            parts = min(shape[axis], most[axis])
            starts = [place * shape[axis] // parts for place in range(parts)]
            values, counts = np.add.reduceat(values, starts, axis=axis), np.add.reduceat(counts, starts, axis=axis)
        scaled = values / counts * 255
    return [[round(part) if math.isfinite(part) else None for part in row] for row in scaled.tolist()]


def cell(value: Any) -> str:
    """A table's cell as text. Only classes known to have a harmless `str` are asked for it."""
    cls = type(value)
    if cls is str:
        return _clip(value)
    if cls is bytes:
        return _clip(value[:_CELL].hex(" "))
    if cls is float:
        return f"{value:.10g}"
    if cls is int:
        return str(value) if value.bit_length() < 250 else f"{value:.5e}" if value.bit_length() < 1_000 else "a large int"
    if cls is list or cls is tuple or cls is dict or cls.__name__ == "ndarray":
        return _clip(_nested(value))
    if cls.__module__.partition(".")[0] in ("builtins", "numpy", "pandas", "datetime", "decimal", "uuid"):
        return _clip(str(value))
    return f"<{cls.__name__}>"


def _nested(value: Any, depth: int = 0) -> str:
    """A collection in a cell; no more of it is looked at than the cell can show."""
    opening, closing = ("{", "}") if type(value) is dict else ("(", ")") if type(value) is tuple else ("[", "]")
    if depth > 3:
        return f"{opening}…{closing}"
    texts: list[str] = []
    size = 0
    for part in value.items() if type(value) is dict else value:
        if size > _CELL:
            break
        if type(value) is dict:
            texts.append(f"{cell(part[0])}: {_part(part[1], depth)}")
        else:
            texts.append(_part(part, depth))
        size += len(texts[-1]) + 2
    return opening + ", ".join(texts) + closing


def _part(value: Any, depth: int) -> str:
    return _nested(value, depth + 1) if type(value) in (list, tuple, dict) else cell(value)


def one_line(text: str) -> str:
    """The text in one line of at most 120 characters."""
    if len(text) > LINE:
        text = text[: LINE - 1] + "…"
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def _clip(text: str) -> str:
    text = str(text)
    text = text if len(text) <= _CELL else text[: _CELL - 1] + "…"
    return text if text.isprintable() else text.encode("utf-8", "replace").decode()


def _size(part: Any) -> int:
    return len(_to_json(part))
