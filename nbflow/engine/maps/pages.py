"""Show the items of a map: pages of them, and their results, read from the store; nothing of them is kept in memory."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from nbflow.core.history import History, StepRecord
from nbflow.core.maps import item_records
from nbflow.core.model import StepKey, StepState, StepType
from nbflow.core.told import item_state
from nbflow.engine.maps.results import PAGE, ends_of, found, read_keys
from nbflow.errors import NotFoundError, UsageError
from nbflow.store.views import StepView

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.instance import WorkflowInstance


def item_page(
    engine: "Engine", instance: "WorkflowInstance", name: str, count: int, start: int, stop: int | None, state: str | None
) -> tuple[int, list[StepView]]:
    """See `WorkflowInstance.items`."""
    engine.thread.forbid_here("items()")
    wanted = None if state is None else _state(state)
    with instance.folded() as history:
        record = history.steps.get(StepKey(StepType.MAP, name, count))
        if record is None or record.items is None:
            known = ", ".join(str(key) for key in history.steps if key.type is StepType.MAP) or "none"
            msg = f"instance {instance.id!r} has no map {name!r} number {count}; recorded are: {known}"
            raise NotFoundError(msg)
        items = record.items
        keys = [key for key in items.keys() if wanted is None or item_state(history, record, key) is wanted]  # noqa: SIM118
        total = len(keys) if wanted is not None or items.total is None else max(len(keys), items.total)
    page = keys[start:stop]
    entries = [e for each in _pages(page) for e in engine.store.item_entries(instance.created_seq, name, count, each)]
    with instance.folded() as history:
        records = item_records(History(), record, entries)
        return total, [instance.view_of(history, records[key]) for key in page if key in records]


def item_results(engine: "Engine", instance: "WorkflowInstance", record: StepRecord) -> Any:
    """The list of a map's results, read back; their number where they were discarded."""
    assert record.items is not None
    engine.thread.forbid_here("output")
    files, items, key = instance.files, record.items, record.key
    keys = read_keys(record, files)
    if keys and all(items.discarded(each) for each in keys):
        return len(keys)
    results: list[Any] = []
    for page in _pages(keys):
        read = ends_of(engine.store.item_entries(instance.created_seq, key.name, key.count, page), items)
        results += [found(key, items, each, read.get(each), files) for each in page]
    return results


def _pages(keys: list[str]) -> Iterator[list[str]]:
    ahead = iter(keys)
    while page := list(islice(ahead, PAGE)):
        yield page


def _state(state: str) -> StepState:
    try:
        return StepState(state)
    except ValueError:
        msg = f"state={state!r} is none of {', '.join(StepState)}"
        raise UsageError(msg) from None
