"""What differs between operating systems: the same promises on each (the systems that are not here stand in by what they lack)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nbflow import system

ON_MACOS = """
import os, sys
del os.fdatasync
import fcntl
asked = []
fcntl.F_FULLFSYNC = 51
real = fcntl.fcntl
def fcntl_(descriptor, command, *more):
    if command == 51:
        asked.append(descriptor)
        return 0
    return real(descriptor, command, *more)
fcntl.fcntl = fcntl_
here, sys.platform = sys.platform, "darwin"
from nbflow import system
sys.platform = here  # the standard library asks, too
from nbflow.engine.engine import Engine
from nbflow import WorkflowEntrypoint

class Work(WorkflowEntrypoint):
    async def run(self, event, step):
        return await step.do("one", lambda: 1)

engine = Engine(sys.argv[1])
instance = engine.register(Work).create(id="it")
instance.wait(30, until="finished")
print(instance.status().output, bool(asked))
engine.close()
"""


def test_macos_has_no_fdatasync_and_makes_last_what_counts_down_to_the_disk(tmp_path):
    """S53: `os.fsync` alone leaves it in the drive's cache there."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ON_MACOS, str(tmp_path / "h.duckdb")], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.split(), done.stderr) == (["1", "True"], "")


def test_places_are_read_and_written_and_the_offset_stays(tmp_path):
    descriptor = system.open_file(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    os.lseek(descriptor, 7, os.SEEK_SET)
    assert system.write_at(descriptor, b"abc", 2) == 3
    assert system.read_at(descriptor, 10, 1) == b"\0abc"
    assert os.lseek(descriptor, 0, os.SEEK_CUR) == 7
    os.close(descriptor)


def test_a_lock_is_of_the_open_file_and_shared_ones_keep_out_the_other_kind_alone(tmp_path):
    first, second, third = (system.open_file(tmp_path / "a", os.O_RDWR | os.O_CREAT) for _ in range(3))
    assert system.try_lock(first)
    assert not system.try_lock(second)
    assert not system.try_lock(second, shared=True)
    system.unlock(first)
    assert system.try_lock(second, shared=True)
    assert system.try_lock(third, shared=True)
    assert not system.try_lock(first)
    os.close(second)
    os.close(third)
    assert system.try_lock(first)
    os.close(first)


@pytest.mark.parametrize("make", [Path.symlink_to, lambda path, target: os.mkfifo(path)], ids=["a link", "a pipe"])
def test_neither_links_nor_pipes_hold_up_who_opens(tmp_path, make):
    (tmp_path / "target").write_bytes(b"")
    make(tmp_path / "a", tmp_path / "target")
    try:
        descriptor = system.open_file(tmp_path / "a", os.O_RDONLY)
    except OSError:
        return
    os.close(descriptor)  # a pipe: opened without waiting for who writes to it


def test_an_open_file_of_ours_may_be_renamed_and_removed(tmp_path):
    descriptor = system.open_file(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    (tmp_path / "a").rename(tmp_path / "b")
    assert system.write_at(descriptor, b"x", 0) == 1
    (tmp_path / "b").unlink()
    os.close(descriptor)
    assert list(tmp_path.iterdir()) == []


def test_refusals_are_the_classes_that_callers_ask_for(tmp_path):
    with pytest.raises(FileNotFoundError):
        system.open_file(tmp_path / "a", os.O_RDONLY)
    os.close(system.open_file(tmp_path / "a", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    with pytest.raises(FileExistsError):
        system.open_file(tmp_path / "a", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    system.sync_whole(tmp_path / "a")
    system.sync_folder(tmp_path)
