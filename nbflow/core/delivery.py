"""The order in which results reach `run` (S20): recorded ones first, in the order of their entries, then live ones.

Pure. One result at a time, the next only when the activation is quiet; the engine calls `next` then. A recorded result is
held back until its call has been made. If the activation is quiet and the recorded result at the head has not been called,
the code has changed: the first one that *has* been called goes, and the rest shows as unreached (S9).
"""

import collections
from collections.abc import Iterable, Mapping

from nbflow.core.items import HANDED
from nbflow.core.model import StepKey, StepType

_NEAR = 32  # places at the head that are looked at one by one
_TAKEN = StepKey(StepType.MAP, HANDED)  # where a value of a stream was in the order


class Deliveries:
    """What is still to be handed out in one activation."""

    def __init__(self, recorded: Iterable[StepKey]) -> None:
        self._recorded = list(recorded)
        self._known = frozenset(self._recorded)
        self._head = 0
        self._places: dict[StepKey, collections.deque[int]] | None = None
        self._gone: set[StepKey] = {_TAKEN}
        self._taken: int | None = None
        self._arrived: collections.deque[StepKey] = collections.deque()

    def arrive(self, key: StepKey) -> None:
        """A live result is durable: it goes out after those before it."""
        self._arrived.append(key)

    def leave(self, key: StepKey) -> None:
        """The call of that step is gone: delivered, or cancelled by user code."""
        self._gone.add(key)

    def next(self, called: Mapping[StepKey, object]) -> StepKey | None:
        """Give the step whose result is handed out now; *called* holds the calls that still want one."""
        recorded = self._recorded
        if called and self._skip_gone() < len(recorded) and (place := self._first_called(called)) is not None:
            return self._take(recorded[place], place)
        self._taken = None
        arrived = self._arrived
        while arrived:
            key = arrived.popleft()
            if key in called:
                return key
        return None

    def _first_called(self, called: Mapping[StepKey, object]) -> int | None:
        """The place of the first recorded result that was called.

        Near the head it is nearly always. Where much there is never called (steps in bodies that do not run again, renamed
        ones), to pass over all of it for each result would take the square of its number.
        """
        recorded, gone = self._recorded, self._gone
        for place in range(self._head, min(self._head + _NEAR, len(recorded))):
            if recorded[place] in called and recorded[place] not in gone:
                return place
        if self._head + _NEAR >= len(recorded):
            return None
        if self._places is None:
            self._places = {}
            for place, key in enumerate(recorded):
                self._places.setdefault(key, collections.deque()).append(place)
        waiting = (self._place(key) for key in called if key not in gone)
        return min((place for place in waiting if place is not None), default=None)

    def _place(self, key: StepKey) -> int | None:
        assert self._places is not None
        places = self._places.get(key)
        while places and self._recorded[places[0]] != key:  # a value of a stream that was taken
            places.popleft()
        return places[0] if places else None

    def _skip_gone(self) -> int:
        """Where the first recorded result is that still waits for its call or its turn."""
        recorded, gone, head = self._recorded, self._gone, self._head
        while head < len(recorded) and recorded[head] in gone:
            head += 1
        self._head = head
        return head

    def is_next(self, key: StepKey) -> bool:
        """Whether the recorded result at the head is of that step, which has been called."""
        head = self._skip_gone()
        return head < len(self._recorded) and self._recorded[head] == key

    def _take(self, key: StepKey, place: int) -> StepKey:
        """A stream has one key for all its values: each is taken once."""
        self._taken = None
        if key.key == HANDED:
            self._recorded[place], self._taken = _TAKEN, place
        return key

    def out_of_turn(self, called: Iterable[StepKey]) -> StepKey | None:
        """Give one of these calls whose result is there, whoever's turn it is; all others keep theirs."""
        for key in called:
            if key in self._known and key not in self._gone:
                return key
            if key in self._arrived:
                self._arrived.remove(key)
                return key
        return None

    def put_back(self, key: StepKey) -> None:
        """It could not be handed out now: it is the next one again."""
        if self._taken is not None:
            self._recorded[self._taken] = key
            self._places = None
            self._head = min(self._head, self._taken)
        elif key not in self._known or key.key == HANDED:
            self._arrived.appendleft(key)

    @property
    def pending(self) -> bool:
        """Whether live results wait for their turn."""
        return bool(self._arrived)

    def unreached(self) -> tuple[StepKey, ...]:
        """Recorded steps that no call of this activation has asked for (S9)."""
        return tuple(key for key in self._recorded[self._head :] if key not in self._gone)
