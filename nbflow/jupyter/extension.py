"""`%load_ext nbflow` and `%unload_ext nbflow`: what is put into a shell, and taken out again only where it is still ours."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traitlets import Any as AnyTrait
from traitlets import Bool, TraitError, Unicode, validate
from traitlets.config import Configurable

from nbflow.engine import current
from nbflow.engine.logs import tap
from nbflow.engine.logs.log import set_echo
from nbflow.jupyter.completion import completer
from nbflow.jupyter.magics import WorkflowMagics
from nbflow.jupyter.shown import watch
from nbflow.jupyter.transform import await_workflow_cells

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine

_INSTANCE = "nbflow.engine.instance.WorkflowInstance"
_SEVERAL = "nbflow.engine.instances.Instances"
_ABSENT = object()
_loaded: "Loaded | None" = None


class NBFlow(Configurable):  # type: ignore[misc, unused-ignore]
    """Settings of nbflow in this notebook: `%config NBFlow.store = "other.duckdb"`."""

    store = Unicode("", help="The .duckdb file of the history; empty: NBFLOW_STORE, else .nbflow/history.duckdb.").tag(
        config=True
    )
    panel = Bool(default_value=True, help="Show the panel under the cell; without it only the summary.").tag(config=True)
    stable_output = Bool(default_value=False, help="Leave times and generated ids out of outputs, for nbval.").tag(config=True)
    notify = AnyTrait(None, allow_none=True, help="A callable (instance, what): waiting, errored, complete.").tag(config=True)

    @validate("store")  # type: ignore[misc, untyped-decorator, unused-ignore]
    def _check_store(self, proposal: Any) -> str:
        """Keep which file was meant: a later `%cd` does not make it another one."""
        path: str = proposal["value"]
        return path if path in ("", ":memory:") else str(Path(path).expanduser().absolute())

    @validate("notify")  # type: ignore[misc, untyped-decorator, unused-ignore]
    def _check_notify(self, proposal: Any) -> Any:
        """Refuse here what the engine would refuse at each later command."""
        if proposal["value"] is not None and not callable(proposal["value"]):
            message = (
                f"NBFlow.notify = {proposal['value']!r} is nothing to call; give a callable (instance, what), "
                "where what is 'waiting', 'errored' or 'complete', or None"
            )
            raise TraitError(message)
        return proposal["value"]

    def keywords(self) -> dict[str, Any]:
        """What the engine is made with."""
        given: dict[str, Any] = {"path": self.store or None}
        if self.notify is not None:
            given["notify"] = self.notify
        return given


class Loaded:
    """Everything that was put into one shell, each with the way to take it out."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        stable = os.environ.get("NBFLOW_STABLE_OUTPUT", "").strip().lower() not in ("", "0", "false", "no")
        self.settings = NBFlow(parent=shell, **({"stable_output": True} if stable else {}))
        self.magics = WorkflowMagics(shell, self.settings)
        self._undo: list[Callable[[], None]] = []

    def put_in(self) -> None:
        """Register magics, transformer, completer, display and settings."""
        shell, magics = self.shell, self.magics
        self._set_magic("cell", magics.workflow_cell)
        self._set_magic("line", magics.workflow_line)
        self._append(shell.input_transformers_post, await_workflow_cells(shell, magics))
        if getattr(shell, "Completer", None) is not None:
            self._append(shell.Completer.custom_matchers, completer(current.open_engine, magics.find_quietly))
        self._append(shell.configurables, self.settings)
        self._set_display(magics.display)
        self._set_tables()
        self.settings.observe(magics.store_changed, "store")
        self.settings.observe(magics.notify_changed, "notify")
        self._watch_cells()
        self._watch_output()
        current.set_notebook(current.Notebook(self.settings.keywords, magics.first_use, magics.panel))

    def _set_tables(self) -> None:
        """Several instances show as one table (API.md §4)."""
        formatters = self.shell.display_formatter.formatters

        def as_html(many: Any) -> str:
            from nbflow.jupyter.fallback import instances_html

            return instances_html([one.view() for one in many], stable=self.settings.stable_output)

        def as_text(many: Any, printer: Any, _cycle: bool) -> None:
            from nbflow.jupyter.fallback import instances_text

            printer.text(instances_text([one.view() for one in many], stable=self.settings.stable_output))

        module, name = _SEVERAL.rsplit(".", 1)
        for kind, show in (("text/html", as_html), ("text/plain", as_text)):
            formatter = formatters[kind]
            formatter.for_type_by_name(module, name, show)
            self._undo.append(partial(_forget, formatter, module, name, show))

    def _watch_cells(self) -> None:
        """After each cell: what was interrupted for want of a class that this cell may have defined goes on (S17)."""
        events = self.shell.events

        def cell_ran(_result: object = None) -> None:
            self.magics.leave_out.no_more()
            engine = current.open_engine()
            if engine is not None:
                engine.thread.post(engine.retry_interrupted)
                tap.renew(engine)

        events.register("post_run_cell", cell_ran)
        self._undo.append(lambda: events.unregister("post_run_cell", cell_ran))

    def _watch_output(self) -> None:
        """Output of bodies goes to the log in the panel; where there is none, to the cell too (PANEL.md 7)."""
        magics = self.magics

        def echo() -> bool:
            return not magics.in_kernel or magics.headless or not self.settings.panel

        set_echo(echo)
        self._undo.append(partial(set_echo, None))
        self._undo.append(watch(self.shell))

    def take_out(self) -> None:
        """Leave the shell as it was, except for what others have put in the place of ours since."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        current.set_notebook(None)
        failures: Any = sys.modules.get("nbflow.values.failures")
        if failures is not None and getattr(failures.name_file, "__self__", None) is self.magics:
            failures.name_file = str

    def _set_magic(self, kind: str, function: Callable[..., Any]) -> None:
        table = self.shell.magics_manager.magics[kind]
        before = table.get("workflow", _ABSENT)
        table["workflow"] = function

        def undo() -> None:
            if table.get("workflow") is not function:
                return
            if before is _ABSENT:
                del table["workflow"]
            else:
                table["workflow"] = before

        self._undo.append(undo)

    def _append(self, items: list[Any], item: Any) -> None:
        items.append(item)

        def undo() -> None:
            for index in range(len(items) - 1, -1, -1):
                if items[index] is item:
                    del items[index]

        self._undo.append(undo)

    def _set_display(self, display: Callable[[Any], None]) -> None:
        formatter = self.shell.display_formatter.ipython_display_formatter
        module, name = _INSTANCE.rsplit(".", 1)
        formatter.for_type_by_name(module, name, display)

        self._undo.append(lambda: _forget(formatter, module, name, display))


def _forget(formatter: Any, module: str, name: str, shown_by: Callable[..., Any]) -> None:
    """Take a printer out again, where it is still ours."""
    if formatter.deferred_printers.get((module, name)) is shown_by:
        del formatter.deferred_printers[module, name]
    for cls in [cls for cls, printer in formatter.type_printers.items() if printer is shown_by]:
        del formatter.type_printers[cls]


def load_ipython_extension(shell: Any) -> None:
    """Register nbflow's magics; starts no thread and opens no file."""
    global _loaded
    if _loaded is not None:
        if _loaded.shell is shell:
            return
        _loaded.take_out()
    _loaded = Loaded(shell)
    _loaded.put_in()
    engine = current.open_engine()
    if engine is not None:  # a reload: its instances went on
        _loaded.magics.connect(engine)
        _loaded.magics.stay(engine)


def unload_ipython_extension(shell: Any) -> None:
    """Take everything out again and close the engine, except for a reload."""
    global _loaded
    if _loaded is None or _loaded.shell is not shell:
        return
    reloading = _reloading()
    if reloading:
        NBFlow(parent=shell)  # a setting that cannot be read is refused while all of it is still in place
    _loaded.take_out()
    _loaded = None
    engine = current.open_engine()
    if engine is not None and not reloading:
        close(engine)


def close(engine: "Engine") -> None:
    """Close the kernel's engine: panels first, so that they say how things stand."""
    if "nbflow.jupyter.panel" in sys.modules:
        from nbflow.jupyter.panel import close_all

        close_all()
    if "nbflow.jupyter.many" in sys.modules:
        from nbflow.jupyter import many

        many.close_all()
    engine.main_queue.wake = None
    engine.close()
    if current.open_engine() is None:  # else another store was opened before this one is left
        current.set_current_engine(None)


def _reloading() -> bool:
    """Whether `%reload_ext` is what unloads: IPython tells the extension nothing about it."""
    frame = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        if frame.f_code.co_name == "reload_extension":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
