"""Instances as users hold them: a handle that reads and controls one instance, wherever it runs (API.md §4).

Every control method is a plain call, safe from any thread and durable when it returns. For an instance that this engine
runs it goes through that engine's journal, for any other through the store's one order for all (S52).
"""

import contextlib
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from nbflow.core.history import Head, History, StepRecord, settled, status_of
from nbflow.core.log import LogItem
from nbflow.core.maps import ended_before
from nbflow.core.model import FINISHED, Entry, InstanceStatus, Status, StepKey, StepState, StepType
from nbflow.core.told import as_told
from nbflow.engine import control
from nbflow.engine.code.codes import code_of, code_same, stale_steps
from nbflow.engine.current import panel_of
from nbflow.engine.live import LiveInstance
from nbflow.engine.logs.log import Log
from nbflow.engine.logs.output import log_of
from nbflow.engine.maps.pages import item_page, item_results
from nbflow.engine.naming import find_step
from nbflow.engine.outputs import REDACTED
from nbflow.engine.waiting import finished_by_polling, following, patience, wait_until
from nbflow.errors import InstanceFailedError, InvalidStatusError, NotFoundError, UsageError
from nbflow.store.views import InstanceView, StepView, instance_view, step_view
from nbflow.store.wording import standing_text
from nbflow.values import codec, failures

if TYPE_CHECKING:
    from nbflow.engine.code.changes import CodeChanges
    from nbflow.engine.engine import Engine


