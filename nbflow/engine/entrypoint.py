"""What a user's workflow is made of: the class to subclass, and the event that `run` gets."""

from datetime import datetime
from typing import Any

from nbflow.core.history import Head
from nbflow.engine.context import Fields
from nbflow.values.codec import register_codec


class WorkflowEntrypoint:
    """Subclass this and write `async def run(self, event, step)`.

    Attributes:
        env: registered workflows by name, and whatever was given by `Engine(env=)` (API.md §5).
        ctx: None; a class written for Cloudflare's SDK may take it in its constructor.
    """

    env: Any = None
    ctx: Any = None

    def __init__(self, ctx: Any = None, env: Any = None) -> None:
        """As Cloudflare's classes are made, whose constructors may hand these on."""
        self.ctx, self.env = ctx, env

    async def run(self, event: Any, step: Any) -> Any:
        """Run the workflow; its value is the instance's output.

        Args:
            event: payload, timestamp, instance_id, workflow_name and schedule, by attribute and by key.
            step: the durable calls: do, sleep, sleep_until, wait_for_event.
        """
        raise NotImplementedError


class WorkflowEvent(Fields):
    """What an instance was created with; by attribute and by key, Cloudflare's camel-case keys too."""

    _CAMEL = {"instanceId": "instance_id", "workflowName": "workflow_name"}  # noqa: RUF012 - a table, never changed

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[self._CAMEL.get(name, name)]


class ReceivedEvent(Fields):
    """What `wait_for_event` gives: payload, type and timestamp; storable, so that a workflow may return it."""


register_codec(ReceivedEvent, dict, lambda fields: ReceivedEvent(**fields), name="nbflow.event")


def make_event(params: Any, head: Head) -> WorkflowEvent:
    """The event of one activation: a fresh copy each time (S10)."""
    schedule = head.body.get("schedule")
    if schedule is not None:
        schedule = {"cron": schedule["cron"], "scheduled_time": datetime.fromisoformat(schedule["scheduled_time"])}
    return WorkflowEvent(
        payload=params,
        timestamp=head.created_at,
        instance_id=head.instance_id,
        workflow_name=head.workflow,
        schedule=schedule,
    )
