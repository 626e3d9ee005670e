"""A store whose files were cut, flipped, deleted or swapped: everything is there again, or the loss is named; nothing goes."""

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from nbflow.errors import StoreCorruptError, StoreError, StoreVersionError
from nbflow.store import lease, lines, segments
from nbflow.store.database import Database
from nbflow.store.doctor import Severity, examine
from nbflow.store.history_store import FileStore
from tests.store.actors import eventually, finished, killed_after, names, owner, run, start_instance

EVERY = os.environ.get("NBFLOW_DAMAGE") == "every"  # in the soak: each byte; here a sample of those that need a whole opening
STRIDE = 499  # but of the file itself: each round of the soak looks at other bytes, this far apart

pytestmark = pytest.mark.timeout(4 * 3600 if EVERY else 300)

# Six steps in the file, six more acknowledged and only in the journal.
TWELVE = """
created = start_instance(store)
for i in range(6):
    store.append(finished(created, f"s{i}")); store.flush()
store.read(created)
for i in range(6, 12):
    store.append(finished(created, f"s{i}")); store.flush()
"""
# The same, and an instance whose creation was acknowledged although the disk was too full to fold DuckDB's log in.
WITH_LOG = f"""
{TWELVE}
import duckdb
import nbflow.store.database as database
store._desk.database.rows("set checkpoint_on_detach = 'DISABLED'")
store.create([draft("b")], owner(store))
"""


def sample(size: int, count: int) -> list[int]:
    """Places in a file: each one in the soak."""
    return list(range(size)) if EVERY else sorted(random.Random(size).sample(range(size), min(size, count)))


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def told(file: Path) -> str:
    """What the doctor calls wrong, with its advice."""
    return "\n".join(f"{f.what}: {f.advice}" for f in examine(file) if f.severity is Severity.WRONG)


class Copies:
    """Fresh copies of a store that was left by a death."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.source, self._folder, self._number = source, folder, 0

    def __call__(self) -> Path:
        """The DuckDB file of a new copy; the one before it goes."""
        shutil.rmtree(self._folder / f"copy{self._number}", ignore_errors=True)
        self._number += 1
        target = self._folder / f"copy{self._number}"
        shutil.copytree(self.source, target)
        return target / "history.duckdb"


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """Gives the folder that a death after doing something left, made once, and the engine that died."""
    made: dict[str, tuple[Path, str]] = {}

    def leave(doing: str) -> tuple[Path, str]:
        if doing not in made:
            folder = tmp_path_factory.mktemp("left")
            made[doing] = folder, killed_after(folder / "history.duckdb", doing)
        return made[doing]

    return leave


@pytest.fixture
def copies(left, tmp_path) -> Callable[[str], Copies]:
    return lambda doing: Copies(left(doing)[0], tmp_path)


def segment_of(file: Path) -> Path:
    [path] = (file.parent / "history.nbflow" / "journal").glob("*.seg")
    return path


def lock_of(file: Path) -> Path:
    [path] = (file.parent / "history.nbflow" / "journal").glob("*.nbj")
    return path


def opened_with(file: Path) -> tuple[dict[str, list[str]], list[str]]:
    """The steps of each instance as a new engine finds them, and what it warns of."""
    store = FileStore(file)
    try:
        found = {head.instance_id: names(store.read(head.created_seq)) for head in store.heads()}
        return found, list(store.warnings)
    finally:
        store.close()


ALL = ["created", "claimed", *(f"s{i}" for i in range(12))]


# -- journals


@pytest.fixture
def journal(left) -> tuple[Path, str, str, int, bytes]:
    """A dead engine's journal: folder, engine, store, what it promised, and its bytes."""
    folder, engine = left(TWELVE)
    journals = folder / "history.nbflow" / "journal"
    [segment] = segments.segments(journals, engine)
    store = segments.store_of(journals, engine)
    assert store is not None
    return journals, engine, store, lease.promised(journals, engine), segment.path.read_bytes().rstrip(b"\0")


def test_the_lock_of_a_life_says_how_much_of_the_journal_was_promised(journal):
    folder, engine, _, promised, data = journal
    assert promised == len(data) == segments.journal_end(folder, engine)


