"""What the present code would do with what is recorded: steps kept, stale, not reached, new (S56, S57).

Found by a replay that runs no body and records nothing: recorded steps return what is recorded, all others never return. It
is the one way that cannot be wrong about what a step is given to run; code of `run` outside steps does run.
"""

import contextvars
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from nbflow.core.history import StepRecord
from nbflow.core.model import Entry, Kind, StepKey, StepState, StepType
from nbflow.core.parts import BODY, Fingerprint, Part, fingerprint
from nbflow.core.told import as_told
from nbflow.engine.activation import Activation
from nbflow.engine.code import owners
from nbflow.engine.code.codes import Differing, Present, StepCode, code_of, stale_steps
from nbflow.engine.code.reach import inner_functions
from nbflow.engine.entrypoint import make_event
from nbflow.engine.live import LiveInstance
from nbflow.engine.scope import Scope
from nbflow.errors import InvalidStatusError, UndecodableError, UsageError
from nbflow.store.views import StepView, step_view
from nbflow.values import codec

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.instance import WorkflowInstance
    from nbflow.engine.registry import Workflow

_NAME = re.compile(r"^(?:async )?def (\w+)", re.MULTILINE)
PATIENCE = 30.0  # seconds that `run` may take for it, all its steps being answered


@dataclass(frozen=True, slots=True)
class CodeChanges:
    """The recorded steps of an instance against the present code.

    Attributes:
        kept: called again with the code and arguments that are recorded.
        stale: called again with others; `stale_why` and `code_diff` of each say what changed.
        unreached: recorded, and not asked for any more.
        new: called, and not recorded.
        unknown: recorded, and behind a step that is new or unfinished: whether they are reached shows only when that has run.
    """

    kept: tuple[StepView, ...] = ()
    stale: tuple[StepView, ...] = ()
    unreached: tuple[StepView, ...] = ()
    new: tuple[StepKey, ...] = ()
    unknown: tuple[StepView, ...] = ()

    @property
    def diff(self) -> str:
        """The diffs of all stale steps."""
        return "\n".join(step.code_diff for step in self.stale if step.code_diff)

    def __str__(self) -> str:
        lines = [f"{len(self.kept)} kept"]
        lines += [f"stale: {step.key} ({', '.join(step.stale_why)})" for step in self.stale]
        lines += [f"unreached: {step.key}" for step in self.unreached]
        lines += [f"new: {key}" for key in self.new]
        lines += [f"not known before the new code has run: {step.key}" for step in self.unknown]
        return "\n".join(filter(None, [*lines, self.diff]))

    __repr__ = __str__


def code_changes(engine: "Engine", instance: "WorkflowInstance") -> CodeChanges:
    """See `WorkflowInstance.code_changes`."""
    engine.check_open()
    engine.thread.forbid_here("code_changes()")
    workflow = engine.workflow(instance.workflow_name)
    probe = _Probe(engine, instance.history(), workflow)
    context = contextvars.copy_context()
    engine.thread.post(partial(probe.begin, context))
    if not probe.over.wait(PATIENCE):
        engine.thread.post(probe.give_up)
        msg = (
            f"`run` of {instance.workflow_name!r} did not get through its recorded steps in {PATIENCE:g} s, so what has "
            f"changed is not known; move what takes so long into a step"
        )
        raise InvalidStatusError(msg)
    return probe.found(instance)


class _Rest:
    """The probe takes no slot, and leaves the ones of the instance alone."""

    hibernating = False

    def may_work(self, _then: Callable[[], None]) -> bool:
        """Always: it does nothing."""
        return True


