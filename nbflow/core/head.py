# ruff: noqa: SLF001 - the table of kinds names methods of its own class
"""The fold of an instance's own entries: its life and its ownership, without steps and events.

Pure. Few entries make it, so lists and decisions under the lease read only these.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from nbflow.core import status as transitions
from nbflow.core.model import ENDS, FENCES, FINISHED, Entry, ErrorInfo, Kind, Owner, Status

_encode = msgspec.json.Encoder().encode

# What may be said of a finished instance without a word about its life.
_ANY_TIME = frozenset({Kind.CLAIMED, Kind.RELEASED, Kind.EVENT, Kind.DELETED})


_STOPPED = ErrorInfo("InstanceFailedError", "terminated while it was rolled back: handlers that had not ended did not run", "")


def moment(text: str | None) -> datetime | None:
    """An instant of an entry's body."""
    return None if text is None else datetime.fromisoformat(text)


def moment_text(at: datetime) -> str:
    """The same as the text in a body: as `isoformat`, which takes three times as long."""
    return f"{_encode(at)[1:-2].decode()}+00:00" if at.tzinfo is UTC else at.isoformat()


def later(at: datetime, by: timedelta) -> datetime:
    """An instant moved, as far as the calendar goes."""
    try:
        return at + by
    except OverflowError:
        return at


def error_info(body: dict[str, Any] | None) -> ErrorInfo | None:
    """The error of an entry's body."""
    if body is None:
        return None
    return ErrorInfo(body.get("type", ""), body.get("message", ""), body.get("traceback", ""))


