"""Many instances as one table that follows them, in place of a panel (API.md §6).

It is rewritten as the twin of a panel is, after a change and at most each 5 s. Nobody tells whether a page shows it, and
Jupyter Server keeps what no page takes: after ten minutes a minute passes between two of them (PANEL.md 1). What a change
costs does not grow with their number: where each stands is noted when it changes, and only the rows that are shown are read.
"""

import atexit
import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from nbflow.clock import Clock, SystemClock
from nbflow.core.head import Head
from nbflow.core.model import FINISHED, Owner, Status
from nbflow.engine.instances import Instances
from nbflow.errors import NbflowError, NotFoundError
from nbflow.ids import new_uid
from nbflow.jupyter import fallback
from nbflow.jupyter.display import REWRITE, Publisher
from nbflow.jupyter.pace import GONE, GONE_HEAD
from nbflow.store.views import InstanceView

if TYPE_CHECKING:
    from nbflow.engine.instance import WorkflowInstance

ROWS = 100
INTERRUPTED = "interrupted"
_TABLES = 20
_FEW = 50
_SOON = 1.0
_FIRST = ("errored", INTERRUPTED, "waiting", "paused", "waitingForPause", "rollingBack", "running", "queued", "terminated")
_RANK = {standing: rank for rank, standing in enumerate(_FIRST)}
_OVER = frozenset(status.value for status in FINISHED)

_tables: deque["Table"] = deque()
_changing = threading.Lock()


class Standings:
    """Where each of many instances stands, kept by what is told of them.

    Args:
        ended: how those ended that are known to be over.

    Attributes:
        of: by `created_seq`, in order: a status, or "interrupted".
    """

    def __init__(self, instances: Sequence["WorkflowInstance"], ended: Mapping[int, Status] | None = None) -> None:
        self._instances = {one.created_seq: one for one in instances}
        known = {seq: status.value for seq, status in (ended or {}).items() if seq in self._instances}
        self.of: dict[int, str] = dict.fromkeys(self._instances, Status.QUEUED.value) | known
        self._owners: dict[int, Owner] = {}
        self._changed, self._ended = self._instances.keys() - known.keys(), set(known)
        self._views: dict[int, InstanceView] = {}
        self._lock = threading.Lock()

    def note(self, created_seq: int) -> bool:
        """Note that this one has changed, 0 where it may be any that is not over; gives whether it is one of these.

        One that ends here is known by that at once: soon it may be in the file alone.
        """
        one = self._instances.get(created_seq)
        if one is None and created_seq:
            return False
        live = None if one is None else one.engine.live.get(created_seq)
        status = None if live is None else live.status()
        with self._lock:
            if one is None:
                self._changed |= {seq for seq, standing in self.of.items() if standing not in _OVER}
            elif created_seq in self.of:
                self._changed.add(created_seq)
                if status in FINISHED:
                    self.of[created_seq] = status.value
                    self._ended.add(created_seq)
                else:
                    self._ended.discard(created_seq)
        return True

    @property
    def neighbours(self) -> frozenset[Owner]:
        """The other engines that run some of them."""
        return frozenset(self._owners.values())

    def over(self) -> bool:
        """Whether all that is known to have changed leaves nothing to come."""
        with self._lock:
            return all(standing in _OVER for standing in self.of.values())

    def read(self) -> list[InstanceView]:
        """Find out where those stand that have changed, and give the ones to be shown, in order."""
        with self._lock:
            changed, self._changed = self._changed, set()
            known = {seq: self.of[seq] for seq in changed & self._ended}
        stand = known | self._found(changed - known.keys())
        with self._lock:
            for seq in changed:
                if seq in stand:
                    self.of[seq] = stand[seq]
                else:
                    self.of.pop(seq, None)
            places = list(self.of)
            if len(places) > ROWS:
                chosen = frozenset(sorted(places, key=lambda seq: _RANK.get(self.of[seq], len(_RANK)))[:ROWS])
                places = [seq for seq in places if seq in chosen]
        kept = {seq: view for seq, view in self._views.items() if seq not in changed}
        self._views = {seq: view for seq in places if (view := kept.get(seq) or self._view(seq)) is not None}
        return list(self._views.values())

    def _found(self, seqs: set[int]) -> dict[int, str]:
        """Where these stand; deleted ones are left out. Many that do not run here are read as one."""
        stand: dict[int, str] = {}
        lives = {seq: live for seq in seqs if (live := self._instances[seq].engine.live.get(seq)) is not None}
        for seq, live in lives.items():
            self._owners.pop(seq, None)
            stand[seq] = live.status().value if live.history.head.interrupted is None else INTERRUPTED
        for head in self._heads(seqs - lives.keys()):
            if head.finished:
                self._owners.pop(head.created_seq, None)
            stand[head.created_seq] = head.status.value if head.finished else self._of_others(head)
        return stand

    def _heads(self, seqs: set[int]) -> Iterable[Head]:
        if not seqs:
            return []
        some = self._instances[next(iter(seqs))]
        store = some.engine.store
        if len(seqs) <= _FEW:
            return [head for seq in seqs if (head := store.head(seq)) is not None]
        return [head for head in store.heads(some.workflow_name, limit=None) if head.created_seq in seqs]

    def _of_others(self, head: Head) -> str:
        """Where one stands that is not over and does not run here."""
        view = None if (one := self._instances.get(head.created_seq)) is None else self._view_of(one)
        if view is None or not view.neighbours:
            self._owners.pop(head.created_seq, None)
        else:  # put in place of the former one: it is looked at meanwhile
            self._owners[head.created_seq] = view.neighbours[0]
        if view is None:
            return head.status.value
        return INTERRUPTED if view.why_interrupted else view.status.value

    def _view(self, seq: int) -> InstanceView | None:
        return self._view_of(self._instances[seq])

    def _view_of(self, one: "WorkflowInstance") -> InstanceView | None:
        try:
            return one.view()
        except NotFoundError:  # deleted at this moment
            return None


