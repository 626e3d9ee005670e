"""pandas frames, series and indexes (as Parquet) and its scalars."""

import functools
import importlib
import io
import sys
from collections.abc import Hashable
from typing import Any

from nbflow.values import preview as previews
from nbflow.values.arrays import library
from nbflow.values.moments import zone_back, zone_node
from nbflow.values.nodes import FINDERS, Encoder, Node, Reader, Refused, Writer, decodes, forms, type_name
from nbflow.values.tables import altered, exact, from_parquet, need, refusing, to_parquet

Tagged = dict[str, Any]


def _pandas(writer: Writer, value: Any, frame: Any, **shape: Any) -> Node:
    """Store a frame, a series or an index; all three go through a frame, *shape* says which it was."""
    kind = type_name(type(value))
    pyarrow = need("pyarrow", kind)
    with refusing(kind, "its column names"):
        if not frame.columns.is_unique:
            twice = frame.columns[frame.columns.duplicated()][0]
            raise altered(kind, f"column {twice!r}", "another column has the same name")
    _refuse_mixed_names(kind, frame.columns)
    extra = {**shape, "index": _index_extra(writer, frame.index), "columns": _index_extra(writer, frame.columns)}
    if attrs := getattr(value, "attrs", None):
        extra["attrs"] = writer.child(".attrs", attrs)
    if (flags := getattr(value, "flags", None)) is not None and not flags.allows_duplicate_labels:
        extra["unique"] = True
    bare = _bare(frame)
    try:
        content = to_parquet(pyarrow.Table.from_pandas(bare), kind)
        plain = from_parquet(io.BytesIO(content)).to_pandas()
        if lost := _lost_dtypes(bare, plain):
            extra["dtypes"] = lost
        back = _frame_back(plain, Reader(None), extra)
    except (Refused, MemoryError):
        raise
    except Exception as error:
        raise _blame(kind, bare, error) from error
    _compare_frames(kind, frame, back)
    return writer.file("pandas", "parquet", content, type=kind, extra=extra)


def _lost_dtypes(frame: Any, plain: Any) -> list[Node]:
    """What is kept beside the Parquet file of dtypes that it does not keep, by place: column, -1 for the index."""
    places = [(place, frame.iloc[:, place], plain.iloc[:, place]) for place in range(frame.shape[1])]
    if frame.index.nlevels == 1 and plain.index.nlevels == 1:
        places.append((-1, frame.index, plain.index))
    lost: list[Node] = []
    for place, mine, theirs in places:
        if mine.dtype == theirs.dtype:
            continue
        if hasattr(mine.dtype, "categories"):  # no row, no categories
            categories = Writer(None).child(f".dtypes[{place}]", mine.dtype.categories)  # in no file of its own
            lost.append({"at": place, "categories": categories, "ordered": bool(mine.dtype.ordered)})
        elif mine.dtype.kind in "mM" and theirs.dtype.kind == mine.dtype.kind:  # whole seconds come back as milliseconds
            lost.append({"at": place, "dtype": str(mine.dtype)})
    return lost


def _dtype_back(reader: Reader, lost: Tagged) -> Any:
    from pandas import CategoricalDtype

    return lost["dtype"] if "dtype" in lost else CategoricalDtype(reader.value(lost["categories"]), ordered=lost["ordered"])


def _refuse_mixed_names(kind: str, columns: Any) -> None:
    """Refuse column names that pyarrow would warn of and then turn into text."""
    from pandas.api.types import infer_dtype

    if len(kinds := set(map(type, columns))) > 1:
        raise altered(kind, f"its column names {_few(columns)}", f"they are of {len(kinds)} types")
    for level in getattr(columns, "levels", [columns]):
        if "mixed" in infer_dtype(level):
            raise altered(kind, f"its column names {_few(columns)}", "they are no texts, numbers or moments")


def _bare(frame: Any) -> Any:
    """The frame without attrs and without index names that Parquet would turn into text; they are kept beside it."""
    names = list(frame.index.names)
    frame = frame.copy(deep=False)
    frame.attrs = {}
    if not all(name is None or type(name) is str for name in names) or set(names) & set(frame.columns):
        frame.index = frame.index.set_names([None] * len(names))
    return frame


def _blame(kind: str, frame: Any, error: Exception) -> Refused:
    """Find the column that Parquet objects to by trying each alone."""
    pyarrow = importlib.import_module("pyarrow")
    for position, name in enumerate(frame.columns):
        with refusing(kind, f"column {name!r}"):
            table = pyarrow.Table.from_pandas(frame.iloc[:, [position]], preserve_index=False)
            from_parquet(io.BytesIO(to_parquet(table, kind))).to_pandas()
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


def _frame_back(frame: Any, reader: Reader, extra: Tagged) -> Any:
    for lost in extra.get("dtypes", ()):
        dtype = _dtype_back(reader, lost)
        if lost["at"] < 0:
            frame.index = frame.index.astype(dtype)
        else:
            frame.isetitem(lost["at"], frame.iloc[:, lost["at"]].astype(dtype))
    if not frame.shape[1] and "range" in extra["index"]:
        frame = type(frame)(index=range(len(range(*extra["index"]["range"]))), columns=frame.columns)
    frame.index = _index_back(frame.index, reader, extra["index"])
    frame.columns = _index_back(frame.columns, reader, extra["columns"])
    frame.attrs = {}
    return frame


@functools.cache
def _know_extension_types() -> None:
    """Make pandas tell Arrow of its periods and intervals, which it does when it first writes one: else they are structs."""
    library("pyarrow").array(library("pandas").interval_range(0, 1).array)


@decodes("pandas")
def _pandas_back(reader: Reader, node: Tagged) -> Any:
    _know_extension_types()
    extra = node["extra"]
    with reader.open(node) as file:
        value = _frame_back(from_parquet(file).to_pandas(), reader, extra)
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
            ours, others = str(mine.levels[level].dtype), str(theirs.levels[level].dtype)
            if ours != others:  # of integers, where a label is missing: the labels look like floats already
                return f"level {level}: dtype {ours!r} comes back as {others!r}"
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


def _pandas_scalar(_writer: Writer, value: Any) -> Node:
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


@forms("pd")
def _pandas_scalar_form(_form: Any, node: Tagged) -> Any:
    return node.get("text")


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


previews.MADE_BY["pandas"] = _preview_pandas

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
_KINDS: dict[str, Encoder] = {
    "DataFrame": _frame,
    "Series": _series,
    **dict.fromkeys(_INDEXES, _index),
    **dict.fromkeys(("Timestamp", "Timedelta", "Period"), _pandas_scalar),
}


def _find(cls: type) -> Encoder | None:
    if cls.__module__.partition(".")[0] != "pandas" or (pandas := sys.modules.get("pandas")) is None:
        return None
    if cls is type(pandas.NaT) or cls is type(pandas.NA):
        return _pandas_scalar
    return _KINDS.get(cls.__name__) if getattr(pandas, cls.__name__, None) is cls else None


FINDERS.append(_find)
