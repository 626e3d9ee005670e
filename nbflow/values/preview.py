"""Small, safe summaries, made once when a value is stored.

They are made from what the codec wrote, never by `repr` of a user's object, and hold at most 8 kB of JSON. Every shape has
"kind" and "line", the one line a row shows:

    text    text, truncated                     json    text (indented), truncated
    table   shape, columns [{name, dtype}], head (rows of texts), [index]
    array   shape, dtype, min, mean, max, head, [heat] (rows of 0…255)
    image   width, height, [png] (base64)       bytes   size, head (hex)
"""

import math
from collections.abc import Callable
from typing import Any

import msgspec

from nbflow.values.nodes import FORMS, form, to_base64

Preview = dict[str, Any]

LIMIT = 8_000
LINE = 120
_ROWS, _COLUMNS, _CELL = 50, 20, 80
_PNG = 4_400  # 6 kB of base64
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


def of_bytes(head: bytes, size: int, name: str = "bytes") -> Preview:
    """The preview of bytes."""
    return {
        "kind": "bytes",
        "size": size,
        "head": head.hex(" "),
        "line": one_line(f"{name}, {size:,} bytes: {head[:16].hex(' ')}"),
    }


def of_image(png: bytes, width: int, height: int) -> Preview:
    """The preview of a picture; small ones are in it."""
    result: Preview = {"kind": "image", "width": width, "height": height, "line": f"picture {width}×{height}"}
    if len(png) <= _PNG:
        result["png"] = to_base64(png)
    return result


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
    flat = array.reshape(1, -1) if array.ndim < 2 else array.reshape(-1, array.shape[-1]) if array.size else array[:0, :0]
    if array.ndim != 1 or array.size:
        size = _size(result)
        for row in flat[:_ROWS, :_COLUMNS] if flat.ndim == 2 else []:
            cells = [cell(part) for part in row.tolist()] if array.dtype.kind != "V" else [cell(str(part)) for part in row]
            size += _size(cells) + 2
            if size > LIMIT:
                break
            result["head"].append(cells)
    return result


def _statistics(array: Any, result: Preview) -> None:
    import numpy as np

    step = max(1, array.size // 5_000_000)  # of huge arrays a sample, so that a preview costs no second
    sample = array.reshape(-1)[::step].astype(np.float64)
    finite = sample[np.isfinite(sample)]
    if not finite.size:
        return
    low, mean, high = float(finite.min()), float(finite.mean()), float(finite.max())
    if not all(map(math.isfinite, (low, mean, high))):
        return
    result["min"], result["mean"], result["max"] = low, mean, high
    result["line"] = one_line(f"{result['line']}: {low:.4g} … {high:.4g}")
    if array.ndim == 2 and min(array.shape) > 1:
        cut = array[:: -(-array.shape[0] // 16), :: -(-array.shape[1] // 16)].astype(np.float64)
        scaled = np.nan_to_num((cut - low) / ((high - low) or 1.0) * 255, nan=0.0, posinf=255.0, neginf=0.0)
        result["heat"] = np.clip(scaled, 0, 255).astype(int).tolist()


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
    if cls.__module__.partition(".")[0] in ("builtins", "numpy", "pandas", "datetime", "decimal", "uuid"):
        return _clip(str(value[:_COLUMNS]) if cls.__name__ in ("list", "ndarray") and cls is not dict else str(value))
    return f"<{cls.__name__}>"


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
