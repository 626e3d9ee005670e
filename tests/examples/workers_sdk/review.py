"""A review with a pause and a person: sleeps in seconds, an event by keys, a loop of decorated steps."""

from workers import WorkflowEntrypoint


class Review(WorkflowEntrypoint):
    async def run(self, event, step):
        findings = []
        for page in event["payload"]["pages"]:

            @step.do(f"read {page}")
            async def read(page=page):
                return await self.env.read(page)

            findings.append(await read())

        await step.sleep("cool down", 90)
        await step.sleep_until("publication day", event["timestamp"].timestamp() + 24 * 3600)
        verdict = await step.wait_for_event("editor", "verdict", timeout="12 hours")

        @step.do("publish", config={"timeout": "30 seconds"})
        async def publish():
            return await self.env.publish(findings, verdict["payload"])

        return await publish()
