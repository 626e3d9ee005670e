"""What every layer's tests share: quick layers first, and nothing of this machine's settings reaches a test."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent
# Quick and deep inside first: what breaks there explains the rest.
LAYERS = ("core", "values", "store", "engine", "histories", "examples", "jupyter", "crash", "executors", "browser")
MARKED = ("browser", "crash")

settings.register_profile("default", deadline=None)
settings.register_profile(
    "ci", deadline=None, derandomize=True, database=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Before any kernel starts: they inherit it.
os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")
os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")


def layer_of(item: pytest.Item) -> str:
    try:
        return item.path.relative_to(HERE).parts[0]
    except ValueError:  # a notebook, outside tests/
        return "notebooks"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (layer := layer_of(item)) in MARKED:
            item.add_marker(layer)

    def place(item: pytest.Item) -> int:
        layer = layer_of(item)
        if layer in LAYERS:
            return 1 + LAYERS.index(layer)
        return len(LAYERS) + 1 if layer == "notebooks" else 0

    items.sort(key=place)


@pytest.fixture(scope="session", autouse=True)
def _nothing_from_outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Settings of nbflow, and Jupyter's configuration, history and trust database, are those of the tests alone."""
    home = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("NBFLOW_")]:
            patch.delenv(name)
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(home / name.lower()))
        yield
