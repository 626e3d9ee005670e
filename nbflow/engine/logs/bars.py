"""Make a tqdm bar in a body the progress of its step; only the last state of the bar is kept in the log.

Nothing is imported: tqdm is wired once user code has loaded it. In a notebook `tqdm.auto` would make a widget, which a body
has no cell for: there it makes a bar of text instead.
"""

import functools
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from typing import Any

from nbflow.engine.logs.output import OUTPUT, Output, unkept

_NOTEBOOK = ("tqdm.notebook", "tqdm.auto", "tqdm.autonotebook")
_MARK = "_nbflow_output"
_undo: list[tuple[Any, str, Any, Any]] = []
_MODULE = "tqdm.std"


class _Finder:
    """Wires tqdm when it is loaded: a body that loads it draws its first bar right after."""

    @staticmethod
    def find_spec(name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        """The spec that others find, whose module is wired when it has been executed."""
        if name != _MODULE or _FINDER not in sys.meta_path:
            return None
        sys.meta_path.remove(_FINDER)
        spec = importlib.util.find_spec(name)
        if spec is not None and (loader := spec.loader) is not None:
            execute = loader.exec_module

            def execute_and_wire(module: Any) -> None:
                execute(module)
                wire()

            loader.exec_module = execute_and_wire  # type: ignore[method-assign]
        return spec


_FINDER: Any = _Finder()


def wired() -> bool:
    """Whether nothing is left to wire."""
    return bool(_undo) or _MODULE not in sys.modules


def wire() -> None:
    """Wire tqdm, where it is loaded; else when it is."""
    std = sys.modules.get(_MODULE)
    if std is None and _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    bar: Any = getattr(std, "tqdm", None)
    if bar is None or _undo:
        return
    for name, wrap in (("__new__", _new), ("display", _display), ("close", _close)):
        original = bar.__dict__.get(name)
        if original is None:
            continue
        ours = wrap(original.__func__ if isinstance(original, staticmethod) else original)
        placed = staticmethod(ours) if name == "__new__" else ours
        setattr(bar, name, placed)
        _undo.append((bar, name, original, placed))


def unwire() -> None:
    """Leave tqdm as it was, where it is still as we left it."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    for owner, name, original, placed in _undo:
        if owner.__dict__.get(name) is placed:
            setattr(owner, name, original)
    _undo.clear()


def _new(original: Any) -> Any:
    @functools.wraps(original)
    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        # Of a class of the user's own, what it adds would be lost: that one stays what it is.
        if OUTPUT.get() is None or cls.__module__ not in _NOTEBOOK:
            return original(cls, *args, **kwargs)
        kwargs.pop("display", None)
        from tqdm.asyncio import tqdm_asyncio

        return tqdm_asyncio(*args, **kwargs)

    return new


def _display(original: Any) -> Any:
    @functools.wraps(original)
    def display(bar: Any, msg: str | None = None, pos: int | None = None) -> Any:
        output = _output_of(bar)
        if output is None:
            return original(bar, msg, pos)
        output.log.bar(id(bar), str(bar) if msg is None else msg)
        if not (abs(bar.pos) if pos is None else pos):  # of nested bars the outermost
            output.progress(bar.n, bar.total, (bar.desc or "").removesuffix(": "))
        if not output.log.echo:
            return True
        with unkept():
            return original(bar, msg, pos)

    return display


def _close(original: Any) -> Any:
    @functools.wraps(original)
    def close(bar: Any) -> None:
        output = _output_of(bar)
        if output is None:
            original(bar)
            return
        with unkept():
            original(bar)
        output.log.end_bar(id(bar))

    return close


def _output_of(bar: Any) -> Output | None:
    """The output of the body that draws a bar; tqdm's own thread draws it too, in no context.

    None where nobody's body does, or into a file of the user's.
    """
    from nbflow.engine.logs.tap import is_console

    output: Output | None = bar.__dict__.get(_MARK)
    if output is None and (output := OUTPUT.get()) is not None:
        file = getattr(bar, "fp", None)
        if not is_console(getattr(file, "_wrapped", file)):
            return None
        bar.__dict__[_MARK] = output
    return None if output is None or output.log.gone else output
