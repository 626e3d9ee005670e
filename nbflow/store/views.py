"""The read side: an instance and its steps as plain data, for status, panel, text and command line.

Views are made from the fold, so an instance that runs here and one that is only read look the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from nbflow.core.history import Attempt, History, StepRecord, error_info, settled, status_of
from nbflow.core.log import LogItem, Progress, text_of
from nbflow.core.maps import failed_items
from nbflow.core.model import FINISHED, ErrorInfo, Owner, Status, StepKey, StepState, StepType, Waiting
from nbflow.core.plans import RestartPlan, undone_plan
from nbflow.core.told import steps_as_told
from nbflow.store.counts import ItemCounts, Work, counts_of, gone_text, work_of

AT_WORK = (Status.QUEUED, Status.RUNNING, Status.WAITING_FOR_PAUSE, Status.ROLLING_BACK)
_REPR = 80  # characters of an output or error in the repr of a step


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One try of a step."""

    number: int
    status: StepState
    started_at: datetime
    ended_at: datetime | None
    error: ErrorInfo | None


class Attempts(tuple[AttemptView, ...]):
    """The tries of a step, oldest first; compared with a number, it is how many there were."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return len(self) == other if isinstance(other, int) else super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __gt__(self, other: Any) -> bool:
        return len(self) > other if isinstance(other, int) else super().__gt__(other)

    def __ge__(self, other: Any) -> bool:
        return len(self) >= other if isinstance(other, int) else super().__ge__(other)

    def __lt__(self, other: Any) -> bool:
        return len(self) < other if isinstance(other, int) else super().__lt__(other)

    def __le__(self, other: Any) -> bool:
        return len(self) <= other if isinstance(other, int) else super().__le__(other)

    def __hash__(self) -> int:
        return super().__hash__()

    def __int__(self) -> int:
        return len(self)


class CodeOf(Protocol):
    """The code of a step: read and compared when it is asked for."""

    @property
    def stale(self) -> bool:
        """Whether it is known to differ from what was recorded."""

    @property
    def why(self) -> tuple[str, ...]:
        """What changed."""

    @property
    def text(self) -> str:
        """The recorded source."""

    @property
    def diff(self) -> str:
        """Recorded to present."""


@dataclass(frozen=True, slots=True, repr=False)
class StepView:
    """One step as it stands in the history (API.md §4).

    Attributes:
        status: running, retrying, sleeping, waiting, finished, failed, cancelled or interrupted.
        attempts: the tries so far, oldest first; empty for sleeps and waits.
        due_at: when a sleep, a wait or a retry delay ends.
        limit: attempts allowed in all, None where the step has none.
        preview: what `values/preview.py` made of the output, JSON.
        from_history: it had ended before the present activation began.
        event_type, schema, prompt: of a wait.
        progress: how far its body is, where it runs in this kernel and says so.
        items: of a map; its items themselves are asked for by page (`WorkflowInstance.items`).
    """

    key: StepKey
    order: int
    status: StepState
    attempts: Attempts
    started_at: datetime
    ended_at: datetime | None
    due_at: datetime | None
    limit: int | None
    preview: dict[str, Any] | None
    error: ErrorInfo | None
    from_history: bool
    event_type: str | None = None
    schema: dict[str, Any] | None = None
    prompt: str | None = None
    progress: Progress | None = None
    items: ItemCounts | None = None
    _load: Callable[[], object] | None = field(default=None, repr=False, compare=False)
    _code: CodeOf | None = field(default=None, repr=False, compare=False)
    _read: Callable[[], tuple[LogItem, ...]] | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        told = [f"{self.type} {str(self.key)!r}", self.status.value]
        if (items := self.items) is not None:
            told.append(f"{items.done:,} of {'?' if items.total is None else f'{items.total:,}'} items")
            told += [f"{items.failed:,} failed"] if items.failed else []
            told += [gone_text(items)] if items.gone else []
        if len(self.attempts) > 1:
            told.append(f"{len(self.attempts)} attempts")
        if self.stale:
            told.append("stale")
        said = str(self.error) if self.error is not None else str((self.preview or {}).get("line", ""))
        if said:
            first = said.split("\n", 1)[0]
            told.append(first if len(first) <= _REPR else f"{first[: _REPR - 1]}…")
        return f"<{' · '.join(told)}>"

    @property
    def name(self) -> str:
        """The step's name."""
        return self.key.name

    @property
    def count(self) -> int:
        """Which call of that name, 1-based."""
        return self.key.count

    @property
    def type(self) -> str:
        """The kind of the step: do, sleep, wait, map or child."""
        return self.key.type.value

    @property
    def stale(self) -> bool:
        """Whether it is served from history although its code or its arguments are known to have changed (S57)."""
        return self._code is not None and self._code.stale

    @property
    def stale_why(self) -> tuple[str, ...]:
        """What changed: "MODEL changed", "the body changed", "arguments changed"."""
        return () if self._code is None else self._code.why

    @property
    def code(self) -> str:
        """The recorded source of its body, "" where none is recorded."""
        return "" if self._code is None else self._code.text

    @property
    def code_diff(self) -> str:
        """What changed, as unified diffs, recorded to present."""
        return "" if self._code is None else self._code.diff

    @property
    def output(self) -> object:
        """The stored output, decoded now; None where there is none."""
        return None if self._load is None else self._load()

    @property
    def log(self) -> tuple[LogItem, ...]:
        """What its attempts printed, logged, warned and displayed, oldest first, read now; at most 1 MB is kept."""
        return () if self._read is None else self._read()

    @property
    def logs(self) -> str:
        """The text of its log, as a terminal would show it."""
        return text_of(self.log)


