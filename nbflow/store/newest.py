"""List instances: the newest first, found by the entries that created them, then folded a few at a time."""

from typing import Any

from nbflow.core.history import Head
from nbflow.core.model import Status
from nbflow.store.loader import Loader
from nbflow.store.session import Session

AT_ONCE = 500
"""Instances that are folded or claimed under one lease."""

OF_WORKFLOW = "select created_seq from nb.known_instances where ($1 is null or workflow = $1)"


_ALIKE = (
    "select i.created_seq from nb.known_instances as i join nb.entries as e on e.seq = i.created_seq "
    "where i.workflow = $1 and octet_length(e.value) = coalesce($2, octet_length(e.value)) "
    "and (e.value >= 'j'::blob and e.value < 'k'::blob) = ($2 is not null) order by 1 desc"
)
_NUMBERED = (
    f"{OF_WORKFLOW} and (instance_id = $2 or (starts_with(instance_id, $2 || '-') "
    "and regexp_full_match(instance_id[length($2) + 2:], '[1-9][0-9]{0,8}'))) order by 1 desc"
)


_STANDING = "select created_seq from nb.instances where ($1 is null or workflow = $1) and status = $2"


def newest(loader: Loader, workflow: str | None, *, limit: int | None) -> list[Head]:
    """Instances, newest first, deleted ones left out; see `Store.heads`."""
    return _found(loader, f"{OF_WORKFLOW} order by created_seq desc{_limited(limit)}", [workflow])


def standing(loader: Loader, workflow: str | None, status: Status, *, limit: int | None) -> list[Head]:
    """The same of those that stand so, as far as their entries tell; of a file whose views are as nbflow makes them."""
    return _found(loader, f"{_STANDING} order by created_seq desc{_limited(limit)}", [workflow, status.value])


def _limited(limit: int | None) -> str:
    return "" if limit is None else f" limit {limit:d}"


def alike(loader: Loader, workflow: str, params: bytes) -> list[Head]:
    """See `Store.alike`."""
    return _found(loader, _ALIKE, [workflow, length(params)])


def length(params: bytes) -> int | None:
    """Bytes of params that are plain JSON, which the order of dicts does not change; None of others, which may lie in files."""
    return len(params) if params[:1] == b"j" else None


def numbered(loader: Loader, workflow: str, instance_id: str) -> list[Head]:
    """See `Store.numbered`."""
    return _found(loader, _NUMBERED, [workflow, instance_id])


def _found(loader: Loader, query: str, values: list[Any]) -> list[Head]:
    def first(session: Session) -> tuple[list[int], dict[int, Head]]:
        asked = [seq for (seq,) in session.rows(query, values)]
        return asked, session.heads(asked[:AT_ONCE])

    seqs, heads = loader.after(Session.load_all, first)
    found: list[Head] = []
    for start in range(0, len(seqs), AT_ONCE):
        part = seqs[start : start + AT_ONCE]
        if start:
            with loader.session() as session:
                heads = session.heads(part)
        found += [head for seq in part if (head := heads.get(seq)) and not head.deleted]
    return found
