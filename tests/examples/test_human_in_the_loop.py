"""A person decides; who does not within 48 hours has said no."""

import pytest

from nbflow import EventTimeoutError, WorkflowEntrypoint


class Expense(WorkflowEntrypoint):
    async def run(self, event, step):
        amount = event.payload["amount"]
        if amount <= 100:
            return await step.do("pay", self.env.pay, amount)
        await step.do("ask the manager", self.env.ask, event.instance_id, amount)
        try:
            decision = await step.wait_for_event("manager decides", "decision", timeout="48 hours")
            approved, why = decision.payload["approved"], decision.payload.get("why", "")
        except EventTimeoutError:
            approved, why = False, "nobody answered in 48 hours"
        if not approved:
            return await step.do("reject", self.env.reject, why)
        return await step.do("pay", self.env.pay, amount)


@pytest.fixture
def asked(engine):
    asked = []
    engine.env.update(
        {
            "pay": lambda amount: f"paid {amount}",
            "reject": lambda why: f"rejected: {why}",
            "ask": lambda instance_id, amount: asked.append(instance_id),
        }
    )
    engine.register(Expense)
    return asked


def file(engine, amount):
    return engine.workflow("Expense").create(f"e-{amount}", {"amount": amount})


def test_small_sums_need_nobody(engine, asked):
    expense = file(engine, 99)
    engine.clock.advance("1 second")
    assert (expense.output, asked) == ("paid 99", [])


@pytest.mark.parametrize(
    ("payload", "outcome"),
    [({"approved": True}, "paid 500"), ({"approved": False, "why": "too much"}, "rejected: too much")],
)
def test_the_decision_is_followed(engine, asked, payload, outcome):
    expense = file(engine, 500)
    engine.clock.advance("47 hours")
    assert asked == ["e-500"]
    expense.send_event("decision", payload)
    engine.clock.advance("1 second")
    assert expense.output == outcome


def test_silence_is_a_no_after_48_hours_and_not_before(engine, asked):
    expense = file(engine, 500)
    engine.clock.advance(48 * 3600 - 1)
    assert not expense.is_finished()
    engine.clock.advance(1)
    assert expense.output == "rejected: nobody answered in 48 hours"


def test_an_answer_that_comes_too_late_is_refused(engine, asked):
    from nbflow import InvalidStatusError

    expense = file(engine, 500)
    engine.clock.advance("3 days")
    with pytest.raises(InvalidStatusError, match="complete"):
        expense.send_event("decision", {"approved": True})


def test_a_paused_expense_has_its_48_hours_after_the_pause(engine, asked):
    expense = file(engine, 500)
    engine.clock.advance("24 hours")
    expense.pause()
    engine.clock.advance("30 days")
    expense.resume()
    engine.clock.advance("23 hours")
    assert not expense.is_finished()
    engine.clock.advance("1 hour")
    assert expense.output.startswith("rejected")
