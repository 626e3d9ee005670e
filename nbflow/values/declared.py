"""What a JSON schema made from a type leaves out of it: the order in which things were declared, made defaults, moments.

msgspec sorts the choices of enums and Literals and the fields of a TypedDict, says of a moment that may be without a time
zone that it is a text, and neither it nor pydantic says what a `default_factory` gives. Forms show the one and are filled
in with the other.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from datetime import datetime, time
from enum import EnumMeta
from typing import Any

import msgspec

_Part = dict[str, Any]
_UNIONS = (typing.Union, types.UnionType)


def arrange(described: _Part, schema: Any) -> _Part:
    """The same schema, changed in place: choices and fields as *schema* declares them, defaults that factories make.

    A default that has a secret is left out: pydantic writes asterisks for it, which a form would send as the secret.
    """
    _Arranging(described.get("$defs", {})).part(described, schema)
    _without_asterisks(described)
    return described


class _Arranging:
    """One walk along a type and its JSON schema."""

    def __init__(self, definitions: Mapping[str, _Part]) -> None:
        self._definitions = definitions
        self._seen: set[int] = set()

    def part(self, part: object, hint: Any) -> None:
        """Arrange what *part* says of the type *hint*."""
        if not isinstance(part, dict):
            return
        found = self._definitions.get(str(part.get("$ref", "")).rpartition("/")[2])
        if found is None:
            found = part
        elif id(found) in self._seen:
            return
        self._seen.add(id(found))
        alternatives = _alternatives(hint)
        for one in found.get("anyOf", ()):
            self.part(one, hint)
        if isinstance(found.get("enum"), list):
            found["enum"] = _in_order(found["enum"], alternatives)
        _name_kind(found, alternatives)
        for one in alternatives:
            self._within(found, typing.get_origin(one), typing.get_args(one))
        if "properties" in found and (cls := _class_of(found, alternatives)) is not None:
            self._fields(found, cls)

    def _within(self, part: _Part, origin: Any, args: tuple[Any, ...]) -> None:
        """The parts of a container."""
        if isinstance(origin, type) and issubclass(origin, Mapping) and len(args) == 2:
            self.part(part.get("propertyNames"), args[0])
            self.part(part.get("additionalProperties"), args[1])
        elif args:
            self.part(part.get("items"), args[0])
            for one, arg in zip(part.get("prefixItems", ()), args, strict=False):
                self.part(one, arg)

    def _fields(self, part: _Part, cls: type) -> None:
        properties, hints = part["properties"], hints_of(cls)
        if typing.is_typeddict(cls) and properties.keys() == hints.keys():
            part["properties"] = {name: properties[name] for name in hints}
        for name, (field, factory) in _fields_of(cls, hints).items():
            shown = properties.get(name)
            if not isinstance(shown, dict):
                continue
            if factory is not None and "default" not in shown and name not in part.get("required", ()):
                shown |= _made(factory)
            self.part(shown, hints.get(field))


def _name_kind(part: _Part, alternatives: list[Any]) -> None:
    """Say of a moment, and of what pydantic keeps secret, what it is: else it would be any text, or shown while it is typed."""
    if part.keys() <= _OF_ANY_TEXT and part.get("type") == "string" and str not in alternatives:
        part |= next(({"format": name} for cls, name in _MOMENTS.items() if cls in alternatives), {})
    if any(_is_secret(one) for one in alternatives):
        if part.get("type", "null") != "null":
            part["writeOnly"] = True
        if part.get("default") is not None:
            del part["default"]


_MOMENTS = {datetime: "date-time", time: "time"}
_OF_ANY_TEXT = {"type", "title", "description", "default", "examples"}
_ASTERISKS = "**********"
_PARTS_BY_NAME = ("properties", "patternProperties", "$defs", "dependentSchemas")


def _is_secret(hint: Any) -> bool:
    """Whether a type is one of those that pydantic shows as asterisks."""
    cls = typing.get_origin(hint) or hint
    return any(one.__module__ == "pydantic.types" and one.__name__ == "_SecretBase" for one in getattr(cls, "__mro__", ()))


def _without_asterisks(part: object) -> None:
    """Leave out the defaults that have a secret in them."""
    if isinstance(part, list):
        for one in part:
            _without_asterisks(one)
    if not isinstance(part, dict):
        return
    if "default" in part and _ASTERISKS in json.dumps(part["default"], default=str):
        del part["default"]
    for name, one in part.items():
        if name in _PARTS_BY_NAME:
            _without_asterisks(list(one.values()))
        elif name not in ("default", "const", "enum", "examples"):
            _without_asterisks(one)


def hints_of(schema: Any, *, include_extras: bool = False) -> dict[str, Any]:
    """The types of the fields of a class; none where it is no class, or names names that are not there now."""
    try:
        return typing.get_type_hints(schema, include_extras=include_extras)
    except (TypeError, NameError, AttributeError):
        return {}


def _alternatives(hint: Any) -> list[Any]:
    """What a type may be: the members of a union, without what only wraps them."""
    while True:
        origin = typing.get_origin(hint)
        if origin is typing.Annotated or origin in (typing.Required, typing.NotRequired):
            hint = typing.get_args(hint)[0]
        elif (behind := getattr(hint, "__supertype__", None) or getattr(hint, "__value__", None)) is not None:
            hint = behind  # a NewType, a `type` statement
        else:
            break
    if origin in _UNIONS:
        return [one for member in typing.get_args(hint) for one in _alternatives(member)]
    return [hint]


def _class_of(part: _Part, alternatives: list[Any]) -> type | None:
    """The class that an object is of; None where it may be of several."""
    classes = [typing.get_origin(one) or one for one in alternatives]
    classes = [one for one in classes if isinstance(one, type) and hasattr(one, "__annotations__")]
    if len(classes) > 1:
        classes = [one for one in classes if one.__name__ == part.get("title")]
    return classes[0] if len(classes) == 1 else None


def _in_order(choices: list[Any], alternatives: list[Any]) -> list[Any]:
    """The choices as the Literal or enum that has just these declares them."""
    literals = [typing.get_args(one) for one in alternatives if typing.get_origin(one) is typing.Literal]
    enums = [_values(one) for one in alternatives if isinstance(one, EnumMeta)]
    nothing = [None] if type(None) in alternatives else []
    together = [value for one in literals for value in one]
    wanted = sorted(map(_key, choices))
    for declared in (*literals, *enums, together, [*together, *nothing]):
        once = list({_key(value): value for value in declared}.values())
        if sorted(map(_key, once)) == wanted:
            return once
    return choices


def _values(enum: Any) -> list[Any]:
    return [member.value for member in enum.__members__.values()]


def _key(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"


def _fields_of(cls: type, hints: Mapping[str, Any]) -> dict[str, tuple[str, Callable[[], Any] | None]]:
    """By the name in JSON: the field's own, and what makes its default."""
    if isinstance(known := getattr(cls, "__pydantic_fields__", None), dict):
        return {_alias(one) or name: (name, one.default_factory) for name, one in known.items()}
    if issubclass(cls, msgspec.Struct):
        structs = msgspec.structs.fields(cls)
        return {one.encode_name: (one.name, _unless(one.default_factory, msgspec.NODEFAULT)) for one in structs}
    if dataclasses.is_dataclass(cls):
        plain = dataclasses.fields(cls)
        return {one.name: (one.name, _unless(one.default_factory, dataclasses.MISSING)) for one in plain}
    attributes = {one.name: getattr(one.default, "factory", None) for one in getattr(cls, "__attrs_attrs__", ())}
    return {name: (name, attributes.get(name)) for name in hints}


def _alias(field: Any) -> str | None:
    found = field.validation_alias or field.alias
    return found if isinstance(found, str) else None


def _unless(factory: Any, absent: object) -> Any:
    return None if factory is absent else factory


def _made(factory: Callable[[], Any]) -> _Part:
    """The default that a factory makes, in its JSON form; nothing where it fails or makes what has none."""
    try:
        made = as_json(factory())
        json.dumps(made, allow_nan=False)
    except Exception:  # noqa: BLE001 - the user's code: then the form asks for it instead
        return {}
    return {"default": made}


def as_json(value: Any) -> Any:
    """The JSON form that the schema of its type speaks of: of a timedelta a text, not seconds.

    Raises:
        TypeError: it has none.
    """
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_dumped)


def _dumped(value: Any) -> Any:
    if hasattr(value, "__pydantic_fields__"):
        return value.model_dump(mode="json", by_alias=True)
    msg = f"{type(value).__name__} has no JSON form"
    raise TypeError(msg)
