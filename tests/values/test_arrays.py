"""numpy scalars and arrays, pictures."""

import io

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as npst
from matplotlib.figure import Figure
from PIL import Image as Pillow

from nbflow.errors import NotSerialisableError, UsageError
from nbflow.values.codec import decode, encode
from nbflow.values.image import Image

mpl.use("Agg")
DTYPES = [
    *"?bBhHiIqQefdgFDG",
    "M8[D]",
    "M8[ns]",
    "m8[s]",
    "M8",
    "S3",
    "U4",
    ">i4",
    ">f8",
    "V5",
    "i4,f8",
    [("a", "i1"), ("b", "U2", (2,))],
]


@settings(max_examples=200, deadline=None)
@given(npst.arrays(npst.scalar_dtypes() | npst.array_dtypes(), npst.array_shapes(min_dims=0, min_side=0)))
def test_any_array_comes_back_exactly(array):
    back = decode(encode((array,), None).data, None)[0]
    assert type(back) is np.ndarray
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 3)], ids=str)
def test_every_dtype_and_shape_also_in_fortran_order(dtype, shape, files):
    array = np.asfortranarray(np.zeros(shape, dtype))
    back = decode(encode(array, files).data, files)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.dtype.str == array.dtype.str
    assert back.flags.f_contiguous == array.flags.f_contiguous
    assert back.tobytes() == array.tobytes()
    back[...] = back  # it is the caller's own, and writable


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_scalar_type(dtype):
    scalar = np.ones(1, dtype)[0]
    back = decode(encode([scalar], None).data, None)[0]
    assert type(back) is type(scalar)
    assert back.dtype == scalar.dtype.newbyteorder("=")
    assert back.tobytes() == scalar.astype(scalar.dtype.newbyteorder("=")).tobytes() or scalar.dtype.kind == "U"
    assert back == scalar or scalar.dtype.kind in "Mm"


def test_special_scalars():
    for value in (
        np.float64("nan"),
        np.float32("-inf"),
        np.datetime64("NaT"),
        np.str_("a\0"),
        np.bytes_(b"a\0"),
        np.str_("\ud800"),
    ):
        back = decode(encode(value, None).data, None)
        assert type(back) is type(value)
        assert repr(back) == repr(value)


def test_a_numpy_float_is_no_python_float():
    assert encode(np.float64(1.5), None).json == "1.5"
    assert type(decode(encode({"a": np.float64(1.5)}, None).data, None)["a"]) is np.float64
    assert encode(np.bool_(True), None).json == "true"  # noqa: FBT003


def test_an_equal_array_is_stored_once(files):
    uris = {encode({"a": np.arange(1000)}, files).data for _ in range(5)}
    assert len(uris) == 1
    assert len(list(files.path.iterdir())) == 1


def test_figures_and_images_come_back_as_pictures(files):
    figure = Figure()
    figure.subplots().plot([1, 2])
    for value in (figure, Pillow.new("RGB", (20, 10), "red")):
        encoded = encode(value, files)
        back = decode(encoded.data, files)
        assert type(back) is Image
        assert encoded.type == "nbflow.Image"
        assert back._repr_png_()[0][:4] == b"\x89PNG"
        assert (back.width, back.height) == Pillow.open(io.BytesIO(back.png)).size
        assert decode(encode(back, files).data, files) == back
        assert decode(encode(back, None).data, None) == back
        assert encoded.preview["kind"] == "image"
    opened = Pillow.open(io.BytesIO(back.png))
    assert decode(encode([opened], files).data, files)[0].width == 20


def test_a_picture_that_png_cannot_hold_is_refused():
    with pytest.raises(NotSerialisableError, match="convert"):
        encode(Pillow.new("CMYK", (2, 2)), None)
    with pytest.raises(UsageError, match="no PNG"):
        Image(b"GIF89a")


@pytest.mark.parametrize("dtype", ["q", "Q", ">q", ">u8", "l"])
def test_the_c_type_of_an_array_of_long_long_comes_back(dtype, files):
    array = np.array([[1, 2], [3, 4]], dtype=dtype)
    for value in (array, np.asfortranarray(array), array[:0], array[:, ::2]):
        back = decode(encode(value, files).data, files)
        assert (back.dtype, back.dtype.char, back.dtype.str) == (value.dtype, value.dtype.char, value.dtype.str)
        assert (back == value).all()
        assert back.shape == value.shape