def test_a_journal_cut_at_any_byte_gives_what_is_left_and_the_loss_is_known(journal, tmp_path):
    _, engine, store, promised, data = journal
    path = segments.segment_path(tmp_path, engine, 0)
    path.write_bytes(data)
    ends = [0, *(match.end() for match in re.finditer(b"\n", data))]
    for cut in reversed(range(len(data))):
        os.truncate(path, cut)
        stretch = segments.readable(tmp_path, engine, 0, 10_000, store=store, living=False, promised=promised)
        assert data.startswith(stretch.data)
        assert stretch.end == max(end for end in ends if end <= cut), cut
        assert segments.journal_end(tmp_path, engine) < promised, cut  # which is how it is noticed


def test_a_journal_with_any_byte_changed_is_refused_or_whole(journal, tmp_path):
    _, engine, store, promised, data = journal
    path = segments.segment_path(tmp_path, engine, 0)
    path.write_bytes(data)
    refused = 0
    with path.open("r+b", buffering=0) as file:
        for at in range(len(data)):
            os.pwrite(file.fileno(), flipped(data, at)[at : at + 1], at)
            try:
                stretch = segments.readable(tmp_path, engine, 0, 10_000, store=store, living=False, promised=promised)
            except StoreCorruptError as error:
                refused += 1
                assert "Nothing was changed" in str(error)  # noqa: PT017 - either way is right, silence is not
            else:
                line = data.rindex(b"\n", 0, at) + 1 if b"\n" in data[:at] else 0
                assert at - line < lines.FRAME, at  # a digit of a checksum, as a capital letter
                assert stretch.end == promised
            os.pwrite(file.fileno(), data[at : at + 1], at)
    assert refused > 0.98 * len(data)


@pytest.mark.parametrize("bad", [b"", b"\0" * 4000, b"no journal\n", b"{}\n" * 50])
def test_a_journal_replaced_by_something_else_is_refused_or_reported(copies, bad):
    file = copies(TWELVE)()
    segment = segment_of(file)
    segment.write_bytes(bad.ljust(segment.stat().st_size, b"\0") if bad else bad)
    assert "journal" in told(file) or "damaged" in told(file)
    before = listing(file.parent / "history.nbflow" / "journal")
    try:
        found, warnings = opened_with(file)
    except StoreCorruptError as error:
        assert segment.name in str(error)  # noqa: PT017
        assert listing(segment.parent) == before
    else:
        assert found == {"a": ALL[:8]}
        assert "missing or cut" in warnings[0]


@pytest.mark.parametrize("what", ["cut", "deleted", "deleted with its lock"])
def test_a_journal_that_lost_what_was_promised_is_reported_and_what_is_left_of_it_kept(copies, what):
    file = copies(TWELVE)()
    segment = segment_of(file)
    data = segment.read_bytes()
    cut = data.rindex(b'{"f":', 0, data.index(b'"step":"s9"'))
    if what == "cut":
        segment.write_bytes(data[:cut])
    else:
        segment.unlink()
        if "lock" in what:
            lock_of(file).unlink()
    assert "missing or cut" in told(file)
    assert "steps without a record run once more" in told(file)
    store = FileStore(file)
    try:
        claimed = store.claim([1], owner(store), "cell", force=True)[1]  # of a copied folder
        assert names(claimed)[:-1] == (ALL[:11] if what == "cut" else ALL[:8])
        assert "missing or cut" in claimed[-1].body.get("lost", "") or "missing or cut" in store.warnings[0]
    finally:
        store.close()
    if what == "cut":
        assert segment.with_name(f"{segment.name}.damaged").read_bytes() == data[:cut]


