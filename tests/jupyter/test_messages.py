"""What a page may say: exactly the messages of the table, anything else is refused and nothing is done."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbflow.core.model import StepKey, StepState, StepType
from nbflow.errors import UsageError
from nbflow.jupyter import messages
from nbflow.jupyter.messages import (
    AskError,
    AskEvents,
    AskInstances,
    AskLog,
    AskPlan,
    AskRows,
    AskStep,
    CloseOutput,
    Command,
    Control,
    Decide,
    Heard,
    Hello,
    OpenInstance,
    Restart,
    Retry,
    Since,
    parse,
    reply_id,
)
from nbflow.values.schemas import UnfitPayloadError

GOOD = [
    ({"type": "hello", "id": "a"}, Hello("a")),
    ({"type": "heard", "seq": 7}, Heard(7)),
    (
        {"type": "rows", "id": "a", "start": 0, "stop": 200, "text": "emb", "state": "failed", "kind": "do", "open": []},
        AskRows("a", 0, 200, "emb", StepState.FAILED, StepType.DO, frozenset()),
    ),
    (
        {"type": "rows", "id": "a", "start": 5, "stop": 5, "text": "", "state": "", "kind": "", "open": [["do", "embed"]]},
        AskRows("a", 5, 5, "", None, None, frozenset({(StepType.DO, "embed")})),
    ),
    ({"type": "events", "id": "a", "start": 0, "stop": 9, "steps": False}, AskEvents("a", 0, 9, steps=False)),
    ({"type": "log", "id": "a"}, AskLog("a")),
    ({"type": "error", "id": "a"}, AskError("a")),
    ({"type": "instances", "id": "a"}, AskInstances("a")),
    ({"type": "plan", "id": "a", "since": "stale", "key": None}, AskPlan("a", Since.STALE, None)),
    ({"type": "open", "id": "a", "instance": 12}, OpenInstance("a", 12)),
    (
        {"type": "restart", "id": "a", "engine": "e", "since": "step", "key": ["do", "x", 1, None]},
        Restart("a", "e", Since.STEP, StepKey(StepType.DO, "x")),
    ),
    (
        {"type": "restart", "id": "a", "engine": "e", "since": "step", "key": ["map", "x", 2, "00813"]},
        Restart("a", "e", Since.STEP, StepKey(StepType.MAP, "x", 2, "00813")),
    ),
    (
        {"type": "plan", "id": "a", "since": "step", "key": ["map", "x", 1, "k"]},
        AskPlan("a", Since.STEP, StepKey(StepType.MAP, "x", 1, "k")),
    ),
    ({"type": "retry", "id": "a", "engine": "e", "key": ["do", "x", 1, None]}, Retry("a", "e", StepKey(StepType.DO, "x"))),
    (
        {"type": "step", "id": "a", "index": 3, "key": ["do", "embed", 2, None]},
        AskStep("a", 3, StepKey(StepType.DO, "embed", 2)),
    ),
    (
        {"type": "step", "id": "a", "index": 3, "key": ["map", "embed", 1, "k"]},
        AskStep("a", 3, StepKey(StepType.MAP, "embed", 1, "k")),
    ),
    ({"type": "command", "id": "a", "engine": "e", "control": "pause"}, Command("a", "e", Control.PAUSE)),
    (
        {"type": "decide", "id": "a", "engine": "e", "name": "ask", "count": 1, "payload": '{"approved": true}'},
        Decide("a", "e", "ask", 1, {"approved": True}),
    ),
    ({"type": "close", "id": "a", "engine": "e", "display": "d"}, CloseOutput("a", "e", "d")),
]


def deep(levels: int) -> list:
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


def decide(payload: object) -> dict:
    return {"type": "decide", "id": "a", "engine": "e", "name": "ask", "count": 1, "payload": payload}


BAD = [
    None,
    "hello",
    ["hello"],
    {},
    {"type": None},
    {"type": ["hello"]},
    {"type": "restart-the-machine", "id": "a"},
    {"type": "hello"},
    {"type": "hello", "id": ""},
    {"type": "hello", "id": 1},
    {"type": "hello", "id": "x" * 65},
    {"type": "hello", "id": "a", "more": 1},
    {"type": "hello", "id": "a", 1: 2},
    {"type": "heard", "seq": -1},
    {"type": "heard", "seq": True},
    {"type": "heard", "seq": 1.0},
    {"type": "heard", "seq": 2**60},
    {"type": "rows", "id": "a", "start": 0, "stop": 201, "text": "", "state": "", "kind": "", "open": []},
    {"type": "rows", "id": "a", "start": 5, "stop": 4, "text": "", "state": "", "kind": "", "open": []},
    {"type": "rows", "id": "a", "start": 0, "stop": 1, "text": "x" * 300, "state": "", "kind": "", "open": []},
    {"type": "rows", "id": "a", "start": 0, "stop": 1, "text": "", "state": "happy", "kind": "", "open": []},
    {"type": "rows", "id": "a", "start": 0, "stop": 1, "text": "", "state": "", "kind": "fetch", "open": []},
    {"type": "rows", "id": "a", "start": 0, "stop": 1, "text": "", "state": "", "kind": "", "open": [["do"]]},
    {"type": "rows", "id": "a", "start": 0, "stop": 1, "text": "", "state": "", "kind": "", "open": [["do", "x"]] * 51},
    {"type": "rows", "id": "a", "start": 0, "stop": 1, "text": "", "state": "", "kind": "", "open": "do"},
    {"type": "events", "id": "a", "start": 0, "stop": 201, "steps": True},
    {"type": "events", "id": "a", "start": 0, "stop": 1, "steps": 1},
    {"type": "plan", "id": "a", "since": "step", "key": None},
    {"type": "plan", "id": "a", "since": "start", "key": ["do", "x", 1, None]},
    {"type": "restart", "id": "a", "engine": "e", "since": "yesterday", "key": None},
    {"type": "open", "id": "a", "instance": 0},
    {"type": "retry", "id": "a", "engine": "e", "key": None},
    {"type": "step", "id": "a", "index": 0, "key": "do"},
    {"type": "step", "id": "a", "index": 0, "key": ["do", "x", 1]},
    {"type": "step", "id": "a", "index": 0, "key": ["run", "x", 1, None]},
    {"type": "step", "id": "a", "index": 0, "key": ["do", "x", 0, None]},
    {"type": "step", "id": "a", "index": 0, "key": ["do", "x", 1, 5]},
    {"type": "command", "id": "a", "engine": "e", "control": "delete"},
    {"type": "command", "id": "a", "engine": None, "control": "pause"},
    {"type": "command", "id": "a", "engine": "e", "control": "pause", "rollback": True},
    decide(json.dumps("x" * (messages.PAYLOAD_BYTES - 1))),
    decide(json.dumps(deep(70))),
    decide("[" * 200_000),
    decide("9" * 5_000),
    decide({"approved": True}),
    decide(""),
    decide("{bad"),
    decide('{"a": NaN}'),
    decide("-Infinity"),
    decide('{"a": [1e400]}'),
    {**decide("1"), "count": 0},
]


@pytest.mark.parametrize(("raw", "message"), GOOD)
def test_a_message_with_exactly_its_fields_is_understood(raw, message) -> None:
    assert parse(raw) == message


@pytest.mark.parametrize("raw", BAD, ids=repr)
def test_anything_else_is_refused(raw) -> None:
    with pytest.raises(UsageError):
        parse(raw)


@pytest.mark.parametrize("raw", BAD, ids=repr)
def test_a_refusal_repeats_no_more_than_a_short_piece_of_what_came(raw) -> None:
    with pytest.raises(UsageError) as caught:
        parse(raw)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("raw", "message"), GOOD)
def test_each_field_is_needed_and_no_other_is_taken(raw, message) -> None:
    for field in raw:
        with pytest.raises(UsageError):
            parse({name: value for name, value in raw.items() if name != field})
    with pytest.raises(UsageError, match="unknown fields"):
        parse({**raw, "__proto__": {}})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)
fields = st.sampled_from(["type", "id", "seq", "start", "stop", "text", "state", "key", "engine", "control", "payload", "name"])
kinds = st.sampled_from(sorted(raw["type"] for raw, _ in GOOD))


@given(json_values | st.dictionaries(fields, json_values | kinds))
def test_whatever_comes_either_parses_or_is_a_usage_error(raw) -> None:
    try:
        parse(raw)
    except UsageError:
        pass
    found = reply_id(raw)
    assert found is None or 0 < len(found) <= 64


def test_a_payload_at_the_limit_is_taken() -> None:
    text = "x" * (messages.PAYLOAD_BYTES - 2)
    assert parse(decide(json.dumps(text))).payload == text


def test_a_payload_is_read_to_the_last_digit_and_says_at_the_form_why_it_is_refused() -> None:
    payload = parse(decide('{"order": 1152921504606846977, "one": 1.0}')).payload
    assert payload == {"order": 2**60 + 1, "one": 1.0}
    assert type(payload["one"]) is float
    for text, why in (("[NaN]", "NaN is no JSON"), ("1e400", "1e400 is beyond what a float holds"), ("{bad", "line 1")):
        with pytest.raises(UnfitPayloadError, match=why) as caught:
            parse(decide(text))
        assert caught.value.problems[0][0] == ()
