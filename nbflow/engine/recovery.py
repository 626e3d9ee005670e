"""What goes on by itself when its kernel is gone: by registering its workflow, and with the parent that waits for it (S51)."""

import contextlib
import logging
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbflow.core.history import Head
from nbflow.core.model import Status
from nbflow.errors import StoreError, UsageError

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.instance import WorkflowInstance
    from nbflow.engine.registry import Workflow

log = logging.getLogger("nbflow")


def recover(engine: "Engine", workflow: "Workflow") -> None:
    """Resume by itself what no living engine runs and belongs to this notebook or this very code (S51)."""
    for live in engine.adopt_unfinished(workflow.name, lambda head: _belongs(engine, workflow, head), "register"):
        live.workflow = workflow
        engine.start(live)


def register_only(engine: "Engine", cls: type[Any], name: str | None = None) -> "Workflow":
    """Register a class and do no more: nothing is resumed, and no schedule of it makes instances here.

    Raises:
        UsageError: the class cannot be a workflow.
    """
    engine.check_open()
    return engine.registry.register(cls, name, None)[0]


def register_all(engine: "Engine", module: ModuleType, first: type[Any]) -> str | None:
    """Register the workflows that a file defines, so that they are there as children; gives the name *first* has.

    That is the one that its decorator gave it, None where none did: it is left to the caller.
    """
    for cls in list(vars(module).values()):
        known = engine.registry.all()
        own = isinstance(cls, type) and cls.__module__ == module.__name__ and cls is not first
        if not own or cls.__name__ in (first.__name__, *known) or any(each.cls is cls for each in known.values()):
            continue
        with contextlib.suppress(UsageError):  # a base class, or a class of something else
            register_only(engine, cls)
    named = [name for name, workflow in engine.registry.all().items() if workflow.cls is first]
    return first.__name__ if first.__name__ in named else next(iter(named), None)


def recover_child(engine: "Engine", child: "WorkflowInstance") -> None:
    """The same for the child of an instance that runs here: registering may have left it alone, as `nbflow run` does."""
    workflow = engine.registry.find(child.workflow_name)
    head = None if workflow is None or child.created_seq in engine.live else engine.store.head(child.created_seq)
    if workflow is None or head is None or head.finished or not _belongs(engine, workflow, head):
        return
    try:
        live = engine.adopt(child.created_seq, "register")
    except StoreError as error:  # it stays as it is: whoever waits for it looks at it each second
        log.warning("child %s/%s could not be resumed: %s", child.workflow_name, child.id, error)
        return
    if live is not None:
        engine.start(live)


def take_up(engine: "Engine", created_seq: int, *, new: bool) -> None:
    """The same for one instance that somebody has made, or told to go on, where no living engine has it.

    One that is *new* and had an engine is left to that one's notebook, as everything is whose kernel died.
    """
    head = engine.store.head(created_seq)
    workflow = None if head is None else engine.registry.find(head.workflow)
    if workflow is None or head is None or head.finished or not _belongs(engine, workflow, head):
        return
    if head.owner is not None and (new or engine.store.alive(head.owner) is not False):
        return
    live = engine.adopt(created_seq, "offered")
    if live is not None:
        engine.start(live)


def _belongs(engine: "Engine", workflow: "Workflow", head: Head) -> bool:
    if head.created_seq in engine.live or head.status is Status.PAUSED:
        return False
    never_owned = head.owner is None and head.token == 0
    same = head.notebook == engine.notebook and bool(head.notebook)  # one that is not known equals no other
    return never_owned or same or head.code_hash == workflow.code_hash
