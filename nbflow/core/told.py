"""How a step is told that stands open when what it belongs to is over. Pure.

The fold keeps such a step as it was: there it goes on, should the instance be resumed. Whoever is shown it is told that it has
ended, the same here as by the SQL views (store/views.sql).
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from nbflow.core.history import History
from nbflow.core.model import ENDED, Kind, StepKey, StepState, StepType
from nbflow.core.records import StepRecord

_CUT_OFF = (StepState.RUNNING, StepState.INTERRUPTED)


def told_state(history: History, key: StepKey, state: StepState) -> StepState:
    """Where a step or map item that stands in *state* is told to stand."""
    return state if state in ENDED else _over(history, key)[0] or state


def item_state(history: History, its_map: StepRecord, key: str) -> StepState | None:
    """Where an item of a map is told to stand; None where nothing (that counts) is recorded of it."""
    assert its_map.items is not None
    state = its_map.items.state(key)
    if state is None or state in ENDED:
        return state
    return told_state(history, StepKey(StepType.MAP, its_map.key.name, its_map.key.count, key), state)


def as_told(history: History, step: StepRecord) -> StepRecord:
    """The step as it is told: one that stood open ended with its instance, an item with the stream that was left."""
    if step.state in ENDED:
        return step
    state, at = _over(history, step.key)
    if state is None:
        return step if step.ended_at is None else msgspec.structs.replace(step, ended_at=None)  # cancelled, and called again
    attempts = step.attempts
    if attempts and attempts[-1].state in _CUT_OFF and attempts[-1].ended_at is None:
        attempts = [*attempts[:-1], msgspec.structs.replace(attempts[-1], state=state, ended_at=at)]
    return msgspec.structs.replace(step, state=state, ended_at=at, due_at=None, attempts=attempts)


def steps_as_told(history: History) -> list[StepRecord]:
    """All steps as they are told."""
    steps = history.steps.values()
    return [as_told(history, step) for step in steps] if history.head.finished else list(steps)


OUTCOME = 1_000
"""Characters of an outcome that a filter looks into."""


def outcome_text(error: Mapping[str, Any] | None, preview: Mapping[str, Any] | None) -> str:
    """What became of a step in one text, as a filter looks for it: its error, else the line of its value."""
    if error is not None:
        return f"{error.get('type', '')}: {error.get('message', '')}"[:OUTCOME]
    return str((preview or {}).get("line", ""))[:OUTCOME]


def item_says(history: History, its_map: StepRecord, key: str, kind: Kind) -> StepState | None:
    """Where an item stands whose last outcome was recorded by an entry of that kind; None where that counts no more."""
    state = item_state(history, its_map, key)
    ends = {Kind.MAP_FINISHED: StepState.FINISHED, Kind.MAP_FAILED: StepState.FAILED}
    if kind in ends:
        return state if state is ends[kind] else None
    return None if state in (StepState.FINISHED, StepState.FAILED) else state


def _over(history: History, key: StepKey) -> tuple[StepState | None, datetime | None]:
    """How what is open of that key is told, None where it may still end by itself; and when that was."""
    at = history.head.ended_at if history.head.finished else None
    if key.type is StepType.MAP and key.key is not None:
        its = history.steps.get(StepKey(StepType.MAP, key.name, key.count))
        if its is not None and its.state is StepState.CANCELLED:
            return StepState.CANCELLED, its.ended_at
        if its is not None and its.ended:  # another item failed, or it is among the items no more
            return StepState.INTERRUPTED, at
    return (None, None) if at is None else (StepState.INTERRUPTED, at)
