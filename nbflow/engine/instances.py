"""Several instances, as one list."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nbflow.core.history import Head
from nbflow.core.model import FINISHED, InstanceStatus
from nbflow.engine.instance import WorkflowInstance
from nbflow.engine.waiting import patience

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine


class Instances(list[WorkflowInstance]):
    """Several instances: a list that can be waited for as one."""

    def wait(self, timeout: Any = None, until: str = "settled") -> list[InstanceStatus]:
        """Block until all are settled or finished; *timeout*, a duration, is for all together."""
        return [instance.wait(left(), until) for left in [_countdown(patience(timeout))] for instance in self]

    def outputs(self) -> list[Any]:
        """The output of each, in order."""
        return [instance.output for instance in self]

    def retry_failed(self) -> None:
        """Retry those that errored, and those that are complete with failed items (S61)."""
        for instance in self:
            if instance.view().status in FINISHED:
                instance.retry_failed()


def _countdown(timeout: float | None) -> Any:
    from nbflow.clock import SystemClock

    if timeout is None:
        return lambda: None
    clock = SystemClock()
    end = clock.monotonic() + timeout
    return lambda: max(0.0, end - clock.monotonic())


def handles(engine: "Engine", heads: Iterable[Head]) -> Instances:
    """Handles of these instances, in order."""
    return Instances(WorkflowInstance(engine, head) for head in heads)
