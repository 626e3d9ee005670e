"""Fold entries: what is known of an instance and of each of its steps.

Pure. `Head` (in `head.py`) is the fold of an instance's own entries, `History` adds steps and events. The state in memory
is always this fold, for the engine that runs an instance as for everybody else.
"""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Any

from nbflow.core.head import Head, error_info, fold_head, later, moment
from nbflow.core.items import HANDED, Items, stream_key
from nbflow.core.maps import ITEM_KINDS, apply_item, describe, named_map, reopen
from nbflow.core.model import (
    CANCELS,
    ENDS,
    FAILURES,
    Entry,
    Kind,
    Status,
    StepKey,
    StepState,
    StepType,
    Waiting,
)
from nbflow.core.records import Attempt, EventRecord, StepRecord

OPEN_STATES = {StepState.RUNNING, StepState.RETRYING, StepState.SLEEPING, StepState.WAITING}
_ENDED = frozenset({StepState.FINISHED, StepState.FAILED})
# What nearly every entry asks for: looked up on its class, a member costs Python 3.11 as much as a call.
_RUNNING, _FINISHED, _MAP, _ROLLBACK = StepState.RUNNING, StepState.FINISHED, StepType.MAP, StepType.ROLLBACK
_WAIT_FINISHED = Kind.WAIT_FINISHED
_STARTS = frozenset({Kind.DO_STARTED, Kind.ROLLBACK_STARTED})
_INTERRUPTIONS = frozenset({Kind.DO_INTERRUPTED, Kind.ROLLBACK_INTERRUPTED})


