"""The panel's Python side: how often it speaks, what it does with a click, and that it never hurts anybody."""

import json
import threading
import time
from datetime import timedelta

import comm
import pytest
from comm.base_comm import BaseComm

from nbflow import WorkflowEntrypoint
from nbflow.core.asking import AnsweredError
from nbflow.core.model import Kind
from nbflow.errors import StoreLockedError
from nbflow.jupyter import answers, snapshot
from nbflow.jupyter import panel as panels
from nbflow.jupyter.display import Display
from nbflow.jupyter.messages import AskInstances
from nbflow.jupyter.pace import Pace, Send
from nbflow.jupyter.panel import Panel, close_all, model_id_for, panel_for
from nbflow.store.views import instance_view
from nbflow.values.schemas import check
from tests.core.stories import START, seconds
from tests.jupyter.instances import HOSTILE, FakeInstance


class HandClock:
    """Wall and monotonic time, moved by hand."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self):
        return START + timedelta(seconds=self.at)

    def monotonic(self) -> float:
        return self.at


class RecordingComm(BaseComm):
    """A comm whose messages a test reads, and which breaks when told to."""

    broken = False

    def publish_msg(self, msg_type, data=None, metadata=None, buffers=None, **keys) -> None:
        if self.broken:
            raise OSError("socket closed")
        json.dumps(data, ensure_ascii=False, allow_nan=False).encode()  # as the kernel's session does
        self.sent = [*getattr(self, "sent", []), (msg_type, data or {})]


@pytest.fixture(autouse=True)
def _recorded(monkeypatch):
    def create(*args, **keywords):
        return RecordingComm(*args, **{"target_name": "jupyter.widget", **keywords})

    monkeypatch.setattr(comm, "create_comm", create)
    yield
    close_all()


class Page:
    """A panel as the front end sees it: what came, and saying something."""

    def __init__(self, inst: FakeInstance) -> None:
        self.inst, self.clock = inst, HandClock()
        self.panel = Panel(inst, model_id=model_id_for(inst), clock=self.clock)
        self.seen = len(self.panel.comm.sent)

    def news(self) -> list[dict]:
        sent = self.panel.comm.sent
        fresh, self.seen = sent[self.seen :], len(sent)
        messages = []
        for _, data in fresh:
            if data.get("method") == "update":
                messages.append({"type": "state", **data["state"]["state"]})
            elif data.get("method") == "custom":
                messages.append(data["content"])
        return messages

    def kinds(self) -> list[str]:
        return [message["type"] for message in self.news()]

    def say(self, **message) -> None:
        self.panel._handle_msg({"content": {"data": {"method": "custom", "content": message}}, "buffers": []})

    def ask(self, **message) -> dict:
        """Say it and wait for the answer, which comes from a thread."""
        self.say(**message)
        self.finish(self.panel._commands)
        self.finish(self.panel._questions)
        return next(news for news in self.news() if news["type"] == "answer" and news["id"] == message.get("id"))

    def finish(self, lane) -> None:
        done = threading.Event()
        lane.put(done.set)
        assert done.wait(5)

    def run(self, seconds: float, *, answering: bool = False, step: float = 0.05) -> list[tuple[float, dict]]:
        """Let time go by as the flusher's thread would, and give what was sent when."""
        told, end = [], self.clock.at + seconds
        while self.clock.at < end:
            self.panel.turn()
            for message in self.news():
                told.append((round(self.clock.at, 2), message))
                if answering:
                    self.say(type="heard", seq=message["seq"])
            self.clock.at += step
        return told


@pytest.fixture
def page() -> Page:
    return Page(FakeInstance())


def test_the_comm_opens_with_a_whole_state(page) -> None:
    kind, data = page.panel.comm.sent[0]
    assert kind == "comm_open"
    state = data["state"]["state"]
    assert (state["workflow"], state["id"], state["head"]["status"]) == ("Ingest", "ingest-01jd3k7q", "running")


# -- pace


def test_many_changes_within_100_ms_are_one_update_and_the_last_is_never_lost(page) -> None:
    page.run(1, answering=True)
    for order in range(1, 51):
        page.inst.done(f"s{order}", order)
    told = page.run(0.04, answering=True, step=0.01)
    assert len(told) <= 1
    page.inst.done("last", 99)
    told += page.run(0.3, answering=True, step=0.01)
    assert 1 <= len(told) <= 2
    assert told[-1][1]["head"]["done"] == 51


def test_at_most_ten_updates_a_second_and_seq_rises(page) -> None:
    told = []
    for order in range(1, 301):
        page.inst.done(f"s{order}", order)
        told += page.run(0.01, answering=True, step=0.01)
    states = [(at, message) for at, message in told if message["type"] == "state"]
    assert 20 <= len(states) <= 31
    seqs = [message["seq"] for _, message in states]
    assert seqs == sorted(set(seqs))


