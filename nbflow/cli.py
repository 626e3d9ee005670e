"""`nbflow` on the shell: the other front of the one table of commands (API.md §11)."""

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

import click

from nbflow import printing
from nbflow.core import durations
from nbflow.core.model import Status, StepState
from nbflow.core.names import quoted
from nbflow.engine import current
from nbflow.engine.commands import Answer, Call, Command, Front, commands, instance_facts
from nbflow.engine.recovery import register_all
from nbflow.errors import NbflowError, StoreError, UndecodableError, UsageError, WaitTimeoutError, refusal
from nbflow.printing import say
from nbflow.store.layout import Layout
from nbflow.store.wording import going_on_text, items_of_all_text, items_text, standing_text
from nbflow.values import jsontext

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.instance import WorkflowInstance
    from nbflow.store.views import InstanceView, StepView

ERRORED, USAGE, SETTLED, TERMINATED, UNWRITTEN = 1, 2, 3, 4, 5
_PATHS = ("path", "file_py_class")


@dataclass(frozen=True)
class Shell:
    """What stands before the command: which store, and whether answers are JSON, and where that goes."""

    store: str | None
    as_json: bool
    out: IO[str] | None = None

    def engine(self, notebook: str = "") -> "Engine":
        """An engine of this process on the store; only `run` makes one where there is none."""
        from nbflow.engine.engine import Engine

        path = self.store or os.path.join(".nbflow", "history.duckdb")
        if not notebook and path != ":memory:":
            file = Layout.of(path).file
            if not file.exists():
                message = f"no history at {str(file)!r}; go to the folder of the notebook, or say --store PATH"
                raise UsageError(message)
        return Engine(self.store, notebook=notebook)

    def say(self, answer: Answer) -> None:
        """Print an answer."""
        if answer.instance is not None:
            self._show(answer.instance)
        elif self.as_json:
            rows = [dict(zip(answer.columns, row)) for row in answer.rows] if answer.facts is None else answer.facts
            printing.tell(rows if answer.columns else {"line": answer.line}, self.out)
        else:
            if answer.line:
                say(answer.line)
            if answer.rows:
                say(printing.table(answer.columns, answer.rows))

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
            printing.tell(told, self.out)
            return
        self._say_instance(instance, view)
        if rows:
            say(printing.table(columns, [(row[0], _step_text(step, view), *row[2:]) for row, step in zip(rows, steps)]))

    def _say_instance(self, instance: "WorkflowInstance", view: "InstanceView") -> None:
        far = [standing_text(view), f"{view.done} of {view.total} steps", items_of_all_text(view)]
        say(f"{view.workflow} {view.instance_id}: {', '.join(filter(None, far))}")
        if view.error is not None:
            say(f"  {view.error}")
        later = going_on_text(view)
        if (why := view.why_interrupted) is not None or later:
            say(f"  {'; '.join(filter(None, [why or 'nobody runs it now', later]))}")
        several = len(instance.engine.store.find(view.instance_id)) > 1
        name = f"{view.workflow}/{view.instance_id}" if several else view.instance_id
        for wait in view.waits:
            say(f"  waits for {wait.event_type!r}: nbflow send-event {name} {wait.event_type} JSON")
        for _, workflow, child in view.children:
            say(f"  waits for its child {child!r}: nbflow show {workflow}/{child}")


def _store_option(*, hidden: bool = False) -> click.Option:
    told = "The .duckdb file; .nbflow/history.duckdb by default."
    return click.Option(["--store"], metavar="PATH", envvar=None if hidden else "NBFLOW_STORE", help=told, hidden=hidden)


def _json_option(*, hidden: bool = False) -> click.Option:
    return click.Option(["--json", "as_json"], is_flag=True, help="Answer in JSON.", hidden=hidden)


class _Front(click.Group):
    """The commands; what click prints by itself may meet a full disk too. What they meet themselves they say themselves."""

    def main(self, *args: Any, **more: Any) -> Any:
        """Run a command and end the process."""
        printing.spell_out()
        try:
            return super().main(*args, **more)
        except OSError as error:
            if isinstance(wrong := error.__context__, click.ClickException):  # it could not be told what is wrong
                printing.mute(sys.stderr)
                sys.exit(wrong.exit_code)
            printing.mute(sys.stdout)
            _say_unwritten(error)
            sys.exit(UNWRITTEN)


