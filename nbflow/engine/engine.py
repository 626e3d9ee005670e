"""The engine: one store, one workflow loop, the instances that it runs. `Engine` is the public door (API.md §4)."""

import contextvars
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsIndex

from nbflow.clock import Clock, SystemClock
from nbflow.core.history import Head
from nbflow.core.model import Entry, Kind, Owner, Status
from nbflow.engine import current, finding, opening, recovery
from nbflow.engine.calls import noted
from nbflow.engine.children import Ends
from nbflow.engine.executors.named import Executors
from nbflow.engine.folds import Folds
from nbflow.engine.instance import WorkflowInstance
from nbflow.engine.instances import Instances
from nbflow.engine.keeping import Keeping
from nbflow.engine.live import LiveInstance
from nbflow.engine.logs.output import Outputs
from nbflow.engine.loop import LoopThread
from nbflow.engine.neighbours import Neighbours
from nbflow.engine.news import News
from nbflow.engine.registry import Registry, Workflow
from nbflow.engine.schedules import Schedules
from nbflow.engine.settings import check_settings
from nbflow.engine.slots import Slots, Waiting
from nbflow.engine.stores import open_store
from nbflow.engine.threads import BodyThreads, MainQueue
from nbflow.engine.timers import EngineTime, Timers
from nbflow.engine.watch import LoopWatch
from nbflow.errors import InvalidStatusError, StoreError
from nbflow.store.base import Store
from nbflow.store.feed import Feed
from nbflow.values.artifacts import ArtifactFolder

log = logging.getLogger("nbflow")
KEEP_FINISHED = 200  # finished instances whose fold stays in memory, for displays that still show them


