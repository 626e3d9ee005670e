"""Which recorded step, or item of a map, is meant by a name (API.md §4: `from_step`)."""

from typing import Any

from nbflow.core.history import History, StepRecord
from nbflow.core.model import StepKey, StepType
from nbflow.core.plans import keep_below, map_of
from nbflow.errors import NotFoundError, UsageError
from nbflow.store.views import StepView


def kept_by_restart(history: History, wanted: Any, instance_id: str) -> dict[str, Any]:
    """What a restart from a step keeps: what came before it; from a map's item all but it and what followed the map (S44)."""
    name, count, _, key = parsed(wanted)
    its_map = map_of(history, None if key is None else StepKey(StepType.MAP, name, count, key))
    if its_map is not None:
        return {"keep_below": keep_below(history, its_map), "item": [name, count, key]}
    return {"keep_below": find_step(history, wanted, instance_id).order}


def find_step(history: History, wanted: Any, instance_id: str) -> StepRecord:
    """The recorded step that a `from_step` names.

    Raises:
        NotFoundError: there is none.
        UsageError: there are several, in the bodies of different steps.
    """
    name, count, type_, key = parsed(wanted)
    named = [step for step in history.steps.values() if (step.key.name, step.key.count) == (name, count)]
    for step in named:
        if step.key.key == key and type_ in (None, step.key.type, step.key.type.value):
            return step
    # A step in the body of another is known by that body too; its name alone will do where it is the only one.
    inner = [step for step in named if step.key.type is StepType.DO] if key is None and type_ in (None, StepType.DO) else []
    if len(inner) == 1:
        return inner[0]
    if inner:
        several = ", ".join(str(step.key) for step in inner[:10])
        msg = f"instance {instance_id!r} has several steps {name!r} number {count}: {several}; name one of them by its key"
        raise UsageError(msg)
    known = ", ".join(str(k) for k in list(history.steps)[:10]) or "none"
    what = f"step {name!r} number {count}" if key is None else f"item {key!r} of map {name!r}"
    msg = f"instance {instance_id!r} has no {what}; recorded are: {known}"
    raise NotFoundError(msg)


_KEYS = {"name", "count", "type", "key"}


def parsed(wanted: Any) -> tuple[str, int, str | None, str | None]:
    """Name, count, type and key of what a `from_step` names; None for what it leaves open."""
    match wanted:
        case StepView(key=StepKey() as k) | (StepKey() as k):
            return k.name, k.count, k.type, k.key
        case str():
            return wanted, 1, None, None
        case (str(), int()) if type(wanted[1]) is not bool:
            return wanted[0], wanted[1], None, None
        case (str(), str()):
            return wanted[0], 1, None, wanted[1]
        case {"name": str()} if not set(wanted) - _KEYS and type(wanted.get("count", 1)) is int:
            return wanted["name"], wanted.get("count", 1), wanted.get("type"), wanted.get("key")
    known = '"name", ("name", count), ("name", "key") of a map item, {"name", "count", "type"}, a step'
    msg = f"from_step={wanted!r} is none of {known}"
    raise UsageError(msg)
