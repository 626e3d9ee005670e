"""Executors by name, and the faces under which the engine knows them (API.md §7)."""

import concurrent.futures
import itertools
import threading
from collections.abc import Iterator, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any

from nbflow.core import names
from nbflow.engine.executors.attempt import Place, RemoteAttempt
from nbflow.engine.executors.bodies import HERE
from nbflow.engine.executors.line import Line
from nbflow.engine.executors.pools import PoolOf, ThreadsOf
from nbflow.engine.executors.processes import Processes
from nbflow.errors import UsageError, listed
from nbflow.values import staging
from nbflow.values.nodes import type_name

if TYPE_CHECKING:
    from nbflow.engine.bodies import Body
    from nbflow.engine.engine import Engine
    from nbflow.engine.executors.dask import DaskCluster


def process_executor(n: int | None = None) -> Processes:
    """Give local processes for bodies: started when they are first needed, each with a Python of its own.

    A body that times out or whose instance is terminated is stopped: its process is killed, and no other with it.

    Args:
        n: how many at once; the number of cores by default.
    """
    return Processes(n)


def dask_executor(client: Any, *, results: str | None = None) -> "DaskCluster":
    """Give a Dask cluster for bodies.

    Args:
        client: a `distributed.Client`, or the scheduler's address.
        results: where workers put results over 1 MiB when they do not see the store's folder, such as
            `"s3://bucket/results"`: any URL that fsspec writes; the engine fetches them from there. Without it they come
            through the cluster's own connections.
    """
    from nbflow.engine.executors.dask import DaskCluster

    return DaskCluster(client, results=results)


class Executors(MutableMapping[str, Any]):
    """`engine.executors`: what `on=` may name. "processes" is there from the start."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._given: dict[str, Any] = {}
        self._lines: dict[str, Line] = {}
        self._former: list[Line] = []  # whose names others have now, while something of theirs is out
        self._root: tuple[str, str] | None = None
        self._attempts = itertools.count(1)
        self._lock = threading.RLock()

    def launch(self, body: "Body", name: str) -> RemoteAttempt:
        """Start an attempt on the executor of that name; on the loop."""
        attempt = RemoteAttempt(body, self._line(name), f"{self._engine.store.engine_id}-{next(self._attempts)}")
        attempt.launch()
        return attempt

    def root(self) -> tuple[str, str]:
        """Where the artefacts are, and the mark by which workers know the place; no mark while the disk refuses it."""
        if self._root is None:
            folder = self._engine.store.artifacts
            try:
                mark = staging.mark(folder)
            except OSError:  # to a worker the place is one that it does not see: what it needs and gives travels
                return str(folder.resolve()), ""
            self._root = str(folder.resolve()), mark
        return self._root

    def place(self, name: str) -> Place:
        """The executor of that name as the engine knows it; UsageError lists the known ones."""
        return self._line(name).place

    def _line(self, name: str) -> Line:
        with self._lock:
            if (line := self._lines.get(name)) is None:
                line = self._lines[name] = Line(_face(self[name], name, self._engine))
            return line

    def check(self, name: str | None, what: str, step: object) -> None:
        """Refuse an `on=`, or a default executor, that names nothing."""
        asked = self._engine.default_executor if name is None else name
        if asked is None or asked in HERE or (isinstance(asked, str) and asked in self):
            return
        given = f"Engine(default_executor={asked!r})" if name is None else f"on={name!r}"
        known = listed([*HERE, *self])
        msg = f"{what} {step!r}: {given} names no executor; known are {known}; add one: engine.executors[{asked!r}] = …"
        raise UsageError(msg)

    def __getitem__(self, name: str) -> Any:
        with self._lock:
            if name == "processes" and name not in self._given:
                self._given[name] = process_executor()
            if name not in self._given:
                msg = f"there is no executor {name!r}; known are {listed([*HERE, *self])}"
                raise UsageError(msg)
            return self._given[name]

    def __setitem__(self, name: str, executor: Any) -> None:
        if not isinstance(name, str) or name in HERE:
            msg = f"{name!r} cannot name an executor: give text other than {listed(HERE)}"
            raise UsageError(msg)
        names.step_name(name)
        _check(name, executor)
        with self._lock:
            self._given[name] = executor
            self._retire(name, replaced=True)

    def __delitem__(self, name: str) -> None:
        with self._lock:
            if name not in self._given:
                raise KeyError(name)
            del self._given[name]
            self._retire(name, replaced=False)

    def _retire(self, name: str, *, replaced: bool) -> None:
        if (old := self._lines.pop(name, None)) is not None:
            self._former = [line for line in self._former if line.busy] + [old]
            self._engine.thread.post(partial(old.end, replaced=replaced))

    def __contains__(self, name: object) -> bool:
        return name == "processes" or name in self._given

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({"processes", *self._given}))

    def __len__(self) -> int:
        return len({"processes", *self._given})

    def close(self) -> None:
        """End what runs for us, wherever that can be done."""
        with self._lock:
            lines = [*self._lines.values(), *self._former]
        for line in lines:
            line.place.close()


def _check(name: str, executor: Any) -> None:
    from nbflow.engine.executors.dask import DaskCluster

    if isinstance(executor, concurrent.futures.Executor | Processes | DaskCluster):
        return
    what = type_name(type(executor))
    advice = "give a concurrent.futures.Executor, nbflow.process_executor(n) or nbflow.dask_executor(client)"
    if type(executor).__module__.partition(".")[0] == "distributed":
        advice = f"wrap it: engine.executors[{name!r}] = nbflow.dask_executor(client)"
    elif isinstance(executor, type):
        what, advice = f"the class {executor.__name__}", "make one of it"
    msg = f"executor {name!r} is {what}, which is no executor: {advice}"
    raise UsageError(msg)


def _face(executor: Any, name: str, engine: "Engine") -> Place:
    if not isinstance(executor, concurrent.futures.Executor):
        face: Place = executor.face(name, engine)
        return face
    if isinstance(executor, concurrent.futures.ThreadPoolExecutor) and type(executor).__name__ != "InterpreterPoolExecutor":
        return ThreadsOf(executor, name)
    return PoolOf(executor, name)
