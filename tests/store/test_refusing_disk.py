"""A disk that takes no more: full at any moment, read-only in mid-run, a limit on files. Waits, says so, goes on, loses nothing."""

import errno
import itertools
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner

from nbflow import Engine, WorkflowEntrypoint
from nbflow.cli import main
from nbflow.errors import StoreError, UsageError, WaitTimeoutError
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


@pytest.mark.parametrize("command", [
    ("show", "a"), ("list",), ("send-event", "a", "go", "1"), ("pause", "a"), ("terminate", "a"), ("delete", "a"),
    ("restart", "a"), ("compact",), ("history", "a"), ("wait", "a", "1"), ("schedules",),
])  # fmt: skip
def test_of_a_command_on_a_full_disk_nothing_is_called_done(disk, command):
    """Exit code 5 is for an answer that stdout did not take; here nothing was done (API.md §11)."""
    file = disk.folder / "history.duckdb"
    store = FileStore(file)
    start_instance(store)
    store.close()
    before = file.read_bytes()
    disk.fill()
    said = CliRunner().invoke(main, ["--store", str(file), *command])
    assert said.exit_code == 1, said.output
    assert "no space left on the disk; free some and try again" in said.output
    assert "done" not in said.output
    assert file.read_bytes() == before


def test_a_backup_that_does_not_fit_leaves_nothing_and_names_what_is_full(disk, tmp_path):
    file = tmp_path / "history.duckdb"
    with Engine(file) as engine:
        for name in ("a", "b", "c"):
            engine.register(Keeps).create(name, {}).wait(30, until="finished")
        target = disk.folder / "copy.duckdb"
        with pytest.raises(StoreError, match=r"disk/copy.nbflow.*no space left on the disk; free some and try again"):
            engine.backup(target)
        assert list(disk.folder.iterdir()) == []
        disk.fill(100_000)
        with pytest.raises(StoreError, match=r"disk/copy.*no space left on the disk; free some and try again"):
            engine.backup(target)
        disk.free()
        assert list(disk.folder.iterdir()) == []


@pytest.mark.parametrize(
    "call", ["open", "pwrite", "pread", "fsync", "fdatasync", "replace", "scandir", "mkdir", "stat", "lstat"]
)
def test_whatever_the_system_refuses_while_a_store_opens_is_an_error_of_the_store(tmp_path, monkeypatch, call):
    """Python callers get a StoreError with an advice, wherever it is met; what could be opened is whole."""
    file = tmp_path / "history.duckdb"
    for number, refused in zip(range(12), itertools.cycle([errno.ENOSPC, errno.EIO, errno.EACCES, errno.EMFILE])):
        with monkeypatch.context() as refusing:
            real, left = getattr(os, call), [number]

            def refuse(*args, real=real, left=left, refused=refused, **more):
                if str(args[0]).startswith(str(tmp_path)) or isinstance(args[0], int):
                    left[0] -= 1
                    if left[0] == -1:
                        raise OSError(refused, os.strerror(refused))
                return real(*args, **more)

            refusing.setattr(os, call, refuse)
            try:
                FileStore(file).close()
            except StoreError as error:
                assert ";" in str(error), error  # noqa: PT017 - an advice
    again = FileStore(file)
    assert again.heads() == []
    again.close()


@pytest.mark.parametrize("name", ["n" * 300 + ".duckdb", "n" * 250 + ".duckdb", "/".join(["n" * 200] * 30)])
def test_a_name_that_is_too_long_is_wrong_use_before_anything_is_made(tmp_path, name):
    with pytest.raises(UsageError, match="too long for a file of this system; name the store by a shorter path"):
        Engine(tmp_path / name)
    for command in (["list"], ["doctor"], ["run", "flow.py:Flow"]):
        (tmp_path / "flow.py").write_text(
            "import nbflow\nclass Flow(nbflow.WorkflowEntrypoint):\n    async def run(self, e, s): ...\n"
        )
        place = [part.replace("flow.py", str(tmp_path / "flow.py")) for part in command]
        said = CliRunner().invoke(main, ["--store", str(tmp_path / name), *place])
        assert said.exit_code == 2, said.output
        assert "too long" in said.output
    assert [path.name for path in tmp_path.iterdir()] == ["flow.py"]


def test_a_file_to_run_whose_name_is_too_long_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(main, ["run", "f" * 300 + ".py:Flow"])
    assert said.exit_code == 2, said.output
    assert "there is no file" in said.output


def test_a_working_directory_that_is_gone_is_said(tmp_path):
    gone = tmp_path / "gone"
    code = """
        import os, sys, pathlib, nbflow
        folder = pathlib.Path(sys.argv[1]); folder.mkdir(); os.chdir(folder); folder.rmdir()
        try:
            nbflow.Engine()
        except nbflow.StoreError as error:
            print(error)
        from click.testing import CliRunner
        from nbflow.cli import main
        said = CliRunner().invoke(main, ["list"])
        print(said.exit_code, said.output)
    """
    said = run(code, gone, cwd=tmp_path).stdout
    assert said.count("the working directory was removed; go to one that is there") == 2
    assert "\n1 nbflow:" in said


LARGE = 2 << 20
RETRIES = {"limit": 3, "delay": "100 ms"}


class Keeps(WorkflowEntrypoint):
    """Values that do not fit on the disk now, of each kind."""

    ran: ClassVar[list[str]] = []

    def made(self, what):
        self.ran.append(what)
        return os.urandom(LARGE)

    async def run(self, event, step):
        match event.payload.get("what", "do"):
            case "do":
                return len(await step.do("large", lambda: self.made("do"), retries=RETRIES))
            case "async":

                async def body():
                    return self.made("async")

                return len(await step.do("large", body, retries=RETRIES))
            case "map":
                return sum(map(len, await step.map("large", self.made, ["map"], retries=RETRIES)))
            case "output":
                return await step.do("small", lambda: self.ran.append("output")) or bytes(LARGE)
            case "child":
                return len(await step.child("kept", "Gives"))


