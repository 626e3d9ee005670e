"""Exact or refused, also by a process that has never seen the value: property-based."""

import datetime as dt
import sys
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from polars.testing import assert_frame_equal
from polars.testing.parametric import dataframes

from nbflow.errors import NotSerialisableError
from nbflow.values.artifacts import ArtifactFolder
from nbflow.values.codec import decode, encode
from tests.values import new_process
from tests.values.test_round_trips import same, values

quick = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """Gives a value back as it comes back, here; a second process has read it too and stored the very same."""
    files = ArtifactFolder(tmp_path_factory.mktemp("artifacts"), "W/a")
    process = new_process.NewProcess(files.root, files.relative)

    def back(value):
        stored = encode(value, files).data
        (again,) = process.store_again([stored.decode()])
        back = decode(stored, files)
        # What Arrow keeps beneath a null is nobody's value, and differs from one writing to the next.
        assert again == stored.decode() or (isinstance(value, pa.Table) and decode(again.encode(), files).equals(back))
        return back

    yield back
    process.end()


@pytest.fixture(scope="module")
def main_classes():
    """Classes as if cells had defined them; the other process has its own of these names."""
    main, module = sys.modules["__main__"], new_process.__name__
    for cls in new_process.CLASSES:
        cls.__module__ = "__main__"
        setattr(main, cls.__name__, cls)
    yield new_process
    for cls in new_process.CLASSES:
        cls.__module__ = module
        delattr(main, cls.__name__)


def or_refused(there, value):
    """What comes back, or the text of the refusal."""
    try:
        return there(value), None
    except NotSerialisableError as error:
        return None, str(error)


# -- values


@quick
@given(value=values)
def test_any_value_of_the_contract(there, value):
    assert same(there(value), value)


@quick
@given(data=st.data())
def test_instances_of_classes_defined_in_cells(there, main_classes, data):
    cells = st.recursive(
        st.integers() | st.text() | st.datetimes(timezones=st.sampled_from([dt.UTC, ZoneInfo("Europe/Paris")]))
        | st.sampled_from([*main_classes.Suit, main_classes.Rank(3), main_classes.Rank(0)]),
        lambda inner: st.builds(main_classes.Cell, inner, st.lists(inner, max_size=2)) | st.builds(main_classes.Slotted, inner)
        | st.builds(main_classes.Pair, inner, inner) | st.dictionaries(st.text(), inner, max_size=2),
        max_leaves=5,
    )  # fmt: skip
    value = data.draw(cells)
    back = there(value)
    assert type(back) is type(value)
    assert back == value
    assert repr(back) == repr(value)


# -- arrays


@quick
@given(
    array=npst.arrays(
        npst.scalar_dtypes() | npst.array_dtypes() | npst.nested_dtypes(),
        npst.array_shapes(min_dims=0, min_side=0, max_dims=3, max_side=3),
    ),
    fortran=st.booleans(),
    scalar=st.booleans(),
)
def test_arrays_and_their_scalars(there, array, fortran, scalar):
    value = np.asfortranarray(array) if fortran else array
    if scalar and value.size and value.dtype.names is None:
        value = value.reshape(-1)[0]
    back, refusal = or_refused(there, value)
    if refusal is not None:
        assert "dtype" in refusal
        assert value.dtype.kind == "V"  # some structs have no .npy header
        return
    assert type(back) is type(value)
    assert (back.dtype, back.dtype.str, back.shape) == (value.dtype, value.dtype.str, value.shape)
    assert back.tobytes() == value.tobytes()
    assert back.flags.f_contiguous == value.flags.f_contiguous


def test_an_array_comes_back_writable_whatever_it_was(there):
    array = np.arange(3)
    array.setflags(write=False)
    assert there(array).flags.writeable


def test_the_payload_of_nan_is_kept_in_arrays_and_lost_in_tables(there):
    odd = np.array([0x7FF8000000000123], "u8").view("f8")
    assert there(odd).tobytes() == odd.tobytes()
    assert np.isnan(there(pd.DataFrame({"a": odd}))["a"][0])


# -- pandas

COUNTS = st.shared(st.integers(0, 4), key="rows")
MOMENTS = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1))
NAMES = st.none() | st.text(max_size=3) | st.integers(-3, 3)


def arrays_of(cells, make):
    return COUNTS.flatmap(lambda n: st.lists(cells, min_size=n, max_size=n)).map(make)


def of_dtype(dtype):
    return COUNTS.flatmap(lambda n: npst.arrays(dtype, n))


def moments(make, units=("ms", "us", "ns")):
    return st.sampled_from(units).flatmap(
        lambda unit: arrays_of(MOMENTS, lambda cells: make(pd.DatetimeIndex(cells).as_unit(unit)))
    )


