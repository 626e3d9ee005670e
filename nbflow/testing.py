"""The public kit for testing workflows."""

from datetime import UTC, datetime
from typing import Any

from nbflow.clock import Follower, SystemClock, pause
from nbflow.core.durations import duration

PATIENCE = 30.0  # real seconds that an engine may take to become idle


class ManualClock:
    """A clock that moves only when told: days of sleeping pass in milliseconds.

    Args:
        start: the first moment, aware; 2026-01-01 UTC by default.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._start = self._now = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._followers: list[Follower] = []

    def now(self) -> datetime:
        """The moment it was moved to."""
        return self._now

    def monotonic(self) -> float:
        """Seconds since it was made, by its own time."""
        return (self._now - self._start).total_seconds()

    def subscribe(self, follower: Follower) -> None:
        """Let *follower* know whenever time has moved."""
        self._followers.append(follower)

    def advance(self, span: Any) -> None:
        """Move on by a duration, stopping at every deadline on the way; returns when the engines are idle.

        Raises:
            TimeoutError: an engine did not become idle within 30 real seconds: a body blocks.
        """
        end = self._now + duration(span, what="advance()")
        self._settle()
        while (due := self._next_due()) is not None and due <= end:
            self._now = max(self._now, due)
            self._fire()
        self._now = end
        self._fire()

    def _next_due(self) -> datetime | None:
        return min((due for follower in self._followers if (due := follower.next_due()) is not None), default=None)

    def _fire(self) -> None:
        for follower in self._followers:
            follower.time_moved()
        self._settle()

    def _settle(self) -> None:
        real = SystemClock()
        limit = real.monotonic() + PATIENCE
        while not all(follower.idle() for follower in self._followers):
            if real.monotonic() > limit:
                msg = f"the engine did not become idle within {PATIENCE:g} seconds of real time; does a body block?"
                raise TimeoutError(msg)
            pause(0.0005)
