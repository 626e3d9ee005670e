"""Ids and names (S2)."""

import re
import string
import unicodedata
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbflow.core import names
from nbflow.errors import UsageError

WORD = string.ascii_letters + string.digits + "_-"
CHECKS = {
    names.instance_id: (WORD + ".", 100, "instance id"),
    names.workflow_name: (WORD, 64, "workflow name"),
    names.event_type: (WORD, 100, "event type"),
}
checks = pytest.mark.parametrize(("check", "letters", "longest", "what"), [(check, *rest) for check, rest in CHECKS.items()])


def allowed(value: str, letters: str, longest: int) -> bool:
    return 1 <= len(value) <= longest and set(value) <= set(letters) and value[0] not in "-."


@checks
@given(value=st.text(WORD + ".", max_size=120) | st.text(max_size=5))
def test_what_the_rule_allows_passes_and_nothing_else(check, letters, longest, what, value):
    if allowed(value, letters, longest):
        assert check(value) == value
    else:
        with pytest.raises(UsageError, match=what):
            check(value)


@checks
def test_the_longest_allowed_passes_and_one_more_does_not(check, letters, longest, what):
    assert check("x" * longest) == "x" * longest
    with pytest.raises(UsageError, match=f"this one has {longest + 1} characters|is not allowed"):
        check("x" * (longest + 1))


def test_an_instance_id_may_hold_a_dot_and_the_others_not():
    assert names.instance_id("lr0.01-d3") == "lr0.01-d3"
    for check in (names.workflow_name, names.event_type):
        with pytest.raises(UsageError):
            check("a.b")


def test_a_newline_at_the_end_is_refused():
    for check in (*CHECKS, names.step_name):
        with pytest.raises(UsageError):
            check("a\n")


@given(st.text(max_size=300))
def test_a_step_name_is_anything_without_control_characters(value):
    if 1 <= len(value) <= 256 and not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in value):
        assert names.step_name(value) == value
    else:
        with pytest.raises(UsageError, match=r"step name .*256 characters without control characters"):
            names.step_name(value)


@pytest.mark.parametrize("value", [None, 5, b"a", True])
def test_what_is_not_text_is_refused_with_its_type(value):
    for check in (*CHECKS, names.step_name):
        with pytest.raises(UsageError, match=f"of type {type(value).__name__}, not text"):
            check(value)


def test_the_error_names_the_value_and_the_rule():
    with pytest.raises(
        UsageError, match=re.escape("instance id '-a' is not allowed: an id is 1 to 100 of letters A-Z a-z, digits")
    ):
        names.instance_id("-a")


def test_a_member_of_a_str_enum_becomes_plain_text():
    class Name(StrEnum):
        LOAD = "load"

    assert type(names.step_name(Name.LOAD)) is str


def test_a_quoted_value_is_short_whatever_its_repr_does():
    class Bad:
        def __repr__(self):
            raise RuntimeError

    for value in ("x" * 10_000, list(range(10_000)), Bad(), 10**5000, {"a": ["b" * 1000]}):
        assert 0 < len(names.quoted(value)) < 250
