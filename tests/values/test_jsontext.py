"""JSON as a person writes it: what is read is what was written, or it is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbflow.values import jsontext


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    )
)
def test_what_is_read_is_what_was_written(value) -> None:
    assert jsontext.read(json.dumps(value)) == value


@pytest.mark.parametrize(
    "text", ["", "{bad", "NaN", "[Infinity]", "-Infinity", "1e400", '{"a": [-1e999]}', "[" * 100_000, "9" * 9_000]
)
def test_what_is_no_json_or_cannot_be_kept_is_refused(text) -> None:
    with pytest.raises(ValueError) as caught:
        jsontext.read(text)
    assert len(str(caught.value)) < 250


def test_what_is_nested_too_deep_is_refused() -> None:
    assert jsontext.read("[[1]]", deepest=3) == [[1]]
    with pytest.raises(ValueError, match="nested more than 2 deep"):
        jsontext.read("[[1]]", deepest=2)
