"""Take instances over: those of some seqs, or all unfinished ones of a workflow, a few under each lease.

Each decision is taken on what is in the file after the owner's journal has been loaded (S52).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from nbflow.clock import Clock
from nbflow.core.history import Head
from nbflow.core.model import Entry, Kind, Owner
from nbflow.store.loader import Loader
from nbflow.store.memory import claim_body
from nbflow.store.newest import AT_ONCE, OF_WORKFLOW
from nbflow.store.session import ROWS, Session

_NEWEST = 2**62
# The fold decides; this leaves out what has ended.
_UNFINISHED = (
    f"{OF_WORKFLOW} and status not in ('complete', 'errored', 'terminated') and created_seq < $2 "
    f"order by created_seq desc limit {AT_ONCE}"
)


class Part(Protocol):
    """Instances that are looked at under one lease.

    Attributes:
        last: whether no part comes after it; known when it has been asked.
    """

    last: bool

    def load(self, session: Session) -> bool:
        """Load what must be known to find them; False where some is left for another lease."""

    def heads(self, session: Session) -> dict[int, Head]:
        """Those that may be claimed, as the file has them now."""


class _These:
    """The instances of some seqs."""

    def __init__(self, seqs: Sequence[int], *, last: bool) -> None:
        self._seqs, self.last = seqs, last

    def load(self, _session: Session) -> bool:
        return True

    def heads(self, session: Session) -> dict[int, Head]:
        return session.heads(self._seqs)


class _Unfinished:
    """Unfinished instances of a workflow that are *wanted*, the newest first, of those created before *before*."""

    def __init__(self, workflow: str, wanted: Callable[[Head], bool], before: int) -> None:
        self._workflow, self._wanted, self._before = workflow, wanted, before
        self.last = False
        self.oldest = before

    def load(self, session: Session) -> bool:
        return session.load_others()

    def heads(self, session: Session) -> dict[int, Head]:
        seqs = [seq for (seq,) in session.rows(_UNFINISHED, [self._workflow, self._before])]
        self.last = len(seqs) < AT_ONCE
        self.oldest = min(seqs, default=self._before)
        heads = session.heads(seqs)
        return {seq: heads[seq] for seq in seqs if seq in heads and not heads[seq].finished and self._wanted(heads[seq])}


def these(seqs: Sequence[int]) -> Iterator[Part]:
    """The instances of these seqs."""
    different = list(dict.fromkeys(seqs))
    for start in range(0, len(different), AT_ONCE):
        end = start + AT_ONCE
        yield _These(different[start:end], last=end >= len(different))


def unfinished(workflow: str, wanted: Callable[[Head], bool]) -> Iterator[Part]:
    """All unfinished instances of a workflow of which *wanted* is true."""
    part = _Unfinished(workflow, wanted, _NEWEST)
    yield part
    while not part.last:
        part = _Unfinished(workflow, wanted, part.oldest)
        yield part


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim that was written; *entries* are all of the instance, None where that is much to read under one lease."""

    claim: Entry
    entries: list[Entry] | None


def claim(
    loader: Loader, clock: Clock, parts: Iterable[Part], owner: Owner, by: str, gone_for_good: Callable[[Owner], bool]
) -> dict[int, Claimed]:
    """Write claims on those of the instances that nobody runs, or only engines that are *gone_for_good*.

    Whoever asks is answered as soon as the claims are durable, if one lease was enough: folding them into the file takes as
    long again.
    """
    claimed: dict[int, Claimed] = {}

    def answer(given: dict[int, Claimed]) -> None:
        entries = {seq: one.entries for seq, one in given.items()}
        if part.last and not claimed and None not in entries.values():
            loader.answer(entries)

    for part in parts:
        claimed |= _Claiming(part, owner, by, gone_for_good, clock, answer).run(loader)
    return claimed


class _Claiming:
    """The claims on one part."""

    def __init__(
        self,
        part: Part,
        owner: Owner,
        by: str,
        gone_for_good: Callable[[Owner], bool],
        clock: Clock,
        answer: Callable[[dict[int, Claimed]], None],
    ) -> None:
        self._part, self._owner, self._by, self._clock = part, owner, by, clock
        self._gone_for_good, self._answer = gone_for_good, answer
        self._gone: set[str] = set()
        self._heads: dict[int, Head] = {}

    def run(self, loader: Loader) -> dict[int, Claimed]:
        return loader.after(self._load, self._claim, self._answer)

    def _load(self, session: Session) -> bool:
        """Take over the journals of the dead; False where some of them is left for another lease."""
        if not self._part.load(session):
            return False
        self._gone.clear()
        found = self._part.heads(session)
        owners = {head.owner.engine: head.owner for head in found.values() if head.owner is not None}
        complete = True
        for engine, former in owners.items():
            if engine == self._owner.engine or not self._gone_for_good(former):
                continue
            buried = session.bury(engine)
            if buried is not None:
                self._gone.add(engine)
            complete &= buried is not False
        self._heads = self._part.heads(session) if self._gone else found
        return complete

    def _claim(self, session: Session) -> dict[int, Claimed]:
        now = self._clock.now()
        claims = []
        for seq, head in self._heads.items():
            if head.deleted or (head.owner is not None and head.owner.engine not in self._gone):
                continue
            body = claim_body(self._owner, self._by)
            if head.owner is not None and (lost := session.lost(head.owner.engine)) is not None:
                body["lost"] = lost
            claims.append(Entry(Kind.CLAIMED, seq, head.token + 1, now, body=body))
        left, claimed = ROWS, {}
        for entry in session.write(claims):
            entries = session.entries(entry.created_seq, 0, entry.seq, left) if left else []
            claimed[entry.created_seq] = Claimed(entry, entries if len(entries) < left else None)
            left -= len(entries)
        return claimed
