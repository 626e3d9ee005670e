"""Data in the closures of functions that a workflow defines while it runs, told from constants there (S56).

A variable of `run` that a body reads is the same to Python whether `run` wrote it down (`model = "small"`) or computed it
(`started = time.time()`, what a step returned, a field of the payload). The first is code, the second is data, and is another
one at each replay. A value counts as written where the code that the workflow reaches has it among its constants.
"""

import dis
import inspect
from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import Any

from nbflow.engine.code.constants import is_small, token
from nbflow.engine.code.objects import codes_of, dict_of, is_class, mro_of, own_dict
from nbflow.engine.code.reach import Reach
from nbflow.engine.code.relied import Relied
from nbflow.engine.entrypoint import WorkflowEntrypoint

_KEPT = 256  # workflow classes
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_SMALL = 256  # non-negative integers below count whoever made them: they are flags and counts more often than measurements
DATA, EITHER, WRITTEN = range(3)

_looks: dict[int, "_Look"] = {}


class Frames:
    """The frames of one activation: of the methods of its class, and of the coroutines that they await."""

    __slots__ = ("_cls", "_look")

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self._look: _Look | None = None

    def kind(self, code: CodeType, name: str, value: Any) -> int:
        """What *value*, a small constant that *code* reads as *name* through its closure, is.

        WRITTEN where it counts, also where its variable is none of these frames; DATA where it does not. EITHER for None, bools
        and small integers, which nothing tells apart: they count, but not where the other side of a comparison has none.
        """
        look = self._look
        if look is None:
            look = self._look = _look_at(self._cls)
        names = look.variables.get(id(code))
        return WRITTEN if names is None or name not in names else look.kind(value)


class _Look:
    """What a walk over a workflow class found.

    Attributes:
        variables: of the codes in those of its frames, by id: the names that they read of these frames' variables.
        written: tokens of the constants that stand in the code.
    """

    def __init__(self, cls: type) -> None:
        reach = Reach()
        methods = reach.methods(cls)
        self.relied = Relied(reach, [cls, *methods])
        self.variables: dict[int, frozenset[str]] = {}
        self.written: set[str] = set()
        framed = set(map(id, methods))
        for each in self.relied.alive:
            if type(each) is FunctionType:
                self._enter(each.__code__, frozenset(), framed=id(each) in framed)
                for code in codes_of(each.__code__):
                    self._write(_constants(code))
                self._write_small((*(each.__defaults__ or ()), *(each.__kwdefaults__ or {}).values()))
        self._write_small(value for _, _, value in self.relied.bindings)
        classes: list[Any] = [each for each in self.relied.alive if is_class(each)]  # those that functions reach
        for each in (*mro_of(cls), *classes):
            if each is not WorkflowEntrypoint and each is not object:
                self._write_small(_fields(each))

    def _enter(self, code: CodeType, outer: frozenset[str], *, framed: bool) -> None:
        framed = framed or bool(code.co_flags & _ASYNC)
        own = frozenset(code.co_cellvars)
        variables = outer | own if framed else outer - own
        for each in code.co_consts:
            if type(each) is CodeType:
                names = variables & frozenset(each.co_freevars)
                if names:
                    self.variables[id(each)] = names | self.variables.get(id(each), frozenset())
                self._enter(each, names, framed=framed)

    def _write(self, values: Iterable[Any]) -> None:
        """Note constants of code, with what tuples and sets of them hold: `for model in ("small", "large")`."""
        for value in values:
            if is_small(value):
                self.written.add(token(value))
            if type(value) is tuple or type(value) is frozenset:
                self._write(value)

    def _write_small(self, values: Iterable[Any]) -> None:
        """The same of values that the code reaches, which may be data of any size."""
        self._write(value for value in values if is_small(value))

    def kind(self, value: Any) -> int:
        """See `Frames.kind`."""
        if value is None:  # among the constants of nearly all code
            return EITHER
        if token(value) in self.written:
            return WRITTEN
        if type(value) is tuple:
            return min(map(self.kind, value), default=WRITTEN)
        return EITHER if type(value) is bool or (type(value) is int and 0 <= value < _SMALL) else DATA


def _look_at(cls: type) -> _Look:
    known = _looks.get(id(cls))
    if known is None or not known.relied.holds():
        if len(_looks) >= _KEPT:
            _looks.clear()
        known = _looks[id(cls)] = _Look(cls)
    return known


def _constants(code: CodeType) -> list[Any]:
    if "LOAD_SMALL_INT" not in dis.opmap:
        return list(code.co_consts)
    small = [each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_SMALL_INT"]  # Python 3.14
    return [*code.co_consts, *small]


def _fields(cls: type) -> list[Any]:
    own = dict_of(cls)
    listed = own.get("_member_map_")  # of an Enum
    members = listed.values() if type(listed) is dict else ()
    fields = [value for name, value in own.items() if not (name.startswith("__") and name.endswith("__"))]  # no line numbers
    return [*fields, *(own_dict(each).get("_value_") for each in members)]
