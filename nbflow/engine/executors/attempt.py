"""One attempt of a body on an executor, as the engine sees it: what goes over, what comes back, what is lost on the way.

A lost worker, pool or scheduler is no failure of the step: the attempt is recorded as interrupted, and the next begins
within a budget of its own, beside the step's retries (API.md §7).
"""

import contextvars
import logging
import pickle
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from nbflow.core.durations import text
from nbflow.engine.context import bind, context_of
from nbflow.engine.executors.line import Line
from nbflow.engine.executors.packing import pack
from nbflow.engine.executors.remote import Reply, Request, result, versions
from nbflow.engine.executors.report import this_process
from nbflow.engine.outputs import Delivered, with_values
from nbflow.engine.threads import call_in
from nbflow.engine.timers import Timer
from nbflow.errors import StepInterruptedError, StepTimeoutError, UsageError
from nbflow.values import elsewhere, staging

if TYPE_CHECKING:
    from nbflow.engine.bodies import Body

log = logging.getLogger("nbflow")

DELAYS = (0.0, 1.0, 3.0)  # seconds before the next attempt after a loss: a scheduler needs time to come back


class Place(Protocol):
    """Where bodies run that do not run here: an executor behind one face. Called on the loop, never blocks.

    Attributes:
        name: as `on=` has it.
        blind: its workers do not see the store's files: arguments go as values.
        isolates: what dies there takes no other body along.
        url: where workers write large results, None for the artefact folder.
        retired: it has its name no more: what it has been given is not waited for where the place is dead.
        wire: how output comes back while a body runs; see `Request`.
    """

    name: str
    blind: bool
    isolates: bool
    retired: bool
    url: str | None

    @property
    def wire(self) -> tuple[str, str] | None:
        """See the class."""
        ...

    def submit(self, attempt: "RemoteAttempt") -> None:
        """Take an attempt; its outcome is told to it, from any thread."""
        ...

    def withdraw(self, attempt: "RemoteAttempt") -> bool:
        """Take an attempt out of the queue, for good; False where its body has begun, or may have."""
        ...

    def leave(self, attempt: "RemoteAttempt") -> str:
        """Stop caring about an attempt; gives what has become of its body, for the record."""
        ...

    def retire(self) -> None:
        """It has its name no more, and has done all that it was given."""
        ...

    def close(self) -> None:
        """End what it has started itself."""
        ...


