from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nbflow.store.database import Database, make_schema
from nbflow.store.history_store import FileStore
from nbflow.store.layout import Layout

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


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A database with the schema, for one history after another."""
    root = tmp_path_factory.mktemp("views")
    database = Database(Layout(root / "x.duckdb", root))
    database.rows("attach ':memory:' as nb")
    make_schema(database.connection, {"artifacts": "/artifacts"})
    database.rows("use nb")
    yield database
    database.reset()
