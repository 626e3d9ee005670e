"""A disk that takes no more: full at any moment, read-only in mid-run, a limit on files. Waits, says so, goes on, loses nothing."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nbflow import Engine, WorkflowEntrypoint
from nbflow.errors import StoreError
from nbflow.store.doctor import Severity, examine
from nbflow.store.history_store import FileStore
from tests.store.actors import draft, eventually, finished, names, owner, run, start_instance

ROOT = Path(__file__).parents[2]


class Disk:
    """A small file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._ballast = folder, folder / "ballast"

    def fill(self, leave: int = 0) -> None:
        """Leave that many bytes of room."""
        descriptor = os.open(self._ballast, os.O_WRONLY | os.O_CREAT)
        try:
            size = 0
            with suppress(OSError):
                while count := os.pwrite(descriptor, bytes(65536), size):
                    size += count
            os.ftruncate(descriptor, max(0, size - leave))
        finally:
            os.close(descriptor)

    def free(self) -> None:
        self._ballast.unlink()

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", self.folder], check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", folder], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def told(file: Path) -> str:
    return "\n".join(f"{f.what}: {f.advice}" for f in examine(file) if f.severity is not Severity.FINE)


def test_steps_wait_for_room_in_the_journal_and_are_all_recorded(disk, caplog):
    file = disk.folder / "history.duckdb"
    with_room = FileStore(file)
    try:
        created = start_instance(with_room)
        acked: list[int] = []
        with_room.append(finished(created, "before"), lambda: acked.append(-1))
        with_room.flush()
        with_room.heads()
        disk.fill()
        for number in range(200):
            with_room.append(finished(created, f"s{number}", os.urandom(100)), lambda n=number: acked.append(n))
        with pytest.raises(StoreError, match="no space left on the disk; free some, the entries wait and are written then"):
            with_room.flush()
        assert "no space left" in with_room.facts()["trouble"]
        assert "no space left" in with_room.trouble
        assert "full disk stops all steps" in told(file)
        disk.free()
        eventually(lambda: acked == [-1, *range(200)])
        assert names(with_room.read(created))[2:] == ["before", *(f"s{n}" for n in range(200))]
        assert with_room.facts()["trouble"] is None
        assert with_room.trouble == ""
    finally:
        with_room.close()
    assert told(file).count("\n") <= 1  # at most that the disk is a small one


def test_at_whatever_byte_the_disk_is_full_what_was_said_to_be_there_is_there(disk):
    """Commits and checkpoints need room at different places: each amount of it fails elsewhere."""
    file = disk.folder / "history.duckdb"
    store = FileStore(file)
    said: list[str] = []
    refused = 0
    try:
        created = start_instance(store)
        for leave in [*range(0, 24_000, 4_000), *range(24_000, 400_000, 94_000)]:
            store.heads()  # what was created is in the file: folding it in must not make room again
            disk.fill(leave)
            name = f"i{leave}"
            try:
                store.create([draft(name)], owner(store))
                said.append(name)
            except StoreError as error:
                assert "no space left on the disk; free some" in str(error)  # noqa: PT017
                refused += 1
            with suppress(StoreError):
                store.append(finished(created, name))
                store.flush()
                said.append(f"step {name}")
            disk.free()
        assert refused
        assert said
        found = {head.instance_id for head in store.heads()}
        found |= {f"step {entry.step}" for entry in store.read(created)}
        assert set(said) <= found
    finally:
        store.close()
    again = FileStore(file)
    try:
        assert again.warnings == []
        assert found == {head.instance_id for head in again.heads()} | {f"step {entry.step}" for entry in again.read(created)}
        assert len(again.read(created)) == len({entry.step or entry.kind for entry in again.read(created)})
    finally:
        again.close()


def test_a_death_on_a_full_disk_loses_nothing_that_was_said_to_be_there(disk):
    file = disk.folder / "history.duckdb"
    code = """
        import os, signal, sys
        from nbflow.store.history_store import FileStore
        from nbflow.errors import StoreError
        from tests.store.actors import draft, finished, owner, start_instance
        from tests.store.test_refusing_disk import Disk
        from pathlib import Path
        store = FileStore(sys.argv[1])
        created = start_instance(store)
        Disk(Path(sys.argv[1]).parent).fill(int(sys.argv[2]))
        for number in range(10_000):
            try:
                store.append(finished(created, f"s{number}", os.urandom(60)))
                store.flush()
                print(f"s{number}", flush=True)
                store.create([draft(f"i{number}")], owner(store))
                print(f"i{number}", flush=True)
            except StoreError:
                os.kill(os.getpid(), signal.SIGKILL)
    """
    for leave in (0, 40_000):
        done = run(code, file, leave, check=False, cwd=ROOT)
        assert done.returncode == -signal.SIGKILL, done.stderr
        disk.free()
        store = FileStore(file)
        try:
            found = {head.instance_id for head in store.heads(limit=None)}
            found |= {entry.step for head in store.heads(limit=None) for entry in store.read(head.created_seq) if entry.step}
            assert set(done.stdout.split()) <= found, leave
            assert [w for w in store.warnings if "missing" in w or "lost" in w] == []
        finally:
            store.close()
        for path in [*file.parent.glob("history.duckdb*"), *file.parent.rglob("journal/*")]:
            path.unlink(missing_ok=True)


class Keeps(WorkflowEntrypoint):
    async def run(self, event, step):
        retries = {"limit": 50, "delay": "100 ms", "backoff": "constant"}
        return len(await step.do("large", lambda: os.urandom(3 << 20), retries=retries))


