"""Who lives and who is dead, told by the locks on one file each: under load, through forks, and while others look too."""

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nbflow.store import lease
from nbflow.store.doctor import Severity, examine
from nbflow.store.layout import Layout
from tests.store.actors import killed_after, names, owner

ENGINE = "e" * 32
TWELVE = """
created = start_instance(store)
for n in range(12):
    store.append(finished(created, f"s{n}"))
store.flush()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "journal").mkdir()
    return tmp_path / "journal"


@pytest.fixture
def looked_at(file: Path) -> Iterator[Callable[[], str]]:
    """Makes a dead engine at whose life lock somebody looks all the time: a process that the system does not let go on."""
    opened = []

    def make() -> str:
        engine = killed_after(file, TWELVE)
        looking = (file.with_suffix(".nbflow") / "journal" / f"{engine}{lease.LIFE}").open("rb")
        opened.append(looking)
        fcntl.flock(looking, fcntl.LOCK_SH)
        return engine

    yield make
    for looking in opened:
        looking.close()


@pytest.fixture
def inherited(monkeypatch) -> Iterator[list[int]]:
    """Each descriptor that is locked has a second one, as in a child that is forked at that moment and has not got far."""
    numbers: list[int] = []
    real = lease.try_lock

    def locked(descriptor: int, *, shared: bool = False) -> bool:
        numbers.append(os.dup(descriptor))
        return real(descriptor, shared=shared)

    monkeypatch.setattr(lease, "try_lock", locked)
    yield numbers
    for number in numbers:
        os.close(number)


def free(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_who_opens_while_somebody_looks_at_a_dead_engine_finds_its_journal_whole_and_buries_it(opened, file, looked_at):
    engine = looked_at()
    store = opened()
    assert store.warnings == []
    assert names(store.read(1)) == ["created", "claimed", *(f"s{n}" for n in range(12))]
    assert not list((file.with_suffix(".nbflow") / "journal").glob(f"*{engine}*"))
    store.close()
    notes = [finding.what for finding in examine(file) if finding.severity is not Severity.FINE]
    assert notes == ["W/a is unfinished and its kernel is gone"]


def test_who_claims_while_somebody_looks_at_a_dead_engine_is_told_of_no_loss(opened, file, looked_at):
    store = opened()
    engine = looked_at()
    [entries] = store.claim([1], owner(store), "cell").values()
    assert "lost" not in entries[-1].body
    assert store.head(1) is not None  # comes after the claim's lease
    assert not list((file.with_suffix(".nbflow") / "journal").glob(f"*{engine}*"))


def test_an_engine_is_dead_while_another_loads_its_journal(folder):
    lease.LifeLock(folder, ENGINE).forget()
    life, lock = lease.seize(folder, ENGINE)
    assert (life, lease.lives(folder, ENGINE)) == (False, False)
    lease.let_go(lock)
    assert free(folder / f"{ENGINE}{lease.LIFE}")


def test_a_living_engine_is_not_seized_and_one_without_a_lock_is_unknown(folder):
    lock = lease.LifeLock(folder, ENGINE)
    assert lease.seize(folder, ENGINE) == (True, None)
    assert lease.lives(folder, ENGINE) is True
    lock.remove()
    assert lease.seize(folder, ENGINE) == (None, None)
    assert lease.lives(folder, ENGINE) is None


def test_a_lock_of_a_file_that_was_made_anew_meanwhile_says_nothing(folder, monkeypatch):
    lease.LifeLock(folder, ENGINE).forget()
    real, anew = lease.try_lock, []

    def replaced(descriptor: int, *, shared: bool = False) -> bool:
        if not anew and shared:
            anew.append(None)
            (folder / f"{ENGINE}{lease.LIFE}").unlink()
            anew[0] = lease.LifeLock(folder, ENGINE)
        return real(descriptor, shared=shared)

    monkeypatch.setattr(lease, "try_lock", replaced)
    assert lease.lives(folder, ENGINE) is True
    anew[0].remove()


def test_looking_leaves_no_lock_in_a_child_that_is_forked_meanwhile(folder, inherited):
    lease.LifeLock(folder, ENGINE).release()
    inherited.clear()
    assert lease.lives(folder, ENGINE) is False
    assert inherited
    assert free(folder / f"{ENGINE}{lease.LIFE}")


def test_an_engine_that_has_closed_does_not_live_on_in_a_child_that_is_forked_meanwhile(folder, inherited):
    lease.LifeLock(folder, ENGINE).release()
    assert inherited
    assert lease.lives(folder, ENGINE) is False


def test_a_child_that_leaves_the_lock_to_its_parent_does_not_free_it(folder, inherited):
    lock = lease.LifeLock(folder, ENGINE)
    lock.forget()
    assert inherited
    assert lease.lives(folder, ENGINE) is True


def test_an_engine_whose_descriptors_were_closed_locks_anew_once_nobody_looks(folder):
    lock = lease.LifeLock(folder, ENGINE)
    os.close(lock._held.number)
    _, looking = lease.seize(folder, ENGINE)
    lock.keep()
    assert lease.lives(folder, ENGINE) is False
    lease.let_go(looking)
    lock.keep()
    assert lease.lives(folder, ENGINE) is True
    lock.remove()


def test_a_signature_that_could_not_be_put_in_place_keeps_out_no_later_one(tmp_path, monkeypatch):
    """As on a full disk, or on Windows while somebody reads the old one."""
    layout = Layout.of(tmp_path / "history.duckdb")
    layout.prepare()
    held = lease.Lease(layout, lease.own_holder(ENGINE, "first.ipynb"))

    def refused(*_: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refused)
        assert held.acquire(1, lambda: False)
    assert held.holder() == "another process"
    held.release()
    assert held.acquire(1, lambda: False)
    assert held.holder().startswith("first.ipynb, PID ")
    held.release()
    held.forget()
