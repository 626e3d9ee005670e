"""A payload to begin with, for who answers a wait from a shell: what its schema requires, with values in their places."""

import json
import math
from typing import Any

_DEEPEST, _MOST, _LONGEST = 5, 20, 300
_TEXT = "..."
_ANYTHING = "JSON"
_BY_FORMAT = {
    "date": "2026-12-31",
    "date-time": "2026-12-31T12:00:00+00:00",
    "time": "12:00:00",
    "partial-time": "12:00:00",
    "duration": "PT1H",
    "decimal": "1.00",
    "email": "name@example.com",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "hostname": "example.com",
}


class _NoneShortError(Exception):
    """There is no short payload, or none that is told by the schema."""


def payload_text(schema: Any) -> str:
    """Give JSON that has the fields which *schema* requires; "JSON" where that would be long, or nobody can say."""
    try:
        text = json.dumps(_sample(schema, schema, 0) if schema else {"approved": True}, ensure_ascii=False)
    except (_NoneShortError, AttributeError, TypeError, ValueError, OverflowError, RecursionError):
        return _ANYTHING
    return text if len(text) <= _LONGEST else _ANYTHING


def _sample(part: Any, root: Any, depth: int) -> Any:
    part = _opened(part, root)
    for name in ("default", "const"):
        if part.get(name) is not None:
            return part[name]
    if choices := part.get("enum"):
        return next((one for one in choices if one is not None), None)
    for several in (part.get("anyOf"), part.get("oneOf")):
        if several:
            return _sample(next((one for one in several if _opened(one, root).get("type") != "null"), {}), root, depth + 1)
    if depth > _DEEPEST:
        raise _NoneShortError
    match _kind(part):
        case "object":
            return _object(part, root, depth)
        case "array":
            items = [*(part.get("prefixItems") or []), *[part.get("items") or {}] * min(part.get("minItems", 0), _MOST)]
            wanted = max(part.get("minItems", 0), len(part.get("prefixItems") or []))
            return [_sample(one, root, depth + 1) for one in items[: min(wanted, _MOST)]]
        case "boolean":
            return True
        case "integer" | "number" as kind:
            return _number(part, whole=kind == "integer")
        case "null":
            return None
    return _text(part)


def _opened(part: Any, root: Any) -> dict[str, Any]:
    """What stands behind references, with what stands beside them."""
    for _ in range(8):
        if not isinstance(part, dict):
            break
        several = part.get("allOf")
        found = several[0] if isinstance(several, list) and len(several) == 1 else None
        if isinstance(reference := part.get("$ref"), str):
            found = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"))
        if found is None:
            return part if "$ref" not in part else {}
        part = {**found, **{name: one for name, one in part.items() if name not in ("$ref", "allOf")}}
    return {}


def _kind(part: dict[str, Any]) -> str:
    kind = part.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    if kind is None and (part.get("required") or part.get("properties")):
        return "object"
    return str(kind)


def _object(part: dict[str, Any], root: Any, depth: int) -> dict[str, Any]:
    required, properties = part.get("required") or [], part.get("properties") or {}
    if len(required) > _MOST:
        raise _NoneShortError
    return {str(name): _sample(properties.get(name, {}), root, depth + 1) for name in required}


def _text(part: dict[str, Any]) -> str:
    if part.get("contentEncoding"):
        return "YWJj"
    text = _BY_FORMAT.get(str(part.get("format")), _TEXT)
    return (text * math.ceil(min(part.get("minLength", 0), _LONGEST) / len(text)) or text)[: part.get("maxLength")]


def _number(part: dict[str, Any], *, whole: bool) -> float:
    """The least that fits above nothing, or the most that fits below it."""
    unit = part.get("multipleOf") or (1 if whole else 0)
    low, high = part.get("minimum", part.get("exclusiveMinimum")), part.get("maximum", part.get("exclusiveMaximum"))
    number = max(low, 0) if low is not None else 0
    if high is not None and number > high:
        number = high
    return _inside(part, math.ceil(number / unit) * unit if unit else number, unit)


def _inside(part: dict[str, Any], number: float, unit: float) -> float:
    """The same, off a bound that is none of the values."""
    low, high = part.get("exclusiveMinimum"), part.get("exclusiveMaximum")
    if low is not None and number <= low:
        between = (low + high) / 2 if high is not None and high - low <= 1 else low + 1
        return number + unit if unit else between
    if high is not None and number >= high:
        return number - unit if unit else high - 1
    return number
