"""The engine of this process on the default store, and the decorator that registers with it."""

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from nbflow.errors import UsageError

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.instance import WorkflowInstance

DEFAULT_STORE = Path(".nbflow", "history.duckdb")

_Class = TypeVar("_Class", bound=type)

_lock = threading.RLock()
_engine: "Engine | None" = None
_notebook: "Notebook | None" = None
_make: "Callable[[], Engine] | None" = None


@dataclass(frozen=True, slots=True)
class Notebook:
    """What a notebook adds to its process's engine; the engine itself knows no screen.

    Attributes:
        settings: the keywords that the engine is made with, "path" among them.
        first_use: told when the engine has been made, and whether its store is new.
        panel: the widget of an instance.
    """

    settings: Callable[[], dict[str, Any]]
    first_use: Callable[["Engine", bool], None]
    panel: Callable[["WorkflowInstance"], Any]


def current_engine() -> "Engine":
    """Give this process's engine on the default store; made at the first call.

    The store is `NBFLOW_STORE` where that is set, else `.nbflow/history.duckdb` in the working directory; in a notebook
    `%config NBFlow.store` comes before both. In a file that `nbflow run` runs it is the engine of that command.
    """
    global _engine
    with _lock:
        if _engine is not None and not _engine.closed:
            return _engine
        if _make is not None:
            _engine = _make()
            return _engine
        keywords = {} if _notebook is None else _notebook.settings()
        engine, new = _opened(keywords.pop("path", None), keywords)
        set_current_engine(engine)
        if _notebook is not None:
            _notebook.first_use(engine, new)
        return engine


def move_to(path: str | None, leave: "Callable[[Engine], None]") -> bool:
    """Open the engine on another store, and only then leave the one that is open: what is refused costs no running work.

    Args:
        path: the store, as `%config NBFlow.store` names it.
        leave: closes the engine that was open.

    Returns:
        False where that store is the open one: nothing was done.

    Raises:
        NbflowError: it cannot be opened; nothing has changed.
    """
    from nbflow.engine.stores import is_open

    with _lock:
        before = open_engine()
        if before is not None and before.failure is not None:
            leave(before)  # nothing runs there any more, and its own store may be what is asked for
            before = None
        if before is not None and is_open(before.store, path):
            return False
        keywords = {} if _notebook is None else _notebook.settings()
        engine, new = _opened(path, {name: value for name, value in keywords.items() if name != "path"})
        set_current_engine(engine)
    if before is not None:
        leave(before)
    if _notebook is not None:
        _notebook.first_use(engine, new)
    return True


def _opened(path: str | None, keywords: dict[str, Any]) -> "tuple[Engine, bool]":
    """A new engine on that store, and whether the store is new."""
    from nbflow.engine.engine import Engine
    from nbflow.engine.stores import named_store

    named = named_store(path or None)
    new = not Path(named or DEFAULT_STORE).expanduser().exists()
    return Engine(named, notebook=notebook_name(), **keywords), new


def sql(query: str) -> Any:
    """Run SQL over the current engine's history, read-only; gives a DuckDB relation of the result (API.md §4)."""
    return current_engine().sql(query)


def cursor() -> Any:
    """Give a DuckDB connection with a copy of the views as they are now, for tools that want one, such as `%sql` of jupysql."""
    from nbflow.store import queries

    engine = current_engine()
    return queries.snapshot(engine.sql, files=engine.sql_files)


def open_engine() -> "Engine | None":
    """The current engine if there is one: asking makes none."""
    return _engine if _engine is not None and not _engine.closed else None


def set_current_engine(engine: "Engine | None") -> None:
    """Make *engine* the one that `current_engine` gives; with None the next call makes a new one."""
    global _engine
    with _lock:
        _engine = engine
        atexit.unregister(_close_at_exit)
        if engine is not None:
            atexit.register(_close_at_exit)


@contextlib.contextmanager
def made_by(make: "Callable[[], Engine]") -> "Iterator[None]":
    """Let *make* make the current engine, at its first use, and `@nbflow.workflow` only register with it.

    For a command that imports the file of its workflow: the file is to know one engine, the command's, and what is resumed
    is what the command was asked for.
    """
    global _engine, _make
    with _lock:
        before, _engine, _make = (_engine, _make), None, make
    try:
        yield
    finally:
        with _lock:
            _engine, _make = before


def set_notebook(notebook: Notebook | None) -> None:
    """Say which notebook this process belongs to; one caller: its extension."""
    global _notebook
    _notebook = notebook


def panel_of(instance: "WorkflowInstance") -> Any:
    """The widget of an instance.

    Raises:
        UsageError: this process has no notebook that could show one.
    """
    if _notebook is None:
        raise UsageError("a panel needs a notebook; run `%load_ext nbflow` there first, or print(instance)")
    return _notebook.panel(instance)


def in_notebook() -> bool:
    """Whether this process belongs to a notebook: advice speaks of cells there."""
    return _notebook is not None


def notebook_name() -> str:
    """The file name of the notebook or script that this process runs, empty where it cannot be known."""
    main = vars(sys.modules["__main__"]) if "__main__" in sys.modules else {}
    named = os.environ.get("JPY_SESSION_NAME") or main.get("__session__") or main.get("__vsc_ipynb_file__")
    if not named:
        named = _given_to_parent() if "ipykernel" in sys.modules else main.get("__file__")
    return Path(named).name if isinstance(named, str) else ""


def place_name() -> str:
    """The same for an engine of one's own: what is no file is known by what it was started as."""
    return notebook_name() if "ipykernel" in sys.modules else Path(sys.argv[0] or "").name


def _given_to_parent() -> str | None:
    """The one notebook that whoever started this kernel was told to run: nbconvert, papermill and nbval name it to nobody."""
    words = _words_of_parent()
    given = [
        word
        for before, word in pairwise(words)
        if word.endswith(".ipynb") and word[0] != "-" and before not in ("--output", "-o")
    ]
    if any(Path(word).name == "papermill" for word in words[:4]):
        given = given[:1]  # the other is what it writes
    return given[0] if len(set(given)) == 1 else None


@overload
def workflow(cls: _Class, /) -> _Class: ...


@overload
def workflow(*, name: str | None = None) -> Callable[[_Class], _Class]: ...


def workflow(cls: _Class | None = None, /, *, name: str | None = None) -> _Class | Callable[[_Class], _Class]:
    """Register the class with the current engine, as `%%workflow --define` does; under `nbflow run` nothing is resumed by it.

    Args:
        cls: a subclass of `WorkflowEntrypoint`.
        name: the workflow's name; the class's own by default.
    """

    def register(cls: _Class) -> _Class:
        if _make is None:
            current_engine().register(cls, name)
        else:
            from nbflow.engine.recovery import register_only

            register_only(current_engine(), cls, name)
        return cls

    return register if cls is None else register(cls)


def _close_at_exit() -> None:
    engine = open_engine()
    if engine is not None:
        engine.close(timeout=1)


def _words_of_parent() -> list[str]:
    if (parent := os.environ.get("JPY_PARENT_PID")) is None:
        return []
    try:
        return Path("/proc", parent, "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        pass
    try:
        import psutil  # type: ignore[import-untyped]

        words: list[str] = psutil.Process(os.getppid()).cmdline()  # on Windows that variable names no process
    except Exception:  # noqa: BLE001 - not installed, a process that has ended or is somebody else's
        return []
    return words
