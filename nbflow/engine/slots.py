"""Which instances may work at once, and which of the waiting ones stay in memory (S5, S62). Lives on the workflow loop."""

import collections
import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbflow.engine.live import LiveInstance

KEEP_WAITING = 1000


class Slots:
    """At most *limit* instances at work; waiting ones do not count. None is no limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._groups: dict[str, Slots] = {}
        self._held: set[int] = set()
        self._queue: collections.OrderedDict[int, Callable[[], None]] = collections.OrderedDict()
        self._giving = False

    def group(self, name: str, limit: int) -> "Slots":
        """The slots of a group of instances: its own where the engine has no limit for all."""
        return self._groups.setdefault(name, Slots(limit)) if self._limit is None else self

    def take(self, created_seq: int, then: Callable[[], None]) -> bool:
        """Whether that instance may work now; where not, it is queued, and *then*, one for each, is called when it may."""
        if self.held(created_seq):
            return True
        if self._limit is not None and len(self._held) < self._limit and not self._queue:
            self._held.add(created_seq)
            return True
        self._queue.setdefault(created_seq, then)
        return False

    def held(self, created_seq: int) -> bool:
        """Whether it may work as it is."""
        return self._limit is None or created_seq in self._held

    def queued(self, created_seq: int) -> bool:
        """Whether it waits for a slot."""
        return created_seq in self._queue

    def release(self, created_seq: int) -> None:
        """It works no more, for now or for good: the next in the queue may."""
        if self._limit is None:
            return
        self._held.discard(created_seq)
        if self._giving:
            return  # the loop below goes on with it
        self._giving = True
        try:
            while self._queue and len(self._held) < self._limit:
                seq, then = self._queue.popitem(last=False)
                self._held.add(seq)
                then()
        finally:
            self._giving = False

    def forget(self, created_seq: int) -> None:
        """It neither works nor wants to: ended, or paused."""
        self._queue.pop(created_seq, None)
        self.release(created_seq)


class Waiting:
    """Instances that wait in memory; above *keep*, those due last hibernate: their `run` is dropped, to be replayed."""

    def __init__(self, keep: int = KEEP_WAITING) -> None:
        self.keep = keep
        self._due: dict[int, float] = {}
        self._last: list[tuple[float, int]] = []
        self._lives: dict[int, LiveInstance] = {}

    def add(self, live: "LiveInstance", due: float) -> None:
        """It has begun to wait, until *due* (a timestamp) at the latest."""
        seq = live.created_seq
        if self._due.get(seq) != due:
            self._due[seq], self._lives[seq] = due, live
            heapq.heappush(self._last, (-due, seq))
        while len(self._due) > self.keep and self._last:
            negative, latest = heapq.heappop(self._last)
            if self._due.get(latest) == -negative:
                sleeper = self._lives[latest]
                self.remove(latest)
                sleeper.rest.hibernate()

    def remove(self, created_seq: int) -> None:
        """It waits no more."""
        if not self._due:
            return
        self._due.pop(created_seq, None)
        self._lives.pop(created_seq, None)
