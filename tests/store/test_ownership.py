import errno
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from nbflow.core.history import Head, History
from nbflow.core.model import Kind, Status, StepKey, StepState, StepType
from nbflow.errors import InvalidStatusError, NotFoundError, StoreError
from nbflow.store.base import Store
from nbflow.store.database import Database
from tests.store.actors import draft, entry, finished, killed_after, names, owner, run, start_instance, started

WORKED = """
created = start_instance(store)
store.append(entry(Kind.ACTIVATED, created, number=1, code_hash="c0"))
for i in range(20):
    store.append(finished(created, f"s{i}"))
store.append(started(created, "open"))
store.flush()
"""


def test_it_is_a_store(opened):
    store: Store = opened()
    assert store.path.name == "history.duckdb"


# -- creating


def test_created_instances_have_their_entries_and_the_found_their_heads(opened):
    store = opened()
    [first] = store.create([draft("a", params=b"j1", note="n")], owner(store))
    assert [e.kind for e in first] == [Kind.CREATED, Kind.CLAIMED]
    assert [e.seq for e in first] == [1, 2]
    assert {e.created_seq for e in first} == {1}
    assert first[0].body == {"code_hash": "c0", "note": "n", "workflow": "W", "id": "a"}
    assert first[0].value == b"j1"
    assert first[1].token == 1
    assert first[1].body["folder"] == store.folder_id
    again, other, repeated, elsewhere = store.create(
        [draft("a", params=b"j2"), draft("b"), draft("b"), draft("a", workflow="V")], None
    )
    assert (again.created_seq, again.params, again.token) == (1, b"j1", 1)
    assert [e.kind for e in other] == [Kind.CREATED]
    assert repeated.created_seq == other[0].created_seq == 3
    assert elsewhere[0].created_seq == 4
    assert [h.instance_id for h in store.heads()] == ["a", "b", "a"]
    assert store.read(1) == first


def test_the_head_of_a_found_instance_knows_what_its_engine_recorded_last(opened):
    a, b = opened(), opened()
    created = start_instance(a)
    a.append(entry(Kind.ACTIVATED, created, number=1, code_hash="c0"))
    a.append(entry(Kind.COMPLETED, created, value=b"j7"))
    a.flush()
    [head] = b.create([draft("a")], owner(b))
    assert (head.status, head.output) == (Status.COMPLETE, b"j7")


def test_an_id_is_free_as_soon_as_its_engine_has_recorded_the_deletion(opened):
    a, b = opened(), opened()
    created = start_instance(a)
    a.append(entry(Kind.DELETED, created, token=2, by="me"))
    a.flush()
    [again] = b.create([draft("a")], owner(b))
    assert [e.kind for e in again] == [Kind.CREATED, Kind.CLAIMED]
    assert [head.created_seq for head in a.find("a")] == [again[0].created_seq]


def test_ten_thousand_instances_are_created_at_once(opened):
    store = opened()
    made = store.create([draft(f"i{n}") for n in range(10_000)], None)
    assert [entries[0].created_seq for entries in made] == list(range(1, 10_001))
    assert store.find("i9999")[0].created_seq == 10_000
    assert len(store.heads(limit=None)) == 10_000


def test_finding_by_id_and_listing(opened):
    store = opened()
    store.create([draft("a"), draft("a", workflow="V"), draft("ba"), draft("b.a-c_1")], None)
    assert {h.workflow for h in store.find("a")} == {"W", "V"}
    assert [h.created_seq for h in store.find("a", "V")] == [2]
    assert store.find("c_1") == []
    assert [h.instance_id for h in store.heads("W")] == ["b.a-c_1", "ba", "a"]
    assert [h.instance_id for h in store.heads("W", limit=1)] == ["b.a-c_1"]
    assert store.heads("X") == []
    assert store.head(99) is None
    assert store.read(99) == []


