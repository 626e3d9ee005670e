"""The form of a wait: a control for each kind of field, what it sends, and what Python says of it."""

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from typing import Annotated, Literal

import msgspec
import pydantic
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from nbflow.values import jsontext
from nbflow.values.schemas import describe, problems
from tests.browser.bare import NOW, head, mount, state, wait
from tests.browser.lab import Notebook, PanelPage
from tests.browser.test_lab import IMPORTS


class Target(enum.Enum):
    PROD = "prod"
    STAGING = "staging"
    TEST = "test"


@dataclasses.dataclass
class Window:
    hours: int
    quiet: bool = False


@dataclasses.dataclass
class Review:
    approved: bool
    reason: Annotated[str, msgspec.Meta(max_length=40)]
    notes: Annotated[str, msgspec.Meta(max_length=4_000)] = "none\nyet"
    sample_size: Annotated[int, msgspec.Meta(ge=1, le=5_000)] = 500
    threshold: float = 0.5
    target: Target = Target.PROD
    shard: Literal[1, 2, 3, 4, 5, 6] = 3
    notify: bool = True
    day: dt.date | None = None
    at: dt.datetime = dt.datetime(2026, 12, 1, 9, 30, tzinfo=dt.UTC)
    window: Window | None = None
    tags: list[str] = dataclasses.field(default_factory=list)
    weights: dict[str, float] = dataclasses.field(default_factory=dict)


@pytest.fixture
def page(context: BrowserContext) -> Page:
    opened = context.new_page()
    opened.clock.install(time=NOW / 1000)
    return opened


def asked(page: Page, schema: object) -> PanelPage:
    described = None if schema is None else describe(schema, "schema")
    mount(page, state([], [wait(schema=described)], head=head(status="waiting", waiting=1)))
    page.clock.run_for(100)
    return PanelPage(page.locator(".nbflow"))


def decided(page: Page) -> list:
    return [jsontext.read(message["payload"]) for message in page.evaluate("window.kernel.sent") if message["type"] == "decide"]


def send(panel: PanelPage) -> None:
    panel.banner.locator(".nbf-approve:visible").click()


def test_every_kind_of_field_has_its_control_filled_with_its_default(page) -> None:
    form = asked(page, Review).banner
    field = form.get_by_label
    assert field("reason", exact=True).evaluate("(node) => [node.type, node.maxLength]") == ["text", 40]
    assert field("notes", exact=True).evaluate("(node) => [node.tagName, node.value]") == ["TEXTAREA", "none\nyet"]
    size = field("sample size").evaluate("(node) => [node.type, node.min, node.max, node.step, node.value]")
    assert size == ["number", "1", "5000", "1", "500"]
    assert field("threshold").evaluate("(node) => [node.step, node.value]") == ["any", "0.5"]
    assert form.get_by_role("radio").evaluate_all("(nodes) => nodes.map((node) => node.checked)") == [True, False, False]
    assert field("shard").evaluate("(node) => [node.tagName, node.selectedOptions[0].text]") == ["SELECT", "3"]
    assert field("notify").is_checked()
    assert field("day", exact=True).evaluate("(node) => [node.type, node.disabled]") == ["date", True]
    assert field("at", exact=True).evaluate("(node) => node.type") == "datetime-local"
    assert field("tags").evaluate("(node) => [node.tagName, node.value]") == ["TEXTAREA", ""]
    assert field("weights").input_value() == "{}"
    expect(form.get_by_label("hours")).to_be_hidden()
    expect(form.get_by_role("button", name="Approve")).to_be_visible()


def test_what_is_filled_in_is_what_is_sent(page) -> None:
    panel = asked(page, Review)
    form = panel.banner
    form.get_by_label("reason", exact=True).fill("looks right")
    form.get_by_label("sample size").fill("64")
    form.get_by_role("radio", name="test").check()
    form.get_by_label("shard").select_option(label="5")
    form.get_by_label("notify").uncheck()
    form.get_by_label("set day").check()
    form.get_by_label("day", exact=True).fill("2026-12-24")
    form.get_by_label("set window").check()
    form.get_by_label("hours").fill("4")
    form.get_by_label("tags").fill("x\ny\n")
    panel.button("Reject").click()
    [payload] = decided(page)
    assert dt.datetime.fromisoformat(payload.pop("at")) == Review.at
    assert payload == {
        "approved": False,
        "reason": "looks right",
        "notes": "none\nyet",
        "sample_size": 64,
        "threshold": 0.5,
        "target": "test",
        "shard": 5,
        "notify": False,
        "day": "2026-12-24",
        "window": {"hours": 4, "quiet": False},
        "tags": ["x", "y"],
        "weights": {},
    }


@dataclasses.dataclass
class Numbers:
    even: Annotated[int, pydantic.Field(ge=1, multiple_of=2)]
    tenths: Annotated[float, pydantic.Field(ge=0.25, le=0.45, multiple_of=0.1)]
    above: Annotated[float, pydantic.Field(gt=5)]


