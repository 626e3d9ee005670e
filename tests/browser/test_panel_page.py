"""The panel in a page of its own: size, focus, silence, contrast, hostile text."""

import json

import pytest
from playwright.sync_api import Page, expect

from tests.browser.bare import NOW, SETTLED, detail, group, head, mount, push, row, state, wait
from tests.browser.lab import PanelPage
from tests.jupyter.instances import HOSTILE

STATES = ["running", "retrying", "sleeping", "waiting", "finished", "failed", "cancelled", "interrupted"]


def panel_of(page: Page) -> PanelPage:
    return PanelPage(page.locator(".nbflow"))


def every_state() -> list[dict]:
    rows = [row(0, "load", "finished", ended=NOW, replayed=True, note="3")]
    rows += [row(1 + place, name, name, attempt=2, limit=6, due=NOW + 60_000, note="text") for place, name in enumerate(STATES)]
    return rows


def test_ten_thousand_steps_open_at_once_and_scroll_with_few_rows(page) -> None:
    shown = state([], head=head(status="complete", total=10_000, done=10_000, ended=NOW))
    mount(page, shown)
    page.clock.run_for(1_000)
    panel = panel_of(page)
    assert page.evaluate("window.opened") < 2_500
    expect(panel.rows.first).to_contain_text("row 0")
    assert panel.rows.count() < 200
    for top, text in ((120_000, "row 5000"), (240_000, "row 9999"), (0, "row 0")):
        panel.grid.evaluate("(grid, top) => { grid.scrollTop = top; }", top)
        page.wait_for_timeout(50)
        page.clock.run_for(4_000)
        expect(panel.rows.filter(has_text=text).first).to_be_visible()
        assert panel.rows.count() < 200
    asked = [message for message in page.evaluate("window.kernel.sent") if message["type"] == "rows"]
    assert all(message["stop"] - message["start"] <= 200 for message in asked)


def test_focus_scroll_and_what_is_being_typed_survive_updates(page) -> None:
    rows = [row(index, f"s{index}", "finished", ended=NOW) for index in range(50)]
    mount(page, state(rows, [wait()], head=head(status="waiting", total=50, done=49, waiting=1)))
    panel = panel_of(page)
    page.clock.run_for(100)
    panel.grid.evaluate("(grid) => { grid.scrollTop = 240; grid.dispatchEvent(new Event('scroll')); }")
    panel.button("Send other payload").click()
    box = panel.banner.get_by_label("Payload (JSON)")
    box.fill('{"half": ')
    first = panel.rows.first.element_handle()
    for seq in range(3, 13):
        more = [*rows, row(50, "late", "running")]
        push(page, state(more, [wait()], seq=seq, head=head(status="waiting", total=51, done=49, waiting=1, version=seq)))
        page.clock.run_for(1_000)
    expect(box).to_be_focused()
    expect(box).to_have_value('{"half": ')
    assert panel.grid.evaluate("(grid) => grid.scrollTop") == 240
    assert first.evaluate("(row) => row.isConnected")


def test_the_list_follows_new_steps_until_somebody_looks_elsewhere(page) -> None:
    rows = [row(index, f"s{index}", "finished", ended=NOW) for index in range(40)]
    top = "(grid) => grid.scrollTop"

    def more() -> None:
        rows.append(row(len(rows), f"s{len(rows)}", "running"))
        push(page, state(list(rows), seq=len(rows), head=head(total=len(rows), done=40, version=len(rows))))
        page.clock.run_for(1_000)

    mount(page, state(list(rows), head=head(total=40, done=40)))
    panel = panel_of(page)
    more()
    expect(panel.rows.filter(has_text="s40")).to_be_in_viewport()
    more()
    expect(panel.rows.filter(has_text="s41")).to_be_in_viewport()
    panel.row("s35").dispatch_event("click")
    before = panel.grid.evaluate(top)
    more()
    assert panel.grid.evaluate(top) == before
    panel.grid.evaluate("(grid) => { grid.scrollTop = grid.scrollHeight; }")
    page.wait_for_timeout(100)
    more()
    expect(panel.rows.filter(has_text="s43")).to_be_in_viewport()
    # Scrolled and changed in one moment, before the browser tells of the scrolling: the reader wins.
    panel.grid.evaluate(
        "(grid, next) => { grid.scrollTop = 48; window.kernel.push(next); }",
        state(rows, seq=99, head=head(total=44, version=99)),
    )
    assert panel.grid.evaluate(top) == 48


