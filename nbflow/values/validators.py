"""Whether a payload fits a JSON schema that a stranger may have written: nothing is fetched, and it comes to an end.

A history brings the schemas of its waits along. References lead nowhere but into the schema itself; the steps of one check
are counted; a pattern that may take for ever is tried in a process of its own, which is not waited for long.
"""

import contextlib
import contextvars
import functools
import importlib
import importlib.util
import json
import math
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import ModuleType
from typing import Any

from nbflow.values import formats

MOST = 100_000
"""Keywords that are looked at in one check."""
DEEPEST = 200
"""Keywords within each other: what is deeper would reach Python's own limit, where libraries in Rust panic."""
PATIENCE = 2.0
"""Seconds for one pattern on one text."""
_APART = 2_000  # a pattern tried in another process counts as so many keywords
_REPEATS = re.compile(r"[*+{]")
_PERILOUS = re.compile(r"\)[*+?{]|\\[1-9]|\(\?P=")  # a group repeated, a group asked for again
_SEARCH = "import json, re, sys; print(json.dumps(re.search(*json.load(sys.stdin)) is not None))"

_SLOW = "rfc3987_syntax"
"""What jsonschema imports for a format that is checked in another way here; it takes seconds, and every Jupyter brings it."""

_ENDLESS = "it refers to itself without end, or is nested too deeply"


_importing = threading.Lock()


@functools.cache
def load() -> None:
    """Import jsonschema, in a third of a second, where it is not yet."""
    with _importing, contextlib.nullcontext() if "jsonschema" in sys.modules else _put_off(_SLOW):
        importlib.import_module("jsonschema")


@contextlib.contextmanager
def _put_off(name: str) -> Iterator[None]:
    """Let a package be imported when one of its functions, taken from it meanwhile, is called."""
    if name in sys.modules or importlib.util.find_spec(name) is None:
        yield
        return
    sys.modules[name] = standing_in = _Later(name)
    try:
        yield
    finally:
        if sys.modules.get(name) is standing_in:
            del sys.modules[name]


class _Later(ModuleType):
    """Stands in for a package: each of its names is a function that imports the package, and calls what has that name."""

    def __getattr__(self, wanted: str) -> Callable[..., Any]:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        name = self.__name__

        def call(*given: Any, **named: Any) -> Any:
            return getattr(importlib.import_module(name), wanted)(*given, **named)

        return call


class Unusable(Exception):  # noqa: N818 - a signal within this module
    """The schema is none that can be used; the text says why."""


class _Check:
    """How many keywords may still be looked at, and how many are being looked at within each other."""

    __slots__ = ("depth", "left")

    def __init__(self) -> None:
        self.left, self.depth = MOST, 0

    def count(self, many: int) -> None:
        self.left -= many
        if self.left < 0:
            raise Unusable("it takes too much work to check by it")


_check: contextvars.ContextVar[_Check] = contextvars.ContextVar("nbflow_validator_check")


def errors_of(schema: dict[str, Any], payload: Any) -> list[Any]:
    """The errors of jsonschema for a payload.

    Raises:
        Unusable: the schema, not the payload, is what is wrong.
    """
    load()
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    token = _check.set(_Check())
    try:
        validator = _validator()(_undialected(schema), registry=REGISTRY)
        return sorted(validator.iter_errors(payload), key=lambda error: list(map(str, error.path)))
    except (Unusable, KeyboardInterrupt, SystemExit):
        raise
    except RecursionError:
        raise Unusable(_ENDLESS) from None
    except BaseException as error:
        raise Unusable(f"{type(error).__name__}: {error}"[:200]) from error
    finally:
        _check.reset(token)


@functools.cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator, validators

    own = {
        "contentEncoding": functools.partial(_readable, formats.ENCODINGS),
        "format": functools.partial(_readable, formats.READERS),
        "multipleOf": _multiple_of,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
    }
    keywords = {**Draft202012Validator.VALIDATORS, **own}
    counted = {name: _counted(check, 10 if name.endswith("Ref") or name == "$ref" else 1) for name, check in keywords.items()}
    return validators.extend(Draft202012Validator, counted)


def _counted(check: Callable[..., Any], price: int) -> Callable[..., Iterator[Any]]:
    """The same keyword; how many are looked at is limited, and how deep, for references double them without end."""

    def counted(*given: Any) -> Iterator[Any]:
        now = _check.get()
        now.count(price)
        if now.depth >= DEEPEST:
            raise Unusable(_ENDLESS)
        now.depth += 1
        try:
            yield from check(*given) or ()
        finally:
            now.depth -= 1

    return counted


def _undialected(schema: Any) -> Any:
    """The schema without its "$schema"s: another dialect would be checked by keywords that are not counted."""
    if isinstance(schema, dict):
        kept = {name: part for name, part in schema.items() if name != "$schema" or not isinstance(part, str)}
        return {name: _undialected(part) for name, part in kept.items()}
    return [_undialected(part) for part in schema] if isinstance(schema, list) else schema


def _readable(readers: dict[str, formats.Reader], _validator: Any, name: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not formats.fits(readers, name, instance):
        yield ValidationError(f"{instance!r} is not a {name!r}")


def _multiple_of(validator: Any, unit: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    """As the numbers are written: 0.3 is a multiple of 0.1, which a division of floats denies."""
    from jsonschema import ValidationError

    if validator.is_type(instance, "number") and not (math.isfinite(instance) and _exact(instance) % _exact(unit) == 0):
        yield ValidationError(f"{instance!r} is not a multiple of {unit!r}")


def _exact(number: Any) -> Fraction:
    return Fraction(repr(number) if isinstance(number, float) else number)


def _pattern(_validator: Any, pattern: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not _found(pattern, instance):
        yield ValidationError(f"does not match {pattern!r}")


def _pattern_properties(validator: Any, properties: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    for pattern, part in properties.items():
        for name, value in instance.items():
            if _found(pattern, name):
                yield from validator.descend(value, part, path=name, schema_path=pattern)


def _found(pattern: str, text: str) -> bool:
    """Whether a pattern is found in a text.

    Raises:
        Unusable: it is no pattern, or it took too long.
    """
    repeats = len(_REPEATS.findall(pattern))
    if len(pattern) > 1_000 or len(text) > MOST:
        raise Unusable("its pattern, or the text to be tried by it, is too long")
    short = len(text) <= (100 if repeats > 1 else 2_000)
    if not repeats or (short and repeats <= 3 and _PERILOUS.search(pattern) is None):
        try:
            return re.search(pattern, text) is not None
        except re.error as error:
            raise Unusable(_of_pattern(pattern, f"is none: {error}")) from None
    return _found_apart(pattern, text)


@functools.lru_cache(256)
def _found_apart(pattern: str, text: str) -> bool:
    _check.get().count(_APART)
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _SEARCH],
            input=json.dumps([pattern, text]),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unusable(_of_pattern(pattern, f"takes longer than {PATIENCE:g} s on {len(text):,} characters")) from None
    except (OSError, ValueError) as error:
        raise Unusable(_of_pattern(pattern, f"cannot be tried here: {error}")) from None
    if done.returncode:
        raise Unusable(_of_pattern(pattern, "is none"))
    return bool(json.loads(done.stdout))


def _of_pattern(pattern: str, what: str) -> str:
    return f"its pattern {pattern[:100]!r} {what}"
