"""A stored value that a stranger wrote: it names classes, and nothing of them runs; what it can't be is an error."""

import dataclasses
import enum
import inspect
import json
import socket
import sys
import time
import types
import typing
from collections import namedtuple
from typing import Any

import msgspec
import pydantic
import pytest

from nbflow.errors import StepError, UndecodableError
from nbflow.values import codec, failures, schemas, validators
from nbflow.values.artifacts import ArtifactFolder

RAN: list[str] = []


def evil(name):
    """A function that tells that it ran."""

    def ran(*args, **kwargs):
        RAN.append(name)
        return 1

    return ran


@pytest.fixture
def library(monkeypatch):
    """An installed library whose classes do something at every touch that a decoder could make."""
    module = types.ModuleType("evil_library")
    module.__file__ = json.__file__
    module.__getattr__ = evil("module __getattr__")

    class Loud(type):
        def __call__(cls, *args, **kwargs):
            RAN.append("metaclass __call__")
            return type.__call__(cls, *args, **kwargs)

        def __getattr__(cls, name):
            RAN.append(f"metaclass __getattr__ {name}")
            raise AttributeError(name)

    touched = ("__init__", "__post_init__", "__setattr__", "__getattribute__", "__setstate__", "__reduce_ex__", "__repr__")

    def made(name, bases=(), metaclass=type, **namespace):
        body = {**{part: evil(f"{name}.{part}") for part in touched}, **namespace, "__module__": "evil_library"}
        cls = metaclass(name, bases, {**body, "__qualname__": name})
        setattr(module, name, cls)
        return cls

    fields = {"a": int, "b": int}
    factory = dataclasses.field(default_factory=evil("default_factory"))
    dataclasses.dataclass(init=False, repr=False)(made("Data", __annotations__=fields, b=factory, a=0))
    dataclasses.dataclass(init=False, repr=False)(made("Dies", __annotations__={"a": int}, a=0, __del__=evil("__del__")))
    dataclasses.dataclass(init=False, repr=False)(made("Meta", (), Loud, __annotations__={"a": int}, a=0))
    made("Plain")
    made("Failure", (Exception,), __new__=evil("__new__"), __init_subclass__=classmethod(evil("__init_subclass__")))
    made("Louder", (Exception,), Loud, __str__=evil("__str__"))
    made("Named", (namedtuple("Named", ["a"]),), __new__=evil("__new__"))  # noqa: PYI024
    monkeypatch.setitem(sys.modules, "evil_library", module)

    class Model(pydantic.BaseModel):
        a: int = 0
        b: int = pydantic.Field(default_factory=evil("pydantic default_factory"))

        def model_post_init(self, context):
            RAN.append("model_post_init")

        @pydantic.field_validator("a")
        @classmethod
        def checks(cls, value):
            RAN.append("validator")
            return value

    class Struct(msgspec.Struct):
        a: int = 0
        b: int = msgspec.field(default_factory=evil("struct default_factory"))

    class Post(msgspec.Struct):
        a: int = 0

        def __post_init__(self):
            RAN.append("struct __post_init__")

        def __init_subclass__(cls, **_options):
            RAN.append("struct __init_subclass__")

    class Flag(enum.Flag):
        A = 1

        @classmethod
        def _missing_(cls, value):
            RAN.append("_missing_")
            return cls.A

    for cls in (Model, Struct, Post, Flag):
        cls.__module__, cls.__qualname__ = "evil_library", cls.__name__
        setattr(module, cls.__name__, cls)
    RAN.clear()
    yield module
    RAN.clear()


def tagged(node):
    return b"t" + json.dumps(node).encode()


DANGEROUS = [
    "os:system", "subprocess:Popen", "builtins:eval", "builtins:exec", "builtins:object", "os:_wrap_close", "shutil:rmtree",
    "evil_library:Plain", "evil_library:Absent", "evil_library:Data.__init__", "evil_library:Data.__class__", "absent:X",
    "evil_library", ":", "", "evil_library:", "a" * 100_000, "nbflow.engine.engine:Engine", "antigravity:x", "__main__:x.y.z",
    "types:FunctionType", "types:CodeType", "tempfile:TemporaryDirectory", "importlib:import_module",
]  # fmt: skip
TAGS = ["dataclass", "named", "enum", "pydantic", "struct"]


@pytest.mark.parametrize("tag", TAGS)
def test_a_name_of_anything_else_than_a_class_of_that_kind_is_undecodable(library, tag):
    before = set(sys.modules)
    for name in DANGEROUS:
        node = {"$": tag, "c": name, "v": {"a": 1}, "n": "A", "flags": 3, "set": [], "args": ["true"]}
        with pytest.raises(UndecodableError):
            codec.decode(tagged(node), None)
    assert RAN == []
    assert set(sys.modules) - before <= {"pydantic"}


