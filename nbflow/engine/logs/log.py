"""The log of one attempt on its way: pieces that wait to be recorded, bars that are drawn over, what may still be kept."""

import threading
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from nbflow.clock import SystemClock
from nbflow.core.log import TEXTS, LogChunk, LogItem, Progress, cut_to, overstruck, packed, settled, size_of
from nbflow.errors import StoreError

if TYPE_CHECKING:
    from nbflow.engine.logs.output import Output

LIMIT = 1_000_000  # bytes that are kept of a step's output
PIECE = 64 * 1024  # as much waits in memory
EVERY = 1.0  # seconds it waits there at most
REPORTS = 0.1  # seconds between two reports of progress

_REDACTED = "[REDACTED]"
_monotonic = SystemClock().monotonic

_echoes: Callable[[], bool] | None = None


def set_echo(policy: Callable[[], bool] | None) -> None:
    """Say whether output of bodies is shown where it always was, too; None: it is."""
    global _echoes
    _echoes = policy


class _Part:
    """An item that is being written."""

    __slots__ = ("at", "display_id", "mime", "stream", "texts")

    def __init__(self, stream: str, at: datetime, mime: dict[str, str] | None = None, display_id: str | None = None) -> None:
        self.stream, self.at, self.mime, self.display_id = stream, at, mime, display_id
        self.texts: list[str] = []

    def overwrite(self, text: str) -> None:
        """Take text with carriage returns: a bar drawn a thousand times stays one line."""
        tail: list[str] = [text]
        while self.texts and "\n" not in self.texts[-1]:
            tail.append(self.texts.pop())
        if self.texts:
            head, _, rest = self.texts.pop().rpartition("\n")
            self.texts.append(head + "\n")
            tail.append(rest)
        whole, newline, line = "".join(reversed(tail)).replace("\r\n", "\n").rpartition("\n")
        if newline:
            self.texts.append(settled(whole) + "\n")
        drawn, back, last = line.rpartition("\r")
        self.texts.append(f"{overstruck(drawn)}\r{last}" if back else line)

    @property
    def text(self) -> str:
        """What has been written so far."""
        return "".join(self.texts)


class Budget:
    """What may still be kept of one step, over all its attempts.

    Attributes:
        left: bytes.
        cut: bytes that were not kept.
        told: how many of those a note in the log tells of.
    """

    __slots__ = ("cut", "left", "told")

    def __init__(self) -> None:
        self.left, self.cut, self.told = LIMIT, 0, 0


