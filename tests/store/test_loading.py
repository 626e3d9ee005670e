import itertools
import threading

import pytest

from nbflow.core.model import Kind
from nbflow.errors import StoreError, StoreLockedError
from nbflow.store import loader as loaders
from nbflow.store import session as sessions
from nbflow.store.doctor import Severity, examine
from tests.store.actors import (
    Heard,
    draft,
    entry,
    eventually,
    finished,
    held_by_outsider,
    names,
    owner,
    start_instance,
    started,
)


def numbers(store, query="select count(*), max(seq), count(distinct seq) from entries"):
    return store.sql(query).fetchall()[0]


def unloaded(store):
    return store.facts()["journalled"]


def test_entries_reach_the_file_by_themselves_within_a_second_or_two(opened):
    store = opened()
    created = start_instance(store)
    store.append(finished(created, "s"), lambda: None)
    eventually(lambda: store._desk.own >= store._journal.synced > 0, 3)
    assert names(store.read(created)) == ["created", "claimed", "s"]


def test_a_start_that_nobody_syncs_reaches_the_file_too(opened):
    store = opened()
    created = start_instance(store)
    store.append(started(created, "s"))
    eventually(lambda: store._desk.own > 0, 3)
    assert store.facts()["entries"] == 3


def test_a_start_is_absorbed_by_its_end_in_the_same_load_and_kept_without_it(opened):
    store = opened()
    created = start_instance(store)
    store.append(started(created, "early"))
    assert names(store.read(created))[2:] == ["early"]
    store.append(started(created, "one"))
    store.append(finished(created, "one"))
    store.append(finished(created, "early"))
    store.append(started(created, "late"))
    kinds = [(e.step, e.kind) for e in store.read(created)[2:]]
    assert kinds == [
        ("early", Kind.DO_STARTED), ("one", Kind.DO_FINISHED), ("early", Kind.DO_FINISHED), ("late", Kind.DO_STARTED),
    ]  # fmt: skip
    assert numbers(store) == (6, 6, 6)


def test_a_start_is_not_absorbed_by_the_end_of_another_step(opened):
    store = opened()
    created = start_instance(store)
    [other] = store.create([draft("b")], owner(store))
    others = [
        finished(created, "b"),
        entry(Kind.DO_FINISHED, created, step="a", count=2, order=2, attempt=1),
        entry(Kind.DO_FINISHED, created, step="a", key="k", order=2, attempt=1),
        entry(Kind.SLEEP_FINISHED, created, step="a", order=3),
        entry(Kind.DO_FINISHED, created, token=2, step="a", order=3, attempt=1),
        finished(other[0].created_seq, "a"),
        entry(Kind.DO_RETRYING, created, step="a", order=1, attempt=1, error={}),
    ]
    for given in [started(created, "a"), *others]:
        store.append(given)
    assert Kind.DO_STARTED in [e.kind for e in store.read(created)]


def test_an_end_before_a_start_does_not_absorb_it(opened):
    store = opened()
    created = start_instance(store)
    store.append(finished(created, "a"))
    store.append(started(created, "a"))
    assert [e.kind for e in store.read(created)[2:]] == [Kind.DO_FINISHED, Kind.DO_STARTED]


def test_a_backlog_is_loaded_in_portions_exactly_once_and_in_order(opened, monkeypatch):
    monkeypatch.setattr(sessions, "ROWS", 700)
    store = opened()
    created = start_instance(store)
    for number in range(5_000):
        store.append(finished(created, f"s{number}"))
    assert names(store.read(created))[2:] == [f"s{n}" for n in range(5_000)]
    assert numbers(store) == (5_002, 5_002, 5_002)


ASKED = {
    "command": lambda store, seq: store.command(seq, lambda head, read: [(Kind.EVENT, {"event_id": "e", "type": "go"}, b"j1")]),
    "read": lambda store, seq: store.read(seq),
    "head": lambda store, seq: store.head(seq),
    "heads": lambda store, seq: store.heads(),
    "find": lambda store, seq: store.find("a"),
    "create": lambda store, seq: store.create([draft()], None),
    "sql": lambda store, seq: store.sql("select count(*) from entries"),
    "backup": lambda store, seq: store.backup(store._layout.file.with_name("copy.duckdb")),
    "compact": lambda store, seq: store.compact(),
}


@pytest.mark.parametrize("asked", ASKED)
def test_nobody_waits_for_ever_for_an_engine_that_records_faster_than_it_is_loaded(opened, monkeypatch, asked):
    busy, other = opened(), opened()
    created = start_instance(busy)
    monkeypatch.setattr(sessions, "ROWS", 10)
    number, looks = itertools.count(), itertools.count()
    real = sessions.Session._load

    def record() -> None:
        for _ in range(20):
            busy.append(finished(created, f"s{next(number)}"))
        busy.flush()

    def load(session, engine, **options):
        complete = real(session, engine, **options)
        if session._desk is other._desk and engine == busy.engine_id:
            record()
            assert next(looks) < 50, "it waits for what comes after it was asked"
        return complete

    record()
    monkeypatch.setattr(sessions.Session, "_load", load)
    ASKED[asked](other, created)
    monkeypatch.undo()
    told = names(other.read(created))
    assert [name for name in told if name != "event"] == ["created", "claimed", *(f"s{n}" for n in range(next(number)))]
    assert told.count("event") == (asked == "command")


