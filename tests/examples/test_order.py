"""An order: load, charge, reserve, confirm. A failing reserve must not charge twice, and gives the money back."""

import pytest

from nbflow import InstanceFailedError, WorkflowEntrypoint
from nbflow.core.model import Status


class SoldOut(Exception):
    pass


class Shop:
    """The services of a shop; the bank knows a charge by its key, as real ones do."""

    def __init__(self, stock):
        self.orders = {"o-7": {"sku": "mug", "quantity": 2, "total": 24}}
        self.stock = stock
        self.charges = []
        self.refunds = []
        self.mails = []
        self.reserve_calls = 0
        self.outages = 0

    def charge(self, total, key):
        self.charges.append((total, key))
        return f"charge-{len(self.charges)}"

    def reserve(self, sku, quantity):
        self.reserve_calls += 1
        if self.reserve_calls <= self.outages:
            raise ConnectionError("warehouse does not answer")
        if self.stock[sku] < quantity:
            raise SoldOut(sku)
        self.stock[sku] -= quantity
        return {"sku": sku, "quantity": quantity}


class Order(WorkflowEntrypoint):
    async def run(self, event, step):
        shop = self.env.shop
        order = await step.do("load order", lambda: shop.orders[event.payload["order"]])

        def charge(ctx):
            return shop.charge(order["total"], ctx.idempotency_key)

        def refund(output, error):
            shop.refunds.append((output, str(error)))

        paid = await step.do("charge card", charge, rollback=refund)

        def give_back(output):
            if output is not None:  # it may have failed before it reserved anything
                shop.stock[output["sku"]] += output["quantity"]

        await step.do(
            "reserve stock",
            shop.reserve,
            order["sku"],
            order["quantity"],
            retries={"limit": 3, "delay": "1 minute", "backoff": "constant", "errors": (ConnectionError,)},
            rollback=give_back,
        )
        await step.do("confirm", lambda: shop.mails.append(event.payload["order"]))
        return {"paid": paid}


@pytest.fixture
def shop(nbflow_engine):
    nbflow_engine.env["shop"] = shop = Shop(stock={"mug": 5})
    return shop


def test_an_order_is_charged_reserved_and_confirmed(nbflow_engine, shop):
    order = nbflow_engine.register(Order).create("o-7", {"order": "o-7"})
    nbflow_engine.clock.advance("1 second")
    assert order.output == {"paid": "charge-1"}
    assert [step.name for step in order.steps] == ["load order", "charge card", "reserve stock", "confirm"]
    assert (shop.stock, shop.mails, shop.refunds) == ({"mug": 3}, ["o-7"], [])


def test_a_reserve_that_fails_for_a_while_does_not_charge_again(nbflow_engine, shop):
    shop.outages = 3
    order = nbflow_engine.register(Order).create(params={"order": "o-7"})
    nbflow_engine.clock.advance("1 minute")
    assert order.status().waiting_for[0].kind == "retry"
    nbflow_engine.clock.advance("2 minutes")
    assert order.output == {"paid": "charge-1"}
    assert (shop.reserve_calls, len(shop.charges), shop.refunds) == (4, 1, [])


def test_a_kernel_restart_between_the_attempts_does_not_charge_again(nbflow_engine, shop, reopen):
    shop.outages = 2
    nbflow_engine.register(Order).create("o-7", {"order": "o-7"})
    nbflow_engine.clock.advance("1 minute")
    later = reopen(nbflow_engine, Order)
    later.clock.advance("1 minute")
    assert later.get("o-7").output == {"paid": "charge-1"}
    assert (shop.reserve_calls, len(shop.charges), shop.mails) == (3, 1, ["o-7"])


def test_a_reserve_that_fails_for_good_refunds_the_one_charge(nbflow_engine, shop):
    shop.stock = {"mug": 1}
    order = nbflow_engine.register(Order).create(params={"order": "o-7"})
    nbflow_engine.clock.advance("1 second")
    status = order.status()
    assert (status.status, status.error.type, status.rollback) == (Status.ERRORED, "SoldOut", ("complete", None))
    assert (len(shop.charges), shop.refunds, shop.stock, shop.mails) == (1, [("charge-1", "mug")], {"mug": 1}, [])
    undone = [step.name for step in order.steps if step.type == "rollback"]
    assert undone == ["reserve stock", "charge card"]
    with pytest.raises(InstanceFailedError) as failed:
        _ = order.output
    assert isinstance(failed.value.__cause__, SoldOut)


def test_resuming_a_refunded_order_charges_anew(nbflow_engine, shop):
    """A step whose handler has ended counts as done no more (S48)."""
    shop.stock = {"mug": 1}
    order = nbflow_engine.register(Order).create(params={"order": "o-7"})
    nbflow_engine.clock.advance("1 second")
    shop.stock = {"mug": 9}
    order.resume()
    nbflow_engine.clock.advance("1 second")
    assert order.output == {"paid": "charge-2"}
    assert (len(shop.charges), len(shop.refunds), shop.stock) == (2, 1, {"mug": 7})
