"""Folds of instances that are only looked at: the last few are kept, and brought up to date by what is new."""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator

from nbflow.core.history import History
from nbflow.store.base import Store

KEPT = 16


class Folds:
    """Read histories of one store; safe from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._kept: OrderedDict[int, tuple[History, int]] = OrderedDict()

    @contextlib.contextmanager
    def of(self, created_seq: int) -> Iterator[History]:
        """The fold of everything recorded of that instance; nobody changes it inside the `with`."""
        known, last = self._kept.get(created_seq, (None, 0))
        entries = self._store.read(created_seq, last)  # may wait for the file: not under the lock
        with self._lock:
            history, seen = self._kept.pop(created_seq, (known or History(), last))
            for entry in entries:
                if entry.seq > seen:
                    history.apply(entry)
                    seen = entry.seq
            self._kept[created_seq] = (history, seen)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            yield history

    def forget(self, created_seq: int) -> None:
        """That instance is deleted, or is ours now."""
        with self._lock:
            self._kept.pop(created_seq, None)
