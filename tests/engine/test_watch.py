"""Code that holds the workflow loop is named (S55)."""

import logging
import threading

from nbflow import WorkflowEntrypoint
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
        assert "test_watch.py, line 12" in engine.watch.held
        gate.set()
        assert instance.wait(10, "finished").output == "done"
        eventually(lambda: engine.watch.held is None)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert told[0].endswith("make it a plain def")


def test_a_loop_that_answers_is_not_complained_of(caplog):
    class Waits(WorkflowEntrypoint):
        async def run(self, event, step):
            await step.sleep("s", 2.2)

    with caplog.at_level(logging.WARNING, logger="nbflow"), Engine(":memory:") as engine:
        engine.register(Waits).create().wait(10, "finished")
    assert caplog.records == []
