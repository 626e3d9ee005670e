"""What a cell with `--each` waits for and gives: many instances as one."""

from typing import TYPE_CHECKING, Any

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


class LeaveOut:
    """Keep a cell from showing as its value what it has displayed already; `_` and `Out` have it all the same."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._shown: list[object] = []  # held, so that no other value gets the identity by which they are known

    def once(self, value: object) -> None:
        """Show nothing of this very object where it is the value of the running cell."""
        self._shown.append(value)
        self._printers[id(value)] = _nothing

    def no_more(self) -> None:
        """The cell has ended: from now on it is shown as it is."""
        for value in self._shown:
            self._printers.pop(id(value), None)
        self._shown.clear()

    @property
    def _printers(self) -> dict[int, Any]:
        found: dict[int, Any] = self._shell.display_formatter.ipython_display_formatter.singleton_printers
        return found


def _nothing(_value: object) -> None:
    """Show nothing."""
