"""What the panel is told: the view of an instance and its steps as small JSON.

The page gets one state of at most 20 kB as often as something changes: the head, the open waits, and the rows as far as
they fit. Whatever else it shows it asks for: pages of rows, one step in full.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from nbflow.core.log import Progress
from nbflow.core.model import Status, StepKey, StepState, Waiting
from nbflow.core.names import UNSAFE_IN_LINES
from nbflow.jupyter import words
from nbflow.store.counts import ItemCounts
from nbflow.store.outline import GroupView, Name, Page
from nbflow.store.views import AttemptView, InstanceView, StepView
from nbflow.store.wording import plan_text

STATE_BYTES = 20_000
HEAD_BYTES = 1_000
FEW_ROWS = 60
"""Instances with no more steps than this are drawn from the state alone, without a question to the kernel."""

_NOTE = 140
_WAITS = 20
_WORK = ("done", "total", "running", "retrying", "failed")
_PROMPT = 600
_SCHEMA_BYTES = 4_000
_TRIES = 8
_SHOWN = (
    StepState.RUNNING,
    StepState.RETRYING,
    StepState.WAITING,
    StepState.SLEEPING,
    StepState.FAILED,
    StepState.INTERRUPTED,
    StepState.CANCELLED,
)


def size(value: object) -> int:
    """Bytes of *value* on the wire."""
    return len(json.dumps(value, ensure_ascii=False).encode())


def head_json(view: InstanceView) -> dict[str, Any]:
    """What changes of an instance, at most 1 kB: enough to keep the header of a panel true."""
    error = None
    if view.error is not None:
        error = {"type": words.first_line(view.error.type, 60), "message": words.first_line(view.error.message, 120)}
    owner = "" if view.owner is None or view.here else words.first_line(str(view.owner), 80)
    return {
        "status": view.status.value,
        "settled": view.settled,
        "here": view.here,
        "owner": owner,
        "alive": view.owner_alive,
        "started": millis(view.started_at),
        "ended": millis(view.ended_at),
        "changed": millis(view.changed_at),
        "done": view.done,
        "total": view.total,
        "running": view.running,
        "retrying": view.retrying,
        "failed": view.failed,
        "waiting": len(view.waits),
        "replayed": view.from_history,
        "unreached": len(view.unreached),
        "stale": view.stale,
        "failed_items": view.failed_items,
        "work": None if view.work is None else {name: getattr(view.work, name) for name in _WORK},
        "rollback": view.rollback,
        "undone": None if view.undone is None else plan_text(view.undone),
        "same": view.code_same,
        "sleeping": clock_json(view.waiting_for),
        "interrupted": _interrupted(view),
        "held": None if view.held is None else words.first_line(view.held, 160),
        "error": error,
        "version": view.version,
    }


def _interrupted(view: InstanceView) -> str | None:
    """Why it does not go on by itself; a paused one rests, whoever is gone."""
    why = view.interrupted if view.status is Status.PAUSED else view.why_interrupted
    return None if why is None else words.first_line(why, 160)


def clock_json(waiting_for: Sequence[Waiting]) -> list[Any] | None:
    """The first of what an instance waits for that is no event: its name, its kind, until when."""
    first = next((wait for wait in waiting_for if wait.kind != "event"), None)
    return None if first is None else [words.first_line(first.name, 60), first.kind, millis(first.until)]


def last_lines(total: int) -> tuple[int, int]:
    """The lines that go with a state: all, and of many the last."""
    return (0, total) if total <= FEW_ROWS else (total - FEW_ROWS // 2, total)


def state_json(view: InstanceView, page: Page, *, engine: str, seq: int, now: datetime) -> dict[str, Any]:
    """The one state: never more than 20 kB, whatever the names, prompts and values are.

    Args:
        page: lines in order of start; as many of the last ones as fit are told.
    """
    state: dict[str, Any] = {
        "seq": seq,
        "engine": engine,
        "now": millis(now),
        "workflow": view.workflow,
        "id": view.instance_id,
        "created": millis(view.created_at),
        "params": words.preview_line(view.params_preview, 200),
        "output": words.preview_line(view.output_preview, 200),
        "traceback": view.error is not None and bool(view.error.traceback),
        "place": "" if view.error is None else words.place_text(view.error),
        "code": view.code_hash[:12],
        "head": head_json(view),
        "waits": [],
        "rows": {"start": 0, "total": page.total, "items": []},
    }
    room = STATE_BYTES - size(state) - 200
    for wait in sorted(view.waits, key=_by_deadline)[:_WAITS]:
        item = wait_json(wait)
        if (room := room - size(item) - 2) < STATE_BYTES // 4:
            break
        state["waits"].append(item)
    items: list[dict[str, Any]] = []
    for index in range(len(page.lines) - 1, -1, -1):
        item = line_json(page, index)
        if (room := room - size(item) - 2) < 0:
            break
        items.append(item)
    items.reverse()
    state["rows"] = {"start": page.start + len(page.lines) - len(items), "total": page.total, "items": items}
    return state


def _by_deadline(wait: StepView) -> tuple[float, float]:
    """What is due first stands first, then what was asked first."""
    due = math.inf if wait.due_at is None else wait.due_at.timestamp()
    return due, 0.0 if wait.started_at is None else wait.started_at.timestamp()


def wait_json(step: StepView, limit: int = _SCHEMA_BYTES) -> dict[str, Any]:
    """An open wait: what the banner asks; its schema as the text of its JSON, in which every number stays as it is."""
    prompt = UNSAFE_IN_LINES.sub("�", step.prompt or "")
    schema = None if step.schema is None else json.dumps(plain(step.schema, exact=True), ensure_ascii=False)
    return {
        "name": plain(step.name),
        "count": step.count,
        "event": plain(step.event_type or ""),
        "prompt": prompt if len(prompt) <= _PROMPT else f"{prompt[: _PROMPT - 1]}…",
        "due": millis(step.due_at),
        "since": millis(step.started_at),
        "schema": schema if schema is None or len(schema.encode()) <= limit else "{}",
    }


def key_json(key: StepKey) -> list[Any]:
    """What a step is known by, as the page says it back."""
    return [key.type.value, plain(key.name), key.count, plain(key.key)]


def line_json(page: Page, place: int, opened: Collection[Name] = ()) -> dict[str, Any]:
    """One line of the list, a step, a map with its counts, or a group of steps."""
    index, (line, inside) = page.start + place, page.lines[place]
    if not isinstance(line, GroupView):
        row = row_json(index, line)
        if line.key in page.unreached:
            row["unreached"] = True
        if str(line.key) in page.abandoned:
            row["abandoned"] = True
        if line.items is not None:
            row |= {**_counts_json(line.items), "open": (line.key.type, line.name) in opened}
        return {**row, "level": 2} if inside else row
    counts = {state.value: count for state, count in line.states.items() if count}
    told = {
        "started": millis(line.started_at),
        "ended": millis(line.ended_at),
        "rate": line.rate,
        "replayed": line.from_history,
    }
    return {
        "i": index,
        "key": [line.type.value, plain(line.name), 0, None],
        "state": _state_of(line).value,
        "total": line.total,
        "counts": counts,
        "open": line.opened,
        **{name: value for name, value in told.items() if value},
    }


def _counts_json(items: ItemCounts) -> dict[str, Any]:
    told = {"finished": items.done, "running": items.running, "retrying": items.retrying, "failed": items.failed}
    counts = {name: count for name, count in told.items() if count}
    known = {name: value for name, value in (("rate", items.rate), ("gone", items.gone)) if value}
    return {"counts": counts, "total": items.total, **known}


def _state_of(group: GroupView) -> StepState:
    """The state that a group's sign shows: what goes on before what is over."""
    return next((state for state in _SHOWN if group.states.get(state)), StepState.FINISHED)


