"""A laboratory for the engine: everything in memory, time moved by hand, kernels that die without a word."""

import inspect
import shutil
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import pytest

from nbflow import Engine, Workflow, WorkflowEntrypoint, WorkflowInstance
from nbflow.core.durations import duration
from nbflow.core.model import Entry, Kind, Status
from nbflow.store.memory import MemoryStore
from nbflow.testing import ManualClock

Run = Callable[[Any, Any], Awaitable[Any]]

PATIENCE = 20.0  # real seconds before a test gives up on something that does not happen


def eventually(what: Callable[[], Any], says: str = "") -> Any:
    """Give what *what* gives as soon as that is true; for what happens in real threads."""
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end, f"did not happen: {says or inspect.getsource(what).strip()}"
        time.sleep(0.001)
    return found


def entrypoint(run: Run) -> type[WorkflowEntrypoint]:
    """A workflow class whose `run` is that function."""

    class Entrypoint(WorkflowEntrypoint):
        async def run(self, event: Any, step: Any) -> Any:
            return await (run(event, step) if takes == 2 else run(self, event, step))  # type: ignore[call-arg]

    takes = len(inspect.signature(run).parameters)
    return Entrypoint


def source_of(run: Run) -> str:
    return textwrap.dedent(inspect.getsource(run))


class Lab:
    """One kernel's engine on a store in memory."""

    def __init__(self, store: MemoryStore | None = None, clock: ManualClock | None = None, **settings: Any) -> None:
        self.clock = clock or ManualClock()
        self.store = store or MemoryStore(self.clock)
        settings.setdefault("notebook", "a.ipynb")
        self.settings = settings
        self.engine = Engine(store=self.store, clock=self.clock, **settings)
        self.children: list[Lab] = []

    # -- workflows

    def workflow(self, run: Run, name: str = "W") -> Workflow:
        return self.engine.register(entrypoint(run), name, source=source_of(run))

    def start(self, run: Run, params: Any = None, *, id: str | None = None, name: str = "W") -> WorkflowInstance:  # noqa: A002
        return self.workflow(run, name).create(id, params)

    def run(self, run: Run, params: Any = None, *, id: str | None = None, name: str = "W") -> WorkflowInstance:  # noqa: A002
        """Start it and let time pass until it is finished."""
        return self.finish(self.start(run, params, id=id, name=name))

    def finish(self, instance: WorkflowInstance) -> WorkflowInstance:
        def finished() -> bool:
            if instance.is_finished():
                return True
            if self.engine.time.idle() and (due := self.engine.time.next_due()) is not None:
                self.move(max(0.0, (due - self.clock.now()).total_seconds()))
            return False

        eventually(finished, f"the end of {instance!r}: {instance.steps}")
        return instance

    def output(self, run: Run, params: Any = None) -> Any:
        return self.run(run, params).output

    def failure(self, run: Run, params: Any = None) -> BaseException:
        """The error that left `run`, as the instance tells it."""
        instance = self.run(run, params)
        assert instance.status().status is Status.ERRORED, instance.status()
        return failure_of(instance)

    # -- time

    def advance(self, span: Any) -> None:
        self.clock.advance(span)

    def move(self, span: Any) -> None:
        """Move time on at once, also while bodies run: `advance` would wait for their end."""
        self.clock._now += duration(span, what="move()")
        for follower in self.clock._followers:
            follower.time_moved()

    def idle(self) -> None:
        eventually(self.engine.time.idle, "the engine becomes idle")

    # -- death

    def entries(self) -> list[Entry]:
        with self.store._lock:
            return list(self.store._entries)

    def revive(self, entries: Iterable[Entry] | None = None, *, kernel_dies: bool = True, **settings: Any) -> "Lab":
        """A new kernel on what the old one had recorded, as after a SIGKILL: no word of farewell.

        With *kernel_dies* whatever the old engine still does is not heard any more.
        """
        entries = self.entries() if entries is None else list(entries)
        lab = revive(entries, self, **{**self.settings, **settings})
        if kernel_dies:
            self.die()
        return lab

    def close(self) -> None:
        for child in self.children:
            child.close()
        self.die()

    def die(self) -> None:
        """End the engine; what it still records is in no other store."""
        self.engine.close(timeout=0.2)


def revive(entries: Iterable[Entry], old: Lab, **settings: Any) -> Lab:
    """A new engine over a store that holds these entries, those of an orderly farewell left out."""
    store = MemoryStore(old.clock)
    store.uid = old.store.uid
    for entry in entries:
        if entry.kind is Kind.RELEASED:
            continue
        stored = store._append(entry)
        assert stored.seq == entry.seq, "entries of instances are joined by seq: leave none out"
        if entry.kind is Kind.CREATED:
            store._ids[entry.body["workflow"], entry.body["id"]] = stored.seq
    store._sources = dict(old.store._sources)
    if old.store.artifacts.exists():
        shutil.copytree(old.store.artifacts, store.artifacts, dirs_exist_ok=True)
    lab = Lab(store, old.clock, **settings)
    old.children.append(lab)
    return lab


@pytest.fixture
def lab() -> Iterator[Lab]:
    laboratory = Lab()
    yield laboratory
    laboratory.close()


@pytest.fixture
def make_lab() -> Iterator[Callable[..., Lab]]:
    """For engines with settings of their own."""
    made: list[Lab] = []

    def make(**settings: Any) -> Lab:
        made.append(Lab(**settings))
        return made[-1]

    yield make
    for laboratory in made:
        laboratory.close()


def failure_of(instance: WorkflowInstance) -> BaseException:
    """The error that ended an instance."""
    with pytest.raises(Exception) as caught:
        _ = instance.output
    assert caught.value.__cause__ is not None
    return caught.value.__cause__


def kinds(instance: WorkflowInstance) -> list[str]:
    """What happened, in order: kinds of entries, with the step's name."""
    return [f"{e.kind} {e.step}" if e.step else str(e.kind) for e in instance.history()]


class Gate:
    """A body that waits in its thread until the test lets it go; says when it has come and how often."""

    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.came = 0
        self._open = threading.Event()
        self._lock = threading.Lock()

    def __call__(self) -> Any:
        with self._lock:
            self.came += 1
        assert self._open.wait(PATIENCE), "the test never opened the gate"
        return self.value

    def reached(self, times: int = 1) -> None:
        eventually(lambda: self.came >= times, f"{times} bodies reach the gate")

    def open(self) -> None:
        self._open.set()
