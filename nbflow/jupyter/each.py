"""What a cell with `--each` shows and waits for: many instances as one table."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbflow.engine.instance import WorkflowInstance
    from nbflow.engine.instances import Instances


class Group:
    """Many instances, waited for as one.

    Attributes:
        id: what messages call them.
    """

    def __init__(self, prefix: str, instances: "Instances") -> None:
        self.id = f"{prefix}-…"
        self._open: list[WorkflowInstance] = list(instances)

    def is_finished(self) -> bool:
        """Whether all are complete, errored or terminated."""
        while self._open and self._open[-1].is_finished():
            self._open.pop()
        if not self._open:
            return True
        self._open = [one for one in self._open if not one.is_finished()]
        return not self._open

    def is_settled(self) -> bool:
        """Whether none goes on by itself."""
        return all(one.is_settled() for one in self._open)
