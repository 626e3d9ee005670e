"""The panel in a real JupyterLab."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.lab import PATIENCE, Notebook, executes

IMPORTS = "%load_ext nbflow\nimport asyncio, time, nbflow\nfrom nbflow import WorkflowEntrypoint"

PUBLISH = """\
%%workflow demo
class Publish(WorkflowEntrypoint):
    async def run(self, event, step):
        docs = await step.do("load", lambda: ["one", "two"])
        answer = await step.wait_for_event("ask the editor", "approval", prompt="Publish 2 docs?")
        return await step.do("publish", lambda: {"published": answer.payload["approved"], "docs": len(docs)})
"""

EVENTS = "nbflow.current_engine().instance('demo').history()"


@pytest.fixture
def notebook(open_notebook) -> Notebook:
    opened = open_notebook(IMPORTS, PUBLISH, "SPARE = 1", "SPARE = 2")
    opened.run_to_end(0)
    return opened


def replace(notebook: Notebook, place: int, source: str) -> None:
    """Type a new source into a cell."""
    notebook.cell(place).locator(".jp-InputArea-editor").click()
    notebook.page.keyboard.press("Control+a")
    notebook.page.keyboard.insert_text(source)


def test_a_workflow_shows_its_steps_and_ends_after_approve(notebook) -> None:
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    panel.await_word("Waiting for you")
    expect(panel.row("load")).to_contain_text("done")
    expect(panel.banner).to_contain_text("Publish 2 docs?")
    expect(panel.banner).to_contain_text("expires in 23h59m")
    panel.button("Approve").click()
    panel.await_word("Complete")
    expect(panel.banner).to_have_count(0)
    expect(panel.root.locator(".nbf-result")).to_contain_text('"published":true')
    panel.row("load").click()
    expect(panel.root.locator(".nbf-shows")).to_contain_text("1: two")
    assert notebook.errors == []


def test_approve_during_a_sync_busy_cell_is_durable_before_that_cell_ends(notebook) -> None:
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    panel.await_word("Waiting for you")
    replace(notebook, 2, "time.sleep(8)")
    notebook.run(2)
    notebook.page.wait_for_timeout(500)
    panel.button("Approve").click()
    panel.await_word("Complete")
    assert notebook.is_busy(2)
    notebook.await_prompt(2)
    replace(notebook, 3, f"print([(e.kind.value, e.body.get('type')) for e in {EVENTS} if e.kind == 'event'])")
    assert notebook.run_to_end(3).strip() == "[('event', 'approval')]"


def test_approve_lets_a_waiting_cell_end(open_notebook) -> None:
    notebook = open_notebook(IMPORTS, PUBLISH.replace("demo", "demo --wait"))
    notebook.run_to_end(0)
    notebook.run(1)
    panel = notebook.panel(1)
    panel.await_live()
    panel.await_word("Waiting for you")
    notebook.page.wait_for_timeout(3_500)
    assert notebook.is_busy(1)
    panel.button("Approve").click()
    panel.await_word("Complete")
    notebook.await_prompt(1)


def test_two_clicks_and_two_tabs_decide_once(notebook, context, lab) -> None:
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    panel.await_word("Waiting for you")
    panel.await_armed("Approve").evaluate("(button) => { button.click(); button.click(); }")
    panel.await_word("Complete")
    replace(notebook, 3, f"print(sum(e.kind == 'event' for e in {EVENTS}))")
    assert notebook.run_to_end(3).strip() == "1"


def test_after_a_kernel_restart_the_old_panel_greys_and_the_run_again_cell_is_live(notebook) -> None:
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    panel.await_word("Waiting for you")
    notebook.restart_kernel()
    expect(panel.stale).to_contain_text("the kernel was restarted")
    expect(panel.root).to_have_class(re.compile("nbf-grey"))
    expect(panel.button("Approve")).to_have_attribute("aria-disabled", "true")
    notebook.run_to_end(0)
    notebook.run_to_end(1)
    panel.await_live()
    panel.await_word("Waiting for you")
    expect(panel.row("load")).to_contain_text("from history")
    panel.button("Approve").click()
    panel.await_word("Complete")


def test_a_page_loaded_again_has_its_panel_live(notebook) -> None:
    notebook.run_to_end(1)
    notebook.panel(1).await_word("Waiting for you")
    notebook.save()
    notebook.open()
    panel = notebook.panel(1)
    panel.await_live()
    panel.await_word("Waiting for you")
    panel.button("Approve").click()
    panel.await_word("Complete")


def test_markup_in_every_text_stays_text(open_notebook) -> None:
    notebook = open_notebook(
        IMPORTS,
        """\
