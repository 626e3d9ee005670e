"""The only reader of time. Everything else is given a Clock."""

import time
from collections.abc import Callable
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

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Have *callback* called whenever time has been moved by hand."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Now, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Nobody moves this clock by hand."""


def pause(seconds: float) -> None:
    """Block the calling thread: for polling locks, never for letting a deadline pass."""
    time.sleep(seconds)
