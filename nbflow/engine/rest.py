"""An instance that waits: it gives its slot back, and above a number of them it leaves memory until something is due (S62)."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbflow.core.model import Status, StepType
from nbflow.engine.activation import Activation
from nbflow.engine.timers import Timer

if TYPE_CHECKING:
    from nbflow.engine.live import LiveInstance


class Rest:
    """What one instance does while it waits; lives on the workflow loop.

    Attributes:
        hibernating: `run` was dropped; it is replayed when something is due or an event comes.
    """

    def __init__(self, live: "LiveInstance") -> None:
        self._live, self._engine = live, live.engine
        self.hibernating = False
        self._alarm: Timer | None = None
        self._due: dict[Callable[[], None], None] = {}  # what it does when it has a slot, in the order in which it fell due

    def noted(self) -> None:
        """The instance is quiet: if it waits, others may work, and one of those that wait may leave memory."""
        live = self._live
        if live.status() is not Status.WAITING:
            return
        live.slots.release(live.created_seq)
        due = [step.due_at.timestamp() for step in live.history.open_steps() if step.due_at is not None]
        self._engine.waiting.add(live, min(due, default=float("inf")))

    def delayed(self) -> None:
        """A rollback handler waits out its retry delay: others may work."""
        self._live.slots.release(self._live.created_seq)

    def may_work(self, then: Callable[[], None]) -> bool:
        """Whether it has a slot to go on; where not, *then* is called when it has: whatever has asked, each once."""
        live = self._live
        self._engine.waiting.remove(live.created_seq)
        if live.activation is not None and live.activation.stopping and not live.slots.held(live.created_seq):
            live.activation.hold(then)  # one that is being paused wants no slot
            return False
        if live.slots.take(live.created_seq, self._has_slot):
            return True
        self._due[then] = None
        live.notify()
        return False

    def _has_slot(self) -> None:
        """Do what is due; a slot that nothing of it needs any more goes to the next."""
        due, self._due = self._due, {}
        for act in due:
            act()
        activation = self._live.activation
        if activation is None:
            self.ended()
        elif activation.idle:
            self.noted()

    def gives_way(self) -> None:
        """It is being paused: it leaves the queue, and what is due is kept, should the stop be taken back (S40, S41)."""
        due, self._due = self._due, {}
        if due:
            self._live.slots.forget(self._live.created_seq)
        if (activation := self._live.activation) is not None:
            for act in due:
                activation.hold(act)

    def ended(self) -> None:
        """Nothing of it works or waits any more."""
        self._due.clear()
        self._engine.waiting.remove(self._live.created_seq)
        self._live.slots.forget(self._live.created_seq)

    def hibernate(self) -> None:
        """Drop `run`, if nothing but the engine can make it go on."""
        live, activation = self._live, self._live.activation
        if not isinstance(activation, Activation) or not activation.idle or live.status() is not Status.WAITING:
            return
        steps = live.history.open_steps()
        due = [step.due_at for step in steps if step.due_at is not None]
        if not due or live.history.resting or any(step.key.type is StepType.CHILD for step in steps):
            return  # whoever waits for a child is told of its end, not of a time; what a map has drawn would be lost
        if min(due) <= self._engine.clock.now():
            return  # it has just been woken for this, and goes on in the next pass of the loop
        if not waits_only_for(activation.tasks, {call.future for call in activation.calls.values()}):
            return
        live.activation = None
        activation.abandon()
        self.hibernating = True
        self._alarm = self._engine.timers.at(min(due), self.wake)

    def wake(self) -> None:
        """Something is due or has come: replay."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self.hibernating:
            self.hibernating = False
            self._live.activate()


def waits_only_for(tasks: set[asyncio.Task[Any]], futures: set[asyncio.Future[Any]]) -> bool:
    """Whether every task waits for one of *futures*, directly or through other tasks: only then nothing is lost (S62)."""
    known = {id(future) for future in futures} | {id(task) for task in tasks}
    for task in tasks:
        if task.done():
            continue
        waiter = getattr(task, "_fut_waiter", None)
        children = getattr(waiter, "_children", ())  # of asyncio.gather
        if id(waiter) in known or (children and all(id(child) in known for child in children)):
            continue
        return False
    return True