NOISE = random.Random(7).randbytes(100_000)
LOCKS = {"zeros": bytes(16), "noise": NOISE[:16], "cut": b"00000000", "empty": b"", "no number": b"no number at all\n"}
JOURNALS: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda data: bytes(len(data)),
    "many zeros": lambda _data: bytes(200_000),
    "noise": lambda data: NOISE[: len(data)],
    "much noise": lambda _data: NOISE,
    "noise behind zeros": lambda data: bytes(len(data) // 2) + NOISE[: len(data) // 2],
    "noise at its end": lambda data: data[: data.index(b'"step":"s9"')] + NOISE[:500],
    "zeros, then its end": lambda data: bytes(400) + data[400:],
    "empty": lambda _data: b"",
}


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("how", JOURNALS)
def test_a_journal_harmed_together_with_the_lock_that_promised_it_is_refused_or_reported_and_kept(copies, how, lock):
    file = copies(TWELVE)()
    segment = segment_of(file)
    bad = JOURNALS[how](segment.read_bytes())
    segment.write_bytes(bad)
    lock_of(file).write_bytes(LOCKS[lock])
    assert re.search("missing or cut|damaged at byte", told(file))
    before = listing(segment.parent)
    try:
        found, warnings = opened_with(file)
    except StoreCorruptError as error:
        assert "damaged at byte" in str(error)  # noqa: PT017
        assert listing(segment.parent) == before
    else:
        assert found["a"][:8] == ALL[:8]
        assert "missing or cut" in warnings[0]
        assert segment.with_name(f"{segment.name}.damaged").read_bytes() == bad


@pytest.mark.parametrize("lock", ["zeros", "noise", "no number"])
def test_a_harmed_lock_without_a_journal_is_reported(copies, lock):
    file = copies(TWELVE)()
    segment_of(file).unlink()
    lock_of(file).write_bytes(LOCKS[lock])
    assert "missing or cut" in told(file)
    assert "missing or cut" in opened_with(file)[1][0]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_harmed_lock_beside_a_whole_journal_costs_nothing(copies, lock):
    file = copies(TWELVE)()
    lock_of(file).write_bytes(LOCKS[lock])
    assert told(file) == ""
    assert opened_with(file) == ({"a": ALL}, [])


@pytest.mark.parametrize("left", [None, b"", bytes(65_600)])
def test_what_a_death_before_the_first_sync_leaves_is_no_loss(opened, tmp_path, left):
    journals = tmp_path / "history.nbflow" / "journal"
    opened().close()
    lease.LifeLock(journals, "e" * 32).forget()
    if left is not None:
        segments.segment_path(journals, "e" * 32, 0).write_bytes(left)
    assert told(tmp_path / "history.duckdb") == ""
    assert opened().warnings == []


def test_what_stands_where_an_engine_promised_nothing_is_kept_if_it_is_no_journal(opened, tmp_path):
    journals = tmp_path / "history.nbflow" / "journal"
    opened().close()
    lease.LifeLock(journals, "e" * 32).forget()
    strange = segments.segment_path(journals, "e" * 32, 0)
    strange.write_bytes(NOISE)
    assert "missing or cut" in told(tmp_path / "history.duckdb")
    assert "missing or cut" in opened().warnings[0]
    assert strange.with_name(f"{strange.name}.damaged").read_bytes() == NOISE


def test_a_journal_swapped_with_an_older_copy_of_itself_is_reported(tmp_path):
    file = tmp_path / "history.duckdb"
    killed_after(file, f"{TWELVE}\nimport shutil\n[s] = {{p for p in (store.path.parent / 'history.nbflow' / 'journal').glob('*.seg')}}\n"
                 f"shutil.copy(s, store.path.parent / 'older')\nstore.append(finished(created, 'last')); store.flush()")  # fmt: skip
    segment_of(file).write_bytes((tmp_path / "older").read_bytes())
    assert "missing or cut" in told(file)
    found, warnings = opened_with(file)
    assert found == {"a": ALL}
    assert "missing or cut" in warnings[0]


