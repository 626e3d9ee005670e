"""How far maps are, and instances with their items counted."""

from dataclasses import dataclass

from nbflow.core.history import History, StepRecord
from nbflow.core.items import Items
from nbflow.core.model import StepState, StepType
from nbflow.core.told import steps_as_told


@dataclass(frozen=True, slots=True)
class ItemCounts:
    """How far a map is.

    Attributes:
        done: items that ended with a value.
        total: how many there are; None where the iterable does not say and is not at its end.
        running, retrying, failed: items whose body runs, that wait for their next attempt, that failed for good.
        gone: items that had ended and were not in the list any more when the map ended; none of them is counted above.
        rate: ends in a second, as the last ones came; None where too few have.
    """

    done: int
    total: int | None
    running: int
    retrying: int
    failed: int
    rate: float | None
    gone: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """How far an instance is, the items of its maps counted in place of the maps; a total is None where none can tell.

    Attributes:
        done, total, running, retrying, failed: steps that are no maps, and items.
        items_done, items_total: the items alone.
    """

    done: int
    total: int | None
    running: int
    retrying: int
    failed: int
    items_done: int = 0
    items_total: int | None = None


def counts_of(record: StepRecord, items: Items) -> ItemCounts:
    """How far a map is; *record* as it is told."""
    states = [] if record.ended_at is not None else [item.state for item in items.open.values()]
    return ItemCounts(
        items.done - items.gone[0],
        items.total,
        states.count(StepState.RUNNING),
        states.count(StepState.RETRYING),
        items.failed - items.gone[1],
        None if record.ended_at is not None else items.rate,
        sum(items.gone),
    )


def gone_text(items: ItemCounts) -> str:
    """Say how many items are recorded and were not drawn any more: they are no part of the results (S9)."""
    return f"{items.gone:,} gone from the list" if items.gone else ""


def work_of(history: History) -> Work | None:
    """How far an instance is; None without maps."""
    steps = [step for step in steps_as_told(history) if step.key.type is not StepType.ROLLBACK]
    maps = [counts_of(step, step.items) for step in steps if step.items is not None]
    if not maps:
        return None
    others = [step.state for step in steps if step.items is None]
    totals = [each.total for each in maps if each.total is not None]
    done, total = sum(each.done for each in maps), sum(totals) if len(totals) == len(maps) else None
    return Work(
        done=others.count(StepState.FINISHED) + done,
        total=None if total is None else len(others) + total,
        running=others.count(StepState.RUNNING) + sum(each.running for each in maps),
        retrying=others.count(StepState.RETRYING) + sum(each.retrying for each in maps),
        failed=others.count(StepState.FAILED) + sum(each.failed for each in maps),
        items_done=done,
        items_total=total,
    )
