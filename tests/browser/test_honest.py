"""What the panel says when things are not as they were: other tabs, other kernels, saved notebooks, other instances."""

import json
import os
import re
import shutil
import signal
import warnings
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import expect

from tests.browser.lab import PATIENCE, Notebook, PanelPage
from tests.browser.test_lab import EVENTS, IMPORTS, PUBLISH, replace


@pytest.fixture
def waiting(open_notebook) -> Notebook:
    """A notebook whose instance waits for an approval."""
    opened = open_notebook(IMPORTS, PUBLISH, "SPARE = 1")
    opened.run_to_end(0)
    opened.run_to_end(1)
    opened.panel(1).await_live()
    opened.panel(1).await_word("Waiting for you")
    return opened


def test_two_tabs_answer_at_once_and_the_second_is_told_who_was_first(waiting, context, lab) -> None:
    waiting.save()
    second = Notebook(context, lab, waiting.path)
    other = second.panel(1)
    other.await_live()
    other.await_word("Waiting for you")
    # Both clicks are on their way before either is answered: the kernel is held while they are made.
    buttons = [panel.await_armed("Approve").element_handle() for panel in (waiting.panel(1), other)]
    for button in buttons:
        button.evaluate("(button) => { button.click(); }")
    waiting.panel(1).await_word("Complete")
    other.await_word("Complete")
    for _ in range(100):  # the second answer may come after the news that it is complete
        told = [panel.notice.inner_text() for panel in (waiting.panel(1), other)]
        if any(told):
            break
        waiting.page.wait_for_timeout(100)
    assert sorted(bool(text) for text in told) == [False, True]
    assert re.search(r"^\S+@\S+ was first: answered at \d\d?:\d\d:\d\d", "".join(told))
    second.page.close()
    replace(waiting, 2, f"print(sum(e.kind == 'event' for e in {EVENTS}))")
    assert waiting.run_to_end(2).strip() == "1"


def test_a_saved_notebook_says_where_it_stood_trusted_or_not_and_as_a_page(waiting, context, lab, open_notebook) -> None:
    twin = waiting.cell(1).locator(".jp-OutputArea-output").filter(has_text="waiting for 'approval'")
    expect(twin).to_have_count(1, timeout=PATIENCE)
    waiting.save()
    saved = lab.root / waiting.path
    untrusted = lab.root / "untrusted" / "notebook.ipynb"
    untrusted.parent.mkdir()
    shutil.copy(saved, untrusted)
    book = json.loads(untrusted.read_text())
    book["cells"][1]["source"] = "# somebody else's copy\n"
    untrusted.write_text(json.dumps(book))
    waiting.menu("Kernel", "Shut Down Kernel")
    expect(waiting.panel(1).root).to_have_count(0, timeout=PATIENCE)
    for path in (waiting.path, "untrusted/notebook.ipynb"):
        reader = Notebook(context, lab, path, live=False)
        twin = reader.cell(1).locator(".jp-OutputArea-output").filter(has_text="waiting for 'approval'")
        expect(twin).to_have_count(1, timeout=PATIENCE)
        expect(twin).to_contain_text("1 of 2 steps")
        twin.locator("summary").click()
        expect(twin).to_contain_text("nbflow send-event")
        assert reader.cell(1).locator(".nbflow").count() == 0
        reader.page.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nbconvert says of the panel's own output that it can't show it: the twin is for that
        page, _ = HTMLExporter().from_notebook_node(nbformat.read(saved, as_version=4))
    assert "waiting for &#x27;approval&#x27;" in page or "waiting for 'approval'" in page
    assert "nbf-header" not in page


def test_another_instance_of_the_workflow_opens_in_place_and_works_there(waiting) -> None:
    replace(waiting, 2, "second = nbflow.current_engine().workflow('Publish').create(id='second')")
    waiting.run_to_end(2)
    panel = waiting.panel(1)
    panel.view("History").click()
    waiting.cell(1).get_by_role("button", name="Open second").click()
    other = PanelPage(waiting.cell(1).locator(".nbflow:not([hidden])"))
    expect(other.root.locator(".nbf-id")).to_have_text("second", timeout=PATIENCE)
    other.await_live()
    other.await_word("Waiting for you")
    other.button("Reject").click()
    other.await_word("Complete")
    other.button("Back").click()
    expect(panel.root.locator(".nbf-listing:visible tr", has_text="second")).to_contain_text("Complete", timeout=PATIENCE)
    panel.view("Steps").click()
    panel.await_word("Waiting for you")
    assert waiting.errors == []


LONG = """\
%%workflow long
import time
class Long(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("first", int)
        await step.do("work", time.sleep, 600)
"""


