"""The panel's twin: what a reader sees where no widget lives — a saved notebook, nbviewer, a terminal, a dead kernel.

One line that says what there is to know, and a closed table of steps. Inline styles, no script, every value escaped: the
page it ends up in is not ours.
"""

import html as markup
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nbflow import ids
from nbflow.core.model import FINISHED, Status, StepState
from nbflow.jupyter import samples, words
from nbflow.store.views import InstanceView, StepView
from nbflow.store.wording import interrupted_text

if TYPE_CHECKING:
    from nbflow.engine.instance import WorkflowInstance

STEPS = 100
BYTES = 64_000
_LONGEST_LINE = 400
_INSTANCES = 200

# Greys and colours that read on white and on near-black alike: the page's background is not known here.
_MUTED = "opacity:.75"
# Short, for they stand in each of some hundred cells; JupyterLab's own style would pad and right-align every cell.
_CELL = "text-align:left;padding:1px 9px"
_NUMBER = "text-align:right;padding:1px 9px"
_CODE = "font-family:monospace"


def text(view: InstanceView) -> str:
    """Give the instance in one line without times and generated ids: "Ingest: waiting for 'approval' (2 of 4 steps)"."""
    steps = f" ({words.progress_text(view)})" if view.total else ""
    return f"{words.first_line(view.workflow, 80)}: {words.status_text(view)}{steps}"