def test_an_older_state_that_arrives_late_is_not_shown(page) -> None:
    mount(page, state([row(0, "a", "running")], seq=9))
    push(page, state([row(0, "b", "running")], seq=8))
    expect(panel_of(page).rows.first).to_contain_text("a")


def test_controls_wait_for_the_kernel_and_a_silent_one_is_said(page) -> None:
    mount(page, state([], [wait()], head=head(status="waiting", waiting=1)), silent=True)
    panel = panel_of(page)
    expect(panel.stale).to_have_text("connecting…")
    expect(panel.button("Approve")).to_have_attribute("aria-disabled", "true")
    page.clock.run_for(5_000)
    expect(panel.stale).to_contain_text("the kernel is busy, or has restarted")
    page.clock.run_for(12_000)
    expect(panel.stale).to_contain_text("kernel busy, stopped or restarted. Run the cell again.")
    page.evaluate("window.kernel.silent = false")
    page.clock.run_for(40_000)
    expect(panel.root).to_have_attribute("data-live", "true")
    expect(panel.button("Approve")).not_to_have_attribute("aria-disabled", "true")


def test_a_click_without_an_answer_says_so_after_three_seconds(page) -> None:
    mount(page, state([], [wait()], head=head(status="waiting", waiting=1)))
    panel = panel_of(page)
    page.clock.run_for(SETTLED)
    page.evaluate("window.kernel.silent = true")
    panel.button("Approve").click()
    expect(panel.button("Approve")).to_have_text("sending…")
    panel.button("Approve").click(force=True)
    page.clock.run_for(3_100)
    expect(panel.notice).to_have_text("No answer from the kernel: busy, or restarted. If restarted, run the cell again.")
    expect(panel.button("Approve")).to_have_text("Approve")
    decided = [message for message in page.evaluate("window.kernel.sent") if message["type"] == "decide"]
    assert [message["payload"] for message in decided] == ['{"approved":true}']


def test_news_are_acknowledged_each_two_seconds_at_most(page) -> None:
    mount(page, state([]))
    for seq in range(3, 103):
        push(page, state([], seq=seq))
        page.clock.run_for(100)
    page.clock.run_for(3_000)
    heard = [message["seq"] for message in page.evaluate("window.kernel.sent") if message["type"] == "heard"]
    assert 4 <= len(heard) <= 8
    assert heard[-1] == 102


def test_news_from_another_engine_grey_the_panel_until_it_answers(page) -> None:
    mount(page, state([row(0, "a", "running")]))
    panel = panel_of(page)
    page.clock.run_for(100)
    page.evaluate("window.kernel.silent = true")
    push(page, state([row(0, "a", "running")], seq=3, engine="e2"))
    expect(panel.stale).to_contain_text("another engine answers")
    page.evaluate("window.kernel.silent = false")
    page.clock.run_for(60_000)
    expect(panel.root).to_have_attribute("data-live", "true")


def test_times_run_without_any_message(page) -> None:
    mount(page, state([row(0, "a", "running")], [wait(due=NOW + 70_000)], head=head(total=1, running=1, waiting=1)))
    panel = panel_of(page)
    page.clock.run_for(10_000)
    expect(panel.root.locator(".nbf-clock")).to_have_text("1m10s")
    expect(panel.rows.first.locator(".nbf-time")).to_have_text("15s")
    expect(panel.banner.locator(".nbf-left")).to_have_text("expires in 1m00s")


