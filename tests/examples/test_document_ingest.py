"""Document ingest: every step with its own retries and its own way back."""

import pytest

from nbflow import NonRetryableError, RetryAfter, WorkflowEntrypoint
from nbflow.core.model import Status


class Ingest(WorkflowEntrypoint):
    async def run(self, event, step):
        desk = self.env.desk
        name = event.payload["name"]

        raw = await step.do(
            "download",
            lambda: desk.download(name),
            retries={"limit": 4, "delay": "10 seconds", "backoff": "exponential"},
            timeout="2 minutes",
        )
        chunks = await step.do("split", lambda: raw.decode().split("\n\n"), retries=0)
        vectors = await step.do("embed", desk.embed, chunks, retries={"limit": 2, "delay": "1 hour"})
        await step.do(
            "store",
            lambda: desk.store(name, vectors),
            retries={"limit": 2, "delay": lambda ctx, error: ctx.attempt * 30},
            rollback=lambda: desk.index.pop(name, None),
            rollback_config={"retries": {"limit": 3, "delay": "1 second"}},
        )
        await step.do("announce", lambda: desk.announce(name), retries=1)
        return len(chunks)


class Desk:
    def __init__(self):
        self.index = {}
        self.calls = []
        self.failing = {}

    def _call(self, what):
        self.calls.append(what)
        ahead = self.failing.get(what, [])
        if ahead:
            raise ahead.pop(0)

    def download(self, name):
        self._call("download")
        return b"one\n\ntwo\n\nthree"

    def embed(self, chunks):
        self._call("embed")
        return [[float(len(chunk))] for chunk in chunks]

    def store(self, name, vectors):
        self._call("store")
        self.index[name] = vectors

    def announce(self, name):
        self._call("announce")


@pytest.fixture
def desk(engine):
    engine.env["desk"] = desk = Desk()
    return desk


@pytest.fixture
def ingest(engine):
    return lambda: engine.register(Ingest).create(params={"name": "report.txt"})


def test_each_step_runs_once_where_nothing_fails(engine, desk, ingest):
    document = ingest()
    engine.clock.advance("1 second")
    assert document.output == 3
    assert desk.calls == ["download", "embed", "store", "announce"]
    assert desk.index == {"report.txt": [[3.0], [3.0], [5.0]]}


def test_a_flaky_download_is_tried_after_10_20_and_40_seconds(engine, desk, ingest):
    desk.failing["download"] = [ConnectionError()] * 3
    document = ingest()
    for after, attempts in ((9, 1), (1, 2), (19, 2), (1, 3), (39, 3)):
        engine.clock.advance(after)
        assert desk.calls.count("download") == attempts
    engine.clock.advance(1)
    assert document.output == 3


def test_a_service_that_says_when_to_come_back_is_asked_then(engine, desk, ingest):
    desk.failing["embed"] = [RetryAfter("90 seconds")]
    document = ingest()
    engine.clock.advance(89)
    assert desk.calls == ["download", "embed"]
    engine.clock.advance(1)
    assert document.output == 3


def test_the_delay_of_a_step_may_be_a_function(engine, desk, ingest):
    desk.failing["store"] = [OSError(), OSError()]
    document = ingest()
    engine.clock.advance(30)
    assert desk.calls.count("store") == 2
    engine.clock.advance(59)
    assert desk.calls.count("store") == 2
    engine.clock.advance(1)
    assert document.output == 3


def test_what_was_stored_is_taken_out_when_a_later_step_fails(engine, desk, ingest):
    desk.failing["announce"] = [OSError("no network")] * 2
    document = ingest()
    engine.clock.advance("1 minute")
    assert document.status().status is Status.ERRORED
    assert document.status().rollback == ("complete", None)
    assert desk.index == {}
    assert desk.calls.count("announce") == 2


def test_a_document_that_cannot_be_read_is_not_tried_again(engine, desk, ingest):
    desk.failing["download"] = [NonRetryableError("it is encrypted")]
    document = ingest()
    engine.clock.advance("1 second")
    assert document.status().error.message == "it is encrypted"
    assert document.status().rollback is None
    assert desk.calls == ["download"]
