"""What takes time is done here, off the thread that the kernel delivers messages on."""

import threading
from collections import deque
from collections.abc import Callable

BACKLOG = 100


class Lane:
    """Runs what it is given, in order, in a daemon thread that lives while there is something to run."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = False

    def put(self, task: Callable[[], None]) -> bool:
        """Take *task*; False where too many wait already."""
        with self._lock:
            if len(self._waiting) >= BACKLOG:
                return False
            self._waiting.append(task)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return True

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
                task = self._waiting.popleft()
            try:
                task()
            except Exception:  # noqa: BLE001 - tasks answer their own errors; the next one must run
                pass