def test_cleanup_stops_everything(page) -> None:
    mount(page, state([row(0, "a", "running")]))
    page.clock.run_for(1_000)
    page.evaluate("window.cleanup()")
    before = page.evaluate("window.kernel.sent.length")
    page.clock.run_for(120_000)
    assert page.evaluate("window.kernel.sent.length") == before
    assert page.evaluate("Object.values(window.handlers).flat().length") == 0
    assert page.locator(".nbflow").count() == 0


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_in_every_place_stays_text(page, hostile) -> None:
    hostile = hostile.encode("utf-8", "replace").decode()[:20_000]
    error = {"type": hostile, "message": hostile, "traceback": hostile}
    attempts = [{"number": 1, "state": hostile, "started": NOW, "seconds": 1, "error": error}]
    previews = [
        {
            "kind": "table",
            "shape": [1, 1],
            "columns": [{"name": hostile, "dtype": hostile}],
            "head": [[hostile]],
            "index": [hostile],
        },
        {"kind": "array", "shape": [hostile], "dtype": hostile, "head": [[hostile]], "heat": [[hostile]]},
        {"kind": "image", "width": hostile, "height": hostile, "png": hostile},
        {"kind": "json", "text": hostile},
        {"kind": "json", "text": json.dumps({hostile: [hostile]}), "file": {"uri": hostile, "size": hostile, "hash": hostile}},
        {"kind": hostile, "line": hostile},
    ]
    rows = [row(place, f"{place}{hostile}", "finished", ended=NOW, note=hostile) for place in range(len(previews))]
    rows.append(row(len(rows), hostile, "failed", ended=NOW, note=hostile))
    items = [
        {"attempt": 1, "stream": stream, "at": NOW, "text": hostile, "mime": {"text/plain": hostile}}
        for stream in ("log", hostile)
    ]
    items.append({"attempt": 1, "stream": "display", "at": NOW, "text": hostile, "mime": {"image/png": hostile}})
    common = {
        "attempts": attempts,
        "log": {"total": 3, "items": items},
        "code": hostile,
        "diff": f"+{hostile}",
        "why": [hostile],
    }
    details = {str(place): detail(rows[place], preview=preview, **common) for place, preview in enumerate(previews)}
    details[str(len(previews))] = detail(rows[-1], error=error, **common)
    parts = {"a": {"default": hostile}, hostile: {"type": "string", "default": hostile, "description": hostile}}
    parts["b"] = {"enum": [hostile, "b"], "title": hostile, "default": hostile}
    parts["c"] = {"type": "object", "properties": {hostile: {"enum": [hostile] * 7}}}
    schema = {"type": "object", "properties": parts}
    answers = {
        "events": {
            "events": {
                "total": 1,
                "start": 0,
                "items": [{"place": 1, "at": NOW, "kind": hostile, "step": hostile, "by": hostile, "note": hostile}],
            }
        },
        "log": {"log": {"total": 1, "items": [{**items[0], "step": rows[0]["key"]}]}},
        "instances": {
            "instances": [
                {
                    "seq": 2,
                    "id": hostile,
                    "status": hostile,
                    "interrupted": True,
                    "started": NOW,
                    "ended": NOW,
                    "params": hostile,
                    "error": "",
                }
            ]
        },
        "plan": {"plan": {"words": hostile, "since": hostile}},
        "error": {"failure": error},
    }
    shown = state(
        rows,
        [wait(name=hostile, event=hostile, prompt=hostile, schema=schema)],
        head=head(status="waiting", total=6, done=5, failed=1, waiting=1, owner=hostile, error=error, interrupted=hostile),
        workflow=hostile,
        id=hostile,
        params=hostile,
        output=hostile,
        traceback=True,
        place=hostile,
    )
    errors: list[str] = []
    page.on("pageerror", lambda problem: errors.append(str(problem)))
    asked: list[str] = []
    page.on("request", lambda request: None if request.url.startswith(("data:", "blob:")) else asked.append(request.url))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    mount(page, shown, details=details, answers=answers)
    page.clock.run_for(100)
    panel = panel_of(page)
    for view in ("Timeline", "Events", "Log", "History", "Steps"):
        panel.root.get_by_role("tablist", name="Views").get_by_role("tab", name=view).dispatch_event("click")
        page.clock.run_for(50)
    panel.button("Restart").first.dispatch_event("click")
    page.clock.run_for(50)
    for index in range(len(rows)):
        panel.rows.nth(index).dispatch_event("click")
        page.clock.run_for(50)
        tabs = panel.root.locator(".nbf-detail").get_by_role("tab")
        assert tabs.count() >= 4
        for place in range(tabs.count()):
            tabs.nth(place).dispatch_event("click")
            assert page.locator(UNWANTED).count() == 0
    assert page.evaluate("window.hit === undefined")
    assert errors == []
    assert asked == []