def test_what_has_not_changed_is_not_sent_again(page) -> None:
    page.run(1, answering=True)
    page.inst.engine.feed.publish()
    page.inst.engine.feed.publish(0)
    page.inst.engine.feed.publish(77)
    assert [message for _, message in page.run(1, answering=True) if message["type"] == "state"] == []


def test_alive_goes_out_every_five_seconds(page) -> None:
    told = page.run(60, answering=True)
    alive = [at for at, message in told if message["type"] == "alive"]
    assert 11 <= len(alive) <= 12
    assert all(message["engine"] == "engine-1" for _, message in told)


def test_without_an_answer_only_heads_of_a_kilobyte_go_out_each_ten_seconds(page) -> None:
    page.inst.write(Kind.DO_STARTED, 1, "load", order=1)
    page.run(15)
    told = []
    for order in range(2, 102):
        page.inst.done(f"s{order}", order)
        told += page.run(1)
    assert 9 <= len(told) <= 11
    assert {message["type"] for _, message in told} == {"alive"}
    assert all(message["head"]["status"] == "running" for _, message in told)
    assert all(snapshot.size(message["head"]) <= snapshot.HEAD_BYTES for _, message in told)
    assert told[-1][1]["head"]["done"] > 80


def test_after_ten_minutes_one_a_minute_while_bodies_run(page) -> None:
    page.inst.write(Kind.DO_STARTED, 1, "load", order=1)
    page.run(620, step=0.5)
    assert 9 <= len(page.run(600, step=0.5)) <= 11


def test_after_ten_minutes_nothing_while_it_only_waits(page) -> None:
    page.inst.wait_for("ask", 1)
    page.run(700, step=0.5)
    assert page.run(3_600, step=5) == []
    assert page.panel.turn() is None


def test_a_night_without_a_page_costs_less_than_a_megabyte(page) -> None:
    page.inst.write(Kind.DO_STARTED, 1, "load", order=1)
    sent = 0
    for order in range(2, 962):
        page.inst.done(f"s{order}", order, line="x" * 200)
        sent += sum(snapshot.size(message) for _, message in page.run(30, step=1))
    assert page.clock.at >= 8 * 3600
    assert sent < 1_000_000


@pytest.mark.parametrize("message", [{"type": "heard", "seq": 1}, {"type": "hello", "id": "h"}])
def test_any_answer_brings_full_speed_and_a_whole_state_back(page, message) -> None:
    page.inst.wait_for("ask", 1)
    page.run(2_000, step=1)
    page.inst.done("s", 2)
    page.run(200, step=1)
    page.say(**message)
    told = page.run(0.3)
    states = [message for _, message in told if message["type"] == "state"]
    assert len(states) == 1
    assert states[0]["head"]["done"] == 1


def test_the_thread_sleeps_until_something_is_due() -> None:
    pace = Pace(sent_any=0.0, dirty=False)
    assert pace.wait(1.0, at_work=False) == pytest.approx(4.0)
    pace.sent(1.0)
    pace.changed()
    pace.looked_at(1.0)
    pace.changed()
    assert pace.wait(1.0, at_work=False) == pytest.approx(0.1)
    assert pace.due(1.05, at_work=False) is Send.NOTHING
    assert pace.due(1.1, at_work=False) is Send.STATE


def test_an_instance_that_is_slow_to_read_is_read_less_often_but_each_second() -> None:
    pace = Pace(sent_any=10.0)
    for cost, every in ((0.001, 0.1), (0.02, 0.4), (3.0, 1.0)):
        pace.took(cost)
        pace.looked_at(10.0)
        pace.changed()
        assert pace.wait(10.0, at_work=True) == pytest.approx(every)
        assert pace.due(10.0 + every - 0.01, at_work=True) is Send.NOTHING
        assert pace.due(10.0 + every + 0.01, at_work=True) is Send.STATE


# -- state


def test_a_state_is_at_most_20_kb_whatever_names_prompts_and_values_are() -> None:
    inst = FakeInstance(preview={"kind": "text", "line": "ф" * 5_000})
    for order in range(1, 40):
        inst.done("й" * 256, order, count=order, line="щ" * 5_000)
    for order in range(40, 80):
        inst.wait_for("ж" * 250 + str(order), order, prompt="ъ" * 10_000, schema={"type": "object", "title": "э" * 3_000})
    inst.write(Kind.DO_RETRYING, 3, "x", order=90, error={"type": "Щ" * 900, "message": "ы" * 9_000, "traceback": ""})
    page = Page(inst)
    page.say(type="hello", id="h")
    states = [message for _, message in page.run(0.5) if message["type"] == "state"]
    assert states
    assert all(snapshot.size(state) <= snapshot.STATE_BYTES for state in states)
    assert states[-1]["waits"]
    assert states[-1]["rows"]["items"]
    assert snapshot.size(states[-1]["head"]) <= snapshot.HEAD_BYTES


