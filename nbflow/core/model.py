"""The nouns: what an entry of the history is, what a step is known by, what is known of an instance.

Pure: no clock, no I/O, no threads.

An *entry* is one row of the history, and nothing is ever changed or removed: what is known of an instance is the fold of
its entries (`core/history.py`). Kinds of step entries are `<type>.<what happened>`, so the type of a step is the part
before the dot. What each kind carries in `body` (JSON) and `value` (an encoded value, see `values/codec.py`):

    created        workflow, id, notebook, code_hash, [schedule], preview, [json]             value = params
                   [parent], [parent_seq]: id and join key of the instance that made it, [parent_step]: type, name, count and
                   [key] of the step that did, and how often steps of its instance had been dropped to run again by then
    claimed        engine, pid, host, folder, notebook, by: who runs it from now on; the entry's token is new
    released       why: its engine closed in order; nobody runs it
    activated      code_hash, reach: of the class with all that it reaches, number: `run` is about to be called
    pausing        by: pause asked for, bodies in flight go on (S40)
    paused         nothing of it runs any more
    resumed        by, [shift_s]: seconds that deadlines move by (S41); [retry_now]: it was not paused, retry delays end, all or
                   that of the step whose type, name, count and key it gives; [restart_stale]: it was not paused, its kernel
                   is to restart it from the first stale step
    retried        by, [keep_below], [maps]: failed steps are dropped, the rest goes on (`retry_failed`); of the maps named
                   ("2 embed" is the second call of "embed") the failed items and the end; [undone]: map and keys of items
                   that were rolled back where others of that map were not, dropped with its end (S48)
    restarted      by, keep_below: steps with a lower order are kept (S44), [item]: map, count and key of one item that is
                   dropped with the map's end; the entry's token is new
    terminated     by; the entry's token is new
    rolling_back   error: handlers run now (S46); the instance has it until it is terminated
    terminating    by: the same, and it then ends as terminated (S49); the entry's token is new where somebody else says so
    completed      preview, output_type, [json], [uri], rollback                          value = output
    errored        error, rollback
    interrupted    why, step: a recorded value can't be decoded now (S17); no failure
    deleted        by
    event          event_id, type, by                                                     value = payload
    set_aside      event_id, step, why: it does not fit the schema of the wait that was to take it (S39)
    do.started     order, attempt, config, [code_hash]: of the body and what it reaches (S56), [bound]: hashes of constants
                   bound to it by name, [args_hash]: of its positional arguments (S57), [parent], [rollback]: it has a
                   rollback handler, [anew]: attempts before it count no more against the limit (S58); all but config are
                   repeated by the entry that ends this attempt
    do.retrying    order, attempt, started_at, error, retry_at: an attempt failed, another comes
    do.interrupted order, attempt, started_at, [error]: the kernel died in this attempt (S27), or it was lost with what it
                   ran on, as the error says: a worker, a scheduler; no failure; [rollback]: false where no attempt has begun
    do.finished    order, attempt, started_at, preview, output_type, [json], [uri], [config]                       value
    do.failed      order, attempt, started_at, error, [config]: failed for good (S28)
    do.cancelled   order, attempt, started_at                                             (S21)
    rollback.…     as do.…: the handler that undoes the step of that name and count (S47), or the map's item of that key
    sleep.started  order, due_at                  sleep.finished   order, started_at      sleep.cancelled
    child.started  order, workflow, id: the instance it waits for, which child.failed and child.cancelled repeat; ends as
                   do.… ends
    map.started    order, config, [rollback], [total], [rate]: starts and seconds, [started_at]: when it was first called, where
                   that was before; key None is the map, a key an item of it
    map.finished   order, started_at, total, failed: all items have ended, [stale]: the first whose content was not what is
                   recorded of them, [served]: code_hash, [bound] of the first that ended under other code than the
                   map's (S57), [gone]: how many have finished and failed that are items no more
                                                               value = keys of all in order, where any was given by key=
    map.failed     order, started_at, error, [item]: the first item that failed for good, or the iterable did
    map.started    of an item: order, attempt, [index] where its key is given by key=
    map.retrying   of an item: as do.retrying, with its hash                    map.interrupted   of an item: as do.interrupted
    map.finished   of an item: order, attempt, started_at, hash, preview, output_type, [json], [uri], [index], [out]: how many
                   values a stream hands on with it (their keys, where given by key=)          value, unless discarded
    map.failed     of an item: order, attempt, started_at, hash, error, [index], [out]    map.cancelled
    wait.started   order, event_type, due_at, schema, prompt; once more where other code goes on with it and asks for another
                   type, schema or prompt: the newest counts, with the same due_at (S58)
    wait.finished  order, started_at, event_id, event_type, sent_at, preview, [json]      value = payload
    wait.failed    order, started_at, error: timed out                                    wait.cancelled

Times in bodies are ISO 8601 text in UTC. `error` is what `values/failures.py` makes of an exception: type, message,
traceback and more. A start that is loaded together with its end is absorbed by it, so every end repeats what a reader
needs of its start.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

import msgspec


class Status(StrEnum):
    """An instance's status (S5), in Cloudflare's words."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    WAITING_FOR_PAUSE = "waitingForPause"
    ROLLING_BACK = "rollingBack"
    ERRORED = "errored"
    TERMINATED = "terminated"
    COMPLETE = "complete"


