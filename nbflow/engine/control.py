"""What the control methods do: for an instance that runs here through its journal, for any other through the store (S52)."""

import contextvars
import getpass
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nbflow import ids
from nbflow.core import asking, names
from nbflow.core.history import Head, History
from nbflow.core.model import FINISHED, Entry, Kind, Status, StepKey
from nbflow.core.plans import retried_from
from nbflow.core.rollback import due, undone
from nbflow.engine.calls import noted
from nbflow.engine.live import LiveInstance
from nbflow.engine.naming import kept_by_restart
from nbflow.engine.outputs import body_of
from nbflow.errors import InvalidStatusError, NotFoundError
from nbflow.store.base import Decision
from nbflow.values import codec, schemas

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.instance import WorkflowInstance

Decide = Callable[[Head, Callable[[], History]], Sequence[Decision]]


def who(by: str | None) -> str:
    """Who says it: `user@host` by default (API.md §4)."""
    if by is not None:
        return str(by)[:200]
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def _owned(engine: "Engine", instance: "WorkflowInstance") -> LiveInstance | None:
    engine.check_open()
    live = engine.live.get(instance.created_seq)
    return None if live is None or live.lost else live


def pause(engine: "Engine", instance: "WorkflowInstance", by: str | None) -> None:
    """See `WorkflowInstance.pause`."""
    body = {"by": who(by)}

    def pausable(head: Head) -> bool:
        if head.status is Status.ROLLING_BACK:
            msg = (
                f"instance {instance.id!r} is rolling back and cannot be paused: its steps are half undone; wait for its end, "
                f"or terminate it, then the handlers that have not ended do not run"
            )
            raise InvalidStatusError(msg)
        return head.status in (Status.QUEUED, Status.RUNNING)

    live = _owned(engine, instance)
    if live is not None:
        with live.lock:
            if not pausable(live.history.head):
                return
            live.record(Kind.PAUSING, None, body, acked=noted)
        engine.store.flush()
        engine.on_loop(live.begin_pause)
        return

    def decide(head: Head, _read: Callable[[], History]) -> Sequence[Decision]:
        if not pausable(head):
            return []
        runs = head.owner is not None and engine.store.alive(head.owner) is not False
        # Nothing of it is in flight where nobody runs it: paused at once (S40).
        return [(Kind.PAUSING, body, None)] if runs else [(Kind.PAUSING, body, None), (Kind.PAUSED, {}, None)]

    command(engine, instance, decide)


def resume(engine: "Engine", instance: "WorkflowInstance", by: str | None, *, items: bool = False) -> None:
    """See `WorkflowInstance.resume`; with *items* failed items of maps that ended run again too."""
    context = contextvars.copy_context()
    live = _owned(engine, instance)
    if live is None:
        head = engine.store.head(instance.created_seq)
        alive = None if head is None or head.owner is None else engine.store.alive(head.owner)
        doubtful = head is not None and head.owner is not None and alive is None  # this is the word that takes it over (S52)
        known = engine.registry.find(instance.workflow_name) is not None
        if head is None or head.deleted or alive or not (known or doubtful):
            command(engine, instance, lambda head, read: _resumption(engine, head, by, read(), items=items))
            return
        live = engine.adopt(instance.created_seq, "resume")
        if live is None:
            return
        if not known:
            _free(engine, live, by, items=items)
            return
    with live.lock:
        decisions = _resumption(engine, live.history.head, by, live.history, items=items)
        for kind, body, _ in decisions:
            live.record(kind, None, body, acked=noted)
    if decisions:
        engine.store.flush()
    engine.on_loop(lambda: live.go_on(context))


def _free(engine: "Engine", live: "LiveInstance", by: str | None, *, items: bool) -> None:
    """Leave what was taken over, and cannot run here, to the next engine that has its workflow."""
    with live.lock:
        for kind, body, _ in _resumption(engine, live.history.head, by, live.history, items=items):
            live.record(kind, None, body, acked=noted)
        live.record(Kind.RELEASED, None, {"why": "taken over"}, acked=noted)
    engine.store.flush()
    engine.live.pop(live.created_seq, None)