def test_few_steps_travel_with_the_state_and_of_many_the_last(page) -> None:
    for order in range(1, 31):
        page.inst.done(f"s{order}", order)
    [state] = [message for _, message in page.run(0.2) if message["type"] == "state"]
    assert [row["i"] for row in state["rows"]["items"]] == list(range(30))
    for order in range(31, 501):
        page.inst.done(f"s{order}", order)
    [state] = [message for _, message in page.run(0.2) if message["type"] == "state"]
    assert [row["i"] for row in state["rows"]["items"]] == list(range(470, 500))
    assert state["rows"]["total"] == 500


def test_more_than_twenty_steps_of_one_name_are_one_line_with_counts_until_it_is_opened(page) -> None:
    page.inst.done("list", 1)
    for order in range(2, 22):
        page.inst.done("embed", order, count=order - 1)
    [state] = [message for _, message in page.run(0.2) if message["type"] == "state"]
    assert state["rows"]["total"] == 21
    page.inst.write(Kind.DO_FAILED, 3, "embed", 21, order=22, error={"type": "E", "message": "", "traceback": ""})
    page.inst.write(Kind.DO_STARTED, 3, "embed", 22, order=23)
    page.inst.done("publish", 24)
    [state] = [message for _, message in page.run(0.2) if message["type"] == "state"]
    names = [(row["key"][1], row.get("total"), row["state"]) for row in state["rows"]["items"]]
    assert names == [("list", None, "finished"), ("embed", 22, "running"), ("publish", None, "finished")]
    assert state["rows"]["items"][1]["counts"] == {"finished": 20, "failed": 1, "running": 1}
    opened = page.ask(type="rows", id="r", start=0, stop=200, text="", state="", kind="", open=[["do", "embed"]])["rows"]
    assert (opened["total"], opened["items"][1]["open"]) == (25, True)
    assert [row.get("level") for row in opened["items"]] == [None, None, *[2] * 22, None]
    flat = page.ask(type="rows", id="q", start=0, stop=200, text="embed", state="", kind="do", open=[])["rows"]
    assert flat["total"] == 22


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda text: repr(text[:20]))
def test_no_text_of_a_user_keeps_a_state_or_a_detail_from_being_sent(hostile) -> None:
    inst = FakeInstance(preview={"kind": "text", "line": hostile})
    inst.done(hostile, 1, line=hostile)
    inst.wait_for(hostile, 2, prompt=hostile, schema={"title": hostile, "default": float("nan")})
    inst.write(Kind.DO_FAILED, 3, f"{hostile}2", order=3, error={"type": hostile, "message": hostile, "traceback": hostile})
    page = Page(inst)
    page.say(type="hello", id="h")
    assert any(message["type"] == "state" for _, message in page.run(0.2))
    key = page.panel.state["rows"]["items"][0]["key"] if page.panel.state["rows"]["items"] else None
    if key is not None and len(hostile) < 256:
        answer = page.ask(type="step", id="q", index=0, key=key)
        assert answer["step"]["row"]["state"] == "finished"


def test_waits_stand_in_the_order_of_their_deadlines_those_without_one_last(page) -> None:
    for order, (name, due) in enumerate([("never", None), ("late", 900), ("soon", 60), ("same", 900)], 1):
        page.inst.wait_for(name, order, due_at=None if due is None else seconds(due).isoformat())
    [state] = [message for _, message in page.run(0.2) if message["type"] == "state"]
    assert [wait["name"] for wait in state["waits"]] == ["soon", "late", "same", "never"]


def test_the_detail_of_a_wait_is_what_it_asks_or_why_it_takes_no_answer(page) -> None:  # S49
    page.inst.wait_for("ask", 1, prompt="Publish?", schema={"type": "integer"})
    ask = {"type": "step", "id": "q", "index": 0, "key": ["wait", "ask", 1, None]}
    wait = page.ask(**ask)["step"]["wait"]
    assert (wait["name"], wait["prompt"], json.loads(wait["schema"])) == ("ask", "Publish?", {"type": "integer"})
    page.inst.write(Kind.TERMINATING, 3)
    step = page.ask(**ask)["step"]
    assert "wait" not in step
    assert step["closed"].endswith("the instance is rolling back, and what waits then never returns (S49)")
    [*_, state] = [message for _, message in page.run(0.2) if message["type"] == "state"]
    assert (state["waits"], state["head"]["waiting"]) == ([], 0)


def test_who_answered_first_is_told_with_the_moment_itself(page) -> None:
    def refuse(name, count, payload, by=None) -> None:
        raise AnsweredError("ana@lab", seconds(7))

    page.inst.answer = refuse
    assert page.ask(**decide())["answered"] == {"by": "ana@lab", "at": snapshot.millis(seconds(7))}


def test_the_numbers_of_a_schema_reach_the_page_to_the_last_digit(page) -> None:
    page.inst.wait_for("ask", 1, schema={"type": "integer", "default": 2**60 + 1, "minimum": 1.0})
    [state] = [message for _, message in page.run(0.2) if message["type"] == "state"]
    assert json.loads(state["waits"][0]["schema"])["default"] == 2**60 + 1


# -- clicks


def command(**more) -> dict:
    return {"type": "command", "id": "c1", "engine": "engine-1", **more}