class Log:
    """The log of one attempt: what of it waits to be recorded, and what may still be kept.

    Attributes:
        echo: whether it is shown where it always was, too.
        progress: how far the body said it is.
        gone: the store takes nothing more.
    """

    def __init__(self, output: "Output") -> None:
        body = output.body
        self.engine, self.live, self.key, self.output = body.engine, body.live, body.call.key, output
        self.progress: Progress | None = None
        self.withheld = body.sensitive
        self.echo = not self.withheld and (_echoes is None or _echoes())
        self.gone = False
        if output.budget is None:
            output.budget = Budget()
        self.budget = output.budget
        self._lock = threading.RLock()  # a finaliser may print while its own thread is in here
        self._pending: list[_Part] = []
        self._size = 0
        self._due = _monotonic() + EVERY
        self._part = 0
        self._bars: dict[int, str] = {}
        self._reported = 0.0
        self._finished = False
        self.live.outputs[self.key] = self

    # -- what comes in ------------------------------------------------------------------------------------------------

    def put(
        self,
        stream: str,
        text: str,
        mime: dict[str, str] | None = None,
        *,
        display_id: str | None = None,
        update: bool = False,
    ) -> None:
        """Keep some text, or a display."""
        with self._lock:
            budget = self.budget
            if self.withheld:
                stream, text, mime = "note", _REDACTED, None
                if budget.left < LIMIT:
                    return
                budget.left -= 1
            if budget.left <= 0:
                budget.cut += size_of(text) + _size_of_mime(mime)
                return
            if len(text) > budget.left:
                kept = cut_to(text, budget.left)
                budget.cut += size_of(text) - size_of(kept)
                text = kept
            self._place(stream, text, mime, display_id, update=update)
            self._size += len(text) + _size_of_mime(mime)
            full = self._size >= PIECE or _monotonic() >= self._due
        if full and self.flush():
            self.write()

    def _place(self, stream: str, text: str, mime: dict[str, str] | None, display_id: str | None, *, update: bool) -> None:
        """Put it behind what waits, or where what it goes on with or replaces waits."""
        if not self._pending:
            self.engine.outputs.note(self)
        part: _Part | None = None
        if update and display_id is not None:
            part = next((waiting for waiting in self._pending if waiting.display_id == display_id), None)
            if part is not None:
                part.mime, part.texts = mime, []
        elif stream in TEXTS and self._pending and self._pending[-1].stream == stream:
            part = self._pending[-1]
        if part is None:
            part = _Part(stream, self.engine.clock.now(), mime, display_id)
            self._pending.append(part)
        if "\r" in text and stream in TEXTS:
            part.overwrite(text)
        else:
            part.texts.append(text)

    def clear(self) -> None:
        """Forget what waits: the body cleared its output."""
        with self._lock:
            self._pending, self._size = [], 0

    def bar(self, bar: int, text: str) -> None:
        """Note how a bar looks now; only its last state is kept."""
        with self._lock:
            self._bars[bar] = text

    def end_bar(self, bar: int) -> None:
        """Keep the last state of a bar, where it left one."""
        with self._lock:
            text = self._bars.pop(bar, "")
        if text.strip():
            self.put("stderr", f"\r{text}\n")

    def report(self, progress: Progress) -> None:
        """Show how far the body is, at most ten times a second."""
        self.progress = None if self._finished else progress
        now = _monotonic()
        if now - self._reported >= REPORTS:
            self._reported = now
            self.engine.feed.publish(self.live.created_seq)
        else:
            self.engine.outputs.note(self)  # the last report of a burst is shown too

    # -- what goes out ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The attempt has ended: record all that waits; what comes later, from a thread left behind, is kept too."""
        for bar in tuple(self._bars):
            self.end_bar(bar)
        self._finished, self.progress = True, None
        self.flush(last=True)
        if self.live.outputs.get(self.key) is self:
            del self.live.outputs[self.key]

    def flush(self, *, last: bool = False) -> bool:
        """Hand what waits to the journal; gives whether there was anything. A line still being drawn over waits on."""
        with self._lock:
            self._due = _monotonic() + EVERY
            parts, self._pending = self._pending, []
            last = last or self._finished
            if parts and not last and (held := _still_drawn(parts[-1])) is not None:
                self._pending.append(held)
            self._size = sum(map(len, self._pending[0].texts)) if self._pending else 0
            items = [item for part in parts if (item := self._kept(part)) is not None]
            if last and self.budget.cut > self.budget.told:
                more, self.budget.told = self.budget.cut - self.budget.told, self.budget.cut
                items.append(self._item("note", f"cut: {more:,} more bytes were printed", None, self.engine.clock.now()))
            if not items:
                return False
            self._record(items)
        return True

    def write(self) -> None:
        """Put what was handed over into the journal's file: the death of the process cannot lose it then."""
        try:
            self.engine.store.write()
        except StoreError:
            self.gone = True

    def waiting(self) -> tuple[int, list[LogItem]]:
        """The number of the chunk that comes next, and what will be in it as things stand."""
        with self._lock:
            bars = [self._item("stderr", text + "\n", None, None) for text in self._bars.values() if text.strip()]
            return self._part, [self._item(part.stream, part.text, part.mime, part.at) for part in self._pending] + bars

    def _item(self, stream: str, text: str, mime: dict[str, str] | None, at: datetime | None) -> LogItem:
        return LogItem(self.output.attempt, stream, text, mime or None, at)

    def _kept(self, part: _Part) -> LogItem | None:
        """A part as an item, as much of it as may be kept."""
        budget = self.budget
        text, mime = settled(part.text), part.mime
        if not text and not mime:
            return None
        if budget.left <= 0:
            budget.cut += size_of(text) + _size_of_mime(mime)
            return None
        kept = cut_to(text, budget.left)
        budget.cut += size_of(text) - size_of(kept)
        budget.left -= size_of(kept)
        if mime:
            fits: dict[str, str] = {}
            for kind, value in mime.items():
                size = 0 if kind == "text/plain" else size_of(value)
                if size <= budget.left:
                    fits[kind] = kept if kind == "text/plain" else value
                    budget.left -= size
                else:
                    budget.cut += size
                    kept += f" [{kind} of {size:,} bytes left out]"
            mime = fits
        return self._item(part.stream, kept, mime, part.at)

    def _record(self, items: list[LogItem]) -> None:
        key, output = self.key, self.output
        started_at = datetime.fromisoformat(output.started_at)
        seq = self.live.created_seq
        text = packed(items)
        chunk = LogChunk(seq, key.type.value, key.name, key.count, output.attempt, started_at, self._part, text, key.key)
        self._part += 1
        try:
            self.engine.store.append_log(chunk)
        except StoreError:
            self.gone = True  # a closed engine, or a forked child's copy of one


def _size_of_mime(mime: dict[str, str] | None) -> int:
    return sum(map(len, mime.values())) if mime else 0


def _still_drawn(part: _Part) -> _Part | None:
    """What a later carriage return may still draw over, taken out of its part."""
    if part.stream not in TEXTS:
        return None
    text = part.text
    head, newline, line = text.rpartition("\n")
    if "\r" not in line:
        return None
    part.texts = [head + newline]
    held = _Part(part.stream, part.at)
    held.texts = [line]
    return held
