"""The one thread that works with the DuckDB file: loads the journal at least each second, looks for news, does what is asked.

It is joined at the end, never left: a thread inside DuckDB when the interpreter ends aborts the process.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import duckdb

from nbflow.clock import SystemClock, pause
from nbflow.core.model import Entry
from nbflow.errors import NbflowError, StoreError, StoreLockedError
from nbflow.store.database import HeldError
from nbflow.store.desk import Desk, Opening
from nbflow.store.session import Session

T = TypeVar("T")

LOAD_EVERY = 1.0
LOOK_EVERY = 0.1
CLASH = 0.05
TROUBLE = 5.0
_BACKGROUND = 0.5

_log = logging.getLogger("nbflow")


class Loader:
    """Runs sessions, one after another.

    Args:
        desk: what the sessions share.
        lock_timeout: seconds that what is asked waits for the file.
        tell: given the news of others, in order.

    Attributes:
        held_by: who keeps the file from us now, in words.
        trouble: what keeps the journal from being loaded, other than that.
        closing: whether waits for the file are given up.
        attaching: held while the file is attached, and while this process forks: DuckDB would keep it attached in the child.
    """

    def __init__(self, desk: Desk, lock_timeout: float, tell: Callable[[list[Entry]], None]) -> None:
        self.desk = desk
        self.held_by: str | None = None
        self.trouble: StoreError | None = None
        self._timeout, self._tell = lock_timeout, tell
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._asked: Future[Any] | None = None
        self._looks: list[Callable[[], None]] = []
        self._looking = threading.Lock()
        self.attaching = threading.Lock()
        self._time = SystemClock()
        self._next_load = self._time.monotonic() + LOAD_EVERY  # what an engine begins with is not in the way of its first jobs
        self.closing = self._stopping = False
        self._running: duckdb.DuckDBPyConnection | None = None
        self.thread = threading.Thread(target=self._run, name="nbflow-loader", daemon=True)
        self.thread.start()

    # -- from any thread ----------------------------------------------------------------------------------------------

    def call(self, job: Callable[[], T], *, patience: float | None = None) -> T:
        """Run *job* in the loader's thread and give what it gives; a user's query before it has *patience* seconds left."""
        if threading.current_thread() is self.thread:
            msg = "a callback of the store called the store: it must only note what happened"
            raise RuntimeError(msg)
        if self._stopping:
            msg_0 = "this engine is closed; make a new Engine"
            raise StoreError(msg_0)
        future: Future[T] = Future()

        def run() -> None:
            self._asked = future
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                meant = self._meant(error)
                if future.done():
                    _log.warning("%s", meant)
                else:
                    future.set_exception(meant)
            else:
                if not future.done():
                    future.set_result(result)

        self._jobs.put(run)
        while True:
            try:
                return future.result(timeout=1.0 if patience is None else patience)
            except TimeoutError:
                if patience is not None:
                    self.interrupt_query()
                if future.done():
                    return future.result()
                if not self.thread.is_alive():
                    msg_0 = "this engine is closed; make a new Engine"
                    raise StoreError(msg_0) from None
            except KeyboardInterrupt:
                self.interrupt_query()
                raise

    def look(self, then: Callable[[], None]) -> None:
        """Take notice of what others wrote, then call *then*; tries until it can."""
        with self._looking:
            self._looks.append(then)
        self._jobs.put(_nothing)

    def interrupt_query(self) -> None:
        """Stop a query of the user that is running."""
        running = self._running
        if running is not None:
            running.interrupt()

    def stop(self, seconds: float) -> None:
        """End the thread; what still runs in DuckDB after *seconds* is interrupted."""
        self._stopping = True
        self._jobs.put(None)
        self.thread.join(seconds)
        while self.thread.is_alive():
            self.interrupt_query()
            self.desk.database.interrupt()
            self.thread.join(0.2)

    # -- in the loader's thread ---------------------------------------------------------------------------------------

    @contextmanager
    def session(
        self, seconds: float | None = None, opening: Opening | None = None, horizon: dict[str, int] | None = None
    ) -> Iterator[Session]:
        """Hold the lease with the file attached; commits at the end, drops all where the body raises.

        Raises:
            StoreLockedError: somebody held the file all the time.
            StoreError: what else is wrong with it.
        """
        session = Session(self.desk, horizon)
        for _ in self._leases(seconds):
            try:
                session.begin(opening)
            except HeldError as held:
                session.abort()
                self.held_by = str(held)
                session = Session(self.desk, horizon)
                continue
            except BaseException as error:
                session.abort()
                self._explain(error)
                raise
            self.held_by = None
            try:
                yield session
                session.end()
            except BaseException as error:
                session.abort()
                self._explain(error)
                raise
            self.trouble = None
            break
        self._hand_on()

    def leased(self, work: Callable[[], T]) -> T:
        """Do *work* under the lease, once the file is free."""
        for _ in self._leases(None):
            try:
                return work()
            except HeldError as held:
                self.held_by = str(held)
        raise AssertionError  # the loop ends by an error or by what work gives

    def _leases(self, seconds: float | None) -> Iterator[None]:
        """Hold the lease again and again, as long as the file turns out to be held by an outsider."""
        timeout = self._timeout if seconds is None else seconds
        deadline = self._time.monotonic() + timeout
        lease = self.desk.lease

        def given_up() -> bool:
            return self.closing and seconds is None

        while True:
            if not lease.acquire(max(0.0, deadline - self._time.monotonic()), given_up):
                raise self._locked(lease.holder(), timeout)
            try:
                with self.attaching:
                    yield
            finally:
                lease.release()
            if given_up() or self._time.monotonic() >= deadline:
                raise self._locked(self.held_by or "another program", timeout)
            pause(CLASH)

    def after(
        self, load: Callable[[Session], bool], work: Callable[[Session], T], answer: Callable[[T], None] | None = None
    ) -> T:
        """Hold one session after another until *load* says that nothing is left, and do *work* in the last of them.

        Nothing is left when all is loaded that had been recorded when this began. *answer* is given what *work* gave as soon
        as what it wrote is durable: folding it into the file takes as long again.
        """
        horizon: dict[str, int] = {}
        while True:
            with self.session(horizon=horizon) as session:
                if load(session):
                    given = work(session)
                    if answer is not None:
                        session.when_committed = partial(answer, given)
                    return given

    def answer(self, given: object) -> None:
        """Give whoever waits for the present job what it will give, before its lease ends; what others wrote goes first."""
        self._hand_on()
        if self._asked is not None:
            self._asked.set_result(given)

    def query(self, connection: duckdb.DuckDBPyConnection, work: Callable[[], T]) -> T:
        """Run what a user asks, so that it can be interrupted."""
        self._running = connection
        try:
            return work()
        finally:
            self._running = None

    def _explain(self, error: BaseException) -> None:
        """Raise what an error of DuckDB or of the system means; errors of ours pass."""
        layout = self.desk.layout
        if isinstance(error, duckdb.Error):
            if isinstance(error, duckdb.FatalException):
                self.desk.database.reset()
            told = self.desk.database.translated(error)
            if isinstance(told, StoreError):
                raise told from error
            msg = f"DuckDB could not work with {str(layout.file)!r}: {told}"
            raise StoreError(msg) from error
        if (meant := self._meant(error)) is not error:
            raise meant from error

    def _meant(self, error: BaseException) -> BaseException:
        """The error of ours for what the system refuses; others as they are."""
        if not isinstance(error, OSError) or isinstance(error, NbflowError):
            return error
        meant = self.desk.layout.refused(error)
        meant.__cause__ = error
        return meant

    def _locked(self, holder: str, seconds: float) -> StoreLockedError:
        self.held_by = holder
        return StoreLockedError(
            f"{str(self.desk.layout.file)!r} is in use by {holder}, for the {seconds:.3g} s that this waited; "
            f"close it there and try again (running steps go on meanwhile)"
        )

    def _hand_on(self) -> None:
        desk = self.desk
        if not desk.foreign:
            return
        entries, desk.news, desk.foreign = desk.news, [], False
        try:
            self._tell(entries)
        except Exception:  # noqa: BLE001 - whatever it is, loading goes on
            _log.exception("what follows the news of others failed")

    def _run(self) -> None:
        try:
            while True:
                try:
                    job = self._jobs.get(timeout=max(0.0, min(LOOK_EVERY, self._wait())))
                except queue.Empty:
                    job = _nothing
                if job is None:
                    return
                job()
                if self.desk.uid and not self._stopping:
                    self._tick()
        finally:
            self.desk.database.reset()

    def _wait(self) -> float:
        if not self.desk.uid or not (self._looks or self._backlog):
            return LOOK_EVERY
        return self._next_load - self._time.monotonic()

    @property
    def trouble_of_writing(self) -> StoreError | None:
        """What keeps entries from the journal or from the file now."""
        journal = self.desk.journal
        return (journal.trouble if journal is not None else None) or self.trouble

    @property
    def _backlog(self) -> bool:
        journal = self.desk.journal
        return journal is not None and (journal.behind or journal.synced > self.desk.own)

    def _tick(self) -> None:
        """Load and look, where it is time."""
        now = self._time.monotonic()
        due = self._backlog and now >= self._next_load
        try:
            if self.desk.life is not None and not self.closing:
                self.desk.life.keep()
            moved = self.desk.counter.read() != self.desk.noticed
            if self._looks and not moved:
                self._answer()
            if not (due or moved) or (self.held_by is not None and now < self._next_load):
                return
            with self.session(_BACKGROUND) as session:
                complete = session.load_own() if due else True
        except StoreLockedError:
            self._next_load = self._time.monotonic() + CLASH
        except Exception as error:  # noqa: BLE001 - the journal has it all; it is tried again
            meant = self._meant(error)
            if str(meant) != str(self.trouble):
                _log.warning("%s", meant)
            self.trouble = meant if isinstance(meant, StoreError) else StoreError(str(meant))
            self._next_load = self._time.monotonic() + TROUBLE
            self.held_by = self.held_by or "trouble"
        else:
            self.trouble = None
            self._next_load = self._time.monotonic() + (LOAD_EVERY if complete else 0.0)
            if self._looks:
                self._answer()

    def _answer(self) -> None:
        with self._looking:
            looks, self._looks = self._looks, []
        for then in looks:
            try:
                then()
            except Exception:  # noqa: BLE001 - the next one is told all the same
                _log.exception("what follows a look at the store failed")


def _nothing() -> None:
    """Wake the thread."""
