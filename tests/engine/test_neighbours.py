"""What is shown here and runs elsewhere: the end of its engine writes nothing, and is noticed all the same (S52)."""

import subprocess
import sys
import threading
from collections import Counter

import pytest

from nbflow import Engine
from nbflow.core.model import Owner
from nbflow.engine.neighbours import Neighbours
from nbflow.errors import StoreError
from tests.engine.conftest import eventually

OWNER = """
import sys, threading
from nbflow import Engine, WorkflowEntrypoint

class Long(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("work", threading.Event().wait)

engine = Engine("h.duckdb", notebook="a.ipynb")
engine.register(Long).create("w1")
while not engine.get("w1").view().running:
    pass
print("works", flush=True)
sys.stdin.read()
"""


class Locks:
    """The life locks of engines, and who looked at them."""

    def __init__(self) -> None:
        self.lives: dict[str, bool | None] = {}
        self.looked: Counter[str] = Counter()
        self.broken = False

    def alive(self, owner: Owner) -> bool | None:
        self.looked[owner.engine] += 1
        if self.broken:
            raise StoreError("the disk is away")
        return self.lives[owner.engine]


@pytest.fixture
def locks() -> Locks:
    found = Locks()
    found.lives = {"a": True, "b": True}
    return found


def owner(engine: str) -> Owner:
    return Owner(engine, 7, "lab", "", "")


def test_each_engine_is_looked_at_once_however_many_show_it_and_none_when_nobody_does(locks):
    told: list[str] = []
    neighbours = Neighbours(locks, lambda: told.append("gone"))
    neighbours.look()
    for panel in range(100):
        neighbours.show(panel, [owner("a")])
    neighbours.show("table", [owner("a"), owner("b")])
    neighbours.look()
    assert locks.looked == {"a": 1, "b": 1}
    for panel in [*range(100), "table"]:
        neighbours.show(panel, [])
    neighbours.look()
    assert locks.looked == {"a": 1, "b": 1}
    assert told == []


@pytest.mark.parametrize("life", [False, None])
def test_the_end_of_an_engine_is_told_once_and_the_others_are_watched_on(locks, life):
    told: list[str] = []
    neighbours = Neighbours(locks, lambda: told.append("gone"))
    neighbours.show("table", [owner("a"), owner("b")])
    locks.lives["a"] = life
    for _ in range(3):
        neighbours.look()
    assert told == ["gone"]
    assert locks.looked == {"a": 1, "b": 3}


def test_a_lock_that_cannot_be_read_now_says_nothing_and_is_read_again(locks):
    told: list[str] = []
    neighbours = Neighbours(locks, lambda: told.append("gone"))
    neighbours.show("panel", [owner("a")])
    locks.broken = True
    neighbours.look()
    assert told == []
    locks.broken, locks.lives["a"] = False, False
    neighbours.look()
    assert told == ["gone"]


def test_the_death_of_a_process_is_told_to_whoever_shows_what_it_ran(tmp_path):
    with Engine(tmp_path / "h.duckdb", notebook="b.ipynb") as engine:
        told = threading.Event()
        command = [sys.executable, "-c", OWNER]
        with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "works\n"
                seen = engine.get("w1")
                engine.feed.subscribe(lambda created_seq: told.set() if created_seq == 0 else None)
                view = seen.view()
                assert view.neighbours == (view.owner,)
                engine.watch.show("panel", view.neighbours)
            finally:
                process.kill()
        eventually(told.is_set)
        view = seen.view()
        assert (view.unattended, view.neighbours) == (True, ())
        assert "its kernel is gone (a.ipynb" in (view.why_interrupted or "")
