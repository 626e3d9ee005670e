"""One heap of what is due: wall-clock deadlines that outlive the process, monotonic ones for attempts.

Wall deadlines are looked at every second, so a suspended laptop is noticed within that time of waking (S32).
"""

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from nbflow.clock import Clock
from nbflow.engine.loop import LoopThread

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine

LOOK_EVERY = 1.0
_EPOCH = datetime.fromtimestamp(0, UTC)  # not for later ones: Windows knows none after the year 3000
_LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # what is due later, `datetime.max` too, has no exact float


class Timer:
    """Something due; `cancel` makes it not happen."""

    __slots__ = ("_heap", "callback")

    def __init__(self, callback: Callable[[], None], heap: "_Heap") -> None:
        self.callback: Callable[[], None] | None = callback
        self._heap = heap

    def cancel(self) -> None:
        """Forget it."""
        if self.callback is not None:
            self.callback = None
            self._heap.dropped()


class _Heap:
    """Due times and timers; cancelled ones are swept out when they are the majority."""

    def __init__(self) -> None:
        self.items: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._dead = 0

    def push(self, due: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback, self)
        heapq.heappush(self.items, (due, next(self._numbers), timer))
        return timer

    def dropped(self) -> None:
        self._dead += 1
        if self._dead > 200 and self._dead * 2 > len(self.items):
            self.items = [item for item in self.items if item[2].callback is not None]
            heapq.heapify(self.items)
            self._dead = 0

    def next_due(self) -> float | None:
        while self.items and self.items[0][2].callback is None:
            heapq.heappop(self.items)
            self._dead = max(0, self._dead - 1)
        return self.items[0][0] if self.items else None

    def pop_due(self, now: float) -> Callable[[], None] | None:
        due = self.next_due()
        if due is None or due > now:
            return None
        timer = heapq.heappop(self.items)[2]
        callback, timer.callback = timer.callback, None
        return callback


class Timers:
    """Deadlines of one engine; used on its loop only."""

    def __init__(self, thread: LoopThread, clock: Clock) -> None:
        self._loop, self._clock = thread.loop, clock
        self._wall, self._span = _Heap(), _Heap()
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = float("inf")

    def at(self, due: datetime, callback: Callable[[], None]) -> Timer:
        """Call *callback* when the wall clock has reached *due*."""
        timer = self._wall.push(due.timestamp(), callback)
        self._arm(due.timestamp() - self._clock.now().timestamp())
        return timer

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call *callback* after that much monotonic time."""
        timer = self._span.push(self._clock.monotonic() + seconds, callback)
        if self._handle is None or self._span.items[0][2] is timer:  # else an earlier one has it armed
            self._arm(seconds)
        return timer

    def next_due(self) -> datetime | None:
        """When the next of them is due, as far as wall time can tell."""
        now = self._clock.now()
        wall, span = self._wall.next_due(), self._span.next_due()
        due = [] if wall is None else [_EPOCH + timedelta(seconds=min(wall, _LAST.timestamp()))]
        if span is not None:
            left = math.ceil((span - self._clock.monotonic()) * 1e6)  # not a moment too early: it would not be due then
            due.append(now + min(timedelta(microseconds=left), _LAST - now))
        return min(due, default=None)

    def fire(self) -> None:
        """Call everything that is due."""
        self._disarm()
        while callback := self._wall.pop_due(self._clock.now().timestamp()):
            callback()
        while callback := self._span.pop_due(self._clock.monotonic()):
            callback()
        wall, span = self._wall.next_due(), self._span.next_due()
        if wall is not None:
            self._arm(wall - self._clock.now().timestamp())
        if span is not None:
            self._arm(span - self._clock.monotonic(), wall=wall is not None)

    def _arm(self, seconds: float, *, wall: bool = True) -> None:
        # Without a wall deadline there is nothing that a jump of the clock could make due early.
        wanted = self._loop.time() + max(0.0, min(seconds, LOOK_EVERY) if wall else seconds)
        if self._handle is not None and self._armed_for <= wanted:
            return
        self._disarm()
        self._armed_for = wanted
        self._handle = self._loop.call_at(wanted, self.fire, context=self._loop.uncounted)

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._armed_for = float("inf")


class EngineTime:
    """What a clock moved by hand must know of an engine (`clock.Follower`)."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def time_moved(self) -> None:
        """Fire what is due now."""
        self._engine.on_loop(self._engine.timers.fire)

    def next_due(self) -> datetime | None:
        """When the next deadline of an instance is."""
        found: list[datetime | None] = [None]
        self._engine.on_loop(lambda: found.__setitem__(0, self._engine.timers.next_due()))
        return found[0]

    def in_threads(self) -> bool:
        """Whether something runs in threads: how long that takes cannot be known."""
        return self._engine.threads.working

    def idle(self) -> bool:
        """Whether nothing happens until time moves or somebody acts."""
        engine, busy = self._engine, [True]

        def look() -> None:
            lives = tuple(engine.live.values())
            working = any(live.activation is not None and not live.activation.idle for live in lives)
            due = (when := engine.timers.next_due()) is not None and when <= engine.clock.now()
            busy[0] = bool(working or due or engine.launches or engine.looks or engine.threads.working)

        engine.on_loop(look)
        return not busy[0]
