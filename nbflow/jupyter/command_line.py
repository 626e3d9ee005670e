"""`%workflow`: words and options are read as the table of commands says, the answer is shown."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbflow.core import names
from nbflow.engine.commands import COMMANDS, Answer, Call, Command, Front, commands
from nbflow.errors import NotFoundError, UsageError
from nbflow.jupyter.line import Scanner, Takes, seconds_of, split
from nbflow.jupyter.stable import stable
from nbflow.jupyter.table import Table, step_table
from nbflow.jupyter.waiting import Wait
from nbflow.jupyter.words import say
from nbflow.store.wording import standing_text

if TYPE_CHECKING:
    from nbflow.engine.instance import WorkflowInstance
    from nbflow.jupyter.magics import WorkflowMagics


def line_help() -> str:
    """The table of commands as text."""
    rows = [(command.usage, command.help) for command in commands(Front.NOTEBOOK).values()]
    width = min(44, max(len(usage) for usage, _ in rows))
    lines = [f"  {usage:<{width}}  {text}" for usage, text in rows]
    return "\n".join(
        [
            "Look at workflow instances and control them.",
            "",
            *lines,
            "",
            "ID is an id, WORKFLOW/ID, a workflow's name (its newest instance), a variable that holds an instance, or left out",
            "for the instance last shown.",
        ]
    )


_SETS_GOING = frozenset({"resume", "retry-failed", "retry-now", "restart"})
"""Their answers say where the instance stands, which hangs on how fast it is: with stable output they name it alone."""


class CommandLine:
    """The line magic of one shell."""

    def __init__(self, magics: "WorkflowMagics") -> None:
        self._magics = magics

    def run(self, line: str) -> Any:
        """Do what the line says; its answer is printed or is the cell's value."""
        scanner = Scanner(line)
        if not scanner.skip():
            say(line_help())
            return None
        name = scanner.word()
        command = commands(Front.NOTEBOOK).get(name)
        if command is None:
            raise UsageError(self._unknown_command(name))
        call = self._read_call(command, scanner.rest)
        match name:
            case "wait":
                return self._wait(call)
            case "store":
                return self._store(call)
        if command.takes_instance and call.instance is None and "--older-than" not in call.options:
            raise UsageError(self._no_instance(command))
        assert command.act is not None
        answer = command.act(self._magics.engine(), call)
        if self._magics.settings.stable_output and name in _SETS_GOING:
            answer = replace(answer, line=answer.line.partition(": ")[0])
        return self._show_answer(answer)

    def _unknown_command(self, name: str) -> str:
        if name in COMMANDS:
            return f"`{name}` exists on the shell only: nbflow {name}"
        known = ", ".join(commands(Front.NOTEBOOK))
        return f"%workflow has no command {name!r}; it has {known}"

    def _no_instance(self, command: Command) -> str:
        return f"`%workflow {command.name}` needs an ID: no instance has been shown in this notebook yet (%workflow list)"

    def _read_call(self, command: Command, rest: str) -> Call:
        """Read the words and options of one command; the table says which."""
        if command.words and command.words[-1].name == "PAYLOAD":
            return self._read_event(command, rest)
        takes = {option.name: Takes.WORD if option.value else Takes.NOTHING for option in command.options}
        given = split(rest, takes, magic=f"%workflow {command.name}")
        words, found = list(given.words), {}
        instance = None
        for expected in command.words:
            if expected.name == "ID":
                words, instance = self._take_instance(command, words)
            elif expected.name == "DURATION" and words:
                found["DURATION"], words = " ".join(words), []
            elif words:
                found[expected.name] = words.pop(0)
        if words:
            message = f"%workflow {command.name}: {words[0]!r} is one word too many; it is written: {command.usage}"
            raise UsageError(message)
        if instance is None and "--older-than" not in given:
            instance = self._magics.last_shown if command.takes_instance or command.name == "unschedule" else None
        return Call(instance, found, given.options, lambda line: self._show_answer(Answer(line)))

    def _take_instance(self, command: Command, words: list[str]) -> tuple[list[str], "WorkflowInstance | None"]:
        if not words:
            return words, None
        try:
            return words[1:], self._magics.find(words[0])
        except NotFoundError:
            if any(word.name == "DURATION" for word in command.words):
                try:
                    seconds_of(" ".join(words), "DURATION")
                except UsageError:
                    pass
                else:
                    return words, None
            raise

    def _read_event(self, command: Command, rest: str) -> Call:
        """`ID TYPE [PAYLOAD]`: the payload is the rest of the line, a Python expression; the ID may be left out."""
        scanner = Scanner(rest)
        words: list[str] = []
        payload = ""
        while scanner.skip() and not payload:
            here = scanner.rest
            if len(words) == 2 or (words and not _may_be_type(here.split()[0])):
                payload = here
            else:
                words.append(scanner.word())
        if not words:
            message = f"%workflow {command.name} is written: {command.usage}"
            raise UsageError(message)
        event_type = names.event_type(words[-1])
        value = self._magics.evaluate(payload, "the payload") if payload else None
        instance = self._magics.find(words[0]) if len(words) == 2 else self._magics.last_shown
        if instance is None:
            raise UsageError(self._no_instance(command))
        return Call(instance, {"TYPE": event_type, "PAYLOAD": value})

    def _wait(self, call: Call) -> Any:
        if call.instance is None:
            raise UsageError(self._no_instance(COMMANDS["wait"]))
        at_most = seconds_of(call.words["DURATION"], "DURATION") if "DURATION" in call.words else None
        instance = call.instance
        Wait(self._magics.engine(), instance, at_most=at_most).block()
        self._magics.last_shown = instance
        return self._show_answer(Answer(f"{instance.id}: {standing_text(instance.view())}"))

    def _store(self, call: Call) -> Any:
        path = call.words.get("PATH")
        if path is not None:
            self._magics.switch_store(path)
        engine = self._magics.engine()
        facts = {**engine.store.facts(), "trouble": engine.trouble or None}
        return self._show_answer(Answer("", ("fact", "value"), list(facts.items())))

    def _show(self, instance: "WorkflowInstance") -> "WorkflowInstance":
        self._magics.last_shown = instance
        if not self._magics.in_kernel:
            say(step_table(instance.steps, stable=self._magics.settings.stable_output))  # the value's own line comes after it
            return instance
        self._magics.display(instance)
        return self._magics.as_value(instance)

    def _show_answer(self, answer: Answer) -> Any:
        if answer.instance is not None:
            return self._show(answer.instance)
        if self._magics.settings.stable_output:
            answer = stable(answer)
        if answer.line:
            say(answer.line)
        if answer.columns and answer.rows:
            return Table(answer.columns, answer.rows)
        return None


def _may_be_type(word: str) -> bool:
    try:
        names.event_type(word)
    except UsageError:
        return False
    return word not in ("True", "False", "None")  # these begin a payload