class RemoteAttempt:
    """Lives on the loop, except for what its executor calls: `pack`, `begun`, `told`, `replied`, `lost`,
    `unreachable`, `refused`.

    Attributes:
        key: names the attempt on both sides; no other has ever had it.
        wanted: somebody waits for its outcome.
        alone: the executor has been given nothing else of this engine meanwhile.
        begun_at: when its body began, by the engine's monotonic clock; None while it is queued.
    """

    def __init__(self, body: "Body", line: Line, uid: str) -> None:
        self.body, self.place, self.engine = body, line.place, body.engine
        self._line = line
        self.attempt = body.attempt
        self.key = f"{_plain(body.key.name)}-{uid}"
        self.wanted = self.alone = True
        self.begun_at: float | None = None
        self._run = ""
        self._blind = self.place.blind
        self._context = context_of(body)
        self._timer: Timer | None = None

    def launch(self) -> None:
        """Give it to its executor."""
        self._line.add(self)
        self._arm(self._limit)

    # -- the executor's threads -----------------------------------------------------------------------------------------

    def pack(self) -> bytes:
        """The request, as bytes; UsageError names what cannot go."""
        body = self.body
        fn, args = with_values(body.fn, body.args) if self._blind else (body.fn, body.args)
        code, arguments = pack(fn, args, str(body.key))
        files = body.live.files
        root, mark = self.engine.executors.root()
        context = {name: value for name, value in self._context.items() if name != "step" and not name.startswith("_")}
        context |= {"name": body.key.name, "count": body.key.count}
        request = Request(
            versions(),
            self.key,
            code,
            arguments,
            context,
            (root, files.relative, mark, self.place.url),
            self.place.wire,
            body.seals,
            this_process(),
        )
        return pickle.dumps(request, protocol=5)

    def begun(self) -> None:
        """Its body runs now."""
        if self.begun_at is None:
            self.begun_at = self.engine.clock.monotonic()

    def told(self, message: dict[str, Any]) -> None:
        """A message of a body that runs: that it has begun, what it printed."""
        run, ago = message["run"], float(message["ago"])
        if self.begun_at is None or run != self._run:
            self.begun_at = self.engine.clock.monotonic() - ago
            self._run = run
        if message["items"]:
            self._post(self._show, [tuple(item) for item in message["items"]])

    def note(self, text: str) -> None:
        """Put a line of our own into the step's log."""
        self._post(self._show, [("note", text)])

    def replied(self, data: bytes) -> None:
        """The worker's reply has come."""
        try:
            reply: Reply = pickle.loads(data)  # noqa: S301 - from a worker that the user chose
        except BaseException as error:  # noqa: BLE001 - half a reply is a loss like any other
            self.lost(f"its reply cannot be read: {error}")
            return
        if not self.wanted:
            self._drop(reply)
        elif reply.kind == "blind":
            self.place.blind = True
            self._post(self._anew)
        elif reply.kind == "again":
            self.lost(f"its worker {reply.text} died", alone=reply.alone)
        elif reply.kind == "unfit":
            msg = (
                f"a worker of executor {self.place.name!r} has {reply.text}: bodies travel as bytecode, so install the same "
                "versions on both sides"
            )
            self.refused(UsageError(msg))
        else:
            self._post(self._ended, _outcome(reply), reply)

    def lost(self, why: str, *, begun: bool = True, alone: bool = False) -> None:
        """What it ran on is gone; *alone*: nothing else ran on that, as the place knows."""
        self._post(self._lost, why, begun, alone)

    def unreachable(self, why: str) -> None:
        """Its place was waited for, and does not come back."""
        self._post(self._unreachable, why)

    def refused(self, error: BaseException) -> None:
        """It cannot run there."""
        self._post(self._refused, error)

    def run_here(self) -> None:
        """Run the body in the calling thread, for executors whose workers are threads of this process."""
        self.begun()
        body = self.body

        def run() -> Any:
            return result(bind(*with_values(body.fn, body.args), lambda: self._context))

        outcome = call_in(body.context.copy(), run)
        self._post(self._ended, outcome, None)

    def _post(self, act: Any, *args: Any) -> None:
        # Not as arguments: asyncio formats those, and user objects may raise when looked at.
        self.engine.thread.post(lambda: act(*args))

    # -- the loop -------------------------------------------------------------------------------------------------------

    @property
    def _limit(self) -> float:
        return self.body.config.timeout.total_seconds()

    def _arm(self, seconds: float) -> None:
        self._timer = self.engine.timers.after(seconds, self._look)

    def _look(self) -> None:
        """Time has passed: it counts from the moment when the body began, and does not count in a queue."""
        if not self.wanted:
            return
        left = self._limit if self.begun_at is None else self.begun_at + self._limit - self.engine.clock.monotonic()
        if left > 0:
            self._arm(left)
            return
        what = self.leave()
        msg = f"attempt {self.attempt} took longer than {text(self.body.config.timeout)}; {what}"
        self.body.arrived(self.attempt, (False, StepTimeoutError(msg)))

    def withdraw(self) -> bool:
        """Take it out of its queue; False where its body has begun, or may have."""
        if not self._line.waits(self) and (self.begun_at is not None or not self.place.withdraw(self)):
            return False
        self._settle()
        return True

    def move(self) -> None:
        """Another executor has the name: go there, where the body has not begun here."""
        if self.withdraw():
            self.body.launch_away()

    def _anew(self) -> None:
        """Go over once more, under another key: the body has not begun."""
        if self.wanted:
            self._settle()
            self.body.launch_away()

    def leave(self) -> str:
        """Stop caring; gives what has become of the body."""
        waits = self._line.waits(self)
        self._settle()
        return "taken out of its queue" if waits else self.place.leave(self)

    def _settle(self) -> None:
        self.wanted = False
        self._line.left(self)
        if self._timer is not None:
            self._timer.cancel()

    def _ended(self, outcome: tuple[bool, Any], reply: Reply | None) -> None:
        if not self.wanted:
            if reply is not None:
                self.engine.threads.submit(contextvars.Context(), partial(self._drop, reply), _unheard)
            return
        self._settle()
        if reply is not None and reply.output:
            self._show([tuple(item) for item in reply.output])
        self.body.arrived(self.attempt, outcome)

    def _refused(self, error: BaseException) -> None:
        if self.wanted:
            self._settle()
            self.body.refused(error)

    def _lost(self, why: str, begun: bool, alone: bool) -> None:
        if not self.wanted:
            return
        self._settle()
        error = StepInterruptedError(f"attempt {self.attempt} was lost with what it ran on: {why}")
        losses = self.body.losses
        if losses.add(begun=begun, alone=alone or self.alone or self.place.isolates):
            delay = DELAYS[min(losses.begun, len(DELAYS)) - 1] if begun else DELAYS[0]
            self.body.interrupted(error, delay, begun=begun)
        else:
            self.body.give_up(self._given_up(why))

    def _unreachable(self, why: str) -> None:
        if self.wanted:
            self._settle()
            name, key = self.place.name, str(self.body.key)
            self.body.give_up(StepInterruptedError(f"step {key!r} cannot run on executor {name!r}: {why}"))

    def _given_up(self, why: str) -> BaseException:
        return StepInterruptedError(
            f"step {str(self.body.key)!r} lost what it ran on {self.body.losses.total} times on executor {self.place.name!r}, "
            f"and is not tried again; the last time: {why}"
        )

    def _show(self, items: list[tuple[str, Any]]) -> None:
        """What the body wrote goes where a body here would have written it: into the step's log."""
        output = self.body.output
        if output is None:
            return
        for stream, content in items:
            if stream == "progress":
                output.progress(*content)
                continue
            try:
                self.body.context.copy().run(output.extend, [(stream, content, None)])
            except Exception as error:  # noqa: BLE001 - a stream of the user's that is closed
                log.debug("output of %s is not shown: %s", self.body.key, error)

    def _drop(self, reply: Reply) -> None:
        staging.discard(reply.staged, self.body.live.files)


def _outcome(reply: Reply) -> tuple[bool, Any]:
    if reply.kind == "value":
        assert reply.value is not None
        return True, Delivered(reply.value, reply.staged)
    if reply.kind == "pickled":
        try:
            return True, pickle.loads(reply.data)  # noqa: S301 - as above
        except BaseException as error:  # noqa: BLE001 - a class that the worker has and this kernel does not
            return False, error
    lost = pickle.loads(reply.data) if reply.data else None  # noqa: S301 - as above
    return False, elsewhere.error_from_elsewhere(reply.error, ours=reply.ours, lost=lost)


def _plain(name: str) -> str:
    """A step's name as schedulers can show it."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_.") else "_" for letter in name)[:60]


def _unheard(_outcome: object) -> None:
    """Nobody waits for it."""
