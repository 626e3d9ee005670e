"""How often a map may begin an attempt: `rate="60/minute"` (API.md §6).

Pure. A bucket of tokens, each of which comes back one period after it was taken: in no stretch of that length begin more
than the rate allows, and a bucket that is filled from recorded starts goes on where it was.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from nbflow.core.durations import duration
from nbflow.core.names import quoted
from nbflow.errors import UsageError

_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """At most *count* starts in any *seconds*."""

    count: int
    seconds: float


def rate(value: object, what: str) -> Rate | None:
    """Read a rate: "60/minute", "5/s", "100/10 minutes"; a number is per second.

    Raises:
        UsageError: it is none.
    """
    if value is None:
        return None
    rule = 'write "60/minute", "5/second" or "100/10 minutes"'
    if isinstance(value, int) and not isinstance(value, bool):
        value = f"{value}/second"
    if not isinstance(value, str) or value.count("/") != 1:
        msg = f"{what} is {quoted(value)}; {rule}"
        raise UsageError(msg)
    count, _, period = (part.strip() for part in value.partition("/"))
    if not count.isdecimal() or not 1 <= int(count) <= _MOST:
        msg = f"{what} is {quoted(value)}: {quoted(count)} is no number of starts from 1 to {_MOST:,}; {rule}"
        raise UsageError(msg)
    text = period if period[:1].isdigit() else f"1 {period}"
    seconds = duration(text, what=what).total_seconds()
    if seconds <= 0:
        msg = f"{what} is {quoted(value)}, a period of no length; {rule}"
        raise UsageError(msg)
    return Rate(int(count), seconds)


class Bucket:
    """The tokens of one map; *taken* are the moments of starts before, as timestamps."""

    def __init__(self, its: Rate, taken: Iterable[float] = ()) -> None:
        self._rate = its
        self._taken: deque[float] = deque(sorted(taken), maxlen=its.count)

    def wait(self, now: float) -> float:
        """Seconds until a token is there, 0 where one is now."""
        if len(self._taken) < self._rate.count:
            return 0.0
        # A clock that was set back must not hold everything up for longer than a period.
        return max(0.0, min(self._taken[0] + self._rate.seconds - now, self._rate.seconds))

    def take(self, now: float) -> None:
        """An attempt begins."""
        self._taken.append(now)
