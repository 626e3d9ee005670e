"""A history whose values a stranger wrote, opened by an engine: nothing of them runs, and the user is told what is wrong."""

import base64
import hashlib
import json
import os
import pickle
import shutil
import time

import duckdb
import pytest

from nbflow import WorkflowEntrypoint
from nbflow.core.parts import difference
from nbflow.engine.engine import Engine
from nbflow.errors import NbflowError, StoreCorruptError, UndecodableError


class Waits(WorkflowEntrypoint):
    async def run(self, event, step):
        first = await step.do("first", lambda: {"x": 1})
        answer = await step.wait_for_event("ask", "go", schema={"type": "string", "pattern": "^a+$"})
        return [first, answer.payload]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a store in it: one instance that waits."""
    folder = tmp_path_factory.mktemp("made")
    with Engine(folder / "history.duckdb") as engine:
        engine.register(Waits).create("one", {"p": 1}).wait(20)
    return folder


@pytest.fixture
def file(made, tmp_path):
    """The file of a copy of that store."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy" / "history.duckdb"


def altered(file, statement, *values):
    with duckdb.connect(str(file)) as connection:
        connection.execute(statement, list(values))


def pickled(file):
    """A pickle that touches a file when it is read."""

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch '{file}'",)

    content = pickle.dumps(Evil())
    node = {"$": "file", "codec": "pickle", "data": base64.b64encode(content).decode(), "type": "dict", "size": len(content)}
    return b"t" + json.dumps({**node, "hash": hashlib.sha256(content).hexdigest(), "ext": "pkl"}).encode()


VALUES = {
    "nested": b"j" + b"[" * 100_000,
    "cut": b"t{",
    "another file": b'a{"$":"file","codec":"json","uri":"../../../../etc/passwd","hash":"0"}',
    "sealed": b"x{}",
    "no text": b"\xff\xfe",
    "a class": b't{"$":"dataclass","c":"subprocess:Popen","v":{"args":["true"]}}',
}


@pytest.mark.parametrize("name", ["a pickle", *VALUES])
def test_a_result_of_a_stranger_interrupts_the_instance_and_runs_nothing(file, tmp_path, name):
    value = pickled(tmp_path / "hit") if name == "a pickle" else VALUES[name]
    altered(file, "update entries set value = $1 where step = 'first'", value)
    with Engine(file) as engine:
        engine.register(Waits)
        instance = engine.get("one")
        deadline = time.monotonic() + 20
        while not (why := instance.status().interrupted):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert '"first"' in why
        with pytest.raises(UndecodableError):
            instance.step("first").output  # noqa: B018
        assert len(engine.sql("from steps").fetchall()) == 2
        assert instance.view().total == 2
    assert not (tmp_path / "hit").exists()


@pytest.mark.parametrize("value", [VALUES["nested"], b"t{", b"", b"x5"])
def test_parameters_of_a_stranger_keep_no_other_instance_from_being_opened(file, value):
    altered(file, "update entries set value = $1 where kind = 'created'", value)
    with Engine(file) as engine:
        workflow = engine.register(Waits)
        assert [one.id for one in engine.list()] == ["one"]
        with pytest.raises(NbflowError):
            engine.get("one").params  # noqa: B018
        with pytest.raises(NbflowError):
            engine.open(workflow, "one", {"p": 1})
        assert engine.open(workflow, None, {"p": 1}).what == "created"


@pytest.mark.parametrize("body", ["[]", '{"engine": 5}', "{" * 5_000, '{"workflow": "../../x", "id": "y"}'])
def test_an_entry_that_is_none_is_named_and_left(file, body):
    altered(file, "update entries set body = $1 where kind = 'created'", body)
    with Engine(file) as engine:
        with pytest.raises(StoreCorruptError, match="entry 1 of the history"):
            engine.list()
        assert engine.sql("select count(*) from entries").fetchall()[0][0] > 3


@pytest.mark.parametrize("schema", [{"$ref": "file:///etc/passwd"}, {"pattern": "^(a+)+$"}, {"$ref": "#"}, 5, {"type": 5}])
def test_a_schema_of_a_stranger_refuses_the_answer_and_holds_nobody_up(file, schema):
    altered(file, "update entries set body = json_merge_patch(body, $1) where step = 'ask'", json.dumps({"schema": schema}))
    with Engine(file) as engine:
        began = time.process_time()
        with pytest.raises(NbflowError, match=r"cannot be used|not JSON|is not"):
            engine.get("one").send_event("go", "a" * 60 + "b")
        assert time.process_time() - began < 5


def test_code_that_is_too_long_to_compare_is_not_compared():
    assert "too many to compare" in difference("the body", "a\n" * 3_000_000, "b\n" * 10)
    assert "+b" in difference("the body", "a\n" * 3, "b\n" * 3)
