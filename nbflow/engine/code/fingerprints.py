"""The fingerprint of what a step is given to run, at next to no cost where nothing has changed (S56).

What a walk found is kept under the shape of the callable, its code and what its closures hold, and is true as long as the
names that the walk relied on mean the same. Constants in closures, defaults and partials differ from call to call
(`lambda i=i: …`): they are no part of the shape, and are told apart by a short hash each.
"""

import logging
import zlib
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

from nbflow.core.parts import Fingerprint, fingerprint
from nbflow.engine.code.constants import is_small, token
from nbflow.engine.code.frames import DATA, WRITTEN, Frames
from nbflow.engine.code.objects import (
    CACHED,
    FEW,
    MISSING,
    NESTED,
    args_of,
    content_of,
    followed,
    func_of,
    is_class,
    is_container,
    is_partial,
    keywords_of,
    known_as,
    members,
    own_dict,
    reads,
)
from nbflow.engine.code.reach import Reach
from nbflow.engine.code.relied import Relied

_KEPT = 2_000
_CONSTANT = "constant"
_PASSED = frozenset(map(id, (FunctionType, MethodType, CACHED)))
_NO_CONSTANTS: dict[str, str] = {}
_NONE_OPEN: frozenset[str] = frozenset()

log = logging.getLogger("nbflow")


class _Known(Relied):
    """A fingerprint and what it relies on."""

    __slots__ = ("fingerprint",)

    def __init__(self, reach: Reach, alive: list[object]) -> None:
        super().__init__(reach, alive)
        self.fingerprint = fingerprint(reach.parts)


_known: dict[object, _Known] = {}


class _Shape:
    """What tells callables apart that a walk could find different things in.

    Attributes:
        constants: what is bound to them by value, by name, each as 8 hex digits.
        open: names of variables of `run` that hold what it may have computed: what counts only where both sides say it.
        alive: objects whose ids are part of the shape.
    """

    def __init__(self, frames: Frames | None) -> None:
        self.constants: dict[str, str] = {}
        self.open: frozenset[str] = _NONE_OPEN
        self._frames = frames
        self.alive: list[object] = []
        self._seen: dict[int, int] = {}
        self._nested = 0

    def of(self, value: Any, name: str) -> object:
        """The shape of one value, bound under *name*."""
        cls = type(value)
        if cls is FunctionType:
            return self._function(value)
        if is_small(value):
            self.constants[name] = f"{zlib.crc32(token(value).encode('utf-8', 'surrogatepass'), self._before(name)):08x}"
            return _CONSTANT
        if cls is MethodType:
            return "method", self.of(value.__func__, name), self.of(value.__self__, name)
        if cls is CACHED:
            return "cached", self.of(own_dict(value).get("__wrapped__"), name)
        if is_partial(value):
            given = [self.of(each, "arguments") for each in args_of(value)]
            named = [(key, self.of(each, key)) for key, each in keywords_of(value).items()]
            return "partial", self.of(func_of(value), name), *given, *named
        if is_container(value):
            return cls, *(self.of(each, name) for each in self._members(value))
        if cls is BuiltinFunctionType:
            return known_as(value)
        known_by = value if is_class(value) else cls
        self.alive.append(known_by)
        return id(known_by)

    def _members(self, container: Any) -> list[Any]:
        if id(container) in self._seen or len(container) > FEW or self._nested >= NESTED:
            return []
        self._nested += 1
        self._seen[id(container)] = len(self._seen)
        return followed(members(container))

    def _before(self, name: str) -> int:
        return int(self.constants.get(name, "0"), 16)

    def _function(self, function: FunctionType) -> object:
        if (seen := self._seen.get(id(function))) is not None:
            return "again", seen
        self._seen[id(function)] = len(self._seen)
        code = function.__code__
        self.alive += (code, function)
        held: list[object] = [id(code)]
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            content = content_of(cell)
            if content is MISSING or (is_small(content) and name in reads(code)[1]):
                held.append(None)  # what the code itself assigns is state, no constant
            else:
                held.append(_CONSTANT if self._is_data(code, name, content) else self.of(content, name))
        defaults = function.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount]
        held += [self.of(each, name) for name, each in zip(names[len(names) - len(defaults) :], defaults)]
        held += [self.of(each, name) for name, each in (function.__kwdefaults__ or {}).items()]
        if function.__dict__ and (wrapped := function.__dict__.get("__wrapped__")) is not None:
            held.append(self.of(wrapped, ""))
        return tuple(held)

    def _is_data(self, code: CodeType, name: str, content: Any) -> bool:
        if self._frames is None or not is_small(content):
            return False
        kind = self._frames.kind(code, name, content)
        if kind != WRITTEN:
            self.open |= {name}
        return kind == DATA


def of_callable(
    fn: Any, args: tuple[Any, ...] = (), frames: Frames | None = None
) -> tuple[Fingerprint | None, dict[str, str], frozenset[str]]:
    """The fingerprint of a callable and of the functions among its arguments, and its bound constants by name.

    With *frames*, those of the activation that calls it, what `run` computed is none of them; the names that may hold such
    come last. None where it cannot be had: a step must not fail for the look at its code.
    """
    try:
        if type(fn) is FunctionType and not (fn.__closure__ or fn.__defaults__ or fn.__kwdefaults__ or fn.__dict__ or args):
            known = _known.get(id(fn.__code__))
            if known is not None and known.holds():
                return known.fingerprint, _NO_CONSTANTS, _NONE_OPEN
            return _walk(id(fn.__code__), fn, (), [fn.__code__]).fingerprint, _NO_CONSTANTS, _NONE_OPEN
        shape = _Shape(frames)
        passed = tuple(each for each in args if id(type(each)) in _PASSED or is_partial(each))
        key = (shape.of(fn, ""), *(shape.of(each, "") for each in passed))
        known = _known.get(key)
        if known is None or not known.holds():
            known = _walk(key, fn, passed, shape.alive)
        return known.fingerprint, shape.constants, shape.open
    except Exception as error:  # noqa: BLE001
        log.debug("the code of a step could not be looked at: %s: %s", type(error).__name__, error)
        return None, _NO_CONSTANTS, _NONE_OPEN


def of_class(cls: type) -> Fingerprint | None:
    """The fingerprint of a workflow: its class and what that reaches."""
    try:
        reach = Reach()
        reach.root(cls)
        return fingerprint(reach.parts)
    except Exception as error:  # noqa: BLE001 - as above
        log.debug("the code of %s could not be looked at: %s: %s", cls, type(error).__name__, error)
        return None


def forget() -> None:
    """Walk anew from now on: for tests."""
    _known.clear()


def _walk(key: object, fn: Any, passed: tuple[Any, ...], alive: list[object]) -> _Known:
    reach = Reach()
    reach.root(fn)
    for each in passed:
        reach.passed(each)
    if len(_known) >= _KEPT:
        _known.clear()
    found = _known[key] = _Known(reach, alive)
    return found
