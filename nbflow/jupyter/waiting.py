"""Hold a cell until an instance is done, while bodies of the main thread run and clicks come in."""

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from nbflow.clock import Clock, SystemClock
from nbflow.clock import pause as clock_pause
from nbflow.engine.waiting import come_to

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.instance import WorkflowInstance
    from nbflow.jupyter.each import Group

HELLO_WITHIN = 3.0
"""Seconds in which a panel that a person looks at says hello (second.md: 0.05 to 0.73 measured)."""
_FIRST_POLL, _LONGEST_POLL = 0.005, 0.1


class Wait:
    """One wait of one cell: until finished while a panel is alive, else until settled, at most *at_most* seconds."""

    def __init__(
        self,
        engine: "Engine",
        instance: "WorkflowInstance | Group",
        *,
        at_most: float | None = None,
        hello: Callable[[], bool] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._engine = engine
        self._instance = instance
        self._at_most = at_most
        self._hello = hello
        self._clock = clock or SystemClock()
        self._started = self._clock.monotonic()
        self._in_main = threading.current_thread() is threading.main_thread()  # a subshell's cell is not

    def over(self) -> bool:
        """Whether the cell may go on."""
        if self._instance.is_finished():
            return True
        passed = self._clock.monotonic() - self._started
        if self._at_most is not None and passed >= self._at_most:
            return True
        if self._hello is not None and (passed < HELLO_WITHIN or self._hello()):
            return False
        return self._instance.is_settled()

    def _pauses(self) -> Generator[float, None, None]:
        pause = _FIRST_POLL
        while not come_to(self._engine, self.over):
            left = self._at_most - (self._clock.monotonic() - self._started) if self._at_most is not None else pause
            yield max(0.0, min(pause, left))
            # At most 0.1 s: an interrupt does not wake a cell that awaits something longer (research/jupyter.md §2).
            pause = min(pause * 2, _LONGEST_POLL)

    def block(self) -> None:
        """Wait in the calling thread, running bodies that are due on it."""
        try:
            for pause in self._pauses():
                if self._in_main:
                    self._engine.main_queue.drain(pause)
                else:
                    clock_pause(pause)
        except KeyboardInterrupt:
            raise stopped(self._instance) from None

    async def hold(self) -> None:
        """Wait on the kernel's loop: everything else of it goes on."""
        try:
            for pause in self._pauses():
                if self._in_main:
                    self._engine.main_queue.drain(0)
                await asyncio.sleep(pause)
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise stopped(self._instance) from None


def stopped(instance: "WorkflowInstance | Group") -> KeyboardInterrupt:
    """What an interrupted cell says, in one line: the cell ends, the instance does not."""
    error = KeyboardInterrupt(f"stopped waiting for {instance.id!r}; it keeps running")
    text = f"KeyboardInterrupt: {error}"
    error._render_traceback_ = lambda: [text]  # type: ignore[attr-defined]
    return error