def test_all_unfinished_ones_that_are_wanted_are_claimed_together(opened):
    store, other = opened(), opened()
    ids = ["queued", "running", "done", "failed", "again", "over"]
    seqs = {name: start_instance(store, name) for name in ids}
    for name in ids[1:]:
        store.append(entry(Kind.ACTIVATED, seqs[name], number=1, code_hash="c0"))
    for name in ("done", "again"):
        store.append(entry(Kind.COMPLETED, seqs[name], value=b"j1"))
    store.append(entry(Kind.ERRORED, seqs["failed"], error={"type": "E", "message": "m"}))
    store.append(entry(Kind.RESTARTED, seqs["again"], token=2, keep_below=0))
    store.append(entry(Kind.TERMINATED, seqs["over"], token=2))
    store.append(entry(Kind.RELEASED, seqs["queued"], why="closed"))
    store.append(entry(Kind.RELEASED, seqs["running"], why="closed"))
    elsewhere = start_instance(store, "other", workflow="V")
    store.append(entry(Kind.RELEASED, elsewhere, why="closed"))
    store.flush()
    seen: list[str] = []

    def wanted(head: Head) -> bool:
        seen.append(head.instance_id)
        return head.instance_id != "queued"

    claimed = other.claim_unfinished("W", wanted, owner(other), "register")
    assert seen == ["again", "running", "queued"]  # "again" is still somebody's
    assert {seq: (entries[-1].kind, entries[-1].token) for seq, entries in claimed.items()} == {
        seqs["running"]: (Kind.CLAIMED, 2)
    }
    assert other.head(seqs["running"]).owner.engine == other.engine_id
    assert other.claim_unfinished("W", lambda _head: True, owner(other), "register").keys() == {seqs["queued"]}


def test_more_unfinished_ones_than_one_lease_takes_are_all_claimed(opened):
    store = opened()
    made = store.create([draft(f"i{n}") for n in range(1_203)], None)
    claimed = store.claim_unfinished("W", lambda head: head.instance_id != "i700", owner(store), "register")
    assert list(claimed) == [entries[0].created_seq for entries in reversed(made) if entries[0].body["id"] != "i700"]
    assert [h.instance_id for h in store.heads(limit=None) if h.owner is None] == ["i700"]


@pytest.mark.parametrize("what", [Kind.CREATED, Kind.CLAIMED])
def test_what_is_created_or_claimed_is_given_when_it_is_durable_before_it_is_folded_into_the_file(opened, monkeypatch, what):
    store = opened()
    store.create([draft("a")], None)
    [there] = store.heads()
    fold, folding = threading.Event(), threading.Event()
    detach = Database.detach

    def waits(database: Database) -> bool:
        folding.set()
        assert fold.wait(60)
        return detach(database)

    monkeypatch.setattr(Database, "detach", waits)
    if what is Kind.CREATED:
        [entries] = store.create([draft("b")], None)
    else:
        [entries] = store.claim([there.created_seq], owner(store), "cell").values()
    assert entries[-1].kind is what
    assert folding.wait(60)
    fold.set()
    assert store.read(entries[0].created_seq) == entries


def test_a_claim_that_cannot_be_folded_into_the_file_is_a_claim_all_the_same(opened, monkeypatch, caplog):
    store = opened()
    [made] = store.create([draft("a")], None)
    assert len(store.heads()) == 1

    def fails(_database: Database) -> bool:
        raise OSError(errno.EIO, "Input/output error", "history.duckdb")

    with monkeypatch.context() as broken:
        broken.setattr(Database, "left_log", fails)
        assert made[0].created_seq in store.claim([made[0].created_seq], owner(store), "cell")
        with pytest.raises(StoreError):
            store.head(made[0].created_seq)
    assert "Input/output error" in caplog.text
    assert store.head(made[0].created_seq).owner.engine == store.engine_id


# -- claims


def test_what_a_dead_engine_ran_is_claimed_with_all_it_recorded(opened, file):
    engine = killed_after(file, WORKED)
    store = opened()
    [entries] = store.claim([1], owner(store, "b.ipynb"), "cell").values()
    assert names(entries) == ["created", "claimed", "activated", *(f"s{i}" for i in range(20)), "open", "claimed"]
    assert entries[-1].token == 2
    assert entries[-1].body["notebook"] == "b.ipynb"
    assert "lost" not in entries[-1].body
    history = History(entries)
    assert history.steps[StepKey(StepType.DO, "open")].state is StepState.INTERRUPTED
    assert history.head.owner.engine == store.engine_id != engine


