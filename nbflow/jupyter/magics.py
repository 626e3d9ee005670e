"""`%%workflow`: a cell becomes one call of the engine, its instance is shown, and the cell waits where it is asked to."""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.magic import no_var_expand

from nbflow.clock import SystemClock
from nbflow.core import names
from nbflow.engine import current
from nbflow.errors import NbflowError, UsageError
from nbflow.jupyter import stable
from nbflow.jupyter.cell import parse_cell, run_cell
from nbflow.jupyter.command_line import CommandLine, line_help
from nbflow.jupyter.each import Group, LeaveOut
from nbflow.jupyter.line import CellLine, compile_params, parse_cell_line
from nbflow.jupyter.waiting import Wait, stopped
from nbflow.jupyter.words import say

if TYPE_CHECKING:
    from nbflow.engine.each import Each
    from nbflow.engine.engine import Engine
    from nbflow.engine.instance import WorkflowInstance
    from nbflow.engine.instances import Instances
    from nbflow.engine.registry import Workflow
    from nbflow.jupyter.display import Display
    from nbflow.jupyter.extension import NBFlow

CELL_HELP = """Run the workflow that this cell defines, or go on with it where it stopped.

%%workflow [ID] [-p/--params EXPR] [--as VAR] [-w/--wait [DURATION]] [--again | --define] [--schedule CRON] [--each EXPR]

Running the cell twice never does the work twice: an instance that runs is shown, one whose kernel died is resumed, one that
errored goes on at its failed step, a finished one is shown.

ID, --id ID          the instance; without it the newest of this workflow with the same params in this notebook
-p, --params EXPR    a Python expression up to the next option, evaluated once before the body: event.payload
--as VAR             bind the instance to a variable; it is also the cell's value
-w, --wait [DURATION]  hold the cell until the instance is finished, at most DURATION ("5m", "2 hours")
--again              a finished instance does not satisfy this cell: make a new one
--define             only register the class
--each EXPR          one instance for each params of this iterable; run again, only new ones start
--schedule CRON      register it and make an instance at each match ("0 6 * * *", UTC) while this kernel is alive

The cell may hold helpers beside its one class. %workflow lists the commands for running instances.
"""