def row_json(index: int, step: StepView) -> dict[str, Any]:
    """One row of the list; what is none, false or empty is left out."""
    row = {
        "attempt": step.attempts[-1].number if step.attempts else 0,
        "limit": step.limit,
        "started": millis(step.started_at),
        "ended": millis(step.ended_at),
        "due": millis(step.due_at),
        "event": plain(step.event_type),
        "replayed": step.from_history,
        "stale": step.stale,
        "note": words.outcome_line(step, _NOTE),
        "tries": [_try_json(attempt) for attempt in step.attempts[-_TRIES:]] if len(step.attempts) > 1 else None,
        "progress": None if step.progress is None else _progress_json(step.progress),
    }
    told = {name: value for name, value in row.items() if value}
    return {"i": index, "key": key_json(step.key), "state": step.status.value, **told}


def _try_json(attempt: AttemptView) -> list[Any]:
    return [millis(attempt.started_at), millis(attempt.ended_at), attempt.status.value]


def _progress_json(progress: Progress) -> list[Any]:
    total = None if progress.total is None else plain(progress.total)
    return [plain(progress.done), total, words.first_line(str(progress.note or ""), 60)]


def at_work(view: InstanceView) -> bool:
    """Whether bodies of the instance run here, so that a culler of idle kernels must hear of it."""
    return view.here and (view.running > 0 or view.status in (Status.RUNNING, Status.ROLLING_BACK))


def millis(at: datetime | None) -> int | None:
    """Milliseconds since 1970, what a browser's clock counts."""
    return None if at is None else round(at.timestamp() * 1000)


def plain(value: Any, limit: int = 1 << 20, *, exact: bool = False) -> Any:
    """Make *value* something that JSON and a page can hold: no lone surrogates, no nan, long texts cut.

    Args:
        exact: whole numbers stay such, however large: for what goes to the page as a text.
    """
    match value:
        case None | bool():
            return value
        case str():
            text = value if len(value) <= limit else f"{value[: limit - 1]}…"
            return text.encode("utf-8", "replace").decode()
        case int():
            return value if exact or abs(value) <= 2**53 else str(value)
        case float():
            return value if math.isfinite(value) else repr(value)
        case Mapping():
            return {plain(str(name), 1_000): plain(item, limit, exact=exact) for name, item in value.items()}
        case list() | tuple():
            return [plain(item, limit, exact=exact) for item in value]
        case _:
            return plain(str(value), limit)
