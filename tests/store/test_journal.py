import errno
import os
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from nbflow.core.model import Kind
from nbflow.errors import StoreCorruptError, StoreError, UsageError
from nbflow.store import lines, segments
from nbflow.store.journal import Journal
from tests.store.actors import entry, eventually, finished, killed_after, names, owner, run, start_instance

HUNDRED = """
created = start_instance(store)
for i in range(100):
    store.append(finished(created, f"s{i}"))
    store.flush()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def journal_of(folder: Path, **options: object) -> tuple[Journal, list[int]]:
    order: list[int] = []
    journal = Journal(folder, "e", "store", lambda acks: [acked() for acked in acks], **options)
    return journal, order


def line(number: int, size: int = 0) -> bytes:
    return lines.of_entry(entry(Kind.DO_FINISHED, 1, step=f"s{number}", note="x" * size))


def read_back(folder: Path, engine: str = "e", *, living: bool = False) -> list[bytes]:
    found: list[bytes] = []
    position = 0
    while True:
        stretch = segments.readable(folder, engine, position, 1000, store="store", living=living)
        found += [text for text in stretch.data.split(b"\n") if text and b'"kind":' in text]
        if stretch.last:
            return found
        position = stretch.end


def test_acknowledgements_come_in_the_order_of_the_appends_after_the_entry_is_in_the_file(folder):
    journal, order = journal_of(folder)
    for number in range(500):
        journal.append(line(number), lambda n=number: order.append(n))
    journal.flush()
    assert order == list(range(500))
    assert len(read_back(folder)) == 500
    journal.close()


def test_an_entry_without_acknowledgement_causes_no_sync_but_is_in_the_file_after_write(folder):
    journal, _ = journal_of(folder)
    journal.append(line(0))
    journal.write()
    assert len(read_back(folder, living=True)) == 1
    assert journal.synced == 0
    journal.close()
    assert journal.synced == journal.written


def test_the_thread_that_attends_syncs_by_itself_and_is_acknowledged_before_sync_returns(folder):
    journal, order = journal_of(folder)
    threads: set[int] = set()
    journal.syncer = threading.get_ident()
    journal.append(line(0), lambda: order.append(0))
    journal.append(line(1), lambda: threads.add(threading.get_ident()))
    assert order == []
    assert journal.synced == 0
    journal.sync()
    assert order == [0]
    assert threads == {threading.get_ident()}
    assert journal.synced == journal.written > 0
    assert len(read_back(folder, living=True)) == 2
    journal.close()


def test_what_others_append_does_not_wait_for_the_thread_that_attends(folder):
    journal, order = journal_of(folder)
    journal.syncer = -1
    journal.append(line(0), lambda: order.append(0))
    eventually(lambda: order == [0])
    journal.close()


def test_acknowledgements_keep_their_order_when_both_threads_sync(folder):
    journal, order = journal_of(folder)
    journal.syncer = threading.get_ident()
    flushing = threading.Event()

    def flush() -> None:
        while not flushing.is_set():
            journal.flush()

    other = threading.Thread(target=flush)
    other.start()
    for number in range(300):
        journal.append(line(number), lambda n=number: order.append(n))
        if number % 3 == 0:
            journal.sync()
    flushing.set()
    other.join()
    journal.flush()
    assert order == list(range(300))
    journal.close()


def test_slow_syncs_are_left_to_the_journals_thread(folder, monkeypatch):
    journal, order = journal_of(folder)
    journal.syncer = threading.get_ident()
    threads: list[str] = []
    sync = os.fdatasync

    def slow(descriptor: int) -> None:
        threads.append(threading.current_thread().name)
        threading.Event().wait(0.02)
        sync(descriptor)

    monkeypatch.setattr("nbflow.store.journal.os.fdatasync", slow)
    for number in range(2):
        journal.append(line(number), lambda n=number: order.append(n))
        journal.sync()
        eventually(lambda n=number: order == list(range(n + 1)))
    assert threads == [threading.current_thread().name, "nbflow-journal"]
    journal.close()


def test_a_sync_from_elsewhere_is_done_by_the_journals_thread(folder):
    journal, order = journal_of(folder)
    journal.syncer = threading.get_ident()
    journal.append(line(0), lambda: order.append(0))
    other = threading.Thread(target=journal.sync)
    other.start()
    other.join()
    eventually(lambda: order == [0])
    journal.close()


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_what_the_attending_thread_cannot_sync_the_journals_own_makes_up_for(folder, monkeypatch, call):
    journal, order = journal_of(folder)
    journal.syncer = threading.get_ident()
    real, failures = getattr(os, call), [OSError(errno.ENOSPC if call == "pwrite" else errno.EIO, "injected")]

    def fails_once(*args: object) -> object:
        if failures:
            raise failures.pop()
        return real(*args)

    monkeypatch.setattr(f"nbflow.store.journal.os.{call}", fails_once)
    journal.append(line(0), lambda: order.append(0))
    journal.append(line(1), lambda: order.append(1))
    journal.sync()
    eventually(lambda: order == [0, 1])
    assert len(read_back(folder, living=True)) == 2
    journal.close()


def test_entries_of_one_thread_keep_their_order_whoever_writes_them(folder):
    journal, _ = journal_of(folder)
    for number in range(300):
        journal.append(line(number), (lambda: None) if number % 3 else None)
        if number % 7 == 0:
            journal.write()
    journal.flush()
    assert [f'"step":"s{n}"'.encode() in text for n, text in enumerate(read_back(folder))] == [True] * 300
    journal.close()


def test_a_large_journal_goes_on_in_new_files_and_reads_back_whole(folder):
    journal, _ = journal_of(folder, segment=2_000)
    for number in range(60):
        journal.append(line(number))
        journal.flush()
    assert len(segments.segments(folder, "e")) > 3
    assert len(read_back(folder)) == 60
    journal.close()


def test_what_is_written_while_a_new_file_is_begun_is_acknowledged_too(folder, monkeypatch):
    journal, order = journal_of(folder, segment=1)
    real, written = os.fdatasync, []

    def fdatasync(descriptor):
        real(descriptor)
        if not written and threading.current_thread() is journal.thread:
            written.append(True)
            journal.append(line(1), lambda: order.append(1))
            journal.write()  # as the workflow loop does before it starts a body

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    journal.append(line(0), lambda: order.append(0))
    eventually(lambda: order == [0, 1])
    journal.close()


def test_a_full_disk_delays_entries_and_the_same_bytes_come_to_the_same_place_later(folder, monkeypatch):
    journal, order = journal_of(folder)
    journal.append(line(0), lambda: order.append(0))
    journal.flush()
    real, full = os.pwrite, True

    def pwrite(descriptor, data, offset):
        if full:
            real(descriptor, data[: len(data) // 2], offset)  # a short write first, as a disk does that fills up
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    for number in range(1, 20):
        journal.append(line(number), lambda n=number: order.append(n))
    with pytest.raises(StoreError, match="no space left on the disk"):
        journal.flush()
    assert order == [0]
    full = False
    eventually(lambda: order == list(range(20)))
    journal.close()
    assert len(read_back(folder)) == 20


@pytest.mark.parametrize("number", [errno.EROFS, errno.EPERM, errno.EIO, errno.EDQUOT, errno.ENOMEM])
def test_whatever_the_system_refuses_a_write_with_is_waited_for(folder, monkeypatch, number):
    journal, order = journal_of(folder)
    journal.append(line(0), lambda: order.append(0))
    journal.flush()
    real = os.pwrite

    def pwrite(descriptor, data, offset):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", pwrite)
    journal.append(line(1), lambda: order.append(1))
    with pytest.raises(StoreError, match="the entries wait and are written then"):
        journal.flush()
    assert journal.trouble is not None
    assert order == [0]
    monkeypatch.setattr(os, "pwrite", real)
    eventually(lambda: order == [0, 1])
    journal.close()
    assert len(read_back(folder)) == 2


@pytest.mark.parametrize("what", ["open", "fsync", "fdatasync"])
def test_a_new_file_that_cannot_be_begun_costs_no_entry_and_no_acknowledgement(folder, monkeypatch, what):
    journal, order = journal_of(folder, segment=600)
    real, refusing = getattr(os, what), []

    def refuses(*given, **options):
        if refusing and refusing.pop():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(*given, **options)

    monkeypatch.setattr(os, what, refuses)
    for number in range(40):
        journal.append(line(number), lambda n=number: order.append(n))
        refusing.append(number % 3 == 1)
        try:
            journal.flush()
        except StoreError:
            pass  # it waits
    eventually(lambda: order == list(range(40)))
    journal.close()
    refusing.clear()
    assert len(read_back(folder)) == 40


def test_a_descriptor_that_user_code_closed_is_opened_anew_and_its_number_left_alone(folder):
    journal, order = journal_of(folder)
    for number in range(6):
        if number % 2:
            os.close(journal._file.number)
        mine = os.open(folder / "mine", os.O_RDWR | os.O_CREAT)  # gets the number
        journal.append(line(number), lambda n=number: order.append(n))
        journal.flush()
        assert os.fstat(mine).st_size == 0
        os.close(mine)
    journal.close()
    assert order == list(range(6))
    assert len(read_back(folder)) == 6


def test_a_short_write_is_continued_at_its_offset(folder, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda d, data, offset: real(d, data[: max(1, len(data) // 3)], offset))
    journal, _ = journal_of(folder)
    for number in range(20):
        journal.append(line(number))
    journal.flush()
    journal.close()
    assert len(read_back(folder)) == 20


def test_zeros_lie_ahead_of_the_lines_so_that_a_sync_rarely_has_a_new_length_to_make_durable(folder):
    journal, _ = journal_of(folder)
    sizes, path = set(), segments.segment_path(folder, "e", 0)
    for number in range(400):
        journal.append(line(number, size=100))
        journal.flush()
        sizes.add(path.stat().st_size)
        assert segments.journal_end(folder, "e") == journal.synced
        assert path.stat().st_size - journal.synced <= len(segments.AHEAD)
    assert len(sizes) == -(-journal.synced // len(segments.AHEAD))
    journal.close()
    assert len(read_back(folder)) == 400


def test_a_line_longer_than_the_zeros_ahead_is_read_back(folder):
    journal, _ = journal_of(folder)
    for number, size in enumerate((10, 3 * len(segments.AHEAD), 10, len(segments.AHEAD) - 700, 10)):
        journal.append(line(number, size=size))
        journal.flush()
        assert segments.journal_end(folder, "e") == journal.synced
        assert len(read_back(folder, living=True)) == number + 1
    journal.close()


def test_no_room_for_the_zeros_is_no_trouble(folder, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda d, data, offset: real(d, bytes(data).rstrip(b"\0"), offset))
    journal, order = journal_of(folder)
    for number in range(20):
        journal.append(line(number), lambda n=number: order.append(n))
        journal.flush()
    assert order == list(range(20))
    assert segments.segment_path(folder, "e", 0).stat().st_size == journal.synced
    assert journal.trouble is None
    journal.close()
    assert len(read_back(folder)) == 20


def test_a_file_that_is_followed_by_another_ends_with_its_last_line(folder):
    journal, _ = journal_of(folder, segment=4_000)
    for number in range(40):
        journal.append(line(number))
        journal.flush()
    journal.close()
    *followed, _ = found = segments.segments(folder, "e")
    assert len(followed) >= 2
    for segment, following in pairwise(found):
        assert segment.path.stat().st_size == following.first - segment.first
    assert len(read_back(folder)) == 40


@pytest.mark.parametrize("synced_before", [0, 5])
def test_a_failed_fdatasync_is_not_repeated_on_that_file(folder, monkeypatch, synced_before):
    real, failing, asked = os.fdatasync, [], []

    def fdatasync(descriptor):
        asked.append(os.fstat(descriptor).st_ino)
        if failing:
            failing.pop()
            raise OSError(errno.EIO, "Input/output error")
        real(descriptor)

    journal, order = journal_of(folder)
    for number in range(synced_before):
        journal.append(line(number), lambda n=number: order.append(n))
        journal.flush()
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    failing.append(True)
    for number in range(synced_before, synced_before + 5):
        journal.append(line(number), lambda n=number: order.append(n))
    journal.flush()
    assert asked[0] not in asked[1:]
    assert order == list(range(synced_before + 5))
    journal.close()
    assert len(read_back(folder)) == synced_before + 5


def test_a_deleted_journal_stops_the_engine_and_acknowledges_nothing_more(folder):
    journal, order = journal_of(folder)
    journal.append(line(0), lambda: order.append(0))
    journal.flush()
    for segment in segments.segments(folder, "e"):
        segment.path.unlink()
    journal.append(line(1), lambda: order.append(1))
    with pytest.raises(StoreError, match="was deleted while its engine was at work"):
        journal.flush()
    with pytest.raises(StoreError, match="was deleted"):
        journal.append(line(2))
    assert order == [0]
    journal.close()


def test_many_threads_append_at_once_and_nothing_is_lost(folder):
    journal, order = journal_of(folder)

    def work(base):
        for number in range(500):
            journal.append(line(base + number), lambda n=base + number: order.append(n))

    threads = [threading.Thread(target=work, args=(base * 1000,)) for base in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.flush()
    assert sorted(order) == sorted(base * 1000 + n for base in range(4) for n in range(500))
    assert [n for n in order if n < 1000] == list(range(500))
    assert len(read_back(folder)) == 2000
    journal.close()


def test_a_key_that_is_no_text_is_refused_by_name():
    with pytest.raises(UsageError, match=r"'k\\ud800' cannot be stored"):
        lines.of_entry(entry(Kind.DO_FINISHED, 1, step="s", key="k\ud800"))


def test_any_cut_of_the_last_batch_loses_that_batch_alone(folder):
    journal, _ = journal_of(folder)
    for number in range(5):
        journal.append(line(number))
        journal.flush()
    before = journal.synced
    journal.append(line(5))
    journal.flush()
    journal.close()
    [segment] = segments.segments(folder, "e")
    data = segment.path.read_bytes().rstrip(b"\0")
    for cut in range(before, len(data)):
        segment.path.write_bytes(data[:cut])
        assert len(read_back(folder)) == 5, cut
    for cut in range(before, len(data)):
        segment.path.write_bytes(data[:cut] + bytes(len(data) - cut))
        assert len(read_back(folder)) == 5, cut


# -- damage to a dead engine's journal, seen by the next one that opens the store


def only_segment(file: Path, engine: str) -> Path:
    [segment] = segments.segments(file.with_suffix(".nbflow") / "journal", engine)
    return segment.path


def test_a_dead_engines_journal_is_loaded_and_removed_by_the_next(file, opened):
    engine = killed_after(file, HUNDRED)
    store = opened()
    assert names(store.read(1))[2:] == [f"s{i}" for i in range(100)]
    assert not list((store.path.with_suffix(".nbflow") / "journal").glob(f"{engine}*"))
    assert store.warnings == []


@pytest.mark.parametrize("back", ["all of it", "all but its lock", "its lock alone"])
def test_files_of_an_engine_that_ended_in_order_go_where_a_power_cut_brought_them_back(file, opened, back):
    engine = killed_after(file, HUNDRED)
    folder = file.with_suffix(".nbflow") / "journal"
    left = {path: path.read_bytes() for path in folder.glob(f"{engine}*")}
    opened().close()  # loads it: it is closed in the DuckDB file
    assert list(folder.iterdir()) == []
    for path, data in left.items():
        if back == "all of it" or (path.suffix == ".nbj") == (back == "its lock alone"):
            path.write_bytes(data)
    store = opened()
    assert names(store.read(1))[2:] == [f"s{i}" for i in range(100)]
    assert not list(folder.glob(f"{engine}*"))
    assert store.warnings == []


UNSYNCED = f"{HUNDRED}\nstore.append(finished(created, 'last')); store.write()"  # no sync, as of a start


def test_a_torn_last_line_is_the_end(file, opened):
    path = only_segment(file, killed_after(file, UNSYNCED))
    path.write_bytes(path.read_bytes().rstrip(b"\0")[:-10])
    store = opened()
    assert len(store.read(1)) == 2 + 100
    assert store.warnings == []


def test_zeros_at_the_end_are_the_end(file, opened):
    path = only_segment(file, killed_after(file, UNSYNCED))
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data[:-150] + bytes(400))
    store = opened()
    assert len(store.read(1)) == 2 + 100
    assert store.warnings == []


def test_a_flipped_bit_in_what_was_synced_is_an_error_and_nothing_is_touched(file, opened):
    path = only_segment(file, killed_after(file, HUNDRED))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))
    with pytest.raises(StoreCorruptError, match=r"is damaged at byte \d+.*restore the file.*Nothing was changed"):
        opened()
    assert path.read_bytes() == bytes(data)


def test_a_bad_stretch_that_was_never_synced_is_the_end_even_with_good_lines_after_it(file, opened):
    engine = killed_after(
        file,
        """
        created = start_instance(store)
        store.append(finished(created, "safe")); store.flush()
        for i in range(50):
            store.append(finished(created, f"s{i}")); store.write()
        """,
    )
    path = only_segment(file, engine)
    data = path.read_bytes()
    at = data.index(b'"step":"s10"')
    path.write_bytes(data[:at] + bytes(40) + data[at + 40 :])  # the power went, and pages reached the disk in any order
    assert names(opened().read(1))[2:] == ["safe", *(f"s{i}" for i in range(10))]


def test_a_journal_cut_below_what_was_loaded_is_reported(file, opened):
    engine = killed_after(file, HUNDRED + "\nstore.read(created)")
    path = only_segment(file, engine)
    path.write_bytes(path.read_bytes()[:500])
    store = opened()
    assert len(store.read(1)) == 102
    assert [w for w in store.warnings if engine in w and "missing or cut" in w and ".damaged" in w]
    kept = path.with_name(f"{path.name}.damaged")  # nothing of it is thrown away
    assert kept.stat().st_size == 500
    assert not path.exists()


def test_a_missing_middle_file_is_an_error_that_names_it(file, opened):
    engine = killed_after(file, HUNDRED, segment=4_000)
    found = segments.segments(file.with_suffix(".nbflow") / "journal", engine)
    assert len(found) > 3
    found[2].path.unlink()
    with pytest.raises(StoreCorruptError, match=f"misses the bytes from {found[2].first} to {found[3].first}"):
        opened()
    assert found[1].path.exists()
    assert found[3].path.exists()


def test_an_empty_first_file_is_a_death_before_the_first_entry(file, opened):
    engine = killed_after(file, "created = start_instance(store); store._journal._open_segment(0)")
    assert only_segment(file, engine).stat().st_size == 0
    assert len(opened().read(1)) == 2


def test_a_missing_journal_of_the_dead_is_reported_in_the_claim(file, opened):
    engine = killed_after(file, HUNDRED)
    for path in (file.with_suffix(".nbflow") / "journal").glob(f"{engine}*"):
        path.unlink()
    store = opened()
    entries = store.claim([1], owner(store), "cell")[1]
    assert "missing or cut" in entries[-1].body["lost"]
    assert engine in entries[-1].body["lost"]


def test_values_come_back_byte_for_byte(opened):
    store = opened()
    created = start_instance(store)
    values = [
        b"",
        b"j1",
        "jé\u2028\U0001f600\x00end".encode(),
        bytes(range(256)),
        b'"quo\\te\n\t\r',
        b"x" * 300_000,
        b"\xff\xfe",
    ]
    bodies = [
        {"t": 'line\nbreak\ttab "q" \\ \u2028 \x00 é'},
        {"n": 2**70},
        {"f": 1.5e-300, "i": -(2**63)},
        {"nested": {"a": [None, True]}},
    ]
    for number, value in enumerate(values):
        store.append(finished(created, f"v{number}", value))
    for number, body in enumerate(bodies):
        store.append(entry(Kind.DO_FINISHED, created, step=f"b{number}", **body))
    found = {e.step: e for e in store.read(created)}
    assert [found[f"v{number}"].value for number in range(len(values))] == values
    assert [found[f"b{number}"].body for number in range(len(bodies))] == bodies


def test_half_a_surrogate_pair_in_a_body_is_kept_as_its_escape_and_breaks_no_view(opened):
    store = opened()
    created = start_instance(store)
    error = {"type": "ValueError", "message": "bad \ud800 text"}
    store.append(entry(Kind.DO_FAILED, created, step="s", order=1, attempt=1, error=error))
    assert store.read(created)[-1].body["error"]["message"] == r"bad \ud800 text"
    assert store.sql("select error_message from steps").fetchall() == [(r"bad \ud800 text",)]


def test_a_line_longer_than_a_read_is_loaded_too(opened, monkeypatch):
    monkeypatch.setattr(segments, "_CHUNK", 1000)
    store = opened()
    created = start_instance(store)
    store.append(finished(created, "long", b"j" + b"1" * 20_000))
    store.append(finished(created, "next"))
    assert names(store.read(created))[2:] == ["long", "next"]


def test_closing_ends_both_threads_and_leaves_no_journal(opened):
    store = opened()
    created = start_instance(store)
    store.append(finished(created, "s"))
    store.close()
    store.close()
    assert not store._journal.thread.is_alive()
    assert not store._loader.thread.is_alive()
    assert list((store.path.with_suffix(".nbflow") / "journal").iterdir()) == []
    with pytest.raises(StoreError, match="is closed"):
        store.append(finished(created, "t"))
    assert len(opened().read(created)) == 3


def test_an_engine_that_died_while_it_opened_had_nothing_to_lose(file, opened):
    opened().close()
    dies = """
        import os, signal, sys
        from nbflow.store.history_store import FileStore
        from nbflow.store.session import Session
        Session.register = lambda self: os.kill(os.getpid(), signal.SIGKILL)  # its life lock is there, the file knows nothing
        FileStore(sys.argv[1])
    """
    assert run(dies, file, check=False).returncode == -9
    folder = file.with_suffix(".nbflow") / "journal"
    assert list(folder.glob("*.nbj"))
    assert opened().warnings == []
    assert len(list(folder.glob("*.nbj"))) == 1
