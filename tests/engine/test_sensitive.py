"""sensitive="output": the workflow gets the value, no display does (API.md §1)."""

import pytest

from nbflow import NonRetryableError, UsageError, WorkflowEntrypoint
from nbflow.engine.engine import Engine

SECRET = "hunter2-very-secret"


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