def test_a_large_result_is_kept_once_there_is_room(disk):
    with Engine(disk.folder / "history.duckdb") as engine:
        workflow = engine.register(Keeps)
        disk.fill(500_000)
        instance = workflow.create("a", {})
        eventually(lambda: instance.steps and instance.steps[0].error is not None)
        assert "No space left" in instance.steps[0].error.message
        assert not list(disk.folder.rglob("*.tmp"))
        disk.free()
        assert instance.wait(30, until="finished").output == 3 << 20


def test_a_store_that_becomes_unchangeable_in_mid_run_is_waited_for_and_steps_go_on(disk):
    file = disk.folder / "history.duckdb"
    places = [file, disk.folder, disk.folder / "history.nbflow", disk.folder / "history.nbflow" / "journal"]
    store = FileStore(file, segment=2_000)
    try:
        created = start_instance(store)
        store.append(finished(created, "before"))
        store.read(created)
        if subprocess.run(["chattr", "+i", *places], check=False, capture_output=True).returncode:
            pytest.skip("files cannot be made unchangeable here")
        acked: list[int] = []
        try:
            for number in range(40):
                store.append(finished(created, f"s{number}"), lambda n=number: acked.append(n))
                store.flush()
            assert acked == list(range(40))  # no new file can be begun: the old one does
            with pytest.raises(StoreError, match=r"Operation not permitted.*give this user write access"):
                store.create([draft("b")], owner(store))
            # Loading is tried once a second.
            eventually(lambda: "Operation not permitted" in (store.facts()["trouble"] or ""))
        finally:
            subprocess.run(["chattr", "-i", *places], check=True)
        assert names(store.read(created))[2:] == ["before", *(f"s{n}" for n in range(40))]
        store.append(finished(created, "after"))
    finally:
        store.close()
    again = FileStore(file)
    assert len(again.read(created)) == 44
    assert again.warnings == []
    again.close()


def test_a_read_only_file_system_is_named_when_a_store_opens_and_the_doctor_reads_it(disk):
    file = disk.folder / "history.duckdb"
    store = FileStore(file)
    start_instance(store)
    store.close()
    disk.remount("ro")
    with pytest.raises(StoreError, match=r"cannot be (written|opened for writing).*Read-only file system"):
        FileStore(file)
    assert "cannot be written by this user" in told(file) or "Read-only" in told(file)
    disk.remount("rw")
    again = FileStore(file)
    assert [head.instance_id for head in again.heads()] == ["a"]
    again.close()


LIMITED = """
import os, resource, sys
from pathlib import Path
from nbflow import Engine, WorkflowEntrypoint
from nbflow.store.history_store import FileStore

class Counts(WorkflowEntrypoint):
    async def run(self, event, step):
        return sum([await step.do(f"s{i}", lambda i=i: i) for i in range(60)])
"""


def limited(code: str, tmp_path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED + textwrap.dedent(code), str(tmp_path / "history.duckdb")],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_a_free_descriptor_steps_go_on_and_the_rest_waits(tmp_path):
    said = limited(
        """
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        engine = Engine(sys.argv[1])
        workflow = engine.register(Counts)
        first = workflow.create("first", {})
        assert first.wait(30, until="finished").output == 1770
        held = []
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        refused = ""
        try:
            workflow.create("second", {})
        except Exception as error:
            refused = f"{type(error).__name__}: {error}"
        for one in held:
            os.close(one)
        third = workflow.create("third", {})
        assert third.wait(30, until="finished").output == 1770
        engine.close()
        print(refused)
        engine = Engine(sys.argv[1])
        print(engine.store.warnings, engine.sql("select instance_id, status from instances order by all").fetchall())
        engine.close()
        """,
        tmp_path,
    )
    assert "StoreError" in said
    assert "Too many open files" in said
    assert "[] [('first', 'complete'), ('third', 'complete')]" in said


def test_steps_that_run_while_descriptors_are_used_up_are_recorded(tmp_path):
    said = limited(
        """
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

        class Hoards(WorkflowEntrypoint):
            async def run(self, event, step):
                held = []

                def hoards():
                    try:
                        while True:
                            held.append(os.open("/dev/null", os.O_RDONLY))
                    except OSError:
                        return len(held)

                await step.do("hoard", hoards)
                total = 0
                for i in range(300):
                    total += await step.do(f"s{i}", lambda i=i: i)
                await step.sleep("some loads", "1500 ms")
                await step.do("let go", lambda: [os.close(one) for one in held])
                return total

        store = FileStore(sys.argv[1], segment=8_000)
        engine = Engine(store=store)
        print(engine.register(Hoards).create("a", {}).wait(60, until="finished").output)
        engine.close()
        engine = Engine(sys.argv[1])
        print(engine.store.warnings, engine.sql("select count(*) from steps where status = 'finished'").fetchall())
        engine.close()
        """,
        tmp_path,
    )
    assert said.split() == ["44850", "[]", "[(303,)]"]


def test_a_limit_on_the_size_of_files_is_a_full_disk(tmp_path):
    said = limited(
        """
        from nbflow.errors import StoreError
        from tests.store.actors import finished, start_instance
        store = FileStore(sys.argv[1])
        created = start_instance(store)
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(sys.argv[1]), resource.RLIM_INFINITY))
        refused, number = "", 0
        while not refused:
            store.append(finished(created, f"s{number}", os.urandom(20_000)))
            number += 1
            try:
                store.flush()
            except StoreError as error:
                refused = str(error)
        print(refused)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store.flush()
        print(len(store.read(created)) - 2 == number)
        store.close()
        """,
        tmp_path,
    )
    assert "no space left on the disk" in said
    assert said.split()[-1] == "True"
