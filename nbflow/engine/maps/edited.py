"""Whether the items of a finished map are still those that it ran on (S57).

Its results come from history and nothing is drawn again: an iterator would be used up by that, a relation asked, a generator's
code run. Lists, tuples, ranges and dicts can be looked at without any of it, at the call, before `run` can change them.
"""

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

from nbflow.core.history import StepRecord
from nbflow.core.items import Items
from nbflow.engine.maps.results import read_keys
from nbflow.engine.outputs import is_artifact, is_light
from nbflow.errors import UndecodableError
from nbflow.values.fingerprint import fingerprint

if TYPE_CHECKING:
    from nbflow.values.artifacts import ArtifactFolder

LOOKED_AT = 1_000
"""Items of which the content is compared, the first ones; of the others only the number. It is done on the loop."""

_BUILT_IN = (list, tuple, range, dict)


def edited_items(record: StepRecord, given: Any, files: "ArtifactFolder", *, keyed: bool) -> list[str]:
    """The keys of recorded items that are others now, or gone, and the places of new ones; empty where nothing can be told.

    Args:
        record: of the finished map.
        given: what its call was given as items.
        files: of the instance.
        keyed: whether key= names them now. Those that it named already when they ran may then come in another order; results
            of a time without it belong to places.
    """
    items, total = record.items, record.body.get("total")
    if items is None or type(given) not in _BUILT_IN or type(total) is not int:
        return []
    if len(given) and not is_light(next(iter(given))):
        return []  # such items take long to look at
    try:
        present = [fingerprint(item) for item in islice(given, LOOKED_AT)]
    except BaseException:  # noqa: BLE001 - an object of the user's that raises when it is looked at: nothing is said of it
        return []
    if record.value is not None and (keyed or is_artifact(record.value)):
        return _by_content(items, present, len(given), total)
    try:
        keys = read_keys(record, files)
    except UndecodableError:
        return []  # whoever takes the results is told
    return _by_place(items, keys, present, len(given), total)


def _by_place(items: Items, keys: list[str], present: list[str], count: int, total: int) -> list[str]:
    found = []
    for key, now in zip(keys, present, strict=False):
        recorded = items.hash(key)
        if recorded and now and recorded != now:
            found.append(key)
    return found + [str(index) for index in range(min(count, total), max(count, total))[:LOOKED_AT]]


def _by_content(items: Items, present: list[str], count: int, total: int) -> list[str]:
    recorded = {key: hash_ for key in items.keys() if (hash_ := items.hash(key))}  # noqa: SIM118 - it is no dict
    known = Counter(recorded.values())
    new = []
    for place, now in enumerate(present):
        if now and known[now] <= 0:
            new.append(str(place))
        known[now] -= 1
    if not new and count == total:
        return []
    gone = [key for key, hash_ in recorded.items() if known[hash_] > 0] if count <= LOOKED_AT else []
    return gone or new or [str(place) for place in range(min(count, total), max(count, total))[:LOOKED_AT]]
