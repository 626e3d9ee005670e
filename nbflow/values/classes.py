# ruff: noqa: SLF001 - enums and named tuples keep what is needed under names with an underscore
"""Instances of classes: enums, named tuples, dataclasses, pydantic models, msgspec Structs, registered types.

A class is written as `module:qualname` and looked up in the modules that are loaded; nothing is imported, no constructor
is called, so what a history contains can never make code run.
"""

import enum
import functools
import sys
import types
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, is_dataclass
from typing import Any

import msgspec

from nbflow.errors import UndecodableError
from nbflow.values.nodes import (
    ENCODERS,
    FINDERS,
    Encoder,
    Node,
    Reader,
    Refused,
    Writer,
    decodes,
    encodes,
    forms,
    type_name,
)

Tagged = dict[str, Any]
_HEAP_TYPE = 1 << 9


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
    for name in qualname.split("."):
        place = None if place is None else vars(place).get(name)
        if place is not None and not isinstance(place, type):
            return None
    return place if isinstance(place, type) else None


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
    return cls


def _must_be_found(cls: type, fits: Callable[[type], bool]) -> str:
    reference = class_reference(cls)
    found = find_class(reference)
    if found is None or not fits(found):
        place = "inside a function" if "<locals>" in cls.__qualname__ else "where it cannot be found by its name"
        raise Refused(type_name(cls), f"its class is defined {place}", "define it at the top of a cell or module")
    return reference


# registered types


def encode_custom(writer: Writer, value: Any) -> Node:
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
    node: Tagged = {"$": "enum", "c": _must_be_found(cls, _is_enum)}
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
    return (
        issubclass(cls, tuple) and type(fields) is tuple and all(type(field) is str for field in fields) and _ours(cls, tuple)
    )


def _ours(cls: type, base: type = object) -> bool:
    """Whether all state of an instance is in its `__dict__`, its slots and *base*: nothing made in C adds to it."""
    return (
        all(part is base or part is object or part.__flags__ & _HEAP_TYPE for part in cls.__mro__) and cls.__base__ is not None
    )


def _named_tuple(writer: Writer, value: Any) -> Node:
    cls = type(value)
    if len(value) != len(cls._fields) or getattr(value, "__dict__", None):
        raise Refused(type_name(cls), "it holds more than its fields", "return a plain tuple or a dataclass")
    reference = _must_be_found(cls, _is_named_tuple)
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
            raise _missing_field(node["c"], name)
    return tuple.__new__(cls, values)


def _missing_field(reference: str, name: str) -> UndecodableError:
    cls = reference.partition(":")[2]
    return UndecodableError(
        f"class {cls!r} has a field {name!r} now that was not stored; give it a default", needs=f"a default for {cls}.{name}"
    )


# dataclasses


def _is_dataclass(cls: type) -> bool:
    return is_dataclass(cls) and _ours(cls)


def _slots(cls: type) -> dict[str, Any]:
    """Descriptors of the slots of an instance, the most derived first."""
    found: dict[str, Any] = {}
    for part in cls.__mro__:
        for name, member in vars(part).items():
            if type(member) is types.MemberDescriptorType:
                found.setdefault(name, member)
    return found


def _state(value: Any) -> Tagged:
    """What an instance holds in its `__dict__` and slots, read without asking its class."""
    cls = type(value)
    state: Tagged = {}
    for name, member in _slots(cls).items():
        try:
            state[name] = member.__get__(value, cls)
        except AttributeError:
            continue
    try:
        state.update(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        pass
    return state


def _set_state(instance: Any, state: Tagged) -> None:
    slots = _slots(type(instance))
    for name, value in state.items():
        if name in slots:
            slots[name].__set__(instance, value)
        else:
            object.__getattribute__(instance, "__dict__")[name] = value


def _fields(cls: Any) -> dict[str, Field[Any]]:
    return {name: field for name, field in cls.__dataclass_fields__.items() if field._field_type.name == "_FIELD"}


def _dataclass(writer: Writer, value: Any) -> Node:
    cls = type(value)
    reference = _must_be_found(cls, _is_dataclass)
    state, fields = _state(value), _fields(cls)
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
            state[name] = field.default_factory()
        else:
            raise _missing_field(node["c"], name)
    instance = object.__new__(cls)
    try:
        _set_state(instance, state)
    except AttributeError as error:
        msg = f"class {cls.__qualname__!r} cannot hold what was stored: {error}"
        raise UndecodableError(msg, needs=f"class {cls.__qualname__}") from error
    return instance


@forms("named", "dataclass", "struct")
def _fields_form(form: Callable[[Node], Any], node: Tagged) -> Any:
    return {name: form(part) for name, part in node["v"].items()}


# pydantic models, when pydantic is loaded


def _is_model(cls: type) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel) and _ours(cls)


