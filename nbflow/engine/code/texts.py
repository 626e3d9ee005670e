"""The source text of code objects: from the cells and files that Python's line cache knows (S56)."""

import dis
import linecache
from types import CodeType
from typing import Any

from nbflow.core.parts import digest
from nbflow.core.positions import Index, Place
from nbflow.engine.code.constants import is_small, token

_KEPT = 4096

_indexes: dict[str, tuple[list[str], Index | None]] = {}
_places: dict[int, tuple[CodeType, Place | None]] = {}


def place_of(code: CodeType, namespace: dict[str, Any]) -> Place | None:
    """Where the text of *code* is; None where there is none, or the file has changed since it was loaded."""
    known = _places.get(id(code))
    if known is not None:
        return known[1]
    if len(_places) >= _KEPT:
        _places.clear()
    index = _index_of(code.co_filename, namespace)
    place = None if index is None else index.find(code)
    _places[id(code)] = code, place
    return place


def _index_of(file: str, namespace: dict[str, Any]) -> Index | None:
    lines = linecache.getlines(file, namespace if file.endswith(".py") else None)
    known = _indexes.get(file)
    if known is not None and known[0] is lines:
        return known[1]
    if len(_indexes) >= _KEPT:
        _indexes.clear()
    try:
        index = Index("".join(lines)) if lines else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        index = None
    _indexes[file] = lines, index
    return index


def is_written(text: str) -> bool:
    """Whether a text stands in a cell or in a file of the user's: then a history may hold it, too."""
    escaped = repr(text)[1:-1]
    known = [lines for lines, _ in tuple(_indexes.values())]
    cells = (entry for entry in tuple(linecache.cache.values()) if len(entry) == 4 and entry[1] is None)  # in no file
    known += [entry[2] for entry in cells]
    return any(escaped in line or text in line for lines in known for line in lines)


def bytecode_hash(code: CodeType) -> str:
    """The hash of code without source: its instructions and what they name, without file name and positions."""
    instructions = [f"{each.opname} {_argument(each.argval)}" for each in dis.get_instructions(code)]
    return digest(" ".join(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]), *instructions)


def _argument(value: object) -> str:
    if type(value) is CodeType:
        return bytecode_hash(value)
    if type(value) is frozenset:
        return ",".join(sorted(map(repr, value)))
    return token(value) if is_small(value) else repr(value)