@pytest.mark.parametrize(("presses", "even", "tenths"), [(1, 2, 0.3), (2, 4, 0.4), (5, 10, 0.4)])
def test_the_arrows_of_a_number_offer_only_what_python_takes(page, presses, even, tenths) -> None:
    panel = asked(page, Numbers)
    for name in ("even", "tenths", "above"):
        for _ in range(presses):
            panel.banner.get_by_label(name).press("ArrowUp")
    send(panel)
    [payload] = decided(page)
    assert (payload["even"], payload["tenths"]) == (even, tenths)
    assert problems(describe(Numbers, "schema"), payload, Numbers) == []


class Login(pydantic.BaseModel):
    user: str = "ana"
    token: pydantic.SecretStr = pydantic.SecretStr("hunter2")
    pin: pydantic.Secret[int]


@pytest.mark.parametrize("typed", [None, "s3cret"])
def test_a_secret_is_typed_unseen_and_left_out_where_nobody_touches_it(page, typed) -> None:
    panel = asked(page, Login)
    form = panel.banner
    for name in ("Token", "Pin"):
        assert form.get_by_label(name, exact=True).evaluate("(node) => [node.type, node.value]") == ["password", ""]
    form.get_by_label("Pin", exact=True).fill("1234")
    if typed:
        form.get_by_label("set Token").check()
        form.get_by_label("Token", exact=True).fill(typed)
    send(panel)
    assert decided(page) == [{"user": "ana", "pin": 1234} | ({"token": typed} if typed else {})]
    assert "hunter2" not in page.content()


@pytest.mark.parametrize(
    ("schema", "kind", "typed"),
    [
        (dt.datetime, "datetime-local", "2026-12-01T10:30"),
        (dt.datetime | None, "datetime-local", "2026-12-01T10:30"),
        (dt.time, "time", "10:30"),
        (uuid.UUID, "text", str(uuid.UUID(int=7))),
        (decimal.Decimal, "text", "1.50"),
        (dt.timedelta, "text", "1:30:00"),
    ],
)
def test_a_lone_value_has_its_field_and_an_empty_box_is_not_sent(page, schema, kind, typed) -> None:
    panel = asked(page, schema)
    if schema == dt.datetime | None:
        panel.banner.get_by_role("switch").check()
    control = panel.banner.get_by_label("answer", exact=True)
    assert control.evaluate("(node) => node.type") == kind
    send(panel)
    expect(control).to_have_attribute("aria-invalid", "true")
    assert decided(page) == []
    control.fill(typed)
    send(panel)
    [payload] = decided(page)
    assert payload.startswith(typed)
    assert problems(describe(schema, "schema"), payload, schema) == []


def test_times_as_they_stand_in_a_real_control_go_back_unchanged_and_edited_ones_keep_having_no_zone(page) -> None:
    stood = {
        "at": "2026-12-01T10:30:00",
        "exact": "2026-12-01T10:30:00.250000",
        "daily": "06:00:00.5",
        "there": "06:00:07+02:00",
    }
    formats = dict.fromkeys(("at", "exact"), "date-time") | dict.fromkeys(("daily", "there"), "time")
    properties = {name: {"type": "string", "format": formats[name], "default": stood[name]} for name in stood}
    panel = asked(page, {"type": "object", "properties": {**properties, "why": {"type": "string", "default": ""}}})
    panel.banner.get_by_role("button", name="Send", exact=False).first.click()
    page.clock.run_for(100)
    panel.banner.get_by_label("at", exact=True).fill("2026-12-01T11:45")
    panel.banner.get_by_role("button", name="Send", exact=False).first.click()
    assert decided(page) == [{**stood, "why": ""}, {**stood, "at": "2026-12-01T11:45:00", "why": ""}]
    expect(panel.banner.get_by_text("without a time zone")).to_have_count(2)


def test_what_cannot_be_read_is_said_at_its_field_and_nothing_is_sent(page) -> None:
    panel = asked(page, Review)
    size = panel.banner.get_by_label("sample size")
    size.fill("")
    panel.banner.get_by_label("weights").fill("{")
    panel.button("Approve").click()
    expect(size).to_have_attribute("aria-invalid", "true")
    expect(size).to_be_focused()
    expect(panel.banner.locator(".nbf-field", has=page.get_by_label("sample size")).locator(".nbf-problem")).to_have_text(
        "a number is missing"
    )
    expect(panel.banner.get_by_text("not JSON")).to_be_visible()
    assert decided(page) == []
    size.fill("3")
    panel.banner.get_by_label("weights").fill("{}")
    panel.button("Approve").click()
    assert len(decided(page)) == 1