UNWANTED = (
    ".nbflow :is(script, iframe, object, embed, a, link, style, img:not([src^='data:image/png;']), [onerror], [onmouseover])"
)


CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = (colour, under) => {
    canvas.fillStyle = under ? `rgb(${under.join()})` : '#fff';
    canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };
  const back = (node) => {
    const above = [];
    for (let at = node; at; at = at.parentElement) above.unshift(getComputedStyle(at).backgroundColor);
    return above.reduce((under, colour) => rgb(colour, under), [255, 255, 255]);
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const poor = [];
  for (const node of document.querySelectorAll('.nbflow *')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()) || node.matches('svg, textarea');
    if (!own || !node.checkVisibility()) continue;
    if (node.closest('[aria-disabled=true]')) continue;
    const under = back(node.matches('svg') ? node.parentElement : node);
    const [a, b] = [light(rgb(getComputedStyle(node).color, under)), light(under)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push([node.className.baseVal ?? node.className, node.textContent.slice(0, 30), ratio.toFixed(2)]);
  }
  return poor;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_and_sign_has_a_contrast_of_four_and_a_half(page, theme) -> None:
    rows = every_state()
    error = {"type": "ValueError", "message": "no", "traceback": "Cell [1], line 2"}
    items = [
        {"attempt": 1, "stream": stream, "at": NOW, "text": stream} for stream in ("stdout", "stderr", "warning", "note", "log")
    ]
    failed = detail(
        rows[6], error=error, log={"total": 5, "items": items}, code="def f():", diff="-a\n+b\n@@ c", why=["f changed"]
    )
    tree = {"kind": "json", "text": '{"a": "b", "c": [1, null, true]}', "file": {"uri": "a/b", "size": 1, "hash": "ab"}}
    rows.append(group(9, "embed", {"finished": 30, "failed": 2}))
    counted = head(status="waiting", total=9, done=2, failed=1, waiting=1, error=error)
    mount(
        page,
        state(rows, [wait(due=NOW + 60_000)], head=counted, params='{"n": 1}'),
        details={"6": failed, "0": detail(rows[0], preview=tree)},
        theme=theme,
    )
    page.clock.run_for(100)
    panel = panel_of(page)
    panel.button("Stop").click()
    panel.button("Send other payload").click()
    panel.rows.nth(6).click()
    page.clock.run_for(100)
    expect(panel.root.locator(".nbf-failure")).to_be_visible()
    assert page.evaluate(CONTRAST) == []
    panel.button("Restart").first.click()
    for tab in ("Log", "Code"):
        panel.root.locator(".nbf-detail").get_by_role("tab", name=tab).click()
        assert page.evaluate(CONTRAST) == []
    panel.rows.nth(0).click()
    page.clock.run_for(100)
    expect(panel.root.locator(".nbf-key").first).to_be_visible()
    assert page.evaluate(CONTRAST) == []
    page.evaluate("window.kernel.silent = true")
    page.clock.run_for(20_000)
    expect(panel.stale).to_contain_text("no news since")


def test_states_are_told_by_shape_and_word_not_by_colour_alone(page) -> None:
    mount(page, state(every_state()))
    drawn = panel_of(page).rows.evaluate_all(
        "(rows) => rows.map((row) => [row.querySelector('svg').dataset.icon, row.querySelector('.nbf-words').textContent])"
    )
    assert len({icon for icon, _ in drawn}) == len(drawn)
    assert all(words for _, words in drawn)


def test_nothing_moves_where_motion_is_unwelcome(page) -> None:
    page.emulate_media(reduced_motion="reduce")
    mount(page, state([row(0, "a", "running")], head=head(total=1, running=1)))
    icon = panel_of(page).rows.first.locator(".nbf-sign svg")
    assert icon.evaluate("(svg) => getComputedStyle(svg).animationName") == "none"
    page.emulate_media(reduced_motion="no-preference")
    assert icon.evaluate("(svg) => getComputedStyle(svg).animationName") == "nbf-pulse"
