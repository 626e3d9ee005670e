"""What the panel is told: the view of an instance and its steps as small JSON.

The page gets one state of at most 20 kB as often as something changes: the head, the open waits, and the rows as far as
they fit. Whatever else it shows it asks for: pages of rows, one step in full.
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from nbflow.core.model import ErrorInfo, Status, StepState
from nbflow.jupyter import words
from nbflow.store.views import AttemptView, InstanceView, StepView

STATE_BYTES = 20_000
HEAD_BYTES = 1_000
DETAIL_CHARACTERS = 64_000
FEW_ROWS = 60
"""Instances with no more steps than this are drawn from the state alone, without a question to the kernel."""

_NOTE = 140
_WAITS = 20
_PROMPT = 600
_SCHEMA_BYTES = 4_000


def size(value: object) -> int:
    """Bytes of *value* on the wire."""
    return len(json.dumps(value, ensure_ascii=False).encode())


def head_json(view: InstanceView) -> dict[str, Any]:
    """What changes of an instance, at most 1 kB: enough to keep the header of a panel true."""
    error = None
    if view.error is not None:
        error = {"type": words.first_line(view.error.type, 60), "message": words.first_line(view.error.message, 120)}
    owner = "" if view.owner is None or view.here else words.first_line(str(view.owner), 80)
    clocks = [wait for wait in view.waiting_for if wait.kind != "event"]
    sleeping = [words.first_line(clocks[0].name, 60), clocks[0].kind, millis(clocks[0].until)] if clocks else None
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
        "sleeping": sleeping,
        "interrupted": None if view.interrupted is None else words.first_line(view.interrupted, 120),
        "held": None if view.held is None else words.first_line(view.held, 120),
        "error": error,
        "version": view.version,
    }


def state_json(
    view: InstanceView, rows: Sequence[StepView], *, first: int, engine: str, seq: int, now: datetime
) -> dict[str, Any]:
    """The one state: never more than 20 kB, whatever the names, prompts and values are.

    Args:
        rows: steps in order of start; as many of the last ones as fit are told.
        first: the place of the first of them among all.
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
        "code": view.code_hash[:12],
        "head": head_json(view),
        "waits": [],
        "rows": {"start": 0, "items": []},
    }
    room = STATE_BYTES - size(state) - 200
    for wait in view.waits[:_WAITS]:
        item = wait_json(wait)
        if (room := room - size(item) - 2) < STATE_BYTES // 4:
            break
        state["waits"].append(item)
    items: list[dict[str, Any]] = []
    for index in range(len(rows) - 1, -1, -1):
        item = row_json(first + index, rows[index])
        if (room := room - size(item) - 2) < 0:
            break
        items.append(item)
    items.reverse()
    state["rows"] = {"start": first + len(rows) - len(items), "items": items}
    return state


def wait_json(step: StepView) -> dict[str, Any]:
    """An open wait: what the banner asks."""
    prompt = words.UNSAFE_IN_LINES.sub("�", step.prompt or "")
    schema = plain(step.schema)
    return {
        "name": plain(step.name),
        "count": step.count,
        "event": plain(step.event_type or ""),
        "prompt": prompt if len(prompt) <= _PROMPT else f"{prompt[: _PROMPT - 1]}…",
        "due": millis(step.due_at),
        "since": millis(step.started_at),
        "schema": schema if schema is None or size(schema) <= _SCHEMA_BYTES else {},
    }


def key_json(step: StepView) -> list[Any]:
    """What a step is known by, as the page says it back."""
    return [step.type, plain(step.name), step.count, plain(step.key.key)]


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
    }
    told = {name: value for name, value in row.items() if value}
    return {"i": index, "key": key_json(step), "state": step.status.value, **told}


def detail_json(index: int, step: StepView) -> dict[str, Any]:
    """Everything about one step."""
    return {
        "row": row_json(index, step),
        "preview": plain(step.preview, DETAIL_CHARACTERS),
        "error": error_json(step.error),
        "attempts": [attempt_json(attempt) for attempt in step.attempts[-100:]],
        "logs": plain(step.logs, DETAIL_CHARACTERS),
    }


def attempt_json(attempt: AttemptView) -> dict[str, Any]:
    """One attempt; its traceback to 4,000 characters, since there may be many."""
    error = error_json(attempt.error, 4_000)
    ended = attempt.ended_at
    seconds = None if ended is None else (ended - attempt.started_at) / timedelta(seconds=1)
    return {
        "number": attempt.number,
        "state": attempt.status.value,
        "started": millis(attempt.started_at),
        "seconds": seconds,
        "error": error,
    }


def error_json(error: ErrorInfo | None, limit: int = DETAIL_CHARACTERS) -> dict[str, Any] | None:
    """An error as the page shows it; of a long traceback the end, where the error is."""
    if error is None:
        return None
    text = plain(error.traceback)
    return {
        "type": plain(error.type, 200),
        "message": plain(error.message, limit),
        "traceback": text if len(text) <= limit else f"…{text[1 - limit :]}",
    }


def matches(step: StepView, text: str, state: StepState | None) -> bool:
    """Whether the list's filter lets *step* through."""
    if state is not None and step.status is not state:
        return False
    wanted = text.casefold()
    return not wanted or wanted in str(step.key).casefold() or wanted in words.outcome_line(step).casefold()


def at_work(view: InstanceView) -> bool:
    """Whether bodies of the instance run here, so that a culler of idle kernels must hear of it."""
    return view.here and (view.running > 0 or view.status in (Status.RUNNING, Status.ROLLING_BACK))


def millis(at: datetime | None) -> int | None:
    """Milliseconds since 1970, what a browser's clock counts."""
    return None if at is None else round(at.timestamp() * 1000)


def plain(value: Any, limit: int = 1 << 20) -> Any:
    """Make *value* something that JSON and a page can hold: no lone surrogates, no nan, long texts cut."""
    match value:
        case None | bool():
            return value
        case str():
            text = value if len(value) <= limit else f"{value[: limit - 1]}…"
            return text.encode("utf-8", "replace").decode()
        case int():
            return value if abs(value) <= 2**53 else str(value)
        case float():
            return value if math.isfinite(value) else repr(value)
        case Mapping():
            return {plain(str(name), 1_000): plain(item, limit) for name, item in value.items()}
        case list() | tuple():
            return [plain(item, limit) for item in value]
        case _:
            return plain(str(value), limit)
