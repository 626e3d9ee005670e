"""sensitive="output": the workflow gets the value, no display does (API.md §1)."""

import asyncio
import base64
import json
import subprocess
import sys
import time
import traceback
from typing import ClassVar

import numpy as np
import pytest

from nbflow import InstanceFailedError, NonRetryableError, UsageError, WorkflowEntrypoint
from nbflow.engine import reading
from nbflow.engine.engine import Engine
from nbflow.jupyter import details, fallback, snapshot

SECRET = "-".join(("hunter2", "very", "secret"))  # as from the environment: it stands in no source


class Keeps(WorkflowEntrypoint):
    async def run(self, event, step):
        token = await step.do("token", lambda: {"token": SECRET}, sensitive="output")
        other = await step.do("other", lambda: SECRET, config={"sensitive": "output"})
        await step.wait_for_event("w", "go")
        return token["token"] == SECRET and other == SECRET


def shown(engine, instance):
    rows = [str(step) + str(step.output) + str(step.preview) + str(step.error) for step in instance.steps]
    sql = engine.sql("select * from steps").fetchall() + engine.sql("select * from attempts").fetchall()
    sql += engine.sql("select * from instances").fetchall()
    return "\n".join([*rows, str(sql), repr(instance), str(instance.status()), str(instance.view())])


def test_the_workflow_gets_the_value_and_no_display_does(tmp_path):
    with Engine(tmp_path / "h.duckdb") as engine:
        instance = engine.register(Keeps).create()
        instance.wait(10)
        text = shown(engine, instance)
        assert SECRET not in text
        assert instance.step("token").output == "[REDACTED]"
        instance.send_event("go")
        assert instance.wait(10, "finished").output is True


def test_a_replay_gets_the_value_too(tmp_path):
    with Engine(tmp_path / "h.duckdb") as engine:
        engine.register(Keeps).create(id="one").wait(10)
    with Engine(tmp_path / "h.duckdb") as engine:
        engine.register(Keeps)
        instance = engine.get("one")
        instance.send_event("go")
        assert instance.wait(10, "finished").output is True


def test_the_error_of_a_sensitive_step_reaches_run_and_nobody_else(tmp_path):
    caught = []

    class Fails(WorkflowEntrypoint):
        async def run(self, event, step):
            def fails():
                raise NonRetryableError(f"no access with {SECRET}")

            try:
                await step.do("secret", fails, sensitive="output")
            except NonRetryableError as error:
                caught.append(str(error))
                if event.payload.get("again"):
                    raise ValueError(f"because {error}") from error
            await step.wait_for_event("w", "go")

    with Engine(tmp_path / "h.duckdb") as engine:
        workflow = engine.register(Fails)
        instance = workflow.create(id="one")
        instance.wait(10)
        assert caught == [f"no access with {SECRET}"]
        assert SECRET not in shown(engine, instance)
        failed = workflow.create(params={"again": True})
        failed.wait(10, "finished")
        assert SECRET not in shown(engine, failed)
        assert failed.status().error.type == "ValueError"
    caught.clear()
    with Engine(tmp_path / "h.duckdb") as engine:
        engine.register(Fails)
        engine.get("one").wait(10)
        assert caught == [f"no access with {SECRET}"]


def test_other_words_are_refused():
    class Wrong(WorkflowEntrypoint):
        async def run(self, event, step):
            with pytest.raises(UsageError, match='only "output"'):
                step.do("a", lambda: 1, sensitive="input")
            return "ok"

    with Engine(":memory:") as engine:
        assert engine.register(Wrong).create().wait(10, "finished").output == "ok"


KEY = "k" * 20 + "-of-the-operator-1234567890"


class Sealed(WorkflowEntrypoint):
    async def run(self, event, step):
        token = await step.do("token", lambda: {"token": SECRET}, sensitive="output")
        table = await step.do("table", lambda: np.frombuffer(SECRET.encode() * 100_000, np.uint8), sensitive="output")
        lazy = await step.do("lazy", lambda: [SECRET] * 3, sensitive="output", lazy=True)
        loaded = await step.do("load", lambda ref: len(ref), lazy)
        try:
            await step.do("fails", fails_with_secret, sensitive="output")
        except NonRetryableError as error:
            said = SECRET in str(error)
        await step.wait_for_event("w", "go")
        return token["token"] == SECRET and bytes(table[: len(SECRET)]) == SECRET.encode() and loaded == 3 and said


def fails_with_secret():
    raise NonRetryableError(f"no access with {SECRET}")