class History:
    """The fold of all entries of one instance.

    Attributes:
        head: life and ownership.
        steps: every step recorded, by key, in order of first start.
        delivered: keys of steps that ended with a value or a failure, in the order of their end entries, and for each value
            that the stream of a map handed on its `stream_key` (S20).
        events: everything sent to it.
        left: the last entry's body of child steps that failed and were dropped by a retry: their next call takes up the
            child that it names (S60).
        replayed: steps that had ended before the present activation began: its "from history".
        version: rises with each entry that counts.
        uncalled: steps that have not ended and that the present activation has not called, as far as the engine which runs
            it says so; no part of the fold. Such steps keep what is recorded of them, but nothing waits for them (S9).
        resting: maps of which nothing runs before then, for their rate; no part of the fold either.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.head = Head()
        self.steps: dict[StepKey, StepRecord] = {}
        self.delivered: list[StepKey] = []
        self.events: dict[str, EventRecord] = {}
        self.left: dict[StepKey, dict[str, Any]] = {}
        self.replayed: frozenset[StepKey] = frozenset()
        self.uncalled: AbstractSet[StepKey] = frozenset()
        self.resting: dict[StepKey, datetime] = {}
        self.last_order = 0
        self.version = 0
        for entry in entries:
            self.apply(entry)

    def apply(self, entry: Entry, key: StepKey | None = None) -> bool:
        """Fold one entry in, of the step *key* where the caller knows it; False where it does not count.

        It does not where it is of an owner gone, or an end after the end.
        """
        if not self.head.apply(entry):
            return False
        self.version += 1
        kind = entry.kind
        if entry.step is not None:
            self.apply_step(entry, key)
        elif kind is Kind.EVENT:
            self._apply_event(entry)
        elif kind is Kind.SET_ASIDE:
            if (event := self.events.get(entry.body.get("event_id", ""))) is not None:
                event.set_aside = entry.body.get("why", "")
        elif kind is Kind.ACTIVATED:
            self.replayed = frozenset(key for key in self.delivered if key.key != HANDED)
        elif kind is Kind.RESTARTED:
            self._restart(entry)
        elif kind is Kind.RETRIED:
            self._retry(entry)
        elif kind is Kind.RESUMED:
            self._shift(entry.body.get("shift_s", 0.0))
        elif kind in (Kind.CLAIMED, Kind.TERMINATING, Kind.TERMINATED):
            self._interrupt_attempts(entry.recorded_at)
        return True

    def open_steps(self) -> list[StepRecord]:
        """Steps that started, have not ended and are called by the present code, as far as that is known."""
        return [step for step in self.steps.values() if step.state in OPEN_STATES and step.key not in self.uncalled]

    def open_waits(self, event_type: str | None = None) -> list[StepRecord]:
        """Waits that an event would end, of that type or of any, those left out which an event that is there will (S34).

        None while it is rolled back: what waits then never returns (S49).
        Each event ends one wait of its type, the first by order (S35).
        """
        rolls_back = self.head.status is Status.ROLLING_BACK
        waits = [] if rolls_back else [step for step in self.open_steps() if step.event_type is not None]
        if event_type is not None:
            waits = [step for step in waits if step.event_type == event_type]
        free = Counter(event.type for event in self.events.values() if event.free) if waits else None
        if not free:
            return waits
        left = []
        for step in sorted(waits, key=lambda step: step.order):
            free[step.event_type or ""] -= 1
            if free[step.event_type or ""] < 0:
                left.append(step)
        return left

    def waiting_for(self) -> tuple[Waiting, ...]:
        """What the instance waits for, as far as its entries say."""
        asked = {step.key for step in self.open_waits()}
        return tuple(
            Waiting(step.key.name, _kind_of_wait(step), step.due_at or self.resting.get(step.key), step.event_type)
            for step in self.open_steps()
            if (step.state in _WAITS or step.key in self.resting) and (step.event_type is None or step.key in asked)
        )

    def buffered(self, event_type: str) -> list[EventRecord]:
        """Events of that type that no wait has taken, first to be taken first: those in the file, then our own (S34)."""
        waiting = [event for event in self.events.values() if event.type == event_type and event.free]
        return sorted(waiting, key=lambda event: (event.seq == 0, event.seq))

    def known(self, key: StepKey, entry: Entry) -> StepRecord:
        """The record of a step, made where this is the first entry of it."""
        if (step := self.steps.get(key)) is None:
            order = entry.body.get("order", 0)
            started = moment(entry.body.get("started_at")) or entry.recorded_at
            step = self.steps[key] = StepRecord(key, order, _RUNNING, started, entry.recorded_at)
            self.last_order = max(self.last_order, order)
            if key.type is _MAP:
                step.items = Items()
        return step

    def apply_step(self, entry: Entry, key: StepKey | None = None) -> None:
        """Fold in the entry of a step, *key* where the caller knows it."""
        if entry.key is not None and entry.kind in ITEM_KINDS:
            apply_item(self, entry)
            return
        key = key or entry.step_key
        assert key is not None
        body, kind = entry.body, entry.kind
        step = self.steps.get(key) or self.known(key, entry)
        if step.state in _ENDED:
            return  # an end after the end (a cancel that came too late) changes nothing
        step.changed_at = entry.recorded_at
        step.config = body.get("config", step.config)
        step.code_hash = body.get("code_hash", step.code_hash)
        step.parent = body.get("parent", step.parent)
        if (attempt := body.get("attempt")) is not None:
            self._attempt(step, attempt, entry)
        step.rollback = body.get("rollback", step.rollback)
        step.sensitive = body.get("sensitive", step.sensitive)
        if step.items is not None:
            describe(self, step, body)
        if kind in ENDS:
            step.state, step.value, step.error = _FINISHED, entry.value, None
            self._end(step, entry)
            self._hand_out(step.key)
            if kind is _WAIT_FINISHED:
                step.event_type = body.get("event_type", step.event_type)
                self._take(body.get("event_id"), step, entry)
        elif kind in FAILURES:
            step.state, step.error, step.value = StepState.FAILED, body.get("error"), entry.value
            self._end(step, entry)
            self._hand_out(step.key)
        elif kind in CANCELS:
            step.state = StepState.CANCELLED
            self._end(step, entry)
            if step.items is not None:
                step.items.interrupt(0)
        else:
            _OPENED[kind](step, entry)

    def _hand_out(self, key: StepKey) -> None:
        """Its result goes to `run` in this place of the order (S20); rollback handlers have nobody to give theirs to."""
        if key.type is not _ROLLBACK:
            self.delivered.append(key)

    def _attempt(self, step: StepRecord, number: int, entry: Entry) -> None:
        last = step.attempts[-1] if step.attempts else None
        if last is None or last.number != number:
            started = moment(entry.body.get("started_at")) or entry.recorded_at
            last = Attempt(number, _RUNNING, started)
            step.attempts.append(last)
            if entry.body.get("anew"):  # under new code those before it count no more (S58)
                step.failures = 0
        step.attempt = number
        if entry.kind in _STARTS:
            return
        last.ended_at = entry.recorded_at
        last.error = entry.body.get("error")
        if entry.kind in ENDS:
            last.state = _FINISHED
        elif entry.kind in CANCELS:
            last.state = StepState.CANCELLED
        elif entry.kind in _INTERRUPTIONS:
            last.state = StepState.INTERRUPTED
        else:
            last.state = StepState.FAILED
            step.failures += 1

    def _end(self, step: StepRecord, entry: Entry) -> None:
        step.ended_at, step.body, step.due_at = entry.recorded_at, entry.body, None

    def _take(self, event_id: str | None, step: StepRecord, entry: Entry) -> None:
        event = self.events.get(event_id or "")
        if event is not None and event.taken_by is None:  # one event serves one wait (S34)
            event.taken_by, event.taken_at = step.key, entry.recorded_at

    def _apply_event(self, entry: Entry) -> None:
        body = entry.body
        event_id = body["event_id"]
        if (known := self.events.get(event_id)) is not None:
            known.seq = known.seq or entry.seq
            return
        self.events[event_id] = EventRecord(
            event_id, body["type"], entry.recorded_at, body.get("by", ""), entry.value or b"", entry.seq, body
        )

    def _keep_below(self, order: int) -> None:
        self.left = {}
        self.drop([key for key, step in self.steps.items() if step.order >= order])
        self.last_order = max((step.order for step in self.steps.values()), default=0)

    def drop(self, keys: list[StepKey]) -> None:
        """These steps no longer count."""
        dropped = {*keys, *(stream_key(key) for key in keys if key.type is StepType.MAP)}
        for key in keys:
            del self.steps[key]
        self.delivered = [key for key in self.delivered if key not in dropped]

    def _restart(self, entry: Entry) -> None:
        self._keep_below(entry.body.get("keep_below", 0))
        if entry.body.get("keep_below"):
            self._give_back()
        else:
            self.events = {}
        if (item := entry.body.get("item")) is not None:
            reopen(self, StepKey(StepType.MAP, item[0], item[1]), [item[2]])
        self._interrupt_attempts(entry.recorded_at)

    def _retry(self, entry: Entry) -> None:
        if (below := entry.body.get("keep_below")) is not None:
            self._keep_below(below)  # rolled back: all from the first undone step on no longer counts as done (S48)
            self._give_back()
        for name in entry.body.get("maps", ()):
            reopen(self, named_map(name))
        if (undone := entry.body.get("undone")) is not None:
            reopen(self, named_map(undone["map"]), undone["keys"])
        fallen = [key for key, step in self.steps.items() if _falls(step)]
        self.left |= {key: self.steps[key].body for key in fallen if key.type is StepType.CHILD}
        self.drop(fallen)

    def _give_back(self) -> None:
        """After a restart from a step: events that no kept wait has taken stay, free to be taken (S44)."""
        for event in self.events.values():
            if event.taken_by not in self.steps:
                event.taken_by = event.taken_at = None

    def _shift(self, seconds: float) -> None:
        if not seconds:
            return
        for step in self.steps.values():
            if step.state not in OPEN_STATES:
                continue
            if step.items is not None:
                step.items.shift(timedelta(seconds=seconds))
            if step.due_at is not None and not step.body.get("fixed"):
                step.due_at = later(step.due_at, timedelta(seconds=seconds))

    def _interrupt_attempts(self, at: datetime) -> None:
        """Behind a fence no end of a body in flight is heard: interrupted, not counted against the limit (S27, S43)."""
        for step in self.steps.values():
            if step.items is not None and step.state is StepState.RUNNING:
                step.state = StepState.INTERRUPTED
                if step.items.interrupt(self.head.activation):
                    step.died_in = self.head.activation
            elif step.state is StepState.RUNNING and step.key.type in (StepType.DO, StepType.ROLLBACK):
                step.state, step.died_in = StepState.INTERRUPTED, self.head.activation
                if step.attempts and step.attempts[-1].state is StepState.RUNNING:
                    step.attempts[-1].state = StepState.INTERRUPTED
                    step.attempts[-1].ended_at = at


def _opened_do(step: StepRecord, entry: Entry) -> None:
    step.state, step.due_at, step.body = _RUNNING, None, entry.body


def _opened_map(step: StepRecord, entry: Entry) -> None:
    assert step.items is not None
    step.body = entry.body
    step.state, step.due_at = step.items.doing()  # a replay calls it again while its items wait for their next attempts


def _retrying(step: StepRecord, entry: Entry) -> None:
    step.state, step.body = StepState.RETRYING, entry.body
    step.error, step.due_at = entry.body.get("error"), moment(entry.body.get("retry_at"))


def _interrupted(step: StepRecord, entry: Entry) -> None:
    step.state, step.body = StepState.INTERRUPTED, entry.body


def _opened_sleep(step: StepRecord, entry: Entry) -> None:
    step.state, step.due_at, step.body = StepState.SLEEPING, moment(entry.body["due_at"]), entry.body


def _opened_wait(step: StepRecord, entry: Entry) -> None:
    step.state, step.due_at, step.body = StepState.WAITING, moment(entry.body["due_at"]), entry.body
    step.event_type = entry.body["event_type"]


def _opened_child(step: StepRecord, entry: Entry) -> None:
    step.state, step.due_at, step.body = StepState.WAITING, None, entry.body


def _falls(step: StepRecord) -> bool:
    """Whether `retry_failed` drops it: failed steps, and what rollback handlers left (S41, S48)."""
    return step.state is StepState.FAILED or step.key.type is StepType.ROLLBACK


_OPENED = {
    Kind.DO_STARTED: _opened_do,
    Kind.ROLLBACK_STARTED: _opened_do,
    Kind.DO_RETRYING: _retrying,
    Kind.ROLLBACK_RETRYING: _retrying,
    Kind.DO_INTERRUPTED: _interrupted,
    Kind.ROLLBACK_INTERRUPTED: _interrupted,
    Kind.SLEEP_STARTED: _opened_sleep,
    Kind.WAIT_STARTED: _opened_wait,
    Kind.CHILD_STARTED: _opened_child,
    Kind.MAP_STARTED: _opened_map,
    Kind.MAP_RETRYING: _opened_do,  # only items are retried or interrupted
    Kind.MAP_INTERRUPTED: _opened_do,
}

_WAITS = {StepState.WAITING: "event", StepState.SLEEPING: "sleep", StepState.RETRYING: "retry"}


def _kind_of_wait(step: StepRecord) -> str:
    return "child" if step.key.type is StepType.CHILD else _WAITS.get(step.state, "rate")


def _wanted(history: History, steps: Iterable[StepRecord]) -> bool:
    """Whether an event is there that one of these waits will take."""
    types = {step.event_type for step in steps if step.event_type is not None and step.state is StepState.WAITING}
    return any(history.buffered(event_type) for event_type in types)


def settled(history: History, *, but_for_children: bool = False) -> bool:
    """Whether an unfinished instance waits, on every path, for an event that nobody has sent (API.md §3).

    With *but_for_children* a path may also wait for a child: then it hangs on whether that one is settled.
    """
    steps = history.open_steps()
    types = (StepType.WAIT, StepType.CHILD) if but_for_children else (StepType.WAIT,)
    waits = all(step.key.type in types and step.state is StepState.WAITING for step in steps)
    return bool(steps) and waits and not _wanted(history, steps)


def status_of(history: History) -> Status:
    """The status that entries alone tell: running becomes waiting while everything open waits (S5)."""
    status = history.head.status
    if status is not Status.RUNNING:
        return status
    steps = history.open_steps()
    if not steps or any(step.state is StepState.RUNNING and step.key not in history.resting for step in steps):
        return status
    return Status.RUNNING if _wanted(history, steps) else Status.WAITING


__all__ = [
    "Attempt",
    "EventRecord",
    "Head",
    "History",
    "StepRecord",
    "error_info",
    "fold_head",
    "moment",
    "settled",
    "status_of",
]
