"""For `pytest --nbval notebooks`: each notebook's kernel gets a new store, so that what it prints is the same each time."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

STORES = pytest.StashKey[dict[Path, tempfile.TemporaryDirectory]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Start the notebook's kernel, which its first cell does, with the store's path in its environment."""
    stores = item.config.stash.setdefault(STORES, {})
    if item.path not in stores:
        stores[item.path] = tempfile.TemporaryDirectory(prefix="nbflow-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBFLOW_STORE", str(Path(stores[item.path].name, "history.duckdb")))
        patch.setenv("NBFLOW_STABLE_OUTPUT", "1")
        return (yield)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the stores."""
    for folder in config.stash.get(STORES, {}).values():
        folder.cleanup()
