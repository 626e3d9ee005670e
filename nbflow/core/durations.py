"""Durations and deadlines as users write them (API.md, Durations).

Pure. A number is seconds; text is an amount and a unit, several of them added up ("1h 30m").
"""

import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from numbers import Real

from nbflow.core.names import quoted
from nbflow.errors import UsageError

LONGEST_SLEEP = timedelta(days=365)
"""What a sleep or a wait may last at most (S37)."""

_SECOND, _MINUTE, _HOUR, _DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000
_UNITS = {
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), 1000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), _SECOND),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), _MINUTE),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), _HOUR),
    **dict.fromkeys(("d", "day", "days"), _DAY),
    **dict.fromkeys(("w", "week", "weeks"), 7 * _DAY),
    **dict.fromkeys(("mo", "month", "months"), 30 * _DAY),
    **dict.fromkeys(("y", "yr", "yrs", "year", "years"), 1461 * _DAY // 4),
}
_PART = re.compile(r"\s*([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]+)(?:\s*,(?=\s*[.0-9]))?")
_NUMBER = re.compile(r"\s*[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?\s*", re.IGNORECASE)
_FORMS = "write seconds as a number, a timedelta, or text such as '10 seconds', '5m', '24h', '500 ms'"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _UnreadableError(ValueError):
    """Why a value is no duration, and where that helps, what can be written."""

    def __init__(self, why: str, *, forms: bool = False) -> None:
        super().__init__(f"{why}; {_FORMS}" if forms else why)


def duration(value: object, *, what: str, at_most: timedelta | None = None) -> timedelta:
    """Read a duration.

    Args:
        value: seconds as a number, a timedelta, or text.
        what: what it is, for the message: "step 'embed': timeout".
        at_most: the longest one allowed.

    Raises:
        UsageError: it is none, negative, or longer than *at_most*.
    """
    try:
        found = _read(value)
        if found < timedelta(0):
            raise _UnreadableError("a duration cannot be negative")
    except (_UnreadableError, OverflowError) as error:
        why = str(error) if isinstance(error, _UnreadableError) else "that is longer than can be counted; write a shorter one"
        msg = f"{what} is {quoted(value)}: {why}"
        raise UsageError(msg) from None
    if at_most is not None and found > at_most:
        msg = f"{what} is {quoted(value)}: longer than the {at_most.days} days allowed; sleep or wait in parts"
        raise UsageError(msg)
    return found


def deadline(value: object, *, what: str = "sleep_until") -> datetime:
    """Read the moment of a `sleep_until` (S33), in UTC.

    Args:
        value: an aware datetime, a naive one of local time, or epoch seconds.
        what: what it is, for the message.

    Raises:
        UsageError: it is none of these, or beyond the years that can be counted.
    """
    try:
        if isinstance(value, datetime):
            return _moment(value)
        if (seconds := _number(value)) is None:
            raise _UnreadableError("write a datetime, or seconds since 1970 as a number" + _hint_for_moment(value))
        return _EPOCH + timedelta(seconds=seconds)
    except _UnreadableError as error:
        msg = f"{what} is {quoted(value)}: {error}"
        raise UsageError(msg) from None
    except OverflowError:
        why = "that is beyond the years 1 to 9999"
        if not isinstance(value, datetime):
            why += " and looks like milliseconds; divide it by 1000, a number is seconds since 1970"
        msg = f"{what} is {quoted(value)}: {why}"
        raise UsageError(msg) from None


def text(span: timedelta) -> str:
    """Write a duration for people: "350 ms", "12s", "2m 05s", "3h 04m", "2d 07h"."""
    micros = span // timedelta(microseconds=1)
    if micros < 0:
        return f"-{text(-span)}"
    if micros < _SECOND:
        millis = micros / 1000
        return f"{round(millis)} ms" if millis >= 10 or millis == int(millis) else f"{millis:.2g} ms"
    if micros < 10 * _SECOND and micros // 100_000 % 10:
        return f"{micros // 100_000 / 10}s"
    seconds = micros // _SECOND
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m {seconds % 60:02d}s"
    minutes = seconds // 60
    if minutes < 24 * 60:
        return f"{minutes // 60}h {minutes % 60:02d}m"
    return f"{minutes // 1440}d {minutes // 60 % 24:02d}h"


def seconds(span: timedelta) -> int | float:
    """Give seconds as a number for JSON and for users: whole where they are whole."""
    return span // timedelta(seconds=1) if not span.microseconds else span.total_seconds()


def _read(value: object) -> timedelta:
    if isinstance(value, timedelta):
        try:
            return timedelta(days=value.days, seconds=value.seconds, microseconds=value.microseconds)
        except (TypeError, ValueError):
            raise _UnreadableError("that is no length of time", forms=True) from None
    if isinstance(value, str):
        return _parse(value)
    if (number := _number(value)) is not None:
        return timedelta(seconds=number)
    why = f"a {type(value).__name__} is no duration"
    raise _UnreadableError(why, forms=True)


def _number(value: object) -> int | float | None:
    """The number that *value* is, None where it is none; numpy's timedelta64 says of itself that it is an integer."""
    if isinstance(value, bool) or not isinstance(value, Real | Decimal) or type(value).__name__ == "timedelta64":
        return None
    number = value if isinstance(value, int) else float(value)
    if math.isinf(number) or math.isnan(number):
        raise _UnreadableError("it must be a finite number")
    return number


@lru_cache(maxsize=1024)
def _parse(written: str) -> timedelta:
    if not written.strip():
        raise _UnreadableError("the text is empty", forms=True)
    if _NUMBER.fullmatch(written):
        why = f"the unit is missing; write {written.strip()} without quotes for seconds, or '{written.strip()} seconds'"
        raise _UnreadableError(why)
    total, position = timedelta(0), 0
    while position < len(written.rstrip()):
        part = _PART.match(written, position)
        if part is None:
            raise _UnreadableError("that cannot be read as a duration", forms=True)
        sign, amount, unit = part.groups()
        if sign == "-":
            raise _UnreadableError("a duration cannot be negative")
        total += timedelta(microseconds=round(Decimal(amount) * _unit(unit)))
        position = part.end()
    return total


def _unit(word: str) -> int:
    if word == "M":
        raise _UnreadableError("'M' may mean minutes or months; write 'minutes' or 'months'")
    if (micros := _UNITS.get(word.lower())) is None:
        why = f"the unit {quoted(word)} is unknown; units are ms, seconds, minutes, hours, days, weeks, months, years"
        raise _UnreadableError(why)
    return micros


def _moment(value: datetime) -> datetime:
    try:
        plain = datetime.combine(value.date(), value.timetz())
    except (TypeError, ValueError):  # pandas' NaT calls itself a datetime
        raise _UnreadableError("that is no moment in time; write a datetime, or seconds since 1970 as a number") from None
    try:
        return plain.astimezone(UTC)
    except (ValueError, OSError) as error:  # what a year without local time raises, by the version of Python and the system
        raise OverflowError from error


def local(at: datetime) -> datetime:
    """A moment in the machine's own time zone, for people; as it is where the year 9999 would end before."""
    try:
        return at.astimezone()
    except (ValueError, OverflowError, OSError):
        return at


def _hint_for_moment(value: object) -> str:
    if isinstance(value, str):
        return "; datetime.fromisoformat(...) reads text"
    if isinstance(value, timedelta):
        return "; for a length of time use step.sleep"
    return ""