def test_an_engine_that_dies_while_another_is_open_is_taken_over_by_its_claim(opened, file):
    store = opened()
    engine = killed_after(file, WORKED)
    folder = file.with_suffix(".nbflow") / "journal"
    assert list(folder.glob(f"{engine}*.seg"))
    [entries] = store.claim([1], owner(store), "cell").values()
    assert names(entries)[3:-1] == [*(f"s{i}" for i in range(20)), "open"]
    assert store.head(1) is not None  # comes after the claim's lease
    assert not list(folder.glob(f"{engine}*"))
    assert store.sql("select closed from loaded where journal = '" + engine + "'").fetchall() == [(True,)]


def test_what_a_living_engine_runs_is_left_out_even_by_force(opened):
    a, b = opened(), opened()
    created = start_instance(a)
    assert b.claim([created], owner(b), "cell") == {}
    assert b.claim([created], owner(b), "resume", force=True) == {}
    assert a.claim([created], owner(a), "cell") == {}
    assert b.alive(owner(a)) is True


def test_what_nobody_runs_and_what_was_released_is_claimed(opened):
    a, b = opened(), opened()
    [unowned] = a.create([draft("u")], None)
    created = start_instance(a)
    a.append(entry(Kind.RELEASED, created, why="closed"))
    a.close()
    claimed = b.claim([created, unowned[0].created_seq, created, 999], owner(b), "registered")
    assert {seq: entries[-1].token for seq, entries in claimed.items()} == {created: 2, unowned[0].created_seq: 1}
    assert b.head(created).owner.engine == b.engine_id


def test_deleted_instances_are_left_out(opened):
    store = opened()
    [made] = store.create([draft("a")], None)
    store.command(made[0].created_seq, lambda head, entries: [(Kind.DELETED, {"by": "me"}, None)])
    assert store.claim([made[0].created_seq], owner(store), "cell", force=True) == {}


def test_an_owner_on_another_host_or_in_another_folder_is_claimed_only_by_force(opened):
    store = opened()
    far = replace(owner(store), engine="0" * 32, host="elsewhere", folder="9:9")
    copied = replace(owner(store), engine="1" * 32, folder="9:9")
    [one] = store.create([draft("far")], far)
    [two] = store.create([draft("copied")], copied)
    seqs = [one[0].created_seq, two[0].created_seq]
    assert store.alive(far) is None
    assert store.alive(copied) is None
    assert store.claim(seqs, owner(store), "cell") == {}
    assert set(store.claim(seqs, owner(store), "resume", force=True)) == set(seqs)


def test_an_owner_of_this_folder_without_a_life_lock_is_dead(opened):
    a, b = opened(), opened()
    gone = replace(owner(a), folder=a.folder_id)
    start_instance(a)
    a.close()
    assert b.alive(gone) is False
    assert a.alive(owner(a)) is False


def test_a_large_history_is_claimed_whole(opened, file):
    killed_after(file, WORKED + "\nfor i in range(12_000):\n    store.append(finished(created, f't{i}'))\nstore.flush()")
    store = opened()
    [entries] = store.claim([1], owner(store), "cell").values()
    assert names(entries)[24:-1] == [f"t{i}" for i in range(12_000)]
    assert [e.seq for e in entries] == list(range(1, len(entries) + 1))


def test_a_dead_journal_with_damage_is_claimed_by_nobody_and_stays(opened, file):
    store = opened()
    engine = killed_after(file, WORKED + "\nstore.append(finished(created, 'more')); store.flush()")
    [path] = (file.with_suffix(".nbflow") / "journal").glob(f"{engine}*.seg")
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="is damaged at byte"):
        store.claim([1], owner(store), "cell")
    assert path.read_bytes() == data


# -- commands


def test_a_command_sees_what_the_owner_recorded_a_moment_ago(opened):
    a, b = opened(), opened()
    created = start_instance(a)
    a.append(entry(Kind.ACTIVATED, created, number=1, code_hash="c0"))
    a.append(entry(Kind.COMPLETED, created, value=b"j1"))
    a.flush()

    def decide(head, entries):
        if head.finished:
            raise InvalidStatusError("complete")
        return [(Kind.TERMINATED, {"by": "b"}, None)]

    with pytest.raises(InvalidStatusError):
        b.command(created, decide)
    assert b.head(created).status is Status.COMPLETE


