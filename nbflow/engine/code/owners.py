"""A restart from the first stale step, asked for where the code is not: the instance's kernel does it (S52, S57)."""

import contextvars
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from nbflow.core.history import Head, History
from nbflow.core.model import Entry, Kind, Status
from nbflow.core.plans import RestartPlan, restart_plan
from nbflow.engine.control import command, who
from nbflow.engine.waiting import wait_until
from nbflow.errors import InvalidStatusError, NbflowError, UsageError, WaitTimeoutError
from nbflow.store.base import Decision

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.instance import WorkflowInstance
    from nbflow.engine.live import LiveInstance

log = logging.getLogger("nbflow")

ASKED = "restart_stale"
PATIENCE = 10.0  # seconds that its kernel may take: it looks for news each second, and may replay `run`
_RESTS = (Status.PAUSED, Status.WAITING_FOR_PAUSE)


def is_known_elsewhere(engine: "Engine", instance: "WorkflowInstance") -> bool:
    """Whether what is stale can be known in another kernel only."""
    return engine.registry.find(instance.workflow_name) is None and not instance.view().stale_steps


def ask(engine: "Engine", instance: "WorkflowInstance", by: str | None) -> None:
    """Have the kernel that runs it restart it from its first stale step.

    Raises:
        UsageError: none is known to run it.
        InvalidStatusError: it is paused, or about to be.
    """

    def decide(head: Head, _read: Callable[[], History]) -> Sequence[Decision]:
        if head.owner is None or engine.store.alive(head.owner) is not True:
            msg = (
                f"which steps of {instance.id!r} are stale is known only where the code of {instance.workflow_name!r} is: "
                f"run %workflow restart --stale in its notebook, or name the step: restart --from NAME"
            )
            raise UsageError(msg)
        if head.status in _RESTS:
            msg = f"instance {instance.id!r} is {head.status}: resume it first, or name the step: restart --from NAME"
            raise InvalidStatusError(msg)
        return [(Kind.RESUMED, {"by": who(by), ASKED: True}, None)]

    command(engine, instance, decide)


def ask_and_hear(engine: "Engine", instance: "WorkflowInstance", patience: float = PATIENCE) -> RestartPlan:
    """The same; gives what was kept and what runs again, as soon as that is done, within *patience* seconds.

    Raises:
        WaitTimeoutError: nothing was restarted: no step is stale there, or that kernel is busy.
    """
    before = History(instance.history())

    def restarted() -> Entry | None:
        with instance.folded() as history:
            if history.head.generation == before.head.generation:
                return None
        return next((entry for entry in reversed(instance.history()) if entry.kind is Kind.RESTARTED), None)

    ask(engine, instance, None)
    try:
        wait_until(instance, lambda: restarted() is not None, patience)
    except WaitTimeoutError:
        msg = (
            f"the kernel that runs {instance.id!r} has restarted nothing in {patience:g} s: no step is stale there, or it is "
            f"busy; `show` tells, or name the step: restart --from NAME"
        )
        raise WaitTimeoutError(msg) from None
    entry = restarted()
    first = None if entry is None else entry.body.get("keep_below")
    key = next((step.key for step in before.steps.values() if step.order == first), None)
    return restart_plan(before, key)


def answer(engine: "Engine", live: "LiveInstance", by: Any) -> None:
    """Do what was asked for, in a thread; on the loop."""
    from nbflow.engine.instance import WorkflowInstance

    instance = WorkflowInstance(engine, live.history.head)

    def restart() -> None:
        try:
            instance.restart_stale(by)
        except NbflowError as error:
            log.warning("%s asked to restart %s from its first stale step: %s", by, live.name, error)

    engine.threads.submit(contextvars.copy_context(), restart, partial(_heard, live.name))


def _heard(name: str, outcome: tuple[bool, Any]) -> None:
    if not outcome[0]:
        log.warning("%s was not restarted from its first stale step: %s", name, outcome[1])
