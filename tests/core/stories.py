"""Entries for tests: any well-formed ones, and a pen that writes the history of one instance as an engine would."""

import copy
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from nbflow.core.history import History
from nbflow.core.model import FENCES, Entry, Kind

START = datetime(2030, 1, 1, tzinfo=UTC)
ERROR = {"type": "ValueError", "message": "no", "traceback": "Cell [1], line 1"}


def seconds(number: float) -> datetime:
    return START + timedelta(seconds=number)


def body_of(kind: Kind, **given) -> dict:
    """A body with what its kind must carry (core/model.py)."""
    order = {"order": given.pop("order", 1)}
    attempt = {**order, "attempt": given.pop("attempt", 1)}
    due = given.pop("due_at", seconds(1000).isoformat())
    event = {"event_id": given.pop("event_id", "e1"), "event_type": given.pop("event_type", "go")}
    required = {
        Kind.CREATED: {"workflow": "Ingest", "id": "a"},
        Kind.CLAIMED: {"engine": "e", "pid": 1, "host": "h", "folder": "1:2", "notebook": "a.ipynb"},
        Kind.ACTIVATED: {"code_hash": "c", "number": 1},
        Kind.RESUMED: {"shift_s": 5.0},
        Kind.RESTARTED: {"keep_below": 0},
        Kind.ROLLING_BACK: {"error": ERROR},
        Kind.ERRORED: {"error": ERROR, "rollback": None},
        Kind.INTERRUPTED: {"why": "needs class Doc"},
        Kind.EVENT: {"event_id": event["event_id"], "type": event["event_type"], "by": "me"},
        Kind.DO_STARTED: {**attempt, "config": {"retries": {"limit": 5}}},
        Kind.DO_RETRYING: {**attempt, "error": ERROR, "retry_at": due},
        Kind.DO_INTERRUPTED: attempt,
        Kind.DO_FINISHED: attempt,
        Kind.DO_FAILED: {**attempt, "error": ERROR},
        Kind.DO_CANCELLED: attempt,
        Kind.SLEEP_STARTED: {**order, "due_at": due},
        Kind.SLEEP_FINISHED: order,
        Kind.SLEEP_CANCELLED: order,
        Kind.WAIT_STARTED: {**order, "due_at": due, "event_type": event["event_type"]},
        Kind.WAIT_FINISHED: {**order, **event},
        Kind.WAIT_FAILED: {**order, "error": ERROR},
        Kind.WAIT_CANCELLED: order,
    }
    return {**required.get(kind, {}), **given}


def entry(kind: Kind, token: int, at: float, seq: int, step=None, count=None, value=None, **body) -> Entry:
    return Entry(kind, 1, token, seconds(at), step, count, None, body_of(kind, **body), value, seq)


@st.composite
def any_entries(draw, max_size: int = 25, tokens: int = 4):
    """A created entry and any well-formed ones after it, in an order no engine would write."""
    entries = [entry(Kind.CREATED, 0, 0, 1, value=b"{}")]
    kinds = st.sampled_from([kind for kind in Kind if kind is not Kind.CREATED])
    for seq, kind in enumerate(draw(st.lists(kinds, max_size=max_size)), 2):
        body = {}
        step = count = None
        if "." in kind:
            step, count = draw(st.sampled_from("ab")), draw(st.integers(1, 2))
            body = {"order": draw(st.integers(1, 6))} | ({"attempt": draw(st.integers(1, 3))} if kind.startswith("do") else {})
        if kind in (Kind.EVENT, Kind.WAIT_FINISHED, Kind.WAIT_STARTED):
            body |= {"event_type": draw(st.sampled_from(["go", "stop"]))}
        if kind in (Kind.EVENT, Kind.WAIT_FINISHED):
            body |= {"event_id": draw(st.sampled_from(["e1", "e2", "e3"]))}
        if kind is Kind.RESTARTED:
            body = {"keep_below": draw(st.integers(0, 6))}
        value = b"1" if kind in (Kind.EVENT, Kind.DO_FINISHED, Kind.WAIT_FINISHED, Kind.COMPLETED) else None
        token = draw(st.integers(0, tokens))
        if kind in FENCES:
            token += 1
        entries.append(entry(kind, token, seq, seq, step, count, value, **body))
    return entries


def known(history: History) -> dict:
    """All that a history knows, for comparing; its version only counts."""
    return copy.deepcopy({name: value for name, value in vars(history).items() if name != "version"})


class Pen:
    """Writes entries of one instance with the token, order and time that an engine would give them."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.token = 0
        self.order = 0
        self.write(Kind.CREATED, value=b"{}")
        self.claim()

    def write(self, kind: Kind, step: str | None = None, token: int | None = None, value: bytes | None = None, **body) -> Entry:
        at = len(self.entries)
        made = entry(kind, self.token if token is None else token, at, at + 1, step, None if step is None else 1, value, **body)
        self.entries.append(made)
        return made

    def claim(self) -> None:
        self.token += 1
        self.write(Kind.CLAIMED)
        self.write(Kind.ACTIVATED, number=self.token)

    def restart(self, keep_below: int) -> None:
        self.token += 1
        self.write(Kind.RESTARTED, keep_below=keep_below)

    def start(self, kind: Kind, name: str, **body) -> int:
        self.order += 1
        self.write(kind, name, order=self.order, **body)
        return self.order

    def event(self, event_id: str, event_type: str = "go") -> None:
        self.write(Kind.EVENT, token=0, value=event_id.encode(), event_id=event_id, event_type=event_type)

    def history(self) -> History:
        return History(self.entries)