class WorkflowInstance:
    """One durable execution of a workflow.

    Attributes:
        id: its id.
        workflow_name: the workflow's name.
        params: what it was created with, decoded at each access.
        created_at: aware UTC.
        created_seq: the join key of the history.
    """

    def __init__(self, engine: "Engine", head: Head) -> None:
        self._engine = engine
        self.id, self.workflow_name = head.instance_id, head.workflow
        self.created_seq = head.created_seq
        assert head.created_at is not None
        self.created_at: datetime = head.created_at
        self._params = head.params
        self.files = engine.artifact_folder(head)

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> "Engine":
        """The engine this handle goes through."""
        return self._engine

    @property
    def params(self) -> Any:
        """What it was created with (S4)."""
        return codec.decode(self._params, self.files)

    def status(self) -> InstanceStatus:
        """Where it stands now, truthful (S5).

        When its engine is closed, where it stood when that engine let go of it (S54): a waiting instance is `waiting`, one
        that was at work is `running` with `interrupted` saying that its kernel has ended.
        """
        view = self.view()
        with self.folded() as history:
            rollback, output = history.head.rollback, history.head.output
        return InstanceStatus(
            status=view.status,
            read_output=partial(self._decoded, output if view.status is Status.COMPLETE else None),
            error=view.error,
            rollback=rollback,
            waiting_for=view.waiting_for,
            unreached=view.unreached,
            interrupted=view.why_interrupted,
            failed_items=view.failed_items,
        )

    @property
    def output(self) -> Any:
        """The output of a complete instance.

        Raises:
            InstanceFailedError: it errored or was terminated; the step's error is its cause.
            InvalidStatusError: it is not finished; `await` it.
        """
        with self.folded() as history:
            head = history.head
            status, output, error = head.status, head.output, head.error
        if status is Status.COMPLETE:
            return self._decoded(output)
        if status not in FINISHED:
            msg = f"instance {self.id!r} is {self.view().status} and has no output yet; `await` it, or call wait()"
            raise InvalidStatusError(msg)
        raise self._failure(status, error or {})

    def _decoded(self, output: bytes | None) -> Any:
        return None if output is None else codec.decode(output, self.files)

    def _failure(self, status: Status, record: dict[str, Any]) -> InstanceFailedError:
        if status is Status.TERMINATED:
            return InstanceFailedError(f"instance {self.id!r} was terminated; restart it to have it run again")
        where = "".join(f" ({note})" for note in record.get("notes", ())[-1:])
        msg = f"instance {self.id!r} errored: {record.get('type')}: {record.get('message')}{where}; correct it and resume it"
        error = InstanceFailedError(msg)
        error.__cause__ = failures.decode_error(record, step="", attempts=0)
        return error

    @property
    def steps(self) -> list[StepView]:
        """All recorded steps, in order of start."""
        return self.rows(0, None)[1]

    def rows(self, start: int, stop: int | None) -> tuple[int, list[StepView]]:
        """How many steps there are, and a page of them, in order of start."""
        with self.folded() as history:
            return self._page(history, start, stop)

    def _page(self, history: History, start: int, stop: int | None) -> tuple[int, list[StepView]]:
        ordered = sorted(history.steps.values(), key=lambda step: step.order)
        page = [self.view_of(history, step) for step in ordered[start:stop]]
        return len(ordered), page

    def items(
        self, name: str, start: int = 0, stop: int | None = None, *, count: int = 1, state: str | None = None
    ) -> tuple[int, list[StepView]]:
        """How many items of a map there are, and a page of them in the order of the items.

        Args:
            name, count: of the map.
            start, stop: the page, of those that *state* leaves.
            state: only items that stand so: "running", "retrying", "finished", "failed", "interrupted", "cancelled".

        Raises:
            NotFoundError: no such map is recorded.
        """
        return item_page(self._engine, self, name, count, start, stop, state)

    def view_of(self, history: History, step: StepRecord) -> StepView:
        """The view of one of its steps."""
        code = code_of(self._engine, step, self.created_seq)
        log, progress = partial(self._read_log, step), None if (kept := self._log(step)) is None else kept.progress
        replayed = frozenset((step.key,)) if ended_before(history, step.key) else history.replayed
        return step_view(as_told(history, step), replayed, partial(self.load, step), code, log, progress)

    def _log(self, step: StepRecord) -> Log | None:
        """What a running attempt puts out."""
        live = self._live()
        return None if live is None else live.outputs.get(step.key)

    def _read_log(self, step: StepRecord) -> tuple[LogItem, ...]:
        return log_of(self._engine, self.created_seq, step, self._log(step))

    def load(self, step: StepRecord) -> object:
        """The output of a step, decoded now."""
        if step.items is not None and step.state is StepState.FINISHED:
            return item_results(self._engine, self, step)
        if step.value is None or step.state is not StepState.FINISHED:
            return None
        return REDACTED if step.sensitive else codec.decode(step.value, self.files)

    def step(self, name: str, count: int = 1) -> StepView:
        """One step by name and count.

        Raises:
            NotFoundError: no such step is recorded.
            UsageError: several are, in the bodies of different steps.
        """
        with self.folded() as history:
            return self.view_of(history, find_step(history, (name, count), self.id))

    def history(self) -> list[Entry]:
        """Its entries, oldest first."""
        return self._engine.store.read(self.created_seq)

    async def follow(self, after: int = 0) -> AsyncIterator[Entry]:
        """Give the entries after that seq, oldest first, then live ones as they are recorded; ends when it is finished.

        An entry appears when it is in the file, at most a second behind a working engine; works across kernels and on any
        loop. InvalidStatusError where this engine is closed before the instance is finished.
        """
        async for entry in following(self, after):
            yield entry

    def view(self) -> InstanceView:
        """The instance at a glance, for displays."""
        live = self._live()
        if live is not None:
            return live.view()
        with self.folded() as history:
            owner = history.head.owner
            alive = None if owner is None else self._engine.store.alive(owner)
            view = instance_view(history, here=False, owner_alive=alive)
            stale, same = stale_steps(self._engine, history), code_same(self._engine, history.head)
            return replace(view, stale_steps=stale, code_same=same)

    def is_finished(self) -> bool:
        """Whether it is complete, errored or terminated."""
        live = self._live()
        if live is not None:
            return live.history.head.finished
        head = self._engine.store.head(self.created_seq)
        return head is None or head.finished

    def is_settled(self) -> bool:
        """Whether it is finished, paused, or waits on every path for an event that nobody has sent (API.md §3).

        Also where nobody can tell from here whether anybody runs it (S52): as far as is known it waits for a `resume()`.
        """
        live = self._live()
        if live is not None:
            return live.is_settled() or self._children_are_settled(live)
        view = self.view()
        return view.settled or view.doubtful or self._children_are_settled(None)

    def _children_are_settled(self, live: LiveInstance | None) -> bool:
        """Whether nothing but children is in the way, and each of them waits for somebody, or is paused."""
        if live is not None and not live.is_settled(but_for_children=True):
            return False  # at work: no look through its steps each time that somebody asks
        with self.folded() as history:
            asked = [step.body for step in history.open_steps() if step.key.type is StepType.CHILD]
            waits = bool(asked) and status_of(history) is Status.WAITING and settled(history, but_for_children=True)
        if not waits:
            return False
        try:
            children = [self._engine.get(body["id"], body["workflow"]) for body in asked]
            return all(not child.is_finished() and child.is_settled() for child in children)
        except NotFoundError:  # it was deleted meanwhile, and the parent is about to hear of it
            return False

    def _live(self) -> LiveInstance | None:
        return self._engine.live.get(self.created_seq)

    @contextlib.contextmanager
    def folded(self) -> Iterator[History]:
        """What is known of it; nobody changes it inside the `with`."""
        live = self._live()
        if live is not None:
            with live.lock:
                yield self._present(live.history)
            return
        with self._engine.folds.of(self.created_seq) as history:
            yield self._present(history)

    def _present(self, history: History) -> History:
        if history.head.deleted or not history.head.created_seq:
            msg = f"instance {self.id!r} of workflow {self.workflow_name!r} does not exist any more"
            raise NotFoundError(msg)
        return history

    def code_changes(self) -> "CodeChanges":
        """What the present code would do with what is recorded: steps kept, stale, unreached and new, with diffs (S57).

        Replays `run` against the history: no body runs and nothing is recorded, but code outside steps runs.

        Raises:
            NotFoundError: the workflow is not registered here.
        """
        from nbflow.engine.code import changes  # it is built on what this module is part of

        return changes.code_changes(self._engine, self)

    # -- controlling --------------------------------------------------------------------------------------------------

    def pause(self, by: str | None = None) -> None:
        """Let bodies in flight end, start nothing new (S40). Without effect on a finished or paused instance.

        Raises:
            InvalidStatusError: it is rolling back.
        """
        control.pause(self._engine, self, by)

    def resume(self, by: str | None = None) -> None:
        """Go on: from a pause with deadlines moved, after an error at the failed step, of a child that failed as well (S41)."""
        control.resume(self._engine, self, by)

    def terminate(self, rollback: bool = False, by: str | None = None) -> None:
        """End it at once (S43).

        Raises:
            InvalidStatusError: it is finished.
        """
        control.terminate(self._engine, self, rollback=rollback, by=by)

    def retry_failed(self, by: str | None = None) -> None:
        """Drop failed steps, keep the finished ones, go on (S41)."""
        control.retry_failed(self._engine, self, by)

    def retry_now(self, step: StepKey | None = None) -> None:
        """End all retry delays, or that of one step."""
        control.retry_now(self._engine, self, step)

    def restart(self, from_step: Any = None, by: str | None = None) -> None:
        """Run all steps again, or the named one and what started after it; children are made anew, the old ones left alone.

        Without *from_step* the events sent so far are dropped. With it they stay, and one that a dropped wait had taken is
        there to be taken again: the wait gets the same answer. Nobody is asked twice.

        Args:
            from_step: a name, (name, count), (name, key) of a map item, {"name", "count", "type"} or a StepView.

        Raises:
            NotFoundError: no such step; nothing was touched.
        """
        control.restart(self._engine, self, from_step, by)

    def restart_stale(self, by: str | None = None) -> None:
        """Run the first stale step again, and all that started after it; where the code is not, the kernel that runs it does.

        Raises:
            UsageError: no step is stale, or that cannot be known; nothing was touched.
        """
        from nbflow.engine.code import changes

        changes.restart_stale(self._engine, self, by)

    def delete(self, by: str | None = None) -> None:
        """Remove it from every view, free its id, remove its artefacts (S45)."""
        control.delete(self._engine, self, by)

    def send_event(self, type: str, payload: Any = None, by: str | None = None) -> None:  # noqa: A002 - the contract's name
        """Append an event to the instance's queue of that type; durable when it returns (S34).

        Raises:
            InvalidStatusError: the instance is finished (S38).
        """
        control.send_event(self._engine, self, type, payload, by)

    def answer(self, name: str, count: int, payload: Any, by: str | None = None) -> None:
        """Answer one open wait, once: Approve and Reject.

        Raises:
            InvalidStatusError: it was answered already, or is not open; says by whom and when.
        """
        control.answer(self._engine, self, name, count, payload, by)

    # -- waiting ------------------------------------------------------------------------------------------------------

    def wait(self, timeout: Any = None, until: str = "settled") -> InstanceStatus:
        """Block until it is settled or finished.

        Args:
            timeout: a duration, such as seconds; None for as long as it takes.
            until: "settled" or "finished".

        Raises:
            WaitTimeoutError: *timeout* ran out; the instance goes on.
            InvalidStatusError: this engine is closed, also meanwhile, and the instance was not so far: here it never will be.
            UsageError: called on the workflow loop; await it there. Or *timeout* is no duration.
        """
        if until not in ("settled", "finished"):
            msg = f'until={until!r} is neither "settled" nor "finished"'
            raise UsageError(msg)
        wait_until(self, self.is_settled if until == "settled" else self.is_finished, patience(timeout))
        return self.status()

    def __await__(self) -> Generator[Any, Any, Any]:
        """Wait until it is finished and give its output; raises as `output` does, and as `wait` where its engine is closed."""
        return self._finished().__await__()

    async def _finished(self) -> Any:
        await finished_by_polling(self)
        return self.output

    # -- display ------------------------------------------------------------------------------------------------------

    def panel(self) -> Any:
        """The widget that shows and controls it; needs a notebook. Where that runs headless: a summary in its place."""
        return panel_of(self)

    def __repr__(self) -> str:
        return f"<{self.workflow_name} {self.id} {standing_text(self.view())}>"
