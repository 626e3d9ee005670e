"""What the result of a walk over code relies on, and whether that still is what it was."""

from typing import Any

from nbflow.engine.code.objects import MISSING, followed, members
from nbflow.engine.code.reach import Reach


class Relied:
    """The names that a walk went through and the containers that it looked into, kept alive with what their ids stand for."""

    __slots__ = ("alive", "bindings", "kinds", "snapshots")

    def __init__(self, reach: Reach, alive: list[object]) -> None:
        self.bindings, self.kinds, self.snapshots = reach.bindings, reach.kinds, reach.snapshots
        self.alive = alive + reach.alive

    def holds(self) -> bool:
        """Whether every name still means what it meant."""
        for namespace, name, value in self.bindings:
            if namespace.get(name, MISSING) is not value:
                return False
        for namespace, name, kind in self.kinds:
            if type(namespace.get(name)) is not kind:
                return False
        for container, held, code in self.snapshots:
            now = members(container)
            if not _same(held, now):  # a list that bodies append to holds more data each time, which changes nothing
                if not _same(code, followed(now)):
                    return False
                held[:] = now
        return True


def _same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other))
