"""`step.child`: create an instance of another workflow, wait durably for its end, give its output (S60)."""

import contextvars
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from nbflow.core import names
from nbflow.core.history import StepRecord
from nbflow.core.model import Kind, StepState, StepType
from nbflow.engine import creating
from nbflow.engine.calls import Call, StepCall
from nbflow.engine.outputs import body_of
from nbflow.engine.threads import Outcome
from nbflow.errors import InstanceFailedError, UndecodableError
from nbflow.values import codec, failures

if TYPE_CHECKING:
    from nbflow.engine.activation import Activation
    from nbflow.engine.instance import WorkflowInstance

LONGEST_ID = 100


class Child:
    """One `step.child` call of one activation."""

    def __init__(self, activation: "Activation", call: Call, workflow: Any, params: Any, child_id: str | None) -> None:
        self.activation, self.call, self.engine = activation, call, activation.engine
        self.workflow = workflow if isinstance(workflow, str) else getattr(workflow, "__name__", str(workflow))
        self.params = params
        self.child_id = child_id if child_id is not None else self._default_id()
        names.instance_id(self.child_id)
        self._started_at = ""
        self._gone = False
        call.cancel = self._cancel

    def _default_id(self) -> str:
        """`parent.name-n`, in the characters that an id may have (S2, S60)."""
        key = self.call.key
        tail = f".{re.sub(r'[^A-Za-z0-9_.-]+', '-', key.name)}-{key.count}"
        return self.activation.live.history.head.instance_id[: LONGEST_ID - len(tail)] + tail

    def begin(self) -> None:
        """Create the child; one of that id that this instance made before is taken as it is."""
        self.activation.in_flight += 1
        self.engine.threads.submit(contextvars.copy_context(), self._create, self._created)

    def _create(self) -> "WorkflowInstance":
        workflow = self.engine.workflow(self.workflow)
        return creating.create(self.engine, workflow, self.child_id, self.params, parent=self.activation.live)

    def _created(self, outcome: Outcome) -> None:
        self.activation.in_flight -= 1
        if self._gone:
            return
        succeeded, child = outcome
        if not succeeded:
            self.call.original = child
            self._end(Kind.CHILD_FAILED, {"error": failures.record_error(child)})
            return
        body = {"order": self.call.order, "workflow": self.workflow, "id": self.child_id}
        self.activation.unacked += 1
        self.activation.record(Kind.CHILD_STARTED, self.call.key, body, acked=self.activation.acked)
        self.watch()

    def watch(self) -> None:
        """Wait for the child's end."""
        record = self.activation.live.history.steps.get(self.call.key)
        self._started_at = record.started_at.isoformat() if record is not None else ""
        self.engine.threads.submit(contextvars.Context(), self._find, self._found)

    def _find(self) -> "WorkflowInstance":
        return self.engine.get(self.child_id, self.workflow)

    def _found(self, outcome: Outcome) -> None:
        if self._gone:
            return
        succeeded, child = outcome
        if succeeded:
            self.engine.ends.watch(child.created_seq, partial(self._ended, child))
        else:  # it was deleted meanwhile
            self._end(Kind.CHILD_FAILED, {"error": failures.record_error(child)})

    def _ended(self, child: "WorkflowInstance") -> None:
        if self._gone or self.activation.over:
            return
        self.activation.in_flight += 1
        self.engine.threads.submit(contextvars.Context(), partial(self._output, child), self._read)

    def _output(self, child: "WorkflowInstance") -> codec.Encoded:
        # Encoded anew: artefacts are not shared between instances.
        return codec.encode(child.output, self.activation.live.files)

    def _read(self, outcome: Outcome) -> None:
        self.activation.in_flight -= 1
        if self._gone:
            return
        succeeded, made = outcome
        if succeeded:
            self._end(Kind.CHILD_FINISHED, body_of(made), made.data)
        elif type(made) is UndecodableError:
            self.activation.live.interrupt(self.activation, self.call.key, made)
        else:
            error = made if isinstance(made, InstanceFailedError) else InstanceFailedError(f"child {self.child_id!r}: {made}")
            self.call.original = made
            self._end(Kind.CHILD_FAILED, {"error": failures.record_error(error)})

    def _end(self, kind: Kind, body: dict[str, Any], value: bytes | None = None) -> None:
        if self.activation.stopping:
            return  # read again after the pause
        self._gone = True
        about = {"order": self.call.order, "started_at": self._started_at or self.engine.clock.now().isoformat()}
        self.activation.ended(kind, self.call, about | body, value)

    def _cancel(self) -> None:
        self._gone = True  # the child goes on: it is independent (S60)


def call_child(activation: "Activation", name: str, workflow: Any, params: Any, child_id: str | None) -> StepCall:
    """Make the call; see `WorkflowStep.child`."""
    call, known = activation.open_call(StepType.CHILD, name)
    if call.key in activation.calls:
        child = Child(activation, call, workflow, params, child_id)
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
        child.child_id, child.workflow = known.body.get("id", child.child_id), known.body.get("workflow", child.workflow)
        child.watch()


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
