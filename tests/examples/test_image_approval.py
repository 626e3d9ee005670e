"""Image approval: make a thumbnail and tags, ask a person, publish or throw away."""

from typing import Literal, TypedDict

import pytest

from nbflow import UsageError, WorkflowEntrypoint


class Answer(TypedDict):
    verdict: Literal["publish", "discard"]


class ImageApproval(WorkflowEntrypoint):
    async def run(self, event, step):
        bucket, key = self.env.bucket, event.payload["key"]
        image = await step.do("fetch", lambda: bucket[key])
        tags = await step.do("tag", lambda: sorted({f"byte-{b}" for b in image[:3]}))
        thumbnail = await step.do("thumbnail", lambda: image[:2])
        answer = await step.wait_for_event(
            "ask a person", "verdict", timeout="7 days", schema=Answer, prompt=f"Publish {key} ({', '.join(tags)})?"
        )
        if answer.payload["verdict"] == "discard":
            await step.do("discard", lambda: bucket.pop(key) and None)
            return None

        def publish():
            bucket[f"public/{key}"] = image
            bucket[f"public/{key}.thumb"] = thumbnail
            return f"https://images.example/{key}"

        return await step.do("publish", publish)


@pytest.fixture
def bucket(engine):
    engine.env["bucket"] = bucket = {"cat.png": b"\x01\x02\x03\x04"}
    return bucket


@pytest.fixture
def asked(engine, bucket):
    image = engine.register(ImageApproval).create(params={"key": "cat.png"})
    engine.clock.advance("1 day")
    return image


def test_it_asks_with_what_a_person_needs_to_know(asked):
    (waiting,) = asked.status().waiting_for
    assert (waiting.name, waiting.kind, waiting.event_type) == ("ask a person", "event", "verdict")
    (wait,) = asked.view().waits
    assert wait.prompt == "Publish cat.png (byte-1, byte-2, byte-3)?"


def test_an_approved_image_is_published(engine, asked, bucket):
    asked.send_event("verdict", {"verdict": "publish"}, by="grace")
    engine.clock.advance("1 second")
    assert asked.output == "https://images.example/cat.png"
    assert bucket["public/cat.png.thumb"] == b"\x01\x02"


def test_a_rejected_one_is_thrown_away(engine, asked, bucket):
    asked.send_event("verdict", {"verdict": "discard"})
    engine.clock.advance("1 second")
    assert asked.output is None
    assert bucket == {}


def test_an_answer_that_is_none_of_the_two_is_refused_and_the_question_stays_open(engine, asked):
    with pytest.raises(UsageError, match="verdict"):
        asked.send_event("verdict", {"verdict": "maybe"})
    assert [w.name for w in asked.status().waiting_for] == ["ask a person"]


def test_the_question_survives_a_kernel_restart(engine, asked, bucket, reopen):
    later = reopen(engine, ImageApproval)
    image = later.get(asked.id)
    image.send_event("verdict", {"verdict": "publish"})
    later.clock.advance("1 second")
    assert image.output == "https://images.example/cat.png"
    assert [s.from_history for s in image.steps if s.name in ("fetch", "tag", "thumbnail")] == [True] * 3
