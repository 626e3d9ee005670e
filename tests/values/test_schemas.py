"""What is stored of a wait's `schema=`: panels make their forms from it, in JSON (S39)."""

from dataclasses import dataclass, field
from datetime import date, datetime
from enum import Enum
from typing import Annotated, TypedDict

import pydantic
import pytest

from nbflow.values.schemas import UnfitPayloadError, check, describe, problems


@dataclass
class Decision:
    approved: bool


class Answer(TypedDict):
    approved: bool


@dataclass
class Part:
    weight: int


@dataclass
class Parcel:
    first: Part
    others: list[Part] = field(default_factory=list)


@dataclass
class Visit:
    on: date
    at: datetime | None = None


@dataclass
class Tree:
    branches: list["Tree"] = field(default_factory=list)


@pytest.mark.parametrize("schema", [Decision, Answer])
def test_fields_stand_at_the_top_where_a_form_looks_for_them(schema):
    described = describe(schema, "schema")
    assert described["properties"] == {"approved": {"type": "boolean"}}
    assert "$defs" not in described


@pytest.mark.parametrize(
    ("schema", "fits", "does_not", "where"),
    [
        (Decision, {"approved": True}, {"approved": "perhaps"}, "approved"),
        (Parcel, {"first": {"weight": 1}}, {"first": {"weight": 1}, "others": [{"weight": "x"}]}, "others.0.weight"),
        (Tree, {"branches": [{"branches": []}]}, {"branches": [{"branches": 3}]}, "branches.0.branches"),
        (list[Part], [{"weight": 1}], [{"weight": 1}, {}], "1.weight"),
        (Visit, {"on": "2026-12-01"}, {"on": "tomorrow"}, "on"),
        (Visit, {"on": "2026-12-01", "at": None}, {"on": "2026-12-01", "at": "noon"}, "at"),
    ],
)
def test_types_within_types_are_checked_and_the_place_is_named(schema, fits, does_not, where):
    described = describe(schema, "schema")
    assert "properties" in described or described["type"] == "array"
    assert problems(described, fits) == []
    assert [path for path, _ in problems(described, does_not)] == [where]


def test_a_refused_payload_carries_its_problems_place_by_place():
    with pytest.raises(UnfitPayloadError, match=r"others\.0\.weight") as caught:
        check(describe(Parcel, "schema"), {"others": [{"weight": "x"}]}, "wait 'ask'")
    assert [place for place, _ in caught.value.problems] == [("first",), ("others", "0", "weight")]


@pytest.mark.parametrize(
    ("schema", "payload", "words"),
    [
        ({"type": "string", "minLength": 3}, "ab", "'ab' is too short: at least 3 characters"),
        ({"type": "string", "maxLength": 1}, "ab" * 500, "is too long: at most 1 character"),
        ({"type": "array", "minItems": 1}, [], "[] should be non-empty: at least 1 entry"),
        ({"type": "array", "maxItems": 2}, [1, 2, 3], "[1, 2, 3] is too long: at most 2 entries"),
    ],
)
def test_what_is_too_short_or_too_long_is_told_the_limit_and_not_repeated_at_length(schema, payload, words):
    assert problems(describe(schema, "schema"), payload) == [("", words)]


class Ratio(Enum):
    HALF = 0.5
    WHOLE = 1.0


class Mixed(Enum):
    ONE = 1
    MANY = "many"
    NONE = None


@pytest.mark.parametrize(("schema", "fits"), [(Ratio, 0.5), (Mixed, 1), (Mixed, "many"), (Mixed, None)])
def test_an_enum_of_any_json_values_is_told_by_them(schema, fits):
    described = describe(schema, "schema")
    check(described, fits, "it", schema)
    assert problems(described, "HALF", schema) != []


@dataclass
class Bounded:
    n: Annotated[int, pydantic.Field(ge=1, le=10)] = 5


@dataclass
class Holder:
    parts: list[Bounded]


@pytest.mark.parametrize(
    ("schema", "fits", "does_not"),
    [
        (Bounded, {"n": 3}, {"n": 99}),
        (Bounded, {}, {"n": 0}),
        (Annotated[int, pydantic.Field(ge=1)], 1, 0),
        (list[Bounded], [{"n": 1}], [{"n": 11}]),
        (Holder, {"parts": [{"n": 1}]}, {"parts": [{"n": 0}]}),
        (Annotated[str, pydantic.AfterValidator(str.upper), pydantic.StringConstraints(max_length=2)], "ab", "abc"),
    ],
)
def test_constraints_that_pydantic_knows_hold_without_a_model(schema, fits, does_not):
    described = describe(schema, "schema")
    check(described, fits, "it", schema)
    assert problems(described, does_not, schema) != []
    assert problems(described, does_not) != []  # by any process, from what is stored
