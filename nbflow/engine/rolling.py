"""Run rollback handlers, one after another, last started first; each is a durable step of its own (S46 to S50)."""

import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from nbflow.core import replay
from nbflow.core.history import StepRecord
from nbflow.core.model import Kind, StepKey, StepState, StepType
from nbflow.core.rollback import due, handler_key
from nbflow.engine.activation import RollbackHandler
from nbflow.engine.bodies import BODY, Body
from nbflow.engine.calls import Call
from nbflow.engine.executors.undoing import Read, as_body
from nbflow.engine.logs.output import OUTPUT
from nbflow.engine.maps.results import Results
from nbflow.engine.outputs import is_artifact
from nbflow.engine.scope import Scope
from nbflow.values import codec

if TYPE_CHECKING:
    from nbflow.engine.live import LiveInstance


class Rollback(Scope):
    """The undoing of one instance; ends by telling the instance how it went."""

    def __init__(
        self,
        live: "LiveInstance",
        handlers: Mapping[StepKey, RollbackHandler],
        error: BaseException | None,
        context: contextvars.Context,
    ) -> None:
        super().__init__(live)
        self._handlers, self._error, self._context = handlers, error, context
        self._body: Body | None = None
        self._due: deque[StepRecord] | None = None

    @property
    def idle(self) -> bool:
        """Nothing of it runs: it waits out a retry delay, or is over."""
        return not self.in_flight and not self.unacked

    def start(self) -> None:
        """Begin with the first handler that is due."""
        self.on_quiet()

    def on_quiet(self) -> None:
        """A handler has ended, durably, or its entries are: see what is next."""
        if self.over or self.in_flight or self.unacked:
            return
        if self.stopping:
            self.over = True
            self.live.stopped(self)
            return
        if self._body is None:
            self._next()
        else:
            self.live.rest.delayed()

    def _next(self) -> None:
        if self._due is None:
            self._due = deque(due(self.live.history))
        while self._due and self._undone(self._due[0]):
            self._due.popleft()
        if not self._due:
            self.over = True
            self.live.rolled_back(("complete", None))
            return
        step = self._due[0]
        key = handler_key(step.key)
        known = self.live.history.steps.get(key)
        if known is not None and known.state is StepState.FAILED:
            self._stop_failed(known.error)
            return
        its = step.key
        handler = self._handlers.get(StepKey(its.type, its.name, its.count) if its.type is StepType.MAP else its)
        if handler is None:
            self._stop_failed({"type": "LookupError", "message": f"handler not found for step {str(step.key)!r}"})
            return
        self._run(step, key, known, handler)

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        """What *call*, which may read the store, gives."""
        done = self.engine.loop.create_future()
        self.engine.threads.submit(contextvars.Context(), call, done.set_result)
        succeeded, value = await done
        if not succeeded:
            raise value
        return value

    def _undone(self, step: StepRecord) -> bool:
        handler = self.live.history.steps.get(handler_key(step.key))
        return handler is not None and handler.state is StepState.FINISHED

    def _index(self, key: StepKey) -> int | None:
        record = None if key.key is None else self.live.history.steps.get(StepKey(key.type, key.name, key.count))
        return None if record is None or record.items is None or key.key is None else record.items.index(key.key)

    def _output(self, step: StepRecord) -> Any:
        """What the step gave; of a map's item, what the store has of it. In a thread."""
        key, record = step.key, self.live.history.steps.get(StepKey(step.key.type, step.key.name, step.key.count))
        if key.type is not StepType.MAP or record is None or record.items is None or key.key is None:
            return None if step.value is None else codec.decode(step.value, self.live.files)
        kept = Results(self.live, record.key, record.items).read([key.key]).get(key.key)
        return codec.decode(kept, self.live.files) if isinstance(kept, bytes) else None

    def _run(self, step: StepRecord, key: StepKey, known: StepRecord | None, handler: RollbackHandler) -> None:
        fn, config = handler
        order = known.order if known is not None else self.live.history.last_order + 1
        call = Call(key, order, self.engine.loop.create_future())
        context = self._context.copy()
        context.run(OUTPUT.set, None)
        context.run(BODY.set, None)  # as for `run`: whoever asked for it may be a body
        # What undoes a sensitive step is given its output, and may print it or fail with it.
        body = self._body = Body(self, call, self._body_of(fn, step), (), config, None, context, sensitive=step.sensitive)
        body.index, body.coded = self._index(step.key), fn
        match replay.decide(known, StepType.DO):
            case replay.WaitUntil() as decision:
                body.attempt = decision.attempt - 1
                body.resume_at(decision)
                self.live.rest.delayed()
            case replay.Execute(attempt):
                body.begin(attempt)
            case _:
                body.begin(1)

    def _body_of(self, fn: Callable[..., Any], step: StepRecord) -> Callable[..., Any]:
        offers: dict[str, Callable[[], Any]] = {
            "error": lambda: self._error,
            "output": partial(self._output, step),
            "step_name": lambda: step.key.name,
        }
        reads_a_file = step.key.key is not None or (step.value is not None and is_artifact(step.value))

        def in_thread(read: Read) -> Awaitable[dict[str, Any]] | None:
            return self._in_thread(read) if reads_a_file and self.engine.thread.here else None

        return as_body(fn, offers, in_thread)

    def ended(self, kind: Kind, call: Call, body: dict[str, Any], value: bytes | None = None) -> None:
        """Record the end of a handler; the next begins when it is durable."""
        self.unacked += 1
        self.record(kind, call.key, body, value, acked=partial(self._handler_ended, call.key))

    def _handler_ended(self, _key: StepKey) -> None:
        self.unacked -= 1
        self._body = None
        self.on_quiet()

    def _stop_failed(self, error: dict[str, Any] | None) -> None:
        """The first handler that fails for good stops the chain (S48)."""
        self.over = True
        self.live.rolled_back(("failed", error))

    def abandon(self) -> None:
        """End it at once."""
        self.stopping = self.over = True
        if self._body is not None:
            self._body.cancel()
