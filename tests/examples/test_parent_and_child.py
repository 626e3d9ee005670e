"""Parent and children: one instance for each part, waited for durably, or left to itself."""

import asyncio

import pytest

from nbflow import InstanceFailedError, WorkflowEntrypoint
from nbflow.core.model import Status


class Chapter(WorkflowEntrypoint):
    async def run(self, event, step):
        text = await step.do("write", self.env.write, event.payload["title"])
        await step.sleep("let it rest", "1 day")
        return await step.do("revise", text.upper)


class Book(WorkflowEntrypoint):
    async def run(self, event, step):
        titles = event.payload["titles"]
        chapters = await asyncio.gather(*(step.child("chapter", "Chapter", {"title": title}) for title in titles))
        return "\n".join(chapters)


class Announce(WorkflowEntrypoint):
    """Starts a child and does not wait for it."""

    async def run(self, event, step):
        async def begin():
            child = await self.env.Chapter.create(id="preface", params={"title": "preface"})
            return child.id

        return await step.do("begin", begin)


@pytest.fixture
def written(engine):
    written = []

    def write(title):
        if title == "hard":
            raise ValueError("no idea")
        written.append(title)
        return f"about {title}"

    engine.env["write"] = write
    for cls in (Chapter, Book, Announce):
        engine.register(cls)
    return written


def test_a_parent_gets_what_its_children_made_in_order(engine, written):
    book = engine.workflow("Book").create("b", {"titles": ["cats", "dogs"]})
    engine.clock.advance("1 hour")
    assert {w.kind for w in book.status().waiting_for} == {"child"}
    assert sorted(one.id for one in engine.list("Chapter")) == ["b.chapter-1", "b.chapter-2"]
    engine.clock.advance("1 day")
    assert book.output == "ABOUT CATS\nABOUT DOGS"


def test_children_of_a_parent_whose_kernel_ends_are_not_made_twice(engine, written, reopen):
    engine.workflow("Book").create("b", {"titles": ["cats", "dogs"]})
    engine.clock.advance("1 hour")
    later = reopen(engine, Chapter, Book)
    later.clock.advance("1 day")
    later.clock.advance("2 seconds")
    assert later.get("b").output == "ABOUT CATS\nABOUT DOGS"
    assert sorted(written) == ["cats", "dogs"]
    assert len(later.list("Chapter")) == 2


def test_a_child_that_fails_fails_its_parent(engine, written):
    book = engine.workflow("Book").create(params={"titles": ["hard"]})
    engine.clock.advance("1 hour")
    assert book.status().status is Status.ERRORED
    with pytest.raises(InstanceFailedError) as failed:
        _ = book.output
    assert "no idea" in str(failed.value.__cause__)


def test_a_child_that_nobody_waits_for_outlives_its_parent(engine, written):
    parent = engine.workflow("Announce").create("p")
    engine.clock.advance("1 second")
    assert parent.output == "preface"
    child = engine.get("preface")
    assert child.status().status is Status.WAITING
    engine.clock.advance("1 day")
    assert child.output == "ABOUT PREFACE"
    parent_of = engine.sql("SELECT instance_id, parent_id FROM instances WHERE parent_id IS NOT NULL").fetchall()
    assert parent_of == [("preface", "p")]
