"""`%%workflow --each`: one instance for each params of an iterable, known by them, so many at work at once (API.md §6)."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from nbflow.core import names
from nbflow.core.history import Head
from nbflow.core.model import Status
from nbflow.engine.instances import Instances
from nbflow.engine.opening import Opened, What, create_all, open_found, start_all, stored
from nbflow.errors import NotSerialisableError, UsageError, article
from nbflow.values import codec

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.registry import Workflow

LOOKED_AT = 100
"""Finished instances of which is found out what is stale: it takes milliseconds for each, and a table shows no more."""

_SAID: dict[What, str] = {
    "created": "new",
    "attached": "going on",
    "resumed": "resumed",
    "adopted": "paused",
    "elsewhere": "in other kernels",
    "retried": "retried",
    "finished": "finished before",
}


class Each:
    """What a cell with `--each` got.

    Attributes:
        instances: one for each params, equal ones once, in order.
        line: what happened to them, in the one line that the cell says.
        ended: how those ended that were finished before, by `created_seq`.
    """

    def __init__(
        self, engine: "Engine", workflow: "Workflow", prefix: str, opened: list[Opened], heads: Mapping[str, Head]
    ) -> None:
        self._opened = opened
        self.instances = Instances(one.instance for one in opened)
        finished = [one for one in opened if one.what == "finished"]
        found = [heads[one.instance.id] for one in finished if one.instance.id in heads]
        self.ended: dict[int, Status] = {head.created_seq: head.status for head in found if head.finished}
        for one in finished[:LOOKED_AT]:
            one.look_for_stale()
        counts = Counter(one.what for one in opened)
        told = ", ".join(f"{counts[what]:,} {word}" for what, word in _SAID.items() if counts[what])
        self.line = f"{prefix}: {len(opened):,} instance{'' if len(opened) == 1 else 's'}" + (f" ({told})" if told else "")
        slots = engine.slots.group(f"{workflow.name}/{prefix}", os.cpu_count() or 1)
        for one in opened:
            live = engine.live.get(one.instance.created_seq)
            if live is not None and live.activation is None:
                live.slots = slots

    def start(self) -> None:
        """Let them run, as many at once as there are processors; whatever was to be recorded is durable already."""
        start_all(self._opened)


def open_each(engine: "Engine", workflow: "Workflow", prefix: str | None, every: Any, *, again: bool) -> Each:
    """Take or make the instance of each params; nothing of a new one runs before `Each.start`.

    Raises:
        UsageError: not an iterable of params, or params that cannot be stored; nothing was done.
    """
    engine.check_open()
    prefix = workflow.name if prefix is None else prefix
    wanted: dict[str, tuple[Any, bytes]] = {}
    for number, params in enumerate(_all_of(every)):
        try:
            data = stored(engine, params)
        except NotSerialisableError as error:
            msg = f"--each: params {number} cannot be stored: {error}; nothing was done"
            raise UsageError(msg) from error
        wanted.setdefault(names.instance_id(f"{prefix}-{codec.canonical(data)[:10]}"), (params, data))
    heads = {head.instance_id: head for head in engine.store.heads(workflow.name, limit=None)}
    new = [(instance_id, params) for instance_id, (params, _) in wanted.items() if instance_id not in heads]
    made = {instance_id: one for (instance_id, _), one in zip(new, create_all(engine, workflow, new), strict=True)}
    opened = [
        made.get(instance_id) or open_found(engine, workflow, instance_id, params, data, heads[instance_id], again=again)
        for instance_id, (params, data) in wanted.items()
    ]
    return Each(engine, workflow, prefix, opened, heads)


def _all_of(every: Any) -> Iterable[Any]:
    cls = type(every)
    library = cls.__module__.partition(".")[0]
    if cls.__name__ == "DuckDBPyRelation":
        return every.to_dicts()  # type: ignore[no-any-return]
    if isinstance(every, str | bytes | dict) or not hasattr(cls, "__iter__"):
        msg = f"--each is {article(cls.__name__)}; give an iterable of params, such as a list of dicts. Nothing was done"
        raise UsageError(msg)
    ways = {"pandas": 'frame.to_dict("records")', "polars": "frame.to_dicts()", "pyarrow": "table.to_pylist()"}
    if library in ways and hasattr(every, "columns"):
        msg = f"--each is {article(cls.__name__)}, whose items are its columns; give {ways[library]}. Nothing was done"
        raise UsageError(msg)
    return every  # type: ignore[no-any-return]
