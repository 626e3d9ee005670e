"""What an engine is told when it is made (API.md §4): what could only hang or fail later is refused before a file is opened."""

import pytest

from nbflow import Engine, UsageError


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
