"""Results whose files the disk refuses now: their bodies have ended and do not run again, the files are tried again."""

import contextvars
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from nbflow.engine.threads import Outcome
from nbflow.values.artifacts import UnwrittenError

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.live import LiveInstance

log = logging.getLogger("nbflow")

AGAIN = 1.0  # seconds between two tries


class Keeping:
    """Encodes results in threads until their files can be written, as the journal waits for room (S11); on the loop."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._refused: dict[Result, str] = {}

    @property
    def trouble(self) -> str:
        """Which result cannot be written now, and why; empty where all can. From any thread."""
        return next(iter(tuple(self._refused.values())), "")

    def submit(
        self,
        live: "LiveInstance",
        what: str,
        make: Callable[[], Any],
        done: Callable[[Outcome], None],
        wanted: Callable[[], bool],
    ) -> None:
        """Run *make* in a thread, again while the disk refuses what it writes and the result is *wanted*; then call *done*."""
        self._attempt(Result(f"{what} of {live.name}", make, done, wanted))

    def _attempt(self, result: "Result") -> None:
        self._engine.threads.submit(contextvars.Context(), result.make, partial(self._made, result))

    def _made(self, result: "Result", outcome: Outcome) -> None:
        if outcome[0] or type(outcome[1]) is not UnwrittenError or not result.wanted():
            self._refused.pop(result, None)
            result.done(outcome)
            return
        if result not in self._refused:
            told = f"{result.what} cannot be written: {outcome[1].why}, it waits and is written then"
            log.warning("%s", told)
            self._refused[result] = told
        self._engine.timers.after(AGAIN, partial(self._again, result, outcome))

    def _again(self, result: "Result", outcome: Outcome) -> None:
        if result.wanted():
            self._attempt(result)
        else:
            self._made(result, outcome)


class Result:
    """One of them: *what* it is in words, how it is made, who gets it, and whether anybody still wants it."""

    __slots__ = ("done", "make", "wanted", "what")

    def __init__(self, what: str, make: Callable[[], Any], done: Callable[[Outcome], None], wanted: Callable[[], bool]) -> None:
        self.what, self.make, self.done, self.wanted = what, make, done, wanted
