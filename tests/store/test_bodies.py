"""What a row of the history must be: how deep its body may be."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbflow.core.model import Kind
from nbflow.errors import StoreCorruptError
from nbflow.store import bodies

SCALARS = st.none() | st.booleans() | st.integers() | st.text('{}[]"\\n', max_size=4)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text('{["\\', max_size=3), inner))


def depth_of(value):
    if not isinstance(value, dict | list):
        return 0
    return 1 + max((depth_of(each) for each in (value.values() if isinstance(value, dict) else value)), default=0)


def row(body):
    return 1, 0, 1, 0, "do.finished", "s", 1, None, json.dumps(body), None


@given(VALUES, st.integers(2, 6))
def test_a_body_is_refused_where_it_is_deeper_than_the_limit_and_nowhere_else(value, limit):
    body = {"order": 1, "attempt": 1, "new": value}  # a member of a newer version
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "_DEEPEST", limit)
        if depth_of(body) > limit:
            with pytest.raises(StoreCorruptError, match=r"entry 1 of the history .* nested more deeply"):
                bodies.checked(Kind.DO_FINISHED, row(body))
        else:
            assert bodies.checked(Kind.DO_FINISHED, row(body))[1].get("new") == value


def test_what_python_could_not_show_is_refused_by_every_version_of_python():
    for deep in (bodies._DEEPEST, 1_000, 5_000, 100_000):
        text = '{"order": 1, "attempt": 1, "preview": ' + "[" * deep + "]" * deep + "}"
        with pytest.raises(StoreCorruptError):
            bodies.checked(Kind.DO_FINISHED, (*row({})[:8], text, None))


@given(st.one_of(st.integers(-(10**15), 9 * 10**15), st.integers(4 * 10**15 - 10**6, 4 * 10**15 + 10**6)))
def test_the_time_of_an_entry_is_read_to_the_microsecond(micros):
    at, _ = bodies.checked(Kind.DO_STARTED, (1, micros, 1, 1, "do.started", "load", 1, None, "{}", None))
    assert at == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
