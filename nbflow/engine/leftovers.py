"""Bodies in threads that nobody waits for any more: they cannot be stopped, and a restart gives them time to end (S26)."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from nbflow.engine.threads import ThreadJob
from nbflow.errors import listed

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine

log = logging.getLogger("nbflow")

PATIENCE = 10.0  # seconds


class Leftovers:
    """Those of one instance that still run; on the loop."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._running: dict[ThreadJob, str] = {}
        self._then: Callable[[], None] | None = None

    def add(self, job: ThreadJob, step: str) -> None:
        """Leave a body to its thread: its outcome is thrown away when it comes."""
        if self._engine.threads.abandon(job, lambda: self._ended(job)):
            self._running[job] = step

    @property
    def steps(self) -> frozenset[str]:
        """The steps whose bodies these are."""
        return frozenset(dict(self._running).values())

    def after_them(self, instance: str, then: Callable[[], None]) -> None:
        """Call *then* when all have ended, after 10 s at the latest: two may overlap then, which this says."""
        if not self._running:
            then()
            return

        def late() -> None:
            if self._then is then:
                self._then = None
                steps = listed(sorted(set(self._running.values())))
                log.warning(
                    "%s starts over while earlier bodies of %s still run in their threads: two may overlap", instance, steps
                )
                then()

        self._then = then
        self._engine.timers.after(PATIENCE, late)

    def _ended(self, job: ThreadJob) -> None:
        self._running.pop(job, None)
        if not self._running and self._then is not None:
            then, self._then = self._then, None
            then()
