"""What other processes wrote about our instances, and what we do about it (S52)."""

import collections
import contextvars
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbflow.core.model import FENCES, Entry, Kind, StepKey, StepType
from nbflow.engine.code import owners
from nbflow.engine.live import LiveInstance
from nbflow.engine.recovery import take_up

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine

_SETS_GOING = frozenset({Kind.RESUMED, Kind.RETRIED, Kind.RESTARTED, Kind.TERMINATING})


class News:
    """Called by the store, from its thread, with the entries that others wrote; acts on the loop."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._early: collections.deque[Entry] = collections.deque(maxlen=1000)

    def expect(self, live: LiveInstance, entries: Sequence[Entry]) -> None:
        """An instance is ours now: what was said of it after *entries*, while the store was still giving it to us, is told."""
        last = max(entry.seq for entry in entries)
        with self._lock:
            missed = [entry for entry in self._early if entry.created_seq == live.created_seq and entry.seq > last]
        for entry in missed:
            self._engine.thread.post(self._told, live, entry)

    def __call__(self, entries: Sequence[Entry]) -> None:
        """Act on what concerns our instances, tell displays of the rest."""
        engine = self._engine
        engine.schedules.forget()
        if not entries:
            engine.feed.publish(0)
        for entry in entries:
            with self._lock:
                live = engine.live.get(entry.created_seq)
                if live is None:
                    self._early.append(entry)
            if live is not None and not live.lost:
                engine.thread.post(self._told, live, entry)
                continue
            engine.feed.publish(entry.created_seq)
            if entry.kind is Kind.CREATED or (entry.kind in _SETS_GOING and (not entry.token or entry.kind in FENCES)):
                engine.thread.post(self._offered, entry)

    def _told(self, live: LiveInstance, entry: Entry) -> None:
        if entry.kind in FENCES:
            self._fenced(live, entry)
            return
        live.take_in(entry)
        if entry.kind is Kind.EVENT:
            live.events_changed()
        elif entry.kind is Kind.PAUSING:
            live.begin_pause()
        elif (step := entry.body.get("retry_now")) is not None:
            live.retry_now(None if step is True else StepKey(StepType(step[0]), *step[1:]))
        elif entry.body.get(owners.ASKED):
            owners.answer(self._engine, live, entry.body.get("by"))
        elif entry.kind in (Kind.RESUMED, Kind.RETRIED):
            live.go_on()

    def _fenced(self, live: LiveInstance, entry: Entry) -> None:
        """Somebody ended what we ran: stop it; where it is still ours, go on from what is now in the file."""
        engine = self._engine
        if entry.token <= live.history.head.token:
            return
        with live.lock:
            activation = live.detach()
            live.lost = entry.kind in (Kind.CLAIMED, Kind.DELETED)
        live.drop(activation)
        if live.lost:
            engine.live.pop(entry.created_seq, None)
            return

        def again(outcome: tuple[bool, Any]) -> None:
            if outcome[0] and outcome[1] and not live.lost:
                live.refold(outcome[1])
                live.go_on()

        engine.threads.submit(contextvars.Context(), lambda: engine.store.read(entry.created_seq), again)

    def _offered(self, entry: Entry) -> None:
        """It was made or told to go on from outside: where no engine has it, it goes to the first with its workflow (S51)."""
        engine, new = self._engine, entry.kind is Kind.CREATED
        engine.threads.submit(contextvars.Context(), lambda: take_up(engine, entry.created_seq, new=new), lambda _outcome: None)