def test_a_lease_that_changes_nothing_leaves_no_log_of_duckdb(opened, file):
    store = opened()
    store.save_setting("never set", None)
    assert not file.with_name(f"{file.name}.wal").exists()
    store.close()
    assert {finding.severity for finding in examine(file)} == {Severity.FINE}


def test_a_load_that_fails_before_its_commit_is_repeated_without_loss_or_double(opened, monkeypatch):
    store = opened()
    created = start_instance(store)
    broken = [3]
    real = sessions.Session.end

    def end(session):
        if broken[0] and session._dirty:
            broken[0] -= 1
            raise StoreError("the power went")
        real(session)

    monkeypatch.setattr(sessions.Session, "end", end)
    monkeypatch.setattr(loaders, "TROUBLE", 0.01)
    for number in range(100):
        store.append(finished(created, f"s{number}"))
    store.flush()
    eventually(lambda: broken[0] == 0 and store._desk.own >= store._journal.synced)
    assert names(store.read(created))[2:] == [f"s{n}" for n in range(100)]


def test_files_of_the_journal_go_once_they_are_loaded(opened):
    store = opened(segment=3_000)
    created = start_instance(store)
    for number in range(100):
        store.append(finished(created, f"s{number}"))
        store.flush()
    folder = store.path.with_suffix(".nbflow") / "journal"
    assert len(list(folder.glob("*.seg"))) > 5
    store.read(created)
    store.read(created)
    assert len(list(folder.glob("*.seg"))) == 1
    assert numbers(store) == (102, 102, 102)


def test_steps_go_on_while_another_program_holds_the_file_and_are_loaded_when_it_leaves(opened, file):
    store = opened(lock_timeout=0.3)
    created = start_instance(store)
    with held_by_outsider(file) as outsider:
        acked = []
        for number in range(200):
            store.append(finished(created, f"s{number}"), lambda n=number: acked.append(n))
        store.flush()
        assert acked == list(range(200))
        with pytest.raises(StoreLockedError, match=rf"history.duckdb' is in use by python.* \(PID {outsider.pid}\)"):
            store.read(created)
        with pytest.raises(StoreLockedError, match="close it there and try again"):
            store.create([draft("b")], owner(store))
        facts = store.facts()
        assert facts["journalled"] == 200
        assert str(outsider.pid) in facts["holder"]
        assert facts["entries"] is None
    eventually(lambda: unloaded(store) == 0)
    assert names(store.read(created))[2:] == [f"s{n}" for n in range(200)]
    assert store.facts()["holder"] is None


def test_a_reader_outside_holds_the_file_too(opened, file):
    store = opened(lock_timeout=0.2)
    created = start_instance(store)
    with held_by_outsider(file, read_only=True):
        store.append(finished(created, "s"))
        store.flush()
        with pytest.raises(StoreLockedError):
            store.head(created)
    assert names(store.read(created))[2:] == ["s"]


def test_the_file_is_free_for_others_while_an_engine_is_open(opened, file):
    store = opened()
    created = start_instance(store)
    store.append(finished(created, "s"))
    store.read(created)
    with held_by_outsider(file):
        pass


# -- two engines on one file


def test_two_stores_in_one_process_share_a_file(opened):
    a, b = opened(), opened()
    assert a.uid == b.uid
    assert a.engine_id != b.engine_id
    one, two = start_instance(a, "a"), start_instance(b, "b")
    a.append(finished(one, "x"))
    b.append(finished(two, "y"))
    a.flush()
    b.write()
    assert names(b.read(one))[2:] == ["x"]
    assert names(a.read(two))[2:] == ["y"]
    assert [h.instance_id for h in a.heads()] == ["b", "a"]
    assert numbers(a) == (6, 6, 6)


