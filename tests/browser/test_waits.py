"""Every open wait can be answered, and none that never returns (PANEL 2 and 3, S49)."""

import json
import re
from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.bare import NOW, SETTLED, detail, head, mount, push, row, state, wait
from tests.browser.lab import Notebook, PanelPage
from tests.browser.test_lab import IMPORTS


def asked(number: int, **more: Any) -> dict:
    return wait(**{"name": f"ask {number}", "since": NOW - 1000 + number, "due": NOW + 3_600_000, **more})


def waiting(*waits: dict, seq: int = 3, **more: Any) -> dict:
    rows = [
        {**row(place, one["name"], "waiting", due=one["due"], event="approval"), "key": ["wait", one["name"], 1, None]}
        for place, one in enumerate(waits)
    ]
    told = {"status": "waiting", "total": len(rows), "waiting": len(waits), "version": seq} | more
    return state(rows, list(waits), seq=seq, head=head(**told))


def shown(page: Page, told: dict[str, Any], **more: Any) -> PanelPage:
    mount(page, told, **more)
    page.clock.run_for(SETTLED)
    return PanelPage(page.locator(".nbflow"))


def decided(page: Page) -> list[tuple[str, Any]]:
    sent = [message for message in page.evaluate("window.kernel.sent") if message["type"] == "decide"]
    return [(message["name"], json.loads(message["payload"])) for message in sent]


def test_the_first_three_have_a_form_and_the_rest_stand_in_the_list_behind_a_button(page) -> None:
    panel = shown(page, waiting(*map(asked, range(8))))
    assert panel.banner.locator(".nbf-asks .nbf-name").all_inner_texts() == ["ask 0", "ask 1", "ask 2"]
    more = panel.button("5 more waits are open")
    more.focus()
    page.keyboard.press("Enter")
    page.clock.run_for(1_000)
    [*_, rows] = [message for message in page.evaluate("window.kernel.sent") if message["type"] == "rows"]
    assert (rows["state"], rows["kind"]) == ("waiting", "wait")
    expect(panel.grid).to_be_focused()


def test_the_row_of_a_wait_opens_its_form(page) -> None:
    waits = [asked(number) for number in range(8)]
    schema = {
        "type": "object",
        "properties": {"approved": {"type": "boolean"}, "why": {"type": "string"}},
        "required": ["approved", "why"],
    }
    waits[6] = asked(6, schema=schema)
    told = waiting(*waits)
    panel = shown(page, told, details={"6": detail(told["rows"]["items"][6], wait=waits[6])})
    panel.row("ask 6").click()
    page.clock.run_for(SETTLED)
    form = panel.detail.locator(".nbf-banner")
    form.get_by_label("why", exact=True).fill("half of it")
    push(page, waiting(*waits, seq=4))
    page.clock.run_for(1_000)
    expect(form.get_by_label("why", exact=True)).to_have_value("half of it")
    form.get_by_role("button", name="Reject").click()
    assert decided(page) == [("ask 6", {"approved": False, "why": "half of it"})]


def test_a_form_that_is_being_filled_in_stays_when_something_is_due_before_it(page) -> None:
    waits = [asked(number) for number in range(3)]
    panel = shown(page, waiting(*waits))
    last = panel.banner.filter(has_text="ask 2")
    last.get_by_role("button", name="Send other payload").click()
    box = last.get_by_label("Payload (JSON)")
    box.fill('{"half":')
    sooner = [asked(number, due=NOW + 60_000) for number in (7, 8)]
    push(page, waiting(*sooner, *waits, seq=4))
    page.clock.run_for(100)
    assert panel.banner.locator(".nbf-asks .nbf-name").all_inner_texts() == ["ask 7", "ask 8", "ask 0", "ask 2"]
    expect(box).to_have_value('{"half":')
    expect(box).to_be_focused()
    push(page, waiting(*sooner, *waits[:2], seq=5))
    page.clock.run_for(100)
    assert panel.banner.locator(".nbf-asks .nbf-name").all_inner_texts() == ["ask 7", "ask 8", "ask 0"]


def test_a_deadline_that_moves_leaves_the_form_as_it_is(page) -> None:  # S41
    panel = shown(page, waiting(asked(0)))
    panel.button("Send other payload").click()
    panel.banner.get_by_label("Payload (JSON)").fill('{"half":')
    push(page, waiting(asked(0, due=NOW + 90 * 60_000), seq=4))
    page.clock.run_for(100)
    expect(panel.banner.get_by_label("Payload (JSON)")).to_have_value('{"half":')
    expect(panel.banner.locator(".nbf-left")).to_contain_text("1h30m")