def decide(payload: object = None, **more) -> dict:
    return {
        "type": "decide",
        "id": "d1",
        "engine": "engine-1",
        "name": "ask",
        "count": 1,
        "payload": json.dumps(payload or {"approved": True}),
        **more,
    }


def test_hello_is_answered_with_the_engine_and_noted(page) -> None:
    assert not page.panel.hello_seen.is_set()
    answer = page.ask(type="hello", id="h1")
    assert (answer["ok"], answer["engine"]) == (True, "engine-1")
    assert page.panel.hello_seen.is_set()


@pytest.mark.parametrize("control", ["pause", "resume", "terminate", "terminate_and_roll_back", "retry_now"])
def test_a_control_is_one_call_of_the_instance(page, control) -> None:
    assert page.ask(**command(control=control))["ok"]
    assert page.inst.calls == [control if control == "retry_now" else control.replace("_", " ")]


@pytest.mark.parametrize(
    ("message", "called"),
    [
        ({"type": "restart", "since": "start", "key": None}, "restart"),
        ({"type": "restart", "since": "step", "key": ["do", "load", 1, None]}, "restart from load"),
        ({"type": "retry", "key": ["do", "load", 1, None]}, "retry_now load"),
    ],
)
def test_a_restart_and_a_retry_of_one_step_are_one_call_of_the_instance(page, message, called) -> None:
    assert page.ask(id="c1", engine="engine-1", **message)["ok"]
    assert not page.ask(id="c2", engine="engine-0", **message)["ok"]
    assert page.inst.calls == [called]


def test_a_plan_says_what_a_restart_keeps_and_runs_again_and_does_nothing(page) -> None:
    for order, name in enumerate(["load", "split", "embed"], 1):
        page.inst.done(name, order)
    page.inst.write(Kind.WAIT_FINISHED, 3, "ask", order=4, event_id="e", event_type="approval")
    ask = {"type": "plan", "id": "p"}
    plan = page.ask(**ask, since="step", key=["do", "split", 1, None])["plan"]
    assert plan == {"words": "1 step kept, 3 steps run again (split, embed, ask).", "since": "split"}
    plan = page.ask(**ask, since="start", key=None)["plan"]
    assert plan["words"].startswith("0 steps kept, 4 steps run again (")
    assert plan["words"].endswith("); 1 answer is dropped and asked for again.")
    assert "no step" in page.ask(**ask, since="stale", key=None)["error"]
    assert "'gone'" in page.ask(**ask, since="step", key=["do", "gone", 1, None])["error"]
    assert page.inst.calls == []


def test_a_map_item_is_planned_for_and_restarted_as_a_step_is(page) -> None:  # S44
    page.inst.done("load", 1)
    page.inst.write(Kind.MAP_STARTED, 2, "embed", order=2)
    for place, item in enumerate("ab"):
        page.inst.item("embed", item, place, at=3)
    page.inst.write(Kind.MAP_FINISHED, 4, "embed", order=2, total=2)
    page.inst.done("publish", 3, at=5)
    key = ["map", "embed", 1, "b"]
    plan = page.ask(type="plan", id="p", since="step", key=key)["plan"]
    assert plan == {"words": "1 step and 1 other item kept, 2 steps run again (embed[b], publish).", "since": "embed[b]"}
    assert page.ask(type="restart", id="r", engine="engine-1", since="step", key=key)["ok"]
    assert page.inst.calls == ["restart from embed[b]"]
    assert "'embed[z]'" in page.ask(type="plan", id="q", since="step", key=["map", "embed", 1, "z"])["error"]


def test_entries_come_newest_first_and_without_those_of_steps_when_asked(page) -> None:
    page.inst.done("load", 1)
    page.inst.write(Kind.PAUSING, 3, by="ana@lab")
    entries = page.ask(type="events", id="e", start=0, stop=200, steps=True)["events"]
    assert [item["kind"] for item in entries["items"]] == ["pausing", "do.finished", "activated", "claimed", "created"]
    assert (entries["items"][0]["by"], entries["items"][1]["step"], entries["items"][1]["note"]) == ("ana@lab", "load", "3")
    own = page.ask(type="events", id="f", start=1, stop=200, steps=False)["events"]
    assert (own["total"], [item["kind"] for item in own["items"]]) == (4, ["activated", "claimed", "created"])


def test_a_payload_that_does_not_fit_comes_back_with_its_places(page) -> None:
    def refuse(name, count, payload, by=None) -> None:
        check({"type": "object", "properties": {"size": {"type": "integer"}}}, payload, "wait 'ask'")

    page.inst.answer = refuse
    answer = page.ask(**decide(payload={"size": "<b>"}))
    assert not answer["ok"]
    assert answer["fields"] == [[["size"], "'<b>' is not of type 'integer'"]]


