"""Workflows by name: their class, their source, and what can be made of them."""

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, SupportsIndex

from nbflow.core import names
from nbflow.core.model import Status
from nbflow.core.source import code_hash
from nbflow.engine import creating, current
from nbflow.engine.code.fingerprints import of_class
from nbflow.engine.entrypoint import WorkflowEntrypoint, WorkflowEvent
from nbflow.engine.env import Env
from nbflow.engine.step import WorkflowStep
from nbflow.errors import NotFoundError, UsageError, listed
from nbflow.values import schemas

if TYPE_CHECKING:
    from nbflow.engine.activation import Activation
    from nbflow.engine.code.codes import Differing
    from nbflow.engine.engine import Engine
    from nbflow.engine.instance import WorkflowInstance
    from nbflow.engine.instances import Instances


class Workflow:
    """A registered workflow (API.md §4).

    Attributes:
        name: what it is registered under.
        cls: the class, the latest that was registered.
        code_hash: the hash of its source, without comments and formatting.
        fingerprint: the class with the functions, classes and constants of the notebook that it reaches.
        source: the text of its cell, where it is known.
        make_step: makes the `step` of an activation; the test kit puts its own here.
        changed_at: when it was registered last, where its code was another one then.
    """

    def __init__(self, engine: "Engine", name: str, cls: type[Any], source: str | None) -> None:
        self._engine, self.name, self.cls = engine, name, cls
        self.make_step: Callable[[Activation], WorkflowStep] = WorkflowStep
        self.changed_at: datetime | None = None
        self.source = source if source is not None else _source_of(cls)
        self.code_hash = code_hash(self.source) if self.source else bytecode_hash(cls)
        self.fingerprint = of_class(cls)

    def create(self, id: str | None = None, params: Any = None) -> "WorkflowInstance":  # noqa: A002 - the contract's name
        """Create an instance and start it; it is durable when this returns (S1).

        Args:
            id: 1–100 of `A–Z a–z 0–9 _ - .`; a new sortable one by default.
            params: what `event.payload` will be; an empty dict by default (S4).

        Raises:
            AlreadyExistsError: the id is in use (S3).
            NotSerialisableError: the params cannot be stored exactly.
        """
        return creating.create(self._engine, self, id, params)

    def create_batch(self, instances: Iterable[Mapping[str, Any]], *, existing: str = "found") -> "Instances":
        """Create many, all or none of them valid; gives created and found ones in order (S3).

        Args:
            instances: mappings with `id` and `params`, both optional.
            existing: "skip" leaves those that exist already out of the result.
        """
        return creating.create_batch(self._engine, self, list(instances), existing)

    def schedule(self, cron: str, catch_up: bool = True, tz: Any = None) -> None:
        """Create one instance per match of *cron* while a kernel with this workflow is alive (S59).

        The instance's id is `name-<UTC time>` and `event.schedule` says which match; two kernels never make the same twice.

        Args:
            cron: five fields: minute, hour, day, month, weekday.
            catch_up: make one instance for the last time missed while no kernel was alive.
            tz: the time zone the fields are read in, its name or a ZoneInfo; UTC by default.

        Raises:
            UsageError: the line or the time zone cannot be read.
        """
        self._engine.schedules.set(self, cron, tz, catch_up=catch_up)

    def unschedule(self) -> None:
        """Take the schedule away; NotFoundError where there is none."""
        self._engine.schedules.remove(self.name)

    def get(self, id: str) -> "WorkflowInstance":  # noqa: A002 - the contract's name
        """The instance with that id; `WORKFLOW/ID` with this workflow's name is the same.

        Raises:
            NotFoundError: there is none; or the name is another workflow's.
        """
        return self._engine.get(id, self.name)

    def list(self, status: Status | str | None = None, limit: SupportsIndex = 100) -> "Instances":
        """This workflow's instances, newest first."""
        return self._engine.list(self.name, status=status, limit=limit)

    async def run(self, event: WorkflowEvent, activation: "Activation") -> Any:
        """Call `run` of one activation, on a new object of the class."""
        env = Env(self._engine)
        entrypoint: WorkflowEntrypoint = self.cls(None, env) if _takes_both(self.cls) else self.cls()
        entrypoint.env = env
        return await entrypoint.run(event, self.make_step(activation))

    @property
    def reach(self) -> str:
        """The hash of the class with the functions, classes and constants of the notebook that it reaches."""
        return "" if self.fingerprint is None else self.fingerprint.hash

    @property
    def code_marks(self) -> dict[str, str]:
        """What the entry of an activation says of its code."""
        return {"code_hash": self.code_hash} | ({"reach": self.reach} if self.reach else {})

    @property
    def engine(self) -> "Engine":
        """The engine it is registered with."""
        return self._engine

    def __repr__(self) -> str:
        return f"<Workflow {self.name}>"


