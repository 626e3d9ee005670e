"""Extract, transform, store, load: in batches, each a step of its own, so that a restart goes on at the batch it was in."""

import pytest

from nbflow import WorkflowEntrypoint
from nbflow.core.model import Status

SIZE = 10


class ETL(WorkflowEntrypoint):
    async def run(self, event, step):
        source, target, table = self.env.source, self.env.target, event.payload["table"]
        total = await step.do("count", lambda: len(source[table]))
        loaded = 0
        for start in range(0, total, SIZE):
            rows = await step.do("extract", lambda start=start: source.page(table, start))
            clean = await step.do("transform", lambda rows=rows: [row | {"name": row["name"].strip()} for row in rows])
            key = await step.do("store", target.put_file, f"{table}-{start}", clean)
            loaded += await step.do("load", target.load, key, retries={"limit": 2, "delay": "1 minute"})
        await step.do("analyse", target.analyse, table)
        return {"rows": loaded, "batches": -(-total // SIZE)}


class Source(dict):
    def __init__(self, **tables):
        super().__init__(tables)
        self.pages = []

    def page(self, table, start):
        self.pages.append(start)
        return self[table][start : start + SIZE]


class Target:
    def __init__(self):
        self.files, self.rows, self.analysed = {}, [], []
        self.fail_at, self.loads = None, 0

    def put_file(self, key, rows):
        self.files[key] = rows
        return key

    def load(self, key):
        self.loads += 1
        if key == self.fail_at:
            raise ConnectionError(key)
        self.rows += self.files[key]
        return len(self.files[key])

    def analyse(self, table):
        self.analysed.append(table)


@pytest.fixture
def source(engine):
    engine.env["source"] = source = Source(people=[{"id": n, "name": f" person {n} "} for n in range(35)])
    return source


@pytest.fixture
def target(engine):
    engine.env["target"] = target = Target()
    return target


def test_all_batches_arrive_clean_and_in_order(engine, source, target):
    etl = engine.register(ETL).create(params={"table": "people"})
    engine.clock.advance("1 second")
    assert etl.output == {"rows": 35, "batches": 4}
    assert target.rows == [{"id": n, "name": f"person {n}"} for n in range(35)]
    assert [(s.name, s.count) for s in etl.steps if s.name == "load"] == [("load", n) for n in (1, 2, 3, 4)]


def test_an_errored_run_goes_on_at_the_failed_batch(engine, source, target):
    target.fail_at = "people-20"
    etl = engine.register(ETL).create(params={"table": "people"})
    engine.clock.advance("5 minutes")
    assert etl.status().status is Status.ERRORED
    assert target.loads == 2 + 3
    target.fail_at = None
    etl.retry_failed()
    engine.clock.advance("1 second")
    assert etl.output == {"rows": 35, "batches": 4}
    assert source.pages == [0, 10, 20, 30]
    assert len(target.rows) == 35


def test_a_restart_between_batches_reads_no_page_twice(engine, source, target, reopen):
    target.fail_at = "people-10"
    engine.register(ETL).create("e1", {"table": "people"})
    engine.clock.advance("30 seconds")
    later = reopen(engine, ETL)
    target.fail_at = None
    later.clock.advance("1 minute")
    assert later.get("e1").output == {"rows": 35, "batches": 4}
    assert source.pages == [0, 10, 20, 30]


def test_a_restart_from_one_batch_loads_it_and_those_after_it(engine, source, target):
    etl = engine.register(ETL).create(params={"table": "people"})
    engine.clock.advance("1 second")
    target.rows.clear()
    etl.restart(from_step=("load", 3))
    engine.clock.advance("1 second")
    assert [row["id"] for row in target.rows] == list(range(20, 35))
    assert source.pages == [0, 10, 20, 30, 30]