class Engine:
    """Runs instances of registered workflows on one store.

    Args:
        path: the `.duckdb` file, ":memory:" for none; by default what `NBFLOW_STORE` names, else `.nbflow/history.duckdb`
            in the working directory.
        env: what `self.env` gives beside the workflows.
        max_threads: plain bodies at once, over all instances.
        max_steps: `step.do` calls allowed in one activation (S14).
        default_executor: name of the executor that bodies without `on=` run on; `on="local"` brings one back here.
        max_running: instances at work at once; waiting ones do not count, the others are `queued` (S5).
        lock_timeout: seconds to wait for the DuckDB file where others hold it; steps never wait for it.
        allow_pickle: pickle results that nothing else can store, and read such ones back, which runs what is in them:
            only for histories you trust. They are not readable without it.
        sql_files: False keeps `sql` from every file but the history: it neither reads nor writes others, not even stored
            tables (`read_parquet(output_uri)`).
        retention: a duration: finished instances that ended longer ago are deleted when the engine starts.
        notify: called with an instance and "waiting", "errored" or "complete", once each, never in a replay.
        notebook: the notebook or script this engine works for; what it may resume by itself depends on it (S51).
        clock: for tests.
        store: for tests.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        env: Mapping[str, Any] | None = None,
        max_threads: int = 64,
        max_steps: int = 10_000,
        default_executor: str | None = None,
        max_running: int | None = None,
        lock_timeout: float = 10.0,
        allow_pickle: bool = False,
        sql_files: bool = True,
        retention: Any = None,
        notify: Callable[[WorkflowInstance, str], Any] | None = None,
        notebook: str | None = None,
        clock: Clock | None = None,
        store: Store | None = None,
    ) -> None:
        check_settings(env, max_threads, max_steps, max_running, lock_timeout, retention, notify, default_executor)
        self.clock: Clock = clock or SystemClock()
        self.notebook = notebook if notebook is not None else current.place_name()
        self.store: Store = store or open_store(path, self.notebook, lock_timeout, self.clock)
        self.engine_id, self.uid = self.store.engine_id, self.store.uid
        self._env: dict[str, Any] = dict(env or {})
        self.max_steps, self.notify = max_steps, notify
        self.allow_pickle, self.sql_files = allow_pickle, sql_files
        self.folds, self.feed, self.outputs = Folds(self.store), Feed(), Outputs(self)
        self.live: dict[int, LiveInstance] = {}
        self.registry, self.main_queue = Registry(self), MainQueue()
        self.thread = LoopThread(f"nbflow-loop-{self.engine_id[:6]}")
        self.loop = self.thread.loop
        neighbours = Neighbours(self.store, lambda: self.feed.publish(0))
        self.watch = LoopWatch(self.thread, self._show_all, neighbours)
        self.timers = Timers(self.thread, self.clock)
        self.threads = BodyThreads(self.thread, max_threads, "nbflow-body")
        self._executors, self.default_executor = Executors(self), default_executor
        self.ends, self.schedules, self.keeping = Ends(self), Schedules(self), Keeping(self)
        self.slots, self.waiting = Slots(max_running), Waiting()
        self.closing = self.closed = False
        self.failure: StoreError | None = None
        self.launches: list[Callable[[], None]] = []
        self._finished: list[int] = []
        self.looks = 0
        self._lock = threading.RLock()
        self.news = self.store.on_news = News(self)
        self.thread.attend(self.store)
        self.time = EngineTime(self)
        self.clock.subscribe(self.time)
        if retention is not None:
            finding.delete_finished(self, retention, None)

    # -- workflows ----------------------------------------------------------------------------------------------------

    def register(self, cls: type[Any], name: str | None = None, *, source: str | None = None, resume: bool = True) -> Workflow:
        """Register a workflow class and resume what may be resumed by itself (S51).

        Args:
            cls: a subclass of WorkflowEntrypoint with `async def run`.
            name: the workflow's name; the class's by default.
            source: the text of its cell, where the class has no file.
            resume: False leaves resuming to `Opened.start`: a cell first says what happened to its own instance.

        Raises:
            UsageError: the class cannot be a workflow.
        """
        self.check_open()
        workflow, changed = self.registry.register(cls, name, source)
        self.on_loop(lambda: self._replace_code(workflow) if changed else self.retry_interrupted())
        self.schedules.registered(workflow)
        if resume:
            recovery.recover(self, workflow)
        return workflow

    def workflow(self, name: str) -> Workflow:
        """The registered workflow of that name; NotFoundError lists the known ones."""
        return self.registry.get(name)

    @property
    def env(self) -> dict[str, Any]:
        """What `self.env` gives beside the workflows, by name; put more in at any time (API.md §5)."""
        return self._env

    @env.setter
    def env(self, values: Mapping[str, Any]) -> None:
        self._env = dict(values)

    @property
    def executors(self) -> Executors:
        """Where bodies may run, by name: `engine.executors["gpu"] = …` (API.md §7)."""
        return self._executors

    @property
    def workflows(self) -> dict[str, Workflow]:
        """All registered workflows by name."""
        return self.registry.all()

    def _replace_code(self, workflow: Workflow) -> None:
        for live in list(self.live.values()):
            if live.workflow is workflow:
                live.replace_code()
        self.retry_interrupted()

    def retry_interrupted(self) -> None:
        """Try instances again that a missing class or library had stopped: a cell may have provided it (S17). On the loop."""
        for live in list(self.live.values()):
            if live.activation is None and live.history.head.interrupted is not None:
                live.go_on()

    # -- instances ----------------------------------------------------------------------------------------------------

    def start(self, live: LiveInstance) -> None:
        """Let an instance run, in the context of the caller: its prints go to the cell that started it."""
        context = contextvars.copy_context()
        self.thread.post(lambda: live.go_on(context))

    def adopt(self, created_seq: int, by: str) -> LiveInstance | None:
        """Make an instance that nobody runs ours; None where somebody does, or it is gone."""
        live = self.live.get(created_seq)
        if live is not None and not live.lost:
            return live
        entries = self.store.claim([created_seq], self.owner, by, force=by == "resume").get(created_seq)
        if entries is None:
            head = self.store.head(created_seq)
            if head is None or head.owner is None or head.owner.engine != self.engine_id:
                return None
            entries = self.store.read(created_seq)  # finished here, and forgotten since
        return self._take_on(entries)

    def _take_on(self, entries: list[Entry]) -> LiveInstance:
        live = LiveInstance(self, entries, None)
        live.workflow = self.registry.find(live.history.head.workflow)
        self.live[live.created_seq] = live
        self.news.expect(live, entries)
        if live.history.head.status is Status.WAITING_FOR_PAUSE:  # what that waited for has died with its engine (S40)
            with live.lock:
                live.record(Kind.PAUSED, acked=noted)
        return live

    def adopt_unfinished(self, workflow: str, wanted: Callable[[Head], bool], by: str) -> list[LiveInstance]:
        """Make the unfinished instances of a workflow ours that nobody runs, where *wanted* says so."""
        claimed = self.store.claim_unfinished(workflow, wanted, self.owner, by)
        return [self._take_on(entries) for entries in claimed.values()]

    def get(self, instance_id: str, workflow: str | None = None) -> WorkflowInstance:
        """The instance with that id; `WORKFLOW/ID` names both. NotFoundError, or UsageError where the id is ambiguous (S3)."""
        return finding.get(self, instance_id, workflow)

    def instance(self, reference: str) -> WorkflowInstance:
        """The instance of that id, `WORKFLOW/ID`, or the newest one of the workflow of that name."""
        return finding.instance(self, reference)

    def list(self, workflow: str | None = None, *, status: Status | str | None = None, limit: SupportsIndex = 100) -> Instances:
        """Instances, newest first."""
        return finding.listed(self, workflow, status, limit)

    def open(
        self, workflow: Workflow, instance_id: str | None = None, params: Any = None, *, again: bool = False
    ) -> opening.Opened:
        """Take the instance that a cell is about; see `opening.open_instance`."""
        return opening.open_instance(self, workflow, instance_id, params, again=again)

    def delete(self, *, older_than: Any, status: Status | str | None = None) -> int:
        """Delete finished instances that ended before that long ago; gives their number."""
        return finding.delete_finished(self, older_than, status)

    def sql(self, query: str) -> Any:
        """Run SQL over the history, read-only; gives a DuckDB relation of the result (API.md §4)."""
        self.check_open()
        return self.store.sql(query, files=self.sql_files)

    def compact(self) -> tuple[int, int]:
        """Drop what deleted instances left and rewrite the file; gives its size before and after, in bytes."""
        self.check_open()
        return self.store.compact()

    def backup(self, path: str | os.PathLike[str]) -> Path:
        """Copy history and artefacts, as they are now, to a new store at *path*; nothing there is overwritten."""
        self.check_open()
        return self.store.backup(path)

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def owner(self) -> Owner:
        """Who this engine is in claims."""
        folder = getattr(self.store, "folder_id", "")
        return Owner(self.engine_id, os.getpid(), socket.gethostname(), folder, self.notebook)

    def artifact_folder(self, head: Head) -> ArtifactFolder:
        """The artefacts of an instance."""
        name = f"{head.workflow}/{head.instance_id}"
        return ArtifactFolder(self.store.artifacts, name, allow_pickle=self.allow_pickle)

    @property
    def trouble(self) -> str:
        """What keeps something from being recorded now, such as a full disk; it waits. Empty where nothing does."""
        return self.store.trouble or self.keeping.trouble

    def broke(self, error: StoreError) -> None:
        """The store takes nothing more: start nothing more, hand nothing out, and say why to whoever asks."""
        if self.failure is not None:
            return
        self.failure, self.closing = error, True
        log.error("nothing runs any more: %s", error)
        for live in tuple(self.live.values()):
            if live.activation is not None:
                live.activation.stop()
            live.notify()

    def check_open(self) -> None:
        """Refuse what a closed engine cannot do."""
        if self.failure is not None:
            raise self.failure
        if self.closing:
            msg = "this engine is closed; make a new one, or %load_ext nbflow again"
            raise InvalidStatusError(msg)

    def on_loop(self, act: Callable[[], None]) -> None:
        """Have *act* done on the loop and wait for it, at most a second: what it acts on is durable already (S55)."""
        self.thread.do(act, patience=1.0)

    def launch_soon(self, launch: Callable[[], None]) -> None:
        """Run *launch* in the loop's next pass, after the start that was just recorded is in the journal's file (S53)."""
        self.launches.append(launch)
        if len(self.launches) == 1:
            self.loop.call_soon(self._launch_all, context=self.loop.uncounted)

    def _launch_all(self) -> None:
        launches, self.launches = self.launches, []
        try:
            self.store.write()
        except StoreError as error:
            self.broke(error)
            return
        for launch in launches:
            launch()

    def _show_all(self) -> None:
        for created_seq in tuple(self.live):
            self.feed.publish(created_seq)

    def look(self, then: Callable[[], None]) -> None:
        """Look at what other processes wrote, then *then*, on the loop."""
        self.looks += 1

        def looked() -> None:
            self.looks -= 1
            then()

        self.store.look(lambda: self.thread.post(looked))

    def tell(self, live: LiveInstance, what: str) -> None:
        """Call the user's `notify`, in a thread; what it raises is logged and hurts nobody."""
        notify = self.notify
        if notify is None:
            return
        instance = WorkflowInstance(self, live.history.head)

        def told(outcome: tuple[bool, Any]) -> None:
            if not outcome[0]:
                log.warning("notify failed for %s (%s): %s", live.name, what, outcome[1])

        self.threads.submit(contextvars.Context(), lambda: notify(instance, what), told)

    def finished(self, live: LiveInstance) -> None:
        """An instance has ended: keep a few of them in memory."""
        self.thread.post(self.ends.ended, live.created_seq)
        self._finished.append(live.created_seq)
        if len(self._finished) > KEEP_FINISHED:
            old = self.live.get(seq := self._finished.pop(0))
            if old is not None and old.history.head.finished:
                self.live.pop(seq, None)

    # -- end ----------------------------------------------------------------------------------------------------------

    def close(self, timeout: float = 5.0) -> None:
        """Stop: wait for bodies at most *timeout* seconds, make everything durable, free the file. Idempotent.

        Unfinished instances can be resumed by any engine (S54). Bodies that do not end in time are abandoned.
        """
        if self.thread.forked:
            return  # all of it is the parent's
        with self._lock:
            if self.closed:
                return
            self.closing = self.closed = True
        self.clock.unsubscribe(self.time)
        self.watch.end()
        if not self.thread.here:
            self._wind_down(timeout)
        self.outputs.close()
        self.threads.close()
        self.executors.close()
        for live in tuple(self.live.values()):
            try:
                with live.lock:
                    live.detach()
                    if not live.history.head.finished and not live.lost:
                        live.record(Kind.RELEASED, None, {"why": "closed"})
            except StoreError:
                break
        self.store.close()
        self.thread.stop(min(timeout, 1.0))

    def _wind_down(self, timeout: float) -> None:
        """Let bodies in flight end and be recorded, and user code end."""
        idle = threading.Event()

        def stop() -> None:
            for live in tuple(self.live.values()):
                if live.activation is not None:
                    live.activation.stop()
                    live.activation.on_quiet()
            watch()

        def watch() -> None:
            if any(live.activation is not None and not live.activation.over for live in tuple(self.live.values())):
                self.loop.call_later(0.01, watch, context=self.loop.uncounted)
            else:
                idle.set()

        self.thread.post(stop)
        idle.wait(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
