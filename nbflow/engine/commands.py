"""The one table of commands (API.md §11): `%workflow` and `nbflow` on the shell are made from it.

A front (notebook, shell) reads words and options as the table says, resolves the instance, calls `act`, and shows the
answer. What a command does is here, once.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from typing import TYPE_CHECKING, Any

from nbflow.core import durations
from nbflow.core.model import Status
from nbflow.core.names import quoted
from nbflow.core.plans import RestartPlan
from nbflow.engine.code import owners
from nbflow.engine.code.changes import first_stale
from nbflow.engine.reading import plan_of, retry_plan_of
from nbflow.errors import NotFoundError, UsageError, listed
from nbflow.store.wording import going_on_text, plan_text, standing_text, steps_text

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.instance import WorkflowInstance
    from nbflow.store.views import InstanceView


class Front(Flag):
    """Where a command exists."""

    NOTEBOOK = auto()
    SHELL = auto()
    BOTH = NOTEBOOK | SHELL


@dataclass(frozen=True, slots=True)
class Word:
    """A positional argument; *name* also says what it is: ID, WORKFLOW, TYPE, PAYLOAD, DURATION, PATH, FILE.py:Class."""

    name: str
    optional: bool = True

    def __str__(self) -> str:
        return f"[{self.name}]" if self.optional else self.name


@dataclass(frozen=True, slots=True)
class Option:
    """An option; *value* names what follows it, None for a switch."""

    name: str
    value: str | None = None
    help: str = ""

    def __str__(self) -> str:
        return f"[{self.name} {self.value}]" if self.value else f"[{self.name}]"


@dataclass(frozen=True, slots=True)
class Call:
    """What a front was asked for: the instance it resolved, the other words by name, the options.

    *say* prints a line at once, before the command acts; without it the answer's line begins with that.
    """

    instance: "WorkflowInstance | None" = None
    words: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str | None] = field(default_factory=dict)
    say: Callable[[str], None] | None = None

    def the_instance(self) -> "WorkflowInstance":
        """The instance; the front has seen to it that there is one where the command needs it."""
        if self.instance is None:
            raise UsageError("which instance? give its id (`list` shows them)")
        return self.instance


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command gives back: a line, a table, an instance to show.

    *facts* are the rows for a program, where those say more or say it otherwise than the table does.
    """

    line: str = ""
    columns: tuple[str, ...] = ()
    rows: Sequence[Sequence[Any]] = ()
    instance: "WorkflowInstance | None" = None
    facts: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table; `act` is None where a front does it itself."""

    name: str
    help: str
    act: "Callable[[Engine, Call], Answer] | None"
    words: tuple[Word, ...] = ()
    options: tuple[Option, ...] = ()
    front: Front = Front.BOTH

    @property
    def usage(self) -> str:
        """Its arguments as the table of API.md writes them."""
        return " ".join([self.name, *map(str, self.words), *map(str, self.options)])

    @property
    def takes_instance(self) -> bool:
        """Whether its first word names an instance."""
        return bool(self.words) and self.words[0].name == "ID"


def list_row(view: "InstanceView") -> tuple[Any, ...]:
    """One instance in a table."""
    return (
        view.workflow,
        view.instance_id,
        standing_text(view),
        steps_text(view),
        view.created_at,
        view.ended_at,
        "" if view.error is None else str(view.error).partition("\n")[0][:100],
    )


LIST_COLUMNS = ("workflow", "id", "status", "steps", "created", "ended", "error")
TIMES = frozenset({"created", "ended", "recorded", "next"})
"""The columns of times, in all tables: two runs of a notebook never give the same ones."""


def instance_facts(view: "InstanceView") -> dict[str, Any]:
    """What a program wants to know of an instance beside its row."""
    return {"status": view.status.value, "interrupted": view.why_interrupted, "failed_items": view.failed_items}


def _list(engine: "Engine", call: Call) -> Answer:
    status = _status(call.options.get("--status"))
    limit = _count(call.options.get("--limit") or "100", "--limit")
    found = engine.list(call.words.get("WORKFLOW"), status=status, limit=limit)
    views = [instance.view() for instance in found]
    rows = [list_row(view) for view in views]
    facts = [dict(zip(LIST_COLUMNS, row)) | instance_facts(view) for row, view in zip(rows, views)]
    return Answer("" if rows else "no instances", LIST_COLUMNS, rows, facts=facts)


def _show(_engine: "Engine", call: Call) -> Answer:
    return Answer(instance=call.the_instance())


def _pause(_engine: "Engine", call: Call) -> Answer:
    return _done(call.the_instance(), lambda instance: instance.pause())


def _resume(_engine: "Engine", call: Call) -> Answer:
    return _planned(call, retry_plan_of(call.the_instance(), items=False), lambda instance: instance.resume())


def _terminate(_engine: "Engine", call: Call) -> Answer:
    return _done(call.the_instance(), lambda instance: instance.terminate(rollback="--rollback" in call.options))


def _retry_failed(_engine: "Engine", call: Call) -> Answer:
    return _planned(call, retry_plan_of(call.the_instance(), items=True), lambda instance: instance.retry_failed())


def _retry_now(_engine: "Engine", call: Call) -> Answer:
    return _done(call.the_instance(), lambda instance: instance.retry_now())


def _restart(engine: "Engine", call: Call) -> Answer:
    instance, first = call.the_instance(), None
    if "--stale" in call.options:
        if "--from" in call.options:
            raise UsageError("--from and --stale exclude each other: both say where to start")
        if owners.is_known_elsewhere(engine, instance):
            if call.say is not None:
                call.say(f"{instance.id}: its kernel, which has the code, is asked to restart it from the first stale step")
            return Answer(f"{instance.id}: restarted by its kernel: {plan_text(owners.ask_and_hear(engine, instance))}")
        first = first_stale(engine, instance)
    elif (name := call.options.get("--from")) is not None:
        first = instance.step(*step_named(instance, name)).key
    return _planned(call, plan_of(instance, first), lambda instance: instance.restart(first))


def _planned(call: Call, plan: RestartPlan | None, act: "Callable[[WorkflowInstance], None]") -> Answer:
    """Say what is kept and what runs again, then do it (S44, S48)."""
    instance = call.the_instance()
    said = "" if plan is None else f"{instance.id}: {plan_text(plan)}"
    if said and call.say is not None:
        call.say(said)
        said = ""
    answer = _done(instance, act)
    return replace(answer, line=f"{said}\n{answer.line}") if said else answer


def _delete(engine: "Engine", call: Call) -> Answer:
    older, status = call.options.get("--older-than"), _status(call.options.get("--status"))
    if older is not None:
        if call.instance is not None:
            message = f"give an ID ({call.instance.id!r}) or --older-than, not both; nothing was deleted"
            raise UsageError(message)
        age = durations.duration(older, what="--older-than")
        count = engine.delete(older_than=age, status=status)
        return Answer(f"deleted {count} instance{'' if count == 1 else 's'}")
    if status is not None:
        raise UsageError("--status goes with --older-than; nothing was deleted")
    instance = call.the_instance()
    instance.delete()
    return Answer(f"deleted {instance.id!r}")


def _send_event(_engine: "Engine", call: Call) -> Answer:
    instance = call.the_instance()
    event_type = call.words["TYPE"]
    wanted = sorted({wait.event_type or "" for wait in instance.view().waits})
    instance.send_event(event_type, call.words.get("PAYLOAD"))
    kept = f"; it waits for {listed(wanted)}, this one is kept" if wanted and event_type not in wanted else ""
    return Answer(f"sent {event_type!r} to {instance.id!r}{kept}")


def _history(_engine: "Engine", call: Call) -> Answer:
    rows = [
        (entry.seq or "", entry.recorded_at, entry.kind.value, str(entry.step_key or ""), _remark(entry.body))
        for entry in call.the_instance().history()
    ]
    return Answer("", ("seq", "recorded", "what", "step", "more"), rows)


_REMARKED = ("attempt", "type", "by", "notebook", "retry_at", "due_at", "event_type")


def _remark(body: Mapping[str, Any]) -> str:
    told = [f"{name}={body[name]}" for name in _REMARKED if body.get(name)]
    if (error := body.get("error")) is not None:
        told.append(f"{error.get('type', '')}: {error.get('message', '')}".partition("\n")[0][:100])
    return ", ".join(told)


def _schedules(engine: "Engine", call: Call) -> Answer:
    wanted = call.words.get("WORKFLOW")
    rows = [
        (schedule.workflow, schedule.cron, schedule.tz, schedule.next(), "yes" if schedule.catch_up else "no")
        for schedule in engine.schedules.all().values()
        if wanted in (None, schedule.workflow)
    ]
    return Answer("" if rows else "no schedules", ("workflow", "cron", "time zone", "next", "catches up"), rows)


def _unschedule(engine: "Engine", call: Call) -> Answer:
    workflow = call.words.get("WORKFLOW") or _the_scheduled(engine, call.instance)
    engine.schedules.remove(workflow)
    return Answer(f"removed the schedule of {workflow!r}; its instances stay")


def _the_scheduled(engine: "Engine", shown: "WorkflowInstance | None") -> str:
    """The workflow that `unschedule` alone means: that of the instance shown last, else the only one with a schedule."""
    scheduled = sorted(engine.schedules.all())
    if shown is not None and shown.workflow_name in scheduled:
        return shown.workflow_name
    if len(scheduled) == 1:
        return scheduled[0]
    if not scheduled:
        raise UsageError("there is no schedule to remove")
    message = f"which schedule? name its workflow: {listed(scheduled)}; nothing was removed"
    raise UsageError(message)


def _compact(engine: "Engine", _call: Call) -> Answer:
    before, after = engine.compact()
    return Answer(f"{engine.store.path}: {before:,} bytes before, {after:,} now")


def _backup(engine: "Engine", call: Call) -> Answer:
    return Answer(f"copied to {engine.backup(call.words['PATH'])}")


def _done(instance: "WorkflowInstance", act: "Callable[[WorkflowInstance], None]") -> Answer:
    """Do it, and say how the instance stands now; where nobody runs it, who will go on."""
    before = instance.view().version
    act(instance)
    view = instance.view()
    later = going_on_text(view)
    if not later:
        return Answer(f"{instance.id}: {standing_text(view)}")
    told = "recorded" if view.version != before else standing_text(view)
    return Answer(f"{instance.id}: {told}; nobody runs it now, {later}")


def _status(text: str | None) -> Status | None:
    if text is None:
        return None
    try:
        return next(status for status in Status if status.value.lower() == text.lower())
    except StopIteration:
        message = f"--status {text!r} is none of {listed([status.value for status in Status])}"
        raise UsageError(message) from None


def _count(text: str, option: str) -> int:
    count = 0 if not text.isdecimal() else int(text) if len(text) < 19 else sys.maxsize  # Python reads some thousand digits
    if count < 1:
        message = f"{option} is {quoted(text)}: write a whole number above 0"
        raise UsageError(message)
    return count


def step_named(instance: "WorkflowInstance", text: str) -> "tuple[str, int]":
    """Read `NAME` or `NAME#N`; a step whose name holds the sign itself is found first."""
    names = {step.name for step in instance.steps}
    if text in names:
        return text, 1
    name, sign, number = text.rpartition("#")
    if sign and name in names and number.isdecimal():
        return name, int(number)
    message = (
        f"{instance.id!r} has no step {text!r}; it has {listed(sorted(names))}"
        if names
        else f"{instance.id!r} has no steps yet"
    )
    raise NotFoundError(message)


_ID = Word("ID")
_STATUS = Option("--status", "S", "one of " + ", ".join(status.value for status in Status))

COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command(
            "list",
            "instances, newest first",
            _list,
            (Word("WORKFLOW"),),
            (_STATUS, Option("--limit", "N", "at most so many, 100 by default")),
        ),
        Command("show", "an instance and its steps", _show, (_ID,)),
        Command(
            "run",
            "run a workflow of a file until it is settled",
            None,
            (Word("FILE.py:Class", optional=False), _ID),
            (Option("--params", "JSON", "its params"), Option("--again", None, "make a new instance where one has finished")),
            Front.SHELL,
        ),
        Command("wait", "wait until it is settled, at most DURATION", None, (_ID, Word("DURATION"))),
        Command("pause", "let running bodies end, start nothing new", _pause, (_ID,)),
        Command("resume", "go on; an errored one goes on at its failed step", _resume, (_ID,)),
        Command("retry-failed", "drop failed steps, keep the finished, go on", _retry_failed, (_ID,)),
        Command("retry-now", "end all retry delays", _retry_now, (_ID,)),
        Command(
            "delete",
            "remove an instance, or finished ones by age",
            _delete,
            (_ID,),
            (Option("--older-than", "DURATION", "finished before that"), _STATUS),
        ),
        Command(
            "terminate",
            "stop for good",
            _terminate,
            (_ID,),
            (Option("--rollback", None, "run the rollback handlers first"),),
        ),
        Command(
            "restart",
            "run again, from the start or from a step",
            _restart,
            (_ID,),
            (
                Option("--from", "NAME[#N]", "keep what started before this step"),
                Option("--stale", None, "from the first step whose code has changed"),
            ),
        ),
        Command(
            "send-event",
            "send an event: JSON in the shell, an expression in a notebook",
            _send_event,
            (Word("ID", optional=False), Word("TYPE", optional=False), Word("PAYLOAD")),
        ),
        Command("history", "the entries of an instance, oldest first", _history, (_ID,)),
        Command("schedules", "the schedules of this store", _schedules, (Word("WORKFLOW"),)),
        Command("unschedule", "take a workflow's schedule away", _unschedule, (Word("WORKFLOW"),)),
        Command("compact", "drop what deleted instances left, rewrite the file", _compact, (), (), Front.SHELL),
        Command("backup", "copy the store to PATH", _backup, (Word("PATH", optional=False),), (), Front.SHELL),
        Command("doctor", "look the store over: what is wrong, and what to do", None, (), (), Front.SHELL),
        Command("demo", "watch a workflow survive the death of its process", None, (), (), Front.SHELL),
        Command(
            "store", "path, size and holder of the store; with PATH: another store", None, (Word("PATH"),), (), Front.NOTEBOOK
        ),
    )
}


def commands(front: Front) -> dict[str, Command]:
    """The rows of the table that *front* has."""
    return {name: command for name, command in COMMANDS.items() if front in command.front}
