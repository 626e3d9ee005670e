"""Previews: small, safe, one line each; made of what the codec wrote."""

import base64
import hashlib
import io
import json
import time

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from nbflow.values.codec import decode, encode
from nbflow.values.preview import LIMIT, cell, of_array, of_json, of_value
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


def size_of(preview):
    return len(json.dumps(preview, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())


@pytest.mark.parametrize("name", CASES)
def test_a_preview_holds_at_most_8_kb_and_one_line(name, files):
    preview = encode(CASES[name], files).preview
    assert size_of(preview) <= 8_192
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
    assert preview["heat"] == [[0, None], [128, 255]]
    assert encode(np.array(["a"]), None).preview["min"] is None
    assert encode(np.array(5), None).preview["head"] == [["5"]]


def test_the_heat_map_is_of_means_and_small():
    quarters = np.zeros((320, 640))
    quarters[:160, 320:] = 2.0
    quarters[0, 0] = 4.0
    heat = encode(quarters, None).preview["heat"]
    assert (len(heat), {len(row) for row in heat}) == (16, {16})
    assert heat[0][15] == heat[7][8] == 128
    assert heat[15][0] == heat[8][15] == 0
    assert heat[0][0] == 0  # one cell of 800, drowned: a mean, not a sample
    assert len(encode(np.arange(1_000), None).preview["heat"][0]) == 64
    assert encode(np.eye(3, dtype=bool), None).preview["heat"] == [[255, 0, 0], [0, 255, 0], [0, 0, 255]]
    assert len(encode(np.ones((40, 30, 3)), None).preview["heat"]) == 16
    assert encode(np.array([[np.inf, 1.0], [-np.inf, 3.0]]), None).preview["heat"] == [[None, 0], [None, 255]]


def test_a_huge_array_says_that_its_statistics_are_of_a_part():
    array = np.broadcast_to(np.float32(3), (3_000, 3_000, 3_000))  # 108 GB when copied
    preview = of_array(array)
    assert preview["sampled"]
    assert (preview["min"], preview["mean"], preview["max"]) == (3.0, 3.0, 3.0)
    assert preview["head"][49] == ["3"] * 20
    assert "sampled" not in of_array(np.ones(9))


def test_a_picture_or_a_smaller_one_is_in_its_preview(files):
    from PIL import Image

    small = encode(Image.new("RGB", (8, 8)), files)
    assert base64.b64decode(small.preview["png"]) == decode(small.data, files).png
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 255, (2_000, 1_000, 3), dtype="u1"))
    preview = encode(noise, files).preview
    assert (preview["width"], preview["height"]) == (1_000, 2_000)
    with Image.open(io.BytesIO(base64.b64decode(preview["png"]))) as shown:
        assert shown.height == 2 * shown.width
        assert 40 <= shown.height <= 192
    assert size_of(preview) <= 8_192


def test_a_figure_has_its_picture_in_the_preview(files):
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([1, 3, 2])
    preview = encode(figure, files).preview
    assert preview["kind"] == "image"
    assert "png" in preview


def test_a_stored_file_is_named_with_size_and_hash(files):
    for value in (np.arange(5), "x" * 2_000_000, pl.DataFrame({"a": [1]})):
        encoded = encode(value, files)
        content = (files.root / encoded.uri).read_bytes()
        assert encoded.preview["file"] == {
            "uri": encoded.uri, "size": len(content), "hash": hashlib.sha256(content).hexdigest()
        }  # fmt: skip
    assert "file" not in encode(np.arange(5), None).preview
    assert "file" not in encode([1], files).preview


def test_a_cut_tree_is_still_json():
    for name in ("long list", "deep", "wide dict", "long keys", "documents", "pairs"):
        preview = encode(CASES[name], None).preview
        assert preview["truncated"]
        assert json.loads(preview["text"])


def test_collections_in_cells_are_cut_before_they_are_written_out():
    tree = {"a": [list(range(10_000_000))], "b": "x" * 50_000_000}
    begun = time.monotonic()
    assert cell([tree] * 1_000).startswith("[{a: [[0, 1, 2,")
    assert time.monotonic() - begun < 0.5
    assert cell({"a": {"b": {"c": {"d": {"e": 1}}}}}) == "{a: {b: {c: {d: {…}}}}}"
    assert cell((1, None, [True])) == "(1, None, [True])"


HUGE = {
    "text": lambda: "x\n" * 50_000_000,
    "list": lambda: [0.5] * 3_000_000,
    "frame of long texts": lambda: pd.DataFrame({"a": ["x" * 20_000_000] * 5}),
    "wide polars": lambda: pl.DataFrame({f"c{n}": [n] * 60 for n in range(5_000)}),
    "nested polars": lambda: pl.DataFrame({"a": [list(range(1_000_000))] * 3}),
}


@pytest.mark.parametrize("name", HUGE)
def test_the_preview_of_a_gigantic_value_takes_no_time_to_speak_of(name, files):
    value = HUGE[name]()
    encoded = encode(value, None, with_preview=False)
    node = json.loads(encoded.data[1:]) if encoded.data[:1] == b"t" else value
    begun = time.monotonic()
    preview = of_value(value, node, "x") if encoded.data[:1] == b"t" else of_json(value, encoded.data)
    assert time.monotonic() - begun < 1.0
    assert size_of(preview) <= 8_192


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
