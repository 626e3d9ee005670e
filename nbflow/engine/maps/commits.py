"""Make the ends of a map's items durable, many at once: a sync takes as long as several items."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from nbflow.errors import StoreError

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine

GAP = 0.002  # seconds from one sync to the next: the first end of many is durable at once, those behind it together


class Commits:
    """The ends of one map's items that are recorded and not durable yet; on the loop.

    Args:
        engine: whose store it is.
        durable: told how many ends are durable now.
    """

    def __init__(self, engine: "Engine", durable: Callable[[int], None]) -> None:
        self._engine, self._durable = engine, durable
        self._ends = self._asked = 0

    def __len__(self) -> int:
        return self._ends + self._asked

    def add(self) -> None:
        """One more is recorded."""
        self._ends += 1
        if not self._asked and self._ends == 1:  # else it goes with those before it
            self._ask()

    def _ask(self) -> None:
        self._asked, ends, self._ends = self._ends, self._ends, 0
        try:
            self._engine.store.when_durable(partial(self._are_durable, ends))
        except StoreError as error:
            if not self._engine.closing:  # closing makes all durable by itself
                self._engine.broke(error)

    def _are_durable(self, ends: int) -> None:
        self._asked = 0
        if self._ends:
            loop = self._engine.loop
            loop.call_later(GAP, self._ask, context=loop.uncounted)
        self._durable(ends)
