"""Durations and deadlines (API.md, Durations; S33)."""

import math
import time
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbflow.core import durations
from nbflow.core.durations import LONGEST_SLEEP, deadline, duration
from nbflow.errors import UsageError

WORDS = {
    "ms": 0.001,
    "millisecond": 0.001,
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
    "w": 604800,
    "week": 604800,
    "month": 2592000,
    "year": 31557600,
}
LONG = [word for word in WORDS if len(word) > 2]


def read(value: object) -> timedelta:
    return duration(value, what="step 'embed': timeout")


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("10 seconds", 10),
        ("5 minutes", 300),
        ("1 hour", 3600),
        ("7 days", 604800),
        ("2 weeks", 1209600),
        ("500 ms", 0.5),
        ("10s", 10),
        ("5m", 300),
        ("24h", 86400),
        ("7d", 604800),
        ("500ms", 0.5),
        ("1 month", 30 * 86400),
        ("1 year", 365.25 * 86400),
        ("1.5 hours", 5400),
        (".5s", 0.5),
        ("  1 Minute ", 60),
        ("1h 30m", 5400),
        ("1 hour, 5 minutes", 3900),
        ("0s", 0),
    ],
)
def test_text_is_read_in_long_and_short_forms(written, seconds):
    assert read(written) == timedelta(seconds=seconds)


@given(st.integers(0, 10_000), st.sampled_from(sorted(WORDS)), st.sampled_from(["", " ", "  "]))
def test_an_amount_and_a_unit_multiply(amount, word, gap):
    assert read(f"{amount}{gap}{word}") == timedelta(microseconds=round(amount * WORDS[word] * 1_000_000))


@given(st.integers(0, 10_000), st.sampled_from(LONG))
def test_a_plural_and_capitals_change_nothing(amount, word):
    assert read(f"{amount} {word}s") == read(f"{amount} {word.upper()}") == read(f"{amount} {word}")


@given(st.timedeltas(min_value=timedelta(0)))
def test_a_timedelta_is_itself(span):
    assert read(span) == span


@given(st.integers(0, 10**9) | st.floats(0, 1e9))
def test_a_number_is_seconds(seconds):
    assert read(seconds) == timedelta(seconds=seconds)


def test_numbers_of_other_libraries_count_as_numbers():
    for number in (np.float64(2.5), np.float32(2.5), Decimal("2.5"), Fraction(5, 2)):
        assert read(number) == timedelta(seconds=2.5)
    assert read(np.int64(3)) == timedelta(seconds=3)


def test_pandas_timedelta_becomes_a_plain_one():
    span = read(pd.Timedelta("90s"))
    assert type(span) is timedelta
    assert span == timedelta(seconds=90)


@pytest.mark.parametrize("value", [-1, -0.001, "-5 seconds", "1 hour -5 minutes", timedelta(seconds=-1)])
def test_a_negative_duration_is_refused(value):
    with pytest.raises(UsageError, match="cannot be negative"):
        read(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan"), Decimal("inf")])
def test_a_number_that_is_not_finite_is_refused(value):
    with pytest.raises(UsageError, match="finite"):
        read(value)


@pytest.mark.parametrize(
    "value", [True, False, None, [], b"5s", datetime(2030, 1, 1, tzinfo=UTC), np.timedelta64(5, "m"), 1j, object()]
)
def test_what_is_neither_number_nor_text_nor_timedelta_is_refused(value):
    with pytest.raises(UsageError, match="is no duration"):
        read(value)


@pytest.mark.parametrize(
    "value",
    [1e300, 10**30, "1" * 30 + " years", "9" * 6000 + "s", Decimal("1e400"), 1e14, pytest.param(10**5000, id="5001 digits")],
)
def test_an_overflow_is_refused(value):
    with pytest.raises(UsageError, match=r"longer than can be counted|finite"):
        read(value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("10", "the unit is missing; write 10 without quotes"),
        ("1e3", "the unit is missing"),
        ("", "the text is empty"),
        ("  ", "the text is empty"),
        ("5M", "may mean minutes or months"),
        ("5 parsecs", "the unit 'parsecs' is unknown"),
        ("soon", "cannot be read"),
        ("5s!", "cannot be read"),
        ("1 hour,", "cannot be read"),
        ("٣ seconds", "cannot be read"),
        ("1,000 s", "cannot be read"),
    ],
)
def test_unreadable_text_is_refused_with_the_reason(value, says):
    with pytest.raises(UsageError, match=says):
        read(value)


