"""Notice what no entry tells: user code that holds the workflow loop, named (S55), and the end of engines shown here (S52)."""

import logging
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType

from nbflow.core.model import Owner
from nbflow.engine.loop import LoopThread
from nbflow.engine.neighbours import Neighbours
from nbflow.values import failures

log = logging.getLogger("nbflow")

LIMIT = 1.0  # seconds
_OURS = str(Path(__file__).parent.parent)
_IMPORT = "<frozen importlib"


class LoopWatch:
    """A thread that asks the loop for a sign of life, from the first activation or display to the engine's end.

    Beside that it looks each second at other engines, as long as something that they run is shown here.

    Attributes:
        held: what holds the loop now and what to do, None while it answers; *tell* is called when it changes.
    """

    def __init__(self, thread: LoopThread, tell: Callable[[], None], neighbours: Neighbours) -> None:
        self.held: str | None = None
        self._tell, self._neighbours = tell, neighbours
        self._loop_thread = thread
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._watching = False

    def begin(self) -> None:
        """Watch from now on."""
        with self._lock:
            if not self._watching and not self._ended.is_set():
                self._watching = True
                threading.Thread(target=self._main, name="nbflow-watch", daemon=True).start()

    def show(self, who: object, owners: Iterable[Owner]) -> None:
        """From now on *who* shows what these engines run, and is told through *tell* of `Neighbours` when one has died."""
        if self._neighbours.show(who, owners):
            self.begin()

    def end(self) -> None:
        """Watch no more."""
        self._ended.set()

    def _main(self) -> None:
        while not self._ended.wait(LIMIT):
            self._neighbours.look()
            answered = threading.Event()
            self._loop_thread.post(answered.set)
            if answered.wait(LIMIT) or self._ended.is_set():
                continue
            self.held = where = self._innermost()
            log.warning("the workflow loop has been held for over a second by %s", where)
            self._tell()
            self._loop_thread.loop.before_rest()  # the loop's syncs are done elsewhere while it cannot do them
            while not answered.wait(LIMIT) and not self._ended.is_set():
                self.held = self._innermost()
                self._neighbours.look()
            self.held = None
            self._tell()

    def _innermost(self) -> str:
        """The innermost frame of user code on the loop's thread, and what to do about it."""
        frame: FrameType | None = sys._current_frames().get(self._loop_thread.ident)  # noqa: SLF001 - the way to see it
        innermost, importer = frame, None
        while frame is not None and _is_library(frame):
            if frame.f_code.co_filename.startswith(_IMPORT):
                importer = frame.f_back
            frame = frame.f_back
        if importer is not None and importer.f_code.co_filename.startswith(_OURS):
            return f"no code of the notebook ({importer.f_code.co_qualname} imports a library for the first time)"
        if frame is None:
            at = "" if innermost is None else f" ({innermost.f_code.co_qualname})"
            return f"no code of the notebook{at}: the disk, the machine or a library is slow"
        place = f"{failures.name_file(frame.f_code.co_filename)}, line {frame.f_lineno}"
        return f"{frame.f_code.co_qualname} ({place}); make it a plain def"


def _is_library(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return (
        file.startswith((_OURS, "<frozen")) or "site-packages" in file or f"{sys.prefix}/lib" in file or "/lib/python" in file
    )
