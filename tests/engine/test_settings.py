"""What an engine is told when it is made (API.md §4): what could only hang or fail later is refused before a file is opened."""

import pytest

from nbflow import Engine, UsageError, WorkflowEntrypoint


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_running", 0),
        ("max_running", "2"),
        ("max_running", True),
        ("max_threads", 0),
        ("max_threads", None),
        ("max_steps", -1),
        ("max_steps", 1.5),
        ("lock_timeout", -1),
        ("lock_timeout", float("nan")),
        ("lock_timeout", "10 seconds"),
        ("env", [1]),
        ("notify", "me"),
        ("default_executor", object()),
        ("retention", -1),
        ("retention", "soon"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name_before_anything_is_opened(tmp_path, setting, value):
    with pytest.raises(UsageError, match=rf"Engine\({setting}=\)"):
        Engine(tmp_path / "h.duckdb", **{setting: value})
    assert list(tmp_path.iterdir()) == []


def test_an_executor_may_be_named_before_it_is_registered(tmp_path):
    with Engine(tmp_path / "h.duckdb", default_executor="gpu", max_running=1, lock_timeout=0.5) as engine:
        assert engine.default_executor == "gpu"


@pytest.mark.parametrize("kind", ["do", "map"])
def test_a_default_executor_that_nothing_is_known_of_is_refused_at_the_call(kind):
    class Asks(WorkflowEntrypoint):
        async def run(self, event, step):
            if kind == "map":
                return await step.map("it", abs, [1])
            return await step.do("it", abs, 1)

    with Engine(":memory:", default_executor="nope") as engine:
        status = engine.register(Asks).create().wait(10)
    assert status.error.type == "UsageError"
    assert "'nope'" in status.error.message
    assert "processes" in status.error.message


def test_the_store_that_the_environment_names_is_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NBFLOW_STORE", str(tmp_path / "named.duckdb"))
    with Engine() as engine:
        assert engine.store.path == tmp_path / "named.duckdb"
    with Engine(tmp_path / "given.duckdb") as engine:
        assert engine.store.path == tmp_path / "given.duckdb"
    assert not (tmp_path / ".nbflow").exists()
