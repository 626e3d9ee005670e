"""Instances of the user's classes: found in loaded modules, made without constructors, read with today's fields (S17)."""

import sys
import types
from dataclasses import dataclass, field

import msgspec
import pydantic
import pytest

from nbflow.errors import NotSerialisableError, UndecodableError
from nbflow.values.codec import decode, encode
from tests.values import shapes


@pytest.fixture
def main(monkeypatch):
    """A `__main__` as a notebook has it: run cells in it."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)

    def run(cell):
        vars(module)["dataclass"], vars(module)["field"] = dataclass, field
        exec(cell, vars(module))
        return vars(module)

    return run


def test_classes_of_cells_are_stored_and_found(main):
    names = main(
        "import enum, typing\n@dataclass\nclass Doc:\n    title: str\nclass Colour(enum.Enum):\n    RED = 1\n"
        "class Point(typing.NamedTuple):\n    x: int\nvalue = {'a': [Doc('t'), Colour.RED, Point(1)]}"
    )
    encoded = encode(names["value"], None)
    assert b'"__main__:Doc"' in encoded.data
    assert decode(encoded.data, None) == names["value"]
    assert encode(names["Doc"]("t"), None).type == "Doc"


def test_a_missing_class_is_named_as_what_is_needed(main):
    names = main("@dataclass\nclass Doc:\n    title: str")
    data = encode(names["Doc"]("t"), None).data
    del names["Doc"]
    with pytest.raises(UndecodableError, match="run the cell that defines it") as caught:
        decode(data, None)
    assert caught.value.needs == "class Doc"
    main("Doc = 5")
    with pytest.raises(UndecodableError) as caught:
        decode(data, None)
    assert caught.value.needs == "class Doc"
    main("class Doc: pass")
    with pytest.raises(UndecodableError, match="was a dataclass when it was stored"):
        decode(data, None)


def test_a_dataclass_decodes_with_the_fields_of_today(main):
    names = main("@dataclass\nclass Doc:\n    title: str\n    gone: int = 1")
    data = encode(names["Doc"]("t"), None).data
    names = main("@dataclass\nclass Doc:\n    title: str\n    new: int = 5\n    tags: list = field(default_factory=list)")
    assert decode(data, None) == names["Doc"]("t", 5, [])
    main("@dataclass\nclass Doc:\n    title: str\n    new: int")
    with pytest.raises(UndecodableError, match="a field 'new' now that was not stored"):
        decode(data, None)


def test_an_instance_of_the_class_before_the_cell_was_run_again_is_stored(main):
    old = main("@dataclass\nclass Doc:\n    title: str")["Doc"]("t")
    names = main("@dataclass\nclass Doc:\n    title: str")
    assert decode(encode(old, None).data, None) == names["Doc"]("t")


def test_a_gone_enum_member_and_named_tuple_field(main):
    names = main(
        "import enum, typing\nclass C(enum.Enum):\n    A = 1\n    B = 2\nclass P(typing.NamedTuple):\n    x: int\n    y: int"
    )
    member, point = encode(names["C"].B, None).data, encode(names["P"](1, 2), None).data
    names = main("class C(enum.Enum):\n    A = 1\nclass P(typing.NamedTuple):\n    y: int\n    z: int = 3")
    with pytest.raises(UndecodableError) as caught:
        decode(member, None)
    assert caught.value.needs == "member C.B"
    assert decode(point, None) == names["P"](2, 3)


GENERIC = "import typing, msgspec, pydantic\nT = typing.TypeVar('T')\n"


@pytest.mark.parametrize(
    "cell",
    [
        "@dataclass\nclass Box(typing.Generic[T]):\n    v: T",
        "@dataclass(frozen=True)\nclass Box(typing.Generic[T]):\n    v: T",
        "@dataclass(slots=True)\nclass Box(typing.Generic[T]):\n    v: T",
        "@pydantic.dataclasses.dataclass\nclass Box(typing.Generic[T]):\n    v: T",
        "@dataclass\nclass Box:\n    v: object\n    __class_getitem__ = classmethod(type(list[int]))",
        "class Box(msgspec.Struct, typing.Generic[T], dict=True):\n    v: T",
        "class Box(typing.NamedTuple, typing.Generic[T]):\n    v: T",
        "class Pair(typing.NamedTuple, typing.Generic[T]):\n    v: T\nclass Box(Pair[T]): pass",
    ],
)
def test_instances_that_are_made_by_a_parametrised_generic_class_are_of_the_class(main, cell):
    names = main(GENERIC + cell)
    value = names["Box"][int](3)
    back = decode(encode(value, None).data, None)
    assert type(back) is names["Box"]
    assert back == value
    assert encode(value, None).data == encode(names["Box"](3), None).data


def test_an_attribute_beside_the_fields_of_a_generic_class_is_refused(main):
    value = main(GENERIC + "@dataclass\nclass Box(typing.Generic[T]):\n    v: T")["Box"][int](3)
    value.more = 1
    with pytest.raises(NotSerialisableError, match="it has attributes besides its fields: 'more'; make them fields"):
        encode(value, None)


def test_a_generic_model_that_has_no_name_is_refused_with_what_helps(main):
    names = main(GENERIC + "class Page(pydantic.BaseModel, typing.Generic[T]):\n    v: T\ndef make(): return Page[int](v=3)")
    with pytest.raises(NotSerialisableError) as caught:
        encode([names["make"]()], None)
    says, _, code = str(caught.value).partition("use that: ")
    assert says.startswith("cannot store a 'Page[int]' at $[0]: its class Page[int] is made by pydantic where it is used")
    names = main(f"{code.strip('`')}\nvalue = MyModel(v=3)")
    back = decode(encode(names["value"], None).data, None)
    assert type(back) is names["MyModel"]
    assert back == names["value"]
    assert decode(encode(names["Page"](v=3), None).data, None) == names["Page"](v=3)


@pytest.mark.parametrize("options", ["", "(slots=True)", "(frozen=True)"])
def test_a_default_that_only_the_class_holds_is_part_of_the_value(main, options):
    names = main(f"@dataclass{options}\nclass Job:\n    n: int\n    state: str = field(init=False, default='new')")
    stored = encode(names["Job"](5), None).data
    main(f"@dataclass{options}\nclass Job:\n    n: int\n    state: str = field(init=False, default='other')")
    assert decode(stored, None).state == "new"
    assert decode(stored, None).n == 5


@pytest.mark.parametrize("cls", [shapes.Doc, shapes.Careful], ids=["dataclass", "struct"])
def test_no_constructor_and_no_post_init_runs(cls):
    value = cls(title="x") if cls is shapes.Doc else cls(a="x")
    data = encode(value, None).data.replace(b'"x"', b'"forbidden"')
    back = decode(data, None)
    assert type(back) is cls
    assert "forbidden" in (getattr(back, "title", None), getattr(back, "a", None))


def test_no_property_descriptor_or_setattr_of_a_dataclass_runs(main):
    names = main(
        "@dataclass\nclass Doc:\n    title: str\n    def __setattr__(self, n, v): object.__getattribute__(self, '__dict__')[n] = v.upper()\n"
        "    def __getattribute__(self, n): raise RuntimeError(n)\n    def __repr__(self): raise RuntimeError\n"
    )
    data = encode(names["Doc"]("x"), None).data.replace(b'"X"', b'"y"')
    assert object.__getattribute__(decode(data, None), "__dict__") == {"title": "y"}


def test_a_pydantic_model_keeps_fields_extra_private_secrets_and_what_was_set():
    model = shapes.Model(a=(1, {2}), b=2, secret="s3", hidden=9, more=[1, (2,)])
    model._private = {"x": (1,)}
    back = decode(encode(model, None).data, None)
    assert type(back) is shapes.Model
    assert back == model
    assert back.b == 4, "the validator must not run again"
    assert back.secret.get_secret_value() == "s3"
    assert (back.hidden, back.more, back._private) == (9, [1, (2,)], {"x": (1,)})
    assert back.model_fields_set == model.model_fields_set
    assert "s3" not in encode(model, None).json
    assert "s3" not in str(encode(model, None).preview)


def test_pydantic_models_nest_and_forbid_extras():
    class_ = sys.modules[__name__].Strict
    value = class_(inner=class_(n=1), n=2)
    assert decode(encode(value, None).data, None) == value
    assert decode(encode(value, None).data, None).__pydantic_extra__ is None


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)
    n: int
    inner: "Strict | None" = None


@pydantic.dataclasses.dataclass
class Checked:
    n: int


def test_pydantic_dataclasses_are_dataclasses():
    assert decode(encode(Checked(3), None).data, None) == Checked(3)


class Base(msgspec.Struct):
    a: int


class Derived(Base, frozen=False):
    b: list = []


def test_structs_keep_inherited_fields():
    assert decode(encode(Derived(1, [2]), None).data, None) == Derived(1, [2])
