"""`schema=` of a wait: a type or JSON schema becomes the JSON schema that is stored, and payloads are checked (S39).

The stored schema is enough for any process to check by; where the type itself is at hand its own rules (a pydantic
validator) are asked too.
"""

import sys
from typing import Any

import msgspec

from nbflow.errors import UsageError


def describe(schema: Any, what: str) -> dict[str, Any]:
    """The JSON schema of *schema*: a type, dataclass, TypedDict, Literal, enum, pydantic model, or a JSON schema.

    Raises:
        UsageError: it is none of these; *what* says whose.
    """
    if isinstance(schema, dict):
        from jsonschema import Draft202012Validator, SchemaError

        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            msg = f"{what} is not a JSON schema: {error.message}"
            raise UsageError(msg) from None
        return schema
    try:
        return _by_pydantic(schema) if _is_pydantic(schema) else _opened(msgspec.json.schema(schema))
    except (TypeError, RuntimeError, NameError) as error:
        msg = f"{what}={schema!r} has no JSON schema ({error}); give a type, a dataclass, a pydantic model or a JSON schema"
        raise UsageError(msg) from None


def problems(described: dict[str, Any], payload: Any, schema: Any = None) -> list[tuple[str, str]]:
    """What of *payload* does not fit: (path, message) each; empty where all does. *schema* is the type, where it is here."""
    from jsonschema import Draft202012Validator

    found = [
        (".".join(str(part) for part in error.absolute_path), error.message)
        for error in sorted(Draft202012Validator(described).iter_errors(payload), key=lambda error: list(map(str, error.path)))
    ]
    if found or schema is None or isinstance(schema, dict) or not _is_pydantic(schema):
        return found
    from pydantic import TypeAdapter, ValidationError

    try:
        TypeAdapter(schema).validate_python(payload)
    except ValidationError as error:
        return [(".".join(str(part) for part in one["loc"]), one["msg"]) for one in error.errors()]
    return []


def check(described: dict[str, Any], payload: Any, what: str, schema: Any = None) -> None:
    """Refuse a payload that does not fit.

    Raises:
        UsageError: names each place that does not.
    """
    found = problems(described, payload, schema)
    if found:
        places = "; ".join(f"{path or 'the payload'}: {message}" for path, message in found[:5])
        msg = f"the payload does not fit {what}: {places}"
        raise UsageError(msg)


def _opened(described: dict[str, Any]) -> dict[str, Any]:
    """The same schema with its outermost reference followed: forms are made from what stands at the top."""
    _, found, name = described.get("$ref", "").partition("#/$defs/")
    if not found:
        return described
    definitions = described["$defs"]
    top: dict[str, Any] = definitions[name]
    return top | {"$defs": definitions} if '"#/$defs/' in msgspec.json.encode(top).decode() else top


def _is_pydantic(schema: Any) -> bool:
    return "pydantic" in sys.modules and hasattr(schema, "__pydantic_core_schema__")


def _by_pydantic(schema: Any) -> dict[str, Any]:
    from pydantic import TypeAdapter

    described: dict[str, Any] = TypeAdapter(schema).json_schema()
    return described