FINISHED = frozenset({Status.COMPLETE, Status.ERRORED, Status.TERMINATED})


class StepType(StrEnum):
    """The kinds of durable calls (S6)."""

    DO = "do"
    SLEEP = "sleep"
    WAIT = "wait"
    MAP = "map"
    CHILD = "child"
    ROLLBACK = "rollback"


class StepState(StrEnum):
    """Where a step stands."""

    RUNNING = "running"
    RETRYING = "retrying"
    SLEEPING = "sleeping"
    WAITING = "waiting"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


ENDED = frozenset({StepState.FINISHED, StepState.FAILED, StepState.CANCELLED})


class Kind(StrEnum):
    """What an entry says happened."""

    CREATED = "created"
    CLAIMED = "claimed"
    RELEASED = "released"
    ACTIVATED = "activated"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMED = "resumed"
    RETRIED = "retried"
    RESTARTED = "restarted"
    TERMINATED = "terminated"
    ROLLING_BACK = "rolling_back"
    TERMINATING = "terminating"
    COMPLETED = "completed"
    ERRORED = "errored"
    INTERRUPTED = "interrupted"
    DELETED = "deleted"
    EVENT = "event"
    SET_ASIDE = "set_aside"
    DO_STARTED = "do.started"
    DO_RETRYING = "do.retrying"
    DO_INTERRUPTED = "do.interrupted"
    DO_FINISHED = "do.finished"
    DO_FAILED = "do.failed"
    DO_CANCELLED = "do.cancelled"
    SLEEP_STARTED = "sleep.started"
    SLEEP_FINISHED = "sleep.finished"
    SLEEP_CANCELLED = "sleep.cancelled"
    MAP_STARTED = "map.started"
    MAP_RETRYING = "map.retrying"
    MAP_INTERRUPTED = "map.interrupted"
    MAP_FINISHED = "map.finished"
    MAP_FAILED = "map.failed"
    MAP_CANCELLED = "map.cancelled"
    CHILD_STARTED = "child.started"
    CHILD_FINISHED = "child.finished"
    CHILD_FAILED = "child.failed"
    CHILD_CANCELLED = "child.cancelled"
    ROLLBACK_STARTED = "rollback.started"
    ROLLBACK_RETRYING = "rollback.retrying"
    ROLLBACK_INTERRUPTED = "rollback.interrupted"
    ROLLBACK_FINISHED = "rollback.finished"
    ROLLBACK_FAILED = "rollback.failed"
    WAIT_STARTED = "wait.started"
    WAIT_FINISHED = "wait.finished"
    WAIT_FAILED = "wait.failed"
    WAIT_CANCELLED = "wait.cancelled"


