"""A payload that is of the very type that a wait names is taken, and comes as it was sent (S39)."""

import dataclasses
import datetime as dt
import enum
from typing import TypedDict

import pydantic
import pytest

from nbflow import UsageError
from nbflow.core.model import Status


class Model(pydantic.BaseModel):
    n: int
    on: dt.date = dt.date(2026, 1, 1)


class Colour(enum.Enum):
    RED = "r"


@dataclasses.dataclass
class Decision:
    approved: bool
    at: dt.datetime
    colour: Colour = Colour.RED


class Visit(TypedDict):
    at: dt.datetime


NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
TYPED = [
    (Model, Model(n=1)),
    (Colour, Colour.RED),
    (Decision, Decision(approved=True, at=NOON)),
    (dt.date, dt.date(2026, 1, 1)),
    (dt.datetime, NOON),
    (tuple[int, int], (1, 2)),
    (set[int], {1, 2}),
    (Visit, {"at": NOON}),
    (list[Decision], [Decision(approved=True, at=NOON)]),
    (dict[str, Colour], {"left": Colour.RED}),
    ({"type": "object", "required": ["approved"]}, Decision(approved=True, at=NOON)),
]


@pytest.mark.parametrize("sent", ["while it waits", "before"])
@pytest.mark.parametrize(("schema", "payload"), TYPED, ids=str)
def test_a_payload_of_the_type_of_a_wait_fits(lab, schema, payload, sent):
    async def run(event, step):
        await step.wait_for_event("first", "first")
        return (await step.wait_for_event("ask", "answer", schema=schema)).payload

    instance = lab.start(run)
    lab.idle()
    for event in ("first", "answer") if sent == "while it waits" else ("answer", "first"):
        instance.send_event(event, payload)
        lab.idle()
    assert instance.output == payload
    assert type(instance.output) is type(payload)


@pytest.mark.parametrize(
    ("schema", "payload", "why"),
    [
        (Colour, dt.date(2026, 1, 1), "'2026-01-01' is not one of"),
        (tuple[int, int], (1, "2"), "1: '2' is not of type 'integer'"),
        (Model, Decision(approved=True, at=NOON), "n: 'n' is a required property"),
        (Decision, Decision(approved="perhaps", at=NOON), "approved: 'perhaps' is not of type 'boolean'"),
    ],
    ids=str,
)
def test_a_payload_of_another_type_is_refused_by_its_json_form(lab, schema, payload, why):
    async def run(event, step):
        return await step.wait_for_event("ask", "answer", schema=schema)

    instance = lab.start(run)
    lab.idle()
    with pytest.raises(UsageError, match=why):
        instance.send_event("answer", payload)
    assert instance.status().status is Status.WAITING
