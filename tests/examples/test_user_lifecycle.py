"""A user's life with a trial: welcome, a reminder, the end of seven days, all in virtual time."""

from datetime import timedelta

import pytest

from nbflow import EventTimeoutError, WorkflowEntrypoint


class Trial(WorkflowEntrypoint):
    async def run(self, event, step):
        mail, user = self.env.mail, event.payload["user"]
        await step.do("welcome", mail, user, "welcome")
        await step.sleep("five days of trial", "5 days")
        bought = await step.do("did they buy?", self.env.has_bought, user)
        if not bought:
            await step.do("remind", mail, user, "two days left")
            try:
                purchase = await step.wait_for_event("purchase", "purchase", timeout="2 days")
            except EventTimeoutError:
                await step.do("end the trial", mail, user, "your trial is over")
                return "left"
            bought = purchase.payload["plan"]
        await step.do("thank", mail, user, f"thanks for {bought}")
        return bought


@pytest.fixture
def world(engine):
    world = {"mails": [], "bought": {}}
    engine.env.update(
        {
            "mail": lambda user, text: world["mails"].append((engine.clock.now(), user, text)),
            "has_bought": world["bought"].get,
        }
    )
    world["start"] = engine.clock.now()
    return world


def days_and_texts(world):
    return [((at - world["start"]) / timedelta(days=1), text) for at, _, text in world["mails"]]


def test_who_does_nothing_has_left_after_seven_days(engine, world):
    user = engine.register(Trial).create("u1", {"user": "ada"})
    engine.clock.advance("6 days")
    assert not user.is_finished()
    engine.clock.advance("1 day")
    assert user.output == "left"
    assert days_and_texts(world) == [(0, "welcome"), (5, "two days left"), (7, "your trial is over")]


def test_who_buys_after_the_reminder_is_thanked_at_once(engine, world):
    user = engine.register(Trial).create("u1", {"user": "ada"})
    engine.clock.advance("6 days")
    user.send_event("purchase", {"plan": "pro"})
    engine.clock.advance("1 second")
    assert user.output == "pro"
    assert days_and_texts(world) == [(0, "welcome"), (5, "two days left"), (6, "thanks for pro")]


def test_who_bought_before_is_never_reminded(engine, world):
    user = engine.register(Trial).create("u1", {"user": "ada"})
    engine.clock.advance("1 day")
    world["bought"]["ada"] = "basic"
    engine.clock.advance("6 days")
    assert user.output == "basic"
    assert days_and_texts(world) == [(0, "welcome"), (5, "thanks for basic")]


def test_days_in_which_no_kernel_ran_count(engine, world, reopen):
    engine.register(Trial).create("u1", {"user": "ada"})
    engine.clock.advance("1 day")
    clock = engine.clock
    engine.close()
    clock.advance("10 days")
    later = reopen(engine, Trial)
    later.clock.advance("1 second")
    assert [text for _, text in days_and_texts(world)] == ["welcome", "two days left"]
    later.clock.advance("2 days")
    assert later.get("u1").output == "left"
