"""Tab completion of `%%workflow` and `%workflow`: options, subcommands, ids, step names, types of open waits."""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from nbflow.engine.commands import Command, Front, commands
from nbflow.jupyter.line import AWAITED, CELL_OPTIONS

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.instance import WorkflowInstance

_LINE = re.compile(r"^\s*(?P<magic>%%?)workflow\s+(?P<rest>.*)$")
_IDS = 50


def completer(
    open_engine: Callable[[], "Engine | None"], find: Callable[[str | None], "WorkflowInstance | None"]
) -> Callable[[Any], Any]:
    """Make a matcher for `ip.Completer.custom_matchers`.

    Args:
        open_engine: the engine if there is one: pressing Tab opens no store.
        find: the instance that a word names, or with None the one last shown; None where there is none.
    """
    from IPython.core.completer import SimpleCompletion, context_matcher

    def complete(text: str, magic: str, rest: str) -> Iterable[str]:
        before = rest[: len(rest) - len(text)].split()
        if magic == "%%":
            return _cell(text, before, open_engine())
        if not before:
            return commands(Front.NOTEBOOK)
        command = commands(Front.NOTEBOOK).get(before[0])
        return () if command is None else _line(command, text, before[1:], open_engine(), find)

    @context_matcher()  # type: ignore[untyped-decorator, unused-ignore]
    def workflow_matcher(context: Any) -> dict[str, Any]:
        line = context.line_with_cursor[: context.cursor_position]
        match = _LINE.match(line)
        if match is None or (match["magic"] == "%%" and context.cursor_line != 0):
            return {"completions": [], "suppress": False}
        rest = match["rest"]
        text = re.split(r"\s", rest)[-1]
        try:
            found = [each for each in complete(text, match["magic"], rest) if each.lstrip('"').startswith(text.lstrip('"'))]
        except Exception:  # noqa: BLE001 - Tab must not print a traceback into what is being typed
            found = []
        return {
            "completions": [SimpleCompletion(text=each, type="workflow") for each in found],
            "matched_fragment": text,
            "suppress": bool(found),
        }

    return workflow_matcher  # type: ignore[no-any-return, unused-ignore]


def _cell(text: str, before: list[str], engine: "Engine | None") -> Iterable[str]:
    if text.startswith("-"):
        return [name for name in CELL_OPTIONS if name != AWAITED and name not in before]
    if not before or before[-1] == "--id":
        return _ids(engine)
    return ()


def _line(
    command: Command,
    text: str,
    before: list[str],
    engine: "Engine | None",
    find: Callable[[str | None], "WorkflowInstance | None"],
) -> Iterable[str]:
    if text.startswith("-"):
        return [option.name for option in command.options if option.name not in before]
    last = before[-1] if before else ""
    named = next((word for word in before if not word.startswith("-")), None)
    if last == "--from":
        instance = find(None if named == last else named)
        return [] if instance is None else [_step(step) for step in instance.steps]
    if last == "--status":
        from nbflow.core.model import Status

        return [status.value for status in Status]
    words = [word for word in before if not word.startswith("-")]
    position = len(words)
    if position >= len(command.words):
        return ()
    match command.words[position].name:
        case "ID":
            return _ids(engine)
        case "WORKFLOW":
            return [] if engine is None else list(engine.workflows)
        case "TYPE":
            instance = find(words[0])
            return [] if instance is None else [wait.event_type or "" for wait in instance.view().waits]
    return ()


def _ids(engine: "Engine | None") -> list[str]:
    return [] if engine is None else [instance.id for instance in engine.list(limit=_IDS)]


def _step(step: Any) -> str:
    text = step.name if step.count == 1 else f"{step.name}#{step.count}"
    return f'"{text}"' if " " in text else text
