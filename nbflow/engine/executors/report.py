"""What a body over there prints, logs and says of its progress: caught per body, sent while it runs where there is a wire.

Bodies of one worker may run in several threads, so what is caught belongs to the body of the context, not to the process.
"""

import contextvars
import logging
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nbflow import ids
from nbflow.clock import SystemClock

Item = tuple[str, Any]
"""("stdout" | "stderr" | "log" | "warning", text) or ("progress", (done, total, note))."""

Send = Callable[[dict[str, Any]], None]

EVERY = 0.1  # seconds between two sendings of one body
LIMIT = 1 << 20  # characters kept of one body's output
ANSWER = 5.0  # seconds for an answer of the scheduler
CHUNK = 64_000  # characters in one message

_REPORT: contextvars.ContextVar["Report | None"] = contextvars.ContextVar("nbflow_report", default=None)
_monotonic = SystemClock().monotonic


class Report:
    """Of one execution of one attempt.

    Attributes:
        run: names this execution: a cluster may run an attempt again behind our back.
    """

    def __init__(self, key: str, send: Send | None) -> None:
        self.key, self.run = key, ids.new_uid()
        self._send = send
        self._items: list[Item] = []
        self._bars: dict[int, str] = {}
        self._size = 0
        self._dropped = 0
        self._lock = threading.Lock()
        self._began = _monotonic()
        self._announced = False

    def write(self, stream: str, text: str) -> None:
        """Take text; what is printed in small pieces becomes one item."""
        with self._lock:
            room = LIMIT - self._size
            if len(text) > room:
                self._dropped += len(text) - max(room, 0)
                text = text[: max(room, 0)]
            if not text:
                return
            self._size += len(text)
            if self._items and self._items[-1][0] == stream and len(self._items[-1][1]) < CHUNK:
                self._items[-1] = (stream, self._items[-1][1] + text)
            else:
                self._items.append((stream, text))

    def progress(self, done: float, total: float | None, note: str | None) -> None:
        """Take what `ctx.progress` says; only the latest counts."""
        with self._lock:
            self._items = [item for item in self._items if item[0] != "progress"]
            self._items.append(("progress", (float(done), None if total is None else float(total), note and str(note))))

    def bar(self, bar: int, text: str) -> None:
        """Take the present state of a tqdm bar; only its last one is kept."""
        with self._lock:
            self._bars[bar] = text

    def rest(self) -> list[Item]:
        """What is not sent yet, and what was too much."""
        with self._lock:
            items, self._items = self._items, []
            items += [("stderr", f"{text}\n") for text in self._bars.values()]
            if self._dropped:
                items.append(("stderr", f"\n[{self._dropped:,} more characters were not kept]\n"))
            return items

    def send(self) -> None:
        """Send what there is; the first time, that the body has begun."""
        if self._send is None:
            return
        with self._lock:
            items, self._items = self._items, []
        if self._announced and not items:
            return
        message = {"key": self.key, "run": self.run, "ago": _monotonic() - self._began, "items": [list(item) for item in items]}
        try:
            self._send(message)
            self._announced = True
        except Exception:  # noqa: BLE001 - a wire that is gone: the reply brings it, or nobody listens any more
            with self._lock:
                self._items = items + self._items


def sender(wire: tuple[str, str] | None, send: Send | None) -> Send | None:
    """How messages leave this worker, None where they cannot."""
    if send is not None or wire is None:
        return send
    kind, address = wire
    if kind != "dask":
        return None
    from distributed import get_worker

    try:
        worker = get_worker()
    except ValueError:  # evaluated by something that is no worker
        return None
    return lambda message: worker.log_event(address, message)


