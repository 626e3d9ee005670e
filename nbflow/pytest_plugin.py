"""The pytest fixture of the test kit; loaded by its entry point."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine


@pytest.fixture
def nbflow_engine(tmp_path: Path) -> "Iterator[Engine]":
    """An engine on a store of its own and in virtual time: `nbflow_engine.clock.advance("7 days")`."""
    from nbflow.engine.engine import Engine
    from nbflow.testing import ManualClock

    with Engine(tmp_path / "history.duckdb", clock=ManualClock(), notebook="") as engine:
        yield engine