def html(view: InstanceView, rows: Sequence[StepView], *, stable: bool, line: str = "", mark: str = "") -> str:
    """Give the instance as one line and a closed table, at most 64 kB.

    Args:
        view: the instance.
        rows: its steps in order of start, the last ones where there are many.
        stable: leave out times and ids.
        line: what the cell did, first of all.
        mark: what a panel in the same output finds it by: a class, which every page lets through.
    """
    shown = _chosen(rows)
    for notes in (160, 60, 0):
        for count in (len(shown), len(shown) // 2, len(shown) // 8, 0):
            kept = _chosen(shown, count)
            page = _page(view, kept, notes=notes, stable=stable, line=line, mark=mark)
            if len(page.encode()) <= BYTES:
                return page
    return _page(view, [], notes=0, stable=stable, line="", mark=mark)


def bundle(inst: "WorkflowInstance", view: InstanceView, *, stable: bool, line: str = "", mark: str = "") -> dict[str, str]:
    """What is displayed of the instance where no widget is: the twin as html, and its line as text."""
    _, rows = inst.rows(max(0, view.total - STEPS), view.total)
    plain = text(view) if stable or not line else f"{line}\n{text(view)}"
    return {"text/html": html(view, rows, stable=stable, line=line, mark=mark), "text/plain": plain}


class Twin:
    """What stands for the panel where nobody can press its buttons: the twin, as things are when it is displayed."""

    def __init__(self, inst: "WorkflowInstance", *, stable: bool) -> None:
        self._inst, self._stable = inst, stable

    def __repr__(self) -> str:
        return text(self._inst.view())

    def _repr_mimebundle_(self, **_asked: object) -> dict[str, str]:
        return bundle(self._inst, self._inst.view(), stable=self._stable)


def instances_text(views: Sequence[InstanceView], *, stable: bool) -> str:
    """Give instances one a line, as `text` does, with their ids: a list without ids says nothing.

    *stable*: what is generated of an id is left out.
    """
    if not views:
        return "no instances"
    names = [_name(view, stable=stable) for view in views]
    width = max(map(len, names))
    return "\n".join(f"{name:<{width}}  {text(view)}" for name, view in zip(names, views))


def instances_html(views: Sequence[InstanceView], *, stable: bool, of: int | None = None) -> str:
    """Give a table of instances: status, id, progress, when it started and how long it took; how to go on with them.

    *of*: how many there are, where these are only some.
    *stable*: without times, and without what is generated of an id.
    """
    heads = ("status", "workflow", "id", "steps") + (() if stable else ("started", "took"))
    body = []
    views, all_of_them = views[:_INSTANCES], len(views) if of is None else of
    for view in views:
        cells = [
            _td(_status(view)),
            _td(_safe(view.workflow, 80)),
            _td(_safe(_name(view, stable=stable)), f"{_CELL};{_CODE}"),
            _td(_safe(words.progress_text(view))),
        ]
        if not stable:
            cells.append(_td(_safe(words.moment_text(view.started_at))))
            cells.append(_td(_safe(words.between(view.started_at, view.ended_at)), _NUMBER))
        body.append(f"<tr>{''.join(cells)}</tr>")
    if not body:
        return "<div>no instances</div>"
    more = all_of_them - len(body)
    note = f'<div style="{_MUTED}">{more:,} more are not shown</div>' if more > 0 else ""
    table = f'<table style="border-collapse:collapse">{_header(heads)}<tbody>{"".join(body)}</tbody></table>{note}'
    return table if stable else table + _how_to_go_on(views)


def table_bundle(views: Sequence[InstanceView], counts: Mapping[str, int], *, stable: bool) -> dict[str, str]:
    """What is displayed of many instances: how many stand where, and those of *views* as rows."""
    total = sum(counts.values())
    told = [f"{count:,} {words.standing_word(standing)}" for standing, count in sorted(counts.items())]
    line = f"{total:,} instance{'' if total == 1 else 's'}: {' · '.join(told)}" if total else "no instances"
    if not views:
        return {"text/html": f"<div>{line}</div>", "text/plain": line}
    rest = f"\n{total - len(views):,} more are not shown" if total > len(views) else ""
    plain = f"{line}\n{instances_text(views, stable=stable)}{rest}"
    return {"text/html": f"<div>{line}</div>{instances_html(views, stable=stable, of=total)}", "text/plain": plain}


def _how_to_go_on(views: Sequence[InstanceView]) -> str:
    """What can be done with those that wait for somebody and those that stopped, for some of each."""
    asked = [view for view in views if view.waits]
    stopped = [view for view in views if not view.waits and (view.status is Status.ERRORED or view.why_interrupted)]
    told = [f"{len(found):,} {what}" for found, what in ((asked, "to be answered"), (stopped, "stopped")) if found]
    if not told:
        return ""
    lines = [f'<div style="{_MUTED}">the panel of one, by a cell; or in a shell:</div>']
    for view in (*asked[:3], *stopped[:3]):
        commands = [f"%workflow show {_full_name(view)}", *_commands(view)]
        lines += [_prompts(view), *(f'<div style="{_CODE}">{_safe(command, 1_000)}</div>' for command in commands)]
    if stopped:
        lines.append(f'<div style="{_MUTED}">or run the cell again: those that stopped go on, the finished stay</div>')
    summary = f'<summary style="cursor:pointer">how to go on: {", ".join(told)}</summary>'
    return f"<details>{summary}{''.join(lines)}</details>"


def _full_name(view: InstanceView) -> str:
    return shlex.quote(f"{view.workflow}/{view.instance_id}")


def _name(view: InstanceView, *, stable: bool) -> str:
    name = words.first_line(view.instance_id, 100)
    return ids.GENERATED.sub("…", name) if stable else name


def _chosen(rows: Sequence[StepView], count: int = STEPS) -> list[StepView]:
    """At most *count* rows: what is open or failed before what is done, the latest first; in order of start."""
    if len(rows) <= count:
        return list(rows)
    places = sorted(range(len(rows)), key=lambda place: (rows[place].status is StepState.FINISHED, -place))
    return [rows[place] for place in sorted(places[:count])]


def _page(view: InstanceView, rows: Sequence[StepView], *, notes: int, stable: bool, line: str, mark: str) -> str:
    told = f'<div style="{_MUTED}">{_safe(line, _LONGEST_LINE)}</div>' if line and not stable else ""
    answer = "" if stable else _how_to_answer(view)
    table = _table(view, rows, notes=notes, stable=stable) if rows else ""
    folded = ""
    if answer or table:
        summary = "steps, and how to answer from a shell" if answer and view.waits else "steps"
        folded = f'<details><summary style="cursor:pointer">{summary}</summary>{answer}{table}</details>'
    name = f' class="nbflow-twin-{mark}"' if mark else ""
    return f'<div{name} style="margin:2px 0">{told}<div>{_headline(view, stable=stable)}</div>{folded}</div>'


def _headline(view: InstanceView, *, stable: bool) -> str:
    name = f"<b>{_safe(view.workflow, 80)}</b>"
    if not stable:
        name += f' <span style="{_CODE};{_MUTED}">{_safe(view.instance_id, 100)}</span>'
    parts = [name, _status(view)]
    if view.total:
        parts.append(_safe(words.progress_text(view)))
    if view.failed:
        parts.append(f"{view.failed:,} failed")
    if not stable:
        since = words.moment_text(view.changed_at if view.ended_at is None else view.ended_at)
        parts.append(f'<span style="{_MUTED}">since {_safe(since)}</span>')
    return " · ".join(parts)


def _status(view: InstanceView) -> str:
    sign = "⚡" if interrupted_text(view) else words.STATUS[view.status][0]
    return f"{sign} {_safe(words.status_text(view), _LONGEST_LINE)}"


def _how_to_answer(view: InstanceView) -> str:
    commands = [] if view.status in FINISHED else _commands(view)
    if not commands:
        return ""
    shell = "".join(f'<div style="{_CODE}">{_safe(command, 1_000)}</div>' for command in commands)
    where = "in the panel (run the cell where it is not shown), or in a shell:"
    return f'{_prompts(view)}<div style="{_MUTED}">{where}</div>{shell}'


def _commands(view: InstanceView) -> list[str]:
    """What lets it go on, in a shell."""
    name = _full_name(view)
    if view.status is Status.ERRORED:
        return [f"nbflow retry-failed {name}"]
    commands = []
    for wait in view.waits[:3]:
        payload = samples.payload_text(wait.schema)
        commands.append(f"nbflow send-event {name} {shlex.quote(wait.event_type or '')} {shlex.quote(payload)}")
    return commands or ([f"nbflow resume {name}"] if view.status is Status.PAUSED else [])


def _prompts(view: InstanceView) -> str:
    return "".join(f"<div>{_safe(wait.prompt, _LONGEST_LINE)}</div>" for wait in view.waits[:3] if wait.prompt)


def _table(view: InstanceView, rows: Sequence[StepView], *, notes: int, stable: bool) -> str:
    heads = ["", "step", "state"] + ([] if stable else ["started", "took"]) + (["output"] if notes else [])
    body = []
    for step in (_as_left(step) for step in rows) if view.unattended else rows:
        cells = [_td(words.STEP[step.status][0]), _td(_safe(str(step.key), 120)), _td(_safe(words.step_text(step), 120))]
        if not stable:
            cells.append(_td(_safe(words.moment_text(step.started_at)), _NUMBER))
            cells.append(_td(_safe(words.between(step.started_at, step.ended_at)), _NUMBER))
        if notes:
            cells.append(_td(_safe(words.outcome_line(step, notes), notes), f"{_CELL};{_CODE}"))
        body.append(f"<tr>{''.join(cells)}</tr>")
    more = view.total - len(rows)
    note = f'<div style="{_MUTED}">{more:,} more steps are not shown</div>' if more > 0 else ""
    table = f'<table style="border-collapse:collapse">{_header(heads)}<tbody>{"".join(body)}</tbody></table>'
    return f"{table}{note}"


def _as_left(step: StepView) -> StepView:
    """A step as a kernel left it that is gone: it does not run any more."""
    return replace(step, status=StepState.INTERRUPTED) if step.status is StepState.RUNNING else step


def _header(heads: Iterable[str]) -> str:
    cells = "".join(f'<th style="{_CELL};font-weight:600">{markup.escape(head)}</th>' for head in heads)
    return f"<thead><tr>{cells}</tr></thead>"


def _td(content: str, style: str = _CELL) -> str:
    return f'<td style="{style}">{content}</td>'


def _safe(value: str | None, limit: int = 400) -> str:
    """Escape one line of anybody's text."""
    return markup.escape(words.first_line(value or "", limit))