texts = st.text(max_size=3)
COLUMNS = st.one_of(
    *map(of_dtype, ("i1", "u8", "i8", "f4", "f8", "?")),
    arrays_of(texts | st.none(), lambda cells: pd.array(cells, "str")),
    arrays_of(texts | st.none(), lambda cells: pd.array(cells, "string")),
    arrays_of(st.none() | st.integers(-100, 100), lambda cells: pd.array(cells, "Int8")),
    arrays_of(st.none() | st.booleans(), lambda cells: pd.array(cells, "boolean")),
    arrays_of(st.sampled_from("abc"), lambda cells: pd.Categorical(cells, categories=list("cabd"), ordered=True)),
    arrays_of(st.none() | st.binary(max_size=2), lambda cells: np.array([*cells, None], object)[:-1]),
    moments(lambda index: index.array),
    moments(lambda index: index.tz_localize("UTC").tz_convert("Europe/Paris").array),
    arrays_of(st.timedeltas(dt.timedelta(-9), dt.timedelta(9)), lambda cells: pd.TimedeltaIndex(cells).array),
)
ODD = st.one_of(
    arrays_of(st.integers() | texts | st.none() | st.floats(), lambda cells: np.array([*cells, None], object)[:-1]),
    arrays_of(st.tuples(st.integers()) | st.lists(st.integers()), lambda cells: pd.Series(cells, dtype=object).array),
    arrays_of(st.sampled_from([1, 2]), pd.Categorical),
    arrays_of(st.dates() | MOMENTS, lambda cells: pd.Series(cells, dtype=object).array),
    arrays_of(st.decimals(allow_nan=False, places=2, min_value=0, max_value=9) | st.just(Decimal(1)), lambda cells: pd.Series(cells, dtype=object).array),
    of_dtype("c16"),
    moments(lambda index: index.array, ("s",)),
    arrays_of(st.integers(0, 1), pd.arrays.SparseArray),
)  # fmt: skip


INDEXES = (
    "range",
    "ints",
    "texts",
    "floats",
    "days",
    "irregular",
    "tz",
    "periods",
    "deltas",
    "categories",
    "intervals",
    "multi",
)


@st.composite
def indexes(draw):
    n = draw(COUNTS)
    kind = draw(st.sampled_from(INDEXES))
    name = draw(NAMES)
    days = pd.date_range("2024", periods=n, name=name)
    match kind:
        case "range":
            start, step = draw(st.integers(-5, 5)), draw(st.sampled_from([1, 2, -3]))
            return pd.RangeIndex(start, start + n * step, step, name=name)
        case "ints" | "floats":
            return pd.Index(draw(of_dtype("i8" if kind == "ints" else "f8")), name=name)
        case "texts":
            return pd.Index(draw(arrays_of(texts, lambda cells: pd.array(cells, "str"))), name=name)
        case "days":
            return days
        case "irregular":
            return pd.DatetimeIndex(draw(moments(lambda index: index)), name=name)
        case "tz":
            return days.tz_localize("Europe/Paris")
        case "periods":
            return pd.period_range("2024", periods=n, freq=draw(st.sampled_from(["M", "D"])), name=name)
        case "deltas":
            return pd.timedelta_range("1h", periods=n, name=name)
        case "categories":
            return pd.CategoricalIndex(draw(arrays_of(st.sampled_from("ab"), list)), categories=["b", "a"], name=name)
        case "intervals":
            return pd.interval_range(0, n, name=name)
    second = draw(of_dtype("i8"))
    return pd.MultiIndex.from_arrays([days.strftime("%d"), second], names=[name, None])


@st.composite
def frames(draw, columns=COLUMNS):
    given_columns = draw(st.lists(columns, max_size=4))
    width = len(given_columns)
    index = draw(indexes())
    frame = pd.DataFrame(dict(enumerate(given_columns)), index=index)
    names = st.sampled_from(["ints", "texts", "multi", "days"])
    match draw(names) if width else "none":
        case "texts":
            frame.columns = pd.Index([f"c{n}" for n in range(width)], name=draw(NAMES))
        case "multi":
            frame.columns = pd.MultiIndex.from_tuples([("a", n) for n in range(width)], names=["x", None])
        case "days":
            frame.columns = pd.date_range("2024", periods=width)
    if draw(st.booleans()):
        frame.attrs = {"source": ("x", {1})}
    if index.is_unique and draw(st.booleans()):
        frame = frame.set_flags(allows_duplicate_labels=False)
    return frame


def assert_same_frame(one, other):
    pd.testing.assert_frame_equal(one, other, check_exact=True, check_freq=True, check_flags=True, check_column_type="exact")
    assert one.attrs == other.attrs
    for mine, theirs in ((one.index, other.index), (one.columns, other.columns)):
        assert type(mine) is type(theirs)
        assert list(mine.names) == list(theirs.names)
        assert list(map(type, mine.names)) == list(map(type, theirs.names))
        assert getattr(mine, "freq", None) == getattr(theirs, "freq", None)
    for place in range(one.shape[1]):
        mine, theirs = one.iloc[:, place], other.iloc[:, place]
        if mine.dtype == object:
            assert list(map(type, mine)) == list(map(type, theirs))
        elif mine.dtype.kind == "f" and isinstance(mine.dtype, np.dtype):
            assert (np.signbit(mine[mine.notna()]) == np.signbit(theirs[theirs.notna()])).all()
        elif isinstance(mine.dtype, pd.CategoricalDtype):
            assert list(mine.cat.codes) == list(theirs.cat.codes)


