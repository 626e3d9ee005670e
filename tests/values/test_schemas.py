"""What is stored of a wait's `schema=`: panels make their forms from it, in JSON (S39)."""

from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Literal, TypedDict
from uuid import UUID

import jsonschema
import msgspec
import pydantic
import pytest

from nbflow.values import formats
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


LONE = {
    datetime: "date-time",
    time: "time",
    timedelta: "duration",
    Decimal: "decimal",
    UUID: "uuid",
    Annotated[datetime, msgspec.Meta(description="when")]: "date-time",
}


@dataclass
class Moments:
    at: datetime
    daily: time | None
    many: list[datetime]
    by_name: dict[str, time]
    either: datetime | int
    pair: tuple[date, time]


@pytest.mark.parametrize(("schema", "name"), LONE.items(), ids=str)
def test_a_lone_type_is_told_by_its_format_as_a_field_of_it_is(schema, name):
    assert describe(schema, "schema")["format"] == name
    assert describe(list[schema], "schema")["items"]["format"] == name
    assert parts(describe(schema | None, "schema"), "format") == [name]


def test_moments_are_told_wherever_they_stand():
    found = describe(Moments, "schema")["properties"]
    told = {name: sorted(parts(part, "format")) for name, part in found.items()}
    assert told == {
        "at": ["date-time"],
        "daily": ["time"],
        "many": ["date-time"],
        "by_name": ["time"],
        "either": ["date-time"],
        "pair": ["date", "time"],
    }


FORMATS = {
    "date": (["2026-12-01"], ["2026-13-01", "tomorrow", ""]),
    "date-time": (["2026-12-01T10:00:00Z", "2026-12-01T10:00:00", "2026-12-01t10:00:00.5z", "2026-12-01 10:00"], ["noon", ""]),
    "time": (["10:30", "10:30:00.5Z"], ["25:00", ""]),
    "partial-time": (["10:30"], ["10:30Z"]),
    "duration": (["PT90S", "P1Y2M3DT4H", "P2W", "-P1D", "1:30:00", "-1 day, 23:00:00", "PT1.5S"], ["P", "PT", "5 parsecs", ""]),
    "decimal": (["1.50", "-3", "1E+5", "NaN"], ["1,5", "", "one"]),
    "uuid": ([str(UUID(int=7)), UUID(int=7).hex], ["nonsense", "", f"{UUID(int=7)}0"]),
    "uuid4": (["00000000-0000-4000-8000-000000000000"], ["00000000-0000-1000-8000-000000000000"]),
    "email": (["a@example.com", '"a b"@example.com', "ü@example.com"], ["a", "@", "a@b@c", "a b@example.com", ""]),
    "name-email": (["Ana <a@example.com>", "a@example.com"], ["Ana", "Ana <a>"]),
    "ipv4": (["192.0.2.1"], ["192.0.2", "192.0.2.256", "::1", ""]),
    "ipv6": (["2001:db8::1"], ["192.0.2.1", ":::", ""]),
    "ipv4network": (["192.0.2.0/24"], ["192.0.2.0/33"]),
    "ipvanyaddress": (["192.0.2.1", "::1"], ["localhost"]),
    "hostname": (["example.com", "a-b.c"], ["-a.com", "a..b", "a b", "a" * 64, ""]),
    "idn-hostname": (["münchen.example"], ["a b", "a..b", ""]),
    "uri": (["https://example.com/a?b#c", "mailto:a@b", "urn:x:y"], ["example", "//example.com", "https://a b", ""]),
    "iri": (["https://münchen.example/ß"], ["münchen"]),
    "uri-reference": (["/a/b", "", "#c"], ["a b"]),
    "uri-template": (["/a/{id}", "/a{?x,y}"], ["/a/{id", "/a/{}"]),
    "json-pointer": (["", "/a/b~1c"], ["a", "/~2"]),
    "relative-json-pointer": (["0", "1/a", "2#"], ["/a", "01", ""]),
    "regex": (["^a+$", ""], ["(", "[a"]),
    "base64": (["YWJj", "", "YWJj\nYWJj\n"], ["YWJ", "a b!", "é"]),
    "textarea": (["", "anything"], []),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_checked_and_those_that_nobody_knows_are_remarks(name):
    fits, does_not = FORMATS[name]
    described = describe({"type": "string", "format": name}, "schema")
    assert [text for text in fits if problems(described, text)] == []
    assert [text for text in does_not if not problems(described, text)] == []
    assert problems({"format": name}, 3) == []  # a format is of texts


def test_formats_that_jsonschema_has_readers_for_are_all_checked_here():
    """Whichever libraries a process has beside it: what fits in one fits in all."""
    jsonschema_formats = jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers
    assert [name for name in jsonschema_formats if name not in formats.READERS] == []


def test_a_hostile_text_takes_no_time_by_any_format():
    for name in formats.READERS:
        for text in (
            "a" * 50_000,
            "1" * 3_000,
            "P" + "1" * 50_000,
            "((((" * 5_000,
            "a." * 50_000,
            "/~0" * 50_000,
            "{a}" * 50_000 + "{",
        ):
            problems({"type": "string", "format": name}, text)


@pytest.mark.parametrize(
    ("unit", "fits", "does_not"),
    [
        (0.1, [0.3, 0.7, 1, 1.1, -0.3, 0], [0.35, 0.30000000000000004]),
        (0.01, [4.35, 19.99, 1e300], [0.005, float("inf"), float("nan")]),
        (2, [4, 4.0, 10**40], [3, 3.5]),
    ],
)
def test_a_number_is_a_multiple_as_it_is_written(unit, fits, does_not):
    described = describe({"type": "number", "multipleOf": unit}, "schema")
    assert [number for number in fits if problems(described, number)] == []
    assert [number for number in does_not if not problems(described, number)] == []


class Login(pydantic.BaseModel):
    user: str
    token: pydantic.SecretStr = pydantic.SecretStr("hunter2")


class Account(pydantic.BaseModel):
    login: Login = Login(user="ana")
    key: pydantic.SecretBytes = b"raw"
    made: pydantic.SecretStr = pydantic.Field(default_factory=lambda: pydantic.SecretStr("made"))
    several: list[pydantic.SecretStr] = [pydantic.SecretStr("one")]
    maybe: pydantic.SecretStr | None = pydantic.SecretStr("perhaps")
    none: pydantic.SecretStr | None = None
    default: str = "plain"


def test_a_secret_default_is_left_out_and_asterisks_never_stand_for_it():
    described = describe(Account, "schema")
    assert "***" not in str(described)
    assert "raw" not in str(described)
    assert defaults(described) == {"none": None, "default": "plain"}
    assert described["$defs"]["Login"]["properties"]["token"].keys() >= {"writeOnly", "format"}
    check(described, {}, "it", Account)  # what a form sends that nobody has touched
    check(described, {"login": {"user": "eva"}}, "it", Account)