def _resumption(engine: "Engine", head: Head, by: str | None, history: History, *, items: bool) -> Sequence[Decision]:
    """What a resume writes: nothing where it has no effect (S41)."""
    body: dict[str, Any] = {"by": who(by)}
    if head.status is Status.PAUSED and head.paused_at is not None:
        return [(Kind.RESUMED, body | {"shift_s": (engine.clock.now() - head.paused_at).total_seconds()}, None)]
    if head.status is Status.WAITING_FOR_PAUSE:
        return [(Kind.RESUMED, body, None)]
    if is_retry(head, items=items):
        return [(Kind.RETRIED, body | retried_from(history, items=items), None)]
    return []


def is_retry(head: Head, *, items: bool) -> bool:
    """Whether going on means a retry (S41): of an errored one, with *items* of a complete one too."""
    return head.status is Status.ERRORED or (items and head.status is Status.COMPLETE)


def retry_failed(engine: "Engine", instance: "WorkflowInstance", by: str | None) -> None:
    """See `WorkflowInstance.retry_failed`."""
    view = instance.view()
    if view.status is Status.ERRORED or (view.status is Status.COMPLETE and view.failed_items):
        resume(engine, instance, by, items=True)
    elif view.status not in FINISHED and view.failed_items:
        msg = (
            f"instance {instance.id!r} is {view.status} with {view.failed_items:,} failed item(s): retry_failed is for errored "
            f"instances and complete ones; let it finish first"
        )
        raise InvalidStatusError(msg)


def retry_now(engine: "Engine", instance: "WorkflowInstance", step: StepKey | None = None) -> None:
    """See `WorkflowInstance.retry_now`."""
    live = _owned(engine, instance)
    if live is not None:
        engine.on_loop(lambda: live.retry_now(step))
        return
    wanted = True if step is None else [step.type.value, step.name, step.count, step.key]

    def decide(head: Head, _read: Callable[[], History]) -> Sequence[Decision]:
        if head.status not in (Status.RUNNING, Status.ROLLING_BACK):
            return []
        if head.owner is None or engine.store.alive(head.owner) is False:
            msg = f"instance {instance.id!r} has no kernel that could try again now: its kernel is gone; resume it first"
            raise InvalidStatusError(msg)
        return [(Kind.RESUMED, {"by": who(None), "retry_now": wanted}, None)]

    command(engine, instance, decide)


def terminate(engine: "Engine", instance: "WorkflowInstance", *, rollback: bool, by: str | None) -> None:
    """See `WorkflowInstance.terminate`."""
    body: dict[str, Any] = {"by": who(by)}

    def decide(head: Head, read: Callable[[], History]) -> Sequence[Decision]:
        if head.finished:
            msg = f"instance {instance.id!r} is {head.status} and cannot be terminated; only an unfinished one can"
            raise InvalidStatusError(msg)
        if rollback and due(read()):
            return [(Kind.TERMINATING, body, None)]
        return [(Kind.TERMINATED, body, None)]

    live = _owned(engine, instance)
    if live is None and rollback and engine.registry.find(instance.workflow_name) is not None:
        engine.adopt(instance.created_seq, "terminate")
    # Handlers are found and run by a new activation that runs nothing else (S49).
    _fence(engine, instance, decide, again=contextvars.copy_context() if rollback else None)


def restart(engine: "Engine", instance: "WorkflowInstance", from_step: Any, by: str | None) -> None:
    """See `WorkflowInstance.restart`."""
    body: dict[str, Any] = {"by": who(by)}

    def decide(_head: Head, read: Callable[[], History]) -> Sequence[Decision]:
        if from_step is None:
            return [(Kind.RESTARTED, body, None)]
        return [(Kind.RESTARTED, body | restarted_from(read(), from_step, instance.id), None)]

    live = _owned(engine, instance)
    if live is None and engine.registry.find(instance.workflow_name) is not None:
        engine.adopt(instance.created_seq, "restart")
    _fence(engine, instance, decide, again=contextvars.copy_context())


def restarted_from(history: History, from_step: Any, instance_id: str) -> dict[str, Any]:
    """What a restart from a step keeps.

    Raises:
        NotFoundError: there is no such step.
        InvalidStatusError: something before it was undone (S48).
    """
    kept = kept_by_restart(history, from_step, instance_id)
    gone = undone(history)
    if gone is not None and kept["keep_below"] > gone.order:
        wanted = str(from_step) if isinstance(from_step, StepKey) else from_step
        msg = (
            f"instance {instance_id!r} was rolled back: a restart from {wanted!r} would count steps as done whose "
            f"effects are undone; restart from an earlier step, or from the start (S48)"
        )
        raise InvalidStatusError(msg)
    return kept


