"""What cannot come back exactly is refused, naming its type and its path, and never by another error."""

import collections
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

import numpy as np
import pandas as pd
import polars as pl
import pydantic
import pytest

from nbflow.errors import NotSerialisableError, UndecodableError, UsageError
from nbflow.values import classes, nodes
from nbflow.values.codec import decode, encode, register_codec
from tests.values import shapes


class Text(str):
    __slots__ = ()


class Wrong(dict):
    pass


class Opaque:
    def __repr__(self):
        raise RuntimeError("repr was called")


class Zone(tzinfo):
    def utcoffset(self, _):
        return None


@dataclass
class OnException(Exception):
    code: int = 1


@dataclass
class OnDict(dict):
    code: int = 1


def local_instance():
    @dataclass
    class Local:
        a: int = 1

    return Local()


def with_extra():
    doc = shapes.Doc("t")
    doc.cached = 1
    return doc


def unset_slot():
    return object.__new__(shapes.Frozen)


cycle: list = [1]
cycle.append({"again": cycle})


@pytest.mark.parametrize(
    ("value", "kind", "path"),
    [
        ({"model": {"head": Opaque()}}, "tests.values.test_refusals.Opaque", "$.model.head"),
        ([1, (2, {"a b": Opaque()})], "tests.values.test_refusals.Opaque", "$[1][1]['a b']"),
        ({1: {"x": object()}}, "object", "$[1].x"),
        (shapes.Doc("t", body=[lambda: 1]), "function", "$.body[0]"),
        (shapes.Point(1, open), "builtin_function_or_method", "$.y"),
        (Text("x"), "tests.values.test_refusals.Text", "$"),
        (Wrong(), "tests.values.test_refusals.Wrong", "$"),
        (collections.defaultdict(list), "collections.defaultdict", "$"),
        (cycle, "list", "$[1].again"),
        (local_instance(), "tests.values.test_refusals.local_instance.<locals>.Local", "$"),
        (with_extra(), "tests.values.shapes.Doc", "$"),
        (unset_slot(), "tests.values.shapes.Frozen", "$"),
        (OnException(), "tests.values.test_refusals.OnException", "$"),
        (OnDict(), "tests.values.test_refusals.OnDict", "$"),
        (datetime(2024, 1, 1, tzinfo=Zone()), "tests.values.test_refusals.Zone", "$"),
        ({"a": (n for n in ())}, "generator", "$.a"),
        (sys, "module", "$"),
        (int, "type", "$"),
        (..., "ellipsis", "$"),
        (ValueError("x"), "ValueError", "$"),
        (memoryview(b""), "memoryview", "$"),
        (threading.Lock(), "_thread.lock", "$"),
        (sys.version_info, "sys.version_info", "$"),
        ({(1, Opaque()): 1}, "tests.values.test_refusals.Opaque", "$.keys()[<tuple>][1]"),
        (shapes.Model.model_construct(b=1), "tests.values.shapes.Model", "$"),
        (pydantic.HttpUrl("http://a.b"), "pydantic.HttpUrl", "$"),
        (np.ma.masked_array([1], [True]), "numpy.ma.MaskedArray", "$"),
        (np.array([object()]), "numpy.ndarray", "$"),
        ([np.zeros((1, 1)).view(np.matrix)], "numpy.matrix", "$[0]"),
        (np.rec.array([(1, 2)]), "numpy.recarray", "$"),
        (np.array(["a"], dtype=np.dtypes.StringDType()), "numpy.ndarray", "$"),
        (np.zeros(2, dtype=np.dtype("i4", metadata={"a": 1})), "numpy.ndarray", "$"),
        (np.zeros(1, dtype=np.dtype([("a", "i1"), ("b", "i4")], align=True)), "numpy.ndarray", "$"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_refused_with_type_and_path(value, kind, path, files):
    for place in (files, None):
        with pytest.raises(NotSerialisableError) as caught:
            encode(value, place)
        text = str(caught.value)
        assert text.startswith(f"cannot store a '{kind}' at {path}: ")
        assert not text.endswith(".")


def test_the_refusal_advises_to_return_a_key_or_what_fits():
    with pytest.raises(NotSerialisableError, match="store it yourself and return its key"):
        encode(Opaque(), None)
    with pytest.raises(NotSerialisableError, match=r"return dict\(value\)"):
        encode(collections.defaultdict(int), None)
    with pytest.raises(NotSerialisableError, match=r"return str\(value\)"):
        encode(Text("x"), None)


def nested(depth, wrap):
    value = 1
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "wrap",
    [lambda v: [v], lambda v: {"a": v}, lambda v: (v,), lambda v: {1: v}, lambda v: shapes.Doc(v), lambda v: shapes.Point(v)],
)
def test_depth_has_a_limit_and_never_ends_in_a_recursion_error(wrap):
    deep = nested(nodes.MAX_DEPTH - 1, wrap)
    back = decode(encode(deep, None).data, None)
    assert encode(back, None).data == encode(deep, None).data
    for depth in (nodes.MAX_DEPTH + 1, 5_000, 100_000):
        with pytest.raises(NotSerialisableError, match="deep"):
            encode(nested(depth, wrap), None)


def test_a_deep_call_stack_gives_the_same_error():
    def descend(left):
        if left:
            return descend(left - 1)
        return encode(nested(nodes.MAX_DEPTH - 1, lambda v: (v,)), None)

    with pytest.raises(NotSerialisableError, match="nested too deeply"):
        descend(sys.getrecursionlimit() - 250)


class Growing(collections.UserDict):
    pass


@pytest.mark.usefixtures("registered")
def test_a_value_that_changes_while_it_is_stored_is_refused():
    value: dict = {1: Growing()}

    def grow(_):
        value[len(value) + 1] = 1
        return 1

    register_codec(Growing, grow, lambda _: Growing())
    with pytest.raises(NotSerialisableError, match="it changed while it was stored"):
        encode(value, None)


def test_values_over_the_limit_are_refused(files, monkeypatch):
    with pytest.raises(NotSerialisableError, match=r"2,147,483,904 bytes are more than 2,147,483,648"):
        encode(np.zeros((1 << 31) + 256, dtype="u1"), files)
    for module in ("codec", "plain_types", "nodes", "arrays", "tables"):
        monkeypatch.setattr(f"nbflow.values.{module}.MAX_BYTES", 1_500_000)
    for value in ("x" * 2_000_000, ["x" * 2_000_000], b"x" * 2_000_000, ("x" * 2_000_000,), bytearray(2_000_000)):
        for place in (files, None):
            with pytest.raises(NotSerialisableError, match="bytes are more than"):
                encode(value, place)


def test_pickle_is_written_and_read_only_when_turned_on(files):
    value = {"zone": [Text("x")], "a": (1,)}
    encoded = encode(value, files, allow_pickle=True)
    back = decode(encoded.data, files, allow_pickle=True)
    assert back == value
    assert type(back["zone"][0]) is Text
    with pytest.raises(UndecodableError, match="allow_pickle=True") as caught:
        decode(encoded.data, files)
    assert caught.value.needs == "Engine(allow_pickle=True)"


ran = []


class Bomb:
    def __reduce__(self):
        return ran.append, ("bang",)


def test_a_pickle_in_the_history_is_not_executed(files):
    data = encode(Bomb(), files, allow_pickle=True).data
    with pytest.raises(UndecodableError):
        decode(data, files)
    assert ran == []


# registered codecs


@pytest.fixture
def registered():
    before, encoders = dict(classes.CUSTOM), dict(nodes.ENCODERS)
    yield
    for table, content in ((classes.CUSTOM, before), (nodes.ENCODERS, encoders)):
        table.clear()
        table.update(content)


class Money:
    def __init__(self, amount):
        self.amount = amount


class Euro(Money):
    pass


@pytest.mark.usefixtures("registered")
def test_a_registered_codec_stores_that_very_class_and_no_subclass():
    register_codec(Money, lambda m: (m.amount, {1}), lambda parts: Money(parts[0]))
    data = encode({"price": [Money(5)]}, None).data
    back = decode(data, None)["price"][0]
    assert type(back) is Money
    assert back.amount == 5
    with pytest.raises(NotSerialisableError, match=r"'tests.values.test_refusals.Euro' at \$"):
        encode(Euro(5), None)
    classes.CUSTOM.clear()
    with pytest.raises(UndecodableError) as caught:
        decode(data, None)
    assert caught.value.needs == "codec tests.values.test_refusals.Money"


@pytest.mark.usefixtures("registered")
def test_registering_again_replaces_and_wrong_registrations_are_refused():
    register_codec(Money, lambda m: m.amount, Money, name="money")
    again = type("Money", (), {"__module__": Money.__module__, "__qualname__": "Money"})
    register_codec(again, lambda m: 7, lambda v: ("again", v), name="money")
    assert decode(encode(again(), None).data, None) == ("again", 7)
    with pytest.raises(NotSerialisableError):
        encode(Money(5), None)
    with pytest.raises(UsageError, match="belongs to"):
        register_codec(Euro, str, str, name="money")
    with pytest.raises(UsageError, match="has a codec already"):
        register_codec(dict, str, str)
    for known in (np.ndarray, np.float32, pd.DataFrame, pl.Series):
        with pytest.raises(UsageError, match="has a codec already"):
            register_codec(known, str, str)
    with pytest.raises(UsageError, match="two functions"):
        register_codec(Euro, None, str)
    with pytest.raises(UsageError, match="a class first"):
        register_codec("Euro", str, str)


@pytest.mark.usefixtures("registered")
def test_a_codec_for_pictures_or_a_dataclass_of_ones_own_comes_first():
    from PIL import Image

    register_codec(Image.Image, lambda image: [image.mode, image.size, image.tobytes()], lambda parts: Image.frombytes(*parts))
    picture = Image.new("F", (3, 2), 0.25)
    back = decode(encode(picture, None).data, None)
    assert (type(back), back.mode, back.tobytes()) == (Image.Image, "F", picture.tobytes())
    register_codec(shapes.Doc, lambda doc: doc.title, lambda title: shapes.Doc(title, "read"))
    assert decode(encode([shapes.Doc("t")], None).data, None) == [shapes.Doc("t", "read")]


@pytest.mark.usefixtures("registered")
def test_two_classes_with_two_codecs_do_not_get_in_each_others_way():
    register_codec(Money, lambda m: m.amount, Money)
    register_codec(Euro, lambda m: m.amount + 1, Euro)
    back = decode(encode([Money(1), Euro(1)], None).data, None)
    assert [(type(one), one.amount) for one in back] == [(Money, 1), (Euro, 2)]
    with pytest.raises(UsageError, match=r"'tests\.values\.test_refusals\.Money' belongs to"):
        register_codec(Opaque, str, str, name="tests.values.test_refusals.Money")


@pytest.mark.usefixtures("registered")
def test_a_registered_codec_that_fails_is_named():
    register_codec(Money, lambda m: 1 / 0, Money)
    with pytest.raises(NotSerialisableError, match=r"Money' at \$\.m: its registered codec raised ZeroDivisionError"):
        encode({"m": Money(1)}, None)
    register_codec(Money, lambda m: Opaque(), Money)
    with pytest.raises(NotSerialisableError, match=r"Opaque' at \$\.m\.<"):
        encode({"m": Money(1)}, None)
    register_codec(Money, lambda m: 1, lambda v: 1 / 0)
    with pytest.raises(UndecodableError, match="ZeroDivisionError"):
        decode(encode(Money(1), None).data, None)


def test_aware_utc_keeps_its_very_zone():
    assert decode(encode(datetime(2024, 1, 1, tzinfo=UTC), None).data, None).tzinfo is UTC
