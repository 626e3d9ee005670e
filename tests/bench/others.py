"""One sequential trivial step in other durable libraries, each as it comes, on SQLite: those that are installed.

They promise other things than nbflow does and than each other do (see each one's own words); what is compared is the time from
the call of a trivial step to its result, with that step's outcome kept by the library's own means.
"""

import asyncio
import importlib.util
import sqlite3
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TypedDict

STEPS = 100


def sqlite(folder: Path) -> Callable[[], float]:
    """A bare `insert` with its commit: WAL, `synchronous = full`, so that it survives a power cut as ours do."""
    connection = sqlite3.connect(folder / "bare.sqlite", isolation_level=None, check_same_thread=False)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute("create table t (seq integer, name text, value text)")

    def measure() -> float:
        took = []
        for seq in range(STEPS):
            started = perf_counter()
            connection.execute("insert into t values (?, 'embed', 'value')", [seq])
            took.append(perf_counter() - started)
        return median(took) * 1000

    return measure


def dbos(folder: Path) -> Callable[[], float]:
    from dbos import DBOS

    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{folder / 'dbos.sqlite'}",
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )

    async def trivial() -> int:
        return 1

    @DBOS.workflow()
    async def sequential() -> float:
        took = []
        for _ in range(STEPS):
            started = perf_counter()
            await DBOS.run_step_async({"name": "next"}, trivial)
            took.append(perf_counter() - started)
        return median(took) * 1000

    DBOS.launch()

    async def run() -> float:
        handle = await DBOS.start_workflow_async(sequential)
        found: float = await handle.get_result()
        return found

    return lambda: asyncio.run(run())


def langgraph(folder: Path) -> Callable[[], float]:
    """A graph of one node that loops: with durability "sync" each step is kept before the next begins (tasks are not)."""
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, StateGraph

    saver = SqliteSaver(sqlite3.connect(folder / "langgraph.sqlite", check_same_thread=False))
    runs = iter(range(1_000_000))
    began: list[float] = []

    def trivial(state: dict[str, int]) -> dict[str, int]:
        began.append(perf_counter())
        return {"done": state["done"] + 1}

    graph = StateGraph(TypedDict("State", {"done": int}))
    graph.add_node("next", trivial)
    graph.add_edge(START, "next")
    graph.add_conditional_edges("next", lambda state: "next" if state["done"] < STEPS else END)
    sequential = graph.compile(checkpointer=saver)

    def measure() -> float:
        began.clear()
        config = {"configurable": {"thread_id": str(next(runs))}, "recursion_limit": STEPS + 10}
        sequential.invoke({"done": 0}, config, durability="sync")
        return median(later - sooner for sooner, later in pairwise(began)) * 1000

    return measure


def unhinged(folder: Path) -> Callable[[], float]:
    from unhinged import Unhinged

    app = Unhinged(str(folder / "unhinged.sqlite"), queue_name="bench")
    app.create_queue()

    def sequential(_params: Any, ctx: Any) -> float:
        took = []
        for _ in range(STEPS):
            started = perf_counter()
            ctx.step("next", lambda: 1)
            took.append(perf_counter() - started)
        return median(took) * 1000

    app.register_task("sequential")(sequential)

    def measure() -> float:
        spawned = app.spawn("sequential", {})
        app.run_until_idle()
        result = app.fetch_task_result(spawned["task_id"])
        assert result is not None
        assert result.result is not None, result
        return float(result.result)

    return measure


OTHERS = {
    "DBOS on SQLite, one step": ("dbos", dbos),
    "LangGraph with its SQLite saver, one step": ("langgraph.checkpoint.sqlite", langgraph),
    "unhinged (SQLite), one step": ("unhinged", unhinged),
}


def there(module: str) -> bool:
    """Whether a module is installed, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def installed(folder: Path) -> dict[str, Callable[[], float]]:
    """Milliseconds of one step, by what is measured."""
    folder.mkdir()
    return {name: make(folder) for name, (module, make) in OTHERS.items() if there(module)}
