"""Instances of pydantic models and msgspec Structs: their fields, without validation and without user code.

Neither library is imported here for it: who has such an instance has loaded its library.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from nbflow.errors import UndecodableError
from nbflow.values.classes import (
    class_reference,
    default_by,
    find_class,
    instance_state,
    is_quiet,
    missing_field,
    must_be_found,
    needed_class,
    ours,
    slot_members,
)
from nbflow.values.nodes import FINDERS, Encoder, Node, Reader, Refused, Writer, decodes, encodes, forms, type_name
from nbflow.values.own import owns_class

Tagged = dict[str, Any]


# pydantic models, when pydantic is loaded


def _is_model(cls: type) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and pydantic.BaseModel in cls.__mro__ and ours(cls)


def _reference(cls: Any) -> str:
    """How the history names a model's class; `Page[int]` made inside a function has no name, and is not made when read."""
    origin = cls.__pydantic_generic_metadata__["origin"]
    if origin is not None and find_class(class_reference(cls)) is None and find_class(class_reference(origin)) is not None:
        name = cls.__name__
        why = f"its class {name} is made by pydantic where it is used, and cannot be found by its name"
        advice = f"define one at the top of a cell or module and use that: `class MyModel({name}): pass`"
        raise Refused(type_name(cls), why, advice)
    return must_be_found(cls, _is_model)


def _model(writer: Writer, value: Any) -> Node:
    cls = type(value)
    reference = _reference(cls)
    state, slots = instance_state(value), ("__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")
    extra, fields_set, private = (state.pop(name, None) for name in slots)
    known = cls.__pydantic_fields__
    others = [n for n in state if n not in known and not isinstance(getattr(cls, n, None), functools.cached_property)]
    if unset := [name for name in known if name not in state]:
        raise Refused(type_name(cls), f"its fields {', '.join(map(repr, unset))} are not set", "set them")
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
            raise missing_field(node["c"], name)
        elif field.default_factory is None:
            values[name] = field.get_default()
        else:
            make = functools.partial(field.get_default, call_default_factory=True, validated_data=values)
            values[name] = default_by(cls, name, make, field.default_factory)
    instance: Any = object.__new__(cls)
    slots = slot_members(cls)
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
    return msgspec.Struct in cls.__mro__ and cls is not msgspec.Struct


def _struct(writer: Writer, value: Any) -> Node:
    cls = type(value)
    reference = must_be_found(cls, _is_struct)
    fields = cls.__struct_fields__
    if extra := [name for name in instance_state(value) if name not in fields]:
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
            raise missing_field(node["c"], field.name)
        elif field.default_factory is not msgspec.NODEFAULT:
            state[field.name] = default_by(cls, field.name, field.default_factory)
    if not hasattr(cls, "__post_init__"):
        return cls(**state)
    if not owns_class(cls) and not is_quiet(cls, msgspec.Struct):
        msg = f"{node['c']!r} cannot be made without running what its author wrote, and is none of your classes"
        raise UndecodableError(msg, needs=f"class {node['c']} without __post_init__")
    # a twin without __post_init__ makes the instance, which then gets its own class: nothing of the user's runs
    instance = _quiet_twin(cls)(**state)
    vars(object)["__class__"].__set__(instance, cls)  # a Struct refuses object.__setattr__
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


@forms("struct")
def _struct_form(form: Callable[[Node], Any], node: Tagged) -> Any:
    return {name: form(part) for name, part in node["v"].items()}


def _find(cls: type) -> Encoder | None:
    if _is_model(cls):
        return _model
    if _is_struct(cls):
        return _struct
    if cls.__name__ in ("SecretStr", "SecretBytes") and cls is _secret_class(cls.__name__):
        return _secret
    return None


FINDERS.append(_find)
