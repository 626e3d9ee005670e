"""What a panel reads of an instance beside its view: lines of steps, one step, the last logs, what a restart would do."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from nbflow.core.history import StepRecord
from nbflow.core.log import LogItem
from nbflow.core.model import StepKey
from nbflow.core.plans import RestartPlan, restart_plan
from nbflow.engine.output import last_log
from nbflow.store.outline import GroupView, Name, Page, Wanted, outline
from nbflow.store.views import StepView

if TYPE_CHECKING:
    from nbflow.engine.instance import WorkflowInstance


def lines(
    inst: "WorkflowInstance",
    place: Callable[[int], tuple[int, int]],
    opened: frozenset[Name] = frozenset(),
    wanted: Wanted | None = None,
) -> Page:
    """A page of the steps as people read them: many of one name as a group, unless it is *opened*.

    Args:
        place: from the number of lines, which to give: start and stop.
        wanted: of all steps only those, ungrouped.
    """
    with inst.folded() as history:
        found = outline(history, inst.engine.clock.now(), opened, wanted)
        start, stop = place(len(found))
        page = [
            (one if isinstance(one, GroupView) else inst.view_of(history, one), inside) for one, inside in found[start:stop]
        ]
        return Page(len(found), start, page)


def step_of(inst: "WorkflowInstance", key: StepKey) -> StepView | None:
    """The step of that key, None where none is recorded."""
    with inst.folded() as history:
        step = history.steps.get(key)
        return None if step is None else inst.view_of(history, step)


def plan_of(inst: "WorkflowInstance", from_step: StepKey | None) -> RestartPlan:
    """What a restart from there would keep and run again; nothing is done."""
    with inst.folded() as history:
        return restart_plan(history, from_step)


def log_of_all(inst: "WorkflowInstance") -> list[tuple[StepKey, LogItem]]:
    """The last that all steps have put out, oldest first, each with the step's key."""
    live = inst.engine.live.get(inst.created_seq)

    def record_of(key: StepKey) -> StepRecord | None:
        with inst.folded() as history:
            return history.steps.get(key)

    return last_log(inst.engine, inst.created_seq, record_of, {} if live is None else dict(live.outputs))