@dataclass(frozen=True, slots=True)
class InstanceView:
    """One instance at a glance.

    Attributes:
        here: this engine runs it.
        owner_alive: whether the engine that its claim names lives; None where there is no owner or it cannot be known.
        done, total: steps that ended with a value, and all recorded.
        from_history: steps that had ended before the present activation began.
        waits: open waits for events, in order.
        children: step, workflow and id of each instance that it waits for.
        notebook: the notebook or script that ran it last; the one that made it where none has.
        released: an engine that had it let it go in order.
        version: rises with each entry folded in.
        held: what holds the workflow loop now, so that nothing of this instance goes on (S55).
        stale_steps: finished steps whose code or arguments are known to have changed, in order (S57).
        code_same: whether the registered workflow's source is the one that ran last; None where none is registered here.
        rollback: how undoing its steps ended, "complete" or "failed"; None where nothing was undone (S48).
        undone: what resuming it keeps and runs again where steps of it were undone; None where resuming goes on at its error.
        work: how far it is with items counted; None without maps.
        failed_items: items of maps that failed for good, even where the instance is complete (S61).
    """

    workflow: str
    instance_id: str
    created_seq: int
    status: Status
    settled: bool
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    changed_at: datetime
    params_preview: dict[str, Any] | None
    owner: Owner | None
    here: bool
    owner_alive: bool | None
    done: int
    total: int
    running: int
    retrying: int
    failed: int
    from_history: int
    waiting_for: tuple[Waiting, ...]
    waits: tuple[StepView, ...]
    unreached: tuple[StepKey, ...]
    output_preview: dict[str, Any] | None
    error: ErrorInfo | None
    interrupted: str | None
    code_hash: str
    version: int
    held: str | None = None
    stale_steps: tuple[StepKey, ...] = ()
    code_same: bool | None = None
    failed_items: int = 0
    work: Work | None = None
    rollback: str | None = None
    undone: RestartPlan | None = None
    children: tuple[tuple[str, str, str], ...] = ()
    notebook: str = ""
    released: bool = False

    @property
    def unattended(self) -> bool:
        """Whether it is unfinished and known to be run by nobody."""
        return self.status not in FINISHED and not self.here and (self.owner is None or self.owner_alive is False)

    @property
    def doubtful(self) -> bool:
        """Whether it is unfinished and cannot be known from here to be run by anybody (S52)."""
        return self.status not in FINISHED and not self.here and self.owner is not None and self.owner_alive is None

    @property
    def neighbours(self) -> tuple[Owner, ...]:
        """The other engine that is known to have it unfinished, if one is: as long as it lives, this is true."""
        lives = self.status not in FINISHED and not self.here and self.owner is not None and self.owner_alive
        return (self.owner,) if lives and self.owner is not None else ()

    @property
    def why_interrupted(self) -> str | None:
        """Why it does not go on by itself (S17, S51), None where it does, waits in order or is finished."""
        if self.interrupted:
            return self.interrupted
        if self.doubtful:
            return f"last seen in {self.owner}; whether that lives cannot be known from here: resume takes it over"
        if self.unattended and self.owner is not None:
            return f"its kernel is gone ({self.owner})"
        if self.unattended and self.released and self.status in AT_WORK:
            return f"its kernel has ended ({self.notebook})" if self.notebook else "its kernel has ended"
        return None

    @property
    def stale(self) -> int:
        """How many finished steps are known to be stale."""
        return len(self.stale_steps)


