"""Previews: small, safe, one line each; made of what the codec wrote."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from nbflow.values.codec import encode
from nbflow.values.preview import LIMIT, of_value
from tests.values import shapes

wide = pd.DataFrame(np.random.default_rng(1).random((500, 60)), columns=[f"column {n} " + "x" * 60 for n in range(60)])
CASES = {
    "long text": "line\n" * 100_000,
    "controls": "\x01" * 5_000,
    "emoji": "🎈" * 5_000,
    "long list": list(range(100_000)),
    "list of texts": ["x" * 5_000] * 300,
    "deep": [[[[["x" * 50] * 20] * 20] * 20] * 3] * 2,
    "wide dict": {f"key {n}": n for n in range(20_000)},
    "long keys": {"k" * 5_000 + str(n): n for n in range(20)},
    "tuple": tuple(range(100_000)),
    "set": set(range(50_000)),
    "pairs": dict.fromkeys(range(10000), "x" * 100),
    "documents": [shapes.Doc("t" * 100, n) for n in range(3_000)],
    "bytes": b"\0" * 1_000_000,
    "surrogates": "\ud800" * 5_000,
    "wide frame": wide,
    "long cells": pd.DataFrame({"a": ["🎈\n" * 5_000] * 100}),
    "polars": pl.DataFrame({f"c{n}": ["x" * 500] * 100 for n in range(50)}),
    "arrow": pa.table({f"c{n}": ["x" * 500] * 100 for n in range(50)}),
    "array": np.random.default_rng(1).random((1_000, 1_000)),
    "text array": np.array([["x" * 1_000] * 100] * 50),
    "nan array": np.full((3, 3), np.nan),
    "huge int": 10**4_000,
    "deep plain": json.loads("[" * 100 + "]" * 100),
}


@pytest.mark.parametrize("name", CASES)
def test_a_preview_holds_at_most_8_kb_and_one_line(name, files):
    preview = encode(CASES[name], files).preview
    assert len(json.dumps(preview, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()) <= 8_192
    assert 0 < len(preview["line"]) <= 120
    assert preview["line"].isprintable()


@pytest.mark.parametrize("name", CASES)
def test_what_was_cut_says_so(name, files):
    preview = encode(CASES[name], files).preview
    if preview["kind"] in ("text", "json") and name not in ("deep plain", "huge int"):
        assert preview["truncated"]


def test_small_values_are_shown_whole():
    assert encode({"a": [1, 2]}, None).preview == {
        "kind": "json", "text": '{\n  "a": [\n    1,\n    2\n  ]\n}', "truncated": False, "line": '{"a":[1,2]}'
    }  # fmt: skip
    assert encode("hi\nthere", None).preview == {"kind": "text", "text": "hi\nthere", "truncated": False, "line": "hi there"}
    assert encode(None, None).preview["line"] == "null"
    assert encode(b"abc", None).preview == {"kind": "bytes", "size": 3, "head": "61 62 63", "line": "bytes, 3 bytes: 61 62 63"}
    assert encode(shapes.Doc("t"), None).preview["line"] == 'tests.values.shapes.Doc {"title":"t","body":null,"tags":[]}'


def test_a_table_shows_its_head():
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", None]}, index=pd.date_range("2024-01-01", periods=2))
    preview = encode(frame, None).preview
    assert preview["kind"] == "table"
    assert preview["shape"] == [2, 2]
    assert preview["columns"] == [{"name": "a", "dtype": "int64"}, {"name": "b", "dtype": "str"}]
    assert preview["head"] == [["1", "x"], ["2", "nan"]]
    assert preview["index"] == ["2024-01-01 00:00:00", "2024-01-02 00:00:00"]
    head = encode(wide, None).preview
    assert head["shape"] == [500, 60]
    assert 0 < len(head["head"]) <= 50
    assert len(head["head"][0]) == len(head["columns"]) <= 20


def test_an_array_shows_its_range():
    preview = encode(np.array([[1.0, np.nan], [3.0, 5.0]]), None).preview
    assert (preview["kind"], preview["shape"], preview["dtype"]) == ("array", [2, 2], "float64")
    assert (preview["min"], preview["mean"], preview["max"]) == (1.0, 3.0, 5.0)
    assert preview["heat"] == [[0, 0], [127, 255]]
    assert encode(np.array(["a"]), None).preview["min"] is None
    assert encode(np.array(5), None).preview["head"] == [["5"]]


def test_a_small_picture_is_in_its_preview(files):
    from PIL import Image

    assert "png" in encode(Image.new("RGB", (8, 8)), files).preview
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 255, (200, 200), dtype="u1"))
    assert "png" not in encode(noise, files).preview


def test_no_repr_or_str_of_a_user_class_is_called():
    class Loud:
        def __repr__(self):
            raise SystemExit("repr")

        __str__ = __repr__

    assert of_value(Loud(), {"$": "unknown"}, "Loud")["kind"] == "text"
    assert LIMIT <= 8_192


def test_no_preview_when_none_is_asked_for():
    assert encode({"a": 1}, None, with_preview=False).preview == {}
    assert encode((1,), None, with_preview=False).preview == {}
