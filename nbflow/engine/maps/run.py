"""`step.map`: one durable step per item, drawn, begun and recorded as places get free (API.md §6, S57, S61).

A `MapRun` lives on the workflow loop. It keeps nothing of an item that has ended but what `run` still has to be given.
"""

import contextvars
import dataclasses
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from nbflow.core import replay
from nbflow.core.config import DEFAULT, ResolvedConfig
from nbflow.core.history import StepRecord
from nbflow.core.items import Items, stream_key
from nbflow.core.model import Kind, StepState
from nbflow.core.rates import Rate
from nbflow.engine.calls import Call, nothing_to_stop
from nbflow.engine.maps.commits import Commits
from nbflow.engine.maps.ends import Conclusion
from nbflow.engine.maps.items import ItemBody
from nbflow.engine.maps.pace import Pace
from nbflow.engine.maps.results import Kept, Results, failed
from nbflow.engine.maps.sources import Draw, Drawn, Source, total_of
from nbflow.engine.threads import Outcome
from nbflow.values import codec, failures

if TYPE_CHECKING:
    from nbflow.engine.activation import Activation, RollbackHandler
    from nbflow.engine.maps.streams import Stream

AHEAD = 1_000
"""Items beyond `concurrency` that may have begun and not left yet: ended and not durable, not consumed, or in a retry delay."""
SUSPICIOUS = 2  # deaths in a row after which items in flight together run one at a time (S27)


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """What a call of `step.map` asks for, parsed."""

    fn: Callable[..., Any]
    items: Any
    key: Callable[[Any], Any] | None
    concurrency: int
    rate: Rate | None
    config: ResolvedConfig
    rollback: "RollbackHandler | None"
    on: str | None
    exceptions: bool
    discard: bool


