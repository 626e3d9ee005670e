"""`step.child`: create an instance of another workflow, wait durably for its end, give its output (S60)."""

import contextvars
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from nbflow.core import names
from nbflow.core.children import ChildCall
from nbflow.core.history import Head, StepRecord
from nbflow.core.model import Kind, Status, StepState, StepType
from nbflow.engine import creating
from nbflow.engine.calls import Call, StepCall
from nbflow.engine.instance import WorkflowInstance
from nbflow.engine.outputs import body_of
from nbflow.engine.recovery import recover_child
from nbflow.engine.threads import Outcome
from nbflow.errors import InstanceFailedError, NotFoundError, UndecodableError
from nbflow.values import codec, failures

if TYPE_CHECKING:
    from nbflow.engine.activation import Activation


class Child:
    """One `step.child` call of one activation.

    Attributes:
        given: the id that the call asks for, None for one of its own.
        child_id: the id of the child; "" before it is known.
    """

    def __init__(self, activation: "Activation", call: Call, workflow: str, params: Any, given: str | None) -> None:
        self.activation, self.call, self.engine = activation, call, activation.engine
        self.workflow, self.params, self.given = workflow, params, given
        self.child_id = ""
        self._started_at = ""
        self._gone = False
        call.cancel = self._cancel

    def begin(self) -> None:
        """Create the child, or take up that of this very call."""
        live, key = self.activation.live, self.call.key
        with live.lock:  # a restart from another thread makes what is known that of the next call
            if live.activation is not self.activation:
                return
            made, record = ChildCall.of(live.history.head, key, self.given), live.history.steps.get(key)
            left = live.history.left.get(key)
        # What is recorded is of a call that was cancelled, and is not cancelled again (S21).
        known, again = (left or {}, left is not None) if record is None else (record.body, False)
        self.activation.in_flight += 1
        create = partial(self._create, made, known, again=again)
        self.engine.threads.submit(contextvars.copy_context(), create, self._created)

    def _create(self, made: ChildCall, known: dict[str, Any], *, again: bool) -> WorkflowInstance | None:
        """In a thread; *known* names the child that this call had, *again* where it failed and its parent is retried."""
        if self._gone:
            return None
        workflow, ids = self.engine.workflow(self.workflow), made.ids()
        found = self._of_before(made, known)
        if found is not None:
            child = WorkflowInstance(self.engine, found)
            params = creating.encoded_params(self.params, child.files).data if again else found.params
            if params == found.params:
                if again and child.view().status is Status.ERRORED:  # the parent goes on at its failed step, so it does (S41)
                    child.resume(by=f"step {str(made.key)!r} of {self.activation.live.name}")
                return child
            ids = iter([made.id_for(params)])
        return creating.create_child(self.engine, workflow, made, self.params, ids)

    def _of_before(self, made: ChildCall, known: dict[str, Any]) -> Head | None:
        """The child that is recorded, unless it was deleted or another one is asked for now."""
        if known.get("workflow") != self.workflow or not made.may_name(known.get("id", "")):
            return None
        return self._head(known["id"])

    def _head(self, child_id: str) -> Head | None:
        """The child of that id; None where it was deleted, also where somebody else has used its id since."""
        found = self.engine.store.find(child_id, self.workflow)
        return next((head for head in found if head.body.get("parent_seq") == self.activation.live.created_seq), None)

    def _created(self, outcome: Outcome) -> None:
        self.activation.in_flight -= 1
        if self._gone:
            self.activation.on_quiet()  # `run` may have returned meanwhile, and waits for this alone
            return
        succeeded, child = outcome
        if not succeeded:
            self.call.original = child
            self._end(Kind.CHILD_FAILED, {"error": failures.record_error(child)})
            return
        self.child_id = child.id
        body = {"order": self.call.order, "workflow": self.workflow, "id": self.child_id}
        self.activation.unacked += 1
        self.activation.record(Kind.CHILD_STARTED, self.call.key, body, acked=self.activation.acked)
        self.watch()

    def go_on(self, known: StepRecord) -> None:
        """Wait for the end of the child that is recorded."""
        self.child_id, self.workflow = known.body.get("id", ""), known.body.get("workflow", self.workflow)
        self.watch()

    def watch(self) -> None:
        """Wait for the child's end."""
        record = self.activation.live.history.steps.get(self.call.key)
        self._started_at = record.started_at.isoformat() if record is not None else ""
        self.engine.threads.submit(contextvars.Context(), self._find, self._found)

    def _find(self) -> WorkflowInstance:
        head = self._head(self.child_id)
        if head is None:
            raise self._deleted()
        child = WorkflowInstance(self.engine, head)
        recover_child(self.engine, child)
        return child

    def _deleted(self) -> InstanceFailedError:
        msg = f"child {self.child_id!r} of workflow {self.workflow!r} was deleted; resume its parent to have it made anew"
        return InstanceFailedError(msg)

    def _found(self, outcome: Outcome) -> None:
        if self._gone:
            return
        succeeded, child = outcome
        if succeeded:
            self.engine.ends.watch(child.created_seq, partial(self._ended, child))
        else:  # it was deleted meanwhile
            self._end(Kind.CHILD_FAILED, {"error": failures.record_error(child)})

    def _ended(self, child: WorkflowInstance) -> None:
        if self._gone or self.activation.over:
            return
        self.activation.in_flight += 1
        what, live = f"the output of child {child.id!r} in step {str(self.call.key)!r}", self.activation.live
        self.engine.keeping.submit(live, what, partial(self._output, child), self._read, lambda: not self._gone)

    def _output(self, child: WorkflowInstance) -> codec.Encoded:
        # Encoded anew: artefacts are not shared between instances.
        return codec.encode(child.output, self.activation.live.files)

    def _read(self, outcome: Outcome) -> None:
        self.activation.in_flight -= 1
        if self._gone:
            self.activation.on_quiet()  # `run` may have returned meanwhile, and waits for this alone
            return
        succeeded, made = outcome
        if succeeded:
            self._end(Kind.CHILD_FINISHED, body_of(made), made.data)
        elif type(made) is UndecodableError:
            self.activation.live.interrupt(self.activation, self.call.key, made)
        else:
            error = self._deleted() if isinstance(made, NotFoundError) else made
            if not isinstance(error, InstanceFailedError):
                error = InstanceFailedError(f"child {self.child_id!r}: {made}")
                error.__cause__ = made
            # Nothing of it is of this process only: its cause is the step's error, the first time as on replay (API.md §9).
            self._end(Kind.CHILD_FAILED, {"error": failures.record_error(error)})

    def _end(self, kind: Kind, body: dict[str, Any], value: bytes | None = None) -> None:
        if self.activation.stopping:
            return  # read again after the pause
        self._gone = True
        about = {"order": self.call.order, "started_at": self._started_at or self.engine.clock.now().isoformat()}
        if self.child_id and kind is Kind.CHILD_FAILED:
            about |= {"workflow": self.workflow, "id": self.child_id}
        self.activation.ended(kind, self.call, about | body, value)

    def _cancel(self) -> None:
        self._gone = True  # the child goes on: it is independent (S60)


