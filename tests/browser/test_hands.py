"""What a hand means: a press counts for one control once (PANEL 2), and the focus never falls out of the panel (PANEL 12)."""

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.bare import NOW, SETTLED, detail, head, mount, push, row, state, wait
from tests.browser.lab import PanelPage


def shown(page: Page, told: dict[str, Any], **more: Any) -> PanelPage:
    mount(page, told, **more)
    page.clock.run_for(SETTLED)
    return PanelPage(page.locator(".nbflow"))


def sent(page: Page, kind: str) -> list[dict]:
    return [message for message in page.evaluate("window.kernel.sent") if message["type"] == kind]


def gate(number: int, **more: Any) -> dict:
    asked = wait(name=f"gate {number}", prompt=f"Drop database {number}?", since=NOW + number)
    return state(
        [row(0, "load", "finished", ended=NOW)], [asked], seq=10 + number, head=head(status="waiting", waiting=1), **more
    )


def press(page: Page, place: Locator, *, count: int = 1) -> tuple[float, float]:
    """Press the mouse in the middle of *place*, as the first or the second click of a double one."""
    box = place.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down(click_count=count)
    page.mouse.up(click_count=count)
    return x, y


def again(page: Page, *, count: int) -> None:
    """Press where the mouse is."""
    page.mouse.down(click_count=count)
    page.mouse.up(click_count=count)


def test_the_second_half_of_a_double_click_does_not_answer_the_next_question(page) -> None:
    panel = shown(page, gate(1))
    press(page, panel.button("Approve"))
    page.clock.run_for(10)
    push(page, gate(2))
    page.clock.run_for(SETTLED)  # however slow: it is the same double click
    again(page, count=2)
    assert [message["name"] for message in sent(page, "decide")] == ["gate 1"]
    again(page, count=1)
    assert [message["name"] for message in sent(page, "decide")] == ["gate 1", "gate 2"]


def test_a_question_that_appears_under_the_pointer_takes_no_click_at_first(page) -> None:
    panel = shown(page, gate(1))
    press(page, panel.button("Approve"))
    page.clock.run_for(10)
    push(page, gate(2))
    expect(panel.button("Approve")).to_have_attribute("aria-disabled", "true")
    page.clock.run_for(SETTLED - 200)
    again(page, count=1)
    assert [message["name"] for message in sent(page, "decide")] == ["gate 1"]
    expect(panel.notice).to_be_hidden()
    page.clock.run_for(200)
    expect(panel.button("Approve")).not_to_have_attribute("aria-disabled", "true")
    again(page, count=1)
    assert [message["name"] for message in sent(page, "decide")] == ["gate 1", "gate 2"]


@pytest.mark.parametrize("count", [1, 2])
def test_what_moves_up_to_where_a_button_was_takes_no_click_meant_for_it(page, count) -> None:
    rows = [row(0, "load", "finished", ended=NOW)]
    panel = shown(page, gate(1))
    top = panel.view("Timeline").bounding_box()
    assert top is not None
    panel.banner.evaluate("(banner) => { banner.style.position = 'relative'; }")
    # Approve stands where the tab will be when the question is gone.
    gone = panel.banner.bounding_box()
    assert gone is not None
    x, y = top["x"] + top["width"] / 2, top["y"] + top["height"] / 2 - gone["height"]
    page.mouse.move(x, y)
    again(page, count=1)
    push(page, state(rows, seq=20, head=head(total=1, done=1)))
    page.clock.run_for(50)
    assert page.evaluate("([x, y]) => document.elementFromPoint(x, y).textContent", [x, y]) in ("Timeline", "Steps", "Events")
    again(page, count=count)
    expect(panel.view("Steps")).to_have_attribute("aria-selected", "true")


def test_resume_in_the_place_of_pause_is_another_control(page) -> None:
    panel = shown(page, state([], head=head(status="running")))
    press(page, panel.button("Pause"))
    page.clock.run_for(10)
    push(page, state([], seq=9, head=head(status="paused")))
    again(page, count=1)
    again(page, count=2)
    assert [message["control"] for message in sent(page, "command")] == ["pause"]
    page.clock.run_for(SETTLED)
    again(page, count=1)
    assert [message["control"] for message in sent(page, "command")] == ["pause", "resume"]


def test_the_row_that_moves_to_where_another_was_is_not_retried(page) -> None:
    def waiting(*names: str, seq: int) -> dict:
        rows = [row(place, name, "retrying", attempt=2, limit=9, due=NOW + 90_000) for place, name in enumerate(names)]
        return state(rows, seq=seq, head=head(total=len(rows), retrying=len(rows), version=seq))

    panel = shown(page, waiting("a", "b", "c", seq=3))
    press(page, panel.row("a").get_by_role("button", name="Retry now"))
    page.clock.run_for(10)
    push(page, waiting("b", "c", seq=4))
    page.clock.run_for(10)
    again(page, count=2)
    again(page, count=1)
    assert [message["key"][1] for message in sent(page, "retry")] == ["a"]


def test_a_pointer_that_comes_from_elsewhere_is_believed_at_once(page) -> None:
    panel = shown(page, state([], head=head(status="running")))
    press(page, panel.button("Pause"))
    page.clock.run_for(10)
    push(page, state([], seq=9, head=head(status="paused")))
    press(page, panel.view("Timeline"))
    expect(panel.view("Timeline")).to_have_attribute("aria-selected", "true")


