"""What a panel reads of an instance beside its view: lines of steps, one step, the last logs, what a restart would do."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from nbflow.core import asking
from nbflow.core.history import History, StepRecord
from nbflow.core.log import LogItem
from nbflow.core.maps import item_records
from nbflow.core.model import Kind, StepKey, StepState, StepType
from nbflow.core.plans import RestartPlan, restart_plan, retried_from, retry_plan
from nbflow.engine.control import is_retry, restarted_from
from nbflow.engine.logs.output import last_log
from nbflow.errors import InvalidStatusError
from nbflow.store.outline import ItemRange, Line, Name, Page, Said, Wanted, outline
from nbflow.store.searching import MOST
from nbflow.store.views import StepView

if TYPE_CHECKING:
    from nbflow.engine.instance import WorkflowInstance


def lines(
    inst: "WorkflowInstance",
    place: Callable[[int], tuple[int, int]],
    opened: frozenset[Name] = frozenset(),
    wanted: Wanted | None = None,
    state: StepState | None = None,
    text: str = "",
) -> Page:
    """A page of the steps as people read them: many of one name as a group, items under their map, where it is *opened*.

    Args:
        place: from the number of lines, which to give: start and stop.
        wanted: of all steps only those, ungrouped.
        state: with *wanted*, the items of maps that stand so too.
        text: with *wanted*: the items in whose name it is, of maps that are not themselves called so, and those whose outcome
            says it.
    """
    said = _saying(inst, text, state) if wanted is not None and text else {}
    with inst.folded() as history:
        found = outline(history, inst.engine.clock.now(), opened, wanted, state, text.casefold(), said)
        start, stop = place(len(found))
        page: list[tuple[Line | ItemRange, bool]] = [
            (inst.view_of(history, line) if isinstance(line, StepRecord) else line, inside)
            for line, inside in found.between(start, stop)
        ]
    shown: list[tuple[Line, bool]] = []
    for line, inside in page:
        if isinstance(line, ItemRange) and line.keys is not None:
            named = [StepKey(StepType.MAP, line.name, line.count, key) for key in line.keys[line.start : line.stop]]
            records = records_of(inst, named)
            with inst.folded() as history:
                shown += [(inst.view_of(history, records[key]), inside) for key in named if key in records]
        elif isinstance(line, ItemRange):
            told = None if line.state is None else line.state.value
            _, items = inst.items(line.name, line.start, line.stop, count=line.count, state=told)
            shown += [(item, inside) for item in items]
        else:
            shown.append((line, inside))
    more = any(len(keys) >= MOST for keys in said.values())
    if (live := inst.engine.live.get(inst.created_seq)) is None:
        return Page(len(found), start, shown, more=more)
    return Page(len(found), start, shown, live.unreached, live.leftovers.steps, more)


def _saying(inst: "WorkflowInstance", text: str, state: StepState | None) -> Said:
    """The items of each map whose outcome says *text*, as far as they can stand in *state*."""
    with inst.folded() as history:
        maps = [step.key for step in history.steps.values() if step.items is not None]
    ends = {StepState.FINISHED: Kind.MAP_FINISHED, StepState.FAILED: Kind.MAP_FAILED}
    kinds = (*ends.values(), Kind.MAP_RETRYING) if state is None else (ends.get(state, Kind.MAP_RETRYING),)
    return {key: inst.engine.store.items_saying(inst.created_seq, key.name, key.count, text, kinds) for key in maps}


def step_of(inst: "WorkflowInstance", key: StepKey) -> StepView | None:
    """The step or map item of that key, None where none is recorded."""
    record = records_of(inst, [key]).get(key)
    if record is None:
        return None
    with inst.folded() as history:
        return inst.view_of(history, record)


def why_closed(inst: "WorkflowInstance", wait: StepKey) -> str | None:
    """Why a wait that has not ended takes no answer, None where it takes one."""
    with inst.folded() as history:
        try:
            asking.check_open(history, history.steps[wait])
        except InvalidStatusError as error:
            return str(error)
    return None


def records_of(inst: "WorkflowInstance", keys: Iterable[StepKey]) -> dict[StepKey, StepRecord]:
    """What is known of these steps and map items; those that are not recorded are left out."""
    found: dict[StepKey, StepRecord] = {}
    items: dict[StepKey, list[str]] = {}
    maps: dict[StepKey, StepRecord] = {}
    with inst.folded() as history:
        for key in keys:
            if (step := history.steps.get(key)) is not None:
                found[key] = step
            elif key.key is not None and (whole := history.steps.get(StepKey(key.type, key.name, key.count))) is not None:
                maps[whole.key] = whole
                items.setdefault(whole.key, []).append(key.key)
    for key, wanted in items.items():
        entries = list(inst.engine.store.item_entries(inst.created_seq, key.name, key.count, wanted))
        with inst.folded():
            known = item_records(History(), maps[key], entries) if maps[key].items is not None else {}
        found |= {StepKey(key.type, key.name, key.count, item): record for item, record in known.items()}
    return found


def plan_of(inst: "WorkflowInstance", from_step: StepKey | None) -> RestartPlan:
    """What a restart from there would keep and run again; nothing is done.

    Raises:
        NotFoundError: there is no such step.
        InvalidStatusError: something before it was undone (S48).
    """
    with inst.folded() as history:
        plan = restart_plan(history, from_step)
        if from_step is not None:
            restarted_from(history, from_step, inst.id)
        return plan


def retry_plan_of(inst: "WorkflowInstance", *, items: bool) -> RestartPlan | None:
    """The same of a resume, or with *items* of `retry_failed`; None where that is no retry."""
    with inst.folded() as history:
        again = is_retry(history.head, items=items)
        return retry_plan(history, retried_from(history, items=items)) if again else None


def log_of_all(inst: "WorkflowInstance") -> list[tuple[StepKey, LogItem]]:
    """The last that all steps have put out, oldest first, each with the step's key."""
    live = inst.engine.live.get(inst.created_seq)
    pending = {} if live is None else dict(live.outputs)
    return last_log(inst.engine, inst.created_seq, lambda keys: records_of(inst, keys), pending)