def bytes_of(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def waiting(tmp_path, monkeypatch):
    """An instance that waits, its sensitive values sealed with KEY."""
    monkeypatch.setenv("NBFLOW_KEY", KEY)
    with Engine(tmp_path / "h.duckdb") as engine:
        assert engine.register(Sealed).create(id="one").wait(20).status == "waiting"
    return tmp_path


def test_with_a_key_nothing_on_disk_holds_the_value_and_a_replay_gets_it(waiting):
    stored = bytes_of(waiting)
    assert SECRET.encode() not in stored
    assert base64.b64encode(SECRET.encode())[:-4] not in stored
    assert any(path.suffix == ".sealed" for path in waiting.rglob("*"))
    with Engine(waiting / "h.duckdb") as engine:
        engine.register(Sealed)
        instance = engine.get("one")
        assert SECRET not in shown(engine, instance)
        instance.send_event("go")
        assert instance.wait(20, "finished").output is True


@pytest.mark.parametrize("other", [None, "another-key-of-more-than-32-characters", "short"])
def test_without_the_key_the_instance_is_interrupted_and_goes_on_with_it(waiting, monkeypatch, other):
    if other == "short":
        monkeypatch.setenv("NBFLOW_KEY", other)
        with pytest.raises(UsageError, match="has 5 characters and needs 32"):
            Engine(waiting / "h.duckdb")
    else:
        monkeypatch.delenv("NBFLOW_KEY") if other is None else monkeypatch.setenv("NBFLOW_KEY", other)
        with Engine(waiting / "h.duckdb") as engine:
            engine.register(Sealed)
            instance = engine.get("one")
            instance.send_event("go")
            assert "NBFLOW_KEY" in eventually(lambda: instance.status().interrupted)
    monkeypatch.setenv("NBFLOW_KEY", KEY)
    with Engine(waiting / "h.duckdb") as engine:
        engine.register(Sealed)
        instance = engine.get("one")
        if other == "short":
            instance.send_event("go")
        instance.resume()
        assert instance.wait(20, "finished").output is True


def test_a_flipped_byte_in_a_sealed_file_is_damage(waiting):
    [file] = waiting.rglob("*.sealed")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with Engine(waiting / "h.duckdb") as engine:
        engine.register(Sealed)
        instance = engine.get("one")
        instance.send_event("go")
        assert "table" in eventually(lambda: instance.status().interrupted)


def eventually(ask, seconds=10):
    deadline = time.monotonic() + seconds
    while not (told := ask()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return told


class Leaky(WorkflowEntrypoint):
    """Everything a body can do with a secret, short of returning it from another step."""

    async def run(self, event, step):
        def prints():
            print(SECRET)
            print(SECRET, file=sys.stderr)
            return SECRET

        async def tells(ctx):
            ctx.log(SECRET)
            ctx.progress(1, 2, SECRET)
            return {SECRET: SECRET}

        async def late():
            print(SECRET)
            await asyncio.sleep(60)

        async def item(_i):
            return len(await step.do("inner", lambda: SECRET, sensitive="output"))

        def undo(output=None):
            print(output)
            raise ValueError(f"cannot undo {output}")

        await step.do("prints", prints, sensitive="output")
        await step.do("tells", tells, sensitive="output")
        await step.do("there", lambda: SECRET * 100_000, sensitive="output", on="processes")
        await step.do("undone", lambda: SECRET, sensitive="output", rollback=undo, rollback_config={"retries": {"limit": 0}})
        await step.map("items", item, [1, 2])
        for name, body, on in (
            ("late", late, None),
            ("fails", fails_with_secret, None),
            ("fails there", fails_with_secret, "processes"),
        ):
            try:
                await step.do(name, body, sensitive="output", timeout=0.05 if name == "late" else 60, retries=0, on=on)
            except Exception as error:
                failed = error
        raise RuntimeError("the end") from failed


@pytest.mark.parametrize("sealed", [True, False])
def test_nothing_that_is_shown_holds_the_value_whatever_bodies_and_handlers_do(tmp_path, monkeypatch, caplog, capsys, sealed):
    if sealed:
        monkeypatch.setenv("NBFLOW_KEY", KEY)
    caplog.set_level("DEBUG", logger="nbflow")
    with Engine(tmp_path / "h.duckdb") as engine:
        instance = engine.register(Leaky).create(id="one")
        assert instance.wait(60, "finished").status == "errored"
        assert instance.status().rollback[0] == "failed"
        assert instance.step("undone").status == "finished"
        told = [shown(engine, instance), repr(instance.steps), repr(instance.history()), caplog.text, *capsys.readouterr()]
        told += [json.dumps(details.detail_json(0, one)) + repr(one.log) + one.logs for one in instance.steps]
        told += [json.dumps(details.entry_json(entry, 1)) for entry in instance.history()]
        told += [str(engine.sql(f"from {name}").fetchall()) for name in ("logs", "events", "history", "log_chunks", "sources")]
        page = reading.lines(instance, snapshot.last_lines)
        told.append(json.dumps(snapshot.state_json(instance.view(), page, engine="e", seq=1, now=engine.clock.now())))
        told += [fallback.text(instance.view()), fallback.html(instance.view(), instance.steps, stable=False)]
        with pytest.raises(InstanceFailedError) as failure:
            instance.output  # noqa: B018
        told.append("".join(traceback.format_exception(failure.value)))
        on_disk = [path.name for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    for words in (
        ["show", "one"],
        ["--json", "show", "one"],
        ["history", "one"],
        ["--json", "history", "one"],
        ["--json", "list"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "nbflow", "--store", str(tmp_path / "h.duckdb"), *words],
            capture_output=True,
            text=True,
            check=False,
        )
        told.append(done.stdout + done.stderr)
        assert "one" in done.stdout
    assert not [text[max(0, text.index(SECRET) - 100) :][:200] for text in told if SECRET in text]
    if sealed:
        assert on_disk == []
        assert SECRET.encode() not in bytes_of(tmp_path)


class Outer(WorkflowEntrypoint):
    """Steps whose bodies call a sensitive step that fails, and let its error through, or raise their own from it."""

    caught: ClassVar[list[str]] = []

    async def run(self, event, step):
        def refuses():
            raise PermissionError(SECRET)

        async def calls(item):
            try:
                await step.do("login", refuses, sensitive="output", retries=0)
            except PermissionError as error:
                if item == "through":
                    raise
                if item == "from":
                    raise ValueError(f"cannot log in: {error}") from error
                raise ExceptionGroup(f"several: {error}", [error]) from None

        for how in ("through", "from", "group"):
            try:
                await step.do(f"outer {how}", calls, how, retries={"limit": 1, "delay": 0})
            except (PermissionError, ValueError, ExceptionGroup) as error:
                self.caught.append(str(error))
        await step.map("items", calls, ["through", "from", "group"], retries=0, return_exceptions=True)
        try:
            await step.map("fails", calls, ["from"], retries=0)
        except ValueError:
            pass
        await step.wait_for_event("w", "go")
        await step.do("last", calls, "from", retries=0, rollback=undo)


def undo(error):
    raise NonRetryableError(f"no way back from {error}") from error


def test_an_error_that_comes_of_a_sensitive_step_is_withheld_wherever_it_is_let_through(tmp_path, monkeypatch):
    monkeypatch.setattr(Outer, "caught", [])

    def everything(engine, instance):
        page = reading.lines(instance, lambda total: (0, total), frozenset({("map", "items"), ("map", "fails")}))
        items = [str(item.error) + str(item.attempts) for name in ("items", "fails") for item in instance.items(name, 0, 9)[1]]
        history = str([(entry, entry.body) for entry in instance.history()]) + str(engine.sql("from history").fetchall())
        logs = "".join(one.logs for one in instance.steps)
        return "\n".join([shown(engine, instance), str(page), *items, history, logs])

    with Engine(tmp_path / "h.duckdb", notebook="a") as engine:
        instance = engine.register(Outer).create(id="one")
        instance.wait(30)
        assert instance.status().waiting_for, instance.status()
        assert SECRET not in everything(engine, instance)
        assert [str(one.error) for one in instance.items("items", 0, 9)[1]][:2] == [
            "PermissionError: [REDACTED]",
            "ValueError: [REDACTED]",
        ]
    first, Outer.caught = Outer.caught, []
    with Engine(tmp_path / "h.duckdb", notebook="a") as engine:
        engine.register(Outer)
        instance = engine.get("one")
        instance.send_event("go")
        assert instance.wait(30, "finished").status == "errored"
        assert SECRET not in everything(engine, instance)
        assert str(instance.status().error) == "ValueError: [REDACTED]"
        assert instance.status().rollback[0] == "failed"
    assert Outer.caught == first  # what `run` decides by is the same on a replay
    assert all(SECRET in text for text in first)
