"""Create instances: all valid before any is made, durable before any runs (S1 to S4)."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nbflow import ids
from nbflow.core import names
from nbflow.core.history import Head
from nbflow.core.model import Draft
from nbflow.engine.bodies import BODY
from nbflow.engine.instance import WorkflowInstance
from nbflow.engine.instances import Instances
from nbflow.engine.live import LiveInstance
from nbflow.engine.outputs import body_of
from nbflow.errors import AlreadyExistsError, UsageError
from nbflow.values import codec

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.registry import Workflow


def create(
    engine: "Engine",
    workflow: "Workflow",
    instance_id: str | None,
    params: Any,
    *,
    parent: LiveInstance | None = None,
) -> WorkflowInstance:
    """Create and start one; see `Workflow.create`.

    Made in a step, it is linked to the instance of that step, and one of that id that it made before is given (S60).
    """
    body = BODY.get()
    if parent is None and body is not None:
        parent = body.live
    about = {} if parent is None else {"parent": parent.history.head.instance_id, "parent_seq": parent.created_seq}
    made = make(engine, workflow, [(instance_id, params)], about)[0]
    if isinstance(made, Head):
        if parent is not None and made.body.get("parent_seq") == parent.created_seq:
            return WorkflowInstance(engine, made)
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
        if not isinstance(one, Mapping):
            msg = f"instance {number} of the batch is {names.quoted(one)}; give a mapping with id and params, both optional"
            raise UsageError(msg)
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


def create_scheduled(engine: "Engine", workflow: "Workflow", instance_id: str, schedule: Mapping[str, Any]) -> None:
    """Create and start the instance of one match of a schedule, unless it exists: another kernel was first (S59)."""
    made = make(engine, workflow, [(instance_id, None)], {"schedule": dict(schedule)})[0]
    if not isinstance(made, Head):
        engine.start(made)


def make(
    engine: "Engine",
    workflow: "Workflow",
    wanted: Sequence[tuple[str | None, Any]],
    about: Mapping[str, Any] = MappingProxyType({}),
) -> list[LiveInstance | Head]:
    """Create what does not exist, durable and not running yet; for what exists, its head. *about* goes into each entry."""
    engine.check_open()
    drafts = [_draft(engine, workflow, instance_id, params, about) for instance_id, params in wanted]
    made: list[LiveInstance | Head] = []
    for outcome in engine.store.create(drafts, engine.owner):
        if isinstance(outcome, Head):
            made.append(outcome)
        elif outcome[0].seq in engine.live:  # repeats an earlier one of the batch
            made.append(engine.live[outcome[0].seq].history.head)
        else:
            live = engine.live[outcome[0].seq] = LiveInstance(engine, outcome, workflow)
            engine.news.expect(live, outcome)
            made.append(live)
    return made


def _draft(engine: "Engine", workflow: "Workflow", instance_id: str | None, params: Any, about: Mapping[str, Any]) -> Draft:
    instance_id = ids.new_instance_id(workflow.name) if instance_id is None else names.instance_id(instance_id)
    head = Head(workflow=workflow.name, instance_id=instance_id)
    encoded = codec.encode({} if params is None else params, engine.artifact_folder(head))
    body = {
        "workflow": workflow.name,
        "id": instance_id,
        "notebook": engine.notebook,
        "code_hash": workflow.code_hash,
    }
    return Draft(workflow.name, instance_id, encoded.data, body | body_of(encoded) | dict(about))
