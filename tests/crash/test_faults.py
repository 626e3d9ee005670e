"""A store that dies, or fails, at any single one of its writes, by the death of its process or by a power cut (S53).

Whatever Hypothesis chooses: what was acknowledged is there, once, in order, whole, and life goes on. See faults.py.
"""

import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from nbflow.core.history import History
from nbflow.core.model import Kind
from nbflow.store import doctor
from nbflow.store.history_store import FileStore
from tests.crash.faults import CRASHES, DIED, ERRORS
from tests.crash.ledger import whole_artifacts
from tests.store.actors import entry, owner

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3_000)]

DEEP = int(os.environ.get("NBFLOW_FAULTS", "20"))

deeds = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 40)),
    st.sampled_from(["write", "flush", "load", "event", "large"]).map(lambda what: (what,)),
    st.sampled_from(["create", "delete", "reopen", "compact", "flush", "load"]).map(lambda what: (what,)),
)


@settings(max_examples=DEEP, deadline=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
@given(
    st.lists(deeds, min_size=3, max_size=12),
    st.integers(1, 160),
    st.sampled_from([*CRASHES, *ERRORS]),
    st.booleans(),
    st.integers(0, 1_000),
)
def test_a_store_that_dies_at_any_write_loses_doubles_and_tears_nothing(zygote, deeds, at, how, power, seed):
    folder = Path(tempfile.mkdtemp(prefix="nbflow-faults-"))
    seam = {"at": at, "how": how, "power": power, "seed": seed}
    status = zygote.ask(call="tests.crash.faults:store_life", given={"folder": str(folder), "deeds": deeds, "seam": seam})
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, DIED), f"the process ended with {code}; seam {seam}, {folder}"
    checked(folder, died=code == DIED)
    shutil.rmtree(folder)


def checked(folder: Path, *, died: bool) -> None:
    """Open what the death left, hold it against what was acknowledged, and go on with it."""
    said: dict[str, list[list[str]]] = {}
    for line in (folder / "notes").read_text().splitlines():
        what, *rest = line.split()
        said.setdefault(what, []).append(rest)
    file = folder / "image" / "history.duckdb"
    if not file.exists():
        assert not said
        return
    store = FileStore(file)
    try:
        assert store.warnings == []
        found = {head.instance_id: head for head in store.heads(limit=None)}
        created = {name for [name] in said.get("created", ())} - {name for [name] in said.get("deleted", ())}
        assert created <= set(found), "a created instance is lost"
        assert not {name for [name] in said.get("deleted", ())} & set(found), "a deleted instance is back"
        if "chain" not in found:
            return
        seq = found["chain"].created_seq
        entries = store.read(seq)
        hold(entries, said)
        whole_artifacts(store.artifacts, entries)
        go_on(store, seq, entries)
    finally:
        store.close()
    wrong = [finding for finding in doctor.examine(file) if finding.severity is doctor.Severity.WRONG]
    assert wrong == []
    left = [path.name for path in (file.with_suffix(".nbflow") / "journal").iterdir()]
    # A death may leave the life lock that it was making, under its hidden name, until `compact` finds it to be old.
    assert left == [] or (died and len(left) == 1 and re.fullmatch(r"\.[0-9a-f]{32}\.nbj", left[0]))


def hold(entries: list, said: dict[str, list[list[str]]]) -> None:
    """Acknowledged is recovered, in order, once; nothing torn."""
    seqs = [each.seq for each in entries]
    assert seqs == sorted(set(seqs))
    ends = [each for each in entries if each.kind is Kind.DO_FINISHED]
    places = {(each.token, each.count): place for place, each in enumerate(ends)}
    assert len(places) == len(ends), "an entry came twice"
    acked = [(int(token), int(count)) for token, count in said.get("acked", ())]
    assert [pair for pair in acked if pair not in places] == [], "an acknowledged entry is lost"
    assert [places[pair] for pair in acked] == sorted(places[pair] for pair in acked), "out of order"
    assert all(each.value == b"j%d" % each.count or each.value.startswith(b"x") for each in ends if b"uri" not in each.value)
    claims = [each.token for each in entries if each.kind is Kind.CLAIMED]
    assert claims == list(range(1, len(claims) + 1))
    assert {int(token) for [token] in said.get("claimed", ())} <= set(claims), "a claim is lost"
    events = [each.body["event_id"] for each in entries if each.kind is Kind.EVENT]
    assert [event for [event] in said.get("event", ()) if event not in events] == [], "an event is lost"
    known = History(entries)
    for (token, count), place in places.items():
        step = next(step for key, step in known.steps.items() if key.count == count)
        assert step.value == ends[place].value, (token, count)


def go_on(store: FileStore, seq: int, entries: list) -> None:
    """The next engine can claim it, record, and load all that to the file."""
    [claimed] = store.claim([seq], owner(store), "cell", force=True).values()  # the image is another folder
    token = claimed[-1].token
    acknowledged: list[int] = []
    for number in range(3):
        made = entry(Kind.DO_FINISHED, seq, token=token, step="after", count=number + 1, value=b"j1", order=9_000 + number)
        store.append(made, lambda number=number: acknowledged.append(number))
    store.flush()
    after = store.read(seq)
    assert [each.seq for each in after[: len(entries)]] == [each.seq for each in entries]
    assert [each.count for each in after if each.step == "after"] == [1, 2, 3]
    assert acknowledged == [0, 1, 2]