@dataclass(slots=True)
class Head:
    """What is known of an instance without its steps and events.

    Attributes:
        generation: how often it was restarted.
        deaths: activations in a row that died without a step that ended well (S27).
        redone: how often steps that counted were dropped to run again: restarts, and retries after a rollback or of maps.
    """

    created_seq: int = 0
    workflow: str = ""
    instance_id: str = ""
    created_at: datetime | None = None
    params: bytes = b""
    body: dict[str, Any] = field(default_factory=dict)
    token: int = 0
    owner: Owner | None = None
    status: Status = Status.QUEUED
    started_at: datetime | None = None
    ended_at: datetime | None = None
    changed_at: datetime | None = None
    code_hash: str = ""
    reach: str = ""
    notebook: str = ""
    activation: int = 0
    output: bytes | None = None
    output_body: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    rollback: tuple[str, ErrorInfo | None] | None = None
    interrupted: str | None = None
    deleted: bool = False
    in_activation: bool = False
    deaths: int = 0
    progressed: bool = False
    paused_at: datetime | None = None
    generation: int = 0
    redone: int = 0
    terminating: bool = False
    rolling_back: bool = False

    @property
    def finished(self) -> bool:
        """Complete, errored or terminated."""
        return self.status in FINISHED

    @property
    def released(self) -> bool:
        """Whether an engine that had it let it go in order, and none has it now."""
        return self.owner is None and self.token > 0

    def counts(self, entry: Entry) -> bool:
        """Whether *entry* is of the present claim, a fence or somebody's word: anything else is of an owner gone (S52)."""
        return entry.token in (0, self.token) or (entry.kind in FENCES and entry.token > self.token)

    def apply(self, entry: Entry) -> bool:
        """Fold one entry in; False where it does not count."""
        kind = entry.kind
        if entry.step is not None and entry.token == self.token and not self.deleted:  # nearly every entry
            if kind in ENDS:
                self.progressed = True
            return True
        if kind is Kind.CREATED:
            self._create(entry)
            return True
        if self.deleted or not self.counts(entry):
            return False
        if self.finished and entry.step is None and kind not in _ANY_TIME and (self.status, kind) not in transitions.TABLE:
            return False  # an end after the end
        if kind in FENCES:
            self.token = entry.token
        if entry.step is not None:
            if kind in ENDS:
                self.progressed = True
            return True
        self.changed_at = entry.recorded_at
        if transitions.is_void(self.status, kind):
            return True
        self.status = transitions.after(self.status, kind)
        _ON.get(kind, _nothing)(self, entry)
        return True

    def _create(self, entry: Entry) -> None:
        body = entry.body
        self.created_seq = entry.seq or entry.created_seq
        self.workflow, self.instance_id = body["workflow"], body["id"]
        self.created_at = self.changed_at = entry.recorded_at
        self.params, self.body = entry.value or b"", body
        self.code_hash, self.notebook = body.get("code_hash", ""), body.get("notebook", "")

    def _claimed(self, entry: Entry) -> None:
        body = entry.body
        self.owner = Owner(body["engine"], body["pid"], body["host"], body["folder"], body.get("notebook", ""))
        self.notebook = body.get("notebook", "") or self.notebook
        if self.in_activation:  # nobody said that it ended: its process died (S27)
            self.deaths = 0 if self.progressed else self.deaths + 1
        self.in_activation = False
        if body.get("by") == "resume":  # the user's word that it may try again
            self.deaths = 0

    def _activated(self, entry: Entry) -> None:
        before = self.code_hash, self.reach
        self.code_hash = entry.body.get("code_hash", self.code_hash)
        self.reach = entry.body.get("reach", "")
        if before != (self.code_hash, self.reach):
            self.deaths = 0  # what killed the kernel may be mended
        self.activation = entry.body.get("number", self.activation + 1)
        self.started_at = self.started_at or entry.recorded_at
        self.in_activation, self.progressed = True, False
        self.interrupted = None

    def _released(self, _entry: Entry) -> None:
        self.owner, self.in_activation = None, False

    def _paused(self, entry: Entry) -> None:
        self.in_activation = False
        self.paused_at = entry.recorded_at

    def _resumed(self, _entry: Entry) -> None:
        self.paused_at = None

    def _completed(self, entry: Entry) -> None:
        self.output, self.output_body = entry.value, entry.body
        self._ended(entry)

    def _errored(self, entry: Entry) -> None:
        self.error = entry.body.get("error")
        self._ended(entry)

    def _ended(self, entry: Entry) -> None:
        self.ended_at, self.in_activation, self.interrupted, self.rolling_back = entry.recorded_at, False, None, False
        if (rollback := entry.body.get("rollback")) is not None:
            self.rollback = (rollback[0], error_info(rollback[1]))

    def _terminated(self, entry: Entry) -> None:
        stopped = self.rolling_back
        self._ended(entry)
        self.error = None
        if stopped and self.rollback is None:  # at once: what its handlers still had to undo is not undone (S43, S48)
            self.rollback = ("failed", _STOPPED)

    def _rolling_back(self, entry: Entry) -> None:
        self.error, self.rolling_back = entry.body.get("error"), True
        self.terminating = bool(entry.body.get("terminate"))  # as it was recorded before there was `terminating`

    def _terminating(self, _entry: Entry) -> None:
        self.error, self.terminating, self.rolling_back, self.in_activation, self.deaths = None, True, True, False, 0

    def _retried(self, entry: Entry) -> None:
        if entry.kind is Kind.RESTARTED or entry.body.get("keep_below") is not None:
            self.redone += 1
        self.error, self.ended_at, self.rollback, self.deaths = None, None, None, 0
        self.output, self.output_body, self.terminating, self.rolling_back = None, {}, False, False

    def _restarted(self, entry: Entry) -> None:
        self._retried(entry)
        self.generation += 1
        self.in_activation = False
        self.started_at, self.interrupted = None, None

    def _interrupted(self, entry: Entry) -> None:
        self.interrupted, self.in_activation = entry.body.get("why", ""), False

    def _deleted(self, _entry: Entry) -> None:
        self.deleted, self.in_activation = True, False


def _nothing(_head: Head, _entry: Entry) -> None:
    """Most kinds change nothing but the status."""


_ON = {
    Kind.CLAIMED: Head._claimed,
    Kind.RELEASED: Head._released,
    Kind.ACTIVATED: Head._activated,
    Kind.PAUSED: Head._paused,
    Kind.ROLLING_BACK: Head._rolling_back,
    Kind.TERMINATING: Head._terminating,
    Kind.RESUMED: Head._resumed,
    Kind.COMPLETED: Head._completed,
    Kind.ERRORED: Head._errored,
    Kind.TERMINATED: Head._terminated,
    Kind.RETRIED: Head._retried,
    Kind.RESTARTED: Head._restarted,
    Kind.INTERRUPTED: Head._interrupted,
    Kind.DELETED: Head._deleted,
}


def fold_head(entries: Iterable[Entry]) -> Head:
    """The head of one instance from its entries (those of steps may be left out)."""
    head = Head()
    for entry in entries:
        head.apply(entry)
    return head
