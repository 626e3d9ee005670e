"""A death in the middle of DuckDB's writing a block of its metadata to the same place: nothing is lost by it."""

import os
import shutil
import struct
from itertools import product
from pathlib import Path

import duckdb
import pytest

from nbflow.errors import StoreCorruptError
from nbflow.store import lease, torn
from nbflow.store.doctor import Severity, examine
from nbflow.store.history_store import FileStore
from nbflow.store.layout import Layout
from tests.store.actors import killed_after, names

BLOCK, PAGE, HEADERS = 16384, 4096, 3 * 4096
EVERY = os.environ.get("NBFLOW_DAMAGE") == "every"

pytestmark = pytest.mark.timeout(3600 if EVERY else 300)
# Whether each page is the new one: a kill leaves a beginning, a power cut may leave any.
MIXES = (
    list(product((False, True), repeat=4))
    if EVERY
    else [(True, False, False, False), (True, True, True, False), (False, True, False, True)]
)

# Dies when the metadata has been written and the header that makes it count has not.
DIES_IN_A_CHECKPOINT = """
import shutil
created = start_instance(store)
for turn in range(6):
    for n in range(5):
        store.append(finished(created, f"s{turn}.{n}", os.urandom(20_000).hex().encode()))
    store.flush()
    store.read(created)

def detach(database):
    shutil.copy(sys.argv[1], sys.argv[1] + ".before")
    database.connection.execute("set debug_checkpoint_abort = 'after_free_list_write'")
    real(database)
    print(store.engine_id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

from nbflow.store.database import Database
real, Database.detach = Database.detach, detach
store.append(finished(created, "last"))
store.flush()
store.read(created)
"""


class Left:
    """What such a death left, with the file as it was before the checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._number = folder, 0
        file = folder / "history.duckdb"
        self.engine = killed_after(file, DIES_IN_A_CHECKPOINT)
        before = folder / "history.duckdb.before"
        self.before, self.after = before.read_bytes(), file.read_bytes()
        before.unlink()
        assert self.before[:HEADERS] == self.after[:HEADERS]

    @property
    def rewritten(self) -> list[int]:
        """Where blocks of metadata begin that were there and were written again."""
        places = torn._metadata(Layout.of(self.folder / "history.duckdb"))
        return [at for at in places if self.before[at : at + BLOCK] not in (b"", self.after[at : at + BLOCK])]

    def mixed(self, place: int, new: tuple[bool, ...]) -> bytes:
        """The file where only these pages of that block came to be written."""
        data = bytearray(self.after)
        for number, is_new in enumerate(new):
            at = place + number * PAGE
            data[at : at + PAGE] = (self.after if is_new else self.before)[at : at + PAGE]
        return bytes(data)

    def copy(self, target: Path, data: bytes) -> Path:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.folder, target)
        (target / "history.duckdb").write_bytes(data)
        return target / "history.duckdb"


@pytest.fixture(scope="module")
def left(tmp_path_factory) -> Left:
    return Left(tmp_path_factory.mktemp("left"))


@pytest.fixture(scope="module")
def halves(left) -> list[tuple[int, bytes]]:
    """The file for each mix of old and new pages of each block that was written in place, where its sum is of neither."""
    found = []
    for place in left.rewritten:
        for new in MIXES:
            data = left.mixed(place, new)
            block = data[place : place + BLOCK]
            if torn.sum_of(block[8:]) != struct.unpack_from("<Q", block)[0]:
                found.append((place, data))
    assert len(found) > 1
    return found


def refused(data: bytes, folder: Path) -> bool:
    """Whether DuckDB refuses this file as it opens it."""
    (folder / "x.duckdb").write_bytes(data)
    try:
        duckdb.connect(str(folder / "x.duckdb"), read_only=True).close()
    except duckdb.Error as error:
        return "does not match stored checksum" in str(error)
    return False


ALL = ["created", "claimed", *(f"s{turn}.{n}" for turn in range(6) for n in range(5)), "last"]


def test_whatever_pages_of_a_block_came_to_be_written_all_is_there_and_whole(left, halves, tmp_path):
    met = 0
    for _, data in halves:
        file = left.copy(tmp_path / "copy", data)
        met += refused(data, tmp_path)  # the others it would meet later, or overlook
        store = FileStore(file)
        assert names(store.read(1)) == ALL
        assert store.warnings == []
        store.close()
        assert [f for f in examine(file) if f.severity is not Severity.FINE] == []
    assert met


def test_a_block_left_by_a_commit_that_needs_no_log_is_made_good_too(left, halves, tmp_path):
    data = next(data for _, data in halves if refused(data, tmp_path))
    file = left.copy(tmp_path / "copy", data)
    layout = Layout.of(file)
    layout.wal.write_bytes(b"")
    lease.News(layout).reached(len(ALL) - 1)  # it died inside the commit
    store = FileStore(file)
    assert names(store.read(1)) == ALL
    assert store.warnings == []
    store.close()


def test_the_doctor_says_what_it_is_and_changes_nothing(left, halves, tmp_path):
    data = next(data for _, data in halves if refused(data, tmp_path))
    file = left.copy(tmp_path / "copy", data)
    found = [f for f in examine(file) if f.severity is not Severity.FINE]
    assert [f.severity for f in found] == [Severity.NOTE] * len(found)
    assert f"a death left a block of {file} half written" in [f.what for f in found]
    assert file.read_bytes() == data


def test_a_block_is_refused_as_ever_where_no_checkpoint_was_cut_off(left, halves, tmp_path):
    data = next(data for _, data in halves if refused(data, tmp_path))
    file = left.copy(tmp_path / "copy", data)
    wal = Layout.of(file).wal
    wal.write_bytes(wal.read_bytes()[:-60])
    assert not torn.in_checkpoint(Layout.of(file))
    with pytest.raises(StoreCorruptError, match="checksum"):
        FileStore(file)
    assert file.read_bytes() == data


def test_a_block_that_is_no_metadata_keeps_its_wrong_sum(left, tmp_path, monkeypatch):
    file = left.copy(tmp_path / "copy", left.after)
    layout = Layout.of(file)
    real = torn._metadata
    places = set(real(layout))
    other = next(at for at in range(HEADERS, len(left.after), BLOCK) if at not in places)
    data = bytearray(left.after)
    data[other + 5000] ^= 1
    file.write_bytes(data)
    computed = torn.sum_of(bytes(data[other + 8 : other + BLOCK]))
    stored = struct.unpack_from("<Q", data, other)[0]
    refusals = [f"computed checksum {computed} does not match stored checksum {stored} in block at location {other}"]

    def metadata(where: Layout) -> list[int]:
        if refusals:
            raise duckdb.Error(refusals.pop())
        return real(where)

    monkeypatch.setattr(torn, "_metadata", metadata)
    torn.make_good(layout)
    assert file.read_bytes() == bytes(data)


def test_the_sum_is_duckdbs(tmp_path):
    file = tmp_path / "x.duckdb"
    with duckdb.connect(str(file)) as made:
        made.execute("create table t as select i, i::varchar as s from range(50_000) as x(i)")
    data = file.read_bytes()
    size = struct.unpack_from("<Q", data, PAGE + 40)[0]
    blocks = [data[at : at + size] for at in range(HEADERS, len(data), size)]
    assert [torn.sum_of(block[8:]) for block in blocks] == [struct.unpack_from("<Q", block)[0] for block in blocks]
    assert os.path.getsize(file) == HEADERS + len(blocks) * size
