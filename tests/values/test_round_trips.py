"""Exact or refused: what is stored comes back with the same type and value, here and in another process."""

import collections
import json
import math
import struct
import subprocess
import sys
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbflow.values.codec import decode, encode, equal
from tests.values import shapes

surrogates = st.text(st.characters(min_codepoint=0xD800, max_codepoint=0xDFFF, categories=["Cs"]), max_size=3)
texts = st.text() | surrogates | st.sampled_from(["$", "", "a", "v"])
zones = st.none() | st.just(UTC) | st.sampled_from([ZoneInfo("Europe/Paris"), ZoneInfo("UTC"), ZoneInfo("America/New_York")])
offsets = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone) | st.just(timezone(timedelta(hours=1), "home"))
numbers = st.integers() | st.floats() | st.integers(-(2**70), 2**70) | st.sampled_from([2**63, -(2**63), 2**64, -0.0, 1e16])
hashables = st.recursive(
    st.none() | st.booleans() | numbers | st.complex_numbers() | texts | st.binary(max_size=20)
    | st.dates() | st.datetimes(timezones=zones) | st.datetimes(timezones=offsets) | st.times() | st.timedeltas()
    | st.decimals().filter(lambda d: not d.is_snan()) | st.fractions() | st.uuids()
    | st.sampled_from([*shapes.Colour, *shapes.Level, *shapes.Word, shapes.Permission.READ | shapes.Permission.RUN,
                       shapes.Permission(0), shapes.Bits.ONE, shapes.Bits(3), shapes.Bits(0),
                       Path("a/b"), PurePosixPath("/x"), PureWindowsPath("c:\\x"), range(3), range(10, 0, -2)]),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3) | st.builds(shapes.Point, inner, inner)
    | st.builds(shapes.Frozen, inner, inner) | st.builds(shapes.Pair, inner, inner),
    max_leaves=4,
)  # fmt: skip
values = st.recursive(
    hashables | st.binary().map(bytearray) | st.builds(slice, hashables, hashables),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4)
    | st.dictionaries(hashables, inner, max_size=3) | st.tuples(inner) | st.sets(hashables, max_size=4)
    | st.dictionaries(texts, inner, max_size=3).map(collections.OrderedDict)
    | st.dictionaries(texts, numbers, max_size=3).map(collections.Counter)
    | st.builds(collections.deque, st.lists(inner, max_size=3), st.none() | st.integers(3, 5))
    | st.builds(shapes.Doc, inner, inner) | st.builds(shapes.Outer.Nested, inner)
    | st.builds(shapes.Model, a=inner, extra_field=inner) | st.builds(shapes.Record, inner, inner) | st.builds(shapes.Careful, a=inner),
    max_leaves=12,
)  # fmt: skip