def _unreached_at_end(history: History) -> tuple[StepKey, ...]:
    recorded = frozenset(history.head.output_body.get("unreached", ()))
    return tuple(key for key in history.steps if str(key) in recorded) if recorded else ()


def step_view(
    record: StepRecord,
    replayed: frozenset[StepKey],
    load: Callable[[], object] | None = None,
    code: CodeOf | None = None,
    read: Callable[[], tuple[LogItem, ...]] | None = None,
    progress: Progress | None = None,
) -> StepView:
    """The view of one step, as it is told (core/told.py); *load* decodes its output, *read* its log."""
    retries = (record.config or {}).get("retries") or {}
    body = record.body
    return StepView(
        key=record.key,
        order=record.order,
        status=record.state,
        attempts=Attempts(_attempt_view(attempt) for attempt in record.attempts),
        started_at=record.started_at,
        ended_at=record.ended_at,
        due_at=record.due_at,
        limit=retries["limit"] + 1 if "limit" in retries else None,
        preview=body.get("preview"),
        error=error_info(record.error),
        from_history=record.key in replayed,
        event_type=record.event_type,
        schema=body.get("schema"),
        prompt=body.get("prompt"),
        progress=progress,
        items=None if record.items is None else counts_of(record, record.items),
        _load=load,
        _code=code,
        _read=read,
    )


def _attempt_view(attempt: Attempt) -> AttemptView:
    return AttemptView(attempt.number, attempt.state, attempt.started_at, attempt.ended_at, error_info(attempt.error))


def _open_waits(history: History) -> tuple[StepView, ...]:
    return tuple(step_view(step, history.replayed) for step in history.open_waits())


def _open_children(history: History) -> tuple[tuple[str, str, str], ...]:
    asked = [step for step in history.open_steps() if step.key.type is StepType.CHILD]
    return tuple((step.key.name, str(step.body.get("workflow", "")), str(step.body.get("id", ""))) for step in asked)


def instance_view(
    history: History,
    *,
    here: bool = False,
    owner_alive: bool | None = None,
    status: Status | None = None,
    unreached: tuple[StepKey, ...] = (),
    held: str | None = None,
) -> InstanceView:
    """The view of an instance; *status* is what its engine knows better than the entries do (S5)."""
    head, (states, called) = history.head, _states(history)
    assert head.created_at is not None
    shown = status or status_of(history)
    return InstanceView(
        workflow=head.workflow,
        instance_id=head.instance_id,
        created_seq=head.created_seq,
        status=shown,
        settled=head.finished or shown is Status.PAUSED or (shown is Status.WAITING and settled(history)),
        created_at=head.created_at,
        started_at=head.started_at,
        ended_at=head.ended_at,
        changed_at=_changed_at(head.changed_at or head.created_at, history),
        params_preview=head.body.get("preview"),
        owner=head.owner,
        here=here,
        owner_alive=owner_alive,
        done=states.count(StepState.FINISHED),
        total=len(states),
        running=called.count(StepState.RUNNING),
        retrying=called.count(StepState.RETRYING),
        failed=states.count(StepState.FAILED),
        from_history=len(history.replayed),
        waiting_for=() if head.finished else history.waiting_for(),
        waits=() if head.finished else _open_waits(history),
        unreached=unreached or _unreached_at_end(history),
        output_preview=head.output_body.get("preview"),
        error=error_info(head.error),
        interrupted=head.interrupted,
        code_hash=head.code_hash,
        version=history.version,
        held=held,
        failed_items=failed_items(history),
        work=work_of(history),
        rollback=None if head.rollback is None else head.rollback[0],
        undone=undone_plan(history) if shown is Status.ERRORED else None,
        children=() if head.finished else _open_children(history),
        notebook=head.notebook,
        released=head.released,
    )


def _changed_at(head: datetime, history: History) -> datetime:
    return max([head, *(step.changed_at for step in history.steps.values())])


def _states(history: History) -> tuple[list[StepState], list[StepState]]:
    """The states of all steps, and of those that the present code calls."""
    # Handlers undo steps; they are shown in their rows, and are no part of how far the work is.
    steps = [step for step in steps_as_told(history) if step.key.type is not StepType.ROLLBACK]
    states, uncalled = [step.state for step in steps], history.uncalled
    return states, [step.state for step in steps if step.key not in uncalled] if uncalled else states
