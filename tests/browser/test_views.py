"""What a person sees and does in the panel beside the form: groups, details, timeline, events, history, menus, keys."""

import http.server
import json
import re
import threading
from typing import ClassVar

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.bare import NOW, SETTLED, detail, group, head, mount, push, row, state, wait
from tests.browser.lab import PanelPage

TRACEBACK = """Traceback (most recent call last):
  File "Cell [7]", line 12, in embed_shard
    r = client.get(url)
  File "/venv/lib/python3.11/site-packages/httpx/_client.py", line 1054, in get
    return self.request("GET", url)
TimeoutError: read timed out
"""
ERROR = {"type": "TimeoutError", "message": "read timed out", "traceback": TRACEBACK}
TRIES = [[NOW - 60_000, NOW - 52_000, "failed"], [NOW - 42_000, NOW - 38_000, "failed"]]
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture
def page(context: BrowserContext) -> Page:
    opened = context.new_page()
    opened.clock.install(time=NOW / 1000)
    return opened


def shown(page: Page, given: dict, **more: object) -> PanelPage:
    mount(page, given, **more)
    page.clock.run_for(200)
    return PanelPage(page.locator(".nbflow:not([hidden])"))


def sent(page: Page, kind: str) -> list[dict]:
    return [message for message in page.evaluate("window.kernel.sent") if message["type"] == kind]


def rows_answer(items: list[dict], total: int | None = None) -> dict:
    return {"rows": {"rows": {"total": len(items) if total is None else total, "start": 0, "version": 1, "items": items}}}


# -- steps


def test_a_group_is_one_line_with_its_bar_and_opens_to_its_steps(page) -> None:
    counts = {"finished": 812, "running": 4, "failed": 2}
    rows = [row(0, "list", "finished", ended=NOW), group(1, "embed", counts, rate=14.2), row(2, "publish", "running")]
    inside = [row(2 + n, "embed", "finished", ended=NOW, level=2) for n in range(30)]
    answers = rows_answer([rows[0], {**rows[1], "open": True}, *inside, row(32, "publish", "running")])
    panel = shown(page, state(rows, head=head(total=820, done=813)), answers=answers)
    folded = panel.row("embed")
    expect(folded).to_contain_text("812/818")
    expect(folded).to_contain_text("2 failed · 14.2/s")
    expect(folded).to_have_attribute("aria-expanded", "false")
    folded.click()
    page.clock.run_for(200)
    assert sent(page, "rows")[-1]["open"] == [["do", "embed"]]
    expect(panel.row("embed")).to_have_attribute("aria-expanded", "true")
    expect(panel.rows.nth(2)).to_have_attribute("aria-level", "2")
    panel.grid.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.clock.run_for(200)
    expect(panel.rows).to_have_count(3)
    page.keyboard.press("ArrowRight")
    page.clock.run_for(200)
    assert panel.rows.count() > 10


def test_a_map_shows_its_details_when_chosen_and_its_items_when_its_arrow_is(page) -> None:
    whole = row(0, "embed", "running", counts={"finished": 3, "failed": 1}, total=40, open=False)
    whole["key"] = ["map", "embed", 1, None]
    item = {**row(1, "embed", "failed", ended=NOW, level=2), "key": ["map", "embed", 1, "k1"]}
    answers = rows_answer([{**whole, "open": True}, item])
    panel = shown(page, state([whole], head=head(total=1)), details={"0": detail(whole)}, answers=answers)
    expect(panel.rows.first).to_contain_text("3/40")
    panel.rows.first.locator(".nbf-words").click()
    page.clock.run_for(100)
    expect(panel.detail.locator(".nbf-about .nbf-name")).to_have_text("embed")
    expect(panel.detail).to_contain_text("running · 3/40 · 1 failed")
    expect(panel.rows).to_have_count(1)
    panel.rows.first.locator(".nbf-name svg").click()
    page.clock.run_for(200)
    assert sent(page, "rows")[-1]["open"] == [["map", "embed"]]
    expect(panel.rows.nth(1)).to_contain_text("embed[k1]")


def test_the_list_is_filtered_by_text_state_and_type(page) -> None:
    rows = [row(0, "load", "finished", ended=NOW), row(1, "embed", "failed", ended=NOW)]
    panel = shown(page, state(rows), answers=rows_answer([row(0, "embed", "failed", ended=NOW)]))
    panel.root.get_by_label("Filter steps by name or text").fill("emb")
    panel.root.get_by_label("Filter steps by state").select_option("failed")
    panel.root.get_by_label("Filter steps by type").select_option("do")
    page.clock.run_for(500)
    asked = sent(page, "rows")[-1]
    assert (asked["text"], asked["state"], asked["kind"]) == ("emb", "failed", "do")
    expect(panel.rows).to_have_count(1)
    expect(panel.count).to_have_text("1 of 2 steps")
    panel.root.get_by_label("Filter steps by name or text").press("Escape")
    panel.root.get_by_label("Filter steps by state").select_option("")
    panel.root.get_by_label("Filter steps by type").select_option("")
    page.clock.run_for(500)
    expect(panel.rows).to_have_count(2)


