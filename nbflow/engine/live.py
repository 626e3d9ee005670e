"""An instance that this engine runs: its fold, its entries on their way to the store, its activation.

The fold is changed in the order of the entries, by whoever records one, under `lock`; the activation lives on the workflow
loop. Commands come from any thread: they are recorded there, durable, then the loop acts on them.
"""

import contextvars
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from nbflow.core.history import History, settled, status_of
from nbflow.core.model import Entry, Kind, Status, StepKey
from nbflow.core.rollback import due
from nbflow.engine import deaths
from nbflow.engine.activation import Activation
from nbflow.engine.calls import noted
from nbflow.engine.code.codes import Codes
from nbflow.engine.entrypoint import make_event
from nbflow.engine.leftovers import Leftovers
from nbflow.engine.logs.log import Log
from nbflow.engine.outputs import body_of, encode_output, is_light, tells_of, withheld
from nbflow.engine.rest import Rest
from nbflow.engine.rolling import Rollback
from nbflow.engine.scope import Scope
from nbflow.engine.unreadable import why_interrupted
from nbflow.engine.waits import Wait, match
from nbflow.errors import UndecodableError
from nbflow.store.views import InstanceView, instance_view
from nbflow.values import codec, failures
from nbflow.values.artifacts import ArtifactFolder

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.registry import Workflow

log = logging.getLogger("nbflow")

_BUSY = (Status.QUEUED, Status.RUNNING)