def test_classes_of_a_library_come_back_without_any_of_their_code(library):
    for tag, name in (("dataclass", "Data"), ("pydantic", "Model"), ("struct", "Struct"), ("named", "Named")):
        value = codec.decode(tagged({"$": tag, "c": f"evil_library:{name}", "v": {"a": 5, "b": 6}, "set": ["a"]}), None)
        assert type(value).__name__ == name
    assert codec.decode(tagged({"$": "dataclass", "c": "evil_library:Meta", "v": {"a": 5}}), None) is not None
    with pytest.raises(UndecodableError):
        codec.decode(tagged({"$": "enum", "c": "evil_library:Flag", "flags": "x"}), None)
    codec.decode(tagged({"$": "enum", "c": "evil_library:Flag", "flags": 0}), None)
    assert [ran for ran in RAN if "__getattr" not in ran] == []


@pytest.mark.parametrize(("tag", "name"), [("dataclass", "Data"), ("pydantic", "Model"), ("struct", "Struct")])
def test_a_field_left_out_calls_no_default_factory_of_a_library(library, tag, name):
    with pytest.raises(UndecodableError, match="default factory is not called"):
        codec.decode(tagged({"$": tag, "c": f"evil_library:{name}", "v": {"a": 5}, "set": []}), None)
    assert RAN == []


def test_what_acts_when_it_is_thrown_away_or_subclassed_is_not_made(library):
    for tag, name in (("dataclass", "Dies"), ("struct", "Post")):
        with pytest.raises(UndecodableError):
            codec.decode(tagged({"$": tag, "c": f"evil_library:{name}", "v": {"a": 5}}), None)
    assert RAN == []


@pytest.mark.parametrize("name", ["Failure", "Louder"])
def test_an_error_of_a_library_runs_neither_its_constructor_nor_its_metaclass(library, name):
    record = {"type": name, "module": "evil_library", "qualname": name, "message": "no", "attributes": {"x": "j1"}}
    error = failures.decode_error({**record, "cause": record, "notes": ["n"]}, step="s", attempts=1)
    assert isinstance(error, vars(library)[name] | StepError)
    assert str(error) == "no"
    assert RAN == []


@pytest.mark.parametrize(
    "record",
    [
        {"message": 5, "type": [], "module": {}, "qualname": None},
        {"message": "no", "notes": 5, "lost": 3},
        {"message": "no", "attributes": [1], "args": 7},
        {"message": "no", "type": "ExceptionGroup", "module": "builtins", "qualname": "ExceptionGroup", "exceptions": 5},
        {"message": "no", "type": "SystemExit", "module": "builtins", "qualname": "SystemExit", "args": "j[1]"},
        {"message": "no", "type": "OSError", "module": "builtins", "qualname": "OSError", "attributes": {"__class__": "j1"}},
        {"message": "no", "attributes": {"x": 't{"$":"pickle","data":"gASVAA==","type":"x","codec":"pickle"}'}},
    ],
)
def test_a_record_of_an_error_that_is_none_gives_an_error_all_the_same(record):
    assert isinstance(failures.decode_error(record, step="s", attempts=1), Exception)


def test_causes_without_end_give_an_error_all_the_same():
    record: dict[str, typing.Any] = {"message": "no", "type": "ValueError", "module": "builtins", "qualname": "ValueError"}
    for _ in range(10_000):
        record = {**record, "cause": record}
    assert isinstance(failures.decode_error(record, step="s", attempts=1), Exception)


NESTED = [b"j" + b"[" * 10_000 + b"]" * 10_000, b't{"$":"tuple","v":' * 10_000 + b"1" + b"}" * 10_000]
BROKEN = [
    b"",
    b"j",
    b"t",
    b"x",
    b"a",
    b"q1",
    b"j{",
    b"j\xff\xfe",
    b"t\xff",
    b"x5",
    b'x{"uri":1}',
    b"a5",
    b'a{"$":"file"}',
    b"t[1,2",
    b"\0",
]
ODD = [
    {"$": "nothing"}, {"$": 5}, {"$": ["x"]}, {"$": "file"}, {"$": "file", "codec": "pickle"}, {"$": "int", "v": "zz"},
    {"$": "dict", "v": [[1]]}, {"$": "set", "v": [{"a": 1}]}, {"$": "range", "v": ["a", 1, 0]}, {"$": "Fraction", "v": "1/0"},
    {"$": "Decimal", "v": []}, {"$": "deque", "v": [], "max": "x"}, {"$": "datetime", "v": "x", "tz": {"zone": "../../etc/passwd"}},
    {"$": "path", "c": "open", "v": "x"}, {"$": "secret", "c": "BaseModel", "v": "x"}, {"$": "ref", "v": 5}, {"$": "codec", "n": 5, "v": 1},
    {"$": "file", "codec": "npy", "data": "AAAA", "hash": "x"}, {"$": "file", "codec": "pandas", "data": "AAAA", "extra": 5},
    {"$": "file", "codec": "json", "uri": "../../../etc/passwd", "hash": "0" * 64}, {"$": "file", "codec": "json", "uri": 5, "hash": 5},
]  # fmt: skip