class Gives(WorkflowEntrypoint):
    async def run(self, event, step):
        return Keeps.made(Keeps, "child")


@pytest.fixture
def ran(monkeypatch):
    monkeypatch.setattr(Keeps, "ran", [])
    return Keeps.ran


@pytest.fixture
def keeping(disk, ran):
    with Engine(disk.folder / "history.duckdb") as engine:
        engine.register(Gives)
        yield engine.register(Keeps)


def refused(engine: Engine) -> None:
    eventually(lambda: "it waits and is written then" in engine.trouble)


@pytest.mark.parametrize("what", ["do", "async", "map", "output"])
def test_a_result_that_does_not_fit_waits_for_room_and_its_body_does_not_run_again(keeping, disk, ran, caplog, what):
    """S11: a body runs twice only if the kernel dies between its effect and the record."""
    engine = keeping.engine
    disk.fill(1_500_000)
    instance = keeping.create("a", {"what": what})
    refused(engine)
    assert re.fullmatch(
        r"the (value of step '.*'|output) of Keeps/a cannot be written: no space left on the disk; free some.*", engine.trouble
    )
    assert engine.trouble in caplog.text
    assert instance.status().status == "running"
    with pytest.raises(WaitTimeoutError, match=r"is still running after 0.01 seconds: the .* cannot be written: no space left"):
        instance.wait(0.01)
    eventually(lambda: not list(disk.folder.rglob("*.tmp")))
    disk.free()
    done = instance.wait(30, until="finished")
    assert done.status == "complete"
    assert done.output in (LARGE, bytes(LARGE))
    assert ran == [what]
    assert [(step.attempts, step.error) for step in instance.steps if step.type == "do"] in ([], [(1, None)])
    assert engine.trouble == ""
    assert caplog.text.count("it waits and is written then") == 1


def test_the_output_of_a_child_waits_for_room_as_well(keeping, disk, ran):
    disk.fill(3_000_000)  # for one of two
    instance = keeping.create("a", {"what": "child"})
    refused(keeping.engine)
    assert keeping.engine.trouble.startswith("the output of child 'a.kept-1' in step 'kept' of Keeps/a cannot be written: no")
    disk.free()
    assert instance.wait(30, until="finished").output == LARGE
    assert ran == ["child"]


def test_one_whose_value_waits_can_be_paused_and_resumed(keeping, disk, ran):
    disk.fill(1_500_000)
    instance = keeping.create("a")
    refused(keeping.engine)
    instance.pause()
    assert instance.status().status == "waitingForPause"  # the body's end is still to be recorded (S40)
    disk.free()
    eventually(lambda: instance.status().status == "paused")
    assert instance.steps[0].status == "finished"
    instance.resume()
    assert instance.wait(30, until="finished").output == LARGE
    assert ran == ["do"]


@pytest.mark.parametrize("act", ["terminate", "delete", "restart"])
@pytest.mark.parametrize("what", ["do", "output"])
def test_what_waits_for_room_is_dropped_with_its_activation(keeping, disk, ran, act, what):
    """S43: ends of bodies in flight are never recorded."""
    disk.fill(1_500_000)
    instance = keeping.create("a", {"what": what})
    refused(keeping.engine)
    getattr(instance, act)()
    if act == "terminate":
        assert instance.status().status == "terminated"
    if act == "restart":
        eventually(lambda: len(ran) == 2)
    else:
        eventually(lambda: keeping.engine.trouble == "")
    disk.free()
    if act == "restart":
        assert instance.wait(30, until="finished").status == "complete"
        assert len(ran) == 2
    else:
        assert len(ran) == 1


def test_one_whose_value_waits_is_closed_with_its_engine_and_its_body_runs_again_in_the_next(disk, ran):
    file = disk.folder / "history.duckdb"
    engine = Engine(file)
    workflow = engine.register(Keeps)
    disk.fill(1_500_000)
    workflow.create("a")
    refused(engine)
    engine.close(timeout=0.1)
    disk.free()
    with Engine(file) as again:
        done = again.register(Keeps).get("a").wait(30, until="finished")
        assert (done.status, done.output) == ("complete", LARGE)
    assert ran == ["do", "do"]


def test_what_a_worker_cannot_write_travels_and_waits_here(disk, tmp_path):
    """The body has ended in another process, whose disk is as full as ours: it does not run again."""
    count = tmp_path / "count"

    def body():
        with count.open("a") as file:
            file.write("x")
        return bytes(LARGE)

    class Remote(WorkflowEntrypoint):
        async def run(self, event, step):
            return len(await step.do("large", body, on="processes", retries=RETRIES))

    with Engine(disk.folder / "history.duckdb") as engine:
        workflow = engine.register(Remote)
        disk.fill(1_500_000)
        instance = workflow.create("a")
        refused(engine)
        disk.free()
        assert instance.wait(30, until="finished").output == LARGE
        assert list(disk.folder.rglob("*.part")) == []
    assert count.read_text() == "x"


def test_a_payload_or_params_that_do_not_fit_are_refused_at_once(keeping, disk):
    instance = keeping.create("a", {"what": "output"})
    disk.fill(1_500_000)
    for act in (lambda: instance.send_event("go", bytes(LARGE)), lambda: keeping.create("b", {"what": bytes(LARGE)})):
        with pytest.raises(StoreError, match=r"artifacts/Keeps/[ab].*no space left on the disk; free some and try again"):
            act()
    disk.free()


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
