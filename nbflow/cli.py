"""`nbflow` on the shell: the other front of the one table of commands (API.md §11)."""

import importlib.util
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

import click

from nbflow.core import durations
from nbflow.core.model import Status, StepState
from nbflow.core.names import UNSAFE_IN_LINES, quoted
from nbflow.engine import current
from nbflow.engine.commands import Answer, Call, Command, Front, commands, instance_facts
from nbflow.engine.recovery import register_all
from nbflow.errors import NbflowError, StoreError, UndecodableError, UsageError, WaitTimeoutError
from nbflow.store.wording import going_on_text, items_of_all_text, items_text, standing_text

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.instance import WorkflowInstance
    from nbflow.store.views import InstanceView, StepView

ERRORED, USAGE, SETTLED, TERMINATED = 1, 2, 3, 4


@dataclass(frozen=True)
class Shell:
    """What stands before the command: which store, and whether answers are JSON, and where that goes."""

    store: str | None
    as_json: bool
    out: IO[str] | None = None

    def engine(self, notebook: str = "") -> "Engine":
        """An engine of this process on the store; only `run` makes one where there is none."""
        from nbflow.engine.engine import Engine

        path = Path(self.store or Path(".nbflow", "history.duckdb"))
        if not notebook and str(path) != ":memory:" and not path.exists():
            message = f"no history at {str(path.absolute())!r}; go to the folder of the notebook, or say --store PATH"
            raise UsageError(message)
        return Engine(self.store, notebook=notebook)

    def say(self, answer: Answer) -> None:
        """Print an answer."""
        if answer.instance is not None:
            self._show(answer.instance)
        elif self.as_json:
            rows = [dict(zip(answer.columns, row)) for row in answer.rows] if answer.facts is None else answer.facts
            self._tell(rows if answer.columns else {"line": answer.line})
        else:
            if answer.line:
                _say(answer.line)
            if answer.rows:
                _say(_table(answer.columns, answer.rows))

    def _tell(self, value: object) -> None:
        """Write JSON."""
        click.echo(json.dumps(_finite(value), default=_plain, allow_nan=False), file=self.out)

    def _show(self, instance: "WorkflowInstance") -> None:
        view = instance.view()
        columns = ("step", "status", "attempts", "started", "ended", "error")
        steps = instance.steps
        rows = [
            (str(step.key), step.status.value, len(step.attempts) or "", step.started_at, step.ended_at, str(step.error or ""))
            for step in steps
        ]
        if self.as_json:
            told = {"workflow": view.workflow, "id": view.instance_id, **instance_facts(view)}
            told["steps"] = [dict(zip(columns, row)) | {"items": _items(step)} for row, step in zip(rows, steps)]
            told["waits"] = [{"name": one.name, "event_type": one.event_type, "until": one.due_at} for one in view.waits]
            told["children"] = [dict(zip(("step", "workflow", "id"), child)) for child in view.children]
            told["output"] = _output(instance, view) if view.status is Status.COMPLETE else None
            told["error"] = None if view.error is None else str(view.error)
            self._tell(told)
            return
        self._say_instance(instance, view)
        if rows:
            _say(_table(columns, [(row[0], _step_text(step, view), *row[2:]) for row, step in zip(rows, steps)]))

    def _say_instance(self, instance: "WorkflowInstance", view: "InstanceView") -> None:
        far = [standing_text(view), f"{view.done} of {view.total} steps", items_of_all_text(view)]
        _say(f"{view.workflow} {view.instance_id}: {', '.join(filter(None, far))}")
        if view.error is not None:
            _say(f"  {view.error}")
        later = going_on_text(view)
        if (why := view.why_interrupted) is not None or later:
            _say(f"  {'; '.join(filter(None, [why or 'nobody runs it now', later]))}")
        several = len(instance.engine.store.find(view.instance_id)) > 1
        name = f"{view.workflow}/{view.instance_id}" if several else view.instance_id
        for wait in view.waits:
            _say(f"  waits for {wait.event_type!r}: nbflow send-event {name} {wait.event_type} JSON")
        for _, workflow, child in view.children:
            _say(f"  waits for its child {child!r}: nbflow show {workflow}/{child}")


def _store_option(*, hidden: bool = False) -> click.Option:
    told = "The .duckdb file; .nbflow/history.duckdb by default."
    return click.Option(["--store"], metavar="PATH", envvar=None if hidden else "NBFLOW_STORE", help=told, hidden=hidden)


def _json_option(*, hidden: bool = False) -> click.Option:
    return click.Option(["--json", "as_json"], is_flag=True, help="Answer in JSON.", hidden=hidden)


