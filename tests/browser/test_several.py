"""Several panels on one page, several views of one panel; and what all of them say, as Python takes it."""

import dataclasses
from typing import Literal

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from nbflow.jupyter import messages
from nbflow.values.schemas import describe
from tests.browser.bare import NOW, detail, head, mount, row, state, wait
from tests.browser.lab import PATIENCE, Notebook, PanelPage
from tests.browser.test_lab import IMPORTS, PUBLISH


@dataclasses.dataclass
class Review:
    note: str
    target: Literal["prod", "staging"] = "staging"
    flag: bool = False


TWICE = """() => {
  const ids = [...document.querySelectorAll('.nbflow [id]')].map((node) => node.id);
  return ids.filter((id, place) => ids.indexOf(id) !== place);
}"""


@pytest.fixture
def page(context: BrowserContext) -> Page:
    opened = context.new_page()
    opened.clock.install(time=NOW / 1000)
    return opened


def answer_each(page: Page, forms: list[Locator]) -> None:
    """Fill in every form by its labels, and see that none of the others has moved."""
    for place, form in enumerate(forms):
        form.get_by_text("note", exact=True).click()
        page.keyboard.type(f"note {place}")
        form.get_by_text("flag", exact=True).click()
        form.get_by_text("prod", exact=True).click()
        for number, other in enumerate(forms):
            done = number <= place
            expect(other.get_by_label("note", exact=True)).to_have_value(f"note {number}" if done else "")
            expect(other.get_by_label("flag", exact=True)).to_be_checked(checked=done)
            expect(other.get_by_role("radio", name="prod")).to_be_checked(checked=done)
            expect(other.get_by_role("radio", name="staging")).to_be_checked(checked=not done)


def test_labels_and_radios_belong_to_their_own_view_however_many_there_are(page) -> None:
    for place in range(2):  # each panel of a notebook brings its own copy of the module
        asked = state([], [wait(schema=describe(Review, "schema"))], id=f"r{place}", head=head(status="waiting", waiting=1))
        mount(page, asked, views=2, beside=place > 0)
        page.clock.run_for(200)
    panels = page.locator(".nbflow")
    expect(panels).to_have_count(4)
    assert page.evaluate(TWICE) == []
    answer_each(page, [panels.nth(place).locator(".nbf-form") for place in range(4)])


def test_each_message_that_the_page_sends_has_exactly_the_fields_that_python_takes(page) -> None:
    rows = [row(0, "load", "finished", ended=NOW), row(1, "embed", "retrying", attempt=1, limit=6, due=NOW + 600_000)]
    answers = {
        "instances": {"instances": [{"seq": 7, "id": "other", "status": "complete", "params": "", "error": "", "this": False}]},
        "events": {"events": {"total": 0, "items": []}},
        "log": {"log": {"total": 0, "items": []}},
    }
    details = {str(one["i"]): detail(one) for one in rows}
    error = {"type": "KeyError", "message": "'a'"}
    shown = state(rows, [wait()], head=head(total=2, retrying=1, waiting=1, error=error), traceback=True)
    mount(page, shown, details=details, answers=answers)
    panel = PanelPage(page.locator(".nbflow"))

    def click(button: Locator) -> None:
        button.click()
        page.clock.run_for(500)

    page.clock.run_for(6_000)
    panel.root.get_by_label("Filter steps by state").select_option("retrying")
    page.clock.run_for(500)
    panel.root.get_by_label("Filter steps by state").select_option("")
    page.clock.run_for(500)
    click(panel.row("embed"))
    click(panel.detail.get_by_role("button", name="Retry now"))
    click(panel.button("Traceback"))
    click(panel.button("Approve"))
    click(panel.button("Pause"))
    click(panel.button("Restart", exact=True).first)
    click(panel.root.locator(".nbf-answers").get_by_role("button", name="Restart"))
    for view in ("Events", "Log", "History"):
        click(panel.view(view))
    click(panel.button("Open other"))
    click(panel.button("Close the panel"))
    sent = page.evaluate("window.kernel.sent")
    for message in sent:
        messages.parse(message)
    assert {message["type"] for message in sent} == set(messages._KINDS)


FORM = """\
%%workflow {name} --as {name}
import dataclasses
from typing import Literal
@dataclasses.dataclass
class Review:
    note: str
    target: Literal["prod", "staging"] = "staging"
    flag: bool = False
class Asks(WorkflowEntrypoint):
    async def run(self, event, step):
        return (await step.wait_for_event("ask", "approval", schema=Review)).payload
"""


def test_two_panels_and_two_views_of_one_share_no_field_in_a_notebook(open_notebook) -> None:
    notebook: Notebook = open_notebook(IMPORTS, FORM.format(name="one"), FORM.format(name="two"), "two")
    for place in range(4):
        notebook.run_to_end(place)
    panels = [notebook.panel(place) for place in (1, 2, 3)]
    for panel in panels:
        expect(panel.banner).to_have_count(1)
    assert notebook.page.evaluate(TWICE) == []
    answer_each(notebook.page, [panel.banner.locator(".nbf-form") for panel in panels])


def test_the_cross_closes_one_panel_keeps_the_line_above_and_the_cell_brings_the_panel_back(open_notebook) -> None:
    notebook: Notebook = open_notebook(IMPORTS, PUBLISH, "nbflow.current_engine().instance('demo')")
    for place in range(3):
        notebook.run_to_end(place)
    first, second = notebook.panel(1), notebook.panel(2)

    def close(panel: PanelPage, *, left: tuple[int, int]) -> None:
        panel.await_live()
        panel.button("Close the panel").click()
        for place in (1, 2):
            expect(notebook.cell(place).locator(".nbflow")).to_have_count(left[place - 1])
            expect(notebook.cell(place)).to_contain_text("waiting for 'approval'", timeout=PATIENCE)

    expect(first.root).to_have_count(1)
    close(second, left=(1, 0))
    first.await_live()
    close(first, left=(0, 0))
    notebook.run_to_end(1)
    notebook.run_to_end(2)
    second.await_live()
    notebook.save()
    notebook.open()  # its page knows no display of before
    second.await_live()
    close(first, left=(0, 1))
    notebook.run_to_end(1)
    first.await_live()
    first.await_word("Waiting for you")
    assert notebook.errors == []