@quick
@given(frame=frames())
def test_frames(there, frame):
    assert_same_frame(there({"f": frame})["f"], frame)


@quick
@given(frame=frames(COLUMNS | ODD))
def test_frames_with_odd_columns_come_back_exactly_or_are_refused(there, frame):
    back, refusal = or_refused(there, frame)
    if refusal is None:
        assert_same_frame(back, frame)
    else:
        assert "column" in refusal


@quick
@given(index=indexes(), data=st.data())
def test_indexes_and_series(there, index, data):
    series = pd.Series(data.draw(COLUMNS), index=index, name=data.draw(NAMES))
    pd.testing.assert_index_equal(there(index), index, exact=True)
    back = there(series)
    pd.testing.assert_series_equal(back, series, check_exact=True, check_freq=True)
    assert type(back.name) is type(series.name)


def test_of_a_multi_index_the_levels_that_nothing_uses_are_not_kept(there):
    frame = pd.DataFrame({"a": [1, 2, 3]}, index=pd.MultiIndex.from_tuples([("x", 1), ("y", 2), ("z", 3)]))[:2]
    back = there(frame)
    pd.testing.assert_frame_equal(back, frame)
    assert list(frame.index.levels[0]) == ["x", "y", "z"]
    assert list(back.index.levels[0]) == ["x", "y"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "columns",
    [["a", 1], list(new_process.Suit), pd.MultiIndex.from_tuples([("a", 1), ("b", "x")]), ["a", "a"]],
    ids=["mixed", "members", "a mixed level", "twice"],
)
def test_column_names_that_would_change_are_refused_without_a_warning(there, columns):
    with pytest.raises(NotSerialisableError, match="column"):
        there(pd.DataFrame([[1, 2]], columns=columns))


# -- polars and Arrow


@quick
@given(frame=dataframes(max_cols=4, max_size=4, excluded_dtypes=[pl.Object]))
def test_polars_frames_come_back_exactly_or_are_refused(there, frame):
    back, refusal = or_refused(there, frame)
    if refusal is not None:
        assert "would not come back" in refusal
        return
    assert back.schema == frame.schema
    assert_frame_equal(back, frame, check_exact=True, categorical_as_str=True)


ARROW = st.recursive(
    st.sampled_from(
        [pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.date32(),
         pa.timestamp("us"), pa.timestamp("ns", "Europe/Paris"), pa.timestamp("s"), pa.time64("us"), pa.decimal128(9, 2),
         pa.duration("ms"), pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.int64()), pa.null()]
    ),
    lambda inner: inner.map(pa.list_) | inner.map(lambda t: pa.struct([pa.field("x", t), pa.field("y", pa.int8())]))
    | inner.map(lambda t: pa.list_(t, 2)) | inner.map(lambda t: pa.map_(pa.string(), t)),
    max_leaves=3,
)  # fmt: skip


def cells_of(kind):
    if pa.types.is_dictionary(kind):
        return cells_of(kind.value_type)
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({"x": cells_of(kind.field("x").type), "y": st.integers(-9, 9)})
    if pa.types.is_map(kind):
        return st.lists(st.tuples(texts, cells_of(kind.item_type)), max_size=2)
    if pa.types.is_fixed_size_list(kind):
        return st.lists(cells_of(kind.value_type), min_size=2, max_size=2)
    if pa.types.is_list(kind):
        return st.none() | st.lists(cells_of(kind.value_type), max_size=2)
    for test, cells in (
        (pa.types.is_unsigned_integer, st.integers(0, 9)), (pa.types.is_integer, st.integers(-9, 9)),
        (pa.types.is_floating, st.floats(width=32)), (pa.types.is_boolean, st.booleans()), (pa.types.is_decimal, st.decimals(0, 9, places=2)),
        (pa.types.is_date, st.dates()), (pa.types.is_time, st.times()), (pa.types.is_duration, st.integers(-9, 9)),
        (pa.types.is_timestamp, st.integers(0, 10**9)), (pa.types.is_null, st.none()), (pa.types.is_binary, st.binary(max_size=2)),
    ):  # fmt: skip
        if test(kind):
            return st.none() | cells
    return st.none() | texts


@quick
@given(data=st.data())
def test_arrow_tables_come_back_exactly_or_are_refused(there, data):
    kinds = data.draw(st.lists(ARROW, max_size=3))
    columns = [pa.array(data.draw(st.lists(cells_of(kind), min_size=2, max_size=2)), kind) for kind in kinds]
    table = pa.table(columns, names=[f"c{n}" for n in range(len(kinds))])
    if data.draw(st.booleans()):
        table = table.replace_schema_metadata({"k": "v"})
    back, refusal = or_refused(there, table)
    if refusal is not None:
        assert "would not come back" in refusal
        return
    assert back.schema.equals(table.schema, check_metadata=True)
    assert str(back.to_pylist()) == str(table.to_pylist())
