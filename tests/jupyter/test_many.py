"""The table of many instances: its counts are exact, its rows are few, and what a change costs is what has changed."""

import pytest

from nbflow import Engine, WorkflowEntrypoint
from nbflow.core.model import Owner, Status
from nbflow.engine.instances import Instances
from nbflow.jupyter import fallback, many
from nbflow.jupyter.many import INTERRUPTED, ROWS, Standings, Table
from tests.engine.conftest import eventually


class Live:
    """What an engine knows of one of its instances."""

    def __init__(self, status: Status) -> None:
        self.now, self.asked = status, 0
        self.history = self
        self.head = self
        self.interrupted = None

    def status(self) -> Status:
        self.asked += 1
        return self.now


class One:
    """An instance of which a test counts how often it is read."""

    def __init__(self, engine, seq: int, view) -> None:
        self.engine, self.created_seq, self.workflow_name, self._view, self.read = engine, seq, "Each", view, 0

    def view(self):
        self.read += 1
        return self._view


class FakeEngine:
    def __init__(self) -> None:
        self.live: dict[int, Live] = {}


@pytest.fixture
def view():
    from tests.jupyter.instances import FakeInstance

    return FakeInstance().view()


def thousands(view, count: int = 10_000) -> tuple[FakeEngine, list[One]]:
    engine = FakeEngine()
    engine.live = {seq: Live(Status.QUEUED) for seq in range(1, count + 1)}
    return engine, [One(engine, seq, view) for seq in engine.live]


def test_of_ten_thousand_only_what_changed_is_asked_and_only_rows_are_read(view):
    engine, instances = thousands(view)
    standings = Standings(instances)
    assert len(standings.read()) == ROWS
    assert sum(one.read for one in instances) == ROWS
    for seq in (7, 9_000):
        engine.live[seq].now = Status.RUNNING
        standings.note(seq)
    before = sum(live.asked for live in engine.live.values())
    standings.read()
    assert sum(live.asked for live in engine.live.values()) == before + 2
    assert sum(one.read for one in instances) <= ROWS + 2
    counts = many.Counter(standings.of.values())
    assert counts == {"queued": 9_998, "running": 2}


def test_rows_that_need_somebody_come_before_those_that_are_over(view):
    engine, instances = thousands(view)
    for live in engine.live.values():
        live.now = Status.COMPLETE
    engine.live[9_999].now, engine.live[5_000].now = Status.ERRORED, Status.WAITING
    standings = Standings(instances)
    standings.read()
    assert {instances[9_998].read, instances[4_999].read} == {1}


def test_one_that_ended_here_is_known_without_the_file(view):
    engine, instances = thousands(view, 3)
    standings = Standings(instances)
    standings.read()
    engine.live[2].now = Status.COMPLETE
    standings.note(2)
    del engine.live[2]  # finished ones leave memory; there is no store here to be asked
    standings.read()
    assert list(standings.of.values()) == ["queued", "complete", "queued"]


def test_what_was_over_before_is_not_read_again(view):
    engine, instances = thousands(view)
    engine.live.clear()  # and there is no store
    standings = Standings(instances, {one.created_seq: Status.COMPLETE for one in instances})
    assert len(standings.read()) == ROWS
    assert many.Counter(standings.of.values()) == {"complete": 10_000}


def test_what_is_not_among_them_is_not_noted(view):
    _, instances = thousands(view, 3)
    assert not Standings(instances).note(99)


class Publisher:
    session = object()

    def __init__(self) -> None:
        self.published: list[tuple[dict, bool]] = []

    def publish(self, data, metadata=None, transient=None, update=False) -> None:
        self.published.append((data, update))


@pytest.fixture
def publisher(monkeypatch):
    found = Publisher()
    monkeypatch.setattr("nbflow.jupyter.display._find_publisher", lambda: (found, True))
    monkeypatch.setattr(many, "REWRITE", 0.05)
    monkeypatch.setattr(many, "_SOON", 0.02)
    yield found
    many.close_all()


class Asks(WorkflowEntrypoint):
    async def run(self, event, step):
        if event.payload["n"] == 2:
            raise ValueError("two")
        return (await step.wait_for_event("ask", "approval", prompt="Go on?")).payload


def test_a_table_follows_says_how_to_go_on_and_ends_true(tmp_path, publisher):
    with Engine(tmp_path / "h.duckdb", notebook="a.ipynb") as engine:
        instances = engine.register(Asks).create_batch([{"id": f"a{n}", "params": {"n": n}} for n in range(3)])
        Table(instances, stable=False).show()

        def text() -> str:
            return publisher.published[-1][0]["text/plain"]

        eventually(lambda: "3 instances: 1 errored · 2 waiting" in text())
        page = publisher.published[-1][0]["text/html"]
        assert "how to go on: 2 to be answered, 1 stopped" in page
        assert "%workflow show Asks/a0" in page
        assert "nbflow send-event Asks/a0 approval" in page
        assert "nbflow retry-failed Asks/a2" in page
        assert "Go on?" in page
        instances[0].send_event("approval", {"approved": True})
        eventually(lambda: "1 complete · 1 errored · 1 waiting" in text())
        instances[1].delete()
        eventually(lambda: "2 instances: 1 complete · 1 errored" in text())
        written = len(publisher.published)
        engine.feed.publish(0)
        many.close_all()
        assert len(publisher.published) == written, "what has not changed is not written again"
    assert all(update for _, update in publisher.published[1:])


def test_a_table_shows_that_the_kernel_of_some_is_gone(tmp_path, publisher):  # S51, S52
    with Engine(tmp_path / "h.duckdb", notebook="a.ipynb") as here, Engine(tmp_path / "h.duckdb", notebook="b.ipynb") as there:
        here.register(Asks).create("a1", {"n": 1}).wait(10)
        table = Table(Instances([there.get("a1")]), stable=False)
        table.show()
        eventually(lambda: "1 waiting" in publisher.published[-1][0]["text/plain"])
        owner = there.get("a1").view().owner
        assert isinstance(owner, Owner)
        assert table._standings.neighbours == {owner}
        alive = there.store.alive
        there.store.alive = lambda one: False if one == owner else alive(one)
        eventually(lambda: f"1 {INTERRUPTED}" in publisher.published[-1][0]["text/plain"])
        assert table._standings.neighbours == frozenset()
        there.store.alive = alive


def test_a_stable_table_has_no_times_and_no_commands(view):
    told = fallback.table_bundle([view], {"running": 1}, stable=True)
    assert told["text/plain"].startswith("1 instance: 1 running\n")
    assert "nbflow" not in told["text/html"]
    assert "started" not in told["text/html"]
    assert fallback.table_bundle([], {}, stable=True)["text/plain"] == "no instances"


def test_rows_that_are_not_shown_are_counted(view):
    told = fallback.table_bundle([view], {"running": 9_000, "complete": 1_000}, stable=False)
    assert told["text/plain"].startswith("10,000 instances: 1,000 complete · 9,000 running\n")
    assert told["text/plain"].endswith("\n9,999 more are not shown")
    assert "9,999 more are not shown" in told["text/html"]
