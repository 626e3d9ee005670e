"""Extract, transform, load: a diamond of steps, each of which runs once although two need the first."""

from workers import WorkflowEntrypoint


class Pipeline(WorkflowEntrypoint):
    async def run(self, event, step):
        @step.do("extract")
        async def rows():
            return await self.env.extract(event["payload"]["day"])

        @step.do("total")
        async def total(rows):
            return sum(row["amount"] for row in rows)

        @step.do("largest")
        async def largest(rows):
            return max(rows, key=lambda row: row["amount"])["id"]

        @step.do("load", concurrent=True)
        async def load(total, largest):
            return await self.env.load({"total": total, "largest": largest})

        return await load()
