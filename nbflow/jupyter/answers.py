"""What a panel answers: questions are read, clicks are done. Each in a lane of its own, so either may take its time."""

from typing import TYPE_CHECKING, Any

from nbflow.core.history import StepRecord
from nbflow.core.model import StepKey, StepState, StepType
from nbflow.core.told import outcome_text
from nbflow.engine import reading
from nbflow.errors import NotFoundError
from nbflow.jupyter import details, snapshot
from nbflow.jupyter.messages import (
    AskError,
    AskEvents,
    AskInstances,
    AskLog,
    AskPlan,
    AskRows,
    AskStep,
    Click,
    Command,
    Control,
    Decide,
    OpenInstance,
    Question,
    Restart,
    Retry,
    Since,
)
from nbflow.store.outline import Wanted
from nbflow.store.views import StepView
from nbflow.store.wording import going_on_text, plan_text

if TYPE_CHECKING:
    from nbflow.engine.instance import WorkflowInstance

INSTANCES = 200
_PLAN = 500  # characters of what a restart would do


def answer(inst: "WorkflowInstance", question: Question, version: int) -> dict[str, Any]:
    """Read what a page asks for.

    Args:
        version: of the instance as the page was last told; rows that are newer will be asked for once more, which does no harm.

    Raises:
        NbflowError: it can't be read.
    """
    match question:
        case AskRows():
            return {"rows": _rows(inst, question, version)}
        case AskStep():
            step = reading.step_of(inst, question.key) or _as_told(inst, question)
            return {"step": None if step is None else details.detail_json(question.index, step) | _asked(inst, step)}
        case AskError():
            return {"failure": details.error_json(inst.view().error)}
        case AskEvents():
            return {"events": _events(inst, question)}
        case AskLog():
            return {"log": _log(inst)}
        case AskInstances():
            heads = inst.engine.store.heads(inst.workflow_name, limit=INSTANCES)
            return {"instances": [details.instance_json(inst, head) for head in heads]}
        case AskPlan():
            return {"plan": _plan(inst, question)}
        case OpenInstance():
            return {"model": _open(inst, question.instance)}


def act(inst: "WorkflowInstance", click: Click) -> str:
    """Do what a click asks for; gives what is to be said of it: who goes on with an instance that nobody runs.

    Raises:
        NbflowError: it could not be done; nothing was.
    """
    _do(inst, click)
    later = going_on_text(inst.view())
    return f"nobody runs it now, {later}" if later else ""


def _do(inst: "WorkflowInstance", click: Click) -> None:
    match click:
        case Decide():
            inst.answer(click.name, click.count, click.payload)
        case Retry():
            inst.retry_now(click.key)
        case Restart(since=Since.STALE):
            inst.restart_stale()
        case Restart():
            inst.restart(click.key)
        case Command(control=Control.PAUSE):
            inst.pause()
        case Command(control=Control.RESUME):
            inst.resume()
        case Command(control=Control.TERMINATE):
            inst.terminate()
        case Command(control=Control.TERMINATE_AND_ROLL_BACK):
            inst.terminate(rollback=True)
        case Command(control=Control.RETRY_NOW):
            inst.retry_now()


def _rows(inst: "WorkflowInstance", ask: AskRows, version: int) -> dict[str, Any]:
    wanted = None if not ask.text and ask.state is None and ask.kind is None else _wanted(ask)
    state, text = (ask.state, ask.text) if ask.kind in (None, StepType.MAP) else (None, "")
    page = reading.lines(inst, lambda _total: (ask.start, ask.stop), ask.open, wanted, state, text)
    items = [snapshot.line_json(page, place, ask.open) for place in range(len(page.lines))]
    more = {"more": True} if page.more else {}
    return {"total": page.total, "start": page.start, "version": version, "items": items, **more}


def _asked(inst: "WorkflowInstance", step: StepView) -> dict[str, Any]:
    """Of a wait that stands: what it asks, or why nobody can answer it."""
    if step.key.type is not StepType.WAIT or step.status is not StepState.WAITING:
        return {}
    if (why := reading.why_closed(inst, step.key)) is not None:
        return {"closed": snapshot.plain(why, 500)}
    return {"wait": snapshot.wait_json(step, details.DETAIL_CHARACTERS)}


def _wanted(ask: AskRows) -> Wanted:
    """Whether the list's filter lets a step through."""
    text = ask.text.casefold()

    def wanted(step: StepRecord) -> bool:
        if ask.state is not None and step.state is not ask.state:
            return False
        if ask.kind is not None and step.key.type is not ask.kind:
            return False
        return (
            not text
            or text in str(step.key).casefold()
            or text in outcome_text(step.error, step.body.get("preview")).casefold()
        )

    return wanted


def _as_told(inst: "WorkflowInstance", ask: AskStep) -> StepView | None:
    """The step whose key a page knows only as it was told: names may hold what JSON can't."""
    told = [ask.key.type.value, ask.key.name, ask.key.count, ask.key.key]
    return next((step for step in inst.steps if snapshot.key_json(step.key) == told), None)


def _events(inst: "WorkflowInstance", ask: AskEvents) -> dict[str, Any]:
    entries = [pair for pair in enumerate(inst.history(), 1) if ask.steps or pair[1].step is None]
    entries.reverse()
    items = [details.entry_json(entry, place) for place, entry in entries[ask.start : ask.stop]]
    return {"total": len(entries), "start": ask.start, "items": items}


def _log(inst: "WorkflowInstance") -> dict[str, Any]:
    found = reading.log_of_all(inst)
    return details.log_json([item for _, item in found], [key for key, _ in found])


def _plan(inst: "WorkflowInstance", ask: AskPlan) -> dict[str, Any]:
    first = first_stale(inst) if ask.since is Since.STALE else ask.key
    plan = reading.plan_of(inst, first)
    since = None if first is None else snapshot.plain(str(first), 120)
    return {"words": snapshot.plain(f"{plan_text(plan)}.", _PLAN), "since": since}


def first_stale(inst: "WorkflowInstance") -> StepKey:
    """The first step whose code has changed.

    Raises:
        NotFoundError: there is none.
    """
    if stale := inst.view().stale_steps:
        return stale[0]
    msg = f"no step of instance {inst.id!r} is stale; restart it from the start or from a step"
    raise NotFoundError(msg)


def _open(inst: "WorkflowInstance", created_seq: int) -> str:
    from nbflow.engine.instance import WorkflowInstance
    from nbflow.jupyter.panel import panel_for

    head = inst.engine.store.head(created_seq)
    if head is None or head.workflow != inst.workflow_name:
        msg = f"workflow {inst.workflow_name!r} has no such instance any more"
        raise NotFoundError(msg)
    return str(panel_for(WorkflowInstance(inst.engine, head)).model_id)
