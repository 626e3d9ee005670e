"""The hash of a step's arguments by their content (S57)."""

from typing import Any

from nbflow.core.parts import digest
from nbflow.values.fingerprint import fingerprint

_KEPT = 64
_SIZED = (list, dict, tuple, set, frozenset, str, bytes)
_LIGHT = 100  # members


class Contents:
    """Hashes of the arguments of one activation; what many steps are given is encoded once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int, str]] = {}

    def of(self, values: tuple[Any, ...]) -> str:
        """16 hex digits for these values; of those that have no stored form, or a large one, nothing counts."""
        return digest(*map(self._of, values))

    def _of(self, value: Any) -> str:
        size = len(value) if type(value) in _SIZED else 0
        if size < _LIGHT:
            return fingerprint(value)
        known = self._known.get(id(value))
        if known is not None and known[0] is value and known[1] == size:
            return known[2]
        if len(self._known) >= _KEPT:
            self._known.clear()
        found = fingerprint(value)
        self._known[id(value)] = value, size, found
        return found
