"""A payload that is of the very type that a wait names is taken, and comes as it was sent (S39)."""

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
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


@dataclasses.dataclass
class Length:
    lasts: dt.timedelta


class LengthModel(pydantic.BaseModel):
    lasts: dt.timedelta


NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
TYPED = [
    (Model, Model(n=1)),
    (Colour, Colour.RED),
    (Decision, Decision(approved=True, at=NOON)),
    (dt.date, dt.date(2026, 1, 1)),
    (dt.datetime, NOON),
    (dt.datetime, dt.datetime(2026, 1, 1, 12)),
    (dt.datetime, "2026-01-01T12:00:00Z"),
    (dt.datetime | None, None),
    (dt.time, dt.time(12, 30)),
    (dt.time, "12:30"),
    (dt.timedelta, dt.timedelta(hours=1.5)),
    (dt.timedelta, "PT90M"),
    (Length, Length(lasts=dt.timedelta(days=-1))),
    (LengthModel, LengthModel(lasts=dt.timedelta(days=2))),
    (decimal.Decimal, decimal.Decimal("1.50")),
    (decimal.Decimal, "1.50"),
    (uuid.UUID, uuid.UUID(int=7)),
    (uuid.UUID, str(uuid.UUID(int=7))),
    (bytes, b"\xff\x00"),
    (bytes, "/wA="),
    ({"type": "string", "format": "uuid"}, uuid.UUID(int=7)),
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
        (dt.datetime, "nonsense", "the payload: 'nonsense' is not a 'date-time'"),
        (dt.datetime, "", "the payload: '' is not a 'date-time'"),
        (dt.datetime | None, "", "the payload: '' is not valid"),
        (dt.time, "nonsense", "the payload: 'nonsense' is not a 'time'"),
        (dt.timedelta, "soon", "the payload: 'soon' is not a 'duration'"),
        (Length, {"lasts": "soon"}, "lasts: 'soon' is not a 'duration'"),
        (decimal.Decimal, "", "the payload: '' is not a 'decimal'"),
        (uuid.UUID, "nonsense", "the payload: 'nonsense' is not a 'uuid'"),
        (bytes, "no base64", "the payload: 'no base64' is not a 'base64'"),
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
