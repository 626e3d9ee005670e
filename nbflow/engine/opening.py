"""Which instance a cell is about, and what happens to it: the table of API.md §3, and what registering resumes (S51)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nbflow.core import names
from nbflow.core.history import Head, History, StepRecord
from nbflow.core.model import FINISHED, Kind, Status, StepState
from nbflow.core.plans import retried_from, retry_plan
from nbflow.engine import deaths
from nbflow.engine.calls import noted
from nbflow.engine.code import changes
from nbflow.engine.creating import make
from nbflow.engine.current import DEFAULT_STORE, in_notebook
from nbflow.engine.instance import WorkflowInstance
from nbflow.engine.live import LiveInstance
from nbflow.engine.recovery import recover
from nbflow.engine.registry import Workflow
from nbflow.errors import UsageError
from nbflow.store.wording import stale_text
from nbflow.values import codec

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine

REPLAY = 1.0  # seconds that a cell waits for a replay before it says what is stale
What = Literal["created", "attached", "resumed", "adopted", "elsewhere", "retried", "finished"]


@dataclass
class Opened:
    """What a cell got.

    Attributes:
        instance: the instance it is about.
        what: what happened to it.
        line: the same, in the one line that the cell says.
    """

    instance: WorkflowInstance
    what: What
    line: str
    _live: LiveInstance | None = None
    _started: bool = field(default=False, repr=False)

    def told(self) -> str:
        """The line, with what is stale: known only when `run` has asked for the recorded steps again."""
        engine, instance = self.instance.engine, self.instance
        live = engine.live.get(instance.created_seq)
        if live is not None and self.what not in ("created", "finished"):
            live.codes.after_replay(REPLAY)
        stale = stale_text(instance.view())
        return f"{self.line} · {stale}" if stale else self.line

    def look_for_stale(self) -> None:
        """Find out which steps of a finished one are stale."""
        workflow = self.instance.engine.registry.find(self.instance.workflow_name)
        if workflow is not None:
            changes.find_stale_by_name(self.instance.engine, self.instance, workflow)

    def start(self) -> None:
        """Let it run now, in the caller's context; whatever was to be recorded is durable already."""
        start_all([self])

    def begin(self) -> bool:
        """Let it run, the first time; gives whether this was that."""
        begins, self._started = not self._started, True
        if begins and self._live is not None:
            self.instance.engine.start(self._live)
        return begins


def start_all(opened: Sequence[Opened]) -> None:
    """Let these of one workflow run, and what else is its to be taken up (S51)."""
    new = [one for one in opened if one.begin()]
    if new:
        engine = new[0].instance.engine
        workflow = engine.registry.find(new[0].instance.workflow_name)
        if workflow is not None:
            recover(engine, workflow)


def open_instance(engine: "Engine", workflow: Workflow, instance_id: str | None, params: Any, *, again: bool) -> Opened:
    """Take the instance named by *instance_id*, or the newest with the same params of this notebook, or make one.

    Nothing of it runs before `Opened.start`.

    Raises:
        UsageError: a bad id, or an instance of that id has other params; nothing was done.
    """
    engine.check_open()
    wanted = stored(engine, {} if params is None else params)
    if instance_id is not None:
        instance_id = names.id_of(workflow.name, instance_id)
        head = next(iter(engine.store.find(instance_id, workflow.name)), None)
    else:
        head = _newest(engine, workflow, wanted)
    opened = open_found(engine, workflow, instance_id, params, wanted, head, again=again)
    if opened.what == "finished":
        opened.look_for_stale()
    return opened


def open_found(
    engine: "Engine", workflow: Workflow, instance_id: str | None, params: Any, wanted: bytes, head: Head | None, *, again: bool
) -> Opened:
    """The same, where what is recorded of it is known: *head*, or None where there is none; *wanted* is params as stored."""
    if head is not None and not _same_params(engine, head, params, wanted):
        raise UsageError(_differs(engine, head, params))
    if head is not None and _went_on(workflow, head):
        # It was unfinished when the cell was run: that it has ended since is what this cell has done, so nothing runs twice.
        advice = "Run the cell once more to go on" if head.status is Status.ERRORED else "Run again: --again"
        line = f"went on with the changed code: {head.status}. {advice}"
        return Opened(WorkflowInstance(engine, head), "finished", line)
    if head is not None and head.status in FINISHED and again:
        return _anew(engine, workflow, instance_id, params, wanted)
    if head is not None and head.status in FINISHED and head.status is not Status.ERRORED:
        if instance_id is None and head.code_hash != workflow.code_hash:
            opened = _create(engine, workflow, None, params)
            if opened.what == "created":
                opened.line += f": the code has changed since {head.instance_id} was {head.status}"
            return opened
        since = head.ended_at.isoformat(sep=" ", timespec="seconds") if head.ended_at else ""
        line = f"Nothing ran: {head.status} since {since}. Run again: --again"
        return Opened(WorkflowInstance(engine, head), "finished", line)
    if head is None:
        return _create(engine, workflow, instance_id, params)
    return _go_on(engine, workflow, head)