def test_a_decision_is_passed_on_and_the_second_one_is_told_who_was_first(page) -> None:
    assert page.ask(**decide())["ok"]
    second = page.ask(**decide(id="d2", payload={"approved": False}))
    assert not second["ok"]
    assert "answered by ana@lab" in second["error"]
    assert page.inst.answered == {("ask", 1): {"approved": True}}


def test_a_click_made_for_another_engine_does_nothing(page) -> None:
    for message in (decide(engine="engine-0"), command(engine="", control="terminate")):
        answer = page.ask(**message)
        assert not answer["ok"]
        assert "run the cell again" in answer["error"]
    assert (page.inst.calls, page.inst.answered) == ([], {})


@pytest.mark.parametrize(
    "message",
    [
        {"type": "command", "id": "c1", "engine": "engine-1", "control": "delete"},
        {"type": "eval", "id": "c1", "code": "1/0"},
        {"type": "decide", "id": "c1"},
    ],
)
def test_what_is_malformed_is_answered_by_an_error_and_nothing_else(page, message) -> None:
    page.run(1, answering=True)
    page.say(**message)
    [answer] = page.news()
    assert (answer["type"], answer["id"], answer["ok"]) == ("answer", "c1", False)
    assert (page.inst.calls, page.inst.answered) == ([], {})


def test_a_page_cannot_set_the_state(page) -> None:
    before = page.panel.state
    update = {"method": "update", "state": {"state": {"seq": 999}, "_esm": "alert(1)"}, "buffer_paths": []}
    page.panel._handle_msg({"content": {"data": update}, "buffers": []})
    assert page.panel.state is before
    assert "alert(1)" not in page.panel._esm


def test_a_click_that_is_replayed_is_done_once_and_says_so(page) -> None:
    assert page.ask(**command(control="pause"))["ok"]
    again = page.ask(**command(control="pause"))
    assert not again["ok"]
    assert "came already" in again["error"]
    restart = {"type": "restart", "id": "r1", "engine": "engine-1", "since": "start", "key": None}
    for _ in range(50):
        page.say(**restart)
    page.finish(page.panel._commands)
    assert page.inst.calls == ["pause", "restart"]
    for number in range(2_000):
        page.say(**command(id=f"x{number}", control="resume"))
        page.finish(page.panel._commands)
    assert len(page.panel._clicks) <= 1_000


RAW = [
    {}, {"content": {}}, {"content": {"data": None}}, {"content": {"data": []}}, {"content": {"data": {"method": 5}}},
    {"content": {"data": {"method": "custom"}}}, {"content": {"data": {"method": "update"}}},
    {"content": {"data": {"method": "update", "state": {"a": 1}, "buffer_paths": [["a", "b"]]}}, "buffers": [b"x"]},
    {"content": {"data": {"method": "update", "state": {"_esm": "x", "state": {}}, "buffer_paths": []}}},
]  # fmt: skip


def test_no_message_however_large_deep_or_foreign_does_anything_or_takes_long(page) -> None:
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    huge = "x" * 50_000_000
    contents = [
        deep,
        huge,
        None,
        5,
        {"type": huge, "id": "a"},
        {"type": "hello", "id": "a", huge: 1},
        {"type": "hello", "id": huge},
    ]
    contents += [{"type": "heard", "seq": 10**5_000}, {"type": "hello", "id": "a", **{str(n): n for n in range(300_000)}}]
    contents += [{**command(id="p", control="pause"), "engine": "another-engine"}]
    for payload in (deep, huge, [0] * 2_000_000, 10**10_000, {"a": {"b": [deep]}}, "[" * 500_000, "9" * 900_000):
        contents.append({"type": "decide", "id": "d", "engine": "engine-1", "name": "ask", "count": 1, "payload": payload})
    raw = [*RAW, *({"content": {"data": {"method": "custom", "content": content}}} for content in contents)]
    began, esm, state = time.process_time(), page.panel._esm, page.panel.state
    for message in raw:
        page.panel._handle_msg({"buffers": [], **message})
    page.finish(page.panel._commands)
    answers = [news for news in page.news() if news["type"] == "answer"]
    assert time.process_time() - began < 20
    assert len(answers) == len(contents)
    assert not any(answer["ok"] for answer in answers)
    assert max(len(answer["error"]) for answer in answers) < 500
    assert (page.inst.calls, page.inst.answered) == ([], {})
    assert (page.panel._esm, page.panel.state) == (esm, state)
    assert page.ask(**command(id="good", control="pause"))["ok"]


def test_an_error_inside_a_control_reaches_the_page(page) -> None:
    def broken() -> None:
        raise ZeroDivisionError("oops")

    page.inst.pause = broken
    assert page.ask(**command(control="pause"))["error"] == "ZeroDivisionError: oops"


def test_a_slow_command_holds_up_neither_its_handler_nor_questions(page) -> None:
    go, entered = threading.Event(), threading.Event()

    def slow() -> None:
        entered.set()
        go.wait(5)

    page.inst.pause = slow
    page.say(**command(control="pause"))
    assert entered.wait(5)
    page.say(type="rows", id="r", start=0, stop=10, text="", state="", kind="", open=[])
    page.finish(page.panel._questions)
    assert [message["id"] for message in page.news() if message["type"] == "answer"] == ["r"]
    go.set()
    page.finish(page.panel._commands)
    assert [message["id"] for message in page.news() if message["type"] == "answer"] == ["c1"]