@pytest.mark.parametrize("whose", ["another store's", "another engine's", "a later file of its own"])
def test_a_journal_swapped_with_another_is_refused_and_named(copies, tmp_path, whose):
    file = copies(TWELVE)()
    segment = segment_of(file)
    right = segment.read_bytes()
    other = tmp_path / "other" / "history.duckdb"
    other.parent.mkdir()
    if whose == "another store's":
        killed_after(other, TWELVE)
        segment.write_bytes(segment_of(other).read_bytes())
    elif whose == "another engine's":
        file = tmp_path / "two" / "history.duckdb"
        file.parent.mkdir()
        killed_after(file, TWELVE + "other = FileStore(store.path); b = start_instance(other, 'b')\n"
                     "for i in range(12): other.append(finished(b, f's{i}'))\nother.flush()")  # fmt: skip
        both = sorted(file.parent.rglob("*.seg"))
        contents = [path.read_bytes() for path in reversed(both)]
        for path, data in zip(both, contents, strict=True):
            path.write_bytes(data)
    else:
        engine = segment.name.partition(".")[0]
        header = lines.header(segments.store_of(segment.parent, engine) or "", 0, engine, 70_000)
        segment.write_bytes(header + right)
    before, wrong = listing(file.parent), told(file)
    assert "is not the file that was written there" in wrong
    with pytest.raises(
        StoreCorruptError, match=r"is not the file that was written there.*put the right file back.*Nothing was"
    ):
        FileStore(file)
    assert {name for name in before if "journal" in name and listing(file.parent)[name] != before[name]} == set()
    assert told(file) == wrong  # the engine that was refused leaves no trace


def test_a_journal_of_a_newer_nbflow_is_refused_and_left(copies, monkeypatch):
    file = copies(TWELVE)()
    segment = segment_of(file)
    monkeypatch.setattr(lines, "FORMAT", lines.FORMAT + 1)
    engine = segment.name.partition(".")[0]
    newer = lines.header(segments.store_of(segment.parent, engine) or "", 0, engine, 0) + segment.read_bytes()
    segment.write_bytes(newer)
    monkeypatch.undo()
    assert "newer nbflow" in told(file)
    assert "upgrade nbflow" in told(file)
    with pytest.raises(StoreVersionError, match=r"was written by a newer nbflow.*upgrade nbflow and restart"):
        FileStore(file)
    assert segment.read_bytes() == newer


# -- DuckDB's log


def log_of(file: Path) -> Path:
    return file.with_name("history.duckdb.wal")


def test_a_whole_log_is_replayed(copies):
    file = copies(WITH_LOG)()
    assert log_of(file).exists()
    assert opened_with(file) == ({"b": ["created", "claimed"], "a": ALL}, [])


@pytest.mark.parametrize("harm", ["cut", "flip", "delete"])
def test_a_log_that_is_harmed_anywhere_gives_all_or_says_what_is_missing(copies, harm):
    copy = copies(WITH_LOG)
    size = log_of(copy()).stat().st_size
    for at in [0] if harm == "delete" else sample(size, 7):
        file = copy()
        log = log_of(file)
        data = log.read_bytes()
        if harm == "delete":
            log.unlink()
        else:
            log.write_bytes(data[:at] if harm == "cut" else flipped(data, at))
        found, warnings = opened_with(file)
        assert found["a"] == ALL, at  # what was journalled always comes back
        if "b" in found:
            assert not [w for w in warnings if "missing" in w], at
        else:
            assert any("ended at entry" in w and "creations and commands" in w for w in warnings), at
            if "refused its log" in "\n".join(warnings):
                assert log.with_name(f"{log.name}.damaged").read_bytes() == flipped(data, at)


@pytest.mark.parametrize("whose", ["another store's", "an older one of its own"])
def test_a_log_that_belongs_elsewhere_is_set_aside(copies, left, tmp_path, whose):
    file = copies(WITH_LOG)()
    if whose == "another store's":
        other = tmp_path / "other.duckdb"
        killed_after(other, WITH_LOG)
        wrong = other.with_name("other.duckdb.wal").read_bytes()
    else:
        wrong = log_of(file).read_bytes()
        assert "b" in opened_with(file)[0]  # which folds it in
    log_of(file).write_bytes(wrong)
    found, warnings = opened_with(file)
    assert found["a"] == ALL
    assert "refused its log" in warnings[0]
    assert ("b" in found) == (whose != "another store's")
    assert any("ended at entry" in w for w in warnings) == ("b" not in found)
    assert log_of(file).with_name("history.duckdb.wal.damaged").read_bytes() == wrong


