"""The results of a map's items, read back from the store where they are not at hand (S61). In a worker thread."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbflow.core.history import StepRecord
from nbflow.core.items import Items
from nbflow.core.model import ENDS, FAILURES, Entry, StepKey
from nbflow.errors import UndecodableError, UsageError
from nbflow.values import codec, failures

if TYPE_CHECKING:
    from nbflow.engine.live import LiveInstance
    from nbflow.values.artifacts import ArtifactFolder

PAGE = 5_000

Kept = bytes | dict[str, Any]
"""What an item ended with: its encoded value, or what `failed` keeps of its error."""


class Results:
    """Reads what the items of one map ended with.

    Args:
        live: the instance.
        key: the map.
        items: the fold of its items.
    """

    def __init__(self, live: "LiveInstance", key: StepKey, items: Items) -> None:
        self._live, self._key, self.items = live, key, items

    def read(self, keys: Sequence[str]) -> dict[str, Kept]:
        """What these ended with."""
        entries = self._live.engine.store.item_entries(self._live.created_seq, self._key.name, self._key.count, keys)
        return ends_of(entries, self.items)

    def decode(self, key: str, kept: Kept | None) -> Any:
        """The value, or the error as an exception, as `run` gets it.

        Raises:
            UndecodableError: it cannot be read now (S17).
        """
        return found(self._key, self.items, key, kept, self._live.files)

    def all(self, keys: Sequence[str], kept: Mapping[str, Kept]) -> Iterator[Any]:
        """The results of these in order, those in *kept* without reading."""
        for start in range(0, len(keys), PAGE):
            part = keys[start : start + PAGE]
            missing = [key for key in part if key not in kept]
            read = self.read(missing) if missing else {}
            for key in part:
                yield self.decode(key, kept[key] if key in kept else read.get(key))


def found(map_key: StepKey, items: Items, key: str, kept: Kept | None, files: "ArtifactFolder") -> Any:
    """The value of an item, or its error as an exception; why where there is none."""
    if kept is not None:
        return decoded(map_key, key, kept, files)
    if items.discarded(key):
        msg = (
            f"item {key!r} of {map_key.name!r} ran with discard_results=True: its result was not kept; "
            f"restart the instance from {map_key.name!r} to have all of them"
        )
        raise UsageError(msg)
    msg = f"the result of item {key!r} of {map_key.name!r} is not in the history"
    raise UndecodableError(msg, needs=f"the entry of item {key!r}")


def read_keys(record: StepRecord, files: "ArtifactFolder") -> list[str]:
    """The keys of all items of a map that has ended, in the order of the items."""
    if record.value is not None:
        return list(codec.decode(record.value, files))
    return [str(index) for index in range(record.body.get("total", 0))]


def ends_of(entries: Sequence[Entry], items: Items) -> dict[str, Kept]:
    """What each of the items ended with: of several ends of one item, as restarts leave them, the one that counts."""
    found: dict[str, Kept] = {}
    for entry in entries:
        key = entry.key
        if key is None or entry.token != items.token(key):
            continue
        if entry.kind in ENDS and entry.value is not None:
            found[key] = entry.value
        elif entry.kind in FAILURES:
            found[key] = failed(entry.body)
    return found


def failed(body: dict[str, Any]) -> dict[str, Any]:
    """What is kept of an item that failed: its error and how often it was tried."""
    return {"error": body.get("error") or {}, "attempt": body.get("attempt", 0)}


def decoded(map_key: StepKey, key: str, kept: Kept, files: "ArtifactFolder") -> Any:
    """The value, or the error as an exception."""
    if isinstance(kept, dict):
        step = str(StepKey(map_key.type, map_key.name, map_key.count, key))
        return failures.decode_error(kept["error"], step=step, attempts=kept["attempt"])
    return codec.decode(kept, files)