def test_too_many_waiting_requests_are_refused(page) -> None:
    go, entered = threading.Event(), threading.Event()

    def slow() -> None:
        entered.set()
        go.wait(5)

    page.inst.pause = slow
    for number in range(120):
        page.say(**command(id=f"c{number}", control="pause"))
        assert entered.wait(5)
    refused = [message for message in page.news() if message["type"] == "answer" and not message["ok"]]
    go.set()
    assert 15 <= len(refused) <= 20
    assert "too many" in refused[0]["error"]


# -- questions


def test_pages_of_rows_and_filters_are_answered_by_id(page) -> None:
    for order in range(1, 1001):
        page.inst.done("embed" if order % 10 else "load", order, count=order)
    answer = page.ask(
        type="rows", id="r1", start=200, stop=400, text="", state="", kind="", open=[["do", "embed"], ["do", "load"]]
    )
    rows = answer["rows"]
    assert (rows["total"], rows["start"], len(rows["items"]), rows["items"][0]["i"]) == (1002, 200, 200, 200)
    found = page.ask(type="rows", id="r2", start=0, stop=200, text="LOAD", state="", kind="", open=[])["rows"]
    assert (found["total"], found["items"][0]["i"], found["items"][99]["i"]) == (100, 0, 99)
    page.inst.write(Kind.DO_STARTED, 5, "score", order=2_000)
    running = page.ask(type="rows", id="r3", start=0, stop=200, text="", state="running", kind="", open=[])["rows"]
    assert [row["key"][1] for row in running["items"]] == ["score"]


def test_a_step_in_full_has_output_error_and_attempts_and_is_found_when_it_has_moved(page) -> None:
    page.inst.write(Kind.DO_RETRYING, 1, "load", order=5, attempt=1)
    page.inst.done("load", 5, at=3, attempt=2, line="docs")
    page.inst.done("first", 1)
    answer = page.ask(type="step", id="s", index=0, key=["do", "load", 1, None])["step"]
    assert answer["row"]["state"] == "finished"
    assert answer["preview"]["text"] == "docs"
    assert [(attempt["number"], attempt["state"]) for attempt in answer["attempts"]] == [(1, "failed"), (2, "finished")]
    assert answer["attempts"][0]["error"]["type"] == "ValueError"
    assert page.ask(type="step", id="s2", index=0, key=["do", "gone", 1, None])["step"] is None


# -- what goes wrong


FRAMES = """Traceback (most recent call last):
  File "Cell In[2]", line 9, in RunErr.run
    helper(d)
  File "Cell In[2]", line 5, in helper
    return json.loads(d)
  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
ValueError: no
JSON
"""


def test_an_error_of_run_says_where_it_was_raised_and_is_told_in_full_when_asked(page) -> None:
    error = {"type": "ValueError", "message": "no\nJSON", "traceback": FRAMES}
    page.inst.write(Kind.ERRORED, 2, error=error)
    [(_, state)] = page.run(0.3, answering=True)
    assert state["traceback"]
    assert state["place"] == "Cell In[2], line 5, in helper"
    assert page.ask(type="error", id="q")["failure"] == error


def test_an_instance_without_an_error_has_none_to_tell(page) -> None:
    assert page.panel.state["place"] == ""
    answer = page.ask(type="error", id="q")
    assert (answer["ok"], answer["failure"]) == (True, None)


def test_a_failing_send_is_dropped_and_the_state_told_again_later(page) -> None:
    page.run(1, answering=True)
    RecordingComm.broken = True
    try:
        page.inst.done("s", 1)
        page.panel.turn()
        page.clock.at += 0.2
        page.panel.turn()
        page.say(type="hello", id="h")
    finally:
        RecordingComm.broken = False
    page.clock.at += 0.2
    told = page.run(0.2)
    assert [message["head"]["done"] for _, message in told if message["type"] == "state"] == [1]


def test_a_store_that_cannot_be_read_is_said_and_the_panel_goes_on(page) -> None:
    page.run(1, answering=True)
    page.inst.failing = StoreLockedError("history.duckdb is open in DBeaver (PID 4711)")
    page.inst.engine.feed.publish()
    told = page.run(1, answering=True)
    assert [message["trouble"] for _, message in told] == ["history.duckdb is open in DBeaver (PID 4711)"]
    page.inst.failing = None
    page.inst.engine.feed.publish()
    told = page.run(1, answering=True)
    assert [message.get("trouble") for _, message in told] == [""]


def test_what_keeps_the_engine_from_recording_is_said_while_it_does(page) -> None:
    page.run(1, answering=True)
    page.inst.engine.trouble = "the journal cannot be written: no space left on the disk"
    told = page.run(10, answering=True)
    assert {message["trouble"] for _, message in told} == {"the journal cannot be written: no space left on the disk"}
    page.inst.engine.trouble = ""
    told = page.run(10, answering=True)
    assert {message["trouble"] for _, message in told} == {""}


