"""An open `wait_for_event`: it takes the first event of its type that was sent by its deadline, or times out (S34 to S37)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from nbflow.core.history import EventRecord, History
from nbflow.core.model import Kind
from nbflow.engine.calls import Call, noted
from nbflow.engine.timers import Timer
from nbflow.errors import EventTimeoutError, UndecodableError
from nbflow.store.lines import body_text
from nbflow.values import codec, failures, schemas

if TYPE_CHECKING:
    from nbflow.engine.activation import Activation

_TOLD = ("event_type", "schema", "prompt")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a wait asks for.

    Attributes:
        described: the JSON schema of the payload, None for any.
        schema: the type it was made from.
    """

    event_type: str
    span: timedelta
    prompt: str | None = None
    described: dict[str, Any] | None = None
    schema: Any = None

    def body(self, order: int, due: datetime) -> dict[str, Any]:
        """What `wait.started` says of a wait that asks for this until *due*."""
        body: dict[str, Any] = {"order": order, "event_type": self.event_type, "due_at": due.isoformat()}
        if self.prompt is not None:
            body["prompt"] = self.prompt
        if self.described is not None:
            body["schema"] = self.described
        return body

    def is_told(self, recorded: dict[str, Any]) -> bool:
        """Whether that is what the recorded body of a wait tells senders, compared as the store writes it."""
        told, asked = ({name: body.get(name) for name in _TOLD} for body in (recorded, self.body(0, datetime.min)))
        return body_text(told) == body_text(asked)


class Wait:
    """One open `wait_for_event` call."""

    def __init__(self, activation: "Activation", call: Call, asked: Asked, due: datetime, started_at: datetime) -> None:
        self.activation, self.call, self.asked, self.due = activation, call, asked, due
        self.event_type = asked.event_type
        self.live = activation.live
        self.closing = False
        self._started_at = started_at.isoformat()
        call.cancel = self.close
        self.live.waits[call.key] = self
        self._timer: Timer | None = activation.engine.timers.at(due, self._time_is_up)

    def in_time(self, history: History) -> EventRecord | None:
        """The event this wait would take: the first of its type, if it was sent by the deadline (S37).

        One that does not fit the schema is set aside with a note, and stays visible among the events (S39).
        """
        while (unfit := self._unfit(history)) is not None:
            event, why = unfit
            body = {"event_id": event.event_id, "step": str(self.call.key), "why": why}
            self.live.record(Kind.SET_ASIDE, None, body, acked=noted)
        first = next(iter(history.buffered(self.event_type)), None)
        return first if first is not None and first.sent_at <= self.due else None

    def _unfit(self, history: History) -> tuple[EventRecord, str] | None:
        if self.asked.described is None:
            return None
        first = next(iter(history.buffered(self.event_type)), None)
        if first is None:
            return None
        try:
            payload = codec.decode(first.value, self.live.files)
        except UndecodableError:
            return None  # its delivery says so (S17)
        found = schemas.problems(self.asked.described, payload, self.asked.schema)
        return (first, "; ".join(f"{path or 'payload'}: {message}" for path, message in found)) if found else None

    def _time_is_up(self) -> None:
        """The deadline has passed: look at what others sent in time before deciding (S37)."""
        self._timer = None
        if self.activation.stopping:
            self.activation.hold(self._time_is_up)
        elif not self.closing:
            self.activation.engine.look(self._decide_timeout)

    def _decide_timeout(self) -> None:
        if self.activation.stopping:
            self.activation.hold(self._time_is_up)
            return
        if self.closing:
            return
        event = self.in_time(self.live.history)
        if event is not None:
            self.take(event)
            return
        self.close()
        error = EventTimeoutError(f"no event of type {self.event_type!r} came by {self.due.isoformat(timespec='seconds')}")
        body = {"order": self.call.order, "started_at": self._started_at, "error": failures.record_error(error)}
        self.activation.ended(Kind.WAIT_FAILED, self.call, body)

    def close(self) -> None:
        """Take it out of the queue (S36)."""
        self.closing = True
        if self._timer is not None:
            self._timer.cancel()
        self.live.waits.pop(self.call.key, None)

    def take(self, event: EventRecord) -> None:
        """This wait takes that event: the taking is in the wait's own entry (S34)."""
        self.close()
        body = {
            "order": self.call.order,
            "started_at": self._started_at,
            "event_id": event.event_id,
            "event_type": event.type,
            "sent_at": event.sent_at.isoformat(),
            "sent_by": event.sent_by,
        } | {name: event.body[name] for name in ("preview", "json", "output_type") if name in event.body}
        self.activation.ended(Kind.WAIT_FINISHED, self.call, body, event.value)


def match(history: History, waits: Iterable[Wait]) -> bool:
    """Let open waits take buffered events, in the order in which they were called (S35); says whether something goes on."""
    taken = False
    for wait in sorted(waits, key=lambda wait: wait.call.order):
        event = None if wait.closing else wait.in_time(history)
        if event is None:
            continue
        engine = wait.activation.engine
        if engine.store.moved():  # an event of another process may come first
            engine.look(wait.activation.on_quiet)
            return True
        wait.take(event)
        taken = True
    return taken