def same(a, b):
    """One type and one value all the way down: `==` would take True for 1 and refuse nan."""
    if type(a) is not type(b):
        return False
    if type(a) is float:
        return struct.pack(">d", a) == struct.pack(">d", b)
    if type(a) is complex:
        return same(a.real, b.real) and same(a.imag, b.imag)
    if type(a) in (list, tuple, shapes.Point, shapes.Pair):
        return len(a) == len(b) and all(map(same, a, b))
    if type(a) is collections.deque:
        return a.maxlen == b.maxlen and same(list(a), list(b))
    if isinstance(a, dict):
        return same([list(pair) for pair in a.items()], [list(pair) for pair in b.items()])
    if type(a) in (set, frozenset):
        return encode(a, None).data == encode(b, None).data and len(a) == len(b)
    if type(a) is slice:
        return same([a.start, a.stop, a.step], [b.start, b.stop, b.step])
    if type(a) is Decimal:
        return str(a) == str(b)
    if type(a) in (datetime, time):
        same_zone = type(a.tzinfo) is type(b.tzinfo) and repr(a.tzinfo) == repr(b.tzinfo) and a.tzname() == b.tzname()
        return same_zone and a.replace(tzinfo=None) == b.replace(tzinfo=None) and a.fold == b.fold
    if type(a) in (shapes.Doc, shapes.Frozen, shapes.Outer.Nested):
        return all(same(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__)
    if isinstance(a, shapes.Model):
        parts = ("__dict__", "__pydantic_extra__", "__pydantic_private__", "__pydantic_fields_set__")
        return all(same(getattr(a, part), getattr(b, part)) for part in parts)
    if isinstance(a, msgspec.Struct):
        return all(same(getattr(a, name), getattr(b, name)) for name in a.__struct_fields__)
    return a == b


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(values)
def test_any_value_comes_back_with_its_type_and_value(value):
    encoded = encode(value, None)
    assert same(decode(encoded.data, None), value)
    assert encoded.data[:1] in (b"j", b"t")
    json.loads(encoded.data[1:])
    if encoded.json is not None:
        json.loads(encoded.json)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(values)
def test_a_preview_is_made_of_anything_and_is_small(value):
    preview = encode(value, None).preview
    assert len(json.dumps(preview, ensure_ascii=False).encode()) <= 8_192
    assert len(preview["line"]) <= 120
    assert "\n" not in preview["line"]


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(texts, values, max_size=4))
def test_params_are_equal_whatever_the_order_of_their_keys(value):
    turned = dict(reversed(value.items()))
    assert equal(encode(value, None).data, encode(turned, None).data)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 1.0), (1, True), ("1", 1), ([1], (1,)), ({"a": 1}, {"a": 1.0}), ([1, 2], [2, 1]), ({1: 2}, {"1": 2}), (0.0, -0.0),
     ({"$": "tuple", "v": [1]}, (1,))],
)  # fmt: skip
def test_params_of_different_types_are_not_equal(one, other):
    assert not equal(encode(one, None).data, encode(other, None).data)


def test_equal_sets_and_dicts_with_any_keys_are_equal_params():
    assert equal(encode({1: "a", (2,): "b"}, None).data, encode({(2,): "b", 1: "a"}, None).data)
    one = {"s": {f"item {n}" for n in range(50)}}
    assert encode(one, None).data == encode({"s": {f"item {n}" for n in reversed(range(50))}}, None).data


def test_large_params_are_equal_to_the_same_ones_kept_inline(files):
    value = {"b": ["x" * 1000] * 2000, "a": 1}
    turned = {"a": 1, "b": ["x" * 1000] * 2000}
    assert equal(encode(value, files).data, encode(turned, files).data)
    assert equal(encode(value, files).data, encode(turned, None).data)
    assert not equal(encode(value, files).data, encode({**value, "a": 2}, None).data)
    assert equal(encode((value,), files).data, encode((turned,), None).data)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0], -math.inf, -0.0, 5e-324, 10**5000, -(10**30),
        "\ud800x", {"\udfff": 1}, {"$": "tuple", "v": [1]}, [{"$": "file"}, (1,)], {"$": 1, 2: 3}, b"", bytearray(b"x"),
        collections.Counter("abca"), collections.OrderedDict(b=1, a=2), collections.deque([1, 2], maxlen=2),
        datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Paris"), fold=1), time(1, tzinfo=UTC, fold=1),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2, seconds=1), "odd")), datetime.min, datetime.max, date.max,
        timedelta.min, Decimal("1.10"), Decimal("sNaN123"), Decimal("-0E+7"), Fraction(-1, 3), uuid.uuid1(), uuid.uuid4(),
        {True: 1, None: 2, (1, "a"): 3, frozenset({1}): 4, 1.5: 5}, [[]], {}, (), set(), frozenset(), "", [None], {"": None},
        msgspec.UNSET, slice(None, 3), range(0, 2**70, 2**65), list(range(100)), [0.5] * 100, ["x"] * 100, [2**63] * 40,
        [math.inf] * 40, [{}] * 40,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_hard_cases_come_back_exactly(value):
    assert same(decode(encode(value, None).data, None), value)