@click.group(params=[_store_option(), _json_option()], context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nbflow-workflows", prog_name="nbflow")
@click.pass_context
def main(context: click.Context, store: str | None, as_json: bool) -> None:
    """Look at workflow instances and control them, also while a kernel runs them.

    Exit codes: 0 done or complete, 1 errored, 2 wrong use, 3 settled but not finished, 4 terminated.
    """
    context.obj = Shell(store, as_json)


def _click_command(command: Command) -> click.Command:
    params: list[click.Parameter] = [
        click.Argument([_parameter(word.name)], required=not word.optional, metavar=word.name) for word in command.words
    ]
    params += [
        click.Option(
            [option.name, _parameter(option.name)], is_flag=option.value is None, metavar=option.value, help=option.help
        )
        for option in command.options
    ]

    params += [_store_option(hidden=True), _json_option(hidden=True)]  # they may stand behind the command too

    @click.pass_obj
    def act(shell: Shell, /, **given: Any) -> None:
        store, as_json = given.pop("store") or shell.store, given.pop("as_json") or shell.as_json
        sys.exit(_guarded(lambda: _run(Shell(store, as_json, _stdout_alone() if as_json else None), command, given)))

    return click.Command(command.name, params=params, callback=act, help=command.help[:1].upper() + command.help[1:] + ".")


def _parameter(name: str) -> str:
    return name.strip("-").lower().replace("-", "_").replace(".", "_").replace(":", "_")


def _guarded(act: Callable[[], int]) -> int:
    try:
        return act()
    except NbflowError as error:
        _say(f"nbflow: {error}", err=True)
        return ERRORED if isinstance(error, StoreError) else USAGE
    except KeyboardInterrupt:
        _say("nbflow: stopped; what runs elsewhere keeps running", err=True)
        return 130


def _run(shell: Shell, command: Command, given: Mapping[str, Any]) -> int:
    match command.name:
        case "run":
            return _run_file(shell, given)
        case "doctor":
            return _doctor(shell)
        case "demo":
            from nbflow.demo import show

            lines: list[str] = []
            code = show(lines.append if shell.as_json else _say)
            if shell.as_json:
                shell.say(Answer("\n".join(lines)))
            return code
    words = {word.name: given[_parameter(word.name)] for word in command.words if given[_parameter(word.name)] is not None}
    options = {option.name: value for option in command.options if (value := given[_parameter(option.name)])}
    if "PAYLOAD" in words:
        words["PAYLOAD"] = _from_json(words["PAYLOAD"], "PAYLOAD")
    with shell.engine() as engine:
        reference = words.pop("ID", None)
        instance = None if reference is None else engine.instance(reference)
        call = Call(instance, words, {name: None if value is True else value for name, value in options.items()})
        if command.name == "wait":
            return _wait(shell, call)
        assert command.act is not None
        shell.say(command.act(engine, call))
    return 0


def _wait(shell: Shell, call: Call) -> int:
    instance = call.the_instance()
    text = call.words.get("DURATION")
    seconds: float | None = None
    if text is not None:
        seconds = durations.duration(float(text) if text.isdecimal() else text, what="DURATION").total_seconds()
    try:
        instance.wait(seconds)
    except WaitTimeoutError as error:
        _say(f"nbflow: {error}", err=True)
    return _outcome(shell, instance)


def _outcome(shell: Shell, instance: "WorkflowInstance") -> int:
    shell.say(Answer(instance=instance))
    match instance.view().status:
        case Status.COMPLETE:
            return 0
        case Status.ERRORED:
            return ERRORED
        case Status.TERMINATED:
            return TERMINATED
    return SETTLED


def _doctor(shell: Shell) -> int:
    """Exit code 1 where something is wrong."""
    from nbflow.store.doctor import Severity, examine

    found = examine(shell.store)
    rows = [(finding.severity.value, finding.what, finding.advice) for finding in found]
    if shell.as_json:
        shell.say(Answer("", ("severity", "what", "advice"), rows))
    else:
        for severity, what, advice in rows:
            _say(f"{severity:5}  {what}" + (f"\n       → {advice}" if advice else ""))
    return int(any(finding.severity is Severity.WRONG for finding in found))


def _run_file(shell: Shell, given: Mapping[str, Any]) -> int:
    place = given[_parameter("FILE.py:Class")]
    file, colon, name = place.rpartition(":")
    if not colon or not name.isidentifier():
        message = f"{place!r} names no workflow; write FILE.py:Class"
        raise UsageError(message)
    params = None if given["params"] is None else _from_json(given["params"], "--params")
    with current.made_by(lambda: shell.engine(notebook=os.path.basename(file))):
        try:
            module, cls = _load(Path(file), name)
            return _run_class(shell, given, params, module, cls)
        finally:
            if (engine := current.open_engine()) is not None:
                engine.close()


def _run_class(shell: Shell, given: Mapping[str, Any], params: Any, module: ModuleType, cls: type) -> int:
    with current.current_engine() as engine:
        workflow = engine.register(cls, register_all(engine, module, cls), resume=False)
        opened = engine.open(workflow, given["id"], params, again=given["again"])
        if not shell.as_json:
            _say(opened.line)
        opened.start()
        if (more := opened.told().removeprefix(opened.line).removeprefix(" · ")) and not shell.as_json:
            _say(more)
        try:
            opened.instance.wait()
        except KeyboardInterrupt:
            _say(f"nbflow: stopped; run it again to go on with {opened.instance.id!r}", err=True)
            return SETTLED
        return _outcome(shell, opened.instance)


def _load(file: Path, name: str) -> tuple[ModuleType, type]:
    if not file.is_file():
        message = f"there is no file {str(file)!r}"
        raise UsageError(message)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        message = f"{str(file)!r} is no Python file"
        raise UsageError(message)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # classes of recorded values are looked up there
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except NbflowError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the file raises
        _say("".join(traceback.format_exception(_own_frames(error, file))).rstrip(), err=True)
        how = "; put what ends it under `if __name__ == '__main__':`" if isinstance(error, SystemExit) else ""
        message = f"{str(file)!r} cannot be imported: {''.join(traceback.format_exception_only(error)).splitlines()[-1]}{how}"
        raise UsageError(message) from None
    cls = vars(module).get(name)
    if not isinstance(cls, type):
        message = f"{str(file)!r} defines no class {name!r}"
        raise UsageError(message)
    return module, cls


def _own_frames(error: BaseException, file: Path) -> BaseException:
    """The error with the frames of that file and below; those of this command say nothing to whoever wrote it."""
    frame, names = error.__traceback__, {str(file), os.path.abspath(file)}
    while frame is not None and frame.tb_frame.f_code.co_filename not in names:
        frame = frame.tb_next
    return error.with_traceback(frame)  # none of it ran where it is no Python


def _stdout_alone() -> IO[str]:
    """What was stdout, for the answer alone: what bodies, files and their child processes print goes to stderr from now on.

    To the end of the process: what is called at exit prints too.
    """
    sys.stdout.flush()
    try:
        ours = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    except (OSError, ValueError):  # a stream of Python alone
        stdout, sys.stdout = sys.stdout, sys.stderr
        return stdout
    return os.fdopen(ours, "w", encoding="utf-8")


def _from_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        message = f"{what} {quoted(text)} is no JSON: {error}; text needs quotes of its own: '\"yes\"'"
        raise UsageError(message) from None


def _items(step: "StepView") -> dict[str, int | None] | None:
    """How far a map is, None of any other step."""
    items = step.items
    if items is None:
        return None
    gone = {"gone": items.gone} if items.gone else {}
    return {"done": items.done, "total": items.total, "failed": items.failed, **gone}


def _step_text(step: "StepView", view: "InstanceView") -> str:
    """Where a step stands: one whose kernel is gone runs no more, though nobody has said so."""
    state = StepState.INTERRUPTED if step.status is StepState.RUNNING and view.unattended else step.status
    return state.value if step.items is None else f"{state.value}, {items_text(step.items, ' items')}"


def _output(instance: "WorkflowInstance", view: "InstanceView") -> object:
    """The output; where its class is not to be had in a shell, the line that shows it."""
    try:
        return _as_json(instance.output)
    except UndecodableError:
        return (view.output_preview or {}).get("line")


def _as_json(value: object) -> object:
    """The value where JSON has it, else its text, cut."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return repr(value)[:1000]


def _finite(value: object) -> object:
    """The same with text for the numbers that JSON has none for, as SQL shows them: "NaN", "Infinity", "-Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value


def _plain(value: object) -> str:
    """The text of what JSON has no form for."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return durations.local(value).strftime("%Y-%m-%d %H:%M:%S")
    return str(value).partition("\n")[0]


def _say(text: str, *, err: bool = False) -> None:
    """Write text, which the history may have from a stranger, so that a terminal does not act on it."""
    click.echo(UNSAFE_IN_LINES.sub("�", text), err=err)


def _table(columns: tuple[str, ...], rows: Any) -> str:
    lines = [list(columns), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


for _command in commands(Front.SHELL).values():
    main.add_command(_click_command(_command))