def began_before(key: str, wire: tuple[str, str] | None) -> tuple[str, int] | None:
    """The worker on which this attempt has begun before, and its number of threads; None the first time.

    A Dask cluster runs what it loses up to three times more, unseen: but whether another attempt begins is the engine's to
    say. Its scheduler keeps this for as long as it knows the attempt, and tells the engine that the body begins.
    """
    if wire is None or wire[0] != "dask":
        return None
    from distributed import get_worker
    from distributed.utils import sync

    topic = wire[1]

    async def ask(worker: Any) -> tuple[str, int] | None:
        known = await worker.scheduler.get_metadata(keys=[key], default=None)
        if known is None:
            begun = {"key": key, "run": "", "ago": 0.0, "items": []}  # said now: a body that holds the GIL cannot later
            await worker.scheduler.set_metadata(keys=[key], value=(worker.address, worker.state.nthreads))
            await worker.scheduler.log_event(topic=topic, msg=begun)
        return known and tuple(known)

    try:
        worker = get_worker()
        found: tuple[str, int] | None = sync(worker.loop, ask, worker, callback_timeout=ANSWER)
    except Exception:  # noqa: BLE001 - evaluated by something that is no worker, or a scheduler that does not answer
        return None
    return found


class Courier:
    """Sends for all bodies of this process, every 0.1 s while there are any: a body that ends sooner costs nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[Report] = set()
        self._any = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, report: Report) -> None:
        """Send for this one from now on."""
        with self._lock:
            self._open.add(report)
            if self._thread is None or not self._thread.is_alive():  # it is not there in a fork
                self._thread = threading.Thread(target=self._main, name="nbflow-courier", daemon=True)
                self._thread.start()
            if not self._any.is_set():
                self._any.set()

    def remove(self, report: Report) -> None:
        """Send for it no more."""
        with self._lock:
            self._open.discard(report)

    def _main(self) -> None:
        never = threading.Event()
        while self._any.wait():
            never.wait(EVERY)
            with self._lock:
                reports = list(self._open)
                if not reports:
                    self._any.clear()
            for report in reports:
                report.send()


class _Tap:
    """A stream that gives what a body writes to the body's report, and everything else to the stream it stands for."""

    def __init__(self, inner: Any, name: str) -> None:
        self._inner, self._name = inner, name

    def write(self, text: str) -> int:
        report = _REPORT.get()
        if report is None:
            return int(self._inner.write(text) or 0)
        report.write(self._name, text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _LogTap(logging.Handler):
    """Gives log records of bodies to their reports."""

    def emit(self, record: logging.LogRecord) -> None:
        report = _REPORT.get()
        if report is not None:
            report.write("log", f"{self.format(record)}\n")
        elif logging.lastResort is not None and logging.getLogger().handlers == [self]:
            logging.lastResort.handle(record)  # as if we were not there


_courier = Courier()
_log_tap = _LogTap()
_log_tap.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))


@contextmanager
def capturing(report: Report, sent_from: tuple[str, int]) -> Iterator[None]:
    """Give what is written in this context to *report*; in the sender's own process nothing is caught."""
    token = _REPORT.set(report)
    if report._send is not None:  # noqa: SLF001 - without a wire nothing is sent before the reply
        _courier.add(report)
    if sent_from != this_process():
        _tap()
    try:
        yield
    finally:
        _courier.remove(report)
        _REPORT.reset(token)


def this_process() -> tuple[str, int]:
    """Host and number of this process."""
    return platform.node(), os.getpid()


def _tap() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is not _Tap:
            setattr(sys, name, _Tap(stream, name))
    root = logging.getLogger()
    if _log_tap not in root.handlers:
        root.addHandler(_log_tap)


def wire_bars() -> None:
    """Make tqdm's bars the progress of the body that draws them, once tqdm is loaded."""
    bar: Any = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    if bar is None or hasattr(bar.display, "nbflow"):
        return
    original = bar.display

    def display(self: Any, msg: str | None = None, pos: int | None = None) -> Any:
        report = _REPORT.get()
        if report is None:
            return original(self, msg, pos)
        report.bar(id(self), str(self) if msg is None else msg)
        if not (abs(self.pos) if pos is None else pos):  # of nested bars the outermost
            report.progress(self.n, self.total, (self.desc or "").removesuffix(": ") or None)
        return True

    display.nbflow = True  # type: ignore[attr-defined]
    bar.display = display
