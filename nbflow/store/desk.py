"""What the sessions of one engine share, and where its files go."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from nbflow.clock import Clock
from nbflow.core.model import Entry, Kind
from nbflow.store import lines, segments
from nbflow.store.database import Database
from nbflow.store.journal import Journal
from nbflow.store.layout import Layout
from nbflow.store.lease import LIFE, Lease, LifeLock, News
from nbflow.system import sync_folder, sync_whole

_LINES = 5_000


def _nobody(what: object) -> None:
    """Nobody is told."""


@dataclass(slots=True)
class Desk:
    """What one engine's sessions share; only the loader's thread works at it.

    Attributes:
        seen: the highest seq taken notice of.
        own: the position up to which the own journal was loaded when last seen.
        noticed: the news counter at the last session.
        meta: what the file said of itself then: settings are part of it.
        news: entries of others about instances, not handed on yet.
        foreign: whether anything of others came.
        life: the lock that says that this engine lives.
        expected: the highest seq, while the file is known to end before it, at *found*; else 0.
        warn: told in words what is wrong without keeping the store from working.
    """

    layout: Layout
    engine: str
    clock: Clock
    database: Database
    lease: Lease
    counter: News
    uid: str = ""
    journal: Journal | None = None
    seen: int = -1
    own: int = 0
    noticed: tuple[int, int] = (0, 0)
    meta: dict[str, str] = field(default_factory=dict)
    news: list[Entry] = field(default_factory=list)
    foreign: bool = False
    life: LifeLock | None = None
    expected: int = 0
    found: int = 0
    warn: Callable[[str], None] = _nobody

    def take(self, journal: Journal) -> None:
        """Work with this journal, whose promises are kept in the life lock."""
        self.journal = journal
        if self.life is not None:
            journal.promise = self.life.promise

    def without_own(self, entries: list[Entry], position: int) -> list[Entry]:
        """Entries of the file without those of the own journal, which somebody else has loaded up to *position*."""
        own: Counter[tuple[object, ...]] = Counter()
        start = self.own
        while start < position:
            stretch = segments.known_good(self.layout.journal, self.engine, start, position, _LINES)
            if stretch.end == start:
                break
            own.update(lines.instance_entries(stretch.data))
            start = stretch.end
        kept = []
        for entry in entries:
            mark = (entry.kind, entry.created_seq, entry.token, entry.recorded_at, lines.body_text(entry.body))
            if own[mark]:
                own[mark] -= 1
            else:
                kept.append(entry)
        return kept


@dataclass(frozen=True, slots=True)
class Opening:
    """What the first session does beside: *make* the file where it is missing, *bring_up_to_date* what is attached."""

    make: Callable[[], None]
    bring_up_to_date: Callable[[], None]


def placed(entries: Iterable[Entry]) -> list[Entry]:
    """Entries as rows: those that create an instance carry what it is searched by."""
    return [
        msgspec.structs.replace(entry, key=place(entry.body["workflow"], entry.body["id"]))
        if entry.kind is Kind.CREATED
        else entry
        for entry in entries
    ]


def place(workflow: str, instance_id: str) -> str:
    """What `created` entries are searched by; neither name has a slash (S2)."""
    return f"{workflow}/{instance_id}"


def put(file: Path, place_of: Path) -> None:
    """Put a whole file in the place of another, to stay."""
    sync_whole(file)
    file.replace(place_of)
    sync_folder(place_of.parent)


def bury(folder: Path, engine: str, *, damaged: bool = False) -> None:
    """Remove a journal that is in the file for good: its segments first, its lock last.

    What is left of a damaged one is kept under another name: it is evidence, and somebody may have the rest.
    """
    for segment in segments.segments(folder, engine):
        if damaged:
            segment.path.rename(free_name(segment.path.with_name(f"{segment.path.name}.damaged")))
        else:
            segment.path.unlink(missing_ok=True)
    for failed in folder.glob(f"{engine}.*.failed"):
        failed.unlink(missing_ok=True)
    (folder / f"{engine}{LIFE}").unlink(missing_ok=True)
    sync_folder(folder)


def free_name(path: Path) -> Path:
    """A name like this that nothing has."""
    number = 1
    free = path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
