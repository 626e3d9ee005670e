"""Turn a body and its arguments into bytes for a worker: by value, checked, with errors that name what does not fit.

By value means: functions and classes of cells, and of modules that are not installed (files beside the notebook), travel
with the request. A worker needs no copy of them, and sees what the notebook has at this moment. Installed packages go by
name and must be installed over there.
"""

import functools
import io
import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from nbflow.engine.executors.caches import CACHED, reduced
from nbflow.engine.executors.classes import Sink, TooLarge, by_value
from nbflow.errors import UsageError, article
from nbflow.values.nodes import type_name
from nbflow.values.own import owns_module

LARGEST = 32 << 20  # bytes that a body may carry along; data goes by argument


class _Stays(Exception):  # noqa: N818 - a signal between the pickler and `pack`
    """The pickler met something that belongs to this kernel."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def pack(fn: Callable[..., Any], args: tuple[Any, ...], step: str) -> tuple[bytes, bytes]:
    """Pickle a body and its arguments, those of partials with them.

    Raises:
        UsageError: the body captures `step`, `self`, the engine or an instance; it carries more than 32 MiB; or something
            cannot be pickled. The message names it.
    """
    before: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    while type(fn) is functools.partial:
        before, keywords, fn = (*fn.args, *before), {**fn.keywords, **keywords}, fn.func
    try:
        code = _pickled(fn, LARGEST)
    except BaseException as error:  # noqa: BLE001 - raised again, with the name of what is the matter
        raise _refusal(step, fn, error) from None
    if not (before or keywords or args):
        return code, _NO_ARGUMENTS
    try:
        return code, _pickled((before, keywords, args), None)
    except BaseException as error:  # noqa: BLE001 - as above
        named = {f"argument {place}": value for place, value in enumerate((*before, *args), 1)}
        named |= {f"argument {name!r}": value for name, value in keywords.items()}
        raise _refusal_of(step, "was given", named, error) from None


def pack_part(value: Any) -> bytes:
    """Pickle something small that goes to a worker beside a body's arguments; whatever keeps it from that is raised."""
    return _pickled(value, LARGEST)


def refuse_captured(fn: Callable[..., Any], step: str) -> None:
    """Refuse a body that stays in this process, in a thread of an executor, where it captures what it must not touch.

    Raises:
        UsageError: it captures `step`, `self`, the engine or an instance; the message names it.
    """
    for name, value in captures(fn):
        if what := _stays(value) or _stays_below(value):
            raise _refusal_of(step, "captures", {name: value}, _Stays(what))


def _stays_below(value: object, depth: int = 3) -> str:
    """The same for what a function captures in turn."""
    if not depth or not isinstance(value, _FUNCTIONS):
        return ""
    for _, below in captures(value):
        if what := _stays(below) or _stays_below(below, depth - 1):
            return what
    return ""


_NO_ARGUMENTS = pickle.dumps(((), {}, ()), protocol=5)


# -- by value or by name ------------------------------------------------------------------------------------------------

_lock = threading.RLock()
_counted = 0
_local: tuple[types.ModuleType, ...] = ()


def _local_modules() -> tuple[types.ModuleType, ...]:
    """Loaded top-level modules that are not installed: looked for again when modules were loaded since."""
    global _counted, _local
    if len(sys.modules) != _counted:
        _counted = len(sys.modules)
        known = list(sys.modules.items())
        _local = tuple(module for name, module in known if "." not in name and _is_local(name, module))
    return _local


def _is_local(name: str, module: Any) -> bool:
    return name not in ("__main__", "__mp_main__") and type(module) is types.ModuleType and owns_module(name)


# -- pickling -----------------------------------------------------------------------------------------------------------


def _pickled(value: Any, limit: int | None) -> bytes:
    with _lock:
        import cloudpickle

        ours = [module for module in _local_modules() if module.__name__ not in cloudpickle.list_registry_pickle_by_value()]
        for module in ours:
            cloudpickle.register_pickle_by_value(module)
        try:
            return _dumped(value, limit)
        except (_Stays, TooLarge):
            raise
        except Exception:
            if not ours:
                raise
        finally:
            for module in ours:
                cloudpickle.unregister_pickle_by_value(module)
        # A module's own connections and locks do not travel: a worker that has the module can do without.
        return _dumped(value, limit)


def _dumped(value: Any, limit: int | None) -> bytes:
    sink: Any = io.BytesIO() if limit is None else Sink(limit)
    _pickler()(sink, protocol=5).dump(value)
    result: bytes = sink.getvalue()
    return result