def delete(engine: "Engine", instance: "WorkflowInstance", by: str | None) -> None:
    """See `WorkflowInstance.delete`."""
    _fence(engine, instance, lambda _head, _read: [(Kind.DELETED, {"by": who(by)}, None)], again=None)
    engine.live.pop(instance.created_seq, None)
    engine.folds.forget(instance.created_seq)
    head = Head(workflow=instance.workflow_name, instance_id=instance.id)
    engine.artifact_folder(head).remove()


def _fence(engine: "Engine", instance: "WorkflowInstance", decide: Decide, *, again: contextvars.Context | None) -> None:
    """Write what ends the present activation, then end it: nothing of it is recorded after (S43, S44, S45)."""
    live = _owned(engine, instance)
    if live is None:
        command(engine, instance, decide)
        return
    with live.lock:
        decisions = decide(live.history.head, lambda: live.history)  # never the file: the loop waits for this lock
        activation = live.detach()
        for kind, body, _ in decisions:
            live.record(kind, None, body, acked=noted)
    engine.store.flush()
    engine.on_loop(lambda: live.drop(activation, again=again))


def send_event(engine: "Engine", instance: "WorkflowInstance", type_: str, payload: Any, by: str | None) -> None:
    """See `WorkflowInstance.send_event`."""
    names.event_type(type_)
    encoded = codec.encode(payload, engine.artifact_folder(Head(workflow=instance.workflow_name, instance_id=instance.id)))
    body = {"event_id": ids.new_uid(), "type": type_, "by": who(by)} | body_of(encoded)

    def check(head: Head) -> None:
        if head.finished:
            msg = f"instance {instance.id!r} is {head.status} and takes no more events; send to one that is unfinished (S38)"
            raise InvalidStatusError(msg)

    def decide(head: Head, read: Callable[[], History]) -> Sequence[Decision]:
        check(head)
        _check_fits(read(), type_, payload, {})
        return [(Kind.EVENT, body, encoded.data)]

    live = _owned(engine, instance)
    if live is None:
        command(engine, instance, decide)
        return
    with live.lock:
        check(live.history.head)
        _check_fits(live.history, type_, payload, {key: wait.asked.schema for key, wait in live.waits.items()})
        live.record(Kind.EVENT, None, body, encoded.data, acked=noted)
    engine.store.flush()
    engine.thread.post(live.events_changed)


def _check_fits(history: History, type_: str, payload: Any, types: dict[StepKey, Any]) -> None:
    """Refuse a payload that the wait it would go to does not take (S39)."""
    first = min(history.open_waits(type_), key=lambda step: step.order, default=None)
    if first is not None and first.body.get("schema") is not None:
        schemas.check(first.body["schema"], payload, f"wait {str(first.key)!r}", types.get(first.key))


def answer(engine: "Engine", instance: "WorkflowInstance", name: str, count: int, payload: Any, by: str | None) -> None:
    """See `WorkflowInstance.answer`."""
    live = _owned(engine, instance)
    if live is None:
        history = History(engine.store.read(instance.created_seq))
        send_event(engine, instance, _open_wait_type(history, instance.id, name, count), payload, by)
        return
    with live.lock:  # held until the event is recorded: a second answer, from another tab, sees the first
        send_event(engine, instance, _open_wait_type(live.history, instance.id, name, count), payload, by)


def _open_wait_type(history: History, instance_id: str, name: str, count: int) -> str:
    """The event type of a wait that is open and not answered; the error says by whom it was, and when."""
    step = next((s for s in history.steps.values() if s.event_type and s.key.name == name and s.key.count == count), None)
    if step is None:
        msg = f"instance {instance_id!r} has no wait {name!r} number {count}"
        raise NotFoundError(msg)
    asking.check_open(history, step)
    return step.event_type or ""


def command(engine: "Engine", instance: "WorkflowInstance", decide: Decide) -> None:
    """Write what is decided about an instance that does not run here, under the store's lease (S52)."""

    def known(head: Head, read: Callable[[], list[Entry]]) -> Sequence[Decision]:
        met.append(head)
        return decide(head, lambda: History(read()))

    met: list[Head] = []
    try:
        engine.store.command(instance.created_seq, known)
    except NotFoundError:
        if met:
            raise  # of something in it
        msg = f"instance {instance.id!r} of workflow {instance.workflow_name!r} does not exist any more"
        raise NotFoundError(msg) from None  # the store knows it by a number only
    engine.feed.publish(instance.created_seq)
