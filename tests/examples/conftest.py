"""The flows that people know workflow engines by, each run whole in virtual time."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nbflow import Engine
from nbflow.testing import ManualClock


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An engine in virtual time, like `nbflow_engine`; on a file only where the test restarts its kernel."""
    path = tmp_path / "history.duckdb" if "reopen" in request.fixturenames else ":memory:"
    with Engine(path, clock=ManualClock(), notebook="") as engine:
        yield engine


@pytest.fixture
def reopen() -> Iterator[Callable[..., Engine]]:
    """End an engine and open another on its file, as a kernel restart does; the classes are registered again."""
    opened: list[Engine] = []

    def again(engine: Engine, *classes: type, **settings: Any) -> Engine:
        path, clock, env = engine.store.path, engine.clock, engine.env
        engine.close()
        later = Engine(path, clock=clock, notebook="", env=env, **settings)
        opened.append(later)
        for cls in classes:
            later.register(cls)
        return later

    yield again
    for engine in opened:
        engine.close()
