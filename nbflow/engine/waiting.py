"""Wait for an instance from outside the workflow loop: blocking in a thread, or awaiting on somebody else's loop."""

import asyncio
import contextlib
import math
import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from nbflow.clock import SystemClock
from nbflow.core.durations import duration
from nbflow.core.model import FINISHED
from nbflow.engine.bodies import BODY
from nbflow.errors import StoreError, WaitTimeoutError

if TYPE_CHECKING:
    from nbflow.core.model import Entry
    from nbflow.engine.engine import Engine
    from nbflow.engine.instance import WorkflowInstance

POLL = 0.1  # seconds; an await that sleeps longer would not notice an Interrupt of the kernel


def come_to(engine: "Engine", reached: Callable[[], bool]) -> bool:
    """Whether what is waited for has come.

    Raises:
        InvalidStatusError: it has not, and the engine is closed: here it never will.
        StoreError: it has not, and the store takes nothing more.
    """
    closing = engine.closing  # before the question: an end that comes between the two counts
    try:
        if reached():
            return True
    except StoreError:
        engine.check_open()
        raise
    if closing:
        engine.check_open()
    return False


def patience(timeout: Any) -> float | None:
    """How long a wait may take, in seconds: a number of them, another form of a duration, or None for as long as it takes.

    Raises:
        UsageError: it is none of these; or less than nothing, or no number.
    """
    if timeout is None:
        return None
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout >= 0:  # NaN is not
        try:
            return float(timeout)
        except OverflowError:
            return math.inf
    return duration(timeout, what="wait(timeout=)").total_seconds()


def wait_until(instance: "WorkflowInstance", reached: Callable[[], bool], timeout: float | None) -> None:
    """Block until *reached*; in the main thread bodies for it are run meanwhile, else they and the wait would deadlock."""
    engine = instance.engine
    engine.thread.forbid_here("wait()")
    clock = SystemClock()
    end = None if timeout is None else clock.monotonic() + timeout
    in_main = threading.current_thread() is threading.main_thread()
    in_body = BODY.get() is not None
    if in_body:
        engine.threads.blocking(begins=True)
    try:
        while not come_to(engine, reached):
            left = POLL if end is None else end - clock.monotonic()
            if left <= 0:
                raise WaitTimeoutError(_not_yet(instance, timeout or 0.0))
            _pause(instance, min(left, POLL), in_main=in_main)
    finally:
        if in_body:
            engine.threads.blocking(begins=False)


def _not_yet(instance: "WorkflowInstance", timeout: float) -> str:
    view = instance.view()
    still = f"instance {instance.id!r} is still {view.status} after {timeout:g} seconds"
    if view.doubtful:
        return f"{still}: {view.why_interrupted}"
    if view.here and (trouble := instance.engine.trouble):
        return f"{still}: {trouble}"
    if view.here or view.status in FINISHED or (view.owner is not None and view.owner_alive is not False):
        return f"{still}; it goes on"
    who = "nobody runs it" if view.owner is None else f"its kernel is gone ({view.owner}) and nobody runs it"
    return f"{still}, but {who}: resume() it where its workflow is registered"


def _pause(instance: "WorkflowInstance", seconds: float, *, in_main: bool) -> None:
    """Let some time pass, until something of the instance changes."""
    live = instance.engine.live.get(instance.created_seq)
    if in_main:
        instance.engine.main_queue.drain(seconds)
    elif live is not None:
        live.wait_changed(seconds)
    else:
        threading.Event().wait(seconds)


async def finished_by_polling(instance: "WorkflowInstance") -> None:
    """Await the end on any loop; polling lets clicks in and an Interrupt of the kernel end it at once."""
    while not come_to(instance.engine, instance.is_finished):  # noqa: ASYNC110 - the loop is the caller's: none of ours may wake it
        await asyncio.sleep(POLL / 2)


def _so_far(instance: "WorkflowInstance") -> tuple[bool, list["Entry"]]:
    """Whether it is finished, and its entries."""
    return come_to(instance.engine, instance.is_finished), instance.history()


async def following(instance: "WorkflowInstance", after: int) -> AsyncIterator["Entry"]:
    """See `WorkflowInstance.follow`."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()

    def tell(created_seq: int) -> None:
        if created_seq in (0, instance.created_seq):
            loop.call_soon_threadsafe(changed.set)

    unsubscribe = instance.engine.feed.subscribe(tell)
    try:
        while True:
            changed.clear()
            finished, entries = await asyncio.to_thread(_so_far, instance)
            for entry in entries:
                if entry.seq > after:
                    after = entry.seq
                    yield entry
            if finished:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), 1.0)
    finally:
        unsubscribe()