def test_a_thousand_open_waits_keep_the_page_small(page) -> None:
    told = state([], [asked(number) for number in range(20)], head=head(status="waiting", total=1_000, waiting=1_000))
    panel = shown(page, told)
    expect(panel.button("997 more waits are open")).to_be_visible()
    expect(panel.banner).to_have_count(3)
    assert page.locator(".nbf-row").count() < 200


def test_while_it_is_rolled_back_no_form_is_armed_and_the_kernels_words_say_why(page) -> None:  # S49
    panel = shown(page, waiting(asked(0)))
    panel.button("Approve").focus()
    left = waiting(asked(0), seq=4, status="rollingBack", waiting=0)
    left["waits"] = []
    why = "wait 'ask 0' of instance 'ingest-1' is not open any more: the instance is rolling back, and what waits then never returns (S49)"
    page.evaluate(
        "(given) => { window.kernel.answer = ((old) => (m) => m.type === 'step' ? {...old(m), step: given} : old(m))(window.kernel.answer); }",
        detail(left["rows"]["items"][0], closed=why),
    )
    push(page, left)
    expect(panel.banner).to_have_count(0)
    expect(panel.grid).to_be_focused()
    expect(panel.rows.first.locator(".nbf-words")).to_have_text("never returns: it is rolling back")
    panel.rows.first.click()
    page.clock.run_for(100)
    expect(panel.detail.locator(".nbf-shows")).to_have_text(why)


def test_who_was_first_is_told_by_the_local_clock_and_is_no_error(page) -> None:
    panel = shown(page, waiting(asked(0)))
    page.evaluate(
        """(at) => { window.kernel.answer = ((old) => (m) => m.type === 'decide'
        ? {type: 'answer', id: m.id, ok: false, error: 'answered by ana@lab at …+00:00', answered: {by: 'ana@lab', at}} : old(m))(window.kernel.answer); }""",
        NOW,
    )
    panel.button("Approve").click()
    page.clock.run_for(100)
    said = page.evaluate("new Date().toLocaleTimeString([], {hour: '2-digit', minute: '2-digit'})")[:5]
    expect(panel.notice).to_have_text(re.compile(f"^ana@lab was first: answered at {said}:00"))
    expect(panel.notice).to_have_attribute("data-tone", "muted")


MANY = """\
%%workflow many
import asyncio
def undo(output):
    import time; time.sleep(4)
class Many(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("book", lambda: 1, rollback=undo)
        waits = [step.wait_for_event(f"ask {n}", f"type-{n}", timeout=f"{20 - n} hours") for n in range(8)]
        return [one.payload for one in await asyncio.gather(*waits)]
"""


def test_the_fifth_of_eight_waits_is_answered_from_its_row_and_none_while_it_rolls_back(open_notebook) -> None:
    notebook: Notebook = open_notebook(IMPORTS, MANY)
    notebook.run_to_end(0)
    notebook.run_to_end(1)
    panel = notebook.panel(1)
    panel.await_live()
    panel.await_word("Waiting for you")
    assert panel.banner.locator(".nbf-asks .nbf-name").all_inner_texts() == ["ask 7", "ask 6", "ask 5"]
    panel.button("5 more waits are open").click()
    panel.row("ask 4").click()
    form = panel.detail.locator(".nbf-banner")
    form.get_by_role("button", name="Send other payload").click()
    form.get_by_label("Payload (JSON)").fill('{"order": 1e400}')
    form.get_by_role("button", name="Send", exact=True).click()
    expect(form.locator(".nbf-box .nbf-problem")).to_contain_text("1e400 is beyond what a float holds")
    form.get_by_label("Payload (JSON)").fill('{"order": 1152921504606846977}')
    form.get_by_role("button", name="Send", exact=True).click()
    expect(panel.button("4 more waits are open")).to_be_visible()
    expect(panel.detail.locator(".nbf-shows")).to_contain_text("1152921504606846977")
    panel.button("Stop").click()
    panel.button("Terminate and roll back").click()
    panel.await_word("Rolling back")
    expect(panel.banner).to_have_count(0)
    expect(panel.rows.filter(has_text=re.compile("never returns: it is rolling back")).first).to_be_visible()
    panel.await_word("Terminated")
    assert notebook.errors == []
