"""`schema=` of a wait: a type or JSON schema becomes the JSON schema that is stored, and payloads are checked (S39).

The stored schema is enough for any process to check by; where the type itself is at hand its own rules (a pydantic
validator) are asked too.
"""

import re
import sys
import typing
from enum import Enum
from typing import Any

import msgspec

from nbflow.errors import NotSerialisableError, UsageError
from nbflow.values import codec, validators
from nbflow.values.declared import arrange, as_json, hints_of

Place = tuple[str, ...]
_LONGEST = 300

_NAMED = re.compile(r"\bschema\s*=")


def get_ready(source: str) -> None:
    """Import what the schemas take that code is about to name: there it would hold the workflow loop (S55)."""
    if _NAMED.search(source) is not None:
        validators.load()


class UnfitPayloadError(UsageError):
    """A payload does not fit its wait's schema; *problems* says where and why, for the fields of a form."""

    def __init__(self, text: str, problems: list[tuple[Place, str]]) -> None:
        super().__init__(text)
        self.problems = problems


def describe(schema: Any, what: str) -> dict[str, Any]:
    """The JSON schema of *schema*: a type, dataclass, TypedDict, Literal, enum, pydantic model, or a JSON schema.

    Raises:
        UsageError: it is none of these; *what* says whose.
    """
    if isinstance(schema, dict):
        validators.load()
        from jsonschema import Draft202012Validator, SchemaError

        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            msg = f"{what} is not a JSON schema: {error.message}"
            raise UsageError(msg) from None
        return schema
    if (named := _values_of_enum(schema)) is not None:
        return named
    try:
        if _is_pydantic(schema):
            return _by_pydantic(schema)
        return _opened(arrange(msgspec.json.schema(schema), schema))
    except (TypeError, RuntimeError, NameError) as error:
        msg = f"{what}={schema!r} has no JSON schema ({error}); give a type, a dataclass, a pydantic model or a JSON schema"
        raise UsageError(msg) from None


def problems(described: dict[str, Any], payload: Any, schema: Any = None) -> list[tuple[str, str]]:
    """What of *payload* does not fit: (path, message) each; empty where all does. *schema* is the type, where it is here."""
    return [(".".join(place), message) for place, message in unfit(described, payload, schema)]


def unfit(described: dict[str, Any], payload: Any, schema: Any = None) -> list[tuple[Place, str]]:
    """As `problems`, with each place as the names and numbers that lead to it.

    A schema says how JSON looks: a payload that is more than JSON, such as a dataclass, fits where its JSON form does.
    """
    form = payload
    try:
        found = _errors(described, payload)
        if found and (form := _json_form(payload)) is not payload:
            found = _errors(described, form)
            if found and (told := _told_form(payload)) != form and not _errors(described, told):
                form, found = told, []
    except validators.Unusable as unusable:
        return [((), f"the schema it is to fit cannot be used: {unusable}")]
    if found or schema is None or isinstance(schema, dict) or not _is_pydantic(schema):
        return found
    from pydantic import TypeAdapter, ValidationError

    try:
        is_one = isinstance(schema, type) and typing.get_origin(schema) is None and isinstance(payload, schema)
        TypeAdapter(schema).validate_python(payload if is_one else form)
    except ValidationError as error:
        return [(tuple(str(part) for part in one["loc"]), one["msg"]) for one in error.errors()]
    return []


def _errors(described: dict[str, Any], payload: Any) -> list[tuple[Place, str]]:
    return [_placed(error) for error in validators.errors_of(described, payload)]


def _json_form(payload: Any) -> Any:
    """What displays, SQL and other languages see of a payload that is stored as more than JSON; itself where it is JSON."""
    try:
        form = codec.encode(payload, None, with_preview=False).json
    except NotSerialisableError:
        return payload
    return payload if form is None else msgspec.json.decode(form)


