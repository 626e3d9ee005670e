"""What goes to the DuckDB file directly, under the lease: creations, and what others say about an instance; claims: claims.py.

Each decision is taken on what is in the file after the owner's journal has been loaded (S52).
"""

from collections.abc import Callable, Sequence

from nbflow.clock import Clock
from nbflow.core.history import Head, fold_head
from nbflow.core.model import FENCES, Draft, Entry, Kind, Owner
from nbflow.errors import NotFoundError
from nbflow.store.base import Decision
from nbflow.store.desk import place
from nbflow.store.loader import Loader
from nbflow.store.memory import claim_body
from nbflow.store.session import Session

Decide = Callable[[Head, Callable[[], list[Entry]]], Sequence[Decision]]


def create(loader: Loader, clock: Clock, drafts: Sequence[Draft], owner: Owner | None) -> list[list[Entry] | Head]:
    """Create what does not exist; see `Store.create`."""
    there: dict[str, int] = {}

    def load(session: Session) -> bool:
        there.clear()
        there.update(_there(session, drafts))
        if not there:
            return True
        complete = session.load_all()  # where one was deleted, its engine's journal says so first
        there.clear()
        there.update(_there(session, drafts))
        return complete

    return loader.after(load, lambda session: _created(session, there, drafts, owner, clock), loader.answer)


def _there(session: Session, drafts: Sequence[Draft]) -> dict[str, int]:
    """Which of them exist, by their place: the seq of the entry that created each."""
    found = "select workflow || '/' || instance_id as place, created_seq from nb.known_instances where"
    if len(drafts) == 1:  # planned in half the time
        one = [drafts[0].workflow, drafts[0].instance_id]
        return dict(session.rows(f"{found} workflow = $1 and instance_id = $2", one))
    places = [place(draft.workflow, draft.instance_id) for draft in drafts]
    ids = [draft.instance_id for draft in drafts]
    return dict(session.rows(f"{found} instance_id in (select unnest($1)) and place in (select unnest($2))", [ids, places]))


def _created(
    session: Session, there: dict[str, int], drafts: Sequence[Draft], owner: Owner | None, clock: Clock
) -> list[list[Entry] | Head]:
    heads = session.heads(there.values())
    now, last = clock.now(), session.last
    fresh: list[Entry] = []
    made: dict[str, int] = {}
    for draft in drafts:
        where = place(draft.workflow, draft.instance_id)
        if where in there or where in made:
            continue
        made[where] = len(fresh)
        body = {**draft.body, "workflow": draft.workflow, "id": draft.instance_id}
        fresh.append(Entry(Kind.CREATED, 0, 0, now, body=body, value=draft.params))
        if owner is not None:
            fresh.append(Entry(Kind.CLAIMED, last + len(fresh), 1, now, body=claim_body(owner, "create")))
    written = session.write(fresh)
    step = 1 if owner is None else 2
    given: list[list[Entry] | Head] = []
    first: set[str] = set()
    for draft in drafts:
        where = place(draft.workflow, draft.instance_id)
        if where in there:
            given.append(heads[there[where]])
            continue
        entries = written[made[where] : made[where] + step]
        given.append(fold_head(entries) if where in first else entries)
        first.add(where)
    return given


def command(loader: Loader, clock: Clock, created_seq: int, decide: Decide) -> list[Entry]:
    """Write what somebody else says about an instance; see `Store.command`."""

    def load(session: Session) -> bool:
        head = session.heads([created_seq]).get(created_seq)
        return head is None or head.owner is None or session.load(head.owner.engine, strict=True)

    def work(session: Session) -> list[Entry]:
        head = session.heads([created_seq]).get(created_seq)
        if head is None or head.deleted:
            msg = f"instance {created_seq} does not exist (any more): look it up again"
            raise NotFoundError(msg)
        token, now = head.token, clock.now()
        entries = []
        for kind, body, value in decide(head, lambda: session.entries(created_seq)):
            token += kind in FENCES
            entries.append(Entry(kind, created_seq, token if kind in FENCES else 0, now, body=body, value=value))
        return session.write(entries)

    return loader.after(load, work)
