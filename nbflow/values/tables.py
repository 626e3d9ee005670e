"""Tables as Parquet: written, read back and compared; what would come back otherwise is refused by column."""

import contextlib
import importlib
import io
import sys
from collections.abc import Hashable, Iterator
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


def _need(name: str, kind: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Refused(kind, "tables are stored as Parquet and pyarrow is not installed", "install pyarrow") from error


def _to_parquet(table: Any, kind: str) -> bytes:
    buffer = io.BytesIO()
    # "compliant" would rename the fields inside lists
    _need("pyarrow.parquet", kind).write_table(table, buffer, compression="zstd", use_compliant_nested_type=False)
    if buffer.tell() > MAX_BYTES:
        raise too_large(kind, buffer.tell())
    return buffer.getvalue()


def _from_parquet(file: Any) -> Any:
    return library("pyarrow.parquet").read_table(file)


# pandas


def _pandas(writer: Writer, value: Any, frame: Any, **shape: Any) -> Node:
    """Store a frame, a series or an index; all three go through a frame, *shape* says which it was."""
    kind = type_name(type(value))
    pyarrow = _need("pyarrow", kind)
    with refusing(kind, "its column names"):
        if not frame.columns.is_unique:
            twice = frame.columns[frame.columns.duplicated()][0]
            raise altered(kind, f"column {twice!r}", "another column has the same name")
    extra = {**shape, "index": _index_extra(writer, frame.index), "columns": _index_extra(writer, frame.columns)}
    if attrs := getattr(value, "attrs", None):
        extra["attrs"] = writer.child(".attrs", attrs)
    if (flags := getattr(value, "flags", None)) is not None and not flags.allows_duplicate_labels:
        extra["unique"] = True
    try:
        content = _to_parquet(pyarrow.Table.from_pandas(_with_text_names(frame)), kind)
        back = _frame_back(_from_parquet(io.BytesIO(content)), Reader(None), extra)
    except (Refused, MemoryError):
        raise
    except Exception as error:
        raise _blame(kind, frame, error) from error
    _compare_frames(kind, frame, back)
    return writer.file("pandas", "parquet", content, type=kind, extra=extra)


def _with_text_names(frame: Any) -> Any:
    """The frame without index names that Parquet would turn into text; they are kept beside it."""
    names = list(frame.index.names)
    if all(name is None or type(name) is str for name in names) and not set(names) & set(frame.columns):
        return frame
    frame = frame.copy(deep=False)
    frame.index = frame.index.set_names([None] * len(names))
    return frame


def _blame(kind: str, frame: Any, error: Exception) -> Refused:
    """Find the column that Parquet objects to by trying each alone."""
    pyarrow = importlib.import_module("pyarrow")
    for position, name in enumerate(frame.columns):
        with refusing(kind, f"column {name!r}"):
            table = pyarrow.Table.from_pandas(frame.iloc[:, [position]], preserve_index=False)
            _from_parquet(io.BytesIO(_to_parquet(table, kind))).to_pandas()
    return altered(kind, "its index", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}")


def _index_extra(writer: Writer, index: Any) -> Tagged:
    """What Parquet does not keep of an index: names that are no text, range, frequency."""
    from pandas import RangeIndex

    extra: Tagged = {"names": writer.child(".names", list(index.names))}
    if type(index) is RangeIndex:
        extra["range"] = [index.start, index.stop, index.step]
    freq = getattr(index, "freq", None)
    if freq is not None and not hasattr(index.dtype, "freq"):
        extra["freq"] = freq.freqstr
    return extra


def _index_back(index: Any, reader: Reader, extra: Tagged) -> Any:
    from pandas import RangeIndex

    if "range" in extra:
        index = RangeIndex(*extra["range"])
    index = index.set_names(reader.value(extra["names"]))
    if "freq" in extra:
        index = type(index)(index, freq=extra["freq"])
    return index


def _frame_back(table: Any, reader: Reader, extra: Tagged) -> Any:
    frame = table.to_pandas()
    if not frame.shape[1] and "range" in extra["index"]:
        frame = type(frame)(index=range(len(range(*extra["index"]["range"]))), columns=frame.columns)
    frame.index = _index_back(frame.index, reader, extra["index"])
    frame.columns = _index_back(frame.columns, reader, extra["columns"])
    frame.attrs = {}
    return frame


@decodes("pandas")
def _pandas_back(reader: Reader, node: Tagged) -> Any:
    library("pandas")
    extra = node["extra"]
    with reader.open(node) as file:
        value = _frame_back(_from_parquet(file), reader, extra)
    if "series" in extra:
        value = value.iloc[:, 0].rename(None)
        value.name = reader.value(extra["series"])
    elif "only_index" in extra:
        return value.index
    if "attrs" in extra:
        value.attrs = reader.value(extra["attrs"])
    return value.set_flags(allows_duplicate_labels=False) if "unique" in extra else value


def _frame(writer: Writer, value: Any) -> Node:
    return _pandas(writer, value, value)


def _series(writer: Writer, value: Any) -> Node:
    return _pandas(writer, value, value.to_frame("value"), series=writer.child(".name", value.name))


def _index(writer: Writer, value: Any) -> Node:
    from pandas import DataFrame

    return _pandas(writer, value, DataFrame(index=value), only_index=True)


def _compare_frames(kind: str, frame: Any, back: Any) -> None:
    if why := _index_difference(frame.columns, back.columns):
        raise altered(kind, f"its column names {_few(frame.columns)}", why)
    if why := _index_difference(frame.index, back.index):
        raise altered(kind, "its index", why)
    for position, name in enumerate(frame.columns):
        mine, theirs = frame.iloc[:, position], back.iloc[:, position]
        if why := _difference(mine.array, theirs.array):
            raise altered(kind, f"column {name!r}", why)


def _few(names: Any) -> str:
    shown = [repr(name) for name in names[:5]]
    return ", ".join(shown) + (" …" if len(names) > 5 else "")


def _index_difference(mine: Any, theirs: Any) -> str | None:
    if type(mine) is not type(theirs):
        return f"a {type(mine).__name__} comes back as a {type(theirs).__name__}"
    if len(mine) != len(theirs):
        return f"{len(mine)} entries come back as {len(theirs)}"
    if not exact(list(mine.names), list(theirs.names)):
        return f"its names {list(mine.names)!r} come back as {list(theirs.names)!r}"
    if mine.nlevels > 1 or type(mine).__name__ == "MultiIndex":
        if mine.nlevels != theirs.nlevels:
            return f"{mine.nlevels} levels come back as {theirs.nlevels}"
        for level in range(mine.nlevels):
            if why := _difference(mine.get_level_values(level).array, theirs.get_level_values(level).array):
                return f"level {level}: {why}"
        return None
    if getattr(mine, "freq", None) != getattr(theirs, "freq", None):
        return f"its freq {mine.freq!r} comes back as {theirs.freq!r}"
    return None if "RangeIndex" in type(mine).__name__ and mine.equals(theirs) else _difference(mine.array, theirs.array)


def _difference(mine: Any, theirs: Any) -> str | None:
    """How two pandas arrays differ, None where they don't."""
    if str(mine.dtype) != str(theirs.dtype) or mine.dtype != theirs.dtype:
        return f"dtype {str(mine.dtype)!r} comes back as {str(theirs.dtype)!r}"
    if hasattr(mine, "categories"):
        if why := _index_difference(mine.categories, theirs.categories):
            return f"its categories: {why}"
        return None if (mine.codes == theirs.codes).all() else "its categories are numbered anew"
    if str(mine.dtype) != "object":
        return None if _same(mine, theirs) else "values differ"
    ours, others = list(mine), list(theirs)
    for row, (one, other) in enumerate(zip(ours, others)):
        if not exact(one, other):
            if type(one) is not type(other):
                return f"a '{type_name(type(one))}' in row {row} comes back as '{type_name(type(other))}'"
            return f"the '{type_name(type(one))}' in row {row} comes back as another one"
    return None


def _same(mine: Any, theirs: Any) -> bool:
    import numpy as np

    if type(mine) is not type(theirs):
        return False
    if type(mine).__name__ == "NumpyExtensionArray":  # a plain numpy column
        ours, others = np.asarray(mine), np.asarray(theirs)
        return bool(np.array_equal(ours, others, equal_nan=ours.dtype.kind in "fc"))
    return bool(mine.equals(theirs))


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


# pandas scalars


def _pandas_scalar(_writer: Writer, value: Any) -> Node:
    from nbflow.values.plain_types import zone_node

    pandas, name = sys.modules["pandas"], type(value).__name__
    if name in ("NaTType", "NAType"):
        return {"$": "pd", "c": "NaT" if value is pandas.NaT else "NA"}
    if name == "Period":
        node = {"$": "pd", "c": name, "v": value.ordinal, "freq": value.freqstr}
    else:
        node = {"$": "pd", "c": name, "v": int(value.asm8.view("i8")), "unit": value.unit}
        if name == "Timestamp" and value.tz is not None:
            node["tz"] = zone_node(value.tz)
    node["text"] = value.isoformat() if hasattr(value, "isoformat") else str(value)
    back = _pandas_scalar_back(Reader(None), node)
    zone, zone_again = getattr(value, "tzinfo", None), getattr(back, "tzinfo", None)
    if back != value or getattr(back, "fold", 0) != getattr(value, "fold", 0) or zone != zone_again:
        raise Refused(type_name(type(value)), f"{value} would come back as {back}", "return it as text or as a datetime")
    return node


@decodes("pd")
def _pandas_scalar_back(_reader: Reader, node: Tagged) -> Any:
    from nbflow.values.plain_types import zone_back

    pandas, name = library("pandas"), node["c"]
    if name in ("NaT", "NA"):
        return getattr(pandas, name)
    if name == "Period":
        return pandas.Period(ordinal=node["v"], freq=node["freq"])
    numpy = library("numpy")
    if name == "Timedelta":
        return pandas.Timedelta(numpy.timedelta64(node["v"], node["unit"]))
    moment = pandas.Timestamp(numpy.datetime64(node["v"], node["unit"]))
    return moment if "tz" not in node else moment.tz_localize("UTC").tz_convert(zone_back(node["tz"]))


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
        content = _to_parquet(value, kind)
        back = _from_parquet(io.BytesIO(content))
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
        return _from_parquet(file)


@forms("pd")
def _pandas_scalar_form(_form: Any, node: Tagged) -> Any:
    return node.get("text")


@forms("npy", "png", "pandas", "polars", "pyarrow")
def _file_form(_form: Any, node: Tagged) -> Any:
    return node.get("uri")


# previews and finding


def _preview_pandas(value: Any, node: Tagged) -> previews.Preview:
    from pandas import DataFrame, RangeIndex

    extra = node["extra"]
    frame = value
    if "series" in extra:
        frame = value.to_frame(value.name if isinstance(value.name, Hashable) and value.name is not None else "value")
    elif "only_index" in extra:
        frame = value.to_frame(index=False) if value.nlevels > 1 else DataFrame({str(value.name or "index"): value})
    head = frame.iloc[:50, :20]
    columns = [(previews.cell(name), str(dtype)) for name, dtype in zip(head.columns, head.dtypes)]
    rows = [list(row) for row in head.itertuples(index=False, name=None)]
    plain = type(frame.index) is RangeIndex and frame.index.start == 0 and frame.index.step == 1
    return previews.of_table(node["type"], frame.shape, columns, rows, None if plain else list(head.index))


def _preview_polars(value: Any, node: Tagged) -> previews.Preview:
    frame = value.to_frame() if node.get("series") else value
    columns = [(name, str(dtype)) for name, dtype in frame.schema.items()]
    return previews.of_table(node["type"], frame.shape, columns, [list(row) for row in frame.head(50).rows()])


def _preview_arrow(value: Any, node: Tagged) -> previews.Preview:
    columns = [(field.name, str(field.type)) for field in value.schema]
    head = value.slice(0, 50)
    rows = [list(row) for row in zip(*(column.to_pylist() for column in head.columns))]
    return previews.of_table(node["type"], value.shape, columns, rows)


previews.MADE_BY.update({"pandas": _preview_pandas, "polars": _preview_polars, "pyarrow": _preview_arrow})

_INDEXES = (
    "Index",
    "RangeIndex",
    "DatetimeIndex",
    "TimedeltaIndex",
    "PeriodIndex",
    "MultiIndex",
    "CategoricalIndex",
    "IntervalIndex",
)
_FOUND: dict[str, dict[str, Encoder]] = {
    "pandas": {
        "DataFrame": _frame,
        "Series": _series,
        **dict.fromkeys(_INDEXES, _index),
        **dict.fromkeys(("Timestamp", "Timedelta", "Period"), _pandas_scalar),
    },
    "polars": {"DataFrame": _polars_frame, "Series": _polars_series},
    "pyarrow": {"Table": _arrow},
}


def _find(cls: type) -> Encoder | None:
    root = cls.__module__.partition(".")[0]
    if (known := _FOUND.get(root)) is None or (module := sys.modules.get(root)) is None:
        return None
    if root == "pandas" and (cls is type(module.NaT) or cls is type(module.NA)):
        return _pandas_scalar
    return known.get(cls.__name__) if getattr(module, cls.__name__, None) is cls else None


FINDERS.append(_find)
