"""What the entries of a map do to the fold of its instance. Pure."""

from collections.abc import Collection, Iterable
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from nbflow.core.head import moment
from nbflow.core.items import stream_key
from nbflow.core.model import ENDED, Entry, Kind, StepKey, StepState, StepType

if TYPE_CHECKING:
    from nbflow.core.history import History, StepRecord

ITEM_KINDS = frozenset(kind for kind in Kind if kind.startswith("map."))


def apply_item(history: "History", entry: Entry) -> None:
    """Fold the entry of an item in; the map's own row says whether any of them runs."""
    assert entry.step is not None
    key = StepKey(StepType.MAP, entry.step, entry.count or 1)
    step = history.steps.get(key) or history.known(key, entry)
    items = step.items
    assert items is not None
    step.changed_at = entry.recorded_at
    failed = items.failed
    if out := items.apply(entry, history.head.activation):
        history.delivered += [stream_key(step.key)] * out
    if items.failed > failed and items.order_at_failure is None:
        items.order_at_failure = history.last_order
    if step.state not in ENDED:
        step.state, step.due_at = items.doing()


def describe(history: "History", step: "StepRecord", body: dict[str, Any]) -> None:
    """Fold in what an entry says of a map as a whole; it began when it was first called, before its first item did."""
    assert step.items is not None
    history.delivered += [stream_key(step.key)] * step.items.describe(body)
    step.items.order_at_end = history.last_order
    if (began := moment(body.get("started_at"))) is not None:
        step.started_at = min(step.started_at, began)


def reopen(history: "History", key: StepKey, items: Collection[str] | None = None) -> None:
    """A map goes on: its end no longer counts, nor do the items that failed, or those that are named."""
    step = history.steps.get(key)
    if step is None or step.items is None:
        return
    if items is None:
        step.items.drop_failed()
    for item in items or ():
        step.items.drop(item)
    inside = {str(StepKey(StepType.MAP, key.name, key.count, item)) for item in items or ()}
    history.drop([each for each, its in history.steps.items() if its.parent in inside])
    step.state, step.ended_at, step.error, step.value = StepState.INTERRUPTED, None, None, None
    stream, gone = stream_key(key), step.items.take_back()
    kept = history.delivered.count(stream) - gone
    still = [each for each in history.delivered if each != key]
    places = count()
    history.delivered = [each for each in still if each != stream or next(places) < kept]


def with_failed_items(history: "History", *, ended_well: bool) -> "list[StepRecord]":
    """Maps that a retry opens again: those that failed; with *ended_well* also those that ended with failed items."""
    states = (StepState.FAILED, StepState.FINISHED) if ended_well else (StepState.FAILED,)
    maps = [step for step in history.steps.values() if step.items is not None and step.state in states]
    return [
        step
        for step in maps
        if step.state is StepState.FAILED or (step.items is not None and step.items.failed > step.items.gone[1])
    ]


def in_flight(step: "StepRecord", died_in: int) -> list[str]:
    """What of a step ran when that activation died: itself, or items of it."""
    if step.items is None:
        return [str(step.key)]
    name, number = step.key.name, step.key.count
    return [str(StepKey(StepType.MAP, name, number, each.key)) for each in step.items.open.values() if each.died_in == died_in]


def failed_items(history: "History") -> int:
    """How many items of all maps have failed for good."""
    return sum(step.items.failed - step.items.gone[1] for step in history.steps.values() if step.items is not None)


def item_records(scratch: "History", the_map: "StepRecord", entries: Iterable[Entry]) -> "dict[str, StepRecord]":
    """What is known of some items of a map, each as a step of its own, from their entries; *scratch* is an empty fold."""
    items = the_map.items
    assert items is not None
    tokens: dict[str, int] = {}
    for entry in entries:
        key = entry.key
        if key is None or entry.token < tokens.get(key, 0):
            continue  # an owner gone
        tokens[key] = entry.token
        as_do = msgspec.structs.replace(entry, kind=Kind(f"do.{entry.kind.partition('.')[2]}"))
        place = as_do.step_key
        assert place is not None
        if (before := scratch.steps.get(place)) is not None and before.state in ENDED:
            del scratch.steps[place]  # it was dropped, and ran again
        elif before is not None and entry.body.get("attempt", 0) > before.attempt:
            cut_off(before)
        scratch.apply_step(as_do)
    found = {}
    for place, record in scratch.steps.items():
        state = None if place.key is None else items.state(place.key)
        if place.key is not None and state is not None:
            if state is StepState.INTERRUPTED:
                cut_off(record)
            its = StepKey(StepType.MAP, place.name, place.count, place.key)
            found[place.key] = msgspec.structs.replace(record, key=its, state=state, config=the_map.config)
    return found


def ended_before(history: "History", key: StepKey) -> bool:
    """Whether that is an item of a map that had ended before the present activation began."""
    its_map = history.steps.get(StepKey(key.type, key.name, key.count)) if key.key is not None else None
    items = None if its_map is None else its_map.items
    return items is not None and key.key is not None and items.ended_before(key.key, history.head.activation)


def cut_off(step: "StepRecord") -> None:
    """Its last attempt was never heard of again (S27)."""
    if step.attempts and step.attempts[-1].state is StepState.RUNNING:
        step.attempts[-1].state = StepState.INTERRUPTED


def map_name(key: StepKey) -> str:
    """How a `retried` entry names a map."""
    return f"{key.count} {key.name}"


def named_map(name: str) -> StepKey:
    """The map that a `retried` entry names."""
    count, _, text = name.partition(" ")
    return StepKey(StepType.MAP, text, int(count))
