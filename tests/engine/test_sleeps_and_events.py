"""Sleeping and events (S32 to S38), in time moved by hand."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from nbflow import EventTimeoutError, InvalidStatusError, NotFoundError, UsageError
from nbflow.core.model import StepState
from tests.engine.conftest import eventually, failure_of


def waits(*names, event_type="go", timeout="24 hours"):
    async def run(event, step):
        return [(await step.wait_for_event(name, event_type, timeout=timeout)).payload for name in names]

    return run


# -- sleeping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("span", ["1 day", 86_400, timedelta(days=1), "24h", "1440m", 86_400.0])
def test_a_sleep_ends_when_its_time_is_over_and_not_before(lab, span):  # S32
    async def run(event, step):
        return await step.sleep("nap", span)

    instance = lab.start(run)
    lab.advance("23 hours 59 minutes 59 s")
    assert instance.status().status == "waiting"
    (waiting,) = instance.status().waiting_for
    assert (waiting.name, waiting.kind, waiting.until) == ("nap", "sleep", instance.created_at + timedelta(days=1))
    lab.advance("1 second")
    assert instance.output is None
    assert instance.status().status == "complete"


def test_a_sleep_of_nothing_is_over_at_once(lab):  # S32
    async def run(event, step):
        await step.sleep("nap", 0)
        await step.sleep("nap", "0 ms")
        return "awake"

    instance = lab.start(run)
    lab.idle()
    assert instance.output == "awake"


@pytest.mark.parametrize("span", ["365 days", timedelta(microseconds=1), "0.1s", 0.333333, 1 / 3])
def test_any_span_up_to_a_year_ends(lab, span):  # S32
    async def run(event, step):
        await step.sleep("a", 0.1)
        await step.sleep("b", span)
        await step.sleep("c", 0.7)
        return "awake"

    instance = lab.start(run)
    lab.advance("366 days")
    assert instance.output == "awake"


def test_the_remainder_of_a_sleep_is_slept_after_a_death_and_the_recorded_deadline_counts(lab):  # S32
    span = "10 hours"

    async def run(event, step):
        await step.sleep("nap", span)
        return "awake"

    lab.start(run, id="one")
    lab.advance("4 hours")
    span = "1 hour"  # the duration is not part of the key, and the deadline is recorded
    later = lab.revive()
    later.workflow(run)
    later.advance("5 hours 59 minutes")
    assert later.engine.get("one").status().status == "waiting"
    later.advance("1 minute")
    assert later.engine.get("one").output == "awake"


def test_a_deadline_that_passed_while_the_kernel_was_down_is_over_at_once(lab):  # S32
    async def run(event, step):
        await step.sleep("nap", "1 hour")
        return "awake"

    lab.start(run, id="one")
    lab.idle()
    later = lab.revive()
    later.advance("2 hours")
    later.workflow(run)
    later.idle()
    assert later.engine.get("one").output == "awake"


@pytest.mark.parametrize("when", [datetime(2025, 12, 31, tzinfo=UTC), 0, 1_700_000_000.5, datetime(2026, 1, 1, tzinfo=UTC)])
def test_sleeping_until_the_past_returns_at_once(lab, when):  # S33
    async def run(event, step):
        await step.sleep_until("nap", when)
        return "awake"

    instance = lab.start(run)
    lab.idle()
    assert instance.output == "awake"


@pytest.mark.parametrize("as_number", [False, True])
def test_sleeping_until_a_moment_ends_then(lab, as_number):  # S33
    moment = datetime(2026, 1, 3, 12, tzinfo=UTC)

    async def run(event, step):
        await step.sleep_until("nap", moment.timestamp() if as_number else moment)
        return "awake"

    instance = lab.start(run)
    lab.advance("2 days 11 hours")
    assert instance.status().waiting_for[0].until == moment
    lab.advance("1 hour")
    assert instance.output == "awake"


def test_sleeping_until_the_last_moment_there_is_sleeps(lab):
    async def run(event, step):
        await step.sleep_until("for ever", datetime.max.replace(tzinfo=UTC))

    instance = lab.start(run)
    lab.advance("400 days")
    assert instance.status().status == "waiting"
    assert instance.status().waiting_for[0].until.year == 9999


def test_a_recorded_sleep_until_passes_silently_whatever_the_code_says_now(lab):  # S33
    when = datetime(2026, 1, 2, tzinfo=UTC)

    async def run(event, step):
        await step.sleep_until("nap", when)
        await step.wait_for_event("go", "go")
        return "done"

    lab.start(run, id="one")
    lab.advance("30 hours")
    when = datetime(2030, 1, 1, tzinfo=UTC)
    later = lab.revive()
    later.workflow(run)
    later.engine.get("one").send_event("go")
    later.idle()
    assert later.engine.get("one").output == "done"


def test_parallel_sleeps_end_in_the_order_of_their_deadlines(lab):
    woken = []

    async def run(event, step):
        async def nap(hours):
            await step.sleep(f"nap {hours}", timedelta(hours=hours))
            woken.append(hours)

        await asyncio.gather(*(nap(hours) for hours in (3, 1, 2)))

    lab.start(run)
    lab.advance("1 day")
    assert woken == [1, 2, 3]


# -- events -----------------------------------------------------------------------------------------------------------


def test_an_event_ends_the_wait_and_gives_payload_type_and_time(lab):  # S34
    async def run(event, step):
        got = await step.wait_for_event("ask", "approval")
        return got.payload, got["payload"], got.type, got["type"], got.timestamp, got["timestamp"] == got.timestamp

    instance = lab.start(run)
    lab.advance("3 hours")
    assert instance.status().status == "waiting"
    assert instance.is_settled()
    instance.send_event("approval", {"ok": (1, b"x")}, by="me")
    lab.idle()
    sent = instance.created_at + timedelta(hours=3)
    assert instance.output == ({"ok": (1, b"x")}, {"ok": (1, b"x")}, "approval", "approval", sent, True)


def test_an_event_sent_before_anybody_waits_is_kept(lab):  # S34
    async def run(event, step):
        await step.sleep("nap", "1 hour")
        return (await step.wait_for_event("ask", "go")).payload

    instance = lab.start(run)
    instance.send_event("go", "early")
    lab.advance("1 hour")
    assert instance.output == "early"


def test_events_of_one_type_are_taken_first_in_first_out_each_once(lab):  # S34
    instance = lab.start(waits("a", "b", "c"))
    for payload in (1, 2, 3):
        instance.send_event("go", payload)
    lab.idle()
    assert instance.output == [1, 2, 3]


def test_one_event_serves_one_wait(lab):  # S34
    instance = lab.start(waits("a", "b"))
    instance.send_event("go", 1)
    lab.idle()
    assert instance.status().waiting_for[0].name == "b"
    lab.advance("1 hour")
    instance.send_event("go", 2)
    lab.idle()
    assert instance.output == [1, 2]


def test_a_taken_event_stays_taken_over_a_death(lab):  # S34
    run = waits("a", "b")
    lab.start(run, id="one").send_event("go", 1)
    lab.idle()
    later = lab.revive()
    later.workflow(run)
    later.idle()
    instance = later.engine.get("one")
    assert instance.status().waiting_for[0].name == "b"
    instance.send_event("go", 2)
    later.idle()
    assert instance.output == [1, 2]


def test_events_are_matched_on_type_alone(lab):  # S34
    async def run(event, step):
        stop = await step.wait_for_event("go", "stop")
        return stop.payload

    instance = lab.start(run)
    instance.send_event("go", 1)
    lab.idle()
    assert instance.is_settled()
    instance.send_event("stop", 2)
    lab.idle()
    assert instance.output == 2


def test_two_waits_of_one_type_the_first_called_gets_the_first_event(lab):  # S35
    async def run(event, step):
        second = None

        async def wait(name):
            return name, (await step.wait_for_event(name, "go")).payload

        first = asyncio.ensure_future(wait("first"))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(wait("second"))
        return [await first, await second]

    instance = lab.start(run)
    lab.idle()
    instance.send_event("go", 1)
    lab.idle()
    assert instance.status().waiting_for[0].name == "second"
    instance.send_event("go", 2)
    lab.idle()
    assert instance.output == [("first", 1), ("second", 2)]


def test_the_first_by_order_gets_the_first_event_after_a_death_too_whatever_is_called_first(lab):  # S35
    names = ["first", "second"]

    async def run(event, step):
        calls = {name: step.wait_for_event(name, "go") for name in names}
        return [(await calls[name]).payload for name in ("first", "second")]

    lab.start(run, id="one")
    lab.idle()
    names.reverse()
    later = lab.revive()
    later.workflow(run)
    later.idle()
    instance = later.engine.get("one")
    instance.send_event("go", 1)
    instance.send_event("go", 2)
    later.idle()
    assert instance.output == [1, 2]


def test_a_wait_that_timed_out_is_out_of_the_queue(lab):  # S36
    async def run(event, step):
        try:
            await step.wait_for_event("first", "go", timeout="1 hour")
        except EventTimeoutError:
            pass
        return (await step.wait_for_event("second", "go")).payload

    instance = lab.start(run)
    lab.advance("2 hours")
    instance.send_event("go", "for the second")
    lab.idle()
    assert instance.output == "for the second"


def test_a_wait_times_out_after_24_hours_by_default(lab):  # S37
    instance = lab.start(waits("ask"))
    lab.advance("23 hours 59 minutes")
    assert instance.status().status == "waiting"
    lab.advance("1 minute")
    assert isinstance(failure_of(instance), EventTimeoutError)
    assert "'go'" in str(failure_of(instance))


def test_an_event_timeout_can_be_caught_is_recorded_and_raised_again_on_replay(lab):  # S37
    seen = []

    async def run(event, step):
        try:
            await step.wait_for_event("ask", "go", timeout="1 hour")
        except TimeoutError as error:
            seen.append((type(error).__name__, str(error)))
        await step.wait_for_event("end", "end")

    lab.start(run, id="one")
    lab.advance("1 hour")
    instance = lab.engine.get("one")
    assert instance.step("ask").status is StepState.FAILED
    later = lab.revive()
    later.workflow(run)
    later.idle()
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0][0] == "EventTimeoutError"


def test_the_deadline_of_a_wait_is_durable(lab):  # S37
    run = waits("ask", timeout="10 hours")
    lab.start(run, id="one")
    lab.advance("6 hours")
    later = lab.revive()
    later.workflow(run)
    later.advance("3 hours 59 minutes")
    assert not later.engine.get("one").is_finished()
    later.advance("1 minute")
    assert isinstance(failure_of(later.engine.get("one")), EventTimeoutError)


def test_an_event_sent_before_the_deadline_wins_though_the_kernel_was_down_at_it(lab):  # S37
    run = waits("ask", timeout="1 hour")
    lab.start(run, id="one")
    lab.idle()
    later = lab.revive()
    later.advance("59 minutes")
    later.engine.get("one").send_event("go", "in time")
    later.advance("1 day")
    later.workflow(run)
    later.idle()
    assert later.engine.get("one").output == ["in time"]


def test_an_event_sent_at_the_very_deadline_wins(lab):  # S37
    run = waits("ask", timeout="1 hour")
    lab.start(run, id="one")
    lab.idle()
    later = lab.revive()
    later.advance("1 hour")
    later.engine.get("one").send_event("go", "just")
    later.workflow(run)
    later.idle()
    assert later.engine.get("one").output == ["just"]


def test_an_event_sent_after_the_deadline_is_for_the_next_wait(lab):  # S36, S37
    async def run(event, step):
        try:
            await step.wait_for_event("first", "go", timeout="1 hour")
        except EventTimeoutError:
            return "late", (await step.wait_for_event("second", "go")).payload

    lab.start(run, id="one")
    lab.idle()
    later = lab.revive()
    later.advance("2 hours")
    later.engine.get("one").send_event("go", 5)
    later.workflow(run)
    later.idle()
    assert later.engine.get("one").output == ("late", 5)


def test_a_wait_can_last_a_year(lab):  # S37
    instance = lab.start(waits("ask", timeout="365 days"))
    lab.advance("364 days")
    instance.send_event("go", "at last")
    lab.idle()
    assert instance.output == ["at last"]


def test_a_timeout_of_nothing_takes_only_what_is_there(lab):
    early = lab.start(waits("ask", timeout=0), id="late")
    lab.idle()
    assert isinstance(failure_of(early), EventTimeoutError)

    async def run(event, step):
        await step.sleep("nap", 1)
        return (await step.wait_for_event("ask", "go", timeout=0)).payload

    instance = lab.start(run, id="early")
    instance.send_event("go", 1)
    lab.advance(1)
    assert instance.output == 1


def test_an_event_to_a_finished_instance_is_refused(lab):  # S38
    instance = lab.run(lambda event, step: asyncio.sleep(0))
    with pytest.raises(InvalidStatusError, match="complete"):
        instance.send_event("go")
    assert [e for e in instance.history() if e.kind == "event"] == []


def test_an_event_to_a_paused_instance_is_kept_and_delivered_after_resume(lab):  # S38
    instance = lab.start(waits("ask"))
    lab.idle()
    instance.pause()
    instance.send_event("go", "kept")
    lab.idle()
    assert instance.status().status == "paused"
    instance.resume()
    lab.idle()
    assert instance.output == ["kept"]


def test_an_event_to_an_unknown_or_deleted_instance_is_refused(lab):  # S38
    instance = lab.start(waits("ask"))
    with pytest.raises(NotFoundError):
        lab.engine.get("nobody")
    instance.delete()
    with pytest.raises(NotFoundError):
        instance.send_event("go")


@pytest.mark.parametrize("bad", ["", "two words", "-x", "a.b", "x" * 101, "ü", 5, None])
def test_a_wrong_event_type_is_refused_before_anything_is_stored(lab, bad):  # S2
    instance = lab.start(waits("ask"))
    lab.idle()
    before = len(lab.entries())
    with pytest.raises(UsageError):
        instance.send_event(bad, 1)
    assert len(lab.entries()) == before


@pytest.mark.parametrize("good", ["x", "x" * 100, "A_z-9", "0"])
def test_event_types_of_1_to_100_word_characters_are_taken(lab, good):  # S2
    instance = lab.start(waits("ask", event_type=good))
    instance.send_event(good, 1)
    lab.idle()
    assert instance.output == [1]


def test_an_event_counts_from_the_moment_it_was_sent(lab):  # S34
    async def run(event, step):
        await step.wait_for_event("ask", "go")
        await step.wait_for_event("ask", "never")

    instance = lab.start(run)
    lab.idle()
    for _ in range(50):
        assert instance.is_settled()
        instance.send_event("other")
        assert instance.is_settled()  # nobody waits for that one
    instance.send_event("go")
    # Either it counts as running, or it has gone on to the next wait: never as waiting for what was sent.
    status = instance.status()
    assert status.status == "running" or status.waiting_for[0].event_type == "never"
    lab.idle()
    assert instance.is_settled()


def test_waiting_while_sleeping_is_not_settled(lab):
    async def run(event, step):
        await asyncio.gather(step.wait_for_event("ask", "go"), step.sleep("nap", "1 hour"))

    instance = lab.start(run)
    lab.idle()
    assert not instance.is_settled()
    lab.advance("1 hour")
    assert instance.is_settled()


def test_a_payload_that_cannot_be_stored_is_refused_at_the_call(lab):
    instance = lab.start(waits("ask"))
    with pytest.raises(TypeError, match="lock"):
        instance.send_event("go", __import__("threading").Lock())


def test_answering_a_wait_works_once(lab):
    instance = lab.start(waits("ask", "ask"))
    lab.idle()
    instance.answer("ask", 1, {"approved": True}, by="anna")
    with pytest.raises(InvalidStatusError, match="answered by anna"):
        instance.answer("ask", 1, {"approved": False}, by="bert")
    lab.idle()
    instance.answer("ask", 2, "second", by="bert")
    lab.idle()
    assert instance.output == [{"approved": True}, "second"]
    with pytest.raises(NotFoundError):
        instance.answer("other", 1, None)


def test_events_may_be_sent_from_a_body_of_the_instance_itself(lab):
    async def run(event, step):
        await step.do("send", lambda ctx: lab.engine.get(ctx.instance_id).send_event("go", "from within"))
        return (await step.wait_for_event("ask", "go")).payload

    assert lab.output(run) == "from within"


def test_a_wait_may_be_raced_and_its_loser_is_cancelled(lab):  # S21
    async def run(event, step):
        ask = asyncio.ensure_future(step.wait_for_event("ask", "go"))
        nap = asyncio.ensure_future(step.sleep("nap", "1 hour"))
        done, pending = await asyncio.wait({ask, nap}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return "asked" if ask in done else "slept", (await step.wait_for_event("again", "go")).payload

    instance = lab.start(run)
    lab.advance("2 hours")
    assert instance.step("ask").status is StepState.CANCELLED
    instance.send_event("go", "for the second")
    lab.idle()
    assert instance.output == ("slept", "for the second")
    eventually(instance.is_finished)
