"""The only reader of time. Everything else is given a Clock."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for deadlines that outlive the process, monotonic time for timeouts within it."""

    def now(self) -> datetime:
        """Now, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    def subscribe(self, follower: "Follower") -> None:
        """Let *follower* know whenever time has been moved by hand."""
        ...

    def unsubscribe(self, follower: "Follower") -> None:
        """Forget *follower*."""
        ...


class Follower(Protocol):
    """Who keeps deadlines by a clock: what a clock moved by hand must know of it."""

    def time_moved(self) -> None:
        """Fire what is due now."""
        ...

    def next_due(self) -> datetime | None:
        """When the next deadline is."""
        ...

    def idle(self) -> bool:
        """Whether nothing happens until time moves or somebody acts."""
        ...

    def in_threads(self) -> bool:
        """Whether something runs in threads: how long that takes cannot be known."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Now, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def subscribe(self, follower: Follower) -> None:
        """Nobody moves this clock by hand."""

    def unsubscribe(self, follower: Follower) -> None:
        """Nobody moves this clock by hand."""


def pause(seconds: float) -> None:
    """Block the calling thread: for polling locks, never for letting a deadline pass."""
    time.sleep(seconds)
