"""`nbflow` on the shell: the other front of the one table of commands (API.md §11)."""

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nbflow.core import durations
from nbflow.core.model import Status
from nbflow.core.names import UNSAFE_IN_LINES, quoted
from nbflow.engine.commands import Answer, Call, Command, Front, commands
from nbflow.errors import NbflowError, StoreError, UndecodableError, UsageError, WaitTimeoutError

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.instance import WorkflowInstance
    from nbflow.store.views import InstanceView

ERRORED, USAGE, SETTLED, TERMINATED = 1, 2, 3, 4


@dataclass(frozen=True)
class Shell:
    """What stands before the command: which store, and whether answers are JSON."""

    store: str | None
    as_json: bool

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
            rows = [dict(zip(answer.columns, map(_plain, row))) for row in answer.rows]
            click.echo(json.dumps(rows if answer.columns else {"line": answer.line}))
        else:
            if answer.line:
                _say(answer.line)
            if answer.rows:
                _say(_table(answer.columns, answer.rows))

    def _show(self, instance: "WorkflowInstance") -> None:
        view = instance.view()
        columns = ("step", "status", "attempts", "started", "ended", "error")
        rows = [
            (str(step.key), step.status.value, len(step.attempts) or "", step.started_at, step.ended_at, str(step.error or ""))
            for step in instance.steps
        ]
        if self.as_json:
            steps = [dict(zip(columns, map(_plain, row))) for row in rows]
            told = {"workflow": view.workflow, "id": view.instance_id, "status": view.status.value, "steps": steps}
            waits = [{"name": wait.name, "event_type": wait.event_type, "until": _plain(wait.due_at)} for wait in view.waits]
            output = _output(instance, view) if view.status is Status.COMPLETE else None
            error = None if view.error is None else str(view.error)
            click.echo(json.dumps({**told, "waits": waits, "output": output, "error": error}))
            return
        _say(f"{view.workflow} {view.instance_id}: {view.status.value}, {view.done} of {view.total} steps")
        if view.error is not None:
            _say(f"  {view.error}")
        for wait in view.waits:
            _say(f"  waits for {wait.event_type!r}: nbflow send-event {view.instance_id} {wait.event_type} JSON")
        if rows:
            _say(_table(columns, rows))


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
        sys.exit(_guarded(lambda: _run(Shell(store, as_json), command, given)))

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

            return show(_say)
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
    cls = _load(Path(file), name)
    with shell.engine(notebook=os.path.basename(file)) as engine:
        workflow = engine.register(cls, resume=False)
        opened = engine.open(workflow, given["id"], params, again=given["again"])
        if not shell.as_json:
            _say(opened.line)
        opened.start()
        if (told := opened.told()) != opened.line and not shell.as_json:
            _say(told)
        try:
            opened.instance.wait()
        except KeyboardInterrupt:
            _say(f"nbflow: stopped; run it again to go on with {opened.instance.id!r}", err=True)
            return SETTLED
        return _outcome(shell, opened.instance)


def _load(file: Path, name: str) -> type:
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
    spec.loader.exec_module(module)
    cls = vars(module).get(name)
    if not isinstance(cls, type):
        message = f"{str(file)!r} defines no class {name!r}"
        raise UsageError(message)
    return cls


def _from_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        message = f"{what} {quoted(text)} is no JSON: {error}; text needs quotes of its own: '\"yes\"'"
        raise UsageError(message) from None


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
    except (TypeError, ValueError):
        return repr(value)[:1000]


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
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
