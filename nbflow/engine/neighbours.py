"""Other engines whose instances are shown here. A death writes nothing, so while somebody looks they are looked at (S52)."""

import threading
from collections.abc import Callable, Iterable

from nbflow.core.model import Owner
from nbflow.errors import StoreError
from nbflow.store.base import Store


class Neighbours:
    """The engines that displays of this process are about: each is looked at once by every `look`, none without displays.

    Args:
        tell: called when one of them does not live any more.
    """

    def __init__(self, store: Store, tell: Callable[[], None]) -> None:
        self._store, self._tell = store, tell
        self._shown: dict[object, frozenset[Owner]] = {}
        self._lock = threading.Lock()

    def show(self, who: object, owners: Iterable[Owner]) -> bool:
        """From now on *who* shows what these run, and what no others do; gives whether there are any."""
        wanted = frozenset(owners)
        with self._lock:
            if wanted:
                self._shown[who] = wanted
            else:
                self._shown.pop(who, None)
        return bool(wanted)

    def look(self) -> None:
        """Look whether they live. Who does not is told once; where that cannot be known now it is asked again."""
        with self._lock:
            owners = frozenset[Owner]().union(*self._shown.values())
        if gone := {owner for owner in owners if self._is_gone(owner)}:
            with self._lock:
                self._shown = {who: left for who, seen in self._shown.items() if (left := seen - gone)}
            self._tell()

    def _is_gone(self, owner: Owner) -> bool:
        try:
            return self._store.alive(owner) is not True
        except (StoreError, OSError):
            return False