def test_after_a_loss_no_number_is_given_twice(copies):
    file = copies(WITH_LOG)()
    log_of(file).unlink()
    lost = 9  # the creation of b
    store = FileStore(file)
    try:
        assert any("ended at entry 8 although 10 were recorded" in w for w in store.warnings)
        created = start_instance(store, "c")
        assert created > lost
        assert names(store.read(created)) == ["created", "claimed"]
    finally:
        store.close()
    assert told(file) == ""
    assert opened_with(file)[1] == []


# -- the file itself


@pytest.mark.parametrize("harm", ["cut", "flip"])
def test_a_file_harmed_anywhere_is_refused_or_whole_and_left_as_it_is(copies, harm):
    copy = copies(TWELVE)
    data = copy().read_bytes()
    first = int(os.environ.get("NBFLOW_SEED", "0")) % STRIDE
    for at in range(first, len(data), STRIDE) if EVERY else sample(len(data), 8):
        file = copy()
        harmed = data[:at] if harm == "cut" else flipped(data, at)
        file.write_bytes(harmed)
        doctor = told(file) + "\n".join(f.what for f in examine(file) if "is empty" in f.what)
        assert file.read_bytes() == harmed
        try:
            found, _ = opened_with(file)
        except StoreError as error:
            assert "Nothing was changed" in str(error), at  # noqa: PT017
            assert doctor, at
            assert segment_of(file).exists()
        else:
            assert harm == "flip", at
            assert found == {"a": ALL}, at


def test_a_file_replaced_by_an_older_copy_gets_back_what_the_journal_has_and_names_the_rest(tmp_path):
    file = tmp_path / "history.duckdb"
    engine = killed_after(
        file,
        f"""
        {TWELVE.replace(chr(10), chr(10) + "        ")}
        import shutil
        store._loader.call(lambda: shutil.copy(store.path, store.path.parent / "older"))
        store.create([draft("b")], owner(store))
        store.append(finished(created, "last")); store.flush(); store.read(created)
        """,
    )
    newer = file.read_bytes()
    file.write_bytes((tmp_path / "older").read_bytes())
    assert "older copy" in told(file)
    assert "put the newer file back" in told(file)
    found, warnings = opened_with(file)
    assert found == {"a": [*ALL, "last"]}
    assert any("it is an older copy" in w and "7 entries came back" in w for w in warnings)
    kept = segments.segment_path(file.parent / "history.nbflow" / "journal", engine, 0)
    assert kept.with_name(f"{kept.name}.damaged").exists()
    file.write_bytes(newer)
    assert opened_with(file)[0] == {"b": ["created", "claimed"], "a": [*ALL, "last"]}


def test_a_file_replaced_by_an_older_copy_under_an_engine_stops_loads_and_not_steps(opened, file):
    store = opened()
    created = start_instance(store)
    store.append(finished(created, "s0"))
    store.read(created)
    older = file.with_name("older")
    store._loader.call(lambda: shutil.copy(file, older))
    store.append(finished(created, "s1"))
    store.read(created)
    newer = file.with_name("newer")
    store._loader.call(lambda: shutil.copy(file, newer))
    store._loader.call(lambda: file.write_bytes(older.read_bytes()))
    acked: list[int] = []
    store.append(finished(created, "s2"), lambda: acked.append(1))
    store.flush()
    assert acked == [1]
    with pytest.raises(StoreCorruptError, match=r"ends at entry 3 although 4 were recorded.*put the newer file back"):
        store.read(created)
    with pytest.raises(StoreCorruptError, match="while engines were at work"):
        FileStore(file)
    store._loader.call(lambda: file.write_bytes(newer.read_bytes()))
    assert names(store.read(created))[2:] == ["s0", "s1", "s2"]


def test_bytes_of_a_living_journal_that_went_before_they_were_loaded_are_missed(opened, monkeypatch):
    monkeypatch.setattr(
        segments, "known_good", lambda folder, engine, start, end, rows: segments.Stretch(b"", start, start, last=True)
    )
    store = opened()
    created = start_instance(store)
    store.append(finished(created, "s"))
    with pytest.raises(StoreCorruptError, match="misses the bytes from 0 to"):
        store.read(created)


