"""Code that holds the workflow loop is named (S55)."""

import importlib.util
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import nbflow
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
                created_seq = next(iter(engine.live))  # what `create` gives may have no name yet
                engine.store.append(Entry(Kind.SET_ASIDE, created_seq, 1, engine.clock.now()), lambda: None)
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


def test_an_import_that_nbflow_makes_is_not_laid_to_the_line_of_run_that_called_it(tmp_path, monkeypatch):
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "slow_to_import.py").write_text("import builtins\nbuiltins.slow_to_import.wait(20)\n")
    monkeypatch.syspath_prepend(library)
    monkeypatch.setattr("builtins.slow_to_import", gate := threading.Event(), raising=False)
    ours: dict[str, Any] = {}
    text = "def describe():\n    import slow_to_import"
    exec(compile(text, f"{Path(nbflow.__file__).parent}/values/schemas.py", "exec"), ours)

    class Imports(WorkflowEntrypoint):
        async def run(self, event, step):
            ours["describe"]()

    with Engine(":memory:") as engine:
        instance = engine.register(Imports).create()
        eventually(lambda: engine.watch.held)
        assert engine.watch.held == "no code of the notebook (describe imports a library for the first time)"
        gate.set()
        instance.wait(10, "finished")


def test_an_import_that_run_makes_is_laid_to_it(tmp_path, monkeypatch):
    (tmp_path / "slow_in_run.py").write_text("import builtins\nbuiltins.slow_in_run.wait(20)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("builtins.slow_in_run", gate := threading.Event(), raising=False)

    class Imports(WorkflowEntrypoint):
        async def run(self, event, step):
            import slow_in_run  # noqa: F401

    with Engine(":memory:") as engine:
        instance = engine.register(Imports).create()
        eventually(lambda: engine.watch.held)
        assert "slow_in_run.py, line 2" in engine.watch.held
        gate.set()
        instance.wait(10, "finished")


@pytest.mark.skipif(importlib.util.find_spec("rfc3987_syntax") is None, reason="jsonschema checks no iri here")
def test_a_workflow_with_a_schema_imports_what_checks_it_when_it_is_registered(tmp_path):  # S55: its wait would hold the loop
    text = """
import sys
from nbflow import Engine, WorkflowEntrypoint

class Asks(WorkflowEntrypoint):
    async def run(self, event, step):
        return (await step.wait_for_event("ask", "answer", schema={"type": "integer"})).payload

def loaded():
    return [name for name in ("jsonschema", "rfc3987_syntax") if name in sys.modules]

with Engine(":memory:") as engine:
    before = loaded()
    workflow = engine.register(Asks)
    print(before, loaded())
    instance = workflow.create()
    instance.wait(20)
    instance.send_event("answer", 3)
    print(instance.wait(20, "finished").output, loaded())
import jsonschema
iri = jsonschema.Draft202012Validator({"format": "iri"}, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
print(iri.is_valid("http://é.example/"), iri.is_valid("a b"), loaded())
"""
    (tmp_path / "asks.py").write_text(text)
    done = subprocess.run([sys.executable, tmp_path / "asks.py"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [
        "[] ['jsonschema']",
        "3 ['jsonschema']",
        "True False ['jsonschema', 'rfc3987_syntax']",  # what takes seconds is imported when it is called
    ]