def _went_on(workflow: Workflow, head: Head) -> bool:
    """Whether it has ended since its cell was run now: registering the changed class let it go on (S58)."""
    changed, ended = workflow.changed_at, head.ended_at
    if changed is None or ended is None or head.status not in FINISHED or ended < changed:
        return False
    return (head.code_hash, head.reach) == (workflow.code_hash, workflow.reach)


def _same_params(engine: "Engine", head: Head, params: Any, wanted: bytes) -> bool:
    if codec.equal(head.params, wanted):
        return True
    # Tables among the params are files in the store and inline in `wanted`: encode for that folder to compare.
    return codec.equal(head.params, codec.encode({} if params is None else params, engine.artifact_folder(head)).data)


def _newest(engine: "Engine", workflow: Workflow, wanted: bytes) -> Head | None:
    """The newest of this notebook with these params, else one of the very same code that is left to it."""
    left = None
    for head in engine.store.alike(workflow.name, wanted):
        if not codec.equal(head.params, wanted):
            continue
        if head.notebook == engine.notebook:
            return head
        if left is None and _is_left(engine, workflow, head):
            left = head
    return left


def _is_left(engine: "Engine", workflow: Workflow, head: Head) -> bool:
    """Whether it is this very code's and no other notebook has it: registering resumes it here (S51), or it was this one's.

    A notebook that was renamed when its kernel had ended is known by its instances alone.
    """
    if head.code_hash != workflow.code_hash or (head.owner is not None and engine.store.alive(head.owner) is not False):
        return False
    return not head.finished or (head.reach == workflow.reach and _is_gone(head.notebook, engine.store.path))


def _is_gone(notebook: str, store: Path | None) -> bool:
    """Whether there is no such notebook beside a store any more; of a store that is elsewhere nobody can tell."""
    if store is None or not notebook or store.parent.name != DEFAULT_STORE.parent.name:
        return False
    return not (store.parent.parent / notebook).exists()


def _differs(engine: "Engine", head: Head, params: Any) -> str:
    given = {} if params is None else params
    recorded = codec.decode(head.params, engine.artifact_folder(head))
    where = ""
    if isinstance(given, dict) and isinstance(recorded, dict):
        keys = [
            repr(str(key))
            for key in {**recorded, **given}
            if key not in given or key not in recorded or not _equal(engine, given[key], recorded[key])
        ]
        where = f" ({', '.join(sorted(keys))} differ)" if keys else ""
    return (
        f"instance {head.instance_id!r} exists with other params{where}; params never change (S4): give another id, "
        f"or the same params"
    )


def stored(engine: "Engine", value: Any) -> bytes:
    """Params as they are compared."""
    return codec.encode(value, None, allow_pickle=engine.allow_pickle, with_preview=False).data


def _equal(engine: "Engine", a: Any, b: Any) -> bool:
    try:
        return codec.equal(stored(engine, a), stored(engine, b))
    except TypeError:
        return False


def _anew(engine: "Engine", workflow: Workflow, instance_id: str | None, params: Any, wanted: bytes) -> Opened:
    """A new instance beside a finished one; with an id the next `ID-n`, where the last of these with the params is finished."""
    if instance_id is None:
        return _create(engine, workflow, None, params)
    others = [head for head in engine.store.numbered(workflow.name, instance_id) if head.instance_id != instance_id]
    last = next((head for head in others if _same_params(engine, head, params, wanted)), None)
    if last is not None and last.status not in FINISHED:
        return _go_on(engine, workflow, last)
    number = max((int(head.instance_id.removeprefix(f"{instance_id}-")) for head in others), default=1)
    return _create(engine, workflow, f"{instance_id}-{number + 1}", params)


def _create(engine: "Engine", workflow: Workflow, instance_id: str | None, params: Any) -> Opened:
    return create_all(engine, workflow, [(instance_id, params)])[0]


