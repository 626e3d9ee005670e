"""List instances: the newest first, found by the entries that created them, then folded a few at a time."""

from nbflow.core.history import Head
from nbflow.store.loader import Loader
from nbflow.store.session import Session

AT_ONCE = 500
"""Instances that are folded or claimed under one lease."""

_CREATED = (
    "select seq from nb.entries where kind = 'created' and ($1 is null or starts_with(key, $1)) "
    "and seq not in (select created_seq from nb.entries where kind = 'deleted')"
)
# The fold decides; this leaves out what has ended and was never begun again.
_UNFINISHED = (
    " and seq not in (select created_seq from nb.entries where step is null and kind in "
    "('completed', 'errored', 'terminated', 'retried', 'restarted') group by created_seq "
    "having arg_max(kind, seq) in ('completed', 'errored', 'terminated'))"
)


def newest(loader: Loader, workflow: str | None, *, unfinished: bool, limit: int | None) -> list[Head]:
    """Instances, newest first, deleted ones left out; see `Store.heads`.

    What this engine runs is known to whoever looks for *unfinished* ones: its own journal can wait.
    """
    limited = "" if limit is None or unfinished else f" limit {limit:d}"
    query = f"{_CREATED}{_UNFINISHED if unfinished else ''} order by seq desc{limited}"
    prefix = None if workflow is None else f"{workflow}/"

    def first(session: Session) -> tuple[list[int], dict[int, Head]]:
        asked = [seq for (seq,) in session.rows(query, [prefix])]
        return asked, session.heads(asked[:AT_ONCE])

    seqs, heads = loader.after(Session.load_others if unfinished else Session.load_all, first)
    found: list[Head] = []
    for start in range(0, len(seqs), AT_ONCE):
        part = seqs[start : start + AT_ONCE]
        if start:
            with loader.session() as session:
                heads = session.heads(part)
        found += [head for seq in part if (head := heads.get(seq)) and not head.deleted and not (unfinished and head.finished)]
        if limit is not None and len(found) >= limit:
            break
    return found[:limit]
