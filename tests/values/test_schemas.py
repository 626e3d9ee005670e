"""What is stored of a wait's `schema=`: panels make their forms from it, in JSON (S39)."""

from dataclasses import dataclass, field
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Literal, TypedDict

import msgspec
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


class Size(Enum):
    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


class Level(Enum):
    HIGH = 3
    LOW = 1


PRIORITIES = Literal["low", "medium", "high"]
Kinds = Literal["b", "a"]


@dataclass
class Inner:
    priority: PRIORITIES = "low"
    size: Size | None = None


@dataclass
class Outer:
    priority: PRIORITIES
    level: Level
    inner: Inner
    maybe: Literal["yes", "no"] | None = None
    several: list[PRIORITIES] = field(default_factory=list)
    by_size: dict[Size, Kinds] = field(default_factory=dict)
    pair: tuple[Kinds, PRIORITIES] = ("b", "low")
    either: PRIORITIES | Literal["none", "all"] = "all"


class Struct(msgspec.Struct):
    priority: Annotated[PRIORITIES, msgspec.Meta(description="how soon")]
    deep: dict[str, list[Inner]] = {}


class Model(pydantic.BaseModel):
    priority: PRIORITIES
    inner: Inner


class Typed(TypedDict):
    zone: PRIORITIES
    alpha: int


LOW_TO_HIGH, SIZES = ["low", "medium", "high"], ["small", "medium", "large"]


def parts(described, name):
    """What stands at *name* anywhere in a schema."""
    if isinstance(described, list):
        return [one for part in described for one in parts(part, name)]
    if not isinstance(described, dict):
        return []
    own = [described[name]] if name in described else []
    return own + [one for part in described.values() for one in parts(part, name)]


@pytest.mark.parametrize(
    ("schema", "choices"),
    [
        (PRIORITIES, [LOW_TO_HIGH]),
        (Size, [SIZES]),
        (Level, [[3, 1]]),
        (Inner, [LOW_TO_HIGH, SIZES]),
        (Outer, [LOW_TO_HIGH, SIZES, [3, 1], ["yes", "no"], ["b", "a"], ["none", "all"]]),
        (Struct, [LOW_TO_HIGH, SIZES]),
        (Model, [LOW_TO_HIGH, SIZES]),
        (Typed, [LOW_TO_HIGH]),
        (list[Size], [SIZES]),
    ],
)
def test_choices_stand_in_the_order_in_which_they_are_declared(schema, choices):
    found = [one for one in parts(describe(schema, "schema"), "enum") if None not in one]
    assert {str(one) for one in found} == {str(one) for one in choices}


def test_a_choice_or_none_keeps_its_order_too():
    [(*choices, nothing)] = parts(describe(Literal["yes", "no", None], "schema"), "enum")  # noqa: PYI061 - not the same schema
    assert (choices, nothing) == (["yes", "no"], None)


def test_fields_of_a_typed_dict_stand_in_the_order_in_which_they_are_declared():
    assert list(describe(Typed, "schema")["properties"]) == ["zone", "alpha"]


def fails():
    raise OSError("no network")


@dataclass
class Made:
    tags: list[str] = field(default_factory=lambda: ["x", "y"])
    on: date = field(default_factory=lambda: date(2026, 12, 1))
    inner: Inner = field(default_factory=lambda: Inner(size=Size.LARGE))
    broken: str = field(default_factory=fails)
    endless: float = field(default_factory=lambda: float("inf"))
    plain: int = 3


class MadeStruct(msgspec.Struct, rename="camel"):
    many_tags: list[str] = msgspec.field(default_factory=lambda: ["x", "y"])


class MadeModel(pydantic.BaseModel):
    tags: list[str] = pydantic.Field(default_factory=lambda: ["x", "y"])
    named: str = pydantic.Field(default_factory=lambda: "a", alias="called")
    model: Model = pydantic.Field(default_factory=lambda: Model(priority="high", inner=Inner()))
    broken: str = pydantic.Field(default_factory=fails)
    of_others: str = pydantic.Field(default_factory=lambda data: data["named"])


@dataclass
class Around:
    made: Made


def defaults(described):
    return {name: part["default"] for name, part in described["properties"].items() if "default" in part}


def test_defaults_that_a_factory_makes_are_told_and_those_that_cannot_be_made_are_not():
    inner = {"priority": "low", "size": "large"}
    made = {"tags": ["x", "y"], "on": "2026-12-01", "inner": inner, "plain": 3}
    assert defaults(describe(Made, "schema")) == made
    assert defaults(describe(Around, "schema")["$defs"]["Made"]) == made
    assert defaults(describe(MadeStruct, "schema")) == {"manyTags": ["x", "y"]}
    model = {"priority": "high", "inner": {"priority": "low", "size": None}}
    assert defaults(describe(MadeModel, "schema")) == {"tags": ["x", "y"], "called": "a", "model": model}


def test_a_type_that_holds_itself_is_described_once():
    assert describe(Tree, "schema")["properties"]["branches"]["default"] == []
    assert describe(list[Tree], "schema")["items"] == {"$ref": "#/$defs/Tree"}