def test_items_that_a_filter_finds_are_not_counted_among_the_steps_and_a_map_says_where_its_outputs_are(page) -> None:
    whole = {**row(0, "embed", "finished", ended=NOW, counts={"finished": 2}, total=2), "key": ["map", "embed", 1, None]}
    items = [
        {**row(place, "embed", "finished", ended=NOW, level=2), "key": ["map", "embed", 1, f"k{place}"]} for place in (0, 1)
    ]
    panel = shown(page, state([whole], head=head(total=1)), details={"0": detail(whole)}, answers=rows_answer(items))
    panel.rows.first.locator(".nbf-words").click()
    page.clock.run_for(100)
    expect(panel.detail).to_contain_text("each item has its own output")
    panel.root.get_by_label("Filter steps by name or text").fill("embed[k")
    page.clock.run_for(500)
    expect(panel.count).to_have_text("2 found")
    more = {**rows_answer(items)["rows"], "rows": {**rows_answer(items)["rows"]["rows"], "more": True}}
    page.evaluate("(rows) => { window.kernel.answers.rows = rows; }", more)
    panel.root.get_by_label("Filter steps by name or text").fill("embed")
    page.clock.run_for(500)
    expect(panel.count).to_have_text("2+ found")


def test_a_rows_height_never_changes_with_its_state(page) -> None:
    panel = shown(page, state([row(0, "load", "running")]))
    heights = set()
    for seq, (status, more) in enumerate(
        [
            ("running", {"progress": [3, 9, "a note that is long " * 9]}),
            ("retrying", {"attempt": 2, "limit": 6, "due": NOW + 9_000, "note": "x" * 140}),
            ("failed", {"ended": NOW, "note": "y" * 140}),
            ("finished", {"ended": NOW, "stale": True}),
            ("waiting", {"due": NOW + 9_000}),
        ],
        3,
    ):
        push(page, state([row(0, "load", status, **more)], seq=seq))
        box = panel.rows.first.bounding_box()
        heights.add((box["height"], box["y"]))
    assert {height for height, _ in heights} == {24}
    assert len(heights) == 1


def test_a_body_that_tells_its_progress_has_a_bar_in_its_row(page) -> None:
    panel = shown(page, state([row(0, "train", "running", progress=[61, 100, "epoch 4"])]))
    expect(panel.row("train")).to_contain_text("61% epoch 4")
    bar = panel.row("train").locator(".nbf-mini")
    share = bar.evaluate("(bar) => bar.firstElementChild.offsetWidth / bar.offsetWidth")
    assert 0.55 < share < 0.67


def test_retry_now_of_a_row_is_for_that_step_alone(page) -> None:
    rows = [row(0, "a", "retrying", attempt=1, due=NOW + 60_000), row(1, "b", "retrying", attempt=1, due=NOW + 60_000)]
    panel = shown(page, state(rows, head=head(total=2, retrying=2)))
    panel.row("b").get_by_role("button", name="Retry now").click()
    assert [message["key"] for message in sent(page, "retry")] == [["do", "b", 1, None]]
    expect(panel.detail).to_be_hidden()


# -- the selected step


def opened(page: Page, told: dict, status: str = "finished", **more: object) -> PanelPage:
    chosen = row(0, "load", status, **({"ended": NOW} if status == "finished" else {}), **more)
    panel = shown(page, state([chosen]), details={"0": detail(chosen, **told)})
    panel.rows.first.click()
    page.clock.run_for(100)
    return panel


