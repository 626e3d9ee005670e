from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nbflow.store.history_store import FileStore

Open = Callable[..., FileStore]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "history.duckdb"


@pytest.fixture
def opened(file: Path) -> Iterator[Open]:
    """Opens stores on one file, and closes them in the end."""
    stores = []

    def make(path: Path | None = None, **options: object) -> FileStore:
        store = FileStore(path or file, **options)
        stores.append(store)
        return store

    yield make
    for store in stores:
        store.close()