def _model(writer: Writer, value: Any) -> Node:
    cls = type(value)
    reference = _must_be_found(cls, _is_model)
    state, slots = _state(value), ("__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")
    extra, fields_set, private = (state.pop(name, None) for name in slots)
    known = cls.__pydantic_fields__
    others = [n for n in state if n not in known and not isinstance(getattr(cls, n, None), functools.cached_property)]
    if others or fields_set is None:
        raise Refused(
            type_name(cls),
            f"it has attributes besides its fields: {', '.join(map(repr, others))}" if others else "it was never initialised",
            "make them fields or private attributes",
        )
    node: Tagged = {"$": "pydantic", "c": reference, "set": sorted(fields_set)}
    node["v"] = {name: writer.child(f".{name}", part) for name, part in state.items() if name in known}
    if extra is not None:
        node["extra"] = writer.node(extra)
    if private is not None:
        undefined = type(sys.modules["pydantic_core"].PydanticUndefined)
        kept = {name: part for name, part in private.items() if type(part) is not undefined}
        node["private"] = {name: writer.child(f".{name}", part) for name, part in kept.items()}
    return node


@decodes("pydantic")
def _model_back(reader: Reader, node: Tagged) -> Any:
    cls: Any = needed_class(node["c"], _is_model, "a pydantic model")
    values: Tagged = {}
    for name, field in cls.__pydantic_fields__.items():
        if name in node["v"]:
            values[name] = reader.value(node["v"][name])
        elif field.is_required():
            raise _missing_field(node["c"], name)
        else:
            values[name] = field.get_default(call_default_factory=True, validated_data=values)
    instance: Any = object.__new__(cls)
    slots = _slots(cls)
    object.__getattribute__(instance, "__dict__").update(values)
    slots["__pydantic_fields_set__"].__set__(instance, {name for name in node["set"] if name in values or "extra" in node})
    slots["__pydantic_extra__"].__set__(instance, reader.value(node["extra"]) if "extra" in node else None)
    private = {name: reader.value(part) for name, part in node["private"].items()} if "private" in node else None
    slots["__pydantic_private__"].__set__(instance, private)
    return instance


@forms("pydantic")
def _model_form(form: Callable[[Node], Any], node: Tagged) -> Any:
    return {name: form(part) for name, part in {**node["v"], **(node.get("extra") or {})}.items()}


def _secret_class(name: str) -> type | None:
    pydantic = sys.modules.get("pydantic")
    return None if pydantic is None else vars(pydantic.types).get(name)


def _secret(writer: Writer, value: Any) -> Node:
    return {"$": "secret", "c": type(value).__name__, "v": writer.node(value.get_secret_value())}


@decodes("secret")
def _secret_back(reader: Reader, node: Tagged) -> Any:
    cls: Any = _secret_class(node["c"])
    if cls is None:
        msg = f"a {node['c']!r} cannot be read: pydantic is not loaded; import it"
        raise UndecodableError(msg, needs="library pydantic")
    return cls(reader.value(node["v"]))


@forms("secret")
def _secret_form(_form: Callable[[Node], Any], _node: Tagged) -> Any:
    return "**********"


# msgspec Structs


def _is_struct(cls: type) -> bool:
    return issubclass(cls, msgspec.Struct) and cls is not msgspec.Struct


def _struct(writer: Writer, value: Any) -> Node:
    cls = type(value)
    reference = _must_be_found(cls, _is_struct)
    fields = cls.__struct_fields__
    if extra := [name for name in _state(value) if name not in fields]:
        raise Refused(
            type_name(cls), f"it has attributes besides its fields: {', '.join(map(repr, extra))}", "make them fields"
        )
    parts = {}
    for name in fields:
        try:
            part = object.__getattribute__(value, name)
        except AttributeError:
            raise Refused(type_name(cls), f"its field {name!r} is not set", "set it") from None
        parts[name] = writer.child(f".{name}", part)
    return {"$": "struct", "c": reference, "v": parts}


@decodes("struct")
def _struct_back(reader: Reader, node: Tagged) -> Any:
    cls: Any = needed_class(node["c"], _is_struct, "a msgspec Struct")
    state: Tagged = {}
    for field in msgspec.structs.fields(cls):
        if field.name in node["v"]:
            state[field.name] = reader.value(node["v"][field.name])
        elif field.required:
            raise _missing_field(node["c"], field.name)
    if not hasattr(cls, "__post_init__"):
        return cls(**state)
    # a twin without __post_init__ makes the instance, which then gets its own class: nothing of the user's runs
    instance = _quiet_twin(cls)(**state)
    object.__setattr__(instance, "__class__", cls)
    return instance


def _quiet_twin(cls: Any) -> Any:
    return type(cls)(cls.__name__, (cls,), {"__post_init__": lambda _self: None, "__module__": __name__})


@encodes(msgspec.UnsetType)
def _unset(_writer: Writer, _value: Any) -> Node:
    return {"$": "unset"}


@decodes("unset")
def _unset_back(_reader: Reader, _node: Tagged) -> Any:
    return msgspec.UNSET


@forms("unset")
def _unset_form(_form: Callable[[Node], Any], _node: Tagged) -> Any:
    return None


def _find(cls: type) -> Encoder | None:
    if _is_enum(cls):
        return _enum
    if _is_dataclass(cls):
        return _dataclass
    if _is_named_tuple(cls):
        return _named_tuple
    if _is_model(cls):
        return _model
    if _is_struct(cls):
        return _struct
    if cls.__name__ in ("SecretStr", "SecretBytes") and cls is _secret_class(cls.__name__):
        return _secret
    return None


FINDERS.append(_find)
__all__ = ["CUSTOM", "ENCODERS", "CustomCodec", "class_reference", "encode_custom", "find_class", "needed_class"]