# Entries whose token is new: whoever held the instance before no longer counts (S52).
FENCES = frozenset({Kind.CLAIMED, Kind.RESTARTED, Kind.TERMINATING, Kind.TERMINATED, Kind.DELETED})
ENDS = frozenset(kind for kind in Kind if kind.endswith(".finished"))
FAILURES = frozenset(kind for kind in Kind if kind.endswith(".failed"))
CANCELS = frozenset(kind for kind in Kind if kind.endswith(".cancelled"))

_TYPE_OF = {kind: StepType(kind.partition(".")[0]) for kind in Kind if "." in kind}
KINDS = {(_TYPE_OF[kind], kind.partition(".")[2]): kind for kind in _TYPE_OF}
"""Kinds of step entries by the step's type and what happened to it."""


class StepKey(msgspec.Struct, frozen=True, order=True, gc=False):
    """What a step is known by (S6): type, name, n-th call of that type and name, and for map items the item's key."""

    type: StepType
    name: str
    count: int = 1
    key: str | None = None

    def __str__(self) -> str:
        text = self.name if self.count == 1 else f"{self.name}#{self.count}"
        if self.type is StepType.ROLLBACK:
            return f"undo {text}"
        return text if self.key is None else f"{text}[{self.key}]"


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One entry of the history.

    Attributes:
        kind: what happened.
        created_seq: seq of the entry that created the instance; 0 in the creating entry until it has its own.
        token: the claim under which it was written; 0 for what others say about the instance (events, pause, resume).
        recorded_at: aware UTC.
        step, count, key: the step it is about.
        body: JSON, as the module's docstring says.
        value: an encoded value.
        seq: its place in the history, 1…n; 0 until it is in the DuckDB file.
    """

    kind: Kind
    created_seq: int
    token: int
    recorded_at: datetime
    step: str | None = None
    count: int | None = None
    key: str | None = None
    body: dict[str, Any] = {}
    value: bytes | None = None
    seq: int = 0

    def __repr__(self) -> str:
        """What a sensitive step gave is shown nowhere."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        if self.value is not None and self.body.get("sensitive"):
            shown["value"] = "[REDACTED]"
        return f"Entry({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def step_key(self) -> StepKey | None:
        """The step this entry is about."""
        if self.step is None:
            return None
        return StepKey(_TYPE_OF[self.kind], self.step, self.count or 1, self.key)


@dataclass(frozen=True, slots=True)
class Draft:
    """An instance to create: everything of the `created` entry that the store does not decide itself."""

    workflow: str
    instance_id: str
    params: bytes
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Owner:
    """Who runs an instance, as its claim says: enough to tell whether that engine is alive, and to name it."""

    engine: str
    pid: int
    host: str
    folder: str
    notebook: str

    def __str__(self) -> str:
        where = f"{self.notebook}, " if self.notebook else ""
        return f"{where}PID {self.pid} on {self.host}"


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as data: class name, message and traceback text."""

    type: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something an instance waits for: *kind* is "event", "sleep", "retry", "child" or "rate", *until* its deadline."""

    name: str
    kind: str
    until: datetime | None
    event_type: str | None = None


def _nothing() -> object:
    return None


@dataclass(frozen=True, repr=False)
class InstanceStatus:
    """What `inst.status()` gives (API.md §4); the output is read when it is asked for, so that a status never fails for it."""

    status: Status
    read_output: Callable[[], object] = field(default=_nothing, compare=False)
    error: ErrorInfo | None = None
    rollback: tuple[str, ErrorInfo | None] | None = None
    waiting_for: tuple[Waiting, ...] = ()
    unreached: tuple[StepKey, ...] = ()
    interrupted: str | None = None
    failed_items: int = 0

    @cached_property
    def output(self) -> object:
        """The output of a complete instance, else None."""
        return self.read_output()

    def __repr__(self) -> str:
        try:
            output = repr(self.output)
        except Exception as error:  # noqa: BLE001 - its class is not defined here, or shows itself badly
            output = f"<{error}>"
        shown = [f"status={self.status!r}", f"output={output}"]
        shown += [f"{each.name}={getattr(self, each.name)!r}" for each in fields(self)[2:]]
        return f"{type(self).__name__}({', '.join(shown)})"