def test_entries_under_an_old_token_stay_in_the_file_and_do_not_count(opened):
    a, b = opened(), opened()
    created = start_instance(a)
    a.append(entry(Kind.ACTIVATED, created, number=1, code_hash="c0"))
    a.append(finished(created, "kept"))
    a.flush()
    [fence] = b.command(created, lambda head, entries: [(Kind.TERMINATED, {"by": "b"}, None)])
    assert fence.token == 2
    a.append(finished(created, "late"))
    a.append(entry(Kind.COMPLETED, created, value=b"j1"))
    entries = a.read(created)
    assert names(entries) == ["created", "claimed", "activated", "kept", "terminated", "late", "completed"]
    history = History(entries)
    assert [key.name for key in history.steps] == ["kept"]
    assert history.head.status is Status.TERMINATED
    assert b.sql("select status from instances").fetchall() == [("terminated",)]
    assert b.sql("select name from steps").fetchall() == [("kept",)]


def test_a_restart_from_a_step_keeps_what_was_acknowledged_before_it(opened):
    a, b = opened(), opened()
    created = start_instance(a)
    for number in range(3):
        a.append(finished(created, f"s{number}", order=number))
    a.flush()
    seen = []

    def decide(head, entries):
        seen.extend(names(entries())[2:])
        return [(Kind.RESTARTED, {"by": "b", "keep_below": 2}, None)]

    b.command(created, decide)
    assert seen == ["s0", "s1", "s2"]
    assert [key.name for key in History(b.read(created)).steps] == ["s0", "s1"]


def test_several_decisions_are_written_together_each_fence_with_its_own_token(opened):
    store = opened()
    created = start_instance(store)
    written = store.command(
        created,
        lambda head, entries: [
            (Kind.TERMINATED, {"by": "x"}, None), (Kind.EVENT, {"event_id": "1", "type": "t"}, b"j1"), (Kind.RESTARTED, {"by": "x"}, None),
        ],
    )  # fmt: skip
    assert [(e.kind, e.token) for e in written] == [(Kind.TERMINATED, 2), (Kind.EVENT, 0), (Kind.RESTARTED, 3)]
    assert [e.seq for e in written] == [3, 4, 5]


def test_a_decision_that_raises_writes_nothing(opened):
    store = opened()
    created = start_instance(store)
    with pytest.raises(ZeroDivisionError):
        store.command(created, lambda head, entries: 1 / 0)
    assert store.command(created, lambda head, entries: []) == []
    assert len(store.read(created)) == 2


def test_a_command_to_nothing_or_to_what_is_deleted_is_refused(opened):
    store = opened()
    created = start_instance(store)
    with pytest.raises(NotFoundError):
        store.command(77, lambda head, entries: [])
    store.command(created, lambda head, entries: [(Kind.DELETED, {"by": "me"}, None)])
    with pytest.raises(NotFoundError):
        store.command(created, lambda head, entries: [])


def test_a_deleted_instance_is_gone_and_its_id_free(opened):
    store = opened()
    created = start_instance(store)
    store.command(created, lambda head, entries: [(Kind.DELETED, {"by": "me"}, None)])
    assert store.head(created) is None
    assert store.find("a") == []
    assert store.heads() == []
    [again] = store.create([draft("a")], None)
    assert again[0].created_seq == 4
    assert store.find("a")[0].created_seq == 4
    assert store.sql("select created_seq from instances").fetchall() == [(4,)]


def test_events_of_two_senders_have_one_order(opened):
    a, b, c = opened(), opened(), opened()
    created = start_instance(a)
    for number in range(6):
        sender = (b, c)[number % 2]
        sender.command(created, lambda head, entries, n=number: [(Kind.EVENT, {"event_id": str(n), "type": "go"}, b"j1")])
    history = History(a.read(created))
    assert [event.event_id for event in history.buffered("go")] == [str(n) for n in range(6)]


# -- life and death