def test_both_at_work_lose_and_double_nothing(opened):
    a, b = opened(), opened()
    seqs = {store: start_instance(store, store.engine_id[:8]) for store in (a, b)}
    done = {a: [], b: []}

    def work(store):
        for number in range(600):
            store.append(finished(seqs[store], f"s{number}"), lambda n=number: done[store].append(n))
            if number % 50 == 0:
                store.head(seqs[store])
        store.flush()

    threads = [threading.Thread(target=work, args=(store,)) for store in (a, b)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store, other in ((a, b), (b, a)):
        assert done[store] == list(range(600))
        assert names(other.read(seqs[store]))[2:] == [f"s{n}" for n in range(600)]
    assert numbers(a) == (1_204, 1_204, 1_204)


def test_what_others_write_about_instances_is_told_in_order_without_own_entries(opened):
    a, b = opened(), opened()
    heard = Heard(a)
    created = start_instance(a)
    for number in range(5):
        b.command(created, lambda head, steps, n=number: [(Kind.EVENT, {"event_id": str(n), "type": "go", "by": "b"}, b"j1")])
    eventually(lambda: len(heard.entries) >= 5)
    assert [(e.kind, e.body["event_id"]) for e in heard.entries] == [(Kind.EVENT, str(n)) for n in range(5)]
    assert all(e.seq for e in heard.entries)


def test_own_entries_that_somebody_else_loaded_are_no_news(opened):
    a, b = opened(), opened()
    heard = Heard(a)
    created = start_instance(a)
    a.append(entry(Kind.ACTIVATED, created, number=1, code_hash="c0"))
    a.append(finished(created, "s"))
    a.append(entry(Kind.COMPLETED, created, value=b"j1"))
    a.flush()
    b.command(created, lambda head, steps: [(Kind.EVENT, {"event_id": "1", "type": "go", "by": "b"}, b"j1")])
    eventually(lambda: heard.entries)
    assert [e.kind for e in heard.entries] == [Kind.EVENT]


def test_steps_of_others_are_told_as_an_empty_list(opened):
    a, b = opened(), opened()
    heard = Heard(a)
    created = start_instance(b)
    eventually(lambda: len(heard.entries) == 2)
    before = len(heard.calls)
    b.append(finished(created, "s"))
    b.read(created)
    eventually(lambda: len(heard.calls) > before)
    assert heard.calls[-1] == []


def test_news_comes_within_a_moment(opened):
    a, b = opened(), opened()
    heard = Heard(a)
    start_instance(b)
    assert heard.rang.wait(1.0)


def test_a_look_gives_the_news_before_it_calls_back(opened):
    a, b = opened(), opened()
    created = start_instance(a)
    heard = Heard(a)
    b.command(created, lambda head, steps: [(Kind.EVENT, {"event_id": "1", "type": "go", "by": "b"}, b"j1")])
    then = threading.Event()
    seen = []
    a.look(lambda: (seen.extend(heard.entries), then.set()))
    assert then.wait(5)
    assert [e.kind for e in seen] == [Kind.EVENT]
    assert not a.moved()


def test_a_look_without_news_answers_while_another_program_holds_the_file(opened, file):
    store = opened()
    eventually(lambda: not store.moved())
    with held_by_outsider(file):
        then = threading.Event()
        store.look(then.set)
        assert then.wait(5)


def test_a_look_with_news_waits_for_the_file(opened, file):
    a, b = opened(), opened()
    created = start_instance(b)
    eventually(lambda: not a.moved())
    with held_by_outsider(file):
        a._desk.noticed = (0, 0)  # somebody has bumped the counter and died before his commit
        then = threading.Event()
        a.look(then.set)
        assert not then.wait(0.3)
    assert then.wait(5)
    assert created


def test_a_callback_that_calls_the_store_is_told_so(opened):
    a, b = opened(), opened()
    errors = []

    def on_news(entries):
        try:
            a.heads()
        except RuntimeError as error:
            errors.append(str(error))

    a.on_news = on_news
    start_instance(b)
    eventually(lambda: errors)
    assert "must only note" in errors[0]


def test_a_batch_of_acknowledgements_comes_in_one_call_where_it_is_wanted(opened):
    store = opened()
    created = start_instance(store)
    batches = []
    store.on_acked = batches.append
    marks = [lambda n=n: n for n in range(1_000)]
    for mark in marks:
        store.append(finished(created, "s"), mark)
    store.flush()
    assert [mark for batch in batches for mark in batch] == marks
    assert len(batches) < 500


def test_a_failing_acknowledgement_does_not_end_the_journal(opened):
    store = opened()
    created = start_instance(store)
    done = []
    store.append(finished(created, "s"), lambda: 1 / 0)
    store.flush()
    store.append(finished(created, "t"), lambda: done.append(1))
    store.flush()
    assert done == [1]


def test_sources_are_kept_once_and_come_without_waiting_for_the_file(opened, file):
    a, b = opened(lock_timeout=2), opened()
    with held_by_outsider(file):
        a.save_source("h1", "class A:\n    pass\n# é \u2028")
        a.save_source("h1", "never kept")
        a.flush()
        assert a.source("h1").startswith("class A")
    assert b.source("h1") == "class A:\n    pass\n# é \u2028"
    b.save_source("h1", "class A:\n    pass\n# é \u2028")
    assert b.source("h2") is None
    b.save_source("h2", "two")
    b.flush()
    assert a.source("h2") == "two"
    assert a.sql("select hash, count(*) from sources group by hash order by hash").fetchall() == [("h1", 1), ("h2", 1)]
