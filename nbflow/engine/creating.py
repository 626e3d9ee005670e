"""Create instances: all valid before any is made, durable before any runs (S1 to S4)."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nbflow import ids
from nbflow.core import names
from nbflow.core.children import ChildCall, made_by
from nbflow.core.history import Head
from nbflow.core.model import Draft, Kind
from nbflow.engine.bodies import BODY
from nbflow.engine.instance import WorkflowInstance
from nbflow.engine.instances import Instances
from nbflow.engine.live import LiveInstance
from nbflow.engine.outputs import body_of
from nbflow.engine.recovery import recover_child
from nbflow.errors import AlreadyExistsError, UsageError
from nbflow.values import codec
from nbflow.values.artifacts import ArtifactFolder

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.registry import Workflow


def create(engine: "Engine", workflow: "Workflow", instance_id: str | None, params: Any) -> WorkflowInstance:
    """Create and start one; see `Workflow.create`.

    Made in a step, it is linked to the instance of that step, and one of that id that it made before is given (S60).
    """
    about = _made_here()
    made = make(engine, workflow, [(instance_id, params)], about)[0]
    if isinstance(made, Head):
        if _is_child(made, about):
            return _recovered(engine, made)
        raise _exists(made)
    return _started(engine, made)


def _made_here() -> dict[str, Any]:
    """What an instance that is made here says of the step whose body makes it; nothing outside of steps."""
    body = BODY.get()
    return {} if body is None else made_by(body.live.history.head, body.key)


def _is_child(found: Head, about: Mapping[str, Any]) -> bool:
    """Whether a step of the same instance made it."""
    return bool(about) and found.body.get("parent_seq") == about["parent_seq"]


def _recovered(engine: "Engine", found: Head) -> WorkflowInstance:
    """A child that was made before, going on."""
    child = WorkflowInstance(engine, found)
    recover_child(engine, child)
    return child


def create_child(engine: "Engine", workflow: "Workflow", call: ChildCall, params: Any, ids: Iterable[str]) -> WorkflowInstance:
    """Create and start the child of a call of `step.child`, or find the one that this call made before its kernel died.

    One that another call made, or this one before a restart, is left alone: its output came of other params (S44, S60).

    Args:
        ids: for the child, first choice first.
    """
    for child_id in ids:
        made = make(engine, workflow, [(child_id, params)], call.about)[0]
        if not isinstance(made, Head):
            return _started(engine, made)
        if _made(engine, call, made) or call.may_take(made):
            return WorkflowInstance(engine, made)
        taken = made
        if not call.may_differ(made):
            break
    raise _exists(taken)


def _made(engine: "Engine", call: ChildCall, found: Head) -> bool:
    """Whether this very call made it; where that is not recorded, whether no other was recorded as waiting for it."""
    made = call.made(found)
    if made is not None:
        return made
    entries = engine.store.read(call.about["parent_seq"])
    waits = [entry for entry in entries if entry.kind is Kind.CHILD_STARTED and entry.body.get("id") == found.instance_id]
    return {entry.step_key for entry in waits if entry.body.get("workflow") == found.workflow} <= {call.key}


def _started(engine: "Engine", live: LiveInstance) -> WorkflowInstance:
    engine.start(live)
    return WorkflowInstance(engine, live.history.head)


def _exists(made: Head) -> AlreadyExistsError:
    known = f"instance {made.instance_id!r} of workflow {made.workflow!r}"
    return AlreadyExistsError(f"{known} exists already ({made.status}); get() it, or give another id")


def create_batch(engine: "Engine", workflow: "Workflow", wanted: Sequence[Mapping[str, Any]], existing: str) -> Instances:
    """Create and start many; see `Workflow.create_batch`.

    Made in a step, they are linked to the instance of that step, and those that the step made in an earlier attempt count as
    created: its result is the same (S11, S60).
    """
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
    result, about, given = Instances(), _made_here(), set()
    for made in make(engine, workflow, [(one.get("id"), one.get("params")) for one in wanted], about):
        if not isinstance(made, Head):
            result.append(_started(engine, made))
            given.add(made.created_seq)
        elif existing == "found" or (made.created_seq not in given and _made_by_step(made, about)):
            result.append(_recovered(engine, made) if _is_child(made, about) else WorkflowInstance(engine, made))
            given.add(made.created_seq)
    return result


def _made_by_step(found: Head, about: Mapping[str, Any]) -> bool:
    """Whether this very step made it, in an attempt before."""
    return bool(about) and all(found.body.get(name) == value for name, value in about.items())


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


def encoded_params(params: Any, files: ArtifactFolder) -> codec.Encoded:
    """Params as they are stored; none are an empty dict."""
    return codec.encode({} if params is None else params, files)


def _draft(engine: "Engine", workflow: "Workflow", instance_id: str | None, params: Any, about: Mapping[str, Any]) -> Draft:
    instance_id = ids.new_instance_id(workflow.name) if instance_id is None else names.instance_id(instance_id)
    head = Head(workflow=workflow.name, instance_id=instance_id)
    encoded = encoded_params(params, engine.artifact_folder(head))
    body = {
        "workflow": workflow.name,
        "id": instance_id,
        "notebook": engine.notebook,
        "code_hash": workflow.code_hash,
    }
    return Draft(workflow.name, instance_id, encoded.data, body | body_of(encoded) | dict(about))