@pytest.mark.parametrize("data", [*NESTED, *BROKEN, *map(tagged, ODD)], ids=lambda data: repr(data[:40]))
def test_what_is_no_value_is_undecodable_and_nothing_worse(data, tmp_path):
    try:
        codec.decode(data, ArtifactFolder(tmp_path, "w/i"))
    except UndecodableError:
        pass
    else:
        assert data in (b"q1", b"a5")  # which are numbers
    assert codec.equal(data, data)
    assert not codec.equal(data, b"j[]")


@pytest.mark.parametrize(
    "uri", ["w/i/../../x", "../w/i/0123456789abcdef.json", "/etc/passwd", "w/i/0123456789abcdef.json/..", "w\0i"]
)
def test_a_file_is_read_only_from_the_folder_of_its_own_instance(tmp_path, uri):
    with pytest.raises(UndecodableError):
        codec.decode(tagged({"$": "file", "codec": "json", "uri": uri, "hash": "0" * 64}), ArtifactFolder(tmp_path, "w/i"))


# -- schemas of waits

DOUBLING: dict = {"$defs": {"d0": {"type": "string"}}, "$ref": "#/$defs/d40"}
for level in range(1, 41):
    both = {"$ref": f"#/$defs/d{level - 1}"}
    DOUBLING["$defs"][f"d{level}"] = {"allOf": [both, both], "not": {"allOf": [both, both]}}
NEVER_ENDING = [
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    DOUBLING,
    {"pattern": "^(a+)+$"},
    {"pattern": "^(a|a)*$", "$schema": "http://json-schema.org/draft-07/schema#"},
    {"allOf": [{"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a|aa)+$"}]},
    {"pattern": "a*a*a*a*a*a*a*a*b"},
    {"$ref": "http://127.0.0.1:9/schema.json"},
    {"$ref": "file:///etc/passwd"},
    {"$dynamicRef": "https://example.invalid/x#y"},
    {"$id": "http://127.0.0.1:9/", "$ref": "other.json"},
    {"pattern": "("},
    {"pattern": 5},
    {"pattern": "x" * 100_000},
    {"type": 5},
    {"type": "nothing"},
    {"properties": 5, "required": 7},
    {"enum": 5},
    {"minLength": "x"},
    {"allOf": {"a": 1}},
    {"anyOf": 5},
]


@pytest.mark.parametrize("schema", NEVER_ENDING, ids=lambda schema: str(schema)[:50])
def test_a_schema_of_a_stranger_fetches_nothing_and_comes_to_an_end(schema, monkeypatch):
    def fetches(*_args, **_options):
        raise AssertionError("something was fetched")

    monkeypatch.setattr(socket, "create_connection", fetches)
    monkeypatch.setattr("urllib.request.urlopen", fetches)
    monkeypatch.setattr(validators, "PATIENCE", 0.5)
    began = time.process_time()
    found = [*schemas.problems(schema, "a" * 60 + "c"), *schemas.problems(schema, {"a": "b"})]
    assert time.process_time() - began < 20
    assert found
    assert all("cannot be used" in said for _, said in found)


def test_an_endless_schema_is_refused_wherever_in_it_the_stack_ends():
    """Some frames are in Rust, which panics where Python raises RecursionError; that is no Exception."""

    def deeper(frames: int) -> list[Any]:
        return deeper(frames - 1) if frames else schemas.problems({"type": "string", "$ref": "#"}, "a")

    base = len(inspect.stack())
    for frames in (*range(20), *range(sys.getrecursionlimit() - base - 200, sys.getrecursionlimit() - base - 150)):
        assert "cannot be used" in deeper(frames)[0][1]


def test_a_value_over_which_a_library_panics_cannot_be_decoded(monkeypatch):
    class Panic(BaseException):
        """As pyo3 raises it."""

    def panics(*_given):
        raise Panic("called `Option::unwrap()` on a `None` value")

    encoded = codec.encode({"a": (1, 2)}, None)
    monkeypatch.setattr(codec.Reader, "value", panics)
    with pytest.raises(UndecodableError, match="Panic: called"):
        codec.decode(encoded.data, None)


def test_a_schema_nested_ten_thousand_times_comes_to_an_end():
    schema: dict = {"type": "string"}
    for _ in range(10_000):
        schema = {"items": schema}
    assert "cannot be used" in schemas.problems(schema, [[1]])[0][1]


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^\d{4}-\d\d$", "2026-11", "2026"),
        (r"^[^@\s]+@[^@\s]+\.[a-z]+$", "a@b.org", "a@b"),
        (r"^(ab)+$", "abab", "aba"),
        (r"^(\w+\s?)*$", "some words of text", "§"),
        (r"^(.)\1$", "aa", "ab"),
        ("^a+$", "a" * 50_000, "a" * 50_000 + "b"),
    ],
)
def test_patterns_of_every_kind_are_still_checked(pattern, good, bad):
    schema = {
        "type": "object",
        "properties": {"x": {"pattern": pattern}},
        "patternProperties": {"^n[0-9]+$": {"type": "integer"}},
    }
    assert schemas.problems(schema, {"x": good, "n1": 5}) == []
    [(place, said)] = schemas.problems(schema, {"x": bad})
    assert place == "x"
    assert "does not match" in said
    assert schemas.problems(schema, {"n1": "five"})[0][0] == "n1"
