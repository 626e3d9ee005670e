"""Classes of Cloudflare's Python SDK run when only their import lines are replaced (API.md §1)."""

from pathlib import Path

import pytest

import nbflow
from nbflow.core.model import Status

HERE = Path(__file__).parent / "workers_sdk"


def ported(name):
    """The class of that file, its imports of the SDK replaced by ours."""
    text = (HERE / f"{name}.py").read_text()
    lines = text.splitlines()
    changed = [number for number, line in enumerate(lines) if line.startswith("from workers")]
    for number in changed:
        _, _, names = lines[number].partition(" import ")
        lines[number] = f"from nbflow import {names}"
    assert changed
    namespace = {"__name__": f"ported_{name}"}
    exec(compile("\n".join(lines), f"<{name}>", "exec"), namespace)
    (cls,) = [
        value
        for value in namespace.values()
        if isinstance(value, type) and issubclass(value, nbflow.WorkflowEntrypoint) and value is not nbflow.WorkflowEntrypoint
    ]
    return cls


class Shop:
    def __init__(self):
        self.calls, self.declined, self.blocked = [], 0, False

    async def cart(self, cart_id):
        self.calls.append("cart")
        return [5, 7]

    async def customer(self, customer_id):
        self.calls.append("customer")
        return {"card": "4242", "mail": "ada@example.org", "blocked": self.blocked}

    async def charge(self, card, total, key, attempt):
        self.calls.append("charge")
        if attempt <= self.declined:
            raise ConnectionError("declined")
        return [total, key, attempt]


@pytest.fixture
def shop(engine):
    engine.env["shop"] = shop = Shop()
    return shop


def check_out(engine):
    return engine.register(ported("checkout")).create("c-1", {"cart": 1, "customer": 2})


def test_a_checkout_resolves_its_dependencies_each_once(engine, shop):
    checkout = check_out(engine)
    engine.clock.advance("1 second")
    assert checkout.output == {"to": "ada@example.org", "paid": [12, "c-1/charge", 1], "workflow": "Checkout"}
    assert sorted(shop.calls) == ["cart", "charge", "customer"]


def test_its_retries_are_those_of_its_config(engine, shop):
    shop.declined = 2
    checkout = check_out(engine)
    engine.clock.advance(19)
    assert shop.calls.count("charge") == 2
    engine.clock.advance(1)
    assert checkout.output["paid"] == [12, "c-1/charge", 3]
    assert (shop.calls.count("cart"), shop.calls.count("customer")) == (1, 1)


def test_its_non_retryable_error_ends_it(engine, shop):
    shop.blocked = True
    checkout = check_out(engine)
    engine.clock.advance("1 second")
    status = checkout.status()
    assert (status.status, status.error.message) == (Status.ERRORED, "customer is blocked")
    assert "charge" not in shop.calls


def test_a_review_sleeps_in_seconds_and_waits_for_its_editor(engine):
    read = []

    async def read_page(page):
        read.append(page)
        return page * 2

    async def publish(findings, verdict):
        return [findings, verdict]

    engine.env.update({"read": read_page, "publish": publish})
    review = engine.register(ported("review")).create(params={"pages": [1, 2, 3]})
    engine.clock.advance(89)
    assert [w.name for w in review.status().waiting_for] == ["cool down"]
    engine.clock.advance(1)
    assert [w.name for w in review.status().waiting_for] == ["publication day"]
    engine.clock.advance("1 day")
    assert [w.name for w in review.status().waiting_for] == ["editor"]
    review.send_event("verdict", "good")
    engine.clock.advance("1 second")
    assert review.output == [[2, 4, 6], "good"]
    assert read == [1, 2, 3]


def test_a_pipeline_goes_on_after_a_kernel_restart_without_extracting_again(engine, reopen):
    calls = []

    async def extract(day):
        calls.append("extract")
        return [{"id": "a", "amount": 3}, {"id": "b", "amount": 9}]

    async def load(row):
        calls.append("load")
        if calls.count("load") == 1:
            raise ConnectionError("warehouse is down")
        return row

    engine.env.update({"extract": extract, "load": load})
    engine.register(ported("pipeline")).create("p", {"day": "monday"})
    engine.clock.advance("5 seconds")
    later = reopen(engine, ported("pipeline"))
    later.clock.advance("5 seconds")
    assert later.get("p").output == {"total": 12, "largest": "b"}
    assert calls == ["extract", "load", "load"]