class _Probe(LiveInstance):
    """A replay that runs nothing (S49) and whose entries nobody hears of."""

    def __init__(self, engine: "Engine", entries: list[Entry], workflow: "Workflow") -> None:
        super().__init__(engine, entries, workflow)
        self.rest = _Rest()  # type: ignore[assignment]
        self.over = threading.Event()
        self.error: BaseException | None = None
        self._probing: Activation | None = None
        self._blocked = False

    def begin(self, context: contextvars.Context) -> None:
        """Call `run`. On the loop."""
        workflow = self.workflow
        assert workflow is not None
        self.codes.begin()  # its calls know better than what was found by name
        try:
            event = make_event(codec.decode(self.history.head.params, self.files), self.history.head)
        except UndecodableError as error:
            self._end_with(error)
            return
        activation = Activation(self, lambda: workflow.run(event, activation))
        activation.collecting = self._collected
        self.activation = self._probing = activation
        activation.start(context)

    def _collected(self) -> None:
        """All that can be reached has been; `run` may hang on a call that is not answered."""
        assert self._probing is not None
        self._blocked = any(not task.done() for task in self._probing.tasks)
        self.over.set()

    def record(self, kind: Kind, key: StepKey | None = None, *_: Any, **__: Any) -> Entry:
        """Nothing is recorded: `run` only looks as if it went on."""
        return Entry(kind, 0, 0, self.engine.clock.now(), None if key is None else key.name)

    def fail(self, _activation: Activation, error: BaseException) -> None:
        """The replay could not go on."""
        self._end_with(error)

    def interrupt(self, _activation: Scope, _key: StepKey | None, error: UndecodableError) -> None:
        """A recorded value cannot be read now: what comes after it cannot be known."""
        self._end_with(error)

    def stopped(self, _activation: Scope) -> None:
        """The engine closes."""
        self._end_with(InvalidStatusError("the engine was closed meanwhile"))

    def _end_with(self, error: BaseException) -> None:
        self.error = error
        self.over.set()
        self.give_up()

    def give_up(self) -> None:
        """Drop what is left of it."""
        if self._probing is not None:
            self._probing.abandon()

    def found(self, instance: "WorkflowInstance") -> CodeChanges:
        """Sort what is recorded by what `run` has asked for."""
        if self.error is not None:
            raise self.error
        activation = self._probing
        assert activation is not None
        called = [
            StepKey(kind, name, n, place) for (kind, name, place), last in activation.counts.items() for n in range(1, last + 1)
        ]
        asked = set(called)
        stale = set(stale_steps(self.engine, self.history))
        kept, other, rest = [], [], []
        for record in sorted(self.history.steps.values(), key=lambda step: step.order):
            if record.key.type is StepType.ROLLBACK or record.parent is not None:
                continue  # steps of a body that does not run are not asked for
            view = self._view(record, instance)
            if record.key in stale:
                other.append(view)
            elif record.key in asked or record.key.key is not None:
                kept += [view] if record.ended and record.state is not StepState.CANCELLED else []
            else:
                rest.append(view)
        new = tuple(key for key in called if key not in self.history.steps)
        lost, unknown = ([], rest) if self._blocked else (rest, [])
        return CodeChanges(tuple(kept), tuple(other), tuple(lost), new, tuple(unknown))

    def _view(self, record: StepRecord, instance: "WorkflowInstance") -> StepView:
        code = code_of(self.engine, record, self.created_seq)
        return step_view(as_told(self.history, record), self.history.replayed, partial(instance.load, record), code)


def find_stale_by_name(engine: "Engine", instance: "WorkflowInstance", workflow: "Workflow") -> None:
    """Note which finished steps reach by name what is another thing now; for a finished instance, of which nothing is to run.

    Says less than `code_changes`: what only a call would show (which function a step is given, its arguments) is not known.
    """
    with instance.folded() as history:
        steps = [step for step in history.steps.values() if step.state is StepState.FINISHED]
    found = engine.registry.stale.get(instance.created_seq)
    if workflow.fingerprint is None or (found is not None and found.reach == workflow.reach):
        return  # known already, or better: from the calls of its last activation
    inner = {place.name: Part(BODY, place.hash, place.text) for place in inner_functions(workflow.cls)}
    now, known = inner | {part.label: part for part in workflow.fingerprint.parts}, dict[str, Fingerprint | None]()
    stale = {}
    for step in steps:
        code = step.body.get("code_hash")
        if not code:
            continue
        if code not in known:
            known[code] = _by_name(now, StepCode(engine, step.body))
        items = tuple(step.body.get("stale", ()))
        present = known[code]
        if present is None and "served" in step.body:  # items of it ended under other code, and no code is that of them all
            present = StepCode(engine, step.body).fingerprint
        if present is not None or items:
            stale[step.key] = Present(present, step.body.get("bound", {}), None, items)
    engine.registry.stale[instance.created_seq] = Differing(workflow.reach, stale)


def _by_name(now: Mapping[str, Part], code: StepCode) -> Fingerprint | None:
    """The recorded parts with what their names mean now in their places; None where that is the same."""
    recorded = code.parts() or {}
    named = _NAME.search(code.text)
    body = now.get(named[1]) if named is not None else None  # no name leads to a lambda or to what has no source
    meant = {label: body if label == BODY else now.get(label) for label in recorded}
    if all(part is None or part.hash == recorded[label] for label, part in meant.items()):
        return None
    parts = [
        Part(label, hash_) if (part := meant[label]) is None else Part(label, part.hash, part.text)
        for label, hash_ in recorded.items()
    ]
    return fingerprint(parts)


def restart_stale(engine: "Engine", instance: "WorkflowInstance", by: str | None) -> None:
    """See `WorkflowInstance.restart_stale`."""
    if owners.is_known_elsewhere(engine, instance):
        owners.ask(engine, instance, by)
    else:
        instance.restart(first_stale(engine, instance), by)


def first_stale(engine: "Engine", instance: "WorkflowInstance") -> StepKey:
    """The first step that is stale.

    Raises:
        UsageError: there is none.
    """
    first = next(iter(instance.view().stale_steps), None)
    if first is None:
        first = next((step.key for step in code_changes(engine, instance).stale), None)
    if first is None:
        msg = f"no step of {instance.id!r} is stale; nothing was done"
        raise UsageError(msg)
    return first
