"""A Dask cluster for bodies (`dask_executor`).

What Dask does by default and why it is not used here was measured: equal calls give one result (`pure`), a worker's death
runs a body up to four times unseen, what a worker cannot unpickle leaves it wedged. So each attempt has a key of its own,
`pure=False` and `retries=0`, travels as bytes, is begun by looking up `eval`, and asks first whether it has begun before.
Calls that wait for the cluster are made in threads, and each has a limit.
"""

import importlib.util
import logging
import threading
import warnings
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from nbflow import ids
from nbflow.clock import SystemClock, pause
from nbflow.engine.executors.attempt import RemoteAttempt
from nbflow.engine.executors.desk import Desk
from nbflow.engine.executors.refusals import without_nbflow
from nbflow.engine.executors.remote import CALL, differences, versions
from nbflow.errors import UsageError, article
from nbflow.values.nodes import type_name

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine

log = logging.getLogger("nbflow")

LIMIT = 5.0  # seconds for one answer of the scheduler or a worker
FAST = 1 << 16  # bytes of a reply that are read on the client's loop; larger ones in a thread
RETURN = 60.0  # seconds that a scheduler has to come back
LOOK_EVERY = 1.0  # seconds between two looks at the cluster while attempts wait


class DaskCluster:
    """What `dask_executor` gives: a client, or the address to make one for.

    Attributes:
        n: threads of its workers, when they were last counted: how many bodies run at once.
    """

    def __init__(self, client: Any, *, results: str | None = None) -> None:
        if isinstance(client, str):
            self.client, self.address = None, client
        else:
            if type(client).__module__.partition(".")[0] != "distributed" or not hasattr(client, "scheduler"):
                what = article(type_name(type(client)))
                msg = f"dask_executor() got {what}: give a distributed.Client, or a scheduler's address"
                raise UsageError(msg)
            if client.asynchronous:
                raise UsageError("dask_executor() got an asynchronous client: give Client(…) without asynchronous=True")
            self.client, self.address = client, client.scheduler.address
        self.results = results
        self.n = 0 if self.client is None else _threads(self.client)

    def face(self, name: str, _engine: "Engine") -> "DaskWorkers":
        """As an engine knows it."""
        return DaskWorkers(self, name)

    def __repr__(self) -> str:
        return f"dask_executor({self.address!r})"


def _threads(client: Any) -> int:
    try:
        return sum(client.sync(client.scheduler.ncores, callback_timeout=LIMIT).values())
    except Exception as error:  # noqa: BLE001 - one that does not answer now may do so later
        log.debug("the cluster at %s does not say its size: %s", client.scheduler.address, error)
        return 0


class _Unreachable(Exception):  # noqa: N818 - turned into a loss
    """The scheduler does not answer."""


