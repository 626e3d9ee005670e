"""What a fork of this process means for the stores that are open in it (S54)."""

import threading
import weakref
from typing import Protocol

from nbflow.system import at_fork

_PATIENCE = 1.0  # seconds that a fork waits for the file to be left: DuckDB would keep it attached in the child


class Forkable(Protocol):
    """An open store: `attaching` is held while it has its file attached."""

    @property
    def attaching(self) -> threading.Lock:
        """Held while the file is attached."""
        ...

    def leave_to_parent(self) -> None:
        """In the child: hold no lock, be unusable."""
        ...


living: weakref.WeakSet[Forkable] = weakref.WeakSet()
_held_up: list[threading.Lock] = []


def _before() -> None:
    locks = [store.attaching for store in list(living)]
    _held_up.extend(lock for lock in locks if lock.acquire(timeout=_PATIENCE))


def _after() -> None:
    while _held_up:
        _held_up.pop().release()


def _in_child() -> None:
    _after()
    for store in list(living):
        store.leave_to_parent()
    living.clear()


at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
