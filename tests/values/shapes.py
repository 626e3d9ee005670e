"""Classes that values of the tests are made of; importable by the other process."""

import enum
from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pydantic


class Colour(enum.Enum):
    RED = 1
    GREEN = "g"
    CRIMSON = 1  # noqa: PIE796 - an alias


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    A = "a"


class Permission(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


class Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


class Point(NamedTuple):
    x: Any
    y: Any = 0


Pair = namedtuple("Pair", "left right")  # noqa: PYI024 - the old way is met, too


@dataclass
class Doc:
    title: Any
    body: Any = None
    tags: list[Any] = field(default_factory=list)

    def __post_init__(self):
        if self.title == "forbidden":
            raise RuntimeError("the constructor ran")


@dataclass(frozen=True, slots=True)
class Frozen:
    a: Any
    b: Any = 2


@dataclass(frozen=True)
class Outer:
    inner: Any

    @dataclass(frozen=True)
    class Nested:
        value: Any


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: Any
    b: int = 3
    secret: pydantic.SecretStr | None = None
    hidden: int = pydantic.Field(default=0, exclude=True)
    _private: Any = pydantic.PrivateAttr(default=7)

    @pydantic.field_validator("b")
    @classmethod
    def doubled(cls, value):
        return value * 2


class Record(msgspec.Struct, frozen=True):
    a: Any
    b: Any = "x"


class Careful(msgspec.Struct, kw_only=True, tag="careful"):
    a: Any
    b: Any = 5

    def __post_init__(self):
        if self.a == "forbidden":
            raise RuntimeError("the constructor ran")
