"""The public test kit, used the way its users would (API.md §10)."""

import pytest

from nbflow import NonRetryableError, Status, WorkflowEntrypoint
from nbflow.testing import introspect


class Order(WorkflowEntrypoint):
    async def run(self, event, step):
        charge = await step.do("charge", charge_card, event.payload["card"])
        await step.sleep("cool down", "7 days")
        answer = await step.wait_for_event("approval", "approved", timeout="2 days")
        shipped = await step.do("ship", ship, charge)
        return [charge, answer.payload, shipped]


def charge_card(card):
    raise AssertionError("the real service must not be called")


def ship(charge):
    return f"shipped {charge}"


def test_results_sleeps_and_events_can_be_mocked(nbflow_engine):
    workflow = nbflow_engine.register(Order)
    kit = introspect(workflow)
    kit.disable_sleeps()
    kit.mock_step_result("charge", "paid")
    kit.mock_event("approved", {"ok": True})
    workflow.create(params={"card": 1})
    assert kit.wait_for_step_result("ship") == "shipped paid"
    kit.wait_for_status("complete")
    assert kit.output() == ["paid", {"ok": True}, "shipped paid"]


def test_virtual_time_lets_days_pass(nbflow_engine):
    workflow = nbflow_engine.register(Order)
    kit = introspect(workflow)
    kit.mock_step_result("charge", "paid")
    instance = workflow.create(params={"card": 1})
    nbflow_engine.clock.advance("7 days")
    assert instance.status().waiting_for[0].event_type == "approved"
    instance.send_event("approved", 1)
    nbflow_engine.clock.advance("1 second")
    assert instance.output == ["paid", 1, "shipped paid"]


def test_errors_can_be_forced_for_some_attempts(nbflow_engine):
    workflow = nbflow_engine.register(Order)
    kit = introspect(workflow)
    kit.disable_sleeps()
    kit.disable_retry_delays()
    kit.mock_step_result("charge", "paid")
    kit.mock_step_error("ship", OSError("truck is late"), times=2)
    kit.mock_event("approved")
    instance = workflow.create(params={"card": 1})
    kit.wait_for_status(Status.COMPLETE)
    assert [attempt.status for attempt in instance.step("ship").attempts] == ["failed", "failed", "finished"]


@pytest.mark.parametrize("first", ["errors", "timeouts"])
def test_a_step_with_a_mocked_result_can_fail_before_it_gives_it(nbflow_engine, first):
    workflow = nbflow_engine.register(Order)
    kit = introspect(workflow)
    kit.disable_retry_delays()
    kit.mock_step_result("charge", "paid")
    if first == "errors":
        kit.mock_step_error("charge", OSError("bank is down"), times=2)
    else:
        kit.force_step_timeout("charge", times=2)
    instance = workflow.create(params={"card": 1})
    assert kit.wait_for_step_result("charge") == "paid"
    assert [attempt.status for attempt in instance.step("charge").attempts] == ["failed", "failed", "finished"]


def test_errors_for_good_reach_run(nbflow_engine):
    workflow = nbflow_engine.register(Order)
    kit = introspect(workflow)
    kit.mock_step_error("charge", NonRetryableError("no such card"))
    workflow.create(params={"card": 1})
    kit.wait_for_status("errored")
    assert kit.error().message == "no such card"
    with pytest.raises(AssertionError, match="no such card"):
        kit.wait_for_step_result("charge")


def test_timeouts_of_steps_and_events_can_be_forced(nbflow_engine):
    workflow = nbflow_engine.register(Order)
    kit = introspect(workflow)
    kit.disable_sleeps()
    kit.disable_retry_delays()
    kit.mock_step_result("charge", "paid")
    kit.force_event_timeout("approval")
    workflow.create(params={"card": 1})
    kit.wait_for_status("errored")
    assert kit.error().type == "EventTimeoutError"

    second = introspect(workflow)
    second.force_step_timeout("ship")
    second.mock_step_result("charge", "paid")
    second.disable_sleeps()
    second.disable_retry_delays()
    second.mock_event("approved")
    workflow.create(params={"card": 2})
    second.wait_for_status("errored")
    assert second.error().type == "StepTimeoutError"


def test_rules_of_one_instance_leave_the_others_alone(nbflow_engine):
    workflow = nbflow_engine.register(Order)
    everyone = introspect(workflow)
    everyone.mock_step_result("charge", "paid")
    everyone.disable_sleeps()
    one, two = workflow.create(params={"card": 1}), workflow.create(params={"card": 2})
    one.wait(10)
    two.wait(10)
    kit = introspect(one)
    kit.mock_step_result("ship", "by hand")
    kit.mock_event("approved")
    kit.wait_for_status("complete")
    assert kit.output()[2] == "by hand"
    two.send_event("approved")
    assert two.wait(10, "finished").output[2] == "shipped paid"
