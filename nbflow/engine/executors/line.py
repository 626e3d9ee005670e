"""What one executor has been given and has not done yet, and what is held back from it.

A worker that dies takes all bodies in it along, and a pool that breaks those of all its workers: who did it nobody says. So
what was lost twice beside others is suspect, and runs with nothing beside it until it has ended: as S27 has it for kernels.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbflow.engine.executors.attempt import Place, RemoteAttempt

LOSSES = 3  # times that a step may lose what it runs on and be tried again
BESIDE = 2  # of them those beside others: the last tries are alone
UNBEGUN = 10  # the same for attempts that had not begun: they are lost with their neighbours


class Losses:
    """Of one step, over all its attempts.

    Attributes:
        begun: attempts that were lost with what they ran on.
        unbegun: those that had not begun.
    """

    def __init__(self) -> None:
        self.begun = self.unbegun = 0
        self._beside = 0

    @property
    def suspect(self) -> bool:
        """Whether it is to run with nothing beside it."""
        return self._beside >= BESIDE

    @property
    def total(self) -> int:
        """All of them."""
        return self.begun + self.unbegun

    def add(self, *, begun: bool, alone: bool) -> bool:
        """Count one; gives whether another attempt may begin: only what was lost *alone* is ever the last."""
        self.begun += begun
        self.unbegun += not begun
        self._beside += begun and not alone
        if not alone:
            return True
        counts = self.begun - max(0, self._beside - BESIDE)
        return counts <= LOSSES and self.unbegun <= UNBEGUN


class Line:
    """Of one executor; used on the workflow loop."""

    def __init__(self, place: "Place") -> None:
        self.place = place
        self._out: dict[RemoteAttempt, None] = {}
        self._replaced = False
        self._alone: RemoteAttempt | None = None  # the suspect that is out
        self._suspects: dict[RemoteAttempt, None] = {}  # both of these wait
        self._others: dict[RemoteAttempt, None] = {}

    @property
    def busy(self) -> bool:
        """Whether anything is out or waits."""
        return bool(self._out or self._suspects or self._others)

    def add(self, attempt: "RemoteAttempt") -> None:
        """Give it to the executor, now or when nothing is suspect beside it any more."""
        suspect = attempt.body.losses.suspect and not self.place.isolates
        (self._suspects if suspect else self._others)[attempt] = None
        self._go_on()

    def _go_on(self) -> None:
        while self._alone is None and not self._replaced and (self._suspects or self._others):
            if not self._suspects:
                self._send(self._others)
            elif not self._out:
                self._alone = self._send(self._suspects)
            else:
                return

    def _send(self, queue: "dict[RemoteAttempt, None]") -> "RemoteAttempt":
        attempt = next(iter(queue))
        del queue[attempt]
        if self._out:  # of those, all but a first one have known company already
            next(iter(self._out)).alone = attempt.alone = False
        self._out[attempt] = None
        self.place.submit(attempt)
        return attempt

    def waits(self, attempt: "RemoteAttempt") -> bool:
        """Whether the executor has not been given it."""
        return attempt not in self._out

    def left(self, attempt: "RemoteAttempt") -> None:
        """It has ended, or nobody waits for it any more."""
        for queue in (self._out, self._suspects, self._others):
            queue.pop(attempt, None)
        if attempt is self._alone:
            self._alone = None
        self._go_on()
        self._retire_when_done()

    def end(self, *, replaced: bool) -> None:
        """It has its name no more: what runs there ends there, what has not begun goes where another has the name now."""
        self.place.retired, self._replaced = True, replaced
        if replaced:
            for attempt in [*self._others, *self._suspects, *self._out]:
                attempt.move()
        self._retire_when_done()

    def _retire_when_done(self) -> None:
        if self.place.retired and not self.busy:
            self.place.retire()
