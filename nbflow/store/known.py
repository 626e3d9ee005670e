"""Keep what is known of instances and steps (known.sql) in step with the entries that a lease appends.

Everything here is a function of the entries, so it can be made again from them: `rebuild` does, `differences` compares.
What a batch of entries touches is found again from all entries about it, never patched: an instance where its life went on,
a step where something was recorded of it, all steps of an instance where a restart, a retry or an owner gone made entries void.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

from nbflow.core.model import FINISHED, Entry, Kind, Status
from nbflow.core.status import after, is_void
from nbflow.store import standing

_OF_STEPS = ("known_steps", "known_attempts")
_FEW = 20
TABLES = ("known_instances", "known_values", *_OF_STEPS, "dropped")

# By these neither an instance's life nor its owner changes.
_ENDS_IT = (Kind.COMPLETED, Kind.ERRORED, Kind.TERMINATED)
_KINDS = {kind.value: kind for kind in Kind}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SILENT = frozenset({Kind.RELEASED, Kind.EVENT, Kind.SET_ASIDE, Kind.INTERRUPTED})


class _Came(NamedTuple):
    """What a batch holds of one instance: steps that are not whole, its creation, its life, turns, tokens."""

    created_seq: int
    steps: bool
    created: bool
    life: bool
    ended: bool
    deleted: bool
    turn: bool
    oldest: int
    fence: int


class Asked(Protocol):
    """Runs a statement over the attached file and gives all rows."""

    def __call__(self, query: str, values: Sequence[Any] | None = None, /) -> list[tuple[Any, ...]]:
        """All rows that the statement gives."""


# Of deleted instances nothing is told, so nothing is compared.
_LIVING = "semi join nb.known_instances as i on i.created_seq = k.created_seq"
_OF_LIVING = f"semi join (from nb.entries as k {_LIVING}) as e on e.seq = v.seq"
_COMPARED = {
    "known_instances": "from {home}.known_instances",
    "known_values": f"from {{home}}.known_values as v {_OF_LIVING}",
    "known_steps": f"from {{home}}.known_steps as k {_LIVING}",
    "known_attempts": f"from {{home}}.known_attempts as k {_LIVING}",
    "dropped": f"from {{home}}.dropped as v {_OF_LIVING}",
    "entries": f"from {{home}}.ended as k {_LIVING}",
}
_BEGAN = """
create or replace temp table ended as
select created_seq, min(seq) filter (is_end) as seq, arg_min(started_at, seq) as began_at
from ({counting})
group by created_seq, type, step, count, key
having bool_or(is_end)
"""
_ENDS = "(select created_seq, seq, coalesce(began_at, started_at, recorded_at) as began_at from nb.entries where whole)"


def of_written(rows: Asked, base: int, entries: Sequence[Entry]) -> None:
    """Keep up with entries written directly, seqs from *base* + 1 on; frequent ones need no look at the file."""
    of_lives = [entry for entry in entries if entry.kind not in _SILENT]
    kinds = {entry.kind for entry in of_lives}
    if kinds == {Kind.DELETED}:
        rows(standing.FORGET_DELETED, [[entry.created_seq for entry in of_lives]])
    elif kinds <= {Kind.CREATED, Kind.CLAIMED} and all(entry.token <= 1 for entry in of_lives):
        _create(rows, base, [(seq, entry) for seq, entry in enumerate(entries, base + 1) if entry.kind is Kind.CREATED])
    elif kinds == {Kind.CLAIMED}:  # under a lease each has the highest token that there is: none makes another void
        _own(rows, base, [(seq, entry) for seq, entry in enumerate(entries, base + 1) if entry.kind is Kind.CLAIMED])
    else:
        keep_up(rows, base)


def _own(rows: Asked, base: int, claims: Sequence[tuple[int, Entry]]) -> None:
    if len(claims) > _FEW:
        rows(standing.OWNED.format(home="nb"), [base])
        return
    for seq, entry in claims:
        if entry.token > 1:
            rows(standing.OWN, [entry.created_seq, entry.token, seq])


def _create(rows: Asked, base: int, created: Sequence[tuple[int, Entry]]) -> None:
    if len(created) > _FEW:
        _create_from(rows, base)
        return
    for seq, entry in created:
        body = entry.body
        parent = body.get("parent")
        parent_id = parent.get("id") if isinstance(parent, dict) else parent
        known = [seq, body["workflow"], body["id"], entry.recorded_at, body.get("code_hash"), parent_id]
        rows(standing.ADD_INSTANCE, known)
        rows(standing.ADD_VALUE, [seq, _json(entry)])


def _json(entry: Entry) -> str | None:
    """As the macro `json` of views.sql."""
    if entry.value is None:
        return None
    if entry.body.get("sensitive"):
        return '"[REDACTED]"'
    return entry.value[1:].decode("utf-8", "replace") if entry.value[:1] == b"j" else entry.body.get("json")


def keep_up(rows: Asked, base: int) -> None:
    """Keep up with the entries after *base*."""
    came = [_Came(*row) for row in rows(standing.CAME, [base])]
    if any(one.created for one in came):
        _create_from(rows, base)
    elif any(one.ended for one in came):
        rows(standing.VALUES.format(home="nb"), [base])
    if any(one.fence for one in came):
        rows(standing.OWNED.format(home="nb"), [base])
    tokens: dict[int, int] = dict(rows(standing.TOKENS, [[one.created_seq for one in came if one.oldest]]))
    turned = [one.created_seq for one in came if one.turn or 0 < one.oldest < tokens.get(one.created_seq, 0)]
    if turned:
        rows(f"delete from nb.dropped where seq in (select seq from {standing.OF_THESE})", [turned])  # noqa: S608 - ours
        rows(standing.DROPPED.format(entries=standing.OF_THESE, home="nb"), [turned])
    if lives := [one.created_seq for one in came if one.life]:
        _fold_lives(rows, standing.OF_THESE, [lives])
    if deleted := [one.created_seq for one in came if one.deleted]:
        rows(standing.FORGET_DELETED, [deleted])
    if turned:
        for table in _OF_STEPS:
            rows(f"delete from nb.{table} where created_seq in (select unnest($1))", [turned])  # noqa: S608 - ours
        rows("update nb.entries set whole = false where whole and created_seq in (select unnest($1))", [turned])
        _of_steps(rows, standing.OF_THESE, [turned])
    if steps := [one.created_seq for one in came if one.steps and one.created_seq not in turned]:
        _of_steps(rows, standing.OF_TOUCHED, [steps, base])


class _Life:
    """The fold of what an instance's own entries say, as far as views tell it (core/status.py)."""

    def __init__(self) -> None:
        self.status = Status.QUEUED
        self.started_at: datetime | None = None
        self.ended_at: datetime | None = None
        self.ended_seq: int | None = None
        self.code_hash: str | None = None
        self.anew_seq = 0

    def apply(self, seq: int, kind: Kind, at: datetime, code_hash: str | None, keep_below: int | None) -> None:
        if is_void(self.status, kind):
            return
        self.status = after(self.status, kind)
        if kind is Kind.ACTIVATED:
            self.started_at = self.started_at or at
            self.code_hash = code_hash or self.code_hash
        elif kind in _ENDS_IT:
            self.ended_at, self.ended_seq = at, seq
        elif kind in (Kind.ROLLING_BACK, Kind.TERMINATING):
            self.ended_seq = seq  # the error is told while handlers run, or there is none
        elif kind is Kind.RESTARTED:
            self.started_at = None
            self.anew_seq = self.anew_seq if keep_below else seq

    def told(self) -> tuple[object, ...]:
        ended_at = self.ended_at if self.status in FINISHED else None
        return self.status.value, self.started_at, ended_at, self.ended_seq, self.code_hash, self.anew_seq


