"""When the next attempt of a map may begin: its `rate`, every attempt counted, those of earlier activations too (S61)."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from nbflow.core.rates import Bucket, Rate
from nbflow.engine.timers import Timer

if TYPE_CHECKING:
    from nbflow.engine.live import LiveInstance

LONG = 1.0  # seconds from which on a map with nothing to do but to wait for its rate counts as waiting


class Pace:
    """The rate of one map in one activation; on the loop.

    Args:
        live: whose map it is.
        rate: None where attempts may begin at any time.
        taken: when the last attempts began, as timestamps.
        go_on: called when an attempt may begin again.

    Attributes:
        until: when the next attempt may begin, where that is long from now; else None.
    """

    def __init__(self, live: "LiveInstance", rate: Rate | None, taken: Iterable[float], go_on: Callable[[], None]) -> None:
        self._live, self._engine, self._go_on = live, live.engine, go_on
        self._bucket = None if rate is None else Bucket(rate, taken)
        self._timer: Timer | None = None
        self.until: datetime | None = None

    def may_begin(self) -> bool:
        """Whether an attempt may begin now: its rate lets it and its instance has a slot; where not, *go_on* is called when."""
        return self._has_token() and self._live.rest.may_work(self._go_on)

    def _has_token(self) -> bool:
        if self._bucket is None:
            return True
        if self._timer is not None:
            return False
        now = self._engine.clock.now()
        if (wait := self._bucket.wait(now.timestamp())) <= 0:
            return True
        due = now + timedelta(seconds=wait)
        self._timer = self._engine.timers.at(due, self._token_is_back)
        self.until = due if wait >= LONG else None
        return False

    def _token_is_back(self) -> None:
        self._timer = self.until = None
        self._go_on()

    def began(self) -> None:
        """An attempt begins."""
        if self._bucket is not None:
            self._bucket.take(self._engine.clock.now().timestamp())

    def close(self) -> None:
        """Nothing more begins."""
        self.until = None
        if self._timer is not None:
            self._timer.cancel()
