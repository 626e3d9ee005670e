"""Recorded histories are read as they were meant and replayed on today's engine (S6, S7, S9, S20); see `record.py`."""

import json
from collections import Counter

import pytest

from nbflow.core.items import HANDED, stream_key
from nbflow.core.model import Kind, Status, StepState, StepType
from tests.histories import flows
from tests.histories.recorded import HERE, Recorded, summary, to_json

FILES = sorted(HERE.glob("*.json"))
ENDED = {"finished", "failed", "cancelled"}
each = pytest.mark.parametrize("recorded", [pytest.param(path, id=path.stem) for path in FILES], indirect=True)


@pytest.fixture
def recorded(request):
    return Recorded(request.param)


@pytest.fixture(autouse=True)
def _world_as_it_was():
    flows.RAN.clear()
    flows.BROKEN.clear()
    yield
    flows.take_library_away()


def test_every_kind_of_entry_is_in_a_recorded_history():
    """A new kind needs a scenario in `record.py`, and its file."""
    found = {entry.kind for path in FILES for entry in Recorded(path).entries}
    assert found == set(Kind)


@each
def test_a_file_is_read_and_written_without_a_loss(recorded):
    written = json.loads((HERE / f"{recorded.name}.json").read_text())["entries"]
    assert [to_json(entry) for entry in recorded.entries] == written


@each
def test_it_folds_to_what_it_said_when_it_was_recorded(recorded):
    found = {str(seq): summary(history) for seq, history in recorded.histories().items()}
    assert found == recorded.folded


@each
def test_every_beginning_of_it_folds_to_something_lawful(recorded):
    """A kernel may have died after any entry."""
    for count in range(1, len(recorded.entries) + 1):
        for history in recorded.histories(count).values():
            assert history.head.status in Status
            ended = [key for key, step in history.steps.items() if step.state in (StepState.FINISHED, StepState.FAILED)]
            delivered = [key for key in history.delivered if key.key != HANDED]
            assert set(delivered) == {key for key in ended if key.type is not StepType.ROLLBACK}
            assert len(set(delivered)) == len(delivered)
            handed = Counter(key for key in history.delivered if key.key == HANDED)
            assert handed == {
                stream_key(key): its.items.handed for key, its in history.steps.items() if its.items and its.items.handed
            }
            orders = Counter(step.order for step in history.steps.values())
            assert max(orders.values(), default=1) == 1
            taken = [event.taken_by for event in history.events.values() if event.taken_by is not None]
            assert len(set(taken)) == len(taken)


@each
def test_the_views_of_sql_tell_the_same(recorded):
    lab = recorded.open()
    rows = lab.engine.sql("SELECT created_seq, workflow || '/' || instance_id, status FROM instances ORDER BY 1").fetchall()
    of_steps = "SELECT created_seq, name, count, type, status FROM steps WHERE type <> 'map' OR key IS NULL ORDER BY ALL"
    steps = lab.engine.sql(of_steps).fetchall()
    lab.close()
    there = {seq: one for seq, one in recorded.folded.items() if not one["deleted"]}
    assert [(str(seq), name) for seq, name, _ in rows] == [(seq, one["instance"]) for seq, one in there.items()]
    of_entries = {"waiting": {"waiting", "running"}}  # that a running one only waits, some views need not know
    assert all(one in of_entries.get(there[str(seq)]["status"], {there[str(seq)]["status"]}) for seq, _, one in rows)
    counts = Counter(str(row[0]) for row in steps)
    assert counts == Counter({seq: len(one["steps"]) for seq, one in there.items() if one["steps"]})


def act_on(lab, action):
    match action:
        case ["advance", span]:
            lab.advance(span)
        case ["resume", name]:
            lab.engine.get(name).resume()
        case ["retry", name]:
            lab.engine.get(name).retry_failed()
        case ["restart", name, from_step]:
            lab.engine.get(name).restart(from_step)
        case ["send", name, event_type, payload]:
            lab.engine.get(name).send_event(event_type, payload)
        case ["status", name, status]:
            assert lab.engine.get(name).view().status == status
        case ["provide"]:
            flows.provide_library()
            lab.engine.register(flows.Reader)
        case _:
            raise AssertionError(action)
    lab.idle()


@each
def test_it_is_replayed_to_its_end_and_no_finished_body_runs(recorded):
    lab = recorded.open()
    for flow in flows.FLOWS:
        lab.engine.register(flow)
    lab.idle()
    for action in recorded.then:
        act_on(lab, action)
    became = {}
    for name, (_, *output) in recorded.becomes.items():
        instance = lab.engine.get(name)
        became[name] = [str(instance.status().status), *([instance.output] if output else [])]
    entries = lab.entries()
    lab.close()
    assert became == recorded.becomes
    assert sorted(flows.RAN) == recorded.runs
    assert entries[: len(recorded.entries)] == recorded.entries, "nothing that was written is ever changed"


@each
def test_nothing_of_this_machine_is_in_it(recorded):
    text = (HERE / f"{recorded.name}.json").read_text()
    owners = [entry.body["host"] for entry in recorded.entries if "host" in entry.body]
    assert set(owners) <= {"kernel.example"}
    assert str(HERE.parent.parent) not in text
