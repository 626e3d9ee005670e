"""Tables come back exactly, schema and index included, or are refused with the name of the column."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbflow.errors import NotSerialisableError, UndecodableError
from nbflow.values.codec import decode, encode, equal
from tests.values import shapes

DAYS = pd.date_range("2024-01-01", periods=2)


def attributed():
    frame = pd.DataFrame({"a": [1]})
    frame.attrs = {"source": ("x", {1})}
    return frame


FRAMES = {
    "plain": pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": [1.5, np.nan]}),
    "no columns": pd.DataFrame(index=[1, 2, 3]),
    "no columns, range": pd.DataFrame(index=pd.RangeIndex(2, 10, 2, name="q")),
    "empty": pd.DataFrame(),
    "no rows": pd.DataFrame({"a": pd.Series([], dtype="int32")}),
    "multi-index": pd.DataFrame({"a": [1, 2]}, index=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["p", None])),
    "multi-index of columns": pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "x"), ("b", "y")])),
    "time zones": pd.DataFrame({"a": DAYS.tz_localize("Europe/Paris"), "b": DAYS.tz_localize("UTC")}),
    "freq": pd.DataFrame({"a": [1, 2]}, index=DAYS),
    "freq of columns": pd.DataFrame([[1, 2]], columns=DAYS),
    "categories": pd.DataFrame({"a": pd.Categorical(["x", "y"], categories=["y", "x", "z"], ordered=True)}),
    "nullable": pd.DataFrame(
        {"a": pd.array([1, None], "Int8"), "b": pd.array([True, None], "boolean"), "c": pd.array([1.5, None], "Float32"),
         "d": pd.array(["x", None], "string")}
    ),
    "decimal": pd.DataFrame({"a": [Decimal("1.10"), Decimal("2.00")]}),
    "dates": pd.DataFrame({"a": [dt.date(2020, 1, 1), None]}),
    "int names": pd.DataFrame([[1, 2]]),
    "other int names": pd.DataFrame([[1, 2]], columns=[5, 3]),
    "arrays in cells": pd.DataFrame({"a": [np.arange(2.0, dtype="f4"), np.arange(3.0, dtype="f4")]}),
    "intervals": pd.DataFrame({"a": pd.interval_range(0, 2)}),
    "periods": pd.DataFrame({"a": [1, 2]}, index=pd.period_range("2020", periods=2, freq="M")),
    "bytes": pd.DataFrame({"a": [b"x", None]}),
    "timedelta": pd.DataFrame({"a": pd.to_timedelta([1, 2], unit="ns")}),
    "units": pd.DataFrame({"ms": np.array([1, 2], "M8[ms]"), "us": np.array([1, 2], "M8[us]"), "ns": np.array([1, 2], "M8[ns]")}),
    "whole seconds": pd.DataFrame({"t": np.array([1, 2], "M8[s]"), "d": np.array([3, 4], "m8[s]")}),
    "whole seconds in a zone": pd.DataFrame({"t": DAYS.as_unit("s").tz_localize("Europe/Paris")}, index=DAYS.as_unit("s")),
    "category of ints": pd.DataFrame({"a": pd.Categorical([1, 2])}),
    "categories without rows": pd.DataFrame({"a": pd.Categorical(["x"], categories=["x", "y"], ordered=True), "b": [1]})[:0],
    "categories in an index without rows": pd.DataFrame({"a": [1]}, index=pd.CategoricalIndex([3], categories=[4, 3]))[:0],
    "categories of moments": pd.DataFrame({"a": pd.Categorical([DAYS[1]], categories=DAYS)})[:0],
    "categorical index": pd.DataFrame({"a": [1, 2]}, index=pd.CategoricalIndex(["a", "b"])),
    "index named like a column": pd.DataFrame({"a": [1, 2]}, index=pd.Index([3, 4], name="a")),
    "index named by an int": pd.DataFrame({"a": [1, 2]}, index=pd.Index([3, 4], name=5)),
    "index named by a tuple": pd.DataFrame({"a": [1, 2]}, index=pd.RangeIndex(2, name=("x", 1))),
    "named columns": pd.DataFrame([[1, 2]], columns=pd.Index(["a", "b"], name="cols")),
    "small numbers": pd.DataFrame({"f2": np.array([1], "f2"), "u1": np.array([255], "u1"), "b": [True], "nz": [-0.0]}),
    "attrs": attributed(),
    "no duplicate labels": pd.DataFrame({"a": [1]}).set_flags(allows_duplicate_labels=False),
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("inline", [False, True], ids=["file", "inline"])
def test_a_frame_comes_back_exactly(name, inline, files):
    frame, place = FRAMES[name], None if inline else files
    encoded = encode({"nested": (frame,)}, place)
    (back,) = decode(encoded.data, place)["nested"]
    pd.testing.assert_frame_equal(back, frame, check_freq=True, check_exact=True, check_flags=True, check_names=True)
    assert type(back.index) is type(frame.index)
    assert type(back.columns) is type(frame.columns)
    assert back.attrs == frame.attrs
    assert list(map(type, back.index.names)) == list(map(type, frame.index.names))
    if name == "decimal":
        assert [str(v) for v in back["a"]] == ["1.10", "2.00"]


# the frames that Parquet alters or refuses, and nothing kept beside it makes up for; index freq is restored and tested above
BAD = {
    "mixed column names": (pd.DataFrame([[1, 2]], columns=["a", 1]), "column names 'a', 1"),
    "dicts": (pd.DataFrame({"ok": [1, 2], "bad": [{"x": 1}, {"y": 2}]}), "column 'bad'"),
    "lists": (pd.DataFrame({"bad": [[1], [2]]}), "column 'bad'"),
    "tuples": (pd.DataFrame({"bad": [(1,), (2,)]}), "column 'bad'"),
    "sets": (pd.DataFrame({"bad": [{1}, {2}]}), "column 'bad'"),
    "None and NaN": (pd.DataFrame({"bad": pd.Series(["x", None, np.nan], dtype=object)}), "column 'bad'"),
    "mixed cells": (pd.DataFrame({"bad": pd.Series(["x", 1], dtype=object)}), "column 'bad'"),
    "objects": (pd.DataFrame({"ok": [1], "bad": [shapes.Doc("t")]}), "column 'bad'"),
    "complex": (pd.DataFrame({"bad": [1j]}), "column 'bad'"),
    "sparse": (pd.DataFrame({"bad": pd.arrays.SparseArray([0, 1])}), "column 'bad'"),
    "a name twice": (pd.DataFrame([[1, 2]], columns=["bad", "bad"]), "column 'bad'"),
    "decimals of two scales": (pd.DataFrame({"bad": [Decimal("1.10"), Decimal("2")]}), "column 'bad'"),
    "texts as objects": (pd.DataFrame({"bad": pd.Series(["x", "y"], dtype=object)}), "column 'bad'"),
    "floats as objects": (pd.DataFrame({"bad": pd.Series([1.0, None], dtype=object)}), "column 'bad'"),
    "own calendar": (
        pd.DataFrame({"a": [1, 2]}, index=pd.date_range("2024", periods=2, freq=pd.offsets.CDay(holidays=["2024-01-02"]))), "index"
    ),
    "missing labels of integers": (pd.DataFrame({"a": [1, 2]}, index=pd.MultiIndex.from_arrays([[1, None], ["x", "y"]])), "level 0"),
    "attrs": (None, r"\$\.attrs\.x"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_frame_that_parquet_would_change_is_refused_by_column(name, files):
    frame, where = BAD[name]
    if frame is None:
        frame = pd.DataFrame({"a": [1]})
        frame.attrs = {"x": object()}
    with pytest.raises(NotSerialisableError, match=where):
        encode(frame, files)


@pytest.mark.parametrize(
    "value",
    [
        pd.Series([1, 2], name=("a", 1)), pd.Series(["x", None], index=[3, 4]), pd.Series([1.5], name="n", dtype="Float32"),
        pd.Series([], dtype="M8[ns]"), DAYS, pd.RangeIndex(3, 9, 2, name="r"), FRAMES["multi-index"].index,
        pd.CategoricalIndex(["a", "b"]), pd.Index([1, 2.5]), pd.Index(["a"], name=3), pd.interval_range(0, 3), pd.Index([]),
        pd.period_range("2020", periods=3, freq="M"), pd.to_timedelta([1, 2], unit="s"), pd.timedelta_range("1h", periods=3),
    ],
    ids=lambda value: f"{type(value).__name__}",
)  # fmt: skip
def test_series_and_indexes_come_back_exactly(value, files):
    back = decode(encode(value, files).data, files)
    check = pd.testing.assert_series_equal if isinstance(value, pd.Series) else pd.testing.assert_index_equal
    check(back, value, **({"check_freq": True} if isinstance(value, pd.Series) else {"exact": True}))
    assert type(back) is type(value)
    assert getattr(back, "freq", None) == getattr(value, "freq", None)
    assert type(getattr(back, "name", None)) is type(getattr(value, "name", None))


@pytest.mark.parametrize(
    "value",
    [
        pd.Timestamp("2024-10-27 05:30:00.123456789", tz="Europe/Paris"), pd.Timestamp(5, unit="s"), pd.Timestamp("2024", tz="UTC"),
        pd.Timestamp("2024-10-27 00:30", tz="UTC").tz_convert("Europe/Paris"), pd.Timestamp("2024-10-27 01:30", tz="UTC").tz_convert("Europe/Paris"),
        pd.Timedelta("1ns"), pd.Timedelta(days=-3), pd.Period("2020-02", "M"), pd.Period("2020Q1"),
    ],
    ids=str,
)  # fmt: skip
def test_pandas_scalars_come_back_exactly(value):
    back = decode(encode([value], None).data, None)[0]
    assert type(back) is type(value)
    assert back == value
    assert repr(back) == repr(value)
    assert getattr(back, "unit", None) == getattr(value, "unit", None)
    assert getattr(back, "fold", None) == getattr(value, "fold", None)


def test_nat_and_na_are_themselves():
    back = decode(encode([pd.NaT, pd.NA], None).data, None)
    assert back[0] is pd.NaT
    assert back[1] is pd.NA


class Geo(pd.DataFrame):
    pass


def test_a_subclass_of_a_frame_is_refused_by_name():
    with pytest.raises(NotSerialisableError, match=r"cannot store a 'tests\.values\.test_tables\.Geo'"):
        encode(Geo({"a": [1]}), None)


POLARS = {
    "plain": pl.DataFrame({"a": [1, None], "b": [[1], None], "f": [float("nan"), None], "s": ["x", None]}),
    "series": pl.Series("x", [1, 2]),
    "empty": pl.DataFrame(),
    "categories": pl.DataFrame({"c": ["a", "b"]}, schema={"c": pl.Categorical}),
    "enum": pl.DataFrame({"c": ["a", "b"]}, schema={"c": pl.Enum(["b", "a"])}),
    "moments": pl.DataFrame({"t": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], "d": [dt.date(2024, 1, 1)], "h": [dt.time(1)]}),
    "nested": pl.DataFrame(
        {"s": [{"x": 1}], "a": pl.Series([[1.0, 2.0]], dtype=pl.Array(pl.Float32, 2)), "d": [Decimal("1.2")]}
    ),
    "null column": pl.DataFrame({"n": [None, None]}),
}


@pytest.mark.parametrize("name", POLARS)
def test_polars_comes_back_exactly(name, files):
    value = POLARS[name]
    encoded = encode(value, files)
    back = decode(encoded.data, files)
    assert type(back) is type(value)
    assert back.equals(value)
    assert getattr(back, "schema", None) == getattr(value, "schema", None)
    assert getattr(back, "dtype", None) == getattr(value, "dtype", None)


def test_polars_objects_and_lazy_frames_are_refused():
    with pytest.raises(NotSerialisableError, match="column 'o'"):
        encode(pl.DataFrame({"ok": [1], "o": [object()]}), None)
    with pytest.raises(NotSerialisableError, match=r"'polars.LazyFrame'.*value.collect\(\)"):
        encode(pl.LazyFrame({"a": [1]}), None)


ARROW = {
    "plain": pa.table({"a": [1, 2], "f": [float("nan"), None], "l": [[float("nan")], None]}),
    "texts as dictionary": pa.table({"d": pa.array(["x", "y"]).dictionary_encode()}),
    "empty": pa.table({}),
    "metadata": pa.table({"a": [1]}).replace_schema_metadata({"k": "v"}),
    "fixed": pa.table({"a": pa.array([[1, 2]], pa.list_(pa.int8(), 2)), "x": pa.array(["v"], pa.large_string())}),
    "not null": pa.table({"a": [1]}, schema=pa.schema([pa.field("a", pa.int32(), nullable=False)])),
}


@pytest.mark.parametrize("name", ARROW)
def test_arrow_comes_back_exactly(name, files):
    table = ARROW[name]
    back = decode(encode(table, files).data, files)
    assert back.schema.equals(table.schema, check_metadata=True)
    assert str(back.to_pylist()) == str(table.to_pylist())


@pytest.mark.parametrize(
    "table",
    [pa.table({"d": pa.array([1, 2]).dictionary_encode()}), pa.table({"d": pa.array([1], pa.timestamp("s"))})],
    ids=["dictionary of ints", "seconds"],
)
def test_arrow_that_parquet_would_change_is_refused_by_column(table):
    with pytest.raises(NotSerialisableError, match="column 'd'"):
        encode(table, None)


def test_a_table_is_a_parquet_file_that_others_can_read(files):
    encoded = encode(FRAMES["plain"], files)
    assert encoded.uri is not None
    assert encoded.uri.endswith(".parquet")
    assert encoded.data[:1] == b"a"
    assert pq.read_table(files.root / encoded.uri).column("a").to_pylist() == [1, 2]


def test_equal_tables_are_equal_params_wherever_they_lie(files):
    frame = FRAMES["plain"]
    assert equal(encode({"f": frame}, files).data, encode({"f": frame.copy()}, None).data)
    assert not equal(encode({"f": frame}, files).data, encode({"f": frame.assign(a=0)}, None).data)


def test_a_damaged_table_is_undecodable(files):
    encoded = encode(FRAMES["plain"], files)
    (files.root / encoded.uri).write_bytes(b"PAR1")
    with pytest.raises(UndecodableError, match="damaged"):
        decode(encoded.data, files)


def test_a_library_that_is_missing_is_what_is_needed(files, monkeypatch):
    data = encode(POLARS["plain"], files).data
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(UndecodableError) as caught:
        decode(data, files)
    assert caught.value.needs == "library polars"
