"""A history whose entries are not as nbflow writes them: refused with the entry's number, or shown; never a crash of a view."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from nbflow.core.history import History
from nbflow.core.model import Kind
from nbflow.engine import reading
from nbflow.errors import StoreCorruptError
from nbflow.jupyter import details, fallback, snapshot
from nbflow.store import lines
from nbflow.store.database import entry_of
from nbflow.store.desk import placed
from nbflow.store.views import instance_view
from tests.histories.recorded import HERE, Recorded
from tests.jupyter.instances import FakeInstance

FILES = sorted(HERE.glob("*.json"))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ODD = [
    None,
    True,
    5,
    -1,
    1.5,
    10**30,
    "x",
    "2030-01-01T00:00:00",
    "<img>" * 50_000,
    [],
    [1, "2", None],
    {},
    {"line": 5, "kind": []},
]
ODD += [
    {"type": [], "message": {}, "traceback": 5},
    {"retries": 5},
    {"retries": {"limit": []}},
    ["complete", 5],
    "5 x",
    "99999999999 x",
]


def row_of(entry, body):
    micros = (entry.recorded_at - EPOCH) // timedelta(microseconds=1)
    text = body if isinstance(body, str) else json.dumps(body)
    return (
        entry.seq,
        micros,
        entry.created_seq,
        entry.token,
        entry.kind,
        entry.step,
        entry.count,
        entry.key,
        text,
        entry.value,
    )


def shown(entries):
    """All that displays make of an instance."""
    inst = FakeInstance()
    inst.known, inst.entries = History(entries), entries
    view = instance_view(inst.known)
    page = reading.lines(inst, snapshot.last_lines)
    state = snapshot.state_json(view, page, engine="e", seq=1, now=datetime(2030, 1, 1, tzinfo=UTC))
    told = [details.detail_json(0, step) for step in inst.steps]
    told += [details.entry_json(entry, 1) for entry in entries]
    html = fallback.html(view, inst.steps, stable=False)
    assert snapshot.size(state) <= snapshot.STATE_BYTES
    assert len(html.encode()) < 70_000
    assert "<img>" not in html
    fallback.text(view)
    return json.dumps([state, told])


def altered(entries):
    """Entries of one instance, one of them with one member of its body gone or odd, as often as there are such."""
    for place, entry in enumerate(entries):
        bodies = [{name: value for name, value in entry.body.items() if name != member} for member in entry.body]
        bodies += [{**entry.body, member: odd} for member in entry.body for odd in ODD]
        bodies += [
            {**entry.body, member: odd} for member in ("out", "rollback", "index", "hash", "keep_below") for odd in ODD[2:7]
        ]
        bodies += ["[]", "5", "null", "{", '"x"', "[" * 10_000, '{"preview":' * 5_000 + "1" + "}" * 5_000]
        for body in bodies:
            yield place, entry, body


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_body_that_nobody_wrote_is_refused_or_shown(path):
    whole = Recorded(path).entries
    seen: dict[int, list] = {}
    for entry in whole:
        seen.setdefault(entry.created_seq or entry.seq, []).append(entry)
    refused = taken = 0
    texts: list[tuple[str, str]] = []
    for entries in seen.values():
        done = set()
        for place, entry, body in altered(entries):
            if (mark := (entry.kind, entry.key is None, str(body)[:100], len(str(body)))) in done:
                continue
            done.add(mark)
            try:
                odd = entry_of(row_of(entry, body))
            except StoreCorruptError as error:
                refused += 1
                texts.append((f"entry {entry.seq} of the history", str(error)))
                continue
            shown([*entries[:place], odd, *entries[place + 1 :]])
            taken += 1
    assert refused
    assert taken
    assert all(named in text and len(text) < 1_000 for named, text in texts)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_nbflow_wrote_is_taken_as_it_is(path):
    for entry in placed(Recorded(path).entries):
        told = entry_of(row_of(entry, lines.body_text(entry.body))).body
        assert told == {name: value for name, value in entry.body.items() if value is not None or name in told}


COLUMNS = {"seq": 0, "micros": 1, "created_seq": 2, "token": 3, "step": 5, "count": 6, "key": 7}


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("seq", [None, -5]),
        ("micros", [None, 2**62]),
        ("created_seq", [None, -1]),
        ("token", [None, -3]),
        ("step", [None, "x" * 100_000]),
        ("count", [0, -1, 2**40]),
        ("key", ["99999999999999", "-1", "x", "²", "x" * 100_000, "1" * 5_000]),
    ],
)
def test_a_column_that_nobody_wrote_is_refused(column, values):
    entry = next(one for one in Recorded(HERE / "maps.json").entries if one.kind is Kind.MAP_FINISHED and one.key == "0")
    good = list(row_of(entry, entry.body))
    entry_of(tuple(good))
    for value in values:
        row = [value if place == COLUMNS[column] else part for place, part in enumerate(good)]
        with pytest.raises(StoreCorruptError):
            entry_of(tuple(row))


def test_a_preview_of_a_hundred_megabytes_is_not_carried_to_the_page():
    entries = Recorded(HERE / "do.json").entries
    entry = next(one for one in entries if one.kind is Kind.DO_FINISHED)
    huge = {"kind": "json", "text": "x" * 100_000_000, "line": "y" * 1_000_000, "rows": [1] * 1_000}
    odd = entry_of(row_of(entry, {**entry.body, "preview": huge}))
    mine = [one for one in entries if entry.created_seq in (one.created_seq, one.seq)]
    mine[mine.index(entry)] = odd
    text = shown(mine)
    assert len(text) < 500_000
    assert "not shown" in text
