"""Code that holds the workflow loop is named (S55)."""

import logging
import os
import threading

from nbflow import WorkflowEntrypoint
from nbflow.core.model import Entry, Kind
from nbflow.engine.engine import Engine
from tests.engine.conftest import eventually


def holds_the_loop(gate):
    gate.wait(20)


def test_code_that_holds_the_loop_for_over_a_second_is_named(caplog):
    gate = threading.Event()

    class Holds(WorkflowEntrypoint):
        async def run(self, event, step):
            async def body():
                holds_the_loop(gate)
                return "done"

            return await step.do("hold", body)

    with caplog.at_level(logging.WARNING, logger="nbflow"), Engine(":memory:") as engine:
        instance = engine.register(Holds).create()
        eventually(lambda: engine.watch.held)
        assert "holds_the_loop" in engine.watch.held
        assert f"test_watch.py, line {holds_the_loop.__code__.co_firstlineno + 1}" in engine.watch.held
        gate.set()
        assert instance.wait(10, "finished").output == "done"
        eventually(lambda: engine.watch.held is None)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert told[0].endswith("make it a plain def")


def test_what_was_recorded_before_the_loop_was_held_becomes_durable_all_the_same(tmp_path):
    gate, held = threading.Event(), threading.Event()
    before: list[int] = []

    class Holds(WorkflowEntrypoint):
        async def run(self, event, step):
            async def body():
                journal = engine.store._journal
                engine.store.append(Entry(Kind.SET_ASIDE, instance.created_seq, 1, engine.clock.now()), lambda: None)
                before.append(journal.synced)
                held.set()
                holds_the_loop(gate)

            return await step.do("hold", body)

    with Engine(tmp_path / "h.duckdb") as engine:
        instance = engine.register(Holds).create()
        assert held.wait(10)
        eventually(lambda: engine.store._journal.synced > before[0])
        assert not gate.is_set()
        gate.set()
        instance.wait(10, "finished")


def test_a_loop_that_answers_is_not_complained_of(caplog):
    class Waits(WorkflowEntrypoint):
        async def run(self, event, step):
            await step.sleep("s", 2.2)

    with caplog.at_level(logging.WARNING, logger="nbflow"), Engine(":memory:") as engine:
        engine.register(Waits).create().wait(10, "finished")
    assert caplog.records == []


STUCK = """
def stuck(descriptor):
    if threading.current_thread().name.startswith("nbflow-loop") and not gate.is_set():
        held.set()
        gate.wait(20)
    sync(descriptor)
"""


def test_where_no_code_of_the_notebook_holds_the_loop_that_is_said(monkeypatch, tmp_path):
    gate, held = threading.Event(), threading.Event()
    system = {"threading": threading, "gate": gate, "held": held, "sync": os.fdatasync}
    exec(compile(STUCK, "/usr/lib/python3/disk.py", "exec"), system)  # a disk has no frame; a library's is no user's

    class One(WorkflowEntrypoint):
        async def run(self, event, step):
            async def body():
                return 1

            return await step.do("one", body)

    with Engine(tmp_path / "h.duckdb") as engine:
        monkeypatch.setattr("nbflow.store.journal.os.fdatasync", system["stuck"])
        instance = engine.register(One).create()
        assert held.wait(10)
        eventually(lambda: engine.watch.held)
        assert "plain def" not in engine.watch.held
        assert "the disk" in engine.watch.held
        gate.set()
        assert instance.wait(10, "finished").output == 1