def create_all(engine: "Engine", workflow: Workflow, wanted: Sequence[tuple[str | None, Any]]) -> list[Opened]:
    """Make these, all at once; where somebody was faster, his is taken."""
    opened = []
    for (instance_id, params), made in zip(wanted, make(engine, workflow, wanted), strict=True):
        if isinstance(made, Head):
            data = stored(engine, {} if params is None else params)
            opened.append(open_found(engine, workflow, made.instance_id, params, data, made, again=False))
            continue
        instance = WorkflowInstance(engine, made.history.head)
        history = f", no history of it in {engine.store.path}" if instance_id is not None and engine.store.path else ""
        opened.append(Opened(instance, "created", f"new instance {instance.id}{history}", made))
    return opened


def _go_on(engine: "Engine", workflow: Workflow, head: Head) -> Opened:
    instance = WorkflowInstance(engine, head)
    live = engine.live.get(head.created_seq)
    if live is not None and not live.lost and head.status is not Status.ERRORED:
        return _attached(instance, live, workflow)
    if head.owner is not None and head.owner.engine != engine.engine_id:
        alive = engine.store.alive(head.owner)
        if alive:
            return Opened(
                instance, "elsewhere", f"{instance.id} runs in another kernel ({head.owner}); its controls work from here"
            )
        if alive is None:
            how = f"%workflow resume {instance.id}" if in_notebook() else f"nbflow resume {instance.id}, then run this again"
            line = (
                f"{instance.id} was last seen in {head.owner}; whether that lives cannot be known from here. Take over: {how}"
            )
            return Opened(instance, "elsewhere", line)
    live = engine.adopt(head.created_seq, "cell")
    if live is None:
        return _go_on_later(engine, instance, head)
    live.workflow = workflow
    if live.history.head.status is Status.PAUSED:
        return Opened(instance, "adopted", f"{instance.id} is paused, {_from_history(live.history)}; resume it to go on")
    if live.history.head.status is Status.ERRORED:
        failed = [_failed(step) for step in live.history.steps.values() if step.state is StepState.FAILED]
        with live.lock:
            start = retried_from(live.history)
            plan = retry_plan(live.history, start)
            live.record(Kind.RETRIED, None, {"by": "cell"} | start, acked=noted)
        engine.store.flush()
        what = f"goes on at {', '.join(failed[:3])}" if failed else "goes on"
        if plan.rolled_back:
            what = f"rolled back: {_counted(len(plan.again))} run again"
        return Opened(instance, "retried", f"resumed {instance.id}: {_ended(live.history)} from history, {what}", live)
    if deaths.too_many(live.history) and not live.codes.has_new(workflow):
        return Opened(instance, "resumed", f"{instance.id} fails: {deaths.error_of(live.history)}", live)
    return Opened(instance, "resumed", f"resumed {instance.id}: {_from_history(live.history)}{_again(live.history)}", live)


def _attached(instance: WorkflowInstance, live: LiveInstance, workflow: Workflow) -> Opened:
    line = f"attached to {instance.id}: {live.status()}, {_ended(live.history)} done"
    activation = live.activation
    if activation is not None and live.history.head.code_hash != workflow.code_hash:
        line += "; still runs the previous class; pause and resume to change over"
    # An interrupted one, or one that was resumed by registering and not started, goes on now.
    return Opened(instance, "attached", line, live if activation is None else None)


def _go_on_later(engine: "Engine", instance: WorkflowInstance, head: Head) -> Opened:
    present = engine.store.head(head.created_seq)
    who = present.owner if present is not None else None
    return Opened(instance, "elsewhere", f"{instance.id} runs in another kernel ({who}); its controls work from here")


def _from_history(history: History) -> str:
    items = sum(step.items.done for step in history.steps.values() if step.items is not None and not step.ended)
    kept = f" and {items:,} item{'' if items == 1 else 's'}" if items else ""  # of maps that go on
    return f"{_ended(history)}{kept} from history"


def _ended(history: History) -> str:
    return _counted(sum(1 for step in history.steps.values() if step.ended))


def _failed(step: StepRecord) -> str:
    items = step.items
    if items is None:
        return str(step.key)
    return f"{step.key} ({items.done:,} {'item' if items.done == 1 else 'items'} from history)"


def _counted(steps: int) -> str:
    return f"{steps} step{'' if steps == 1 else 's'}"


def _again(history: History) -> str:
    again = sum(1 for step in history.steps.values() if step.state in (StepState.INTERRUPTED, StepState.RUNNING))
    return f", {again} run again" if again else ""