def test_the_error_names_step_key_and_value():
    with pytest.raises(UsageError) as caught:
        duration("5 parsecs", what="step 'embed': retries['delay']")
    assert str(caught.value).startswith("step 'embed': retries['delay'] is '5 parsecs': ")


@given(st.text() | st.binary() | st.floats() | st.integers() | st.none())
def test_anything_is_read_or_refused_as_usage(value):
    try:
        span, says = read(value), None
    except UsageError as error:
        span, says = timedelta(0), str(error)
    assert span >= timedelta(0)
    assert says is None or says.startswith("step 'embed': timeout is ")


def test_a_sleep_is_at_most_365_days():
    assert duration("365 days", what="sleep", at_most=LONGEST_SLEEP) == timedelta(days=365)
    with pytest.raises(UsageError, match="longer than the 365 days"):
        duration("1 year", what="sleep", at_most=LONGEST_SLEEP)


@given(st.datetimes(timezones=st.just(UTC) | st.integers(-23, 23).map(lambda hours: timezone(timedelta(hours=hours)))))
def test_an_aware_deadline_is_the_same_moment_in_utc(moment):
    try:
        expected = moment.astimezone(UTC)
    except OverflowError:
        with pytest.raises(UsageError, match="years 1 to 9999"):
            deadline(moment)
    else:
        assert deadline(moment) == expected
        assert deadline(moment).tzinfo is UTC


def test_a_naive_deadline_is_local_time(monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert deadline(datetime(2030, 7, 1, 12)) == datetime(2030, 7, 1, 16, tzinfo=UTC)
        first, second = (deadline(datetime(2030, 11, 3, 1, 30, fold=fold)) for fold in (0, 1))
        assert second - first == timedelta(hours=1)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo", "UTC"])
def test_a_naive_deadline_at_the_ends_of_time_is_a_moment_or_refused_as_one_that_is_none(monkeypatch, zone):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        for moment in (datetime.min, datetime.max):
            try:
                assert deadline(moment).tzinfo is UTC
            except UsageError as refused:
                assert "beyond the years 1 to 9999" in str(refused)  # noqa: PT017 - which of them, Python decides
            assert durations.local(moment.replace(tzinfo=UTC)) == moment.replace(tzinfo=UTC)
    finally:
        monkeypatch.undo()
        time.tzset()


@given(st.integers(-(10**10), 10**11))
def test_a_number_is_epoch_seconds(seconds):
    assert deadline(seconds).timestamp() == seconds


@pytest.mark.parametrize(
    "value", [1_735_689_600_000, 1_735_689_600_000.5, 253402300800, np.int64(1_735_689_600_000), 10**400, -(10**14)]
)
def test_a_number_beyond_the_year_9999_looks_like_milliseconds(value):
    with pytest.raises(UsageError, match="looks like milliseconds"):
        deadline(value)


def test_pandas_timestamps_are_moments_and_nat_is_none():
    assert type(deadline(pd.Timestamp("2030-01-01T00:00:00.000000001Z"))) is datetime
    assert deadline(pd.Timestamp("2030-01-01", tz="Europe/Berlin")) == datetime(2029, 12, 31, 23, tzinfo=UTC)
    with pytest.raises(UsageError, match="no moment"):
        deadline(pd.NaT)


@pytest.mark.parametrize("value", ["2030-01-01", None, True, timedelta(1), math.nan, datetime(2030, 1, 1, tzinfo=UTC).date()])
def test_what_is_no_moment_is_refused(value):
    with pytest.raises(UsageError, match="sleep_until is"):
        deadline(value)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 ms"),
        (0.0004, "0.4 ms"),
        (0.35, "350 ms"),
        (1, "1s"),
        (1.25, "1.2s"),
        (12.9, "12s"),
        (125, "2m 05s"),
        (3600 * 3 + 240, "3h 04m"),
        (86400 * 2 + 3600 * 7, "2d 07h"),
        (-125, "-2m 05s"),
    ],
)
def test_a_duration_is_written_for_people(seconds, shown):
    assert durations.text(timedelta(seconds=seconds)) == shown


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=10_000)))
def test_what_is_written_can_be_read_and_is_never_longer_than_it_was_by_a_step(span):
    steps = [(timedelta(seconds=1), 0.06), (timedelta(minutes=1), 1), (timedelta(hours=1), 1), (timedelta(days=1), 60)]
    grain = next((grain for limit, grain in steps if span < limit), 3600)
    assert abs((read(durations.text(span)) - span).total_seconds()) <= grain


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=90_000)))
def test_seconds_are_whole_where_they_are_whole(span):
    number = durations.seconds(span)
    assert timedelta(seconds=number) == span
    assert isinstance(number, int) == (span.microseconds == 0)