class LiveInstance:
    """The engine's side of one instance that it owns.

    Attributes:
        history: the fold of everything recorded.
        created_seq: what everything about this instance is joined by.
        waits: open `wait_for_event` calls of the present activation.
        lock: held while an entry is recorded and while the fold is read.
    """

    def __init__(self, engine: "Engine", entries: list[Entry], workflow: "Workflow | None") -> None:
        self.engine, self.workflow = engine, workflow
        self.history = History(entries)
        self.created_seq = self.history.head.created_seq
        self.lock, self.leftovers = threading.RLock(), Leftovers(engine)
        self.activation: Activation | Rollback | None = None
        self.rolling_back = False
        self.rest, self.codes, self.slots = Rest(self), Codes(self), engine.slots
        self.waits: dict[StepKey, Wait] = {}
        self.retries: dict[StepKey, Callable[[], None]] = {}
        self.patient = True  # a test may want no retry delays
        self.unreached: tuple[StepKey, ...] = ()
        self.outputs: dict[StepKey, Log] = {}
        self.lost = self.code_changed = False
        self._changed, self._waiters = threading.Condition(), 0
        self._files: ArtifactFolder | None = None
        self._context: contextvars.Context | None = None

    @property
    def name(self) -> str:
        """For messages: WORKFLOW/ID."""
        return f"{self.history.head.workflow}/{self.history.head.instance_id}"

    @property
    def files(self) -> ArtifactFolder:
        """The instance's artefact folder."""
        if self._files is None:
            self._files = self.engine.artifact_folder(self.history.head)
        return self._files

    # -- recording ----------------------------------------------------------------------------------------------------

    def record(
        self,
        kind: Kind,
        key: StepKey | None = None,
        body: dict[str, Any] | None = None,
        value: bytes | None = None,
        *,
        acked: Callable[[], None] | None = None,
    ) -> Entry:
        """Fold an entry in and hand it to the journal, in one order."""
        now = self.engine.clock.now
        name, count, item = (None, None, None) if key is None else (key.name, key.count, key.key)
        with self.lock:
            head = self.history.head
            entry = Entry(kind, head.created_seq, head.token, now(), name, count, item, body or {}, value)
            self.history.apply(entry, key)
            self.engine.store.append(entry, acked)
        self.engine.feed.publish(head.created_seq)
        return entry

    def take_in(self, entry: Entry) -> None:
        """Fold in what somebody else wrote about this instance."""
        with self.lock:
            self.history.apply(entry)
        self.notify()

    def notify(self) -> None:
        """It has settled, ended or was told something: wake those who wait, tell those who watch.

        Not for each entry: waking a waiting thread thousands of times a second would cost the loop its speed.
        """
        if self._waiters:
            with self._changed:
                self._changed.notify_all()
        self.engine.main_queue.nudge()
        self.engine.feed.publish(self.created_seq)

    def wait_changed(self, timeout: float) -> None:
        """Block until something changes, at most *timeout* seconds."""
        with self._changed:
            self._waiters += 1
            try:
                self._changed.wait(timeout)
            finally:
                self._waiters -= 1

    # -- what it is doing ---------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """The status, better known here than from the entries while it runs (S5); of a closed engine they tell it."""
        with self.lock:
            recorded = self.history.head.status
            if recorded not in _BUSY:
                return recorded
            activation = self.activation
            if self.slots.queued(self.created_seq):
                return Status.QUEUED
            if activation is None:
                return status_of(self.history) if self.rest.hibernating or self.engine.closing else recorded
            return status_of(self.history) if activation.idle else Status.RUNNING

    def is_settled(self, *, but_for_children: bool = False) -> bool:
        """Finished, paused, interrupted, or waiting on every path for an event that nobody has sent, or a child."""
        with self.lock:
            head = self.history.head
            if head.finished or head.status is Status.PAUSED or self.lost:
                return True
            if self.activation is None:
                return head.interrupted is not None or ((self.rest.hibernating or self.engine.closing) and self._rests())
            return self.activation.idle and head.status in _BUSY and self._rests(but_for_children=but_for_children)

    def _rests(self, *, but_for_children: bool = False) -> bool:
        """Whether nothing happens before somebody acts, as far as entries and the time tell: a deadline may have passed."""
        now = self.engine.clock.now()
        due = any(step.due_at is not None and step.due_at <= now for step in self.history.open_steps())
        return not (due or self.slots.queued(self.created_seq)) and settled(self.history, but_for_children=but_for_children)

    def view(self) -> InstanceView:
        """The instance at a glance."""
        with self.lock:
            here, status, held = not (self.lost or self.history.head.released), self.status(), self.engine.watch.held
            shown = instance_view(self.history, here=here, owner_alive=True, status=status, unreached=self.unreached, held=held)
            return replace(shown, stale_steps=self.codes.stale, code_same=self.codes.same)

    # -- activations --------------------------------------------------------------------------------------------------

    def activate(self, context: contextvars.Context | None = None) -> None:
        """Call `run` from the top, in the context of whoever asked for it. On the loop."""
        head = self.history.head
        self._context = context or self._context or contextvars.Context()
        rolling_back = head.status is Status.ROLLING_BACK
        may_run = self.activation is None and not (self.lost or head.deleted or self.engine.closing)
        if not may_run or not (head.status in _BUSY or rolling_back):
            return
        workflow = self.workflow
        assert workflow is not None
        if not self.rest.may_work(self.activate):
            return
        new_code = head.activation > 0 and self.codes.has_new(workflow)
        if deaths.too_many(self.history) and not new_code:
            error = failures.record_error(deaths.error_of(self.history))
            self.rolled_back(("failed", error)) if rolling_back else self._end(None, Kind.ERRORED, {"error": error})
            return
        try:
            params = codec.decode(head.params, self.files)
        except UndecodableError as error:
            self._say_interrupted(None, error)
            return
        event = make_event(params, head)
        activation = Activation(self, lambda: workflow.run(event, activation))
        self.waits, self.retries, self.unreached, self.history.uncalled = {}, {}, (), frozenset()
        self.codes.begin()
        self.rolling_back = self.rest.hibernating = False
        self.code_changed = new_code
        if rolling_back:
            activation.collecting = partial(self._roll_back, activation)
        self.record(Kind.ACTIVATED, None, {"number": head.activation + 1} | workflow.code_marks)
        self.engine.store.write()  # recorded before `run` is called: the death of the process cannot lose it (S53)
        self.activation = activation
        self.engine.watch.begin()
        activation.start(self._context.copy())

    def noted_idle(self) -> None:
        """The activation is quiet and has nothing to hand out: what it waits for is now known."""
        if isinstance(self.activation, Activation):
            self.unreached, self.history.uncalled = self.activation.unreached(), self.activation.left
        self.rest.noted()
        self.notify()

    def complete(self, activation: Activation, output: object) -> None:
        """`run` has returned: store its output, then the instance is complete."""
        self.unreached = activation.unreached()
        if is_light(output):
            self._completed(activation, encode_output(output, self.files))
        else:
            make, wanted = partial(encode_output, output, self.files), lambda: self.activation is activation
            self.engine.keeping.submit(self, "the output", make, lambda made: self._completed(activation, made[1]), wanted)

    def _completed(self, activation: Activation, encoded: Any) -> None:
        if self.lost or self.activation is not activation or self.history.head.finished:
            return
        if isinstance(encoded, BaseException):
            self.fail(activation, encoded)
            return
        body = body_of(encoded)
        if self.unreached:
            body = body | {"unreached": [str(key) for key in self.unreached]}
        self._end(activation, Kind.COMPLETED, body, encoded.data)

    def fail(self, activation: Activation, error: BaseException) -> None:
        """An error has left `run`: roll back what has a handler, then the instance is errored (S46)."""
        self.unreached = activation.unreached()
        if type(error) is UndecodableError:  # `run` has loaded a reference
            self.interrupt(activation, None, error)
            return
        record = failures.record_error(error)
        if activation.secrets and tells_of(error, activation.secrets):
            record = withheld(record)
        if not due(self.history):
            self._end(activation, Kind.ERRORED, {"error": record, "rollback": None})
            return
        with self.lock:
            if self.activation is not activation or self.history.head.finished:
                return
            self.record(Kind.ROLLING_BACK, None, {"error": record}, acked=self.notify)
        self._roll_back(activation, error)

    def _roll_back(self, activation: Activation, error: BaseException | None = None) -> None:
        """Run the handlers that this activation has found, the last started first."""
        record = self.history.head.error
        if error is None and record is not None:
            error = failures.decode_error(record, step="", attempts=0)
        assert self._context is not None
        rollback = Rollback(self, activation.rollbacks, error, self._context)
        rollback.secrets = activation.secrets
        with self.lock:
            if self.activation is not activation:
                return
            self.activation = rollback
        self.rolling_back = True
        rollback.start()

    def rolled_back(self, outcome: tuple[str, dict[str, Any] | None]) -> None:
        """The chain has ended, well or with the first handler that failed for good (S48)."""
        head = self.history.head
        if head.terminating:
            self._end(self.activation, Kind.TERMINATED, {"rollback": outcome})
        else:
            self._end(self.activation, Kind.ERRORED, {"error": head.error, "rollback": outcome})

    def _end(self, scope: Scope | None, kind: Kind, body: dict[str, Any], value: bytes | None = None) -> None:
        with self.lock:
            if self.activation is not scope or self.history.head.finished or self.lost:
                return  # terminated or restarted meanwhile
            self.activation = None
            self.record(kind, None, body, value, acked=self.notify)
        if scope is not None:
            scope.drop_tasks()
        self.rest.ended()
        if kind is not Kind.TERMINATED:
            self.engine.tell(self, "complete" if kind is Kind.COMPLETED else "errored")
        self.engine.finished(self)

    def stopped(self, activation: Scope) -> None:
        """A stop has taken effect: nothing of the activation runs any more."""
        self.rest.ended()
        if self.activation is not activation:
            return  # whoever ended it goes on from there
        self.activation = None
        if self.history.head.status is Status.WAITING_FOR_PAUSE and not self.lost:
            self.record(Kind.PAUSED, acked=self.notify)
        elif not self.lost and not self.engine.closing and self.history.head.interrupted is None:
            self.activate()  # a resume, or new code, came while it wound down
        self.notify()

    def interrupt(self, activation: Scope, key: StepKey | None, error: UndecodableError) -> None:
        """A recorded value cannot be read now: no failure of the step; the instance goes on when it can be (S17)."""
        if self.activation is not activation:
            return
        self.activation = None
        activation.abandon()
        self._say_interrupted(key, error)

    def _say_interrupted(self, key: StepKey | None, error: UndecodableError) -> None:
        why = why_interrupted(self.history, key, error)
        if self.history.head.interrupted != why:
            self.record(Kind.INTERRUPTED, None, {"why": why, "message": str(error)}, acked=noted)
        self.rest.ended()
        self.notify()

    # -- events -------------------------------------------------------------------------------------------------------

    def match_events(self, activation: Activation) -> bool:
        """Give buffered events to open waits, the first of each type to the first by order (S34, S35)."""
        waits = [wait for wait in self.waits.values() if wait.call.key in activation.calls] if self.waits else []
        return bool(waits) and match(self.history, waits)

    def events_changed(self) -> None:
        """An event has come: an activation that waits for one of its type looks at its next quiet moment."""
        if self.activation is not None:
            if any(self.history.buffered(wait.event_type) for wait in tuple(self.waits.values())):
                self.activation.on_quiet()
        elif self.rest.hibernating and status_of(self.history) is Status.RUNNING:
            self.rest.wake()

    # -- commands, on the loop ----------------------------------------------------------------------------------------

    def begin_pause(self) -> None:
        """Bodies in flight end, nothing new starts (S40)."""
        if self.activation is not None:
            self.activation.stop()
            self.rest.gives_way()
            self.activation.take_turn()
        elif self.history.head.status is Status.WAITING_FOR_PAUSE:
            self.rest.gives_way()
            self.record(Kind.PAUSED, acked=self.notify)

    def go_on(self, context: contextvars.Context | None = None) -> None:
        """After resume or retry: take the pause back, or replay (S41)."""
        activation = self.activation
        resumable = isinstance(activation, Activation) and activation.stopping and not activation.over
        if isinstance(activation, Activation) and resumable and not activation.signalled:
            activation.take_stop_back()
        elif activation is None:
            self.activate(context)

    def retry_now(self, step: StepKey | None = None) -> None:
        """End all retry delays, or that of one step."""
        for key, retry in list(self.retries.items()):
            if step is None or key == step:
                retry()

    def refold(self, entries: list[Entry]) -> None:
        """Take what the file says now in place of what was known (S52)."""
        with self.lock:
            self.history = History(entries)
        self.notify()

    @property
    def home(self) -> str:
        """The module that defines the workflow: what `nbflow run` runs is the user's own code as a cell is."""
        return "__main__" if self.workflow is None else self.workflow.cls.__module__

    def replace_code(self) -> None:
        """Go on with the workflow's present class: a waiting activation is replayed under it (S58)."""
        activation = self.activation
        if activation is None:
            self.rest.wake()  # one that left memory waits too
        elif isinstance(activation, Activation) and activation.idle and activation.collecting is None:
            self.activation = None
            activation.abandon()
            self.activate()

    def detach(self) -> Activation | Rollback | None:
        """Let nothing more of the present activation be recorded (from any thread, under `lock`); gives it to be ended."""
        activation, self.activation = self.activation, None
        self.rest.hibernating = False
        return activation

    def drop(self, activation: Activation | Rollback | None = None, *, again: contextvars.Context | None = None) -> None:
        """End an activation at once: terminated, restarted, deleted, or another engine's now (S43, S44, S52)."""
        activation = activation or self.detach()
        if activation is not None:
            activation.abandon()
        self.rest.ended()
        if again is not None:
            self.leftovers.after_them(self.name, partial(self.activate, again))
        if self.history.head.finished or self.history.head.deleted:
            self.engine.ends.ended(self.created_seq)
        self.notify()