# -- one per instance


def test_one_panel_per_instance_with_the_same_model_id_in_every_kernel() -> None:
    inst, again, other = FakeInstance(), FakeInstance(), FakeInstance(instance_id="b")
    panel = panel_for(inst)
    assert panel_for(inst) is panel
    assert panel.model_id == model_id_for(again) != model_id_for(other)
    again.engine.engine_id = "engine-2"
    assert panel_for(again) is panel
    assert panel._inst is again
    assert inst.engine.feed.subscribers == []
    assert panel_for(other) is not panel


def test_the_thread_tells_what_is_new_and_ends_with_close_all() -> None:
    inst = FakeInstance()
    panel = panel_for(inst)
    told = threading.Event()
    panel.observe(lambda change: change["new"]["head"]["done"] == 1 and told.set(), "state")
    inst.done("s", 1)
    assert told.wait(5)
    thread = panel._thread
    close_all()
    thread.join(5)
    assert not thread.is_alive()
    assert panels._panels == {}
    assert inst.engine.feed.subscribers == []


def test_clicks_keep_the_subshell_the_page_asked_for() -> None:
    class Routed:
        def _reply_subshell_for(self, data, default):
            return None

    routed = Routed()
    panels._route_clicks(routed)
    assert routed._reply_subshell_for({}, "subshell-1") == "subshell-1"
    panels._route_clicks(object())
    panels._route_clicks(None)


# -- what runs in another kernel


class Elsewhere(FakeInstance):
    """An instance that another engine runs, or ran."""

    alive: bool | None = True

    def view(self):
        return instance_view(self.known, here=False, owner_alive=self.alive)


def test_the_owner_is_looked_at_while_somebody_looks_at_the_panel_and_the_instance_is_unfinished() -> None:  # S52
    page = Page(Elsewhere())
    watch = page.inst.engine.watch
    page.run(2, answering=True)
    assert watch.shown[page.panel] == (page.inst.known.head.owner,)
    page.run(30)
    assert watch.shown[page.panel] == ()
    page.say(type="heard", seq=1)
    page.run(1, answering=True)
    assert watch.shown[page.panel] != ()
    page.inst.write(Kind.TERMINATED, 3)
    page.run(1, answering=True)
    assert watch.shown[page.panel] == ()
    page.panel.stop()
    assert watch.shown[page.panel] == ()


@pytest.mark.parametrize(("alive", "says"), [(False, "its kernel is gone"), (None, "last seen in")])
def test_a_panel_is_told_that_the_owner_is_gone_or_cannot_be_seen(alive, says) -> None:  # S51, S52
    page = Page(Elsewhere())
    page.run(1, answering=True)
    page.inst.alive = alive
    page.inst.engine.feed.publish(0)
    [(_, state)] = page.run(0.5, answering=True)
    assert state["head"]["interrupted"].startswith(says)
    assert snapshot.size(state["head"]) <= snapshot.HEAD_BYTES
    assert page.inst.engine.watch.shown[page.panel] == ()


def test_what_a_kernel_left_at_work_in_order_is_interrupted_too() -> None:  # S51, S54
    page = Page(Elsewhere())
    page.run(1, answering=True)
    page.inst.write(Kind.RELEASED, 2, why="closed")
    told = page.run(0.5, answering=True)
    assert told[-1][1]["head"]["interrupted"].startswith("its kernel has ended")
    page.inst.write(Kind.CLAIMED, 3, by="register")


def test_a_click_on_what_nobody_runs_is_answered_by_who_will_go_on() -> None:
    page = Page(Elsewhere())
    page.inst.alive = False
    told = page.ask(type="command", control="resume", id="c", engine="engine-1")
    assert told["ok"]
    assert told["note"].startswith("nobody runs it now, it goes on when")


# -- the two outputs


class Publisher:
    """IPython's display publisher, as far as a display uses it."""

    session = object()

    def __init__(self) -> None:
        self.published: list[tuple[str, dict, bool]] = []

    def publish(self, data, metadata=None, transient=None, update=False) -> None:
        self.published.append((transient["display_id"], data, update))


@pytest.fixture
def publisher(monkeypatch) -> Publisher:
    found = Publisher()
    monkeypatch.setattr("nbflow.jupyter.display._find_publisher", lambda: (found, True))
    return found


def test_the_twin_comes_first_then_the_widget_alone(publisher) -> None:
    inst = FakeInstance()
    Display(inst, line="created ingest-01jd3k7q").show()
    (twin, first, _), (shown, second, _) = publisher.published
    assert twin != shown
    assert set(first) == {"text/html", "text/plain"}
    assert first["text/plain"] == "created ingest-01jd3k7q\nIngest: running"
    assert list(second) == ["application/vnd.jupyter.widget-view+json"]
    assert second["application/vnd.jupyter.widget-view+json"]["model_id"] == panel_for(inst).model_id


