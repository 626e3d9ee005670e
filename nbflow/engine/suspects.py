"""What was in flight at repeated deaths runs one at a time, each to its end, so that the guilty one is found (S27)."""

from collections.abc import Callable

from nbflow.core.model import StepKey


class Suspects:
    """Those of one activation; used on the workflow loop."""

    def __init__(self) -> None:
        self._waiting: dict[StepKey, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, key: StepKey, begin: Callable[[], None]) -> None:
        """Run it when those before it have ended."""
        self._waiting[key] = begin
        if len(self._waiting) == 1:
            begin()

    def ended(self, key: StepKey) -> None:
        """It has ended or was cancelled: the next may run."""
        if key in self._waiting:
            first = next(iter(self._waiting)) == key
            del self._waiting[key]
            if first and self._waiting:
                next(iter(self._waiting.values()))()
