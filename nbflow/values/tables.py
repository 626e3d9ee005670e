"""Tables as Parquet: written, read back and compared; what would come back otherwise is refused by column.

What all tables share, polars and pyarrow; pandas is in `pandas_types.py`.
"""

import contextlib
import importlib
import io
import sys
from collections.abc import Iterator
from typing import Any

from nbflow.values import preview as previews
from nbflow.values.arrays import library
from nbflow.values.nodes import FINDERS, MAX_BYTES, Encoder, Node, Reader, Refused, Writer, decodes, forms, too_large, type_name

Tagged = dict[str, Any]
_CONVERT = "convert it, or store the table yourself and return its path"


def altered(kind: str, where: str, why: str) -> Refused:
    """The refusal of a table; *where* names the column or index."""
    return Refused(kind, f"{where} would not come back from Parquet as it is: {why}", _CONVERT)


@contextlib.contextmanager
def refusing(kind: str, where: str) -> Iterator[None]:
    """Turn whatever a library objects to into a refusal."""
    try:
        yield
    except (Refused, MemoryError):
        raise
    except Exception as error:
        lines = str(error).splitlines() or [""]
        raise altered(kind, where, f"{type(error).__name__}: {lines[0][:200]}") from error


def need(name: str, kind: str) -> Any:
    """Import what writing a table takes, or refuse the table."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Refused(kind, "tables are stored as Parquet and pyarrow is not installed", "install pyarrow") from error


def to_parquet(table: Any, kind: str) -> bytes:
    """An Arrow table as the bytes of a Parquet file."""
    buffer = io.BytesIO()
    # "compliant" would rename the fields inside lists
    need("pyarrow.parquet", kind).write_table(table, buffer, compression="zstd", use_compliant_nested_type=False)
    if buffer.tell() > MAX_BYTES:
        raise too_large(kind, buffer.tell())
    return buffer.getvalue()


def from_parquet(file: Any) -> Any:
    """The Arrow table in a Parquet file."""
    return library("pyarrow.parquet").read_table(file)


_COMPARED = {
    "builtins": {"str", "bytes", "bool", "int", "NoneType"},
    "datetime": {"date", "datetime", "time", "timedelta"},
    "uuid": {"UUID"},
}


def exact(one: Any, other: Any) -> bool:
    """Whether two cells are of one type and one value all the way down; False for types that nobody vouches for."""
    cls = type(one)
    if cls is not type(other):
        return False
    if cls is float:
        return bool(one == other or (one != one and other != other))  # nan alone differs from itself
    module, name = cls.__module__, cls.__name__
    if name in _COMPARED.get(module, ()):
        return bool(one == other) and getattr(one, "tzinfo", None) == getattr(other, "tzinfo", None)
    if name == "Decimal":
        return str(one) == str(other)
    if cls is list or cls is tuple:
        return len(one) == len(other) and all(map(exact, one, other))
    if cls is dict:
        return exact(list(one), list(other)) and exact(list(one.values()), list(other.values()))
    root = module.partition(".")[0]
    if root == "numpy" and name == "ndarray":
        same = one.dtype == other.dtype and one.shape == other.shape
        return same and exact(one.tolist(), other.tolist())
    if root == "pandas" and name in ("Timestamp", "Timedelta", "Period", "NaTType", "NAType"):
        return one is other or (name not in ("NaTType", "NAType") and bool(one == other) and str(one) == str(other))
    return False


# polars


def _polars(writer: Writer, value: Any, frame: Any, **shape: Any) -> Node:
    kind = type_name(type(value))
    polars = sys.modules["polars"]
    buffer = io.BytesIO()
    try:
        frame.write_parquet(buffer, compression="zstd")
        back = polars.read_parquet(io.BytesIO(buffer.getvalue()))
    except Exception as error:
        for name in frame.columns:
            with refusing(kind, f"column {name!r}"):
                frame.select(polars.col(f"^{_escaped(name)}$")).write_parquet(io.BytesIO())
        raise altered(kind, "it", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}") from error
    if buffer.tell() > MAX_BYTES:
        raise too_large(kind, buffer.tell())
    if frame.shape != back.shape or frame.columns != back.columns:
        raise altered(kind, "its shape", f"{frame.shape} comes back as {back.shape}")
    for name in frame.columns:
        mine, theirs = frame.get_column(name), back.get_column(name)
        if mine.dtype != theirs.dtype:
            raise altered(kind, f"column {name!r}", f"dtype {mine.dtype} comes back as {theirs.dtype}")
        if not mine.equals(theirs, check_dtypes=True, null_equal=True):
            raise altered(kind, f"column {name!r}", "values differ")
    return writer.file("polars", "parquet", buffer.getvalue(), type=kind, **shape)


def _escaped(name: str) -> str:
    import re

    return re.escape(name)


@decodes("polars")
def _polars_back(reader: Reader, node: Tagged) -> Any:
    polars = library("polars")
    with reader.open(node) as file:
        frame = polars.read_parquet(file.read())
    return frame.to_series(0) if node.get("series") else frame


def _polars_frame(writer: Writer, value: Any) -> Node:
    return _polars(writer, value, value)


def _polars_series(writer: Writer, value: Any) -> Node:
    return _polars(writer, value, value.to_frame(), series=True)


# pyarrow


def _arrow(writer: Writer, value: Any) -> Node:
    kind = "pyarrow.Table"
    with refusing(kind, "it"):
        content = to_parquet(value, kind)
        back = from_parquet(io.BytesIO(content))
    if value.num_rows != back.num_rows or value.column_names != back.column_names:
        raise altered(kind, "its shape", f"{value.shape} comes back as {back.shape}")
    for position, field in enumerate(value.schema):
        other = back.schema.field(position)
        if not field.equals(other, check_metadata=True):
            raise altered(
                kind, f"column {field.name!r}", f"type {field.type} comes back as {other.type}, or its metadata changes"
            )
        if not _same_arrow(value.column(position), back.column(position)):
            raise altered(kind, f"column {field.name!r}", "values differ")
    if (value.schema.metadata or {}) != (back.schema.metadata or {}):
        raise altered(kind, "its schema", "the metadata changes")
    return writer.file("pyarrow", "parquet", content, type=kind)


def _same_arrow(mine: Any, theirs: Any) -> bool:
    if mine.equals(theirs):
        return True
    if str(mine.type) in ("double", "float", "halffloat"):
        import numpy as np

        nulls = mine.is_null().equals(theirs.is_null())
        return bool(nulls and np.array_equal(mine.to_numpy(), theirs.to_numpy(), equal_nan=True))
    return exact(mine.to_pylist(), theirs.to_pylist())  # nan inside lists and structs differs from itself for Arrow


@decodes("pyarrow")
def _arrow_back(reader: Reader, node: Tagged) -> Any:
    library("pyarrow")
    with reader.open(node) as file:
        return from_parquet(file)


@forms("npy", "png", "pandas", "polars", "pyarrow")
def _file_form(_form: Any, node: Tagged) -> Any:
    return node.get("uri")


# previews and finding


def _preview_polars(value: Any, node: Tagged) -> previews.Preview:
    frame = value.to_frame() if node.get("series") else value
    head = frame[:50, :20]
    columns = [(name, str(dtype)) for name, dtype in head.schema.items()]
    return previews.of_table(node["type"], frame.shape, columns, [list(row) for row in head.rows()])


def _preview_arrow(value: Any, node: Tagged) -> previews.Preview:
    head = value.slice(0, 50).select(range(min(20, value.num_columns)))
    columns = [(field.name, str(field.type)) for field in head.schema]
    rows = [list(row) for row in zip(*(column.to_pylist() for column in head.columns))]
    return previews.of_table(node["type"], value.shape, columns, rows)


previews.MADE_BY.update({"polars": _preview_polars, "pyarrow": _preview_arrow})

_FOUND: dict[str, dict[str, Encoder]] = {
    "polars": {"DataFrame": _polars_frame, "Series": _polars_series},
    "pyarrow": {"Table": _arrow},
}


def _find(cls: type) -> Encoder | None:
    root = cls.__module__.partition(".")[0]
    if (known := _FOUND.get(root)) is None or (module := sys.modules.get(root)) is None:
        return None
    return known.get(cls.__name__) if getattr(module, cls.__name__, None) is cls else None


FINDERS.append(_find)