@pytest.mark.parametrize(
    ("schema", "buttons", "sent"),
    [
        (None, ["Approve", "Reject"], {"approved": True}),
        (bool, ["Approve", "Reject"], True),
        (Literal["red", "blue"], ["Send"], "blue"),
        (int, ["Send"], 7),
        ({"type": "object", "properties": {"urgent": {"type": "boolean"}, "why": {"default": "x"}}}, ["Send"], {"why": "x"}),
    ],
    ids=["none", "bool", "choice", "number", "two fields"],
)
def test_a_lone_yes_or_no_is_a_pair_of_buttons_and_anything_else_is_sent(page, schema, buttons, sent) -> None:
    panel = asked(page, schema)
    shown = panel.banner.locator(".nbf-actions").first.locator("button:visible")
    assert shown.all_inner_texts()[:-1] == buttons
    if panel.banner.get_by_role("radio").count():
        panel.banner.get_by_label("blue").check()
    if panel.banner.get_by_role("spinbutton").count():
        panel.banner.get_by_role("spinbutton").fill("7")
    shown.first.click()
    assert decided(page) == [sent]


def test_what_a_form_cannot_ask_is_asked_as_json(page) -> None:
    panel = asked(page, {"type": "array", "items": {"type": "object"}})
    panel.banner.get_by_label("Payload (JSON)").fill("[{}]")
    panel.banner.get_by_role("button", name="Send", exact=True).click()
    assert decided(page) == [[{}]]


def test_other_payloads_can_be_sent_past_the_form_and_the_form_comes_back(page) -> None:
    panel = asked(page, Review)
    panel.button("Send other payload").click()
    expect(panel.banner.get_by_label("reason", exact=True)).to_be_hidden()
    expect(panel.button("Approve")).to_be_hidden()
    box = panel.banner.get_by_label("Payload (JSON)")
    assert '"sample_size": 500' in box.input_value()
    panel.button("Cancel").click()
    expect(panel.banner.get_by_label("reason", exact=True)).to_be_visible()


@dataclasses.dataclass
class Large:
    order: int = 2**60 + 1
    share: float = 1.0
    ids: list[int] = dataclasses.field(default_factory=lambda: [2**60 + 1])


def test_every_digit_of_a_number_is_sent_whether_it_stands_there_or_is_typed(page) -> None:
    panel = asked(page, Large)
    send(panel)
    page.clock.run_for(100)
    panel.banner.get_by_label("order", exact=True).fill("12345678901234567890")
    send(panel)
    found = decided(page)
    assert found == [{"order": 2**60 + 1, "share": 1.0, "ids": [2**60 + 1]}, {**found[0], "order": 12345678901234567890}]
    assert type(found[0]["share"]) is float


def test_another_payload_is_sent_as_it_is_written(page) -> None:
    panel = asked(page, None)
    panel.button("Send other payload").click()
    written = '{"order": 1152921504606846977, "amount": 1e400, "one": 1.0}'
    panel.banner.get_by_label("Payload (JSON)").fill(written)
    panel.banner.get_by_role("button", name="Send", exact=True).click()
    [message] = [message for message in page.evaluate("window.kernel.sent") if message["type"] == "decide"]
    assert message["payload"] == written


TYPED = """\
%%workflow typed
import dataclasses, datetime, enum
from typing import Annotated
import msgspec
class Target(enum.Enum):
    PROD = "prod"
    TEST = "test"
@dataclasses.dataclass
class Approval:
    approved: bool
    reason: str
    sample_size: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 500
    target: Target = Target.PROD
    day: datetime.date | None = None
class Typed(WorkflowEntrypoint):
    async def run(self, event, step):
        answer = await step.wait_for_event("ask the editor", "approval", schema=Approval, prompt="Publish?")
        return answer.payload
"""


def test_python_refuses_a_bad_value_at_its_field_and_takes_a_good_one(open_notebook) -> None:
    notebook: Notebook = open_notebook(IMPORTS, TYPED)
    notebook.run_to_end(0)
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    panel.await_word("Waiting for you")
    size = panel.banner.get_by_label("sample size")
    size.fill("5000")
    panel.banner.get_by_label("reason", exact=True).fill("fits")
    panel.button("Approve").click()
    expect(
        panel.banner.locator(".nbf-field", has=notebook.page.get_by_label("sample size")).locator(".nbf-problem")
    ).to_contain_text("5000 is greater than")
    expect(size).to_be_focused()
    expect(panel.banner.get_by_label("reason", exact=True)).to_have_value("fits")
    size.fill("40")
    panel.banner.get_by_label("set day").check()
    panel.banner.get_by_label("day", exact=True).fill("2026-12-24")
    panel.button("Approve").click()
    panel.await_word("Complete")
    result = panel.root.locator(".nbf-result")
    for part in ('"sample_size":40', '"target":"prod"', '"day":"2026-12-24"', '"approved":true'):
        expect(result).to_contain_text(part)
    assert notebook.errors == []