class Table:
    """The table of a cell with `--each`.

    Args:
        instances: its rows, in order.
        stable: leave times out.
        ended: how those ended that are known to be over.
    """

    def __init__(
        self,
        instances: Instances,
        *,
        stable: bool,
        ended: Mapping[int, Status] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._engine = instances[0].engine if instances else None
        self._standings = Standings(instances, ended)
        self._stable, self._clock = stable, clock or SystemClock()
        self._publisher, self._display_id = Publisher(), new_uid()
        self._wake, self._ended, self._lock = threading.Event(), threading.Event(), threading.RLock()
        self._written: dict[str, str] = {}
        self._begun = self._clock.monotonic()
        self._at = self._begun + _SOON - REWRITE  # what starts at once is told soon

    def show(self) -> None:
        """Write it, and keep it true from now on."""
        self._written = self._bundle()
        self._publisher.publish(self._written, self._display_id)
        if self._engine is None:
            return
        self._unsubscribe = self._engine.feed.subscribe(self._changed)
        self._changed(0)  # what has happened since they were read
        threading.Thread(target=self._run, name="nbflow-table", daemon=True).start()
        with _changing:
            if not _tables:
                atexit.register(close_all)
            _tables.append(self)
            first = _tables.popleft() if len(_tables) > _TABLES else None
        if first is not None:
            first.close()

    def rewrite(self) -> None:
        """Write it again at once, if it is not as it was."""
        with self._lock:
            self._at = self._clock.monotonic()
            bundle = self._bundle()
            if bundle != self._written:
                self._written = bundle
                self._publisher.publish(bundle, self._display_id, update=True)

    def close(self) -> None:
        """Write it a last time."""
        if self._ended.is_set() or self._engine is None:
            return
        self._ended.set()
        self._unsubscribe()
        self._engine.watch.show(self, ())
        self._wake.set()
        self._try()

    def _changed(self, created_seq: int) -> None:
        if self._standings.note(created_seq):
            self._wake.set()

    def _bundle(self) -> dict[str, str]:
        with self._lock:
            views = self._standings.read()
            counts = Counter(self._standings.of.values())
            if self._engine is not None and not self._ended.is_set():
                self._engine.watch.show(self, self._standings.neighbours)
            return fallback.table_bundle(views, counts, stable=self._stable)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wake.wait()
            while (left := self._left()) > 0 and not self._ended.wait(min(left, _SOON)):
                pass
            self._wake.clear()
            if not self._ended.is_set():
                self._try()

    def _left(self) -> float:
        """Seconds until it may be written again; where all are over it is written soon, for the last time."""
        now = self._clock.monotonic()
        every = REWRITE if now - self._begun < GONE else GONE_HEAD
        return self._at + (_SOON if self._standings.over() else every) - now

    def _try(self) -> None:
        try:
            self.rewrite()
        except (NbflowError, OSError):  # the file is held, or a socket closed: the next change tells it
            pass


def close_all() -> None:
    """Write every table a last time; nothing follows after that."""
    with _changing:
        tables = list(_tables)
        _tables.clear()
    for table in tables:
        table.close()
