"""The twin: small, scriptless, escaped, and without times and ids where outputs are compared."""

import dataclasses
import datetime as dt
import decimal
import enum
import json
import re
import uuid
from html.parser import HTMLParser
from typing import Annotated, Literal

import msgspec
import pydantic
import pytest

from nbflow.core.model import Kind
from nbflow.ids import new_instance_id
from nbflow.jupyter import fallback, samples
from nbflow.store.views import instance_view
from nbflow.values import schemas
from tests.jupyter.instances import HOSTILE, FakeInstance

ALLOWED = {"div", "span", "b", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"}


class Reader(HTMLParser):
    """Takes a page apart: its tags, their attributes, its text; and holds that every tag is closed."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.text += data


def html(inst: FakeInstance, *, stable: bool = False, line: str = "") -> str:
    return fallback.html(inst.view(), inst.rows(0, None)[1], stable=stable, line=line)


def waiting() -> FakeInstance:
    inst = FakeInstance()
    inst.done("load", 1)
    inst.done("embed", 2)
    inst.write(Kind.SLEEP_STARTED, 2, "cool-down", order=3)
    inst.wait_for("ask the editor", 4, prompt="Publish?")
    return inst


def test_the_text_says_what_it_waits_for_and_how_far_it_is() -> None:
    assert fallback.text(waiting().view()) == "Ingest: waiting for 'approval' (2 of 4 steps)"


def test_a_child_is_waited_for_and_is_no_question_to_anybody() -> None:
    inst = FakeInstance()
    inst.write(Kind.CHILD_STARTED, 1, "make", order=1, workflow="Child", id="ingest-01jd3k7q.make-1")
    view = inst.view()
    assert fallback.text(view) == "Ingest: waiting for 'make' (0 of 1 steps)"
    assert view.waits == ()
    assert view.children == (("make", "Child", "ingest-01jd3k7q.make-1"),)
    assert "send-event" not in html(inst)


def test_the_text_of_each_outcome() -> None:
    inst = FakeInstance()
    assert fallback.text(inst.view()) == "Ingest: running"
    inst.write(Kind.DO_RETRYING, 1, "load", order=1)
    assert fallback.text(inst.view()) == "Ingest: retrying 'load' (0 of 1 steps)"
    inst.done("load", 1, attempt=2)
    inst.write(Kind.COMPLETED, 2)
    assert fallback.text(inst.view()) == "Ingest: complete (1 step)"
    failed = FakeInstance()
    failed.write(Kind.ERRORED, 2)
    assert fallback.text(failed.view()) == "Ingest: errored: ValueError: no"
    stopped = FakeInstance()
    stopped.write(Kind.TERMINATED, 2)
    assert fallback.text(stopped.view()) == "Ingest: terminated"


def test_the_html_is_a_line_and_a_closed_table_of_the_steps() -> None:
    page = Reader(html(waiting(), line="resumed embed-nov: 2 steps from history"))
    assert set(page.tags) <= ALLOWED
    assert page.attributes <= {"style"}  # a <details open> would show here
    for text in ("resumed embed-nov", "Ingest", "ingest-01jd3k7q", "waiting for 'approval'", "2 of 4 steps", "ask the editor"):
        assert text in page.text


def test_the_html_tells_how_to_answer_from_a_shell() -> None:
    text = Reader(html(waiting())).text
    assert """nbflow send-event Ingest/ingest-01jd3k7q approval '{"approved": true}'""" in text
    assert "Publish?" in text


def test_the_shell_command_has_the_fields_that_the_wait_requires() -> None:
    inst = FakeInstance()
    schema = {"type": "object", "properties": {"amount": {"type": "number", "minimum": 100}, "note": {"type": "string"}}}
    inst.wait_for("card", 1, "payment", schema=schema | {"required": ["amount"]})
    text = Reader(html(inst)).text
    assert """nbflow send-event Ingest/ingest-01jd3k7q payment '{"amount": 100}'""" in text
    assert text == Reader(html(inst)).text


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


@dataclasses.dataclass
class Size:
    rows: Annotated[int, msgspec.Meta(gt=0)]
    unit: str = "MB"


@dataclasses.dataclass
class Review:
    approved: bool
    reason: Annotated[str, msgspec.Meta(min_length=5)]
    level: Level
    size: Size
    at: dt.datetime
    price: decimal.Decimal
    token: uuid.UUID
    share: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    pair: tuple[int, str]
    maybe: int | None
    key: bytes
    tags: list[str]
    notes: str = "none"


class Model(pydantic.BaseModel):
    even: Annotated[int, pydantic.Field(ge=1, multiple_of=2)]
    below: Annotated[float, pydantic.Field(lt=-1)]
    link: pydantic.AnyUrl
    secret: pydantic.SecretStr
    free: str = "text"


TYPES = [
    Review,
    Model,
    Size,
    Level,
    dt.date,
    dt.time,
    dt.timedelta,
    bool,
    int,
    str,
    list[Size],
    dict[str, int],
    Literal["x", "y"],
    int | None,
]


@pytest.mark.parametrize(
    "schema", [*TYPES, {"type": "object", "required": ["amount"]}, {"const": 3}, {"minItems": 2, "type": "array"}], ids=str
)
def test_a_payload_to_begin_with_fits(schema) -> None:
    described = schemas.describe(schema, "schema")
    payload = json.loads(samples.payload_text(described))
    assert schemas.problems(described, payload, schema) == []
    if schema in (Review, Model):
        assert payload.keys() == set(described["required"])


def test_where_no_short_payload_is_told_by_a_schema_the_word_json_stands_for_it() -> None:
    endless = {
        "$defs": {"A": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"]}},
        "$ref": "#/$defs/A",
    }
    long = {"type": "object", "required": ["x" * 400]}
    for schema in (endless, long, {"type": "object", "required": [str(n) for n in range(1_000)]}, {"default": "x" * 500}):
        assert samples.payload_text(schema) == "JSON"
    broken = [
        {"$ref": "#/$defs/B"},
        {"$defs": 3, "$ref": "#/$defs/B"},
        {"type": "object", "required": 3},
        {"properties": [], "required": ["a"]},
    ]
    odd = [
        {"type": "string", "minLength": 10**12},
        {"type": "array", "minItems": 10**12, "items": {}},
        {"type": "number", "minimum": "x"},
    ]
    for schema in (*broken, *odd, {"enum": 3}, {"type": []}, {"anyOf": 3}, {"multipleOf": "x", "type": "integer"}, [1], "x"):
        assert len(samples.payload_text(schema)) <= 310


def test_a_wait_without_a_schema_is_answered_by_a_yes() -> None:
    assert samples.payload_text(None) == samples.payload_text({}) == '{"approved": true}'


def test_a_hostile_event_type_cannot_leave_the_shell_command_it_stands_in() -> None:
    inst = FakeInstance()
    inst.wait_for("ask", 1, "x'; rm -rf ~; '")
    text = Reader(html(inst)).text
    assert """send-event Ingest/ingest-01jd3k7q 'x'"'"'; rm -rf ~; '"'"'' '{""" in text


def test_stable_html_and_text_have_no_times_and_no_ids() -> None:
    inst = waiting()
    page = html(inst, stable=True, line="created ingest-01jd3k7q")
    assert "ingest-01jd3k7q" not in page
    assert not re.search(r"\d{4}-\d\d-\d\d|\d\d:\d\d|\d+\.\d+s|0x", page)
    later = FakeInstance(instance_id="another-id")
    for step, order in (("load", 1), ("embed", 2)):
        later.done(step, order, at=900)
    later.write(Kind.SLEEP_STARTED, 901, "cool-down", order=3)
    later.wait_for("ask the editor", 4, prompt="Publish?")
    assert html(later, stable=True) == html(inst, stable=True)
    assert fallback.text(later.view()) == fallback.text(inst.view())


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda text: repr(text[:20]))
@pytest.mark.parametrize("stable", [True, False])
def test_hostile_text_in_every_place_stays_text(hostile, stable) -> None:
    inst = FakeInstance(workflow=hostile, instance_id=hostile)
    inst.done(hostile, 1, line=hostile)
    inst.write(Kind.DO_RETRYING, 1, f"{hostile}2", order=2, error={"type": hostile, "message": hostile, "traceback": hostile})
    inst.wait_for(hostile, 3, hostile, prompt=hostile)
    pages = [html(inst, stable=stable, line=hostile), fallback.instances_html([inst.view()], stable=stable)]
    inst.write(Kind.ERRORED, 3, error={"type": hostile, "message": hostile, "traceback": hostile})
    pages += [html(inst, stable=stable, line=hostile), fallback.instances_html([inst.view()], stable=stable)]
    for page in pages:
        page.encode()  # no lone surrogate
        read = Reader(page)
        assert set(read.tags) <= ALLOWED
        assert read.attributes <= {"style"}
        assert len(page.encode()) <= fallback.BYTES
        assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", page)
    text = fallback.text(inst.view())
    assert len(text) < 1_000
    assert text.isprintable()
    text.encode()
    assert all(line.isprintable() for line in fallback.instances_text([inst.view()], stable=False).split("\n"))