def test_an_engine_in_another_process_lives_until_it_is_killed(opened, file):
    store = opened()
    code = """
import sys
from nbflow.store.history_store import FileStore
from tests.store.actors import owner
store = FileStore(sys.argv[1])
print(store.engine_id, flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        there = replace(owner(store), engine=process.stdout.readline().strip(), folder=store.folder_id)
        assert store.alive(there) is True
        process.send_signal(signal.SIGSTOP)
        assert store.alive(there) is True
        process.kill()
        process.wait(30)
        assert store.alive(there) is False
    finally:
        process.kill()
        process.wait(30)
        process.stdin.close()
        process.stdout.close()


def test_a_forked_child_cannot_use_the_store_and_holds_no_lock(file):
    done = run(
        """
        import os, sys
        from nbflow.errors import StoreError
        from nbflow.store.history_store import FileStore
        from nbflow.store import lease
        from tests.store.actors import owner, start_instance, finished
        store = FileStore(sys.argv[1])
        created = start_instance(store)
        ready, go = os.pipe(), os.pipe()
        pid = os.fork()
        if not pid:
            for call in (store.heads, store.flush, lambda: store.append(finished(created, "x"))):
                try:
                    call()
                    os._exit(3)
                except StoreError as error:
                    assert "parent" in str(error) or "closed" in str(error), error
            store.close()
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            sys.exit(0)  # the ordinary way out, atexit and all
        os.read(ready[0], 1)
        store.append(finished(created, "y"))
        assert len(store.read(created)) == 3
        store.close()
        folder = store.path.with_suffix(".nbflow")
        assert lease.FileLock(folder / "history.duckdb.lock").try_acquire()
        assert list((folder / "journal").iterdir()) == []
        os.write(go[1], b"x")
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        file,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "0", done.stderr


@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "1 / 0"])
def test_a_process_that_ends_without_closing_leaves_all_in_the_file(file, opened, ending):
    done = run(
        f"""
        import sys
        from nbflow.store.history_store import FileStore
        from tests.store.actors import start_instance, finished
        store = FileStore(sys.argv[1])
        created = start_instance(store)
        for n in range(2_000):
            store.append(finished(created, f"s{{n}}"))
        {ending}
        """,
        file,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == (1 if ending == "1 / 0" else 0), done.stderr
    assert list((file.with_suffix(".nbflow") / "journal").iterdir()) == []
    assert len(opened().read(1)) == 2_002


def test_a_process_that_ends_in_the_middle_of_a_query_does_not_abort(file):
    done = run(
        """
        import sys, threading
        from nbflow.store.history_store import FileStore
        store = FileStore(sys.argv[1])
        def ask():
            try:
                store.sql("select count(*) from range(100000000) a, range(1000) b where (a.range * b.range) % 7 = 3")
            except Exception as error:
                print(type(error).__name__, flush=True)
        threading.Thread(target=ask, daemon=True).start()
        while store._loader._running is None:
            pass
        """,
        file,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert "terminate" not in done.stderr


def test_a_stopped_holder_is_named_as_stopped(file, opened):
    store = opened(lock_timeout=0.3)
    code = """
import sys
from nbflow.store.history_store import FileStore
store = FileStore(sys.argv[1], notebook="other.ipynb")
for _ in store._loader._leases(60):
    print("held", flush=True)
    sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout.readline().strip() == "held"
        with pytest.raises(StoreError, match=rf"in use by other.ipynb, PID {process.pid} on .* since .* UTC, for"):
            store.heads()
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(StoreError, match=r"stopped \(Ctrl-Z\?\)"):
            store.heads()
    finally:
        process.kill()
        process.wait(30)
        process.stdin.close()
        process.stdout.close()
    assert store.heads() == []


def test_a_lock_file_that_is_deleted_lets_nobody_in_twice(opened):
    a, b = opened(), opened()
    created = start_instance(a)
    (a.path.with_suffix(".nbflow") / "history.duckdb.lock").unlink()
    (a.path.with_suffix(".nbflow") / "history.duckdb.turn").unlink()
    a.append(started(created, "s"))
    a.write()
    assert names(b.read(created))[2:] == ["s"]

    def decide(head, entries):
        (a.path.with_suffix(".nbflow") / "history.duckdb.lock").unlink()
        return [(Kind.EVENT, {"event_id": "1", "type": "go"}, b"j1")]

    with pytest.raises(StoreError, match="was deleted meanwhile: nothing was written"):
        b.command(created, decide)
    assert names(a.read(created))[2:] == ["s"]