def _fold_lives(rows: Asked, entries: str, values: Sequence[Any] | None = None, home: str = "nb") -> None:
    lives: dict[int, _Life] = {}
    for created_seq, seq, kind, micros, code_hash, keep_below in rows(standing.LIFE.format(entries=entries, home=home), values):
        if kind in _KINDS:  # a newer nbflow's says nothing here
            at = _EPOCH + timedelta(microseconds=micros)
            lives.setdefault(created_seq, _Life()).apply(seq, _KINDS[kind], at, code_hash, keep_below)
    if lives:
        told = zip(*(life.told() for life in lives.values()), strict=True)
        rows(standing.LIVES.format(home=home), [list(lives), *map(list, told)])


def _create_from(rows: Asked, base: int) -> None:
    rows(standing.CREATED.format(home="nb"), [base])
    rows(standing.VALUES.format(home="nb"), [base])


def _of_steps(rows: Asked, entries: str, values: Sequence[Any]) -> None:
    """Find again where the steps stand that *entries* are all entries of."""
    rows(f"create or replace temp table touched as {standing.COUNTING.format(entries=entries, home='nb')}", values)
    for table in _OF_STEPS:
        rows(standing.FORGET.format(table=table))
    for statement in (standing.ENDED, standing.OPEN, standing.ATTEMPTS):
        rows(statement.format(counting="temp.touched", home="nb"))