%%workflow markup
HOSTILE = "<img src=x onerror='window.nbflowHit=1'><script>window.nbflowHit=2</script>"
class Markup(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do(HOSTILE, lambda: HOSTILE)
        await step.do("dict", lambda: {HOSTILE: [HOSTILE]})
        await step.wait_for_event(HOSTILE, "go", prompt=HOSTILE)
        def fail():
            raise ValueError(HOSTILE)
        await step.do("fail", fail, retries=0)
""",
    )
    outside, said = [], []
    notebook.page.on("request", lambda request: outside.append(request.url) if "127.0.0.1" not in request.url else None)
    notebook.page.on("console", lambda line: said.append(line.text) if line.type == "error" else None)
    notebook.run_to_end(0)
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    panel.await_word("Waiting for you")
    expect(panel.banner.locator(".nbf-prompt")).to_contain_text("<img src=x")
    for name in ("<img", "dict"):
        panel.row(name).click()
        expect(panel.root.locator(".nbf-shows")).to_contain_text("<img src=x")
    panel.button("Approve").click()
    panel.await_word("Errored")
    expect(panel.root.locator(".nbf-result")).to_contain_text("ValueError: <img src=x")
    panel.row("fail").click()
    expect(panel.root.locator(".nbf-failure")).to_contain_text("<img src=x")
    panel.root.get_by_role("tab", name="Attempts").click()
    for view in ("Timeline", "Events", "Log", "History"):
        panel.view(view).click()
        notebook.page.wait_for_timeout(200)
    assert executes(notebook.page) is None
    assert notebook.cell(1).locator("img, script, iframe").count() == 0
    assert [url for url in outside if not url.startswith(("data:", "blob:"))] == []
    assert [text for text in said if "nbflow" in text or "Content Security" in text] == []
    assert notebook.errors == []


def test_keys_in_the_panel_stay_in_the_panel(notebook) -> None:
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    panel.await_word("Waiting for you")
    cells = notebook.page.locator(".jp-Notebook .jp-Cell").count()
    panel.grid.focus()
    for key in ("d", "d", "x", "b", "ArrowDown", "Enter"):
        notebook.page.keyboard.press(key)
    expect(panel.root.locator(".nbf-detail .nbf-name")).to_have_text("ask the editor")
    notebook.page.keyboard.press("Escape")
    expect(panel.root.locator(".nbf-detail")).to_be_hidden()
    notebook.page.keyboard.press("/")
    notebook.page.keyboard.type("loa")
    expect(panel.rows).to_have_count(1)
    notebook.page.keyboard.press("Escape")
    notebook.page.keyboard.press("a")
    expect(panel.button("Approve")).to_be_focused()
    panel.await_armed("Approve")
    notebook.page.keyboard.press("Enter")
    panel.await_word("Complete")
    assert notebook.page.locator(".jp-Notebook .jp-Cell").count() == cells


def test_stop_asks_once_more_and_terminates(notebook) -> None:
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    panel.button("Pause").click()
    panel.await_word("Paused")
    panel.await_settled()
    panel.button("Resume").click()
    panel.await_word("Waiting for you")
    panel.button("Stop").click()
    expect(panel.button("Terminate", exact=True)).to_be_focused()
    panel.button("Keep it").click()
    panel.await_word("Waiting for you")
    panel.button("Stop").click()
    panel.button("Terminate", exact=True).click()
    panel.await_word("Terminated")
    expect(panel.button("Stop")).to_have_attribute("title", re.compile("nothing to stop"))


def test_another_payload_can_be_sent_as_json(notebook) -> None:
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    panel.await_word("Waiting for you")
    panel.button("Send other payload").click()
    box = panel.banner.get_by_label("Payload (JSON)")
    box.fill("{approved: no}")
    panel.banner.get_by_role("button", name="Send", exact=True).click()
    expect(panel.banner.get_by_role("alert")).to_contain_text("not JSON")
    box.fill('{"approved": "in part"}')
    panel.banner.get_by_role("button", name="Send", exact=True).click()
    panel.await_word("Complete")
    expect(panel.root.locator(".nbf-result")).to_contain_text("in part")


def test_the_saved_notebook_shows_the_twin_above_the_panel(notebook) -> None:
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    panel.button("Approve").click()
    panel.await_word("Complete")
    outputs = notebook.cell(1).locator(".jp-OutputArea-output")
    expect(outputs.filter(has_text="✓ complete")).to_have_count(1, timeout=PATIENCE)
    assert notebook.cell(1).locator(".nbflow").count() == 1


def test_the_panel_follows_jupyterlabs_theme(notebook) -> None:
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    seen = "(panel) => [getComputedStyle(panel).colorScheme, getComputedStyle(panel).backgroundColor]"
    scheme, light = panel.root.evaluate(seen)
    assert scheme == "light"
    notebook.menu("Settings", "Theme", "JupyterLab Dark")
    expect(notebook.page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    scheme, dark = panel.root.evaluate(seen)
    assert scheme == "dark"
    assert light != dark
    notebook.menu("Settings", "Theme", "JupyterLab Light")
    expect(notebook.page.locator("body")).to_have_attribute("data-jp-theme-light", "true")


def test_ten_thousand_steps_of_a_real_instance_open_in_half_a_second(open_notebook) -> None:
    notebook = open_notebook(
        IMPORTS,
        """\
%%workflow many --wait
class Many(WorkflowEntrypoint):
    async def run(self, event, step):
        async def body(ctx):
            return ctx.step.count
        await asyncio.gather(*(step.do("embed", body) for _ in range(10_000)))
""",
        "%workflow show many",
    )
    notebook.run_to_end(0)
    notebook.run_to_end(1)
    notebook.page.evaluate(
        """() => { window.openedIn = null;
        new MutationObserver(() => {
            const found = document.querySelectorAll('.nbflow')[1];
            if (!found) return;
            window.begun ??= performance.now();
            if (window.openedIn === null && found.querySelector('.nbf-rows .nbf-name:not(:empty)'))
                window.openedIn = performance.now() - window.begun;
        }).observe(document.body, {subtree: true, childList: true, characterData: true}); }"""
    )
    notebook.run_to_end(2)
    panel = notebook.panel(2)
    panel.await_live()
    expect(panel.count).to_have_text("10,000 steps")
    expect(panel.rows).to_have_count(1)
    assert notebook.page.evaluate("window.openedIn") < 2_500
    panel.rows.first.click()
    expect(panel.rows.filter(has_text="embed #12").first).to_contain_text("done")
    assert panel.rows.count() < 200
    panel.grid.evaluate("(grid) => { grid.scrollTop = grid.scrollHeight; }")
    expect(panel.rows.filter(has_text="embed #10000")).to_have_count(1)
    panel.rows.filter(has_text="embed #10000").click()
    expect(panel.root.locator(".nbf-shows")).to_contain_text("10000")


def test_shutting_the_kernel_down_takes_the_panel_out_and_leaves_the_twin(notebook) -> None:
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    panel.await_word("Waiting for you")
    notebook.menu("Kernel", "Shut Down Kernel")
    expect(panel.root).to_have_count(0, timeout=PATIENCE)
    expect(notebook.cell(1).locator(".jp-OutputArea-output").filter(has_text="waiting for 'approval'")).to_have_count(1)


def test_reloading_the_extension_keeps_the_panel_of_a_running_instance(notebook) -> None:
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    replace(notebook, 2, "%reload_ext nbflow")
    notebook.run_to_end(2)
    panel.await_live()
    panel.await_word("Waiting for you")
    panel.button("Approve").click()
    panel.await_word("Complete")


def test_a_map_opens_to_its_items_and_shows_what_a_body_prints_displays_and_how_far_it_is(open_notebook) -> None:
    notebook = open_notebook(
        IMPORTS,
        """\
%%workflow looks
from IPython.display import HTML, display
import threading
GO = threading.Event()
def body(item, ctx):
    if item == 7:
        ctx.progress(3, 4, "pages")
        GO.wait(60)
    print("item", item)
    display(HTML(f"<b>bold {item}</b>"))
    return item * 2
class Looks(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.map("double", body, range(30), concurrency=4)
""",
        "GO.set()",
    )
    notebook.run_to_end(0)
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    expect(panel.row("double")).to_contain_text("29/30", timeout=PATIENCE)
    panel.row("double").locator(".nbf-name svg").click()
    expect(panel.row("double[7]")).to_contain_text("75% pages", timeout=PATIENCE)
    notebook.run(2)
    expect(panel.row("double").locator(".nbf-says")).to_have_text("30", timeout=PATIENCE)
    panel.row("double[7]").click()
    expect(panel.detail.locator(".nbf-shows")).to_have_text("14")
    panel.tab("Log").click()
    expect(panel.detail.locator(".nbf-log pre").first).to_have_text("item 7")
    expect(panel.detail.frame_locator("iframe").locator("b")).to_have_text("bold 7")
    panel.view("Log").click()
    expect(panel.root.locator(".nbf-all-logs")).to_contain_text("item 29", timeout=PATIENCE)
    panel.view("Steps").click()
    panel.root.get_by_label("Filter steps by name or text").fill("58")
    expect(panel.rows).to_have_count(1, timeout=PATIENCE)  # by what it gave
    expect(panel.row("double[29]")).to_be_visible()
    panel.root.get_by_label("Filter steps by name or text").press("Escape")
    panel.row("double[7]").click()
    panel.button("Restart from here").click()
    expect(panel.root.locator(".nbf-plan")).to_have_text("29 other items kept, 1 step run again (double[7]).")
    panel.root.locator(".nbf-answers").get_by_role("button", name="Restart").click()
    panel.view("Events").click()
    expect(panel.root.locator(".nbf-listing:visible tr", has_text="restarted")).to_have_count(1, timeout=PATIENCE)
    panel.await_word("Complete")
    panel.view("Steps").click()
    expect(panel.row("double[0]")).to_contain_text("from history", timeout=PATIENCE)
    expect(panel.row("double[7]")).not_to_contain_text("from history")
    assert notebook.errors == []