def test_stable_text_has_no_ids_even_where_the_cells_line_has(publisher) -> None:
    Display(FakeInstance(), stable=True, line="created ingest-01jd3k7q").show()
    assert publisher.published[0][1]["text/plain"] == "Ingest: running"
    assert "01jd3k7q" not in publisher.published[0][1]["text/html"]


def test_headless_writes_the_twin_alone_and_once(publisher) -> None:
    inst = FakeInstance()
    display = Display(inst, headless=True)
    display.show()
    assert publisher.published == []
    inst.write(Kind.COMPLETED, 2)
    display.finish()
    [(_, data, update)] = publisher.published
    assert (data["text/plain"], update) == ("Ingest: complete", False)
    assert panels._panels == {}


def test_the_twin_is_rewritten_at_each_change_of_status_at_most_each_five_seconds(publisher) -> None:
    page = Page(FakeInstance())
    display = Display(page.inst)
    panels._panels[page.panel.model_id] = page.panel
    display.show()
    rewritten = []
    for second in range(60):
        if second % 2:
            page.inst.done(f"s{second}", second)
        page.run(1, answering=True)
        rewritten += [(second, data["text/plain"]) for _, data, update in publisher.published if update]
        publisher.published.clear()
    assert 8 <= len(rewritten) <= 13
    page.inst.write(Kind.COMPLETED, 2)
    page.run(6, answering=True)
    assert publisher.published[-1][1]["text/plain"] == "Ingest: complete (30 steps)"


def test_close_empties_the_panels_output_and_leaves_a_true_twin(publisher) -> None:
    inst = FakeInstance()
    display = Display(inst)
    display.show()
    (twin, _, _), (shown, _, _) = publisher.published
    inst.write(Kind.COMPLETED, 2)
    publisher.published.clear()
    close_all()
    last = {display_id: data for display_id, data, update in publisher.published if update}
    assert last[twin]["text/plain"] == "Ingest: complete"
    assert last[shown] == {"text/html": "", "text/plain": ""}
    publisher.published.clear()
    display.close()
    assert publisher.published == []


def test_the_panels_own_cross_empties_its_own_output_and_no_other(publisher) -> None:  # PANEL 11
    page = Page(FakeInstance())
    panels._panels[page.panel.model_id] = page.panel
    first, second = Display(page.inst), Display(page.inst)
    first.show()
    second.show()
    twins = [data["text/html"] for _, data, _ in publisher.published if "text/html" in data]
    assert [f'class="nbflow-twin-{display.id}"' in html for display, html in zip((first, second), twins)] == [True, True]
    shown = {display_id for display_id, data, _ in publisher.published if "text/html" not in data}
    assert shown == {first.id, second.id}
    assert not page.ask(type="close", id="w", engine="engine-0", display=second.id)["ok"]
    assert page.ask(type="close", id="x", engine="engine-1", display=second.id)["ok"]
    emptied = [display_id for display_id, data, _ in publisher.published if data == {"text/html": "", "text/plain": ""}]
    assert emptied == [second.id]
    page.inst.write(Kind.COMPLETED, 2)
    page.run(60)
    assert publisher.published[-1][1]["text/plain"] == "Ingest: complete", "the line above stays true"


def test_which_output_was_closed_is_told_to_all_views(page) -> None:
    page.say(type="close", id="x", engine="engine-1", display="d1")
    page.finish(page.panel._questions)
    told = page.news()[-2:]
    assert [(message["type"], message.get("display")) for message in told] == [("answer", None), ("closed", "d1")]


def test_each_display_waits_for_a_new_hello(publisher) -> None:
    page = Page(FakeInstance())
    panels._panels[page.panel.model_id] = page.panel
    page.say(type="hello", id="h")
    Display(page.inst).show()
    assert not page.panel.hello_seen.is_set()


def test_the_list_of_instances_tells_what_each_waits_for(nbflow_engine):
    """As the header of its own panel does: a person before a clock."""

    class Asking(WorkflowEntrypoint):
        async def run(self, event, step):
            if event.payload == "person":
                await step.wait_for_event("ask", "approval")
            await step.sleep("cool-down", "1 hour")

    workflow = nbflow_engine.register(Asking)
    for params in ("person", "clock"):
        workflow.create(params, params)
    nbflow_engine.clock.advance(0)
    inst = workflow.get("clock")
    listed = {one["id"]: one for one in answers.answer(inst, AskInstances("1"), 0)["instances"]}
    for name, one in listed.items():
        told = snapshot.head_json(workflow.get(name).view())
        assert [one[part] for part in ("status", "waiting", "sleeping")] == [
            told[part] for part in ("status", "waiting", "sleeping")
        ]
    assert (listed["person"]["waiting"], listed["person"]["sleeping"]) == (1, None)
    assert listed["clock"]["waiting"] == 0
    assert listed["clock"]["sleeping"][:2] == ["cool-down", "sleep"]
