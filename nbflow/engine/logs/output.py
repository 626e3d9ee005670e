"""Where the output of a body goes: into the log of its step and attempt, in chunks through the journal.

An attempt that puts nothing out costs one small object. What it does put out waits in memory for at most about a second,
in pieces of at most 64 kB, and 1 MB of it is kept for a step; so a body may print for ever.
"""

import base64
import contextlib
import contextvars
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nbflow.core.log import LogChunk, LogItem, Progress, joined, unpacked
from nbflow.core.model import StepKey, StepType
from nbflow.engine.logs.echo import Held
from nbflow.engine.logs.log import EVERY, Budget, Log

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.executors.bodies import OnExecutors

_MIME = ("text/", "image/")

OUTPUT: contextvars.ContextVar["Output | None"] = contextvars.ContextVar("nbflow_output", default=None)
"""Where what is written in this context goes; None: where it always went."""
UNKEPT: contextvars.ContextVar[bool] = contextvars.ContextVar("nbflow_unkept", default=False)
"""Whether what is written in this context is in the log already, in another form."""

_opening = threading.Lock()


@contextlib.contextmanager
def unkept() -> Iterator[None]:
    """Keep nothing of what is written meanwhile: it is in the log already."""
    token = UNKEPT.set(True)
    try:
        yield
    finally:
        UNKEPT.reset(token)


class Output:
    """Takes what one attempt of a body puts out; from any thread.

    Attributes:
        serial: when the attempt began, counted in streams put in (`tap.py`).
    """

    __slots__ = ("_held", "_log", "attempt", "body", "budget", "serial", "started_at")

    def __init__(self, body: "OnExecutors", attempt: int, started_at: str, serial: int) -> None:
        self.body, self.attempt, self.started_at, self.serial = body, attempt, started_at, serial
        before = body.output
        self.budget: Budget | None = None if before is None else before.budget  # a step has one for all its attempts
        self._log: Log | None = None
        self._held: Held | None = None

    @property
    def held(self) -> Held:
        """Lines that it has begun, where they are shown beside the log."""
        if self._held is None:
            with _opening:
                self._held = self._held or Held()
        return self._held

    @property
    def log(self) -> Log:
        """Its log, made when it is first needed."""
        if self._log is None:
            with _opening:
                if self._log is None:
                    self._log = Log(self)
        return self._log

    def write(self, stream: str, text: str) -> None:
        """Keep text that goes on where the last of its stream ended."""
        self.log.put(stream, text)

    def line(self, text: str) -> None:
        """Keep a line that the body wrote for its log."""
        self.log.put("log", text)
        if self.log.echo:
            with unkept():
                print(f"{text}\n", end="")  # noqa: T201 - where prints of bodies are shown, this is too

    def display(self, data: Mapping[str, Any], *, display_id: str | None = None, update: bool = False) -> None:
        """Keep what was displayed, by mime type."""
        mime = {
            kind: base64.b64encode(value).decode() if isinstance(value, bytes) else value
            for kind, value in data.items()
            if kind.startswith(_MIME) and isinstance(value, str | bytes)
        }
        self.log.put("display", mime.get("text/plain", ""), mime, display_id=display_id, update=update)

    def extend(self, items: Iterable[tuple[str, str, dict[str, str] | None]]) -> None:
        """Keep what was put out elsewhere: (stream, text, mime) in order, as a remote body brings them back.

        In the body's context: where prints of bodies are shown, these are shown there.
        """
        for stream, text, mime in items:
            self.log.put(stream, text.removesuffix("\n") if stream == "log" else text, mime)
            if self.log.echo and mime is None:
                with unkept():
                    print(text, end="", file=sys.stdout if stream == "stdout" else sys.stderr)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far the body is, for displays: shown while it runs, not recorded."""
        self.log.report(Progress(done, total, "" if note is None else str(note)[:200]))

    def finish(self) -> None:
        """The attempt has ended: what it put out is recorded before its end is."""
        self.show_begun()
        if self._log is not None:
            self._log.finish()

    def show_begun(self) -> None:
        """Show the lines that it has begun and not ended, as its body would: dots come one by one, and a second is long."""
        if self._held is not None:
            self.body.context.copy().run(self._show, self._held)

    def _show(self, held: Held) -> None:
        OUTPUT.set(None)
        for stream in ("stdout", "stderr"):
            if rest := held.rest(stream):
                with contextlib.suppress(OSError, ValueError):  # as in tap.py
                    print(rest, end="", file=getattr(sys, stream))


class Outputs:
    """The logs of one engine that have something to record, and the clock tick that makes them."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._noted: set[Log] = set()
        self._armed = False

    def note(self, log: Log) -> None:
        """Have a log recorded within the second; from any thread."""
        with self._lock:
            self._noted.add(log)
            armed, self._armed = self._armed, True
        if not armed:
            self._engine.thread.post(self._arm)

    def _arm(self) -> None:
        self._engine.loop.call_later(EVERY, self.flush, context=self._engine.loop.uncounted)

    def flush(self) -> None:
        """Record what waits, and put it into the journal's file."""
        with self._lock:
            noted, self._noted, self._armed = self._noted, set(), False
        for log in noted:
            log.flush()
            log.output.show_begun()
        if noted:
            next(iter(noted)).write()
        for seq in {log.live.created_seq for log in noted}:
            self._engine.feed.publish(seq)

    def close(self) -> None:
        """Record what waits, and see to no more streams."""
        from nbflow.engine.logs import tap

        self.flush()
        tap.release(self._engine)


def log_of(engine: "Engine", created_seq: int, step: Any, pending: Log | None) -> tuple[LogItem, ...]:
    """All that the attempts of a step have put out, oldest first: what is recorded, then what waits to be."""
    return _log_in(engine.store.read_log(created_seq, step.key), step, pending)


def last_log(
    engine: "Engine",
    created_seq: int,
    records_of: Callable[[Iterable[StepKey]], Mapping[StepKey, Any]],
    pending: Mapping[StepKey, Log],
) -> list[tuple[StepKey, LogItem]]:
    """The last that all steps have put out, oldest first."""
    chunks: dict[StepKey, list[LogChunk]] = {key: [] for key in pending}
    for chunk in engine.store.read_log(created_seq, None):
        chunks.setdefault(StepKey(StepType(chunk.type), chunk.step, chunk.count, chunk.key), []).append(chunk)
    found: list[tuple[StepKey, LogItem]] = []
    for key, step in records_of(chunks).items():
        found += [(key, item) for item in _log_in(chunks[key], step, pending.get(key))]
    return sorted(found, key=lambda pair: pair[1].at.timestamp() if pair[1].at else 0.0)


def _log_in(chunks: Iterable[LogChunk], step: Any, pending: Log | None) -> tuple[LogItem, ...]:
    begun = {(attempt.number, attempt.started_at) for attempt in step.attempts}
    part, waiting = pending.waiting() if pending is not None else (0, [])
    chunks = [chunk for chunk in chunks if (chunk.attempt, chunk.started_at) in begun]
    if pending is not None and any(c.attempt == pending.output.attempt and c.part >= part for c in chunks):
        waiting = []  # recorded meanwhile
    chunks.sort(key=lambda chunk: (chunk.attempt, chunk.started_at, chunk.part))
    return joined([item for chunk in chunks for item in unpacked(chunk)] + waiting)