@functools.cache
def _staying() -> dict[type, str]:
    """What belongs to this kernel and goes nowhere, in words."""
    from nbflow.engine.activation import Activation
    from nbflow.engine.calls import StepCall
    from nbflow.engine.engine import Engine
    from nbflow.engine.entrypoint import WorkflowEntrypoint
    from nbflow.engine.env import Env
    from nbflow.engine.instance import WorkflowInstance
    from nbflow.engine.live import LiveInstance
    from nbflow.engine.registry import Workflow
    from nbflow.engine.step import StepFunction, WorkflowStep

    return {
        WorkflowStep: "the workflow's `step`",
        StepFunction: "a decorated step",
        StepCall: "the call of a step that was not awaited",
        WorkflowEntrypoint: "the workflow itself (`self`)",
        Env: "the workflow's `env`",
        Engine: "the engine",
        WorkflowInstance: "an instance",
        Workflow: "a workflow",
        Activation: "the engine",
        LiveInstance: "the engine",
    }


def _stays(value: object) -> str:
    """What of this kernel a value is, in words; empty where it is none of that."""
    return next((word for kind, word in _staying().items() if issubclass(type(value), kind)), "")


@functools.cache
def _pickler() -> Any:
    import cloudpickle

    kinds = tuple(_staying())

    class BodyPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        """cloudpickle, stopped by what belongs to this kernel."""

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, kinds):
                raise _Stays(_stays(obj))
            if type(obj) is CACHED and owns_module(obj.__module__):
                return reduced(obj)
            if type(obj) is types.CodeType:
                make, parts = self.dispatch_table[types.CodeType](obj)
                # cloudpickle leaves out where code came from, which tracebacks are read for
                return make, tuple(obj.co_filename if part == "<dynamic-code>" else part for part in parts)
            found = super().reducer_override(obj)
            by_its_value = isinstance(obj, type) and type(found) is tuple and len(found) == 6
            return by_value(obj, found) if by_its_value else found

    return BodyPickler


# -- refusals -----------------------------------------------------------------------------------------------------------


def captures(fn: Any) -> Iterator[tuple[str, Any]]:
    """What a function takes along, by name: closure, globals that it reads, defaults, the object it is bound to."""
    if isinstance(fn, types.MethodType):
        yield "self", fn.__self__
        fn = fn.__func__
    if isinstance(fn, functools.partial):
        yield from ((f"argument {place}", value) for place, value in enumerate(fn.args, 1))
        yield from fn.keywords.items()
        fn = fn.func
    if type(fn) is CACHED:
        fn = fn.__wrapped__
    if not isinstance(fn, types.FunctionType):
        yield from vars(fn).items() if hasattr(fn, "__dict__") and not isinstance(fn, type | types.ModuleType) else ()
        return
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue
    for name in _global_names(fn.__code__):
        if name in fn.__globals__:
            yield name, fn.__globals__[name]
    defaults = fn.__defaults__ or ()
    yield from zip(fn.__code__.co_varnames[fn.__code__.co_argcount - len(defaults) :], defaults, strict=False)
    yield from (fn.__kwdefaults__ or {}).items()
    yield from vars(fn).items()


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _refusal(step: str, fn: Any, error: BaseException) -> BaseException:
    named = dict(captures(fn))
    return _refusal_of(step, "captures", named, error)


def _refusal_of(step: str, verb: str, named: dict[str, Any], error: BaseException) -> BaseException:
    """The error that says which of *named* cannot go, and why."""
    if not isinstance(error, Exception):
        return error  # no memory, an interrupt
    name, value = _culprit(named, error)
    who = f"the body of step {step!r} {verb} {name!r}" if verb == "captures" and name else f"step {step!r} {verb} {name}"
    if not name:
        who = f"the body of step {step!r}"
    if isinstance(error, _Stays):
        msg = f"{who}, {error.what}, which stays in this kernel: a body on an executor takes its data as arguments"
    elif isinstance(error, TooLarge):
        msg = (
            f"{who}, more than {LARGEST >> 20} MiB that every attempt would carry to a worker: give it as an argument, or a "
            "path or key to it, and read it over there"
        )
    else:
        what = f", {article(type_name(type(value)))}" if name else ""
        msg = f"{who}{what}, which cannot be sent to a worker ({type(error).__name__}: {error}): make it in the body instead"
    return UsageError(msg)


def _culprit(named: dict[str, Any], error: BaseException, depth: int = 3) -> tuple[str, Any]:
    """Which of these fails in the same way, looked for in what functions capture in turn; ("", None) where none does."""
    wanted = type(error) if isinstance(error, _Stays | TooLarge) else Exception
    for name, value in named.items():
        try:
            _pickled(value, LARGEST)
        except Exception as inner:  # noqa: BLE001 - that it fails, and how, is what is asked
            if not isinstance(inner, wanted):
                continue
            below = dict(captures(value)) if isinstance(value, _FUNCTIONS) and depth else {}
            found = _culprit(below, inner, depth - 1)
            return found if found[0] else (name, value)
    return "", None


_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial, CACHED)
