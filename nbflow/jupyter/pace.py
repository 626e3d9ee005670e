"""How often a panel speaks, as pure arithmetic over a monotonic clock.

Jupyter Server keeps everything that is sent while no page is connected, so what nobody acknowledges must not be sent for
long; and an idle culler looks at what a kernel sends, so a running workflow must not fall silent (PANEL.md 1).
"""

from dataclasses import dataclass
from enum import Enum

FLUSH = 0.1
SLOWEST = 1.0
SHARE = 20
ALIVE = 5.0
UNHEARD = 10.0
HEAD = 10.0
GONE = 600.0
GONE_HEAD = 60.0


class Send(Enum):
    """What may go out now."""

    NOTHING = "nothing"
    ALIVE = "alive"
    HEAD = "head"
    STATE = "state"


@dataclass(slots=True)
class Pace:
    """Decides what a panel sends next.

    The page is *heard* while every message gets its answer within 10 s. After that it is presumed away: heads only, each
    10 s, and after 10 minutes one a minute while the instance works. Anything it says brings full speed back.
    """

    sent_any: float
    dirty: bool = True
    unheard_since: float | None = None
    looked: float = float("-inf")
    every: float = FLUSH

    def heard(self, now: float) -> None:
        """The page said something: full speed, and after an absence a whole state, for it has missed some."""
        self.dirty = self.dirty or self.away(now)
        self.unheard_since = None

    def changed(self) -> None:
        """Something of the instance is new."""
        self.dirty = True

    def away(self, now: float) -> bool:
        """Whether nobody has answered for so long that whole states are not sent."""
        return self.unheard_since is not None and now - self.unheard_since >= UNHEARD

    def due(self, now: float, *, at_work: bool) -> Send:
        """What to send at *now*; *at_work* tells whether code of the instance runs or is about to."""
        if not self.away(now):
            if self.dirty and now - self.looked >= self.every:
                return Send.STATE
            return Send.ALIVE if now - self.sent_any >= ALIVE else Send.NOTHING
        every = self._every(now, at_work=at_work)
        return Send.HEAD if every is not None and now - self.sent_any >= every else Send.NOTHING

    def wait(self, now: float, *, at_work: bool) -> float | None:
        """Seconds until something is due if nothing happens before; None: never."""
        if not self.away(now):
            alive = self.sent_any + ALIVE - now
            turn = alive if self.unheard_since is None else min(alive, self.unheard_since + UNHEARD - now)
            return max(0.0, min(turn, self.looked + self.every - now) if self.dirty else turn)
        every = self._every(now, at_work=at_work)
        if every is None:
            return None
        assert self.unheard_since is not None
        turn = self.sent_any + every - now
        gone = self.unheard_since + GONE - now
        return max(0.0, min(turn, gone) if gone > 0 else turn)

    def looked_at(self, now: float) -> None:
        """The state was read, about to be sent if it differs from the last."""
        self.dirty, self.looked = False, now

    def took(self, seconds: float) -> None:
        """Reading the state took so long: large instances are read less often, so that their steps have the processor."""
        self.every = min(SLOWEST, max(FLUSH, SHARE * seconds))

    def sent(self, now: float) -> None:
        """Something went out that the page will answer if it is there."""
        self.sent_any = now
        if self.unheard_since is None:
            self.unheard_since = now

    def _every(self, now: float, *, at_work: bool) -> float | None:
        assert self.unheard_since is not None
        if now - self.unheard_since < GONE:
            return HEAD
        return GONE_HEAD if at_work else None
