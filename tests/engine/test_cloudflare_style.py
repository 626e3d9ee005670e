"""A class written for Cloudflare's Python SDK runs when only its import line is replaced (API.md §1)."""

from nbflow import NonRetryableError, WorkflowEntrypoint
from tests.engine.conftest import Lab, eventually, failure_of


class Order(WorkflowEntrypoint):
    async def run(self, event, step):
        payload = event["payload"]

        @step.do("validate order", config={"retries": {"limit": 2, "delay": 30, "backoff": "constant"}, "timeout": "2 minutes"})
        async def validate():
            if payload["amount"] < 0:
                raise NonRetryableError("negative")
            return {"id": payload["id"], "at": event["timestamp"].isoformat(), "instance": event["instanceId"]}

        @step.do("reserve stock")
        async def reserve():
            return "stock"

        @step.do("charge", concurrent=True)
        async def charge(validate, reserve, ctx):
            if payload.get("flaky") and ctx["attempt"] < 3:
                raise RuntimeError("declined")
            return [validate["id"], reserve, ctx["step"]["name"], ctx["attempt"], ctx["config"]["timeout"]]

        charged = await charge()
        await step.sleep("cool down", 60)
        await step.sleep_until("moment", event["timestamp"].timestamp() + 120)
        answer = await step.wait_for_event("ask", event_type="approval", timeout="1 hour")
        checked = await validate()
        return {"charged": charged, "answer": answer["payload"], "type": answer["type"], "checked": checked["id"]}


def started(lab: Lab, **params):
    return lab.engine.register(Order).create(id="o1", params={"id": 7, "amount": 5, **params})


def test_such_a_class_runs_unchanged(lab):
    instance = started(lab)
    lab.advance(59)
    assert [w.name for w in instance.status().waiting_for] == ["cool down"]
    lab.advance(1)
    assert [w.name for w in instance.status().waiting_for] == ["moment"]
    lab.advance(60)
    instance.send_event("approval", {"approved": True})
    lab.idle()
    assert instance.output == {
        "charged": [7, "stock", "charge", 1, 600],
        "answer": {"approved": True},
        "type": "approval",
        "checked": 7,
    }
    assert [(s.type, s.name, s.count) for s in instance.steps] == [
        ("do", "validate order", 1),
        ("do", "reserve stock", 1),
        ("do", "charge", 1),
        ("sleep", "cool down", 1),
        ("sleep", "moment", 1),
        ("wait", "ask", 1),
        ("do", "validate order", 2),
    ]


def test_its_config_is_in_force(lab):
    instance = started(lab, flaky=True)
    lab.advance("30 seconds")
    eventually(lambda: len(instance.step("charge").attempts) == 3)
    assert instance.step("validate order").limit == 3


def test_its_non_retryable_error_fails_it_at_once(lab):
    instance = started(lab, amount=-1)
    lab.idle()
    error = failure_of(instance)
    assert isinstance(error, NonRetryableError)
    assert len(instance.step("validate order").attempts) == 1


def test_its_wait_may_be_written_with_a_dict(lab):
    async def run(event, step):
        return (await step.wait_for_event("ask", {"type": "approval", "timeout": "1 hour"}))["payload"]

    instance = lab.start(run)
    instance.send_event("approval", 1)
    lab.idle()
    assert instance.output == 1


def test_it_goes_on_after_a_death(lab):
    started(lab)
    lab.advance(60)
    later = lab.revive()
    later.engine.register(Order)
    later.advance(60)
    instance = later.engine.get("o1")
    instance.send_event("approval", "yes")
    later.idle()
    assert instance.output["answer"] == "yes"


def test_its_constructor_may_take_what_cloudflare_gives(lab):
    class Constructed(WorkflowEntrypoint):
        def __init__(self, ctx, env):
            super().__init__(ctx, env)
            self.rate = self.env["rate"]

        async def run(self, event, step):
            return self.rate, self.env.rate

    class WithDefaults(WorkflowEntrypoint):
        def __init__(self, size=3, shape=4):
            self.size = size + shape

        async def run(self, event, step):
            return self.size, self.env.rate

    lab.engine.env["rate"] = 7
    lab.engine.register(Constructed).create(id="c")
    lab.engine.register(WithDefaults).create(id="d")
    lab.idle()
    assert lab.engine.get("c").output == (7, 7)
    assert lab.engine.get("d").output == (7, 7)
