"""What a page asks for beside the state: one step in full, entries, the log, the workflow's instances."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from nbflow.core.head import Head
from nbflow.core.log import LogItem
from nbflow.core.model import Entry, ErrorInfo, Kind, Owner, Status, StepKey
from nbflow.jupyter import words
from nbflow.jupyter.snapshot import clock_json, key_json, millis, plain, row_json
from nbflow.store.views import AT_WORK, AttemptView, StepView

if TYPE_CHECKING:
    from nbflow.engine.instance import WorkflowInstance

DETAIL_CHARACTERS = 64_000
LOG_CHARACTERS = 200_000
_LOG_ITEMS = 500
_ITEM_MIMES = ("image/png", "text/html", "text/plain")
_ENTRY_NOTE = 300


def detail_json(index: int, step: StepView) -> dict[str, Any]:
    """Everything about one step."""
    return {
        "row": row_json(index, step),
        "preview": plain(step.preview, DETAIL_CHARACTERS),
        "error": error_json(step.error),
        "attempts": [attempt_json(attempt) for attempt in step.attempts[-100:]],
        "log": log_json(step.log),
        "code": plain(step.code, DETAIL_CHARACTERS),
        "diff": plain(step.code_diff, DETAIL_CHARACTERS),
        "why": [plain(why, 200) for why in step.stale_why],
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


def log_json(items: Sequence[LogItem], keys: Sequence[StepKey] | None = None) -> dict[str, Any]:
    """The last items of a log, oldest first, and how many there are in all; *keys*: the step of each."""
    told: list[dict[str, Any]] = []
    room = LOG_CHARACTERS
    for place in range(len(items) - 1, max(-1, len(items) - 1 - _LOG_ITEMS), -1):
        one = _item_json(items[place], room)
        room -= len(one["text"]) + sum(map(len, one.get("mime", {}).values()))
        if room < 0 and told:
            break
        told.append(one if keys is None else {**one, "step": key_json(keys[place])})
    return {"total": len(items), "items": told[::-1]}


def _item_json(item: LogItem, room: int) -> dict[str, Any]:
    told = {
        "attempt": item.attempt,
        "stream": item.stream,
        "at": millis(item.at),
        "text": plain(item.text, min(room, DETAIL_CHARACTERS)),
    }
    mime = item.mime or {}
    shown = {name: mime[name] for name in _ITEM_MIMES if name in mime}
    kept = {name: plain(content) for name, content in shown.items() if isinstance(content, str) and len(content) <= room}
    return {**told, "mime": kept} if kept else told


def entry_json(entry: Entry, place: int) -> dict[str, Any]:
    """One entry of the history as a line."""
    key = entry.step_key
    return {
        "place": place,
        "at": millis(entry.recorded_at),
        "kind": entry.kind.value,
        "step": "" if key is None else plain(str(key), 200),
        "by": plain(str(entry.body.get("by") or ""), 200),
        "note": _entry_note(entry),
    }


def _entry_note(entry: Entry) -> str:
    """What an entry says beside its kind, in one line."""
    body = entry.body
    match entry.kind:
        case Kind.CLAIMED:
            return words.first_line(
                str(Owner("", body.get("pid", 0), body.get("host", ""), "", body.get("notebook", ""))), _ENTRY_NOTE
            )
        case Kind.EVENT:
            return words.first_line(f"{body.get('type', '')} {words.preview_line(body.get('preview'))}", _ENTRY_NOTE)
        case Kind.SLEEP_STARTED | Kind.WAIT_STARTED:
            return words.first_line(
                f"until {body.get('due_at', '')[:19]} UTC {body.get('event_type', '')}".strip(), _ENTRY_NOTE
            )
        case Kind.RESTARTED:
            return "from the start" if not body.get("keep_below") else f"steps before number {body['keep_below']} kept"
    error = body.get("error")
    if isinstance(error, dict):
        return words.first_line(f"{error.get('type', '')}: {error.get('message', '')}", _ENTRY_NOTE)
    attempt = f"attempt {body['attempt']}" if body.get("attempt", 1) > 1 else ""
    told = [attempt, words.preview_line(body.get("preview")), str(body.get("why") or "")]
    return words.first_line(" · ".join(filter(None, told)), _ENTRY_NOTE)


def _is_left(inst: "WorkflowInstance", head: Head) -> bool:
    """Whether the engine that ran it is known to be gone: dead, or ended in order with it at work."""
    if head.owner is None:
        return head.released and head.status in AT_WORK
    return inst.engine.store.alive(head.owner) is False


def instance_json(inst: "WorkflowInstance", head: Head) -> dict[str, Any]:
    """One line of a workflow's history, from its head alone."""
    live = inst.engine.live.get(head.created_seq)
    status = head.status if live is None else live.status()
    gone = live is None and not head.finished and _is_left(inst, head)
    waiting = {}
    if live is not None and status is Status.WAITING:
        with live.lock:
            waiting = {"waiting": len(live.history.open_waits()), "sleeping": clock_json(live.history.waiting_for())}
    return {
        "seq": head.created_seq,
        "id": plain(head.instance_id, 256),
        "status": status.value,
        **waiting,
        "interrupted": gone or head.interrupted is not None,
        "created": millis(head.created_at),
        "started": millis(head.started_at),
        "ended": millis(head.ended_at),
        "params": words.preview_line(head.body.get("preview"), 200),
        "error": "" if head.error is None else words.first_line(f"{head.error.get('type')}: {head.error.get('message')}", 200),
        "this": head.created_seq == inst.created_seq,
    }
