"""A thread that does one thing after another: what may block, and must not block the workflow loop."""

import queue
import threading
from collections.abc import Callable


class Desk:
    """A daemon thread, there from the first thing to do."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._acts: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, act: Callable[[], None]) -> None:
        """Have *act* done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
            self._thread.start()
        self._acts.put(act)

    def close(self) -> None:
        """Do what was put so far, then end."""
        self._acts.put(None)

    def _main(self) -> None:
        while (act := self._acts.get()) is not None:
            act()
