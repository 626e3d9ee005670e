"""List instances: the newest first, found by the entries that created them, then folded a few at a time."""

from nbflow.core.history import Head
from nbflow.store.loader import Loader
from nbflow.store.session import Session

AT_ONCE = 500
"""Instances that are folded or claimed under one lease."""

OF_WORKFLOW = "select created_seq from nb.known_instances where ($1 is null or workflow = $1)"


def newest(loader: Loader, workflow: str | None, *, limit: int | None) -> list[Head]:
    """Instances, newest first, deleted ones left out; see `Store.heads`."""
    limited = "" if limit is None else f" limit {limit:d}"
    query = f"{OF_WORKFLOW} order by created_seq desc{limited}"

    def first(session: Session) -> tuple[list[int], dict[int, Head]]:
        asked = [seq for (seq,) in session.rows(query, [workflow])]
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
