"""The fold of entries: what an instance is follows from them alone (S5 to S9, S27, S34, S41, S44, S52)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbflow.core.head import moment, moment_text
from nbflow.core.history import History, fold_head, settled, status_of
from nbflow.core.model import ENDED, FENCES, FINISHED, Entry, Kind, Status, StepKey, StepState, StepType

from .stories import Pen, any_entries, entry, known, seconds

INSTANCE_ENDS = [Kind.COMPLETED, Kind.ERRORED, Kind.TERMINATED]
STEP_ENDS = [Kind.DO_FINISHED, Kind.DO_FAILED, Kind.DO_CANCELLED]


@given(any_entries(), st.integers(0, 25))
def test_folding_bit_by_bit_comes_to_the_same_as_at_once(entries, cut):
    history = History(entries[:cut])
    read_in_between = known(history)
    assert read_in_between == known(History(entries[:cut]))
    for each in entries[cut:]:
        history.apply(each)
    assert known(history) == known(History(entries))
    assert history.version == History(entries).version <= len(entries)


@given(any_entries())
def test_entries_that_were_written_and_read_back_fold_to_the_same(entries):
    read = msgspec.json.decode(msgspec.json.encode(entries), type=list[Entry])
    assert known(History(read)) == known(History(entries))


@given(
    st.datetimes(
        datetime(2, 1, 1),
        datetime(9998, 1, 1),
        timezones=st.sampled_from([UTC, ZoneInfo("Asia/Kolkata"), timezone(-timedelta(hours=3, minutes=30))]),
    )
)
def test_a_moment_in_a_body_is_written_as_isoformat_does(at):
    assert moment_text(at) == at.isoformat()
    assert moment(moment_text(at.astimezone(UTC))) == at.astimezone(UTC)


@given(any_entries())
def test_the_head_needs_no_step_entries(entries):
    head = fold_head([each for each in entries if each.step is None])
    whole = History(entries).head
    # Deaths without progress are counted from step entries; only the engine that resumes reads them.
    assert replace(head, deaths=0, progressed=False) == replace(whole, deaths=0, progressed=False)


@given(any_entries(), any_entries(tokens=3), st.data())
def test_entries_of_old_tokens_never_count(entries, others, data):
    history = History(entries)
    before, version, token = known(history), history.version, history.head.token
    for each in others[1:]:
        if 0 < each.token < token:
            assert not history.apply(each)
    assert known(history) == before
    assert history.version == version


@given(any_entries())
def test_a_fence_makes_the_token_new_and_tokens_never_go_back(entries):
    history, token = History(), 0
    for each in entries:
        counted = history.apply(each)
        assert history.head.token >= token
        assert history.head.token in (token, each.token)
        if each.kind in FENCES and counted:
            assert history.head.token == each.token
        token = history.head.token


@given(any_entries())
def test_a_finished_instance_goes_on_only_by_a_retry_or_a_restart(entries):
    history = History()
    for each in entries:
        before = history.head.status
        history.apply(each)
        after = history.head.status
        assert after in Status
        if before in FINISHED and after is not before:
            assert each.kind in (Kind.RETRIED, Kind.RESTARTED)


@pytest.mark.parametrize("first", INSTANCE_ENDS)
@pytest.mark.parametrize(
    "second",
    [
        *INSTANCE_ENDS,
        Kind.PAUSING,
        Kind.PAUSED,
        Kind.RESUMED,
        Kind.ROLLING_BACK,
        Kind.TERMINATING,
        Kind.INTERRUPTED,
        Kind.ACTIVATED,
    ],
)
def test_an_end_of_an_instance_after_its_end_changes_nothing(first, second):
    pen = Pen()
    pen.token += first is Kind.TERMINATED
    pen.write(first, value=b"1")
    history = pen.history()
    before = known(history)
    assert not history.apply(entry(second, pen.token + (second in FENCES), 99, 99, value=b"2"))
    assert known(history) == before


@pytest.mark.parametrize("first", [Kind.DO_FINISHED, Kind.DO_FAILED])
@pytest.mark.parametrize("second", STEP_ENDS)
def test_an_end_of_a_step_after_its_end_changes_nothing(first, second):
    pen = Pen()
    order = pen.start(Kind.DO_STARTED, "a")
    pen.write(first, "a", order=order, value=b"1")
    before = pen.history()
    pen.write(second, "a", order=order, value=b"2")
    after = pen.history()
    assert (after.steps, after.delivered, after.last_order) == (before.steps, before.delivered, before.last_order)


@given(any_entries())
def test_what_was_handed_out_is_what_ended_with_a_value_or_a_failure_each_once(entries):
    history = History(entries)
    assert len(history.delivered) == len(set(history.delivered))
    assert set(history.delivered) == {
        key
        for key, step in history.steps.items()
        if step.state in (StepState.FINISHED, StepState.FAILED) and key.type is not StepType.ROLLBACK
    }


def test_results_are_handed_out_in_the_order_of_their_ends():
    pen = Pen()
    orders = {name: pen.start(Kind.DO_STARTED, name) for name in "abc"}
    for name in "cab":
        pen.write(Kind.DO_FAILED if name == "a" else Kind.DO_FINISHED, name, order=orders[name])
    assert [key.name for key in pen.history().delivered] == ["c", "a", "b"]


def test_kinds_counts_and_keys_make_different_steps():
    pen = Pen()
    pen.start(Kind.DO_STARTED, "a")
    pen.start(Kind.SLEEP_STARTED, "a")
    pen.start(Kind.WAIT_STARTED, "a")
    pen.entries.append(entry(Kind.DO_STARTED, pen.token, 50, 50, "a", 2, order=4))
    assert set(pen.history().steps) == {
        StepKey(StepType.DO, "a"),
        StepKey(StepType.SLEEP, "a"),
        StepKey(StepType.WAIT, "a"),
        StepKey(StepType.DO, "a", 2),
    }


@given(any_entries(), st.integers(1, 7))
def test_a_restart_keeps_exactly_what_has_a_lower_order(entries, keep_below):
    history = History(entries)
    before = known(history)
    counted = history.apply(entry(Kind.RESTARTED, history.head.token + 1, 99, 99, keep_below=keep_below))
    if not counted:
        assert history.head.deleted
        return
    kept = {key for key, step in before["steps"].items() if step.order < keep_below}
    assert set(history.steps) == kept
    assert history.delivered == [key for key in before["delivered"] if key in kept]
    assert history.last_order == max((step.order for step in history.steps.values()), default=0)
    assert history.head.status is Status.QUEUED
    assert (history.head.ended_at, history.head.error, history.head.output) == (None, None, None)
    for key in kept:
        if before["steps"][key].state in ENDED:
            assert history.steps[key] == before["steps"][key]
        else:
            assert history.steps[key].state is not StepState.RUNNING


@given(any_entries())
def test_a_whole_restart_forgets_steps_and_events_and_keeps_params_and_creation(entries):
    history = History(entries)
    before = known(history)["head"]
    if history.apply(entry(Kind.RESTARTED, before.token + 1, 99, 99, keep_below=0)):
        assert (history.steps, history.delivered, history.events, history.last_order) == ({}, [], {}, 0)
        head = history.head
        assert (head.params, head.created_at, head.instance_id) == (before.params, before.created_at, before.instance_id)


def test_a_restart_from_a_step_keeps_events_that_nobody_took_and_those_of_kept_waits():
    pen = Pen()
    order = pen.start(Kind.WAIT_STARTED, "first")
    pen.event("e1")
    pen.write(Kind.WAIT_FINISHED, "first", order=order, event_id="e1")
    pen.start(Kind.DO_STARTED, "after")
    pen.event("e2")
    pen.restart(keep_below=2)
    history = pen.history()
    assert [event.event_id for event in history.buffered("go")] == ["e2"]
    assert history.events["e1"].taken_by == StepKey(StepType.WAIT, "first")


@given(any_entries())
def test_a_claim_interrupts_attempts_in_flight_and_nothing_else(entries):
    history = History(entries)
    before = known(history)["steps"]
    if not history.apply(entry(Kind.CLAIMED, history.head.token + 1, 99, 99)):
        assert history.head.deleted
        return
    for key, step in history.steps.items():
        if before[key].state is StepState.RUNNING and key.type in (StepType.DO, StepType.ROLLBACK, StepType.MAP):
            assert step.state is StepState.INTERRUPTED
            assert all(attempt.state is not StepState.RUNNING for attempt in step.attempts)
            assert (step.failures, step.attempt) == (before[key].failures, before[key].attempt)
        else:
            assert step == before[key]


def test_an_attempt_cut_off_by_a_death_does_not_count_against_the_limit():
    pen = Pen()
    order = pen.start(Kind.DO_STARTED, "a", attempt=1)
    pen.write(Kind.DO_RETRYING, "a", order=order, attempt=1)
    pen.write(Kind.DO_STARTED, "a", order=order, attempt=2)
    pen.claim()
    pen.write(Kind.DO_STARTED, "a", order=order, attempt=3)
    step = pen.history().steps[StepKey(StepType.DO, "a")]
    assert (step.attempt, step.failures) == (3, 1)
    assert [attempt.state for attempt in step.attempts] == [StepState.FAILED, StepState.INTERRUPTED, StepState.RUNNING]


def test_deaths_count_only_in_a_row_and_without_a_finished_entry():
    pen = Pen()
    for expected in (1, 2, 3):
        pen.claim()
        assert pen.history().head.deaths == expected
    order = pen.start(Kind.DO_STARTED, "a")
    pen.write(Kind.DO_FINISHED, "a", order=order)
    pen.claim()
    assert pen.history().head.deaths == 0


def test_an_orderly_release_is_no_death_and_the_word_to_resume_forgives_them():
    """S27: that of a cell, which is run after each death, does not; it resumes what has failed."""
    pen = Pen()
    pen.claim()
    pen.write(Kind.RELEASED)
    pen.claim()
    assert pen.history().head.deaths == 1
    pen.token += 1
    pen.write(Kind.CLAIMED, by="cell")
    assert pen.history().head.deaths == 2
    pen.token += 1
    pen.write(Kind.CLAIMED, by="resume")
    assert pen.history().head.deaths == 0


@given(st.lists(st.sampled_from(["go", "stop"]), max_size=8), st.integers(0, 8))
def test_events_are_first_in_first_out_and_taken_once(types, taken):
    pen = Pen()
    for number, event_type in enumerate(types):
        pen.event(f"e{number}", event_type)
    got: dict[str, list[str]] = {"go": [], "stop": []}
    for number in range(taken):
        event_type = ("go", "stop")[number % 2]
        if waiting := pen.history().buffered(event_type):
            order = pen.start(Kind.WAIT_STARTED, f"w{number}", event_type=event_type)
            got[event_type].append(waiting[0].event_id)
            pen.write(Kind.WAIT_FINISHED, f"w{number}", order=order, event_id=waiting[0].event_id, event_type=event_type)
    history = pen.history()
    for event_type, ids in got.items():
        sent = [f"e{number}" for number, each in enumerate(types) if each == event_type]
        assert ids + [event.event_id for event in history.buffered(event_type)] == sent


@given(any_entries())
def test_an_event_once_taken_stays_with_the_wait_that_took_it(entries):
    history, takers = History(), {}
    for each in entries:
        history.apply(each)
        if each.kind is Kind.RESTARTED:
            takers = {}
        for event in history.events.values():
            if event.taken_by is not None:
                assert takers.setdefault(event.event_id, event.taken_by) == event.taken_by
                assert event not in history.buffered(event.type)


def test_an_event_seen_in_the_journal_and_then_in_the_file_is_one():
    pen = Pen()
    own = entry(Kind.EVENT, 0, 5, 0, event_id="own", value=b"1")
    pen.entries.append(own)
    pen.entries.append(entry(Kind.EVENT, 0, 6, 40, event_id="theirs", value=b"2"))
    assert [event.event_id for event in pen.history().buffered("go")] == ["theirs", "own"]
    pen.entries.append(msgspec.structs.replace(own, seq=39))
    assert [(event.event_id, event.seq) for event in pen.history().buffered("go")] == [("own", 39), ("theirs", 40)]


@given(any_entries(), any_entries())
def test_nothing_counts_after_a_deletion(entries, others):
    history = History(entries)
    history.apply(entry(Kind.DELETED, history.head.token + 1, 99, 99))
    before = known(history)
    assert before["head"].deleted
    for each in others[1:]:
        assert not history.apply(each)
    assert known(history) == before


def absorbed(entries: list[Entry]) -> list[Entry]:
    """What a load leaves: a start whose end follows is gone (DESIGN.md §4)."""
    left, ended = [], set()
    for each in reversed(entries):
        key = (each.step_key, each.body.get("attempt"))
        if each.kind in (Kind.DO_STARTED, Kind.SLEEP_STARTED, Kind.WAIT_STARTED):
            if key in ended:
                continue
        elif each.step is not None:
            ended.add(key)
        left.append(each)
    return left[::-1]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.sampled_from(STEP_ENDS))
def test_a_start_absorbed_by_its_end_is_not_missed(retries, last):
    pen = Pen()
    for number, count in enumerate(retries):
        name, order = f"s{number}", number + 1
        for attempt in range(1, count + 2):
            started = seconds(len(pen.entries)).isoformat()
            pen.write(Kind.DO_STARTED, name, order=order, attempt=attempt)
            kind = Kind.DO_RETRYING if attempt <= count else last
            pen.write(
                kind, name, order=order, attempt=attempt, started_at=started, config={"retries": {"limit": 5}}, value=b"1"
            )
    whole, short = pen.history(), History(absorbed(pen.entries))
    assert len(absorbed(pen.entries)) < len(pen.entries)
    assert whole.steps == short.steps
    assert (whole.delivered, whole.last_order) == (short.delivered, short.last_order)


def test_a_pause_moves_deadlines_but_not_those_that_name_a_moment():
    pen = Pen()
    pen.start(Kind.SLEEP_STARTED, "length", due_at=seconds(100).isoformat())
    pen.start(Kind.SLEEP_STARTED, "moment", due_at=seconds(100).isoformat(), fixed=True)
    pen.start(Kind.WAIT_STARTED, "event", due_at=seconds(100).isoformat())
    order = pen.start(Kind.DO_STARTED, "body")
    pen.write(Kind.DO_RETRYING, "body", order=order, due_at=seconds(100).isoformat())
    pen.write(Kind.PAUSED)
    pen.write(Kind.RESUMED, token=0, shift_s=30.5)
    due = {step.key.name: step.due_at - seconds(100) for step in pen.history().open_steps()}
    moved = timedelta(seconds=30.5)
    assert due == {"length": moved, "moment": timedelta(0), "event": moved, "body": moved}


def test_retrying_drops_the_failed_steps_and_keeps_the_finished():
    pen = Pen()
    good, bad = pen.start(Kind.DO_STARTED, "good"), pen.start(Kind.DO_STARTED, "bad")
    pen.write(Kind.DO_FINISHED, "good", order=good, value=b"1")
    pen.write(Kind.DO_FAILED, "bad", order=bad)
    pen.write(Kind.ERRORED)
    pen.write(Kind.RETRIED, token=0)
    history = pen.history()
    assert [key.name for key in history.steps] == [key.name for key in history.delivered] == ["good"]
    assert (history.head.status, history.head.error) == (Status.RUNNING, None)


@pytest.mark.parametrize("fence", [Kind.TERMINATED, Kind.CLAIMED])
def test_behind_a_fence_no_attempt_shows_as_running_and_its_late_end_is_not_heard(fence):
    pen = Pen()
    order, old = pen.start(Kind.DO_STARTED, "a"), pen.token
    pen.token += 1
    pen.write(fence)
    before = known(pen.history())
    assert pen.history().steps[StepKey(StepType.DO, "a")].state is StepState.INTERRUPTED
    pen.write(Kind.DO_FINISHED, "a", token=old, order=order, value=b"late")
    assert known(pen.history()) == before


def test_running_shows_as_waiting_while_everything_open_waits():
    pen = Pen()
    assert status_of(pen.history()) is Status.RUNNING
    sleep = pen.start(Kind.SLEEP_STARTED, "nap")
    assert status_of(pen.history()) is Status.WAITING
    body = pen.start(Kind.DO_STARTED, "body")
    assert status_of(pen.history()) is Status.RUNNING
    pen.write(Kind.DO_FINISHED, "body", order=body)
    pen.write(Kind.SLEEP_FINISHED, "nap", order=sleep)
    pen.start(Kind.WAIT_STARTED, "ask")
    assert status_of(pen.history()) is Status.WAITING
    pen.event("e1")
    assert status_of(pen.history()) is Status.RUNNING


def test_settled_means_that_every_path_waits_for_an_event_nobody_sent():
    pen = Pen()
    assert not settled(pen.history())
    pen.start(Kind.WAIT_STARTED, "ask")
    assert settled(pen.history())
    sleep = pen.start(Kind.SLEEP_STARTED, "nap")
    assert not settled(pen.history())
    pen.write(Kind.SLEEP_FINISHED, "nap", order=sleep)
    pen.event("e1", "other")
    assert settled(pen.history())
    pen.event("e2")
    assert not settled(pen.history())


def test_from_history_is_what_had_ended_when_the_activation_began():
    pen = Pen()
    order = pen.start(Kind.DO_STARTED, "old")
    pen.write(Kind.DO_FINISHED, "old", order=order)
    pen.claim()
    order = pen.start(Kind.DO_STARTED, "new")
    pen.write(Kind.DO_FINISHED, "new", order=order)
    assert {key.name for key in pen.history().replayed} == {"old"}
