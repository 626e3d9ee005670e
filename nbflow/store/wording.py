"""How an instance stands, in the words that shell, tables and twin share."""

from nbflow.core.model import Status, StepKey
from nbflow.core.names import UNSAFE
from nbflow.core.plans import RestartPlan
from nbflow.store.counts import ItemCounts, gone_text
from nbflow.store.views import InstanceView

_LONGEST = 160


def interrupted_text(view: InstanceView) -> str:
    """Say that it stopped before its time and where (S17, S51): "interrupted in a.ipynb"; nothing where it did not.

    Where that cannot be known: "last seen in a.ipynb" (S52).

    A paused one rests, whoever is gone.
    """
    if view.interrupted is not None:
        why = UNSAFE.sub("�", view.interrupted)[:_LONGEST]
        return f"interrupted: {why}" if why else "interrupted"
    if view.status is Status.PAUSED or view.why_interrupted is None:
        return ""
    place = (view.owner.notebook if view.owner is not None else "") or view.notebook
    what = "last seen" if view.doubtful else "interrupted"
    return f"{what} in {UNSAFE.sub('�', place)[:_LONGEST]}" if place else what


def standing_text(view: InstanceView) -> str:
    """Say its status, and that it is interrupted where it is: "waiting, interrupted in a.ipynb"."""
    return ", ".join(filter(None, [view.status.value, interrupted_text(view)]))


def going_on_text(view: InstanceView) -> str:
    """Say who will go on with an instance that nobody runs: nothing where somebody does, or it rests."""
    if not view.unattended or view.status is Status.PAUSED:
        return ""
    place = UNSAFE.sub("�", view.notebook)[:_LONGEST]
    where = f"its notebook {place}" if place.endswith(".ipynb") else place or "a notebook"
    return f"it goes on when {where} next registers {view.workflow!r}, or by `nbflow run`"


def undone_text(plan: RestartPlan) -> str:
    """Say what resuming runs again of what was rolled back: "1 step from history, rolled back: 3 steps run again" (S48)."""
    return f"{_steps(plan.kept)} from history, rolled back: {_steps(len(plan.again))} run again"


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


def items_text(items: ItemCounts, unit: str = "") -> str:
    """Say how far a map is: "812/4,096", "812/4,096, 3 failed", "2/2, 4 gone from the list" (S9)."""
    return counted(items.done, items.total, items.failed, unit) + (f", {gone_text(items)}" if items.gone else "")


def items_of_all_text(view: InstanceView) -> str:
    """Say how far its maps are, failed items too (S61): "4/5 items, 1 failed"; nothing without maps."""
    if view.work is None:
        return ""
    return counted(view.work.items_done, view.work.items_total, view.failed_items, " items")


def counted(done: int, total: int | None, failed: int, unit: str = "") -> str:
    """Say how many of them are done and how many failed."""
    told = f"{done:,}{unit}" if total is None else f"{done:,}/{total:,}{unit}"
    return told + (f", {failed:,} failed" if failed else "")


def steps_text(view: InstanceView) -> str:
    """Say how far it is in a table's cell: "1/2 · 4/5 items, 1 failed · 1 stale: load"."""
    return " · ".join(filter(None, [f"{view.done}/{view.total}", items_of_all_text(view), stale_text(view)]))


def stale_text(view: InstanceView) -> str:
    """Say which steps are stale: "1 stale: load"; nothing where none is known to be."""
    return _named(view.stale_steps, "stale")


def unreached_text(view: InstanceView) -> str:
    """Say which steps are recorded and not reached by the present code: "1 not reached: load"; nothing where all are."""
    return _named(view.unreached, "not reached")


def _named(keys: tuple[StepKey, ...], what: str) -> str:
    names = [str(key) for key in keys]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{len(names)} {what}: {', '.join(names[:3])}{more}" if names else ""
