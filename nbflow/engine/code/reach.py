"""What code reaches: the functions, classes and constants of the notebook that a body is made of, as parts (S56).

Only looks: types are compared, members are read from where Python stores them, nothing of the user's is called.
"""

import functools
from collections import deque
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from nbflow.core.parts import BODY, Part, digest
from nbflow.core.positions import Chains, Place
from nbflow.engine.code.constants import is_small, texts_of, token
from nbflow.engine.code.objects import (
    CACHED,
    MISSING,
    NESTED,
    args_of,
    bases_of,
    codes_of,
    content_of,
    dict_of,
    followed,
    func_of,
    is_class,
    is_code,
    is_container,
    is_partial,
    keywords_of,
    known_as,
    label_of,
    members,
    mro_of,
    name_of,
    own_dict,
    reads,
)
from nbflow.engine.code.texts import bytecode_hash, is_written, place_of
from nbflow.engine.entrypoint import WorkflowEntrypoint
from nbflow.values.own import owns_class, owns_function, owns_module

_MOST = 500  # parts; whoever reaches more is told the truth about the first ones


class Reach:
    """One walk.

    Attributes:
        parts: what was found.
        bindings: what the walk relied on, as (namespace, name, value or its type): the same again, the same parts.
        snapshots: containers it looked into, with their members, and those of them that it followed.
        alive: objects whose ids stand for them.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.bindings: list[tuple[dict[str, Any], str, object]] = []
        self.kinds: list[tuple[dict[str, Any], str, type]] = []
        self.snapshots: list[tuple[Any, list[Any], list[Any]]] = []
        self.alive: list[object] = []
        self._seen: set[int] = set()
        self._nested = 0
        self._ahead: deque[tuple[Any, str, set[tuple[str, ...]]]] = deque()

    def root(self, value: Any) -> None:
        """Walk from what a step was given to run."""
        if is_class(value):
            self._whole_class(value, BODY, bound=True)  # constants of a factory that made it are none of its code
            self._walk()
            return
        called = _called(value)
        if type(called) is not FunctionType or not owns_function(called):
            self.parts.append(Part(BODY, digest(known_as(called)), known_as(called)))
        if type(called) is FunctionType and type(value) not in (FunctionType, MethodType, CACHED) and not is_partial(value):
            self._function(called, BODY, bound=True, owner=type(value))
        self.visit(value, BODY, bound=True)
        self._walk()

    def passed(self, value: Any) -> None:
        """Walk from a function that is among the arguments of a step."""
        self.visit(value, label_of(value, "arguments"), bound=True)
        self._walk()

    def methods(self, cls: type) -> list[FunctionType]:
        """Walk from the methods of a workflow, inherited and installed ones too; gives them."""
        classes = [base for base in mro_of(cls) if base is not WorkflowEntrypoint and base is not object]
        functions = [each for base in classes for value in dict_of(base).values() for each in _functions_of(value)]
        for each in functions:
            self._function(each, name_of(cls), bound=True, owner=cls)
        self._walk()
        return functions

    def _walk(self) -> None:
        """Visit what globals hold; not by recursion, for a chain of helpers may be long."""
        while self._ahead and len(self.parts) < _MOST:
            value, name, chains = self._ahead.popleft()
            self._nested = 0
            self.visit(value, name, bound=False, chains=chains)

    def visit(self, value: Any, label: str, *, bound: bool, chains: set[tuple[str, ...]] = frozenset()) -> None:  # type: ignore[assignment]
        """Walk on; *bound* where constants are told apart at each call: closures, defaults and partials of a body."""
        cls = type(value)
        if len(self.parts) >= _MOST:
            return
        if is_small(value) and not (cls is tuple and not value):
            if not bound:
                self._constant(value, label)
        elif id(value) in self._seen:
            return
        elif cls is FunctionType:
            self._function(value, label, bound=bound)
        elif cls is MethodType:
            self._method(value, label, bound=bound, chains=chains)
        elif is_partial(value):
            self._partial(value, label, bound=bound)
        elif cls is CACHED:
            self.visit(own_dict(value).get("__wrapped__"), label, bound=bound)
        elif cls is ModuleType:
            self._module(value, label, chains)
        elif is_class(value):
            self._class(value, chains)
        elif is_container(value):
            self._container(value, label, bound=bound)
        else:
            self._class(cls, chains)

    # -- functions ----------------------------------------------------------------------------------------------------

    def _function(
        self, function: FunctionType, label: str, *, bound: bool, owner: type | None = None, part: bool = True
    ) -> None:
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        self.alive.append(function)
        code = function.__code__
        own = owns_function(function)
        place = place_of(code, function.__globals__) if own else None
        wrapped = own_dict(function).get("__wrapped__")
        if wrapped is not None:  # what a decorator made is called after the decorator
            self.visit(wrapped, label, bound=bound)
            label = code.co_qualname.partition(".<locals>")[0]
        if own and part:
            self._add(label, place.hash if place else bytecode_hash(code), place.text if place else "")
        names, stored = reads(code)
        chains: Chains = place.chains if place is not None else {}
        self._follow_self(code, chains, owner)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            content = content_of(cell)
            if content is not MISSING and not (name in stored and is_small(content)):
                self.visit(content, label_of(content, name if own else label), bound=bound, chains=chains.get(name, set()))
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            if not is_small(default):
                self.visit(default, label_of(default, label), bound=bound)
        if own:
            for name in names:
                self._global(function.__globals__, name, chains.get(name, set()), stored=name in stored)

    def _follow_self(self, code: CodeType, chains: Chains, owner: type | None) -> None:
        """The methods that a method calls on its own object."""
        if owner is None or not code.co_argcount:
            return
        for chain in sorted(chains.get(code.co_varnames[0], ())):
            self._member(owner, chain)

    def _global(self, namespace: dict[str, Any], name: str, chains: set[tuple[str, ...]], *, stored: bool) -> None:
        value = namespace.get(name, MISSING)
        if value is MISSING:
            self.bindings.append((namespace, name, MISSING))
            return
        if stored and is_small(value):  # assigned by the code itself: state, no constant
            self.kinds.append((namespace, name, type(value)))
            return
        followed = is_small(value) or is_code(value) or is_container(value) or type(value) is ModuleType
        if followed:
            self.bindings.append((namespace, name, value))
        else:  # data: only what it is an instance of counts
            self.kinds.append((namespace, name, type(value)))
        self._ahead.append((value, name, chains))

    def _method(self, method: MethodType, label: str, *, bound: bool, chains: set[tuple[str, ...]]) -> None:
        function, obj = method.__func__, method.__self__
        if type(function) is FunctionType:
            self._function(function, label, bound=bound, owner=_class_of(obj))
        else:
            self.visit(function, label, bound=bound)
        self.visit(obj, label, bound=bound, chains=chains)

    def _partial(self, value: Any, label: str, *, bound: bool) -> None:
        self.visit(func_of(value), label, bound=bound)
        for each in (*args_of(value), *keywords_of(value).values()):
            if not is_small(each):
                self.visit(each, label_of(each, label), bound=bound)
            elif not bound:
                self._constant(each, label)

    # -- what functions are in ----------------------------------------------------------------------------------------

    def _module(self, module: ModuleType, label: str, chains: set[tuple[str, ...]]) -> None:
        """Only what is asked of a module counts, and only of one that is not installed."""
        namespace = vars(module)
        if not owns_module(str(namespace.get("__name__", ""))):
            return
        for chain in sorted(chains):
            if chain:
                value = namespace.get(chain[0], MISSING)
                self.bindings.append((namespace, chain[0], value))
                if value is not MISSING:
                    self.visit(value, f"{label}.{chain[0]}", bound=False, chains={chain[1:]})

    def _container(self, value: Any, label: str, *, bound: bool) -> None:
        if self._nested >= NESTED:
            return
        self._nested += 1
        self._seen.add(id(value))
        held = members(value)
        self.alive.append(value)
        self.snapshots.append((value, held, code := followed(held)))
        for each in code:
            self.visit(each, label_of(each, label), bound=bound)

    def _class(self, cls: type, chains: set[tuple[str, ...]]) -> None:
        if issubclass(cls, WorkflowEntrypoint):  # it holds `run`: only the methods that are asked for are the step's code
            for chain in sorted(chains):
                self._member(cls, chain)
        elif owns_class(cls):
            self._whole_class(cls, name_of(cls))

    def _member(self, cls: type, chain: tuple[str, ...]) -> None:
        if not chain:
            return
        for base in mro_of(cls):
            if base is not WorkflowEntrypoint and chain[0] in dict_of(base) and owns_class(base):
                label = f"{name_of(cls)}.{chain[0]}"
                for function in _functions_of(dict_of(base)[chain[0]]):
                    self._function(function, label, bound=False, owner=cls)
                if is_small(value := dict_of(base)[chain[0]]):
                    self._constant(value, label)
                return

    def _whole_class(self, cls: type, label: str, *, bound: bool = False) -> None:
        if id(cls) in self._seen:
            return
        self._seen.add(id(cls))
        self.alive.append(cls)
        name = name_of(cls) if label == BODY else label
        functions = [(key, each) for key, value in dict_of(cls).items() for each in _functions_of(value)]
        place = next((p for _, each in functions if (p := _class_place(each, cls)) is not None), None)
        if place is not None:
            self._add(label, place.hash, place.text)
        else:
            text = _outline(cls)
            self._add(label, digest(text), text)
        for key, function in functions:
            if owns_function(function) and (not function.__code__.co_filename.startswith("<") or _is_placed(function)):
                inside = place is not None and _class_place(function, cls) is place
                self._function(function, f"{name}.{key}", bound=bound, part=not inside)
        for base in bases_of(cls):
            if base is not object:
                self._class(base, set())

    # -- parts --------------------------------------------------------------------------------------------------------

    def _add(self, label: str, hash_: str, text: str) -> None:
        self.parts.append(Part(label, hash_, text))

    def _constant(self, value: Any, label: str) -> None:
        # What no cell shows (a key from the environment) does not go into the history either: its hash is enough.
        shown = all(map(is_written, texts_of(value)))
        text = f"{label} = {value!r}" if shown else f"{label} = a {type(value).__name__} that stands in no cell"
        self.parts.append(Part(label, digest(token(value)), text))


def _functions_of(member: Any) -> list[FunctionType]:
    """The functions that a member of a class is made of."""
    match member:
        case _ if type(member) is FunctionType:
            return [member]
        case _ if type(member) in (staticmethod, classmethod):
            return _functions_of(member.__func__)
        case _ if type(member) is property:
            return [each for part in (member.fget, member.fset, member.fdel) for each in _functions_of(part)]
        case _ if type(member) is functools.cached_property:
            return _functions_of(member.func)
        case _ if type(member) is CACHED:
            return _functions_of(own_dict(member).get("__wrapped__"))
    return []


def inner_functions(cls: type) -> list[Place]:
    """The named functions that are written inside the methods of a class, those whose name is used once."""
    found: dict[str, list[Place]] = {}
    for value in dict_of(cls).values():
        for function in _functions_of(value):
            for code in codes_of(function.__code__):
                place = None if code is function.__code__ else place_of(code, function.__globals__)
                if place is not None and place.name != "<lambda>":
                    found.setdefault(place.name, []).append(place)
    return [places[0] for places in found.values() if len(places) == 1]


def _class_of(obj: Any) -> type:
    cls: type = obj if is_class(obj) else type(obj)
    return cls


def _class_place(function: FunctionType, cls: type) -> Place | None:
    place = place_of(function.__code__, function.__globals__)
    inside = None if place is None else place.inside
    return inside if inside is not None and inside.name == name_of(cls) else None


def _is_placed(function: FunctionType) -> bool:
    return place_of(function.__code__, function.__globals__) is not None


def _outline(cls: type) -> str:
    """A class without a method that shows where it stands, from what Python knows of it."""
    own = dict_of(cls)
    lines = [f"class {name_of(cls)}({', '.join(name_of(base) for base in bases_of(cls))}):"]
    annotations = own.get("__annotations__")
    if type(annotations) is dict:
        lines += [f"    {name}: {known_as(kind)}" for name, kind in annotations.items()]
    lines += [
        f"    {name} = {token(value)}"
        for name, value in own.items()
        if not (name.startswith("__") and name.endswith("__")) and is_small(value)
    ]
    listed = own.get("_member_map_")
    if type(listed) is dict:  # an Enum
        lines += [
            f"    {name} = {token(value)}" for name, each in listed.items() if is_small(value := own_dict(each).get("_value_"))
        ]
    return "\n".join(lines)


def _called(value: Any) -> Any:
    """The function at the bottom of partials and bound methods, or what has none."""
    for _ in range(20):
        if is_partial(value):
            value = func_of(value)
        elif type(value) is MethodType:
            value = value.__func__
        elif type(value) is CACHED:
            value = own_dict(value).get("__wrapped__")
        elif type(value) is not FunctionType and owns_class(type(value)):
            call = next((dict_of(base)["__call__"] for base in mro_of(type(value)) if "__call__" in dict_of(base)), None)
            return call if type(call) is FunctionType else value
        else:
            break
    return value
