"""Items of a map are found by what they gave and by what they failed with, in both stores alike (PANEL.md §4)."""

import pytest
from msgspec import structs

import nbflow
from nbflow.core.model import Kind, StepKey, StepState, StepType
from nbflow.engine import reading
from nbflow.store import searching
from tests.engine.conftest import eventually


@pytest.fixture(params=["memory", "file"])
def engine(request, tmp_path):
    path = ":memory:" if request.param == "memory" else tmp_path / "h.duckdb"
    with nbflow.Engine(path) as engine:
        yield engine


def start(engine, run):
    class Flow(nbflow.WorkflowEntrypoint):
        async def run(self, event, step):
            return await run(event, step)

    return engine.register(Flow).create()


def found(instance, text, state=None):
    page = reading.lines(instance, lambda _total: (0, 200), wanted=lambda _step: False, state=state, text=text)
    assert page.total == len(page.lines)
    return [line.key.key for line, _ in page.lines]


def works(item):
    if item == 3:
        raise ValueError('page "Five" of C:\\scans is Größe null')
    if item == 4:
        raise KeyError("absent")
    return f"Result <{item}> of müller's page"


def test_an_item_is_found_by_its_error_and_by_its_output(engine):
    async def run(event, step):
        await step.map("embed", works, range(6), retries=0, return_exceptions=True)
        await step.map("other", lambda item: item, ["page", "Ende"])

    instance = start(engine, run)
    instance.wait(20, until="finished")
    for text in ('PAGE "five"', "c:\\SCANS", "valueerror: page", "GRößE", "Five"):
        assert found(instance, text) == ["3"], text
    assert found(instance, "<2>") == ["2"]
    assert found(instance, "MÜLLER'S") == ["0", "1", "2", "5"]
    assert found(instance, "page") == ["0", "1", "2", "3", "5", "0"]
    assert found(instance, "page", StepState.FAILED) == ["3"]
    assert found(instance, "page", StepState.FINISHED) == ["0", "1", "2", "5", "0"]
    assert found(instance, "page", StepState.RUNNING) == []
    assert found(instance, "embed[3") == ["3"]
    assert found(instance, "code_hash") == []  # only what is shown is looked into
    assert found(instance, "Traceback") == []
    assert found(instance, "\ud800") == []


def test_what_an_item_said_before_it_ran_again_does_not_count_and_what_a_live_one_says_does(engine):
    tried = []

    async def run(event, step):
        def work(item):
            tried.append(item)
            if item == 0 and tried.count(0) == 1:
                raise ValueError("early trouble")
            if item == 1:
                raise ValueError("late trouble")
            return f"gave {tried.count(item)}"

        retries = {"limit": 1, "delay": "1 hour"}
        await step.map("work", work, range(3), retries=retries, concurrency=3, return_exceptions=True)

    instance = start(engine, run)
    waits = [StepKey(StepType.MAP, "work", 1, str(key)) for key in (0, 1)]

    def retrying():
        known = reading.records_of(instance, waits)
        return [known[key].state for key in waits if key in known] == [StepState.RETRYING] * 2

    eventually(retrying)
    assert found(instance, "trouble") == ["0", "1"]
    assert found(instance, "trouble", StepState.RETRYING) == ["0", "1"]
    eventually(lambda: found(instance, "gave") == ["2"])
    instance.retry_now()
    instance.wait(20, until="finished")
    assert found(instance, "trouble") == ["1"]
    assert found(instance, "trouble", StepState.FAILED) == ["1"]
    assert found(instance, "gave 2") == ["0"]
    instance.restart(("work", "2"))
    eventually(lambda: found(instance, "gave 2") == ["0", "2"])
    assert found(instance, "gave 1") == []


def test_what_is_sensitive_is_found_by_its_class_alone(engine):
    async def run(event, step):
        await step.map("embed", works, range(4), retries=0, return_exceptions=True)

    instance = start(engine, run)
    instance.wait(20, until="finished")
    [failed] = [entry for entry in instance.history() if entry.kind is Kind.MAP_FAILED]
    engine.store.append(structs.replace(failed, seq=0, body={**failed.body, "sensitive": True}))
    kinds = (Kind.MAP_FINISHED, Kind.MAP_FAILED, Kind.MAP_RETRYING)
    assert engine.store.items_saying(instance.created_seq, "embed", 1, "Five", kinds) == {}
    assert engine.store.items_saying(instance.created_seq, "embed", 1, "valueerror", kinds) == {"3": Kind.MAP_FAILED}
    instance.delete()


def test_of_very_many_the_failed_ones_are_found_first_and_it_is_said_that_there_are_more(engine, monkeypatch):
    monkeypatch.setattr(searching, "MOST", 3)
    monkeypatch.setattr(reading, "MOST", 3)

    def work(item):
        if item >= 8:
            raise ValueError("like the others")
        return "like the others"

    async def run(event, step):
        await step.map("work", work, range(10), retries=0, return_exceptions=True)

    instance = start(engine, run)
    instance.wait(20, until="finished")
    page = reading.lines(instance, lambda _total: (0, 200), wanted=lambda _step: False, text="like")
    keys = [line.key.key for line, _ in page.lines]
    assert (page.more, len(keys), keys[-2:]) == (True, 3, ["8", "9"])
    assert not reading.lines(instance, lambda _total: (0, 200), wanted=lambda _step: False, text="unlike").more
