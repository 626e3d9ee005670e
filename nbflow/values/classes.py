# ruff: noqa: SLF001 - enums and named tuples keep what is needed under names with an underscore
"""Instances of classes: enums, named tuples, dataclasses and types with a registered codec (models: `models.py`).

A class is written as `module:qualname` and looked up in the modules that are loaded; nothing is imported, no constructor
is called, so what a history contains can never make code run.
"""

import enum
import sys
import types
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, is_dataclass
from typing import Any, Generic, TypeVar

from nbflow.errors import UndecodableError, UsageError
from nbflow.values.nodes import (
    ENCODERS,
    FINDERS,
    Encoder,
    Node,
    Reader,
    Refused,
    Writer,
    decodes,
    forms,
    type_name,
)
from nbflow.values.own import owns_class

Tagged = dict[str, Any]
_HEAP_TYPE = 1 << 9
_BY_TYPING, _ALIASES = "__orig_class__", (type(Generic[TypeVar("_T")]), types.GenericAlias)  # type: ignore[index]
_PLAIN: tuple[Any, ...] = (
    list, dict, set, tuple, frozenset, str, bytes, bytearray, int, float, bool, deque, OrderedDict, Counter,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CustomCodec:
    """A codec that the user has registered."""

    name: str
    encode: Callable[[Any], object]
    decode: Callable[[Any], object]


CUSTOM: dict[type, CustomCodec] = {}


def class_reference(cls: type) -> str:
    """How the history names a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def find_class(reference: str) -> type | None:
    """The class of that name in the modules that are loaded now; module `__getattr__` is not asked."""
    module, _, qualname = reference.partition(":")
    place: Any = sys.modules.get(module)
    if not isinstance(place, types.ModuleType):
        return None
    # past `__getattribute__`: a module that is loaded when it is first touched stays untouched
    names = vars(types.ModuleType)["__dict__"].__get__(place)
    for name in qualname.split("."):
        place = names.get(name)
        names = vars(type)["__dict__"].__get__(place) if isinstance(place, type) else {}
        if not isinstance(place, type):
            return None
    return place  # type: ignore[no-any-return]


def needed_class(reference: str, fits: Callable[[type], bool], kind: str) -> type:
    """The class of that name, or the error that says what is missing (S17)."""
    module, _, qualname = reference.partition(":")
    name = qualname if module == "__main__" else f"{module}.{qualname}"
    cls = find_class(reference)
    if cls is None:
        how = "run the cell that defines it" if module == "__main__" else f"import {module}"
        msg = f"class {name!r} is not defined here; {how}"
        raise UndecodableError(msg, needs=f"class {name}")
    if not fits(cls):
        msg = f"{name!r} was {kind} when it was stored and is none now; restore it"
        raise UndecodableError(msg, needs=f"class {name}")
    if not owns_class(cls) and any("__del__" in vars(part) for part in cls.__mro__):
        msg = f"{name!r} does something when it is thrown away, which a history may not choose; store what is in it"
        raise UndecodableError(msg, needs=f"a class {name} without __del__")
    return cls


def is_quiet(cls: type, base: type) -> bool:
    """Whether making a subclass of *cls*, itself one of *base*, runs nothing that its author wrote."""
    known = (*base.__mro__, object)
    return type(cls) is type(base) and not any("__init_subclass__" in vars(part) for part in cls.__mro__ if part not in known)


def default_by(cls: type, name: str, make: Callable[[], Any], factory: Any = None) -> Any:
    """What a default factory gives for a field that was not stored.

    A history may name any class that is loaded: only plain collections and what the user's own classes say are called.

    Args:
        cls, name: whose field it is.
        make: calls the factory.
        factory: the factory, where *make* is not it.

    Raises:
        UndecodableError: the class is another's and its factory may do anything.
    """
    if any(plain is (make if factory is None else factory) for plain in _PLAIN) or owns_class(cls):
        return make()
    reference = f"{cls.__module__}.{cls.__qualname__}"
    msg = f"field {name!r} of class {reference!r} was not stored, and its default factory is not called: the class is not yours"
    raise UndecodableError(msg, needs=f"field {name!r} of {reference}")


def must_be_found(cls: type, fits: Callable[[type], bool]) -> str:
    """The reference of a class that a reader will find again by it; refused otherwise."""
    reference = class_reference(cls)
    found = find_class(reference)
    if found is None or not fits(found):
        place = "inside a function" if "<locals>" in cls.__qualname__ else "where it cannot be found by its name"
        raise Refused(type_name(cls), f"its class is defined {place}", "define it at the top of a cell or module")
    return reference


# registered types


def register(cls: Any, encode: Any, decode: Any, name: str | None) -> None:
    """Register a codec; see `codec.register_codec`."""
    if not isinstance(cls, type):
        msg = f"register_codec takes a class first, not a '{type_name(type(cls))}'"
        raise UsageError(msg)
    if cls not in CUSTOM and (cls in ENCODERS or _is_known(cls)):
        msg = f"'{type_name(cls)}' has a codec already and keeps it; wrap the value in a class of your own"
        raise UsageError(msg)
    if not (callable(encode) and callable(decode)):
        msg = f"the codec of '{type_name(cls)}' needs two functions, encode and decode"
        raise UsageError(msg)
    name = name or f"{cls.__module__}.{cls.__qualname__}"
    held = next((other for other, codec in CUSTOM.items() if codec.name == name), None)
    if held is not None and class_reference(held) != class_reference(cls):
        msg = f"the codec name {name!r} belongs to '{type_name(held)}'; pass another name="
        raise UsageError(msg)
    if held is not None:  # the cell that defines the class was run again
        del CUSTOM[held], ENCODERS[held]
    CUSTOM[cls] = CustomCodec(name, encode, decode)
    ENCODERS[cls] = _encode_custom


def _is_known(cls: type) -> bool:
    """Whether it is a library's class that nbflow stores exactly; a user's own may have a codec of its own all the same."""
    if cls.__module__.partition(".")[0] not in ("numpy", "pandas", "polars", "pyarrow"):
        return False
    return any(find(cls) is not None for find in FINDERS)


def _encode_custom(writer: Writer, value: Any) -> Node:
    """The node of a value with a registered codec."""
    codec = CUSTOM[type(value)]
    try:
        content = codec.encode(value)
    except Exception as error:
        raise Refused(
            type_name(type(value)),
            f"its registered codec raised {type(error).__name__}: {error}",
            "correct its encode",
        ) from error
    return {"$": "codec", "n": codec.name, "v": writer.child(f".<{codec.name}>", content)}


@decodes("codec")
def _custom_back(reader: Reader, node: Tagged) -> Any:
    codec = next((codec for codec in CUSTOM.values() if codec.name == node["n"]), None)
    if codec is None:
        msg = f"the codec {node['n']!r} is not registered here; run the cell that calls nbflow.register_codec"
        raise UndecodableError(
            msg,
            needs=f"codec {node['n']}",
        )
    content = reader.value(node["v"])
    try:
        return codec.decode(content)
    except Exception as error:
        msg = f"the codec {node['n']!r} could not decode its value: {type(error).__name__}: {error}; correct its decode"
        raise UndecodableError(
            msg,
            needs=f"codec {node['n']} that reads it",
        ) from error


@forms("codec")
def _custom_form(form: Callable[[Node], Any], node: Tagged) -> Any:
    return form(node["v"])


# enums


def _is_enum(cls: type) -> bool:
    return isinstance(cls, enum.EnumMeta)


def _enum(writer: Writer, value: Any) -> Node:
    cls = type(value)
    node: Tagged = {"$": "enum", "c": must_be_found(cls, _is_enum)}
    name = value._name_
    if name is not None and cls._member_map_.get(name) is value:
        node["n"] = name
        if type(value._value_) in (str, int, bool, float):
            node["v"] = writer.node(value._value_)
        return node
    if issubclass(cls, enum.Flag) and type(value._value_) is int:
        node["flags"] = writer.node(value._value_)
        return node
    raise Refused(type_name(cls), "it is no member of its enum", "return a member, or its value")


@decodes("enum")
def _enum_back(reader: Reader, node: Tagged) -> Any:
    cls: Any = needed_class(node["c"], _is_enum, "an enum")
    name = node["c"].partition(":")[2]
    if "n" in node:
        if (member := cls._member_map_.get(node["n"])) is None:
            msg = f"enum {name!r} has no member {node['n']!r} now; add it again"
            raise UndecodableError(msg, needs=f"member {name}.{node['n']}")
        return member
    value = reader.value(node["flags"])
    if (member := cls._value2member_map_.get(value)) is not None:
        return member
    try:
        return enum.Flag._missing_.__func__(cls, value)  # type: ignore[attr-defined]
    except (ValueError, TypeError) as error:
        msg = f"enum {name!r} has no flags {value!r} now: {error}"
        raise UndecodableError(msg, needs=f"flags of {name}") from error


@forms("enum")
def _enum_form(form: Callable[[Node], Any], node: Tagged) -> Any:
    return form(node["v"]) if "v" in node else node.get("n", node.get("flags"))


# named tuples


def _is_named_tuple(cls: type) -> bool:
    fields = getattr(cls, "_fields", None)
    return tuple in cls.__mro__ and type(fields) is tuple and all(type(field) is str for field in fields) and ours(cls, tuple)


def ours(cls: type, base: type = object) -> bool:
    """Whether all state of an instance is in its `__dict__`, its slots and *base*: nothing made in C adds to it."""
    return (
        all(part is base or part is object or part.__flags__ & _HEAP_TYPE for part in cls.__mro__) and cls.__base__ is not None
    )


def _named_tuple(writer: Writer, value: Any) -> Node:
    cls = type(value)
    if len(value) != len(cls._fields) or instance_state(value):
        raise Refused(type_name(cls), "it holds more than its fields", "return a plain tuple or a dataclass")
    reference = must_be_found(cls, _is_named_tuple)
    fields = {name: writer.child(f".{name}", part) for name, part in zip(cls._fields, tuple.__iter__(value))}
    return {"$": "named", "c": reference, "v": fields}


@decodes("named")
def _named_back(reader: Reader, node: Tagged) -> Any:
    cls: Any = needed_class(node["c"], _is_named_tuple, "a named tuple")
    values = []
    for name in cls._fields:
        if name in node["v"]:
            values.append(reader.value(node["v"][name]))
        elif name in cls._field_defaults:
            values.append(cls._field_defaults[name])
        else:
            raise missing_field(node["c"], name)
    return tuple.__new__(cls, values)


def missing_field(reference: str, name: str) -> UndecodableError:
    """The error for a field that is required today and was not stored (S17)."""
    cls = reference.partition(":")[2]
    return UndecodableError(
        f"class {cls!r} has a field {name!r} now that was not stored; give it a default", needs=f"a default for {cls}.{name}"
    )


# dataclasses


def _is_dataclass(cls: type) -> bool:
    return is_dataclass(cls) and ours(cls)


def slot_members(cls: type) -> dict[str, Any]:
    """Descriptors of the slots of an instance, the most derived first."""
    found: dict[str, Any] = {}
    for part in cls.__mro__:
        for name, member in vars(part).items():
            if type(member) is types.MemberDescriptorType:
                found.setdefault(name, member)
    return found


def instance_state(value: Any) -> Tagged:
    """What an instance holds in its `__dict__` and slots, read without asking its class; what `typing` put there left out."""
    cls = type(value)
    state: Tagged = {}
    for name, member in slot_members(cls).items():
        try:
            state[name] = member.__get__(value, cls)
        except AttributeError:
            continue
    try:
        state.update(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        pass
    if type(state.get(_BY_TYPING)) in _ALIASES:  # `Box[int](3)` is a Box whose `==` does not ask for it
        del state[_BY_TYPING]
    return state


def set_state(instance: Any, state: Tagged) -> None:
    """Put values into an instance's `__dict__` and slots, past its class's `__setattr__`."""
    slots = slot_members(type(instance))
    for name, value in state.items():
        if name in slots:
            slots[name].__set__(instance, value)
        else:
            object.__getattribute__(instance, "__dict__")[name] = value


def _fields(cls: Any) -> dict[str, Field[Any]]:
    return {name: field for name, field in cls.__dataclass_fields__.items() if field._field_type.name == "_FIELD"}


def _dataclass(writer: Writer, value: Any) -> Node:
    cls = type(value)
    reference = must_be_found(cls, _is_dataclass)
    fields = _fields(cls)
    # What `field(init=False, default=…)` gives is on the class until somebody sets it.
    state = {name: field.default for name, field in fields.items() if field.default is not MISSING} | instance_state(value)
    if extra := [name for name in state if name not in fields]:
        raise Refused(
            type_name(cls), f"it has attributes besides its fields: {', '.join(map(repr, extra))}", "make them fields"
        )
    if unset := [name for name in fields if name not in state]:
        raise Refused(type_name(cls), f"its fields {', '.join(map(repr, unset))} are not set", "set them")
    return {"$": "dataclass", "c": reference, "v": {name: writer.child(f".{name}", state[name]) for name in fields}}


@decodes("dataclass")
def _dataclass_back(reader: Reader, node: Tagged) -> Any:
    cls = needed_class(node["c"], _is_dataclass, "a dataclass")
    state: Tagged = {}
    for name, field in _fields(cls).items():
        if name in node["v"]:
            state[name] = reader.value(node["v"][name])
        elif field.default is not MISSING:
            state[name] = field.default
        elif field.default_factory is not MISSING:
            state[name] = default_by(cls, name, field.default_factory)
        else:
            raise missing_field(node["c"], name)
    instance: Any = object.__new__(cls)
    try:
        set_state(instance, state)
    except AttributeError as error:
        msg = f"class {cls.__qualname__!r} cannot hold what was stored: {error}"
        raise UndecodableError(msg, needs=f"class {cls.__qualname__}") from error
    return instance


@forms("named", "dataclass")
def _fields_form(form: Callable[[Node], Any], node: Tagged) -> Any:
    return {name: form(part) for name, part in node["v"].items()}


def _find(cls: type) -> Encoder | None:
    if _is_enum(cls):
        return _enum
    if _is_dataclass(cls):
        return _dataclass
    if _is_named_tuple(cls):
        return _named_tuple
    return None


FINDERS.append(_find)