class WorkflowMagics:
    """The two magics of one shell.

    Attributes:
        last_shown: what a command without an ID means.
    """

    def __init__(self, shell: Any, settings: "NBFlow") -> None:
        self.shell = shell
        self.settings = settings
        self.last_shown: WorkflowInstance | None = None
        self._shown_as_value: tuple[WorkflowInstance, object] | None = None
        self.leave_out = LeaveOut(shell)
        # Bound once: what is compared at unload must be the same object.
        self.workflow_cell = self.own_cell_magic = _documented(self._workflow_cell, CELL_HELP)
        self.workflow_line = _documented(CommandLine(self).run, line_help())

    @property
    def headless(self) -> bool:
        """Whether nobody can answer: the request that runs this cell allows no input (API.md §3)."""
        return self.in_kernel and not getattr(self.shell.kernel, "_allow_stdin", True)

    def engine(self) -> "Engine":
        """The kernel's engine."""
        return current.current_engine()

    def first_use(self, engine: "Engine", new: bool) -> None:
        """Say where the history is, once, and let the kernel's loop run bodies of the main thread."""
        self.connect(engine)
        if not self.settings.stable_output:
            path = engine.store.path
            found = "new" if new else "found"
            where = "in memory, gone with the kernel" if path is None else f"{Path(path).resolve()} ({found})"
            say(f"nbflow: history {where}")

    def connect(self, engine: "Engine") -> None:
        """Let the kernel's loop run what is due on the main thread, and tracebacks name cells."""
        from nbflow.values import failures

        failures.name_file = self._name_cell
        loop = getattr(getattr(self.shell, "kernel", None), "io_loop", None)
        if loop is not None:
            engine.main_queue.wake = lambda: loop.add_callback(engine.main_queue.drain)

    def _name_cell(self, file: str) -> str:
        """How tracebacks call a file: the cells of this kernel by their number."""
        number = getattr(self.shell.compile, "_filename_map", {}).get(file)
        return file if number is None else f"Cell In[{number}]"

    def switch_store(self, path: str) -> None:
        """Work with another store from now on.

        Raises:
            NbflowError: it cannot be opened; the one that is open stays so, with all that runs there.
        """
        self._move_to(path)
        self._set_store(path)

    def store_changed(self, change: Any) -> None:
        """Follow `%config NBFlow.store` where a store is open already, else the first use will; a refused one is not kept."""
        if current.open_engine() is None:
            return
        try:
            self._move_to(change["new"])
        except BaseException:
            self._set_store(change["old"])
            raise

    def stay(self, engine: "Engine") -> None:
        """After a reload: the history that is open stays so, whatever the settings were read with."""
        from nbflow.engine.stores import is_open

        named, path = self.settings.store, engine.store.path
        with contextlib.suppress(NbflowError):
            if is_open(engine.store, named):
                return
        self._set_store(":memory:" if path is None else str(path))
        if named:
            say("nbflow: the history that is open stays open; %workflow store PATH switches")

    def _move_to(self, path: str) -> None:
        from nbflow.jupyter.extension import close

        if current.move_to(path, close):
            self.last_shown = None
        else:
            say("nbflow: this history is open already; nothing has changed")

    def _set_store(self, path: str) -> None:
        """Set what has been done already."""
        self.settings.unobserve(self.store_changed, "store")
        try:
            self.settings.store = path
        finally:
            self.settings.observe(self.store_changed, "store")

    def notify_changed(self, change: Any) -> None:
        """Tell the living engine whom to notify."""
        engine = current.open_engine()
        if engine is not None:
            engine.notify = change["new"]

    def find(self, text: str) -> "WorkflowInstance":
        """The instance that a word means: a variable that holds one, else what the engine finds."""
        if text.isidentifier():
            from nbflow.engine.instance import WorkflowInstance

            value = self.shell.user_ns.get(text)
            if isinstance(value, WorkflowInstance):
                return value
        return self.engine().instance(text)

    def find_quietly(self, text: str | None) -> "WorkflowInstance | None":
        """The same for completion: None where there is none."""
        try:
            return self.last_shown if text is None else self.find(text)
        except NbflowError:
            return None

    def display(self, instance: "WorkflowInstance") -> None:
        """Show an instance as a cell's value, unless its cell has shown it already."""
        shown, self._shown_as_value = self._shown_as_value, None
        if shown is not None and shown[0] is instance and shown[1] is self.shell.displayhook.exec_result:
            return
        display = self._display(instance)
        display.show()
        if self.headless or not self.settings.panel:
            display.finish()

    def panel(self, instance: "WorkflowInstance") -> Any:
        """The widget of an instance; headless its twin: there no widget and no comm is made (API.md §3)."""
        if self.headless:
            from nbflow.jupyter.fallback import Twin

            return Twin(instance, stable=self.settings.stable_output)
        from nbflow.jupyter.panel import panel_for

        return panel_for(instance)

    @property
    def in_kernel(self) -> bool:
        """Whether there can be a page; terminal IPython has none."""
        return getattr(self.shell, "kernel", None) is not None

    def _for_cell(self, instance: "WorkflowInstance", line: str) -> "Display | _Line":
        """How a cell shows its instance: in a terminal the value's own text comes after the line."""
        if self.in_kernel:
            return self._display(instance, line)
        self.last_shown = instance
        return _Line(line)

    def _display(self, instance: "WorkflowInstance", line: str = "") -> "Display":
        from nbflow.jupyter.display import Display

        self.last_shown = instance
        return Display(
            instance, stable=self.settings.stable_output, headless=self.headless or not self.settings.panel, line=line
        )

    def _workflow_cell(self, line: str, cell: str) -> Any:
        asked = parse_cell_line(line)
        parsed = parse_cell(self.shell, cell)
        if asked.instance_id is not None:
            asked = replace(asked, instance_id=names.id_of(parsed.class_name, asked.instance_id))
        params = None if asked.params is None else self.evaluate(asked.params, "--params")
        cron = None if asked.schedule is None else self.evaluate(asked.schedule, "--schedule")
        if cron is not None:
            from nbflow.engine import schedules

            schedules.parse("", cron, None, catch_up=True, now=SystemClock().now())
        cls = run_cell(self.shell, parsed)
        engine = self.engine()
        # A cell says what happened to its own instance first; the others of this workflow go on at `opened.start()`.
        workflow = engine.register(cls, source=parsed.source, resume=asked.define or cron is not None)
        if cron is not None or asked.define:
            self._only_registered(engine, workflow, cron)
            return None
        if asked.each is not None:
            return self._each(engine, workflow, asked)
        opened = engine.open(workflow, asked.instance_id, params, again=asked.again)
        if (stays := engine.schedules.line(workflow.name)) is not None:
            self._say(f"{stays}; %workflow unschedule {workflow.name} removes it")
        instance = opened.instance
        if asked.bind is not None:
            self.shell.user_ns[asked.bind] = instance
        headless = self.headless
        display = self._for_cell(instance, opened.line)
        self._try_display(display.show, opened.line)
        try:
            opened.start()
            told = opened.told()
        except KeyboardInterrupt:
            raise stopped(instance) from None
        if told != opened.line:
            self._try_display(partial(display.retell, told), told)
        if not (asked.wait or headless):
            if not self.settings.panel:
                self._try_display(display.finish, opened.line)
            return self.as_value(instance)
        wait = Wait(engine, instance, at_most=asked.at_most, hello=None if headless else self._hello(instance))
        if asked.awaited:
            return self._hold(wait, display, instance, opened.line)
        try:
            wait.block()
        finally:
            self._try_display(display.finish, opened.line)
        return self.as_value(instance)

    def _only_registered(self, engine: "Engine", workflow: "Workflow", cron: Any) -> None:
        """Say what a cell without an instance of its own has done."""
        if cron is not None:
            engine.schedules.set(workflow, cron, None, catch_up=True)
            self._say(engine.schedules.line(workflow.name) or "")
        else:
            say(f"registered workflow {workflow.name!r}")

    def _say(self, line: str) -> None:
        say(stable.text(line) if self.settings.stable_output else line)

    def _each(self, engine: "Engine", workflow: "Workflow", asked: CellLine) -> Any:
        """Run the cell for each params; its value is the table of all instances."""
        from nbflow.engine.each import open_each

        assert asked.each is not None
        every = self.evaluate(asked.each, "--each")
        each = open_each(engine, workflow, asked.instance_id, every, again=asked.again)
        if asked.bind is not None:
            self.shell.user_ns[asked.bind] = each.instances
        if not self.settings.stable_output:
            say(each.line)
        group = Group(asked.instance_id or workflow.name, each.instances)
        table = self._table(each)
        try:
            each.start()
        except KeyboardInterrupt:
            raise stopped(group) from None
        if not (asked.wait or self.headless):
            return each.instances
        wait = Wait(engine, group, at_most=asked.at_most)
        if asked.awaited:
            return self._hold_all(wait, each.instances, table)
        try:
            wait.block()
        finally:
            self._try_display(table, each.line)
        return each.instances

    async def _hold_all(self, wait: Wait, instances: "Instances", table: Callable[[], None]) -> "Instances":
        try:
            await wait.hold()
        finally:
            self._try_display(table, "")
        return instances

    def _table(self, each: "Each") -> Callable[[], None]:
        """Show many instances as a table that follows them, where a page may show it; gives what writes it again.

        Headless, and where no panels are wanted, the cell's value is the table, as things stand at the end.
        """
        if not self.in_kernel or self.headless or not self.settings.panel:
            return lambda: None
        from nbflow.jupyter.many import Table

        table = Table(each.instances, stable=self.settings.stable_output, ended=each.ended)
        self._try_display(table.show, "")
        self.leave_out.once(each.instances)
        return table.rewrite

    async def _hold(
        self, wait: Wait, display: "Display | _Line", instance: "WorkflowInstance", line: str
    ) -> "WorkflowInstance":
        try:
            await wait.hold()
        finally:
            self._try_display(display.finish, line)
        return self.as_value(instance)

    def as_value(self, instance: "WorkflowInstance") -> "WorkflowInstance":
        """The instance as the value of a cell that has shown it already."""
        if self.in_kernel:  # only the value of this very cell: `%%capture` may keep it from being displayed at all
            self._shown_as_value = (instance, self.shell.displayhook.exec_result)
        return instance

    def _hello(self, instance: "WorkflowInstance") -> Callable[[], bool] | None:
        """How to ask whether a page shows the panel; None where there can be no page."""
        if not self.in_kernel or not self.settings.panel:
            return None
        try:
            from nbflow.jupyter.panel import panel_for

            return panel_for(instance).hello_seen.is_set
        except Exception:  # noqa: BLE001 - `_try_display` has told it: no panel, no hello
            return None

    def _try_display(self, show: Callable[[], None], line: str) -> None:
        """Show; a display that fails is no reason not to run."""
        try:
            show()
        except Exception as error:  # noqa: BLE001
            say(f"{line}\nnbflow: the panel could not be shown: {type(error).__name__}: {error}", file=sys.stderr)

    def evaluate(self, source: str, what: str) -> Any:
        """The value of a line's expression over the user's names, once."""
        code = compile_params(source)
        try:
            return eval(code, self.shell.user_global_ns, self.shell.user_ns)  # type: ignore[arg-type]  # noqa: S307
        except Exception as error:
            message = f"{what} {source} could not be evaluated: {type(error).__name__}: {error}; nothing was done"
            raise UsageError(message) from error


class _Line:
    """The display of a terminal: the one line."""

    def __init__(self, line: str) -> None:
        self._line = line

    def show(self) -> None:
        """Say it."""
        say(self._line)

    def retell(self, line: str) -> None:
        """Say what is known now, too."""
        say(line.removeprefix(self._line).removeprefix(" · "))

    def finish(self) -> None:
        """The value of the cell says the rest."""


def _documented(method: Callable[..., Any], text: str) -> Callable[..., Any]:
    """A function of its own with the help as its docstring: `%%workflow?` shows it."""

    def workflow(line: str, *cell: str) -> Any:
        return method(line, *cell)

    workflow.__doc__ = text
    return no_var_expand(workflow)  # type: ignore[no-any-return]