@click.group(cls=_Front, params=[_store_option(), _json_option()], context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nbflow-workflows", prog_name="nbflow")
@click.pass_context
def main(context: click.Context, store: str | None, as_json: bool) -> None:
    """Look at workflow instances and control them, also while a kernel runs them.

    Exit codes: 0 done or complete, 1 errored, 2 wrong use, 3 settled but not finished, 4 terminated, 5 done or
    complete, but the answer could not be written.
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
        sys.exit(_guarded(lambda: _run(Shell(store, as_json, printing.stdout_alone() if as_json else None), command, given)))

    return click.Command(command.name, params=params, callback=act, help=command.help[:1].upper() + command.help[1:] + ".")


def _parameter(name: str) -> str:
    return name.strip("-").lower().replace("-", "_").replace(".", "_").replace(":", "_")


def _guarded(act: Callable[[], int]) -> int:
    code = _acted(act)
    if (trouble := printing.refused()) is None:
        return code
    _say_unwritten(trouble)
    return code or UNWRITTEN


def _say_unwritten(trouble: OSError) -> None:
    say(f"nbflow: the answer could not be written: {trouble.strerror or trouble}; what was asked for is done", err=True)


def _acted(act: Callable[[], int]) -> int:
    try:
        return act()
    except NbflowError as error:
        say(f"nbflow: {error}", err=True)
        return ERRORED if isinstance(error, StoreError) else USAGE
    except OSError as error:  # what the answer met is kept by `printing`: this is none of writing it
        place = "" if error.filename is None else f"{quoted(os.fsdecode(error.filename))}: "
        say(f"nbflow: {place}{refusal(error)}, and try again", err=True)
        return ERRORED
    except KeyboardInterrupt:
        say("nbflow: stopped; what runs elsewhere keeps running", err=True)
        return 130


def _run(shell: Shell, command: Command, given: Mapping[str, Any]) -> int:
    for name, value in given.items():
        _check_text(name, value)
    match command.name:
        case "run":
            return _run_file(shell, given)
        case "doctor":
            return _doctor(shell)
        case "demo":
            from nbflow.demo import show

            lines: list[str] = []
            code = show(lines.append if shell.as_json else say)
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
        switches = {name: None if value is True else value for name, value in options.items()}
        call = Call(instance, words, switches, None if shell.as_json else say)
        if command.name == "wait":
            return _wait(shell, call)
        assert command.act is not None
        shell.say(command.act(engine, call))
    return 0


def _check_text(name: str, value: object) -> None:
    """Bytes of the command line that are no text may be a path, and nothing else."""
    if isinstance(value, str) and name not in _PATHS and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            message = f"{name.upper()} {quoted(value)} is no text in UTF-8: write it so"
            raise UsageError(message) from None


def _wait(shell: Shell, call: Call) -> int:
    instance = call.the_instance()
    text = call.words.get("DURATION")
    seconds: float | None = None
    if text is not None:
        seconds = durations.duration(float(text) if text.isdecimal() else text, what="DURATION").total_seconds()
    try:
        instance.wait(seconds)
    except WaitTimeoutError as error:
        say(f"nbflow: {error}", err=True)
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
            say(f"{severity:5}  {what}" + (f"\n       → {advice}" if advice else ""))
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
            say(opened.line)
        opened.start()
        if (more := opened.told().removeprefix(opened.line).removeprefix(" · ")) and not shell.as_json:
            say(more)
        try:
            opened.instance.wait()
        except KeyboardInterrupt:
            say(f"nbflow: stopped; run it again to go on with {opened.instance.id!r}", err=True)
            return SETTLED
        return _outcome(shell, opened.instance)


def _load(file: Path, name: str) -> tuple[ModuleType, type]:
    if not os.path.isfile(file):
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
        say("".join(traceback.format_exception(_own_frames(error, file))).rstrip(), err=True)
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


def _from_json(text: str, what: str) -> Any:
    try:
        return jsontext.read(text)
    except ValueError as error:
        message = f"{what} {quoted(text)} is no JSON that can be taken: {error}; text needs quotes of its own: '\"yes\"'"
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
        return printing.as_json(instance.output)
    except UndecodableError:
        return (view.output_preview or {}).get("line")


for _command in commands(Front.SHELL).values():
    main.add_command(_click_command(_command))