def test_of_many_steps_at_most_100_are_shown_open_and_failed_ones_first() -> None:
    inst = FakeInstance()
    for order in range(1, 301):
        inst.done(f"step-{order}", order)
    inst.write(Kind.DO_STARTED, 3, "odd-one", order=0)
    page = html(inst)
    assert page.count("<tr>") == 101
    assert "odd-one" in page
    assert "step-300" in page
    assert "step-1<" not in page
    assert "201 more steps are not shown" in page


def test_what_ran_in_a_kernel_that_is_gone_is_not_told_to_run() -> None:  # S51
    inst = FakeInstance()
    inst.write(Kind.DO_STARTED, 2, "load", order=1, attempt=1)
    _, rows = inst.rows(0, None)
    for alive, says in ((True, "running"), (False, "interrupted")):
        view = instance_view(inst.known, here=False, owner_alive=alive)
        assert f'<td style="text-align:left;padding:1px 9px">{says}</td>' in fallback.html(view, rows, stable=False)


def test_the_html_is_at_most_64_kb_whatever_the_outputs_are() -> None:
    inst = FakeInstance()
    for order in range(1, 301):
        inst.done("й" * 256 + str(order), order, line="&" * 5_000)
    page = html(inst, line="<" * 10_000)
    assert len(page.encode()) <= fallback.BYTES
    assert "<details>" in page


