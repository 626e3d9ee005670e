"""Look at objects of the user's without asking them anything: by their types, and where Python stores what they hold."""

import dis
import functools
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

from nbflow.engine.code.constants import is_small
from nbflow.values.own import owns_class

CACHED = type(functools.lru_cache(_ := lambda: None))
_CONTAINERS = frozenset(map(id, (list, tuple, set, frozenset, dict)))
FEW = 32  # members of a container that is looked into
NESTED = 128  # containers inside one another that are looked into: a tree of small ones may be as large as any data
_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
MISSING = object()
dict_of = type.__dict__["__dict__"].__get__
mro_of = type.__dict__["__mro__"].__get__
bases_of = type.__dict__["__bases__"].__get__
name_of = type.__dict__["__name__"].__get__
module_of = type.__dict__["__module__"].__get__
func_of, args_of, keywords_of = (functools.partial.__dict__[name].__get__ for name in ("func", "args", "keywords"))
_names: dict[int, tuple[CodeType, tuple[str, ...], frozenset[str]]] = {}


def is_class(value: object) -> bool:
    """Whether it is a class; asks its type, not the value."""
    return issubclass(type(value), type)


def is_partial(value: object) -> bool:
    """Whether it is a `functools.partial`, of a subclass too."""
    return issubclass(type(value), functools.partial)


def is_container(value: object) -> bool:
    """Whether it is a list, tuple, set or dict of Python's own."""
    return id(type(value)) in _CONTAINERS


def members(value: Any) -> list[Any]:
    """What a small container holds."""
    if len(value) > FEW:
        return []
    return list(value.values() if type(value) is dict else value)


def followed(held: list[Any]) -> list[Any]:
    """What of the members of a container is code or may hold some: constants in containers are data, in tuples there too."""
    return [each for each in held if is_code(each) or (is_container(each) and not is_small(each))]


def own_dict(value: object) -> dict[str, Any]:
    """The attributes of an object of a known type: nothing of the user's is asked."""
    found: dict[str, Any] = getattr(value, "__dict__", None) or {}
    return found


def reads(code: CodeType) -> tuple[tuple[str, ...], frozenset[str]]:
    """The globals that code reads, inner functions too, sorted; and the outer names that it assigns."""
    known = _names.get(id(code))
    if known is None:
        if len(_names) > 4096:
            _names.clear()
        read, stored = set[str](), set[str]()
        for each in codes_of(code):
            for instruction in dis.get_instructions(each):
                if instruction.opname in _READS:
                    read.add(instruction.argval)
                elif instruction.opname in ("STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL"):
                    stored.add(instruction.argval)
        known = _names[id(code)] = code, tuple(sorted(read)), frozenset(stored)
    return known[1], known[2]


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """A code object and those inside it."""
    yield code
    for each in code.co_consts:
        if type(each) is CodeType:
            yield from codes_of(each)


def content_of(cell: Any) -> Any:
    """What a closure's cell holds; MISSING before it is bound."""
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return MISSING


def is_code(value: object) -> bool:
    """Whether it is a function or class, or what wraps one."""
    cls = type(value)
    return cls is FunctionType or cls is MethodType or cls is CACHED or is_partial(value) or is_class(value)


def known_as(value: Any) -> str:
    """The name of something installed, without asking it anything of the user's."""
    if type(value) is str:
        return value
    if is_class(value):
        return f"{module_of(value)}.{name_of(value)}" if owns_class(value) else str(name_of(value))
    if type(value) is FunctionType or module_of(type(value)) == "builtins":
        module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
        return f"{module}.{name}" if name else str(name_of(type(value)))
    return str(name_of(type(value)))


def label_of(value: Any, known_as: str) -> str:
    """What a function that is passed around is called: by its own name, where it has one."""
    if type(value) is FunctionType and value.__code__.co_name != "<lambda>":
        return value.__code__.co_name
    return known_as