def test_an_engine_that_died_before_it_was_known_is_no_loss(opened, tmp_path):
    journals = tmp_path / "history.nbflow" / "journal"
    opened().close()
    lease.LifeLock(journals, "e" * 32).forget()
    assert opened().warnings == []


def test_promises_and_marks_of_an_older_nbflow_are_none(opened, file):
    store = opened()
    start_instance(store)
    store.close()
    news = file.parent / "history.nbflow" / "history.duckdb.news"
    news.write_bytes(news.read_bytes()[:8])
    life = file.parent / "history.nbflow" / "journal" / f"{'e' * 32}.nbj"
    life.touch()
    again = opened()
    assert again.warnings == []
    assert lease.promised(life.parent, "e" * 32) is None
    again.close()
    assert told(file) == ""


def test_the_end_of_a_process_in_order_leaves_nothing_to_warn_of(file):
    done = run(
        """
        import sys
        from nbflow.store.history_store import FileStore
        from tests.store.actors import finished, start_instance
        store = FileStore(sys.argv[1])
        created = start_instance(store)
        store.append(finished(created, "s"))
        """,
        file,
        cwd=Path(__file__).parents[2],
    )
    assert done.stderr == ""
    assert opened_with(file) == ({"a": ["created", "claimed", "s"]}, [])
    eventually(lambda: not list((file.parent / "history.nbflow" / "journal").iterdir()))


def test_a_file_of_a_newer_duckdb_is_said_to_be_one_and_left(copies, monkeypatch):
    file = copies(TWELVE)()
    before = file.read_bytes()

    def attach(database, path, options):  # as DuckDB 1.5 says it of a file of 2.0; what is in the file has a checksum
        text = (
            f'IO Error: Trying to read a database file "{path}" with version number 999, but we can only read versions '
            "between 64 and 68"
        )
        raise database.translated(duckdb.IOException(text))

    monkeypatch.setattr(Database, "_attach", attach)
    assert "newer DuckDB" in told(file)
    assert "upgrade duckdb" in told(file)
    with pytest.raises(StoreVersionError, match=r"was written by a newer DuckDB than .*upgrade duckdb"):
        FileStore(file)
    assert file.read_bytes() == before
    assert segment_of(file).exists()


def test_unknown_fields_of_a_newer_nbflow_are_kept_and_do_no_harm(opened):
    store = opened()
    created = start_instance(store)
    store.append(finished(created, "s", dreamt={"of": [1, 2]}))
    [entry] = [e for e in store.read(created) if e.step == "s"]
    assert entry.body["dreamt"] == {"of": [1, 2]}
    assert store.sql("select name, status from steps").fetchall() == [("s", "finished")]


@pytest.mark.parametrize("swap", ["with another", "cut", "missing"])
def test_a_stored_file_that_is_not_what_was_stored_is_named_with_its_step(tmp_path, swap):
    done = run(
        """
        import sys, numpy as np
        from nbflow import Engine, WorkflowEntrypoint
        class Two(WorkflowEntrypoint):
            async def run(self, event, step):
                await step.do("first", lambda: np.zeros(100))
                await step.do("second", lambda: np.ones(100))
        with Engine(sys.argv[1]) as engine:
            engine.register(Two).create("a").wait(30, until="finished")
        """,
        tmp_path / "history.duckdb",
        cwd=Path(__file__).parents[2],
    )
    assert done.stderr == ""
    one, two = sorted(tmp_path.rglob("*.npy"))
    if swap == "with another":
        first, second = one.read_bytes(), two.read_bytes()
        one.write_bytes(second)
        two.write_bytes(first)
    elif swap == "cut":
        os.truncate(one, 60)
        os.truncate(two, 60)
    else:
        one.unlink()
        two.unlink()
    wrong = told(tmp_path / "history.duckdb")
    assert ("missing" if swap == "missing" else "damaged") in wrong
    assert "'first'" in wrong
    assert "'second'" in wrong
    assert "restart the instance from that step" in wrong