def test_plain_json_is_stored_as_plain_json():
    value = {"a": [1, 2.5, None, True, "x", {"b": []}]}
    encoded = encode(value, None)
    assert encoded.data == b"j" + json.dumps(value, separators=(",", ":")).encode()
    assert encoded.json is None
    assert encoded.type == "dict"


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ((1, [2]), [1, [2]]), ({3, 1, 2}, [1, 2, 3]), (datetime(2024, 1, 2, 3, tzinfo=UTC), "2024-01-02T03:00:00+00:00"),
        (Decimal("1.10"), "1.10"), ({1: "a"}, {"1": "a"}), ({(1, 2): "a"}, [[[1, 2], "a"]]), ({1: "a", "1": "b"}, [[1, "a"], ["1", "b"]]),
        (float("nan"), "NaN"), (shapes.Doc("t"), {"title": "t", "body": None, "tags": []}), (shapes.Colour.GREEN, "g"),
        (shapes.Point(1, 2), {"x": 1, "y": 2}), (timedelta(seconds=1.5), 1.5), (2**64, "18446744073709551616"),
    ],
)  # fmt: skip
def test_other_values_have_a_json_form_for_sql(value, form):
    assert json.loads(encode(value, None).json) == form


def test_values_are_copies_and_shared_references_come_back_apart():
    inner = [1]
    value = {"a": inner, "b": inner}
    back = decode(encode(value, None).data, None)
    assert back == value
    assert back["a"] is not back["b"]
    assert back["a"] is not inner


def test_values_come_back_in_a_new_process(files, tmp_path):
    import numpy as np
    import pandas as pd

    sample = [
        {"a": 1}, (1, {2}, "\ud800"), shapes.Doc("t", (1,)), shapes.Colour.RED,
        shapes.Outer.Nested([1]), shapes.Point(1), datetime(2024, 1, 1, tzinfo=ZoneInfo("Europe/Paris")), np.arange(5),
        pd.DataFrame({"a": [1.5, 2], "t": pd.date_range("2024", periods=2, tz="UTC")}), {"deep": [np.float32(1.5)]}, "x" * 2_000_000,
        shapes.Model(a=(1, 2), secret="s"),
    ]  # fmt: skip
    stored = [encode(value, files).data.decode() for value in sample]
    (tmp_path / "stored.json").write_text(json.dumps(stored))
    code = (
        "import json, sys, pathlib, tests.values.shapes\n"
        "from nbflow.values.codec import decode, encode\n"
        "from nbflow.values.artifacts import ArtifactFolder\n"
        "files = ArtifactFolder(pathlib.Path(sys.argv[1]), sys.argv[2])\n"
        "stored = json.load(open(sys.argv[3]))\n"
        "print(json.dumps([encode(decode(text.encode(), files), files).data.decode() for text in stored]))\n"
    )
    command = [sys.executable, "-c", code, str(files.root), files.relative, str(tmp_path / "stored.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert json.loads(done.stdout) == stored


def test_nothing_is_imported_by_decoding(tmp_path):
    code = (
        "import sys\n"
        "from nbflow.values.codec import decode\n"
        "from nbflow.errors import UndecodableError\n"
        "try: decode(b't' + sys.argv[1].encode(), None)\n"
        "except UndecodableError as error: print(error.needs, 'antigravity_like' in sys.modules)\n"
    )
    (tmp_path / "antigravity_like.py").write_text("from dataclasses import dataclass\n@dataclass\nclass Doc: pass\n")
    node = json.dumps({"$": "dataclass", "c": "antigravity_like:Doc", "v": {}})
    done = subprocess.run([sys.executable, "-c", code, node], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "class antigravity_like.Doc False"


def test_the_codec_loads_no_heavy_library():
    code = "import sys, nbflow.values.codec, nbflow.values.failures; print([m for m in ('numpy','pandas','pyarrow','polars','IPython','duckdb','pydantic') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
