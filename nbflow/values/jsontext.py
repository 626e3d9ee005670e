"""JSON as a person writes it, in a shell or in the panel, read by one strict parser: what it gives is what was written."""

import json
import math
from typing import Any, NoReturn


def read(text: str, *, deepest: int | None = None) -> Any:
    """The value that *text* writes: every digit of a whole number counts, `1.0` stays a float.

    Args:
        deepest: how many lists and objects may stand inside each other.

    Raises:
        ValueError: it is no JSON, or holds a number that cannot be kept: NaN, Infinity, one beyond what a float holds.
    """
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if deepest is not None and _is_deeper(value, deepest):
        msg = f"it is nested more than {deepest} deep"
        raise ValueError(msg)
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        level = [child for one in level for child in _children(one)]
    return bool(level)


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _refuse(word: str) -> NoReturn:
    msg = f"{word} is no JSON"
    raise ValueError(msg)


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isfinite(value):
        return value
    msg = f"{digits if len(digits) <= 40 else f'{digits[:37]}…'} is beyond what a float holds"
    raise ValueError(msg)
