"""Which store an engine works on."""

import os

from nbflow.clock import Clock
from nbflow.store.base import Store
from nbflow.store.memory import MemoryStore
from nbflow.values import sealing


def named_store(path: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    """The store that is meant: *path*, else what `NBFLOW_STORE` names; None for the default one (API.md §12)."""
    return (os.environ.get("NBFLOW_STORE") or None) if path is None else path


def is_open(store: Store, path: str | os.PathLike[str] | None) -> bool:
    """Whether that store is the one that *path* means, however it is spelt.

    Raises:
        NbflowError: *path* can be no store.
    """
    named = named_store(path or None)
    if named is not None and os.fspath(named) == ":memory:":
        return store.path is None
    from nbflow.store.layout import Layout

    return Layout.of(named).file == store.path


def open_store(path: str | os.PathLike[str] | None, notebook: str, lock_timeout: float, clock: Clock) -> Store:
    """Open the store in that DuckDB file, one in memory for ":memory:"; None stands for NBFLOW_STORE, else the default."""
    sealing.wanted()  # a key that cannot serve is said before anything is stored
    path = named_store(path)
    if path is not None and os.fspath(path) == ":memory:":
        return MemoryStore(clock)
    from nbflow.store.history_store import FileStore

    store: Store = FileStore(path, notebook=notebook, clock=clock, lock_timeout=lock_timeout)
    return store