def test_enter_pressed_twice_or_held_answers_one_question(page) -> None:
    panel = shown(page, gate(1))
    panel.button("Approve").focus()
    page.keyboard.down("Enter")
    page.clock.run_for(10)
    push(page, gate(2))
    expect(panel.button("Approve gate 2")).to_have_count(0)
    expect(panel.button("Approve")).to_be_focused()  # that of the next question
    page.clock.run_for(SETTLED + 500)
    page.keyboard.down("Enter")  # held: the key repeats
    page.keyboard.up("Enter")
    assert [message["name"] for message in sent(page, "decide")] == ["gate 1"]
    page.keyboard.press("Enter")
    page.clock.run_for(10)
    push(page, gate(3))
    page.clock.run_for(100)
    page.keyboard.press("Enter")
    assert [message["name"] for message in sent(page, "decide")] == ["gate 1", "gate 2"]


# -- focus


def test_the_focus_goes_from_pause_to_resume_and_back(page) -> None:
    panel = shown(page, state([], head=head(status="running")))
    panel.button("Pause").focus()
    page.keyboard.press("Enter")
    page.clock.run_for(10)
    push(page, state([], seq=9, head=head(status="paused")))
    expect(panel.button("Resume")).to_be_focused()
    page.clock.run_for(SETTLED)
    page.keyboard.press("Enter")
    page.clock.run_for(10)
    push(page, state([], seq=10, head=head(status="running")))
    expect(panel.button("Pause")).to_be_focused()


def test_the_focus_goes_from_an_answer_to_the_next_question_and_from_the_last_one_to_the_list(page) -> None:
    panel = shown(page, gate(1))
    panel.button("Approve").focus()
    page.keyboard.press("Enter")
    page.clock.run_for(10)
    push(page, gate(2))
    expect(panel.button("Approve")).to_be_focused()
    push(page, state([row(0, "load", "finished", ended=NOW)], seq=30, head=head(status="complete", total=1, done=1, ended=NOW)))
    expect(panel.grid).to_be_focused()


def test_a_question_that_comes_a_moment_later_still_gets_the_focus_and_no_key_meant_for_the_last_one(page) -> None:
    rows = [row(0, "load", "finished", ended=NOW)]
    panel = shown(page, gate(1))
    panel.button("Approve").focus()
    page.keyboard.press("Enter")
    page.clock.run_for(10)
    push(page, state(rows, seq=12, head=head(total=1, done=1)))
    expect(panel.grid).to_be_focused()
    page.keyboard.press("Enter")
    page.clock.run_for(100)
    expect(panel.detail).to_be_hidden()
    push(page, gate(3))
    expect(panel.button("Approve")).to_be_focused()
    page.keyboard.press("Enter")
    assert [message["name"] for message in sent(page, "decide")] == ["gate 1"]
    page.clock.run_for(SETTLED)
    page.keyboard.press("Enter")
    page.clock.run_for(10)
    push(page, state(rows, seq=20, head=head(total=1, done=1)))
    page.clock.run_for(5_000)
    push(page, gate(21))
    page.clock.run_for(10)
    expect(panel.grid).to_be_focused()  # too late to belong to that answer


def test_the_focus_goes_from_retry_now_to_what_stands_beside_it(page) -> None:
    rows = [row(0, "fetch", "retrying", attempt=2, limit=9, due=NOW + 90_000)]
    panel = shown(page, state(rows, head=head(total=1, retrying=1)), details={"0": detail(rows[0])})
    panel.root.locator(".nbf-controls").get_by_role("button", name="Retry now").focus()
    page.keyboard.press("Enter")
    page.clock.run_for(10)
    push(page, state([row(0, "fetch", "running", attempt=2)], seq=9, head=head(total=1, running=1, version=2)))
    expect(panel.button("Pause")).to_be_focused()


def test_the_focus_stays_in_a_list_that_is_drawn_anew(page) -> None:
    line = {"seq": 7, "id": "older", "status": "errored", "interrupted": False, "created": NOW, "started": NOW, "ended": NOW}
    line |= {"params": "{}", "error": "", "this": False}
    panel = shown(page, state([]), answers={"instances": {"instances": [line]}})
    panel.view("History").click()
    page.clock.run_for(50)
    panel.button("Open older").focus()
    page.evaluate("(line) => { window.kernel.answers.instances = {instances: [{...line, seq: 8, id: 'newer'}, line]}; }", line)
    page.clock.run_for(5_000)
    expect(panel.button("Open newer")).to_be_visible()
    expect(panel.button("Open older")).to_be_focused()


def test_the_focus_is_not_taken_from_whoever_has_gone_elsewhere(page) -> None:
    panel = shown(page, state([], head=head(status="running")))
    page.evaluate("document.body.prepend(Object.assign(document.createElement('input'), {id: 'elsewhere'}))")
    panel.button("Pause").focus()
    page.locator("#elsewhere").focus()
    push(page, state([], seq=9, head=head(status="paused")))
    page.clock.run_for(10)
    expect(page.locator("#elsewhere")).to_be_focused()


def test_a_closed_panel_leaves_the_focus_to_what_it_stood_in(page) -> None:
    panel = shown(page, state([]))
    page.evaluate("document.querySelector('.nbflow').parentElement.tabIndex = -1")
    panel.button("Close the panel").focus()
    page.evaluate("window.cleanup()")
    assert page.evaluate("document.activeElement.tagName") == "DIV"