def rebuild(rows: Asked) -> None:
    """Make all of it again from the entries."""
    for table in TABLES:
        rows(f"delete from nb.{table}")  # noqa: S608 - ours
    _fill(rows, "nb")
    rows("update nb.entries set whole = false, began_at = null where whole")
    rows(standing.ENDED.format(counting=f"({standing.COUNTING.format(entries=standing.EVERYTHING, home='nb')})"))


def _fill(rows: Asked, home: str) -> None:
    rows(standing.CREATED.format(home=home) + standing.NOT_DELETED, [0])
    rows(standing.VALUES.format(home=home), [0])
    rows(standing.OWNED.format(home=home), [0])
    counting = f"({standing.COUNTING.format(entries=standing.EVERYTHING, home=home)})"
    rows(standing.DROPPED.format(entries=standing.EVERYTHING, home=home))
    _fold_lives(rows, standing.EVERYTHING, home=home)
    for statement in (standing.OPEN, standing.ATTEMPTS):
        rows(statement.format(counting=counting, home=home))


def forget_deleted(rows: Asked) -> None:
    """Remove what is known of instances that are deleted, when their entries are gone."""
    for table in _OF_STEPS:
        rows(f"delete from nb.{table} where created_seq not in (select created_seq from nb.known_instances)")  # noqa: S608 - ours
    for table in ("known_values", "dropped"):
        rows(f"delete from nb.{table} where seq not in (select seq from nb.entries)")  # noqa: S608 - ours


def is_complete(rows: Asked) -> bool:
    """Whether every instance is known; cheap enough for each opening."""
    [(there, known)] = rows(
        "select (select count(*) from nb.entries where kind = 'created' "
        "and seq not in (select created_seq from nb.entries where kind = 'deleted')), (select count(*) from nb.known_instances)"
    )
    return bool(there == known)


def differences(rows: Asked) -> dict[str, int]:
    """How many rows of each table are not what the entries say; made again beside them, so the file may be read-only."""
    for table in TABLES:
        rows(f"create or replace temp table {table} as from nb.{table} limit 0")
    _fill(rows, "temp")
    rows(_BEGAN.format(counting=standing.COUNTING.format(entries=standing.EVERYTHING, home="temp")))
    found = {table: count for table, compared in _COMPARED.items() if (count := _unlike(rows, compared))}
    for table in (*TABLES, "ended"):
        rows(f"drop table temp.{table}")
    return found


def _unlike(rows: Asked, compared: str) -> int:
    made = compared.format(home="temp")
    kept = compared.format(home="nb").replace("nb.ended", _ENDS)
    query = f"select count(*) from (({kept} except all {made}) union all ({made} except all {kept}))"  # noqa: S608 - ours
    count: int = rows(query)[0][0]
    return count