def _told_form(payload: Any) -> Any:
    """The JSON form that schemas of types speak of, where it is another: a timedelta is stored as seconds, told as a text."""
    try:
        return as_json(payload)
    except Exception:  # noqa: BLE001 - what the user's own classes raise: then the stored form is the one that counts
        return None


def check(described: dict[str, Any], payload: Any, what: str, schema: Any = None) -> None:
    """Refuse a payload that does not fit.

    Raises:
        UnfitPayloadError: names each place that does not.
    """
    found = unfit(described, payload, schema)
    if found:
        places = "; ".join(f"{'.'.join(place) or 'the payload'}: {message}" for place, message in found[:5])
        msg = f"the payload does not fit {what}: {places}"
        raise UnfitPayloadError(msg, found[:50])


def _placed(error: Any) -> tuple[Place, str]:
    """Where an error of jsonschema belongs: what is missing belongs to its own field, not to the whole."""
    place = tuple(str(part) for part in error.absolute_path)
    if error.validator == "required":
        place += tuple(name for name in error.validator_value if error.message.startswith(f"{name!r} is "))[:1]
    message = error.message
    if error.validator in _LENGTHS:
        words, bound, (one, many) = _LENGTHS[error.validator]
        shown = message if len(message) <= _LONGEST // 2 else words  # the value, which may be long, comes first in it
        return place, f"{shown}: {bound} {error.validator_value} {one if error.validator_value == 1 else many}"
    return place, message if len(message) <= _LONGEST else f"{message[: _LONGEST - 1]}…"


_CHARACTERS, _ENTRIES = ("character", "characters"), ("entry", "entries")
_LENGTHS = {
    "minLength": ("is too short", "at least", _CHARACTERS),
    "maxLength": ("is too long", "at most", _CHARACTERS),
    "minItems": ("has too few entries", "at least", _ENTRIES),
    "maxItems": ("has too many entries", "at most", _ENTRIES),
}


def _opened(described: dict[str, Any]) -> dict[str, Any]:
    """The same schema with its outermost reference followed: forms are made from what stands at the top."""
    _, found, name = described.get("$ref", "").partition("#/$defs/")
    if not found:
        return described
    definitions = described["$defs"]
    top: dict[str, Any] = definitions[name]
    return top | {"$defs": definitions} if '"#/$defs/' in msgspec.json.encode(top).decode() else top


def _values_of_enum(schema: Any) -> dict[str, Any] | None:
    """An enum of any JSON values by these; None of what is no enum, or of one of text or integers alone."""
    if not (isinstance(schema, type) and issubclass(schema, Enum)):
        return None
    values = [member.value for member in schema]
    kinds = {type(value) for value in values}
    if kinds in ({str}, {int}) or not kinds <= {str, int, float, bool, type(None)}:
        return None
    return {"title": schema.__name__, "enum": values}


def _is_pydantic(schema: Any) -> bool:
    return "pydantic" in sys.modules and (hasattr(schema, "__pydantic_core_schema__") or _constrained(schema, set()))


def _constrained(schema: Any, seen: set[int]) -> bool:
    """Whether a type, or a field of it, carries constraints that pydantic alone knows: `Annotated[int, Field(ge=1)]`."""
    if id(schema) in seen:
        return False
    seen.add(id(schema))
    if any(type(note).__module__.partition(".")[0] in _PYDANTICS for note in getattr(schema, "__metadata__", ())):
        return True
    has_fields = hasattr(schema, "__dataclass_fields__") or typing.is_typeddict(schema)
    fields = hints_of(schema, include_extras=True).values() if has_fields else ()
    return any(_constrained(part, seen) for part in (*typing.get_args(schema), *fields))


_PYDANTICS = ("pydantic", "annotated_types")


def _by_pydantic(schema: Any) -> dict[str, Any]:
    from pydantic import TypeAdapter

    return arrange(TypeAdapter(schema).json_schema(), schema)