def call_child(
    activation: "Activation",
    name: str,
    workflow: Any,
    params: Any,
    child_id: str | None,
    *,
    make: Callable[["Activation", Call, str, Any, str | None], Child] = Child,
) -> StepCall:
    """Make the call; see `WorkflowStep.child`. Tests *make* what stands in for the child."""
    if child_id is not None:  # before the call is opened: one that is refused is none that the instance waits for
        child_id = names.instance_id(child_id)
    workflow = workflow if isinstance(workflow, str) else getattr(workflow, "__name__", str(workflow))
    call, known = activation.open_call(StepType.CHILD, name)
    if call.key in activation.calls:
        child = make(activation, call, workflow, params, child_id)
        _decide(activation, call, known, child)
    return StepCall(activation, call)


def _decide(activation: "Activation", call: Call, known: StepRecord | None, child: Child) -> None:
    if known is not None and known.state in (StepState.FINISHED, StepState.FAILED):
        return
    if activation.collecting is not None:
        return
    if known is None:
        child.begin()
    elif known.state is StepState.CANCELLED:
        activation.hold_back(call, child.begin)
    else:
        child.go_on(known)


class Ends:
    """Who waits for the end of which instance; used on the loop."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def watch(self, created_seq: int, then: Callable[[], None]) -> None:
        """Call *then*, once, when that instance is finished: at once if it is."""
        live = self._engine.live.get(created_seq)
        if live is not None and live.history.head.finished:
            then()
            return
        self._waiting.setdefault(created_seq, []).append(then)
        if live is None:
            self._look_later(created_seq)

    def ended(self, created_seq: int) -> None:
        """That instance is finished."""
        for then in self._waiting.pop(created_seq, ()):
            then()

    def _look_later(self, created_seq: int) -> None:
        """It runs in another engine, or in none yet: look each second."""
        self._engine.timers.after(1.0, partial(self._look, created_seq))

    def _look(self, created_seq: int) -> None:
        if created_seq not in self._waiting or self._engine.closing:
            return

        def seen(outcome: Outcome) -> None:
            head = outcome[1] if outcome[0] else None
            if outcome[0] and (head is None or head.finished):
                self.ended(created_seq)
            else:
                self._look_later(created_seq)

        self._engine.threads.submit(contextvars.Context(), lambda: self._engine.store.head(created_seq), seen)
