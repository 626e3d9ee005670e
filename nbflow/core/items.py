"""What is known of the items of one map: a few bytes for each that has ended, a record for each that is open.

Pure. Values and errors of ended items are not kept here: 100,000 of them would not be small. Whoever shows or collects them
reads them from the store, by `key` and the `token` under which they ended.
"""

from array import array
from collections import deque
from collections.abc import Container, Iterator
from datetime import datetime, timedelta
from typing import Any

from nbflow.core.head import later, moment
from nbflow.core.model import CANCELS, ENDS, FAILURES, Entry, Kind, StepKey, StepState, StepType
from nbflow.core.open_item import OpenItem

HANDED = "\0"
"""The key under which the values of a stream are handed out; no item's key has a control character."""

_RECENT = 64
_MOST_CODES = 60_000  # of the items of one map: nobody edits them so often
_UNKNOWN, _OPEN, _FINISHED, _FAILED, _DISCARDED = range(5)


def stream_key(key: StepKey) -> StepKey:
    """What stands in the order of deliveries for each value that the stream of a map hands on (S20)."""
    return StepKey(StepType.MAP, key.name, key.count, HANDED)


class Items:
    """The fold of the entries of one map's items.

    Attributes:
        total: how many there are, None where that is not known yet.
        open: those that have started and not ended, by key.
        done, failed: how many have ended so.
        gone: how many of each were not among the items any more when the map ended: they are recorded, and nobody has them.
        starts: when the last attempts began, as many as a rate allows in its period.
        ends: when the last ones ended.
        handed: how many values a stream has handed on; which those were after the first ones, by slot, where key= names items.
        order_at_end: the highest order in the instance when the map ended: what is above it started later.
        order_at_failure: the same when its first item failed for good, None where none has.
    """

    def __init__(self) -> None:
        self.total: int | None = None
        self.open: dict[str, OpenItem] = {}
        self.done = self.failed = 0
        self.gone: tuple[int, int] = (0, 0)
        self.starts: deque[float] = deque(maxlen=0)
        self.ends: deque[datetime] = deque(maxlen=_RECENT)
        self.handed = 0
        self.handed_slots = array("l")
        self.order_at_end = 0
        self.order_at_failure: int | None = None
        self._waiting = 0
        self._named = bytearray()  # which were last recorded under key=, the others under their index
        self._slots: dict[str, int] | None = None
        self._keys: list[str] = []
        self._states = bytearray()
        self._tokens = array("l")
        self._hashes = array("Q")
        self._codes = array("H")  # which of `_marks` each ended under, 0 where that was not recorded
        self._marks: list[dict[str, Any]] = [{}]
        self._activations = array("L")  # in which of the instance each ended
        self._indexes = array("l")  # of keyed items alone: the key of the others says it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Items) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def suspicious(self) -> bool:
        """Whether any that is open was cut off by a death (S27)."""
        return any(item.died_in for item in self.open.values())

    def state(self, key: str) -> StepState | None:
        """Where an item stands; None where nothing (that counts) is recorded of it."""
        if (known := self.open.get(key)) is not None:
            return known.state
        match self._of(key):
            case 2 | 4:
                return StepState.FINISHED
            case 3:
                return StepState.FAILED
        return None

    def ended(self, key: str) -> bool:
        """Whether it has finished or failed for good."""
        return self._of(key) >= _FINISHED

    def is_failed(self, key: str) -> bool:
        """Whether it has failed for good."""
        return self._of(key) == _FAILED

    def discarded(self, key: str) -> bool:
        """Whether it has finished and its value was not kept."""
        return self._of(key) == _DISCARDED

    @property
    def order_seen(self) -> int:
        """The highest order of what cannot have seen its failed items: a stream hands them on before the map ends."""
        return self.order_at_end if not self.handed or self.order_at_failure is None else self.order_at_failure

    def hash(self, key: str) -> str:
        """The fingerprint of the item as it was when it ended, empty where there is none (S57)."""
        slot = self._slot(key)
        return f"{self._hashes[slot]:016x}" if slot is not None and self._hashes[slot] else ""

    def is_named(self, key: str) -> bool:
        """Whether what is recorded under that key was given it by key=; False where the key is an index."""
        slot = self._slot(key)
        return slot is not None and bool(self._named[slot])

    @property
    def any_named(self) -> bool:
        """Whether anything is recorded under key=."""
        return 1 in self._named

    def by_content(self, *, named: bool) -> dict[str, list[str]]:
        """The keys of all that have ended, given by key= or not, by fingerprint; those of one content in order."""
        found: dict[str, list[str]] = {}
        for slot, state in enumerate(self._states):
            if state >= _FINISHED and self._named[slot] == named and self._hashes[slot]:
                found.setdefault(f"{self._hashes[slot]:016x}", []).append(self.key_of(slot))
        return found

    def codes(self) -> list[dict[str, Any]]:
        """What entries say of the code of items that have ended: each `code_hash`, with what was bound to it, once (S56)."""
        return [marks for place, marks in enumerate(self._marks) if place and place in self._codes]

    def ended_under(self, marks: dict[str, Any], most: int, among: Container[str]) -> list[str]:
        """The first keys of items, of those *among*, that ended under that code."""
        place, found, slot = self._marks.index(marks), list[str](), -1
        try:
            while len(found) < most:
                slot = self._codes.index(place, slot + 1)
                if (key := self.key_of(slot)) in among:
                    found.append(key)
        except ValueError:  # no further one
            pass
        return found

    def left_out(self, drawn: Container[str]) -> tuple[int, int]:
        """How many that have finished, and that have failed for good, are not among those."""
        left = [key for key in self.keys() if self.ended(key) and key not in drawn]
        failed = sum(map(self.is_failed, left))
        return len(left) - failed, failed

    def index(self, key: str) -> int | None:
        """Which item of the list it was when it last began."""
        slot = self._slot(key)
        return slot if slot is None or self._slots is None else self._indexes[slot]

    def ended_before(self, key: str, activation: int) -> bool:
        """Whether it ended in an earlier activation of the instance than that."""
        slot = self._slot(key)
        return slot is not None and self._states[slot] >= _FINISHED and self._activations[slot] < activation

    def token(self, key: str) -> int:
        """The claim under which it ended."""
        slot = self._slot(key)
        return 0 if slot is None else self._tokens[slot]

    def keys(self) -> Iterator[str]:
        """The keys of all that is recorded, in order of index, or of first start where they are given by key=."""
        for slot, state in enumerate(self._states):
            if state:
                yield self.key_of(slot)

    def key_of(self, slot: int) -> str:
        """The key in a slot."""
        return str(slot) if self._slots is None else self._keys[slot]

    def handed_keys(self) -> list[str] | None:
        """Of the values that a stream has handed on the keys, in that order; None where each is its place."""
        if not self.handed_slots:
            return None
        first = max(0, self.handed - len(self.handed_slots))  # of a time when the map had no key=
        return [*map(str, range(first)), *map(self.key_of, self.handed_slots)]

    def __len__(self) -> int:
        return self.done + self.failed + len(self.open)

    def running(self) -> list[OpenItem]:
        """Those whose body runs."""
        return [item for item in self.open.values() if item.state is StepState.RUNNING]

    def doing(self) -> tuple[StepState, datetime | None]:
        """What the map as a whole does: only where all that is open waits for its next attempt, it waits too (S5)."""
        if not self.open or self._waiting < len(self.open):
            return StepState.RUNNING, None
        return StepState.RETRYING, min((item.due_at for item in self.open.values() if item.due_at is not None), default=None)

    def _of(self, key: str) -> int:
        slot = self._slot(key)
        return _UNKNOWN if slot is None else self._states[slot]

    def _slot(self, key: str) -> int | None:
        if self._slots is not None:
            return self._slots.get(key)
        try:
            slot = int(key)
        except ValueError:
            return None
        return slot if 0 <= slot < len(self._states) else None

    # -- folding ------------------------------------------------------------------------------------------------------

    def describe(self, body: dict[str, Any]) -> int:
        """Take in what an entry says of the map as a whole; gives how many values a stream hands on with it."""
        self.total = body.get("total", self.total)
        done, failed = body.get("gone", (0, 0))
        self.gone = done, failed
        if (rate := body.get("rate")) is not None and self.starts.maxlen != rate[0]:
            self.starts = deque(self.starts, maxlen=rate[0])
        return self._hand_on(body.get("out"))

    def apply(self, entry: Entry, activation: int) -> int:
        """Fold an item's entry in, recorded in that activation; gives how many values a stream hands on with it."""
        key, body, kind = entry.key, entry.body, entry.kind
        assert key is not None
        slot = self._place(key, body)
        if self._states[slot] >= _FINISHED:
            return 0  # an end after the end
        self._named[slot] = "index" in body
        item = self.open.get(key)
        attempt = body.get("attempt", 0)
        if item is None or attempt > item.attempt:
            item = self._began(item, entry, slot, attempt)
        if kind is Kind.MAP_STARTED:
            self._states[slot] = _OPEN
        elif kind is Kind.MAP_INTERRUPTED:
            item.state, item.begun = StepState.INTERRUPTED, body.get("rollback", True)
        elif kind is Kind.MAP_RETRYING:
            self._waiting += item.state is not StepState.RETRYING
            item.state, item.error = StepState.RETRYING, body.get("error")
            item.due_at, item.failures = moment(body.get("retry_at")), item.failures + 1
        else:
            self._activations[slot] = activation
            return self._end(entry, slot)
        return 0

    def _began(self, item: OpenItem | None, entry: Entry, slot: int, attempt: int) -> OpenItem:
        """A new attempt; a start that was loaded with its end is known by the end alone."""
        body = entry.body
        began = body.get("started_at")
        at = entry.recorded_at if began is None else datetime.fromisoformat(began)
        if self.starts.maxlen:
            self.starts.append(at.timestamp())
        if item is None:
            assert entry.key is not None
            index = body["index"] if self._named[slot] else int(entry.key)
            item = OpenItem(entry.key, index, StepState.RUNNING, at, attempt)
            if self._slots is not None:
                self._indexes[slot] = item.index
            if entry.kind not in ENDS:
                self.open[item.key] = item
                self._states[slot] = _OPEN
            return item
        if body.get("anew"):  # under new code those before it count no more (S58)
            item.failures = 0
        self._waiting -= item.state is StepState.RETRYING
        item.attempt, item.state, item.started_at, item.due_at, item.begun = attempt, StepState.RUNNING, at, None, True
        return item

    def _end(self, entry: Entry, slot: int) -> int:
        key, body = entry.key, entry.body
        assert key is not None
        self._close(key)
        if entry.kind in CANCELS:
            self._states[slot], self._codes[slot] = _UNKNOWN, 0
            return 0
        if entry.kind in FAILURES:
            self._states[slot] = _FAILED
            self.failed += 1
        else:
            self._states[slot] = _FINISHED if entry.value is not None or "output_type" in body else _DISCARDED
            self.done += 1
        self._tokens[slot] = entry.token
        self._hashes[slot] = int(told, 16) if (told := body.get("hash")) else 0
        self._codes[slot] = self._code_of(body)
        self.ends.append(entry.recorded_at)
        return self._hand_on(body.get("out"))

    def _code_of(self, body: dict[str, Any]) -> int:
        """Where in `_marks` the code of an item is: nearly always that of the one before it."""
        code = body.get("code_hash")
        if code is None:
            return 0
        last = self._marks[-1]
        if last.get("code_hash") == code and last.get("bound") == body.get("bound"):
            return len(self._marks) - 1
        marks: dict[str, Any] = {name: body[name] for name in ("code_hash", "bound") if name in body}
        if marks not in self._marks:
            if len(self._marks) > _MOST_CODES:
                return 0
            self._marks.append(marks)
        return self._marks.index(marks)

    def _hand_on(self, out: int | list[str] | None) -> int:
        if out is None:
            return 0
        if isinstance(out, int):
            self.handed += out
            return out
        self.handed_slots.extend(self._place(name, {"index": 0}) for name in out)
        self.handed += len(out)
        return len(out)

    def _place(self, key: str, body: dict[str, Any]) -> int:
        if "index" not in body and self._slots is None:  # the key is the index
            slot = int(key)
            if slot >= len(self._states):
                self._grow(slot + 1 - len(self._states))
            return slot
        if self._slots is None:  # there may be some of a time when the map had no key=
            self._keys = [str(slot) for slot in range(len(self._states))]
            self._slots = {name: slot for slot, name in enumerate(self._keys)}
            self._indexes.extend(range(len(self._keys)))
        slot = self._slots.setdefault(key, len(self._keys))
        if slot == len(self._keys):
            self._keys.append(key)
            self._indexes.append(slot)
            self._grow(1)
        return slot

    def _grow(self, count: int) -> None:
        for flags in (self._states, self._named):
            flags.extend(bytes(count))
        for numbers in (self._tokens, self._hashes, self._codes, self._activations):
            numbers.extend([0] * count)

    # -- what befalls the map -----------------------------------------------------------------------------------------

    def interrupt(self, activation: int) -> bool:
        """Behind a fence no end of a body in flight is heard (S27, S43); says whether any was."""
        running = self.running()
        for item in running:
            item.state, item.died_in = StepState.INTERRUPTED, activation
        return bool(running)

    def shift(self, moved: timedelta) -> None:
        """After a pause retry delays end later (S41)."""
        for item in self.open.values():
            if item.due_at is not None:
                item.due_at = later(item.due_at, moved)

    def take_back(self) -> int:
        """Of what a stream has handed on, keep what comes before the first item that has not ended; gives how many go."""
        keys = self.handed_keys() or map(str, range(self.handed))
        kept = next((place for place, key in enumerate(keys) if not self.ended(key)), self.handed)
        gone, self.handed = self.handed - kept, kept
        del self.handed_slots[max(0, len(self.handed_slots) - gone) :]
        return gone

    @property
    def rate(self) -> float | None:
        """How many end in a second, as far as the last ones tell."""
        if len(self.ends) < 2 or self.ends[-1] <= self.ends[0]:
            return None
        return (len(self.ends) - 1) / (self.ends[-1] - self.ends[0]).total_seconds()

    def drop_failed(self) -> None:
        """Those that failed run again, as if they had never been called (S61)."""
        for slot, state in enumerate(self._states):
            if state == _FAILED:
                self._states[slot] = _UNKNOWN
                self._codes[slot] = 0
        self.failed, self.order_at_failure, self.gone = 0, None, (0, 0)

    def drop(self, key: str) -> None:
        """That item runs again."""
        self.gone = 0, 0  # the list is drawn anew
        slot = self._slot(key)
        if slot is None:
            return
        state = self._states[slot]
        self.done -= state in (_FINISHED, _DISCARDED)
        self.failed -= state == _FAILED
        self._close(key)
        self._states[slot], self._codes[slot] = _UNKNOWN, 0

    def _close(self, key: str) -> None:
        item = self.open.pop(key, None)
        self._waiting -= item is not None and item.state is StepState.RETRYING
