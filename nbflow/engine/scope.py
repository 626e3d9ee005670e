"""What a body runs for: an activation of `run`, or a rollback. Counts the work and records it in the instance's name."""

import asyncio
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from nbflow.core.model import Entry, Kind, StepKey
from nbflow.engine.calls import Call
from nbflow.errors import StoreError

if TYPE_CHECKING:
    from nbflow.engine.executors.bodies import OnExecutors
    from nbflow.engine.live import LiveInstance


class Scope:
    """One stretch of work on one instance; lives on the workflow loop.

    Attributes:
        in_flight: attempts whose body runs or whose output is being encoded.
        drawing: maps whose next item is being drawn.
        unacked: entries that are recorded and not durable yet.
        stopping: nothing new starts and nothing is handed out any more (pause, terminate, lost ownership).
        over: it records nothing more, whatever its bodies still do.
        failure: the error that ends it; no further retries then (S19).
        closers: called when it is over.
        queued: bodies that wait for a thread or on an executor, in order; some have begun there by now.
        tasks: the asyncio tasks of user code that belong to it.
        secrets: errors of sensitive steps that user code was given: their text is shown nowhere.
    """

    def __init__(self, live: "LiveInstance") -> None:
        self.live, self.engine = live, live.engine
        self.in_flight = 0
        self.drawing = 0
        self.unacked = 0
        self.stopping = False
        self.over = False
        self.failure: BaseException | None = None
        self.queued: dict[OnExecutors, None] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self.secrets: list[BaseException] = []
        self.closers: list[Callable[[], None]] = []
        self._held: list[Callable[[], None]] = []

    def record(
        self,
        kind: Kind,
        key: StepKey,
        body: dict[str, Any],
        value: bytes | None = None,
        *,
        acked: Callable[[], None] | None = None,
    ) -> Entry | None:
        """Record something of a step, unless the instance has gone on without this scope meanwhile (S43, S44, S52)."""
        with self.live.lock:
            if self.live.activation is not self:
                return None
            try:
                return self.live.record(kind, key, body, value, acked=acked)
            except StoreError as error:
                self.engine.broke(error)
                return None

    def acked(self) -> None:
        """An entry that hands nothing out is durable."""
        self.unacked -= 1
        self.on_quiet()

    def stop(self) -> None:
        """Start nothing more and hand nothing out; bodies in flight go on."""
        self.stopping = True

    def withdraw(self, bodies: "Container[OnExecutors] | None" = None) -> None:
        """Nothing new starts, or nothing of some *bodies*: have what is queued leave its queue."""
        for body in [body for body in self.queued if bodies is None or body in bodies]:
            self.queued.pop(body, None)
            body.withdraw()

    def hold(self, act: Callable[[], None]) -> None:
        """Keep what falls due during a stop, should the stop be taken back (S41)."""
        self._held.append(act)

    def take_stop_back(self) -> None:
        """Go on where it stopped."""
        self.stopping = False
        held, self._held = self._held, []
        for act in held:
            act()
        self.on_quiet()

    @property
    def idle(self) -> bool:
        """Nothing of it runs: whatever it still wants must come from outside (S5)."""
        raise NotImplementedError

    def on_quiet(self) -> None:
        """Something of it has ended: see what is next."""
        raise NotImplementedError

    def take_turn(self) -> None:
        """See at once what is next, where nothing of it runs."""
        self.on_quiet()

    def ended(self, kind: Kind, call: Call, body: dict[str, Any], value: bytes | None = None) -> None:
        """Record the end of a step."""
        raise NotImplementedError

    def abandon(self) -> None:
        """End it at once: nothing of it is recorded any more."""
        raise NotImplementedError

    def drop_tasks(self) -> None:
        """Cancel what user code still has."""
        self.stopping = self.over = True
