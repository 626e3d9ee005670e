"""Find instances: by id, by workflow, by status."""

import operator
from typing import TYPE_CHECKING, Any, SupportsIndex

from nbflow.core.durations import duration
from nbflow.core.model import Status
from nbflow.engine.instance import WorkflowInstance
from nbflow.engine.instances import Instances, handles
from nbflow.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine


def get(engine: "Engine", instance_id: str, workflow: str | None) -> WorkflowInstance:
    """See `Engine.get`."""
    engine.check_open()
    named, slash, rest = instance_id.partition("/")
    if slash and workflow not in (None, named):
        msg = f"no instance {instance_id!r} of workflow {workflow!r}: that is one of workflow {named!r}; get it from there"
        raise NotFoundError(msg)
    if slash:
        workflow, instance_id = named, rest
    found = engine.store.find(instance_id, workflow)
    if not found:
        where = f" of workflow {workflow!r}" if workflow else ""
        msg = f"no instance {instance_id!r}{where} in {engine.store.path or 'memory'}"
        raise NotFoundError(msg)
    if len(found) > 1:
        several = ", ".join(f"{head.workflow}/{head.instance_id}" for head in found)
        msg = f"instance {instance_id!r} exists under several workflows: {several}; name one of these"
        raise UsageError(msg)
    return WorkflowInstance(engine, found[0])


def instance(engine: "Engine", reference: str) -> WorkflowInstance:
    """See `Engine.instance`."""
    try:
        return get(engine, reference, None)
    except NotFoundError:
        newest = engine.store.heads(reference, limit=1) if "/" not in reference else []
        if not newest:
            raise
        return WorkflowInstance(engine, newest[0])


def listed(engine: "Engine", workflow: str | None, status: Status | str | None, limit: SupportsIndex) -> Instances:
    """See `Engine.list`."""
    engine.check_open()
    limit = _count(limit)
    if status is None:
        return handles(engine, engine.store.heads(workflow, limit=limit))
    wanted = _status(status)
    # Of those that run here this engine knows better than their entries tell (S5).
    ours = {seq: live for seq, live in list(engine.live.items()) if not live.lost}
    found = [
        head for head in engine.store.heads(workflow, limit=limit + len(ours), status=wanted) if head.created_seq not in ours
    ]
    heads = [live.history.head for live in ours.values()]
    found += [one for one in heads if workflow in (None, one.workflow) and ours[one.created_seq].status() is wanted]
    return handles(engine, sorted(found, key=lambda head: head.created_seq, reverse=True)[:limit])


def delete_finished(engine: "Engine", older_than: Any, status: Status | str | None) -> int:
    """See `Engine.delete`."""
    before = engine.clock.now() - duration(older_than, what="delete(older_than=)")
    wanted = None if status is None else _status(status)
    gone = 0
    for head in engine.store.heads(limit=None):
        if head.finished and head.ended_at is not None and head.ended_at < before and wanted in (None, head.status):
            WorkflowInstance(engine, head).delete()
            gone += 1
    return gone


def _count(limit: SupportsIndex) -> int:
    try:
        if (count := operator.index(limit)) >= 0:
            return min(count, 2**62)  # as many as DuckDB counts
    except TypeError:
        pass
    msg = f"list(limit={limit!r}): give a whole number, how many instances at most; 0 or above"
    raise UsageError(msg)


def _status(status: Status | str) -> Status:
    try:
        return Status(status)
    except ValueError:
        msg = f"status={str(status)!r} is none of {', '.join(Status)}"
        raise UsageError(msg) from None
