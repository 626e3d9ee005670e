"""A checkout: dependencies by parameter name, config as a dict, an event read by keys."""

from workers import WorkflowEntrypoint
from workers.workflows import NonRetryableError


class Checkout(WorkflowEntrypoint):
    async def run(self, event, step):
        payload = event["payload"]

        @step.do("load cart")
        async def cart():
            return await self.env.shop.cart(payload["cart"])

        @step.do("look up customer", config={"retries": {"limit": 2, "delay": 5, "backoff": "linear"}})
        async def customer():
            return await self.env.shop.customer(payload["customer"])

        @step.do("charge", concurrent=True, config={"retries": {"limit": 3, "delay": "10 seconds", "backoff": "constant"}})
        async def charge(cart, customer, ctx):
            if customer["blocked"]:
                raise NonRetryableError("customer is blocked")
            key = f"{event['instanceId']}/{ctx['step']['name']}"
            return await self.env.shop.charge(customer["card"], sum(cart), key, ctx["attempt"])

        @step.do()
        async def receipt(charge, customer):
            return {"to": customer["mail"], "paid": charge, "workflow": event["workflowName"]}

        return await receipt()