class DaskWorkers:
    """A cluster as one engine uses it."""

    def __init__(self, given: DaskCluster, name: str) -> None:
        self.name, self.url = name, given.results
        self.blind = self.isolates = self.retired = False
        self._given = given
        self._client: Any = given.client
        self._address = given.address
        self._made: Any = None  # a client of ours, in place of one that was lost
        self._comm: Any = None  # what the topic is heard by: a client that connects again forgets what it had subscribed to
        self._topic = f"nbflow-{ids.new_uid()}"
        self._desk, self._look_desk, self._reply_desk = (Desk(f"nbflow-{name}{of}") for of in ("", "-look", "-reply"))
        self._lock = threading.RLock()
        self._flying: dict[str, RemoteAttempt] = {}
        self._futures: dict[str, Any] = {}
        self._checked: set[str] = set()
        self._looking = self._closed = self._waits = False
        self._in_doubt = True

    @property
    def wire(self) -> tuple[str, str]:
        """Workers publish what their bodies say under a topic of ours."""
        return "dask", self._topic

    # -- what the engine asks -------------------------------------------------------------------------------------------

    def submit(self, attempt: RemoteAttempt) -> None:
        """Pickle and send it, in a thread of ours."""
        self._desk.put(partial(self._submit, attempt, SystemClock().monotonic() + RETURN))

    def withdraw(self, attempt: RemoteAttempt) -> bool:
        """See `Place`: of what the cluster has, nobody can tell in time whether it has begun."""
        with self._lock:
            if attempt.key in self._flying or attempt.begun_at is not None:  # the latter of one that has just ended
                return False
            attempt.wanted = False
            return True

    def leave(self, attempt: RemoteAttempt) -> str:
        """Tell the cluster that nobody wants it any more: one that runs there goes on, nothing stops it."""
        with self._lock:
            self._flying.pop(attempt.key, None)
            future = self._futures.pop(attempt.key, None)
        if future is None:
            return "taken out of its queue"
        self._forget(future)
        return f"abandoned, still running on {self.name!r}" if attempt.begun_at is not None else "taken out of its queue"

    def retire(self) -> None:
        """Close a client that we made; the user's own stays open."""
        for desk in (self._desk, self._look_desk):
            desk.close()
        if self._made is not None:
            self._reply_desk.put(self._end)
        self._reply_desk.close()

    def _end(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made.close(timeout=1)

    def close(self) -> None:
        """Let go of what it still does for us, and close a client that we made; the user's own stays open."""
        self._closed = True
        with self._lock:
            futures, self._futures = list(self._futures.values()), {}
            self._flying.clear()
        for future in futures:
            self._forget(future)
        self.retire()
        self._end()

    # -- sending --------------------------------------------------------------------------------------------------------

    def _submit(self, attempt: RemoteAttempt, until: float) -> None:
        if not attempt.wanted or self._closed:
            return
        try:
            request = attempt.pack()
            client = self._ready(attempt, until)
            with self._lock:
                if not attempt.wanted:
                    return
                self._flying[attempt.key] = attempt
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sending large graph")  # arguments are the user's to choose
                future = client.submit(eval, CALL, {"request": request}, key=attempt.key, pure=False, retries=0)
        except _Unreachable as error:
            attempt.unreachable(str(error))  # it was waited for: more attempts would not help
            return
        except BaseException as error:  # noqa: BLE001 - whatever the user's objects raise when they are pickled
            attempt.refused(error)
            return
        with self._lock:
            self._futures[attempt.key] = future
        client.loop.add_callback(self._follow, attempt, future)
        if not attempt.wanted:  # left while it was sent
            self.leave(attempt)
        self._look_soon()

    def _ready(self, attempt: RemoteAttempt, until: float) -> Any:
        """A client whose scheduler answers and whose workers fit.

        Raises:
            _Unreachable: the scheduler has not answered *until* then, or the attempt is not wanted any more.
            UsageError: a worker has no nbflow, or other versions.
        """
        client = self._client
        if self._in_doubt or client is None or client.status != "running" or client.scheduler_comm is not self._comm:
            client = self._found_again(attempt, until)
            self._comm = client.scheduler_comm
            client.subscribe_topic(self._topic, self._heard)
            self._checked.clear()
            self._check_workers(client)
            self._in_doubt = False
        return client

    def _found_again(self, attempt: RemoteAttempt, until: float) -> Any:
        """Wait for the scheduler: a client of the user's connects again by itself, in the place of a closed one comes ours."""
        monotonic = SystemClock().monotonic
        why = ""
        while attempt.wanted and not self._closed:
            client = self._client
            if client is not None and client.status == "running" and self._ask(client.scheduler.ncores, None) is not None:
                return client
            if client is None or client.status == "closed":
                try:
                    self._renew()
                    continue
                except Exception as error:  # noqa: BLE001 - no route, no answer, a scheduler that is half up
                    why = f" ({type_name(type(error))})"
            if monotonic() > until:
                break
            pause(0.2)
        msg = (
            f"the scheduler at {self._address} does not answer{why}: start it again there, or give another cluster, "
            f"engine.executors[{self.name!r}] = nbflow.dask_executor(client), and resume the instance"
        )
        raise _Unreachable(msg)

    def _renew(self) -> None:
        """Make a client in the place of one that has lost its scheduler."""
        from distributed import Client

        security = getattr(self._client, "security", None)
        made = Client(self._address, timeout=LIMIT, set_as_default=False, security=security)
        if self._made is not None:
            self._made.close(timeout=1)
        self._client = self._made = made

    def _check_workers(self, client: Any) -> None:
        """Hold the workers' versions against ours before anything is sent: an error now, where later it would be a riddle.

        Raises:
            UsageError: a worker has no nbflow, or other versions.
        """
        workers = self._ask(client.scheduler.ncores, {})
        self._given.n = sum(workers.values())
        addresses = [address for address in workers if address not in self._checked]
        ours = versions()
        for address in addresses:
            found = self._ask(client._run, {}, importlib.util.find_spec, "nbflow", workers=[address])  # noqa: SLF001
            if address in found and found[address] is None:
                raise without_nbflow(self.name, ImportError(f"worker {address} has none"))
            theirs = self._ask(client._run, {}, versions, workers=[address]).get(address)  # noqa: SLF001
            if theirs is None:
                log.warning("worker %s of executor %r does not answer; the others are used", address, self.name)
                continue
            if differ := differences(theirs, ours):
                msg = f"worker {address} of executor {self.name!r} has {differ}: install the same versions on both sides"
                raise UsageError(msg)
            self._checked.add(address)

    def _ask(self, question: Any, default: Any, *args: Any, **keywords: Any) -> Any:
        """Ask the cluster something; *default* where it does not answer in time."""
        client = self._client
        try:
            return client.sync(question, *args, callback_timeout=LIMIT, **keywords)
        except Exception as error:  # noqa: BLE001 - a cluster that is going down answers in many ways
            log.debug("executor %r: %s", self.name, error)
            return default

    def _forget(self, future: Any) -> None:
        client = self._client
        try:
            client.loop.add_callback(client._cancel, [future])  # noqa: SLF001 - the public one waits for the scheduler
        except Exception as error:  # noqa: BLE001 - a client that is closed holds nothing any more
            log.debug("executor %r: %s", self.name, error)

    # -- hearing --------------------------------------------------------------------------------------------------------

    def _heard(self, event: tuple[float, Any]) -> None:
        message = event[1]
        attempt = self._flying.get(message.get("key", "")) if isinstance(message, dict) else None
        if attempt is not None:
            attempt.told(message)

    async def _follow(self, attempt: RemoteAttempt, future: Any) -> None:
        """Wait for one attempt on the client's loop; results come over side by side."""
        try:
            result = await future._result(raiseit=False)  # noqa: SLF001 - as Dask's own executor does
            status = future.status
        except BaseException as error:  # noqa: BLE001 - the scheduler was lost while the result came over
            result, status = error, "lost"
        with self._lock:
            if status == "finished":
                attempt.begun()
            mine = self._futures.pop(attempt.key, None) is future
            self._flying.pop(attempt.key, None)
        if not mine or not attempt.wanted:
            return
        if type(result) is tuple:  # type, error, traceback
            result = result[1]
        if status == "finished" and len(result) > FAST:
            self._reply_desk.put(partial(attempt.replied, result))
        elif status == "finished":
            attempt.replied(result)
        elif status == "error":
            self._failed(attempt, result)
        else:
            self._in_doubt = True
            why = f"the cluster at {self._address} has let go of it: its scheduler or the client was lost"
            attempt.lost(why, begun=attempt.begun_at is not None)

    def _failed(self, attempt: RemoteAttempt, error: BaseException) -> None:
        name = type_name(type(error)).rpartition(".")[2]
        if name == "KilledWorker":
            times = getattr(error, "allowed_failures", 0) + 1
            tried = "" if times == 1 else f", after {times} tries of the cluster"
            attempt.lost(f"its worker {error.args[1].address} died{tried}")
        elif isinstance(error, ImportError):
            attempt.refused(without_nbflow(self.name, error))
        else:
            attempt.lost(f"{name}: {error}")

    # -- looking --------------------------------------------------------------------------------------------------------

    def _look_soon(self) -> None:
        with self._lock:
            if self._looking or self._closed:
                return
            self._looking = True
        self._look_desk.put(self._look)

    def _look(self) -> None:
        """Look at the cluster while attempts are out: are there any workers, is the client there at all."""
        while not self._closed:
            pause(LOOK_EVERY)
            with self._lock:
                flying = dict(self._flying)
                self._looking = bool(flying)
            if not flying:
                return
            client = self._client
            if client is None or client.status == "closed":
                self._all_lost(flying, f"the client of the cluster at {self._address} was closed")
                continue
            waiting = {key: attempt for key, attempt in flying.items() if attempt.begun_at is None}
            alive = client.status == "running" or not self.retired  # a scheduler may come back, where nobody has replaced it
            asked = alive and (waiting or self.retired)
            workers = self._ask(client.scheduler.ncores, None) if asked else None
            if self.retired and not workers:
                self._all_lost(flying, f"the cluster at {self._address} has no worker, or does not answer, and was replaced")
                continue
            if workers is not None:
                self._say_waiting(waiting.values(), has_workers=bool(workers))

    def _all_lost(self, flying: dict[str, RemoteAttempt], why: str) -> None:
        with self._lock:
            gone = [self._flying.pop(key, None) for key in flying]
            futures = [self._futures.pop(key, None) for key in flying]
        for attempt, future in zip(gone, futures, strict=True):
            if future is not None:
                self._forget(future)
            if attempt is not None:
                attempt.lost(why, begun=attempt.begun_at is not None)

    def _say_waiting(self, attempts: Collection[RemoteAttempt], *, has_workers: bool) -> None:
        if has_workers != self._waits:
            return
        self._waits = not has_workers
        if has_workers:
            text = f"executor {self.name!r}: workers have come"
        else:
            text = f"executor {self.name!r}: {len(attempts)} bodies wait for workers; the cluster at {self._address} has none"
        for attempt in attempts:
            attempt.note(text)
        log.warning("%s", text)