def test_a_table_shows_its_head_its_types_its_file_and_code_for_a_cell(page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    columns = [{"name": "id", "dtype": "int64"}, {"name": "title", "dtype": "string"}]
    preview = {"kind": "table", "shape": [9_000, 24], "columns": columns, "head": [["1", "<b>"], ["2", "b"]], "line": ""}
    panel = opened(page, {"preview": {**preview, "file": {"uri": "Ingest/a/9f.parquet", "size": 1_500_000, "hash": "9f86"}}})
    expect(panel.detail).to_contain_text("table 9,000 × 24 · first 2 rows · first 2 columns")
    assert panel.detail.locator("th .nbf-type").all_inner_texts() == ["int64", "string"]
    assert panel.detail.locator("td").all_inner_texts() == ["1", "<b>", "2", "b"]
    expect(panel.detail.locator(".nbf-file")).to_contain_text("Ingest/a/9f.parquet")
    expect(panel.detail.locator(".nbf-file")).to_contain_text("1.5 MB · SHA-256 9f86")
    panel.button("open in a cell").click()
    expect(panel.detail.get_by_text(re.compile("^(copied|could not copy)$"))).to_be_visible()


def test_an_array_shows_its_numbers_and_a_heat_map(page) -> None:
    preview = {"kind": "array", "shape": [2, 2], "dtype": "float64", "min": 0, "mean": 0.5, "max": 1, "head": [["0", "1"]]}
    panel = opened(page, {"preview": {**preview, "heat": [[0, 255], [None, 128]]}})
    expect(panel.detail).to_contain_text("array 2 × 2 · float64 · min 0 · mean 0.5 · max 1")
    pixels = "(canvas) => [...canvas.getContext('2d').getImageData(0, 0, 2, 1).data]"
    light, dark = (lambda data: (sum(data[:3]), sum(data[4:7])))(panel.detail.locator("canvas").evaluate(pixels))
    assert light > dark + 200


def test_a_picture_is_drawn_and_json_is_a_tree_that_opens(page) -> None:
    panel = opened(page, {"preview": {"kind": "image", "width": 1, "height": 1, "png": PNG}})
    assert panel.detail.locator("img").evaluate("(img) => img.naturalWidth") == 1
    given = {"a": {"deep": {"deeper": ["<i>x</i>"]}}, "n": None}
    panel = opened(page, {"preview": {"kind": "json", "text": json.dumps(given), "truncated": False}})
    expect(panel.detail.get_by_text("<i>x</i>")).to_have_count(0)
    for name in ("deep", "deeper"):
        panel.detail.locator("summary", has_text=re.compile(f"^{name}:")).click()
    expect(panel.detail.get_by_text("<i>x</i>")).to_be_visible()


def test_an_error_shows_the_users_frames_and_folds_those_of_libraries(page) -> None:
    attempts = [
        {"number": n + 1, "state": "failed", "started": start, "seconds": (end - start) / 1000, "error": ERROR}
        for n, (start, end, _) in enumerate(TRIES)
    ]
    panel = opened(page, {"error": ERROR, "attempts": attempts}, "retrying", attempt=2, limit=6, due=NOW + 9_000)
    expect(panel.tab("Error")).to_have_attribute("aria-selected", "true")
    expect(panel.detail.locator(".nbf-failure")).to_have_text("TimeoutError: read timed out")
    expect(panel.detail.get_by_text('File "Cell [7]", line 12, in embed_shard')).to_be_visible()
    library = panel.detail.locator(".nbf-library pre")
    expect(library).to_be_hidden()
    panel.detail.get_by_text("1 frame of libraries").click()
    expect(library).to_contain_text("httpx/_client.py")
    expect(panel.detail.get_by_role("button", name="Copy", exact=True)).to_be_visible()
    panel.detail.get_by_role("button", name="Retry now").click()
    assert sent(page, "retry")[0]["key"] == ["do", "load", 1, None]
    panel.tab("Attempts").click()
    assert panel.detail.locator("tr").count() == 3
    panel.detail.locator("summary").first.click()
    expect(panel.detail.get_by_text('File "Cell [7]"').first).to_be_visible()


def test_resume_asks_where_undone_steps_run_again_and_only_there(page) -> None:  # S48
    failed = head(status="errored", ended=NOW, total=3, done=2, failed=1, error={"type": "KeyError", "message": "'a'"})
    panel = shown(page, state([], head=failed))
    resume = panel.root.locator(".nbf-controls").get_by_role("button", name="Resume")
    assert resume.get_attribute("aria-expanded") is None
    resume.click()
    assert [message["control"] for message in sent(page, "command")] == ["resume"]
    page.clock.run_for(100)
    undone = {**failed, "rollback": "complete", "undone": "rolled back: 0 steps kept, 3 steps run again (a, b, c)"}
    push(page, state([], seq=3, head=undone))
    expect(resume).to_have_attribute("aria-expanded", "false")
    resume.click()
    question = panel.root.get_by_role("group", name="Resume")
    expect(question).to_contain_text("Resume ingest-1? rolled back: 0 steps kept, 3 steps run again (a, b, c).")
    assert len(sent(page, "command")) == 1
    page.keyboard.press("Escape")
    expect(question).to_be_hidden()
    resume.click()
    question.get_by_role("button", name="Resume").click()
    page.clock.run_for(100)
    assert [message["control"] for message in sent(page, "command")] == ["resume", "resume"]
    expect(question).to_be_hidden()
    resume.click()
    push(page, state([], seq=4, head=head()))
    expect(question).to_be_hidden()


def test_the_instances_own_error_opens_to_the_same_view_as_a_steps_error(page) -> None:
    message = "read timed out\nand a second line"
    told = {"type": "TimeoutError", "message": message, "traceback": TRACEBACK}
    failed = head(status="errored", ended=NOW, total=1, done=1, error={"type": "TimeoutError", "message": "read timed out…"})
    given = state(
        [row(0, "load", "finished", ended=NOW)], head=failed, traceback=True, place="Cell [7], line 12, in embed_shard"
    )
    panel = shown(page, given, answers={"error": {"failure": told}})
    outcome = panel.root.locator(".nbf-outcome")
    expect(outcome).to_contain_text("TimeoutError: read timed out…")
    expect(outcome).to_contain_text("Cell [7], line 12, in embed_shard")
    assert sent(page, "error") == []
    more = panel.button("Traceback")
    more.click()
    page.clock.run_for(200)
    expect(more).to_have_attribute("aria-expanded", "true")
    expect(outcome.locator(".nbf-failure")).to_have_text(f"TimeoutError: {message}")
    expect(outcome.get_by_text('File "Cell [7]", line 12, in embed_shard')).to_be_visible()
    expect(outcome.locator(".nbf-library pre")).to_be_hidden()
    expect(outcome.get_by_role("button", name="Copy")).to_be_visible()
    push(page, {**given, "seq": 3})
    assert len(sent(page, "error")) == 1  # what is being read stays
    again = head(status="errored", ended=NOW + 9, total=1, done=1, error={"type": "KeyError", "message": "'a'"})
    push(page, state([], seq=4, head=again, traceback=True))
    assert len(sent(page, "error")) == 2
    push(page, state([], seq=5, head=head()))
    expect(outcome).to_be_hidden()
    push(page, state([], seq=6, head=again, traceback=True))
    expect(outcome.locator(".nbf-whole")).to_be_hidden()
    page.clock.run_for(SETTLED)
    more.click()
    page.clock.run_for(200)
    expect(outcome.locator(".nbf-failure")).to_be_visible()
    more.click()
    expect(outcome.locator(".nbf-whole")).to_be_hidden()


def log(*items: dict) -> dict:
    filled = [{"attempt": 1, "stream": "stdout", "at": NOW, "text": "", **item} for item in items]
    return {"total": len(filled), "items": filled}


def test_a_log_shows_streams_attempts_pictures_and_what_a_terminal_would(page) -> None:
    items = [
        {"text": "\x1b[31mred\x1b[0m\n"},
        {"stream": "warning", "text": "UserWarning: slow"},
        {"attempt": 2, "text": "10%\r100%\n"},
        {"attempt": 2, "stream": "display", "mime": {"image/png": PNG}, "text": "a figure"},
    ]
    panel = opened(page, {"log": log(*items)})
    panel.tab("Log").click()
    assert panel.detail.locator(".nbf-log pre").all_inner_texts() == ["red", "UserWarning: slow", "100%"]
    expect(panel.detail.locator(".nbf-stream")).to_have_text("warning")
    expect(panel.detail.locator(".nbf-part")).to_have_text("attempt 2")
    assert panel.detail.locator("img").get_attribute("alt") == "a figure"


HOSTILE_HTML = """<h1>shown</h1><script>parent.hit=1</script><img src=x onerror="parent.hit=2"><img src="http://evil.test/a.png">
<link rel=stylesheet href="http://evil.test/a.css"><style>@import "http://evil.test/b.css"; h1 {color: rgb(1, 2, 3)}</style>
<iframe src="http://evil.test/frame"></iframe><meta http-equiv=refresh content="0; url=http://evil.test/away">
<object data="http://evil.test/o"></object><video src="http://evil.test/v" autoplay></video><form action="http://evil.test/f"><button>go</button></form>"""


class Evil(http.server.BaseHTTPRequestHandler):
    """Whoever HTML of a user would have something loaded from."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_error(404)

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


def test_html_of_a_user_lives_in_a_frame_that_may_do_and_load_nothing(page) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = f"http://127.0.0.1:{server.server_port}"
        asked: list[str] = []
        refused: list[tuple[str, str | None]] = []
        page.context.on("request", lambda request: asked.append(request.url))
        page.context.on("requestfailed", lambda request: refused.append((request.url, request.failure)))
        try:
            _is_shown_and_does_nothing(page, HOSTILE_HTML.replace("http://evil.test", there))
            # The network log may name requests of the browser that looks ahead, which the policy has refused; no others.
            assert [url for url in asked if there in url and (url, "csp") not in refused] == []
            page.evaluate("url => fetch(url, {mode: 'no-cors'}).catch(() => null)", f"{there}/seen")
        finally:
            server.shutdown()
    assert Evil.asked == ["/seen"]


def _is_shown_and_does_nothing(page, html: str) -> None:
    panel = opened(page, {"log": log({"stream": "display", "mime": {"text/html": html}})})
    assert panel.detail.locator("iframe").count() == 0
    panel.tab("Log").click()
    frame = panel.detail.locator("iframe")
    assert frame.get_attribute("sandbox") == ""
    assert frame.bounding_box()["height"] == 200
    inside = panel.detail.frame_locator("iframe")
    expect(inside.get_by_role("heading")).to_have_text("shown")
    page.wait_for_timeout(500)
    page.clock.run_for(2_000)
    assert page.evaluate("window.hit === undefined")
    expect(inside.get_by_role("heading")).to_have_text("shown")


def test_code_shows_why_it_is_stale_and_what_changed(page) -> None:
    diff = "--- recorded\n+++ present\n@@ -1 +1 @@\n-return 1\n+return <b>2</b>\n"
    panel = opened(page, {"code": "def load():\n    return 1\n", "diff": diff, "why": ["load changed"]}, stale=True)
    panel.tab("Code").click()
    expect(panel.detail).to_contain_text("stale: load changed")
    kinds = panel.detail.locator(".nbf-line-of").evaluate_all("(lines) => lines.map((line) => line.dataset.kind)")
    assert kinds == ["file", "file", "place", "removed", "added"]
    expect(panel.detail.get_by_text("+return <b>2</b>")).to_be_visible()


def test_what_is_read_stays_when_the_step_is_told_again_and_nothing_changed(page) -> None:
    panel = opened(page, {"preview": {"kind": "json", "text": '{"a": {"b": {"c": 1}}}'}})
    panel.detail.locator("summary", has_text=re.compile("^b:")).click()
    push(page, state([row(0, "load", "finished", ended=NOW, note="told again")], seq=9))
    page.clock.run_for(200)
    expect(panel.detail.get_by_text("c: 1")).to_be_visible()


# -- timeline, events, history


def test_the_timeline_shows_attempts_and_gaps_and_zooms_by_buttons_and_keys_never_by_the_wheel(page) -> None:
    rows = [
        row(0, "load", "finished", started=NOW - 60_000, ended=NOW - 50_000),
        row(1, "embed", "retrying", started=NOW - 60_000, attempt=2, limit=6, due=NOW + 9_000, tries=TRIES),
    ]
    panel = shown(page, state(rows, head=head(total=2, done=1, retrying=1)), details={"1": detail(rows[1])})
    panel.view("Timeline").click()
    kinds = "(row) => [...row.querySelectorAll('.nbf-span')].map((span) => span.dataset.kind)"
    assert panel.row("embed").evaluate(kinds) == ["failed", "gap", "failed", "gap"]
    width = "(row) => row.querySelector('.nbf-span').getBoundingClientRect().width"
    before = panel.row("load").evaluate(width)
    panel.button("Zoom in").click()
    panel.button("Earlier").click()
    assert panel.row("load").evaluate(width) == pytest.approx(before * 2, rel=0.05)
    panel.button("Fit").click()
    assert panel.row("load").evaluate(width) == pytest.approx(before, rel=0.05)
    panel.grid.focus()
    page.keyboard.press("+")
    assert panel.row("load").evaluate(width) > before * 1.3
    page.keyboard.press("0")
    panel.grid.hover()
    page.mouse.wheel(0, 300)
    assert panel.row("load").evaluate(width) == pytest.approx(before, rel=0.05)
    ticks = panel.root.locator(".nbf-tick").all_inner_texts()
    assert ticks[0] == "0"
    assert 3 <= len(ticks) <= 7
    panel.row("embed").click()
    page.clock.run_for(100)
    expect(panel.detail.locator(".nbf-about .nbf-name")).to_have_text("embed")
    panel.view("Steps").click()
    expect(panel.row("embed")).to_have_attribute("aria-selected", "true")


def test_events_are_listed_newest_first_and_those_of_steps_when_asked(page) -> None:
    items = [
        {"place": 2, "at": NOW, "kind": "event", "step": "", "by": "ana@lab", "note": "approval <b>"},
        {"place": 1, "at": NOW, "kind": "created", "step": "", "by": "", "note": ""},
    ]
    panel = shown(page, state([]), answers={"events": {"events": {"total": 300, "start": 0, "items": items}}})
    panel.view("Events").click()
    page.clock.run_for(100)
    lines = panel.root.locator(".nbf-listing:visible tr")
    expect(lines.nth(1)).to_contain_text("approval <b>")
    expect(lines.nth(1)).to_contain_text("ana@lab")
    panel.root.get_by_label("those of steps too").check()
    page.clock.run_for(100)
    panel.button("Older").click()
    asked = sent(page, "events")
    assert [(message["start"], message["steps"]) for message in asked] == [(0, False), (0, True), (2, True)]


INSTANCES = [
    {
        "seq": 9,
        "id": "new",
        "status": "running",
        "interrupted": False,
        "started": NOW,
        "ended": None,
        "params": "{}",
        "error": "",
        "this": True,
    },
    {
        "seq": 7,
        "id": "lost",
        "status": "running",
        "interrupted": True,
        "started": NOW,
        "ended": None,
        "params": "{}",
        "error": "",
    },
    {
        "seq": 5,
        "id": "old",
        "status": "complete",
        "interrupted": False,
        "started": NOW,
        "ended": NOW,
        "params": "{}",
        "error": "",
    },
]
OTHER = """(state) => {
  const own = window.kernel;
  const model = {
    get: () => state, off: () => {}, handlers: {},
    on: (name, handler) => { model.handlers[name] = handler; },
    send: (message) => {
      own.sent.push({...message, to: state.id});
      setTimeout(() => model.handlers['msg:custom']({type: 'answer', id: message.id, ok: true, engine: 'e1', now: Date.now(), seq: 1}), 1);
    },
  };
  window.model.widget_manager = {get_model: async (id) => { window.openedModel = id; return model; }};
}"""


def test_history_shows_the_params_of_what_failed_and_its_error_beside_them(page) -> None:  # PANEL 10
    failed = {**INSTANCES[-1], "id": "failed", "status": "errored", "params": '{"day": 3}', "error": "ValueError: day three"}
    panel = shown(page, state([]), answers={"instances": {"instances": [failed]}})
    panel.view("History").click()
    page.clock.run_for(100)
    lines = panel.root.locator(".nbf-listing:visible tr")
    titles, cells = lines.nth(0).locator("th").all_inner_texts(), lines.nth(1).locator("td").all_inner_texts()
    told = dict(zip(titles, cells, strict=True))
    assert (told["Params"], told["Error"]) == ('{"day": 3}', "ValueError: day three")


def test_a_map_that_came_from_history_says_so_once(page) -> None:
    counts = {"finished": 4, "failed": 1}
    whole = {**row(0, "embed", "finished", ended=NOW, replayed=True, counts=counts, total=5), "key": ["map", "embed", 1, None]}
    panel = shown(page, state([whole]), details={"0": detail(whole)})
    panel.row("embed").click()
    page.clock.run_for(100)
    expect(panel.detail.locator(".nbf-about .nbf-words")).to_have_text(re.compile(r"^from history · 4/5 · 1 failed · \d"))


def test_another_instance_opens_in_place_and_an_interrupted_one_is_resumed(page) -> None:
    answers = {"instances": {"instances": INSTANCES}, "open": {"model": "abc"}}
    panel = shown(page, state([row(0, "load", "running")], id="new"), answers=answers)
    panel.view("History").click()
    page.clock.run_for(100)
    expect(panel.root.locator(".nbf-listing:visible tr").nth(2)).to_contain_text("Interrupted")
    lost = state([row(0, "lost step", "interrupted")], id="lost", head=head(here=False, owner="a.ipynb", alive=False, total=1))
    page.evaluate(OTHER, lost)
    panel.button("Resume lost").click()
    page.clock.run_for(100)
    page.wait_for_timeout(50)
    page.clock.run_for(2_000)
    assert sent(page, "open")[0]["instance"] == 7
    other = PanelPage(page.locator(".nbflow:not([hidden])"))
    expect(other.row("lost step")).to_be_visible()
    commands = [message for message in sent(page, "command") if message.get("to") == "lost"]
    assert [message["control"] for message in commands] == ["resume"]
    other.button("Back").click()
    expect(panel.root.locator(".nbf-listing:visible")).to_be_visible()
    expect(page.locator(".nbflow")).to_have_count(1)


# -- header


def test_stop_offers_a_rollback_and_restart_says_what_it_keeps_before_it_does_anything(page) -> None:
    plan = {"words": "1 step kept, 2 steps run again (split, embed).", "since": "split"}
    rows = [row(0, "load", "finished", ended=NOW), row(1, "split", "finished", ended=NOW)]
    panel = shown(page, state(rows), details={"1": detail(rows[1])}, answers={"plan": {"plan": plan}})
    panel.button("Stop").click()
    panel.button("Terminate and roll back").click()
    page.clock.run_for(50)
    assert [message["control"] for message in sent(page, "command")] == ["terminate_and_roll_back"]
    panel.button("Restart", exact=True).first.click()
    page.clock.run_for(50)
    expect(panel.root.get_by_label("from the selected step")).to_be_disabled()
    expect(panel.root.get_by_label("from the first stale step")).to_be_disabled()
    expect(panel.root.locator(".nbf-plan")).to_have_text("1 step kept, 2 steps run again (split, embed).")
    assert sent(page, "restart") == []
    panel.button("Cancel").click()
    panel.row("split").click()
    page.clock.run_for(50)
    panel.button("Restart from here").click()
    page.clock.run_for(50)
    assert sent(page, "plan")[-1]["key"] == ["do", "split", 1, None]
    panel.root.locator(".nbf-answers").get_by_role("button", name="Restart").click()
    page.clock.run_for(50)
    assert [(m["since"], m["key"]) for m in sent(page, "restart")] == [("step", ["do", "split", 1, None])]


def test_an_item_of_a_map_restarts_from_its_details_and_from_the_menu(page) -> None:  # S44
    whole = {
        **row(0, "embed", "finished", ended=NOW, counts={"finished": 2}, total=2, open=True),
        "key": ["map", "embed", 1, None],
    }
    item = {**row(1, "embed", "finished", ended=NOW, level=2), "key": ["map", "embed", 1, "00813"]}
    inner = {**row(2, "fetch", "finished", ended=NOW), "key": ["do", "fetch", 1, "embed[00813]"]}
    line = "1 step and 1 other item kept, 2 steps run again (embed[00813], publish)."
    plan = {"words": line, "since": "embed[00813]"}
    panel = shown(
        page, state([whole, item, inner]), details={"1": detail(item), "2": detail(inner)}, answers={"plan": {"plan": plan}}
    )
    panel.row("embed[00813]").first.click()
    page.clock.run_for(50)
    panel.button("Restart from here").click()
    page.clock.run_for(50)
    expect(panel.root.get_by_label("from embed[00813]")).to_be_checked()
    expect(panel.root.locator(".nbf-plan")).to_have_text(line)
    panel.root.locator(".nbf-answers").get_by_role("button", name="Restart").click()
    page.clock.run_for(50)
    assert [(m["since"], m["key"]) for m in sent(page, "restart")] == [("step", ["map", "embed", 1, "00813"])]
    panel.button("Restart", exact=True).first.click()
    page.clock.run_for(50)
    expect(panel.root.get_by_label("from embed[00813]")).to_be_checked()
    panel.row("fetch").click()  # a step in the body of another: that one is where it can begin
    page.clock.run_for(50)
    choice = panel.root.locator(".nbf-radio", has_text="from the selected step")
    expect(choice).to_have_attribute("title", "what is selected ran inside embed[00813]: select that")
    expect(panel.root.get_by_label("from the selected step")).to_be_disabled()


def test_the_header_says_rate_time_left_and_whether_the_code_is_the_cells(page) -> None:
    page.clock.pause_at(NOW / 1000 + 10)
    mount(page, state([], head=head(total=100, done=10, same=True)))
    for seq in range(3, 30):
        page.clock.run_for(1_000)
        push(page, state([], seq=seq, head=head(total=100, done=8 + seq, same=seq < 20, stale=2)))
    panel = PanelPage(page.locator(".nbflow"))
    said = re.compile(r"^37/100 steps · 2 stale · (1\.\d/s|5\d/min) · about 1m0\ds left$")
    expect(panel.root.locator(".nbf-counts")).to_have_text(said)
    expect(panel.root.locator(".nbf-same")).to_have_text("code changed since it ran")


def test_a_disabled_control_says_why_to_eyes_ears_and_clicks(page) -> None:
    panel = shown(page, state([], head=head(status="complete", ended=NOW)))
    stop = panel.button("Stop")
    expect(stop).to_have_attribute("aria-disabled", "true")
    assert stop.get_attribute("title") == "nothing to stop: it is complete"
    stop.click(force=True)
    expect(panel.notice).to_have_text("nothing to stop: it is complete")


def test_the_cross_asks_the_kernel_to_empty_the_output_and_a_dead_kernel_is_not_needed_for_it(page) -> None:
    panel = shown(page, state([]))
    panel.button("Close the panel").click()
    assert [message["display"] for message in sent(page, "close")] == [""]
    page.clock.run_for(100)
    expect(page.locator(".nbflow")).to_have_count(0)
    panel = shown(page, state([]))
    page.evaluate("window.kernel.silent = true")
    page.clock.run_for(20_000)
    panel.button("Close the panel").click()
    expect(page.locator(".nbflow")).to_have_count(0)


# -- for everyone


def test_all_of_it_works_by_keys_alone(page) -> None:
    rows = [row(index, f"s{index}", "finished", ended=NOW) for index in range(5)]
    told = {str(index): detail(shown_row, code="x", log=log({"text": "printed"})) for index, shown_row in enumerate(rows)}
    panel = shown(page, state(rows, [wait()], head=head(status="waiting", total=6, done=5, waiting=1)), details=told)
    panel.grid.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.clock.run_for(100)
    expect(panel.detail.locator(".nbf-about .nbf-name")).to_have_text("s3")
    page.keyboard.press("Tab")
    panel.tab("Output").focus()
    page.keyboard.press("ArrowRight")
    expect(panel.tab("Log")).to_be_focused()
    page.keyboard.press("End")
    expect(panel.tab("Code")).to_be_focused()
    page.keyboard.press("Escape")
    expect(panel.grid).to_be_focused()
    page.keyboard.press("a")
    expect(panel.button("Approve")).to_be_focused()
    panel.view("Steps").focus()
    page.keyboard.press("ArrowRight")
    expect(panel.view("Timeline")).to_be_focused()
    page.keyboard.press("/")
    expect(panel.root.get_by_label("Filter steps by name or text")).to_be_focused()
    panel.button("Stop").focus()
    page.keyboard.press("Enter")
    expect(panel.button("Terminate", exact=True)).to_be_focused()
    page.keyboard.press("Escape")
    expect(panel.button("Stop")).to_be_focused()


def test_what_happens_is_said_aloud_but_not_without_end(page) -> None:
    mount(page, state([], head=head(total=9, done=1)))
    polite, loud = page.locator("[aria-live=polite]"), page.locator("[aria-live=assertive]")
    said = []
    for seq in range(3, 43):
        push(page, state([], seq=seq, head=head(total=90, done=seq)))
        page.clock.run_for(100)
        said.append(polite.inner_text())
    assert 2 <= len(set(said)) <= 4
    push(page, state([], [wait()], seq=50, head=head(status="waiting", waiting=1)))
    expect(loud).to_have_text("waiting for you: ask the editor")
    push(page, state([], seq=51, head=head(status="errored", error=ERROR)))
    expect(loud).to_have_text("failed: TimeoutError")


def every_part(page: Page, theme: str) -> PanelPage:
    counts = {"finished": 812, "running": 4}
    rows = [row(0, "load", "finished", ended=NOW), group(1, "embed", counts), row(2, "train", "running", progress=[1, 2, ""])]
    rows += [row(3, "fetch", "retrying", attempt=2, limit=6, due=NOW + 9_000, tries=TRIES)]
    attempts = [{"number": 1, "state": "failed", "started": NOW, "seconds": 1, "error": ERROR}]
    told = {"error": ERROR, "attempts": attempts, "log": log({"text": "a"}), "code": "def f(): ...", "diff": "-a\n+b\n"}
    schema = {
        "type": "object",
        "properties": {
            "approved": {"type": "boolean"},
            "why": {"type": "string"},
            "to": {"enum": ["a", "b"]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["approved", "why", "to"],
    }
    shown_state = state(rows, [wait(schema=schema)], head=head(total=820, done=813, running=5, retrying=1, waiting=1))
    answers = {
        "instances": {"instances": INSTANCES},
        "events": {
            "events": {"total": 1, "start": 0, "items": [{"at": NOW, "kind": "event", "step": "", "by": "a", "note": "b"}]}
        },
        "log": {"log": log({"text": "a", "step": rows[0]["key"]})},
    }
    return shown(page, shown_state, details={"3": detail(rows[3], **told)}, theme=theme, answers=answers)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(page, theme) -> None:
    panel = every_part(page, theme)
    page.evaluate("document.documentElement.lang = 'en'")
    axe = Axe()

    def serious() -> list[str]:
        options = {"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
        found = axe.run(page, context=".nbflow", options=options).response["violations"]
        return [
            f"{one['id']}: {one['nodes'][0]['html'][:200]}"
            for one in found
            if one["impact"] in ("serious", "critical", "moderate")
        ]

    assert serious() == []
    panel.row("fetch").click()
    page.clock.run_for(100)
    panel.button("Restart", exact=True).first.click()
    for tab in ("Error", "Log", "Attempts", "Code"):
        panel.tab(tab).click()
        assert serious() == []
    for view in ("Timeline", "Events", "Log", "History"):
        panel.view(view).click()
        page.clock.run_for(100)
        assert serious() == []


def test_at_twice_the_size_nothing_is_cut_off_sideways(page) -> None:
    page.set_viewport_size({"width": 480, "height": 700})
    panel = every_part(page, "light")
    panel.row("fetch").click()
    page.clock.run_for(100)
    for view in ("Steps", "Timeline", "Events", "Log", "History"):
        panel.view(view).click()
        page.clock.run_for(100)
        wide = page.evaluate(
            """() => [...document.querySelectorAll('.nbflow *')].filter((node) => node.checkVisibility()
              && !node.closest('.nbf-scroll, .nbf-spoken, .nbf-axis, .nbf-chart, .nbf-row, .nbf-shows')
              && node.getBoundingClientRect().right > innerWidth + 1).map((node) => node.className)"""
        )
        assert wide == []


def test_in_forced_colours_bars_selection_and_disabled_buttons_are_still_told_apart(page) -> None:
    page.emulate_media(forced_colors="active")
    panel = every_part(page, "light")
    panel.row("fetch").click()
    page.clock.run_for(100)
    outline = "(row) => getComputedStyle(row).outlineStyle"
    assert panel.row("fetch").evaluate(outline) == "solid"
    bar = "(bar) => [getComputedStyle(bar).backgroundColor, getComputedStyle(bar.parentElement).backgroundColor]"
    mine, under = panel.root.locator(".nbf-bar > div").first.evaluate(bar)
    assert mine != under
