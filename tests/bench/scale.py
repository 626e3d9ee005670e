"""How long questions take over a million entries: a history that engines made, copied a hundred times within its file."""

import asyncio
import gc
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import duckdb

from nbflow import Engine, WorkflowEntrypoint
from nbflow.clock import pause

INSTANCES, COPIES = 100, 112
released = threading.Event()


async def one() -> dict[str, int]:
    return {"n": 1}


async def slow() -> dict[str, int]:
    while not released.is_set():
        await asyncio.sleep(0.05)
    return {"n": 2}


async def at_second_try(ctx) -> int:
    if ctx.attempt == 1:
        msg = "not yet"
        raise ValueError(msg)
    return 3


async def never() -> None:
    msg = "never"
    raise ValueError(msg)


async def double(item: int) -> int:
    return 2 * item


class Mixed(WorkflowEntrypoint):
    """What histories are made of: some wait for ever, some end by an error."""

    async def run(self, event, step):
        number = event.payload["number"]
        for _ in range(30):
            await step.do("fast", one)
        await asyncio.gather(*(step.do(f"slow {place}", slow) for place in range(15)))
        await step.do("again", at_second_try, retries={"limit": 2, "delay": 0})
        await step.map("double", double, range(20), concurrency=4)
        if number % 10 != 1:
            await step.wait_for_event("ask", "approval")
        if number % 10 == 2:
            await step.do("fails", never, retries=0)
        return {"number": number}


class Small(WorkflowEntrypoint):
    """What is created in the full history."""

    async def run(self, event, step):
        return 1


def build(file: Path) -> int:
    """Make the history; gives the number of its entries."""
    with Engine(file, notebook="bench.ipynb") as engine:
        made = engine.register(Mixed).create_batch([{"id": f"i{n}", "params": {"number": n}} for n in range(INSTANCES)])
        while engine.sql("select count(*) from steps where starts_with(name, 'slow')").fetchall() != [(15 * INSTANCES,)]:
            pause(0.05)
        released.set()  # starts are in the file now: no end absorbs its own
        for number, instance in enumerate(made):
            if number % 10 > 1:
                instance.send_event("approval", {"approved": True})
        made.wait(120)
    return _copied(file)


def _copied(file: Path) -> int:
    with duckdb.connect(str(file)) as connection:
        connection.execute(
            """
            insert into entries
            select e.* replace (
              e.seq + c.n * l.last as seq,
              e.created_seq + c.n * l.last as created_seq,
              e.recorded_at + c.n * interval 1 hour as recorded_at,
              e.started_at + c.n * interval 1 hour as started_at,
              case when e.kind = 'created' then e.key || '-' || c.n else e.key end as key,
              case
                when e.kind = 'created'
                  then json_merge_patch(e.body, json_object('id', (e.body ->> '$.id') || '-' || c.n))::varchar
                else e.body
              end as body
            )
            from entries as e, (select max(seq) as last from entries) as l, range(1, $1) as c(n)
            order by 1
            """,
            [COPIES],
        )
        return connection.execute("delete from known_instances; select count(*) from entries").fetchall()[0][0]


SQL = {
    "steps of one instance": "from steps where instance_id = 'i7-50'",
    "attempts of one instance": "from attempts where instance_id = 'i7-50'",
    "events of one instance": "from events where instance_id = 'i7-50'",
    "items of a map of one instance": "from steps where instance_id = 'i7-50' and type = 'map' and key is not null",
    "one instance by its id": "from instances where instance_id = 'i7-50'",
    "the newest 100 instances": "from instances order by created_at desc limit 100",
    "instances by status": "select workflow, status, count(*) from instances group by all",
    "steps by status": "select status, count(*) from steps group by all",
    "attempts by status": "select status, count(*) from attempts group by all",
}


class Scale:
    """The measures on one engine over the full history."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._small = engine.register(Small)
        self._made = 0

    def asking(self, query: str) -> Callable[[], float]:
        return lambda: _ms(lambda: self._engine.sql(query).fetchall())

    def listing(self) -> float:
        return _ms(self._engine.list)

    def opening(self) -> float:
        """One that this engine has not seen yet, with its steps."""
        self._made += 1
        name = f"i{self._made % INSTANCES}-{self._made // INSTANCES + 1}"
        return _ms(lambda: [view.status for view in self._engine.get(name).steps])

    def creating(self) -> float:
        """With nothing else under way, the folding of the former one neither."""
        self._engine.list()
        made = []
        took = _ms(lambda: made.append(self._small.create()))
        made[0].wait(60, until="finished")
        return took

    def growth(self) -> float:
        """MB that a hundred rounds of all of it add, when as many have been."""
        self._rounds()
        before = _resident()
        self._rounds()
        return _resident() - before

    def _rounds(self) -> None:
        for _ in range(100):
            self.listing()
            self.opening()
            self.creating()


def _ms(work: Callable[[], object]) -> float:
    started = perf_counter()
    work()
    return (perf_counter() - started) * 1000


def _resident() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