class MapRun:
    """One map in one activation.

    Attributes:
        items: the fold of its items.
        draw: what has been drawn.
        code: what the entries of items say of their code (S56).
        kept: what ended here and `run` has not been given, by key.
        running: bodies at work.
    """

    def __init__(self, activation: "Activation", call: Call, asked: Asked, known: StepRecord | None) -> None:
        self.activation, self.call, self.asked, self.engine = activation, call, asked, activation.engine
        self.live = activation.live
        self.config = asked.config
        if known is not None and known.config is not None and not self.live.code_changed:
            self.config = ResolvedConfig.from_json(known.config, asked.config)  # what was recorded keeps (S13)
        self.context: contextvars.Context = contextvars.copy_context()
        self.items: Items = Items() if known is None or known.items is None else known.items
        self.results = Results(self.live, call.key, self.items)
        self.draw: Draw = Draw(call.key.name, asked.key, self.items)
        self.source: Source | None = None
        self.stream: Stream | None = None
        self.kept: dict[str, Kept] = {}
        self.code: dict[str, Any] = {}
        self.running = 0
        self._ready: deque[ItemBody] = deque()
        self._bodies: set[ItemBody] = set()
        self._commits = Commits(self.engine, self._acked)
        self._failure: tuple[str, dict[str, Any], BaseException | None] | None = None
        self._pace = Pace(self.live, None, (), self.pump)
        self._closed = self._held = self._pumping = self._full = False
        self._started_at = ""
        call.deliver = Conclusion(self).deliver

    # -- begin and end ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Record that it is under way, and start as many items as may run at once."""
        asked, activation = self.asked, self.activation
        if activation.over or self._closed:
            return
        if activation.stopping or activation.failure is not None:
            activation.hold(self.begin)
            return
        marks = self.live.codes.marks(asked.fn, ())
        self.code = marks
        body = self._about() | marks
        if (total := total_of(asked.items)) is not None:
            body["total"] = total
        if (known := self.live.history.steps.get(self.call.key)) is not None:
            body["started_at"] = known.started_at.isoformat()  # when it was first called
        entry = activation.record(Kind.MAP_STARTED, self.call.key, body)
        if entry is None:
            return
        record = self.live.history.steps[self.call.key]
        assert record.items is not None
        self._started_at = record.started_at.isoformat()
        self.items = self.draw.items = self.results.items = record.items
        self._pace = Pace(self.live, asked.rate, self.items.starts, self.pump)
        self.live.codes.goes_on(self.call.key, asked.fn, self.items)
        self.source = Source(activation, asked.items, self.draw, self.pump)
        self.call.cancel = self._cancel
        activation.closers.append(self.close)
        self.pump()

    def _about(self) -> dict[str, Any]:
        body: dict[str, Any] = {"order": self.call.order}
        if self.config is not DEFAULT:
            body["config"] = self.config.to_json()
        if self.asked.rollback is not None:
            body["rollback"] = True
        if self.asked.rate is not None:
            body["rate"] = [self.asked.rate.count, self.asked.rate.seconds]
        return body

    def close(self) -> None:
        """Nothing more of it happens in this activation."""
        self._closed = True
        if self.source is not None:
            self.source.close()
        self._pace.close()
        self.live.history.resting.pop(self.call.key, None)
        for body in list(self._bodies):
            body.cancel()
            self.activation.suspects.ended(body.key)
        self._bodies.clear()
        self.kept.clear()

    def let_go(self) -> None:
        """It has ended and `run` gets the outcome: the items and what they gave are kept no longer."""
        self.kept = {}
        self.asked, self.source = dataclasses.replace(self.asked, items=()), None
        self.call.cancel, self.call.deliver = nothing_to_stop, None
        if self.close in self.activation.closers:
            self.activation.closers.remove(self.close)

    def _cancel(self) -> None:
        self.close()
        if self.stream is not None:
            self.stream.closed()

    # -- which items run ----------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Start what may start now; see whether all has ended."""
        activation = self.activation
        if self._closed or self._pumping or activation.over or self.source is None:
            return
        if activation.stopping or activation.failure is not None:
            if not self._held:
                self._held = True
                activation.hold(self._unheld)
            return
        self._pumping = True
        try:
            while self._failure is None and self.running < self._places() and self._next() and self._pace.may_begin():
                self._start_one()
        finally:
            self._pumping = False
        if self._failed_before:
            self._fail_as_before(self.draw.failed)
            return
        if self._failure is None and not self._closed:
            self.source.want(max(0, self._places() - self.running) + 1 if self._room() else 1)
            if self.stream is not None:
                self.stream.catch_up()
        if self.asked.rate is not None:
            self._note_rest()
        self._see_end()

    def _note_rest(self) -> None:
        """While nothing of it runs before the rate lets it, it waits as what sleeps does (S5)."""
        resting, until = self.live.history.resting, self._pace.until
        if until is None or self.running:
            resting.pop(self.call.key, None)
        elif self.call.key not in resting:
            resting[self.call.key] = until
            self.activation.on_quiet()

    def _unheld(self) -> None:
        self._held = False
        self.pump()

    def _places(self) -> int:
        """How many bodies may run at once."""
        if self.live.history.head.deaths >= SUSPICIOUS and self.items.suspicious:
            return 1
        return self.asked.concurrency

    def _room(self) -> bool:
        """Whether another item may begin that has to be remembered until it leaves."""
        waiting = len(self.stream.ready) + len(self.kept) if self.stream is not None else len(self._commits)
        return len(self._bodies) + waiting < self.asked.concurrency + AHEAD

    @property
    def _failed_before(self) -> bool:
        """Whether an item is recorded as failed for good that ends the map."""
        return bool(self.draw.failed) and not self.asked.exceptions and self._failure is None

    def _next(self) -> bool:
        """Whether an item can start: one whose retry is due, or one that is drawn."""
        if self._ready:
            return True
        self._full = not self._room()
        if self._full:
            return False
        if not self.draw.pending:
            assert self.source is not None
            self.source.want(1)
        return bool(self.draw.pending) and not self._failed_before

    def _start_one(self) -> None:
        """Start the next item, those first whose retry is due."""
        if self._ready:
            body = self._ready.popleft()
            self._work(partial(body.begin, body.attempt + 1))
        else:
            self._start(self.draw.pending.popleft())

    def _start(self, drawn: Drawn) -> None:
        body = ItemBody(self, drawn)
        self._bodies.add(body)
        known = self.items.open.get(drawn.key)
        if known is None:
            self._work(partial(body.begin, 1))
            return
        body.attempt = known.attempt
        if known.state is StepState.RETRYING and known.due_at is not None and not self.live.code_changed:
            body.resume_at(replay.WaitUntil(known.due_at, known.attempt + 1))
            return
        anew = known.state is StepState.RETRYING  # new code is tried at once, its attempts counted anew (S58)
        begin = partial(body.begin, known.attempt + 1, anew=anew)
        if self.live.history.head.deaths >= SUSPICIOUS:
            self.activation.suspects.begin(body.key, partial(self._work, begin))  # takes no place before its turn
        else:
            self._work(begin)

    def _work(self, begin: Callable[[], None]) -> None:
        self.running += 1
        self._pace.began()
        begin()

    @property
    def failing(self) -> bool:
        """Whether an item has failed for good, so that nothing of it is tried again."""
        return self._failure is not None

    # -- what becomes of them -----------------------------------------------------------------------------------------

    def rests(self) -> None:
        """An attempt has failed, and another comes later: its place is free."""
        self.running -= 1
        self.pump()

    def ready(self, body: ItemBody) -> None:
        """Its delay is over: it is the next to start."""
        self._ready.append(body)
        self.pump()

    def ended(self, body: ItemBody, kind: Kind, fields: dict[str, Any], value: bytes | None) -> None:
        """Record the end of an item; what it gave is kept until `run` has it."""
        activation, key = self.activation, body.drawn.key
        self.running -= 1
        self._bodies.discard(body)
        if activation.live.activation is not activation:
            return
        is_failure = kind is Kind.MAP_FAILED
        if is_failure and not self.asked.exceptions and self._failure is None:
            assert body.call.original is not None
            self._failure = key, failed(fields), body.call.original
        if not self.asked.discard:
            if is_failure:
                self.kept[key] = failed(fields)
            elif value is not None:
                self.kept[key] = value
        out = 0
        if self.stream is not None and (not is_failure or self.asked.exceptions):
            out = self.stream.passed(key, fields)
        # What goes out is acknowledged for itself, in the order of the entries, as all results are (S20).
        acked = partial(self._acked, 1, out) if out else None
        if activation.record(kind, body.key, fields, value, acked=acked) is not None:
            activation.unacked += 1
            if acked is None:
                self._commits.add()
        activation.suspects.ended(body.key)
        if self.failing:
            activation.withdraw(self._bodies)
        self.pump()

    def _acked(self, ends: int, out: int = 0) -> None:
        """The ends of some items are durable."""
        activation = self.activation
        activation.unacked -= ends
        if out and self.stream is not None:
            self.stream.arrived(out)
        elif activation.unacked == 0:
            activation.on_quiet()
        if self._full:
            self.pump()

    def taken(self) -> None:
        """`run` has taken a value of the stream: whatever stopped for want of room goes on."""
        if self._full or (self.stream is not None and self.stream.may_go_on):
            self._full = False
            self.engine.thread.post(self.pump)

    def ignore_stream(self) -> None:
        """Its values went out one by one before, and are wanted as a list now: the code has changed."""
        token = Call(stream_key(self.call.key), self.call.order, self.call.future)
        token.deliver = self.activation.on_quiet
        self.activation.calls[token.key] = token

    def _see_end(self) -> None:
        """Record the end of the map when the last item has ended."""
        source = self.source
        assert source is not None
        if self.running or self._closed:
            return
        if self._failure is None and source.error is None:
            if source.over and not self._bodies and not (self.stream is not None and self.stream.behind):
                self._finish()
            return
        key, about, original = self._failure or ("", {}, source.error)
        body = self._about() | {"started_at": self._started_at}
        if key:
            body |= {"item": key, "error": about["error"], "item_attempts": about["attempt"]}
        elif original is not None:
            body["error"] = failures.record_error(original)
        self._end()
        self.call.original = original
        self.activation.ended(Kind.MAP_FAILED, self.call, body)

    def _fail_as_before(self, key: str) -> None:
        """An item is recorded as failed for good, and the kernel died before that was said of the map."""
        self.draw.failed = ""
        self.activation.in_flight += 1
        read = partial(self.results.read, [key])
        self.engine.threads.submit(contextvars.Context(), read, partial(self._read_failure, key))

    def _read_failure(self, key: str, outcome: Outcome) -> None:
        self.activation.in_flight -= 1
        if self._closed:
            self.activation.on_quiet()  # it may have waited for this alone
            return
        kept = outcome[1].get(key) if outcome[0] else None
        about = kept if isinstance(kept, dict) else {"error": failures.record_error(outcome[1]), "attempt": 0}
        self._failure = key, about, None
        self._see_end()
        self.activation.on_quiet()

    def _finish(self) -> None:
        items, draw = self.items, self.draw
        body = self._about() | {"started_at": self._started_at, "total": draw.count, "failed": items.failed}
        if items.done + items.failed > draw.count:
            body["gone"] = list(items.left_out(draw))
        body |= self.live.codes.marks(self.asked.fn, ())
        body |= self.live.codes.items_changed(self.call.key, self.asked.fn, draw.stale, items, draw)
        self._end(keep=True)
        if draw.keys is None:
            self.activation.ended(Kind.MAP_FINISHED, self.call, body)
            return
        self.activation.in_flight += 1
        make = partial(codec.encode, draw.keys, self.live.files, with_preview=False)
        what, done = f"the list of keys of map {str(self.call.key)!r}", partial(self._keys_encoded, body)
        self.engine.keeping.submit(self.live, what, make, done, lambda: self._is_called)

    @property
    def _is_called(self) -> bool:
        return not self.activation.over and self.call.key in self.activation.calls

    def _keys_encoded(self, body: dict[str, Any], outcome: Outcome) -> None:
        self.activation.in_flight -= 1
        if not self._is_called:
            self.activation.on_quiet()  # `run` has left the stream meanwhile, and may have returned
            return
        if outcome[0]:
            self.activation.ended(Kind.MAP_FINISHED, self.call, body, outcome[1].data)
        else:
            self.activation.ended(Kind.MAP_FAILED, self.call, body | {"error": failures.record_error(outcome[1])})

    def _end(self, *, keep: bool = False) -> None:
        kept, self.kept = self.kept, {}
        self.close()
        if keep:
            self.kept = kept
