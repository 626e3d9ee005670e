"""Create instances: all valid before any is made, durable before any runs (S1 to S4)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbflow import ids
from nbflow.core import names
from nbflow.core.history import Head
from nbflow.core.model import Draft
from nbflow.engine.instance import Instances, WorkflowInstance
from nbflow.engine.live import LiveInstance
from nbflow.engine.outputs import body_of
from nbflow.errors import AlreadyExistsError, UsageError
from nbflow.values import codec

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.registry import Workflow


def create(engine: "Engine", workflow: "Workflow", instance_id: str | None, params: Any) -> WorkflowInstance:
    """Create and start one; see `Workflow.create`."""
    made = make(engine, workflow, [(instance_id, params)])[0]
    if isinstance(made, Head):
        known = f"instance {made.instance_id!r} of workflow {workflow.name!r}"
        msg = f"{known} exists already ({made.status}); get() it, or give another id"
        raise AlreadyExistsError(msg)
    engine.start(made)
    return WorkflowInstance(engine, made.history.head)


def create_batch(engine: "Engine", workflow: "Workflow", wanted: Sequence[Mapping[str, Any]], existing: str) -> Instances:
    """Create and start many; see `Workflow.create_batch`."""
    if existing not in ("found", "skip"):
        msg = f'existing={existing!r} is neither "found" nor "skip"'
        raise UsageError(msg)
    for number, one in enumerate(wanted):
        if unknown := set(one) - {"id", "params"}:
            msg = f"instance {number} of the batch has {sorted(unknown)!r}; only id and params are known"
            raise UsageError(msg)
    result = Instances()
    for live in make(engine, workflow, [(one.get("id"), one.get("params")) for one in wanted]):
        if not isinstance(live, Head):
            engine.start(live)
            result.append(WorkflowInstance(engine, live.history.head))
        elif existing == "found":
            result.append(WorkflowInstance(engine, live))
    return result


def make(engine: "Engine", workflow: "Workflow", wanted: Sequence[tuple[str | None, Any]]) -> list[LiveInstance | Head]:
    """Create what does not exist, durable and not running yet; for what exists, its head."""
    engine.check_open()
    drafts = [_draft(engine, workflow, instance_id, params) for instance_id, params in wanted]
    made: list[LiveInstance | Head] = []
    for outcome in engine.store.create(drafts, engine.owner):
        if isinstance(outcome, Head):
            made.append(outcome)
        elif outcome[0].seq in engine.live:  # repeats an earlier one of the batch
            made.append(engine.live[outcome[0].seq].history.head)
        else:
            live = engine.live[outcome[0].seq] = LiveInstance(engine, outcome, workflow)
            made.append(live)
    return made


def _draft(engine: "Engine", workflow: "Workflow", instance_id: str | None, params: Any) -> Draft:
    instance_id = ids.new_instance_id(workflow.name) if instance_id is None else names.instance_id(instance_id)
    head = Head(workflow=workflow.name, instance_id=instance_id)
    encoded = codec.encode({} if params is None else params, engine.artifact_folder(head))
    body = {
        "workflow": workflow.name,
        "id": instance_id,
        "notebook": engine.notebook,
        "code_hash": workflow.code_hash,
    } | body_of(encoded)
    return Draft(workflow.name, instance_id, encoded.data, body)