def test_a_panel_in_another_kernel_says_within_seconds_that_the_owner_is_gone(open_notebook, context, lab) -> None:  # S51, S52
    owner = open_notebook(IMPORTS, LONG, "import os; print(os.getpid())")
    owner.run_to_end(0)
    owner.run_to_end(1)
    pid = int(owner.run_to_end(2))
    owner.panel(1).await_word("Running")
    beside = Path(lab.root, owner.path).with_name("other.ipynb")
    cells = [new_code_cell(source) for source in ("%load_ext nbflow", "%workflow show long")]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}), beside)
    other = Notebook(context, lab, str(beside.relative_to(lab.root)))
    other.run_to_end(0)
    other.run_to_end(1)
    panel = other.panel(1)
    panel.await_live()
    panel.await_word("Running")
    expect(panel.root.locator(".nbf-result")).to_contain_text("runs in another kernel")
    os.kill(pid, signal.SIGKILL)
    panel.await_word("Interrupted")
    expect(panel.root.locator(".nbf-result")).to_contain_text("its kernel is gone (notebook.ipynb")
    expect(panel.row("work")).to_contain_text("interrupted")
    twin = other.cell(1).locator(".jp-OutputArea-output").filter(has_text="interrupted in notebook.ipynb")
    expect(twin).to_have_count(1, timeout=PATIENCE)
    stood = panel.root.locator(".nbf-clock").inner_text()
    other.page.wait_for_timeout(2_500)
    assert panel.root.locator(".nbf-clock").inner_text() == stood
    expect(panel.button("Pause")).to_be_hidden()
    panel.button("Resume").click()
    expect(panel.notice).to_contain_text("it goes on when its notebook notebook.ipynb next registers 'Long'", timeout=PATIENCE)
    other.page.close()


def test_a_restart_from_a_step_keeps_what_came_before_and_says_so_first(waiting) -> None:
    panel = waiting.panel(1)
    panel.button("Approve").click()
    panel.await_word("Complete")
    panel.row("publish").click()
    panel.button("Restart from here").click()
    expect(panel.root.locator(".nbf-plan")).to_have_text("2 steps kept, 1 step run again (publish).")
    panel.root.locator(".nbf-answers").get_by_role("button", name="Restart").click()
    expect(panel.row("load")).to_contain_text("from history", timeout=PATIENCE)
    panel.await_word("Complete")
    panel.view("Events").click()
    listed = panel.root.locator(".nbf-listing:visible")
    expect(listed.locator("tr", has_text="restarted")).to_contain_text("steps before number 3 kept")
    expect(listed.locator("tr", has_text="event").first).to_contain_text("approved")


def test_what_changed_in_a_cell_is_shown_and_the_first_stale_step_runs_again(open_notebook) -> None:
    code = """\
%%workflow stale
def load():
    return [1, 2]
class Stale(WorkflowEntrypoint):
    async def run(self, event, step):
        docs = await step.do("load", load)
        await step.do("count", len, docs)
        await step.wait_for_event("go on", "go")
"""
    notebook = open_notebook(IMPORTS, code)
    notebook.run_to_end(0)
    notebook.run_to_end(1)
    notebook.panel(1).await_word("Waiting for you")
    replace(notebook, 1, code.replace("[1, 2]", "[1, 2, 3]"))
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    expect(panel.row("load")).to_contain_text("code changed", timeout=PATIENCE)
    panel.row("load").click()
    panel.tab("Code").click()
    expect(panel.detail.locator("[data-kind=added]")).to_contain_text("[1, 2, 3]")
    panel.button("Restart", exact=True).first.click()
    panel.root.get_by_label("from the first stale step").check()
    expect(panel.root.locator(".nbf-plan")).to_have_text("0 steps kept, 3 steps run again (load, count, go on).")
    panel.root.locator(".nbf-answers").get_by_role("button", name="Restart").click()
    panel.button("Close details").click()
    expect(panel.row("load")).to_contain_text("[1,2,3]", timeout=PATIENCE)
    expect(panel.row("load")).to_contain_text("done")
    expect(panel.row("count").locator(".nbf-note")).to_contain_text("3")


def test_resuming_what_was_rolled_back_says_what_runs_again_and_asks_first(open_notebook) -> None:  # S48
    code = """\
%%workflow trip
booked = []
class Trip(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("flight", lambda: booked.append("flight"), rollback=lambda: None)
        await step.do("hotel", lambda: booked.append("hotel"), rollback=lambda: None)
        await step.do("pay", lambda: 1 / 0, retries=0)
"""
    notebook = open_notebook(IMPORTS, code, "print(booked)")
    notebook.run_to_end(0)
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    panel.await_word("Errored")
    expect(panel.row("undo flight")).to_contain_text("rolled back", timeout=PATIENCE)
    panel.button("Resume").click()
    question = panel.root.get_by_role("group", name="Resume")
    expect(question).to_contain_text("Resume trip? rolled back: 0 steps kept, 3 steps run again (flight, hotel, pay).")
    question.get_by_role("button", name="Cancel").click()
    expect(question).to_be_hidden()
    notebook.page.wait_for_timeout(1_000)
    assert notebook.run_to_end(2).strip() == "['flight', 'hotel']"
    panel.button("Resume").click()
    question.get_by_role("button", name="Resume").click()
    expect(question).to_be_hidden(timeout=PATIENCE)
    panel.await_word("Errored")
    assert notebook.run_to_end(2).strip() == "['flight', 'hotel', 'flight', 'hotel']"
    assert notebook.errors == []


def test_terminate_and_roll_back_undoes_and_says_so(open_notebook) -> None:
    code = """\
%%workflow undone
class Undone(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("book", lambda: "a seat", rollback=lambda output: print("cancelled", output))
        await step.wait_for_event("pay", "paid")
"""
    notebook = open_notebook(IMPORTS, code)
    notebook.run_to_end(0)
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    panel.await_word("Waiting for you")
    panel.button("Stop").click()
    panel.button("Terminate and roll back").click()
    panel.await_word("Terminated")
    expect(panel.row("undo book")).to_contain_text("rolled back", timeout=PATIENCE)
    expect(panel.root.locator(".nbf-counts")).to_contain_text("rolled back")
    panel.view("Log").click()
    expect(panel.root.locator(".nbf-all-logs")).to_contain_text("cancelled a seat", timeout=PATIENCE)