class Registry:
    """The workflows of one engine, by name.

    Attributes:
        kept: the fingerprints whose sources are in the store.
        unreadable_until: when sources are asked for again, after somebody held the file.
        stale: what recorded steps would be given to run now, where that was found to differ, by instance.
    """

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._known: dict[str, Workflow] = {}
        self.kept: set[str] = set()
        self.unreadable_until = 0.0
        self.stale: dict[int, Differing] = {}
        self._lock = threading.Lock()

    def register(self, cls: type[Any], name: str | None, source: str | None) -> tuple[Workflow, bool]:
        """Check and keep a class, its source in the store; also says whether it is new or its code has changed."""
        check_class(cls)
        name = names.workflow_name(name if name is not None else cls.__name__)
        fresh = Workflow(self._engine, name, cls, source)
        if fresh.source:
            schemas.get_ready(fresh.source)
            self._engine.store.save_source(fresh.code_hash, fresh.source)
        with self._lock:
            known = self._known.get(name)
            if known is None:
                self._known[name] = fresh
                return fresh, True
            changed = (known.code_hash, known.reach) != (fresh.code_hash, fresh.reach)
            # The same object stays valid: whoever holds it goes on with the present class.
            known.changed_at = self._engine.clock.now() if changed else None
            known.cls, known.source, known.code_hash, known.fingerprint = cls, fresh.source, fresh.code_hash, fresh.fingerprint
            return known, changed

    def get(self, name: str) -> Workflow:
        """The workflow of that name; NotFoundError lists the known ones."""
        known = self._known.get(name)
        if known is None:
            registered = listed(sorted(self._known)) or "none is"
            how = "run the cell that defines it"
            if not current.in_notebook():
                how = "register it first: write `@nbflow.workflow` above its class, in this file or in one that it imports"
            msg = f"no workflow {name!r} is registered here ({registered}); {how}"
            raise NotFoundError(msg)
        return known

    def find(self, name: str) -> Workflow | None:
        """The workflow of that name, if it is registered."""
        return self._known.get(name)

    def all(self) -> dict[str, Workflow]:
        """All of them."""
        with self._lock:
            return dict(self._known)


def check_class(cls: object) -> None:
    """Refuse what cannot be a workflow, with what to do about it."""
    if not isinstance(cls, type):
        msg = f"register a class, not {cls!r}"
        raise UsageError(msg)
    if not issubclass(cls, WorkflowEntrypoint):
        msg = f"class {cls.__name__!r} does not subclass WorkflowEntrypoint; write `class {cls.__name__}(WorkflowEntrypoint):`"
        raise UsageError(msg)
    run = inspect.getattr_static(cls, "run", None)
    if run is inspect.getattr_static(WorkflowEntrypoint, "run"):
        msg = f"class {cls.__name__!r} has no `run`; write `async def run(self, event, step):` in it"
        raise UsageError(msg)
    if inspect.isasyncgenfunction(getattr(cls, "run", None)):
        msg = f"`run` of class {cls.__name__!r} has a `yield` in it, which makes it a generator; `return` its output once"
        raise UsageError(msg)
    if not inspect.iscoroutinefunction(getattr(cls, "run", None)):
        msg = f"`run` of class {cls.__name__!r} is a plain def; write `async def run(self, event, step):`"
        raise UsageError(msg)


def _takes_both(cls: type[Any]) -> bool:
    """Whether its own constructor asks for `ctx` and `env`, as those of Cloudflare's SDK do."""
    if cls.__init__ is WorkflowEntrypoint.__init__:
        return False
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    placed = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return [one.name for one in placed[:2]] == ["ctx", "env"] or len([one for one in placed if one.default is one.empty]) == 2


def _source_of(cls: type[Any]) -> str | None:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        pass
    try:  # a class of a cell has no file; its methods know their lines
        return inspect.getsource(cls.run)
    except (OSError, TypeError):
        return None


def bytecode_hash(cls: type[Any]) -> str:
    """The hash of a class without source: of its functions' bytecode and constants (S56)."""
    import hashlib

    digest = hashlib.blake2b(digest_size=16)
    for name, member in sorted(vars(cls).items()):
        code = getattr(member, "__code__", None)
        if code is not None:
            digest.update(name.encode() + code.co_code + repr(code.co_names).encode())
    return digest.hexdigest()