def test_instances_are_listed_with_their_ids() -> None:
    one, two = waiting(), FakeInstance(instance_id="b")
    assert fallback.instances_text([one.view(), two.view()], stable=False).split("\n") == [
        "ingest-01jd3k7q  Ingest: waiting for 'approval' (2 of 4 steps)",
        "b                Ingest: running",
    ]
    assert "ingest-01jd3k7q" in Reader(fallback.instances_html([one.view(), two.view()], stable=False)).text
    assert fallback.instances_text([], stable=False) == "no instances"


def test_stable_tables_of_instances_have_no_times_and_nothing_generated_of_an_id() -> None:
    made = new_instance_id("Ingest")
    one, two = FakeInstance(instance_id=made), FakeInstance(instance_id="nightly")
    for inst in (one, two):
        inst.write(Kind.COMPLETED, 65)
    views = [one.view(), two.view()]
    page = fallback.instances_html(views, stable=True)
    rows = ["✓ completeIngestingest-…0 steps", "✓ completeIngestnightly0 steps"]
    assert Reader(page).text == "".join(["statusworkflowidsteps", *rows])
    assert "started" in fallback.instances_html(views, stable=False)
    assert fallback.instances_text(views, stable=True).split("\n") == [
        "ingest-…  Ingest: complete",
        "nightly   Ingest: complete",
    ]
