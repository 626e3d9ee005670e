"""`nbflow doctor`: what it says of whole and of broken stores, and that it changes nothing (issue: nothing is ever lost)."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import duckdb
import pytest

import nbflow
from nbflow.errors import StoreCorruptError, UndecodableError
from nbflow.store import segments
from nbflow.store.doctor import Severity, examine
from nbflow.store.layout import Layout
from nbflow.values import staging

MAKES = """
import sys
from pathlib import Path
import numpy as np
from nbflow import Engine, WorkflowEntrypoint

class Keeps(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("array", lambda: np.arange(1000))
        await step.do("nested", lambda: {"x": np.ones(3), "y": [np.zeros(4)]})
        if event.payload["ask"]:
            await step.wait_for_event("ask", "approval")

engine = Engine(sys.argv[1])
inst = engine.register(Keeps).create("k1", {"ask": len(sys.argv) > 2})
inst.wait(30)
print("settled", flush=True)
if len(sys.argv) > 2:
    sys.stdin.read()
engine.close()
"""


def run(file: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAKES, str(file), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def store(tmp_path):
    file = tmp_path / "history.duckdb"
    with run(file) as process:
        process.communicate(timeout=60)
    return file


def wrong(file: Path, **options: float) -> str:
    return "\n".join(finding.what for finding in examine(file, **options) if finding.severity is Severity.WRONG)


def notes(file: Path, **options: float) -> str:
    return "\n".join(finding.what for finding in examine(file, **options) if finding.severity is Severity.NOTE)


def artifacts(file: Path) -> list[Path]:
    return sorted(path for path in file.parent.rglob("artifacts/**/*") if path.is_file())


def test_a_whole_store_has_only_fine_findings_and_is_left_as_it_was(store):
    before = store.read_bytes()
    found = examine(store)
    assert {finding.severity for finding in found} == {Severity.FINE}
    assert any("3 stored files" in finding.what for finding in found)
    assert store.read_bytes() == before


def test_what_views_read_is_compared_with_the_entries_and_made_again_by_compact(store):
    with duckdb.connect(str(store)) as connection:
        connection.execute("update known_instances set status = 'paused'; update entries set whole = false")
    said = wrong(store)
    assert re.search(r"\d+ row\(s\) of known_instances in .* are not what the entries say", said)
    assert re.search(r"\d+ row\(s\) of entries in .* are not what the entries say", said)
    with nbflow.Engine(store) as engine:
        engine.compact()
    assert wrong(store) == ""


def test_every_kind_of_damage_to_a_stored_file_is_named_with_its_step(store):
    first, second, third = artifacts(store)
    first.unlink()
    second.write_bytes(b"other")
    elsewhere = store.parent / "elsewhere"
    third.rename(elsewhere)
    third.symlink_to(elsewhere)
    told = wrong(store)
    assert "missing" in told
    assert "damaged" in told
    assert "symbolic link" in told
    assert "'array'" in told
    assert "'nested'" in told


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"hello", "is not a DuckDB file"), (b"SQLite format 3\0" + b"\0" * 4096, "is not a DuckDB file"), (b"", "is empty")],
)
def test_a_file_of_another_kind_is_said_to_be_one_and_no_engine_takes_it(store, content, says):
    store.write_bytes(content)
    assert says in wrong(store)
    with pytest.raises(StoreCorruptError, match="is not a DuckDB file"):
        nbflow.Engine(store)


@pytest.mark.parametrize("place", ["Keeps/k1", "Keeps"])
def test_stored_files_behind_a_link_are_named_as_an_engine_refuses_them(store, tmp_path, place):
    folder = Layout.of(store).artifacts / place
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert "3: Keeps/k1/" in wrong(store)
    assert "behind a symbolic link" in wrong(store)
    with nbflow.Engine(store) as engine, pytest.raises(UndecodableError, match="link"):
        print(engine.instance("k1").step("array").output)


def die_with_all_loaded(file):
    """An engine is killed when all that it has recorded is in the file."""
    with run(file, "ask") as process:
        assert process.stdout is not None
        process.stdout.readline()
        deadline = time.monotonic() + 30
        while not any("at work; 0 of its" in finding.what for finding in examine(file)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)


def test_after_a_death_a_folder_that_is_gone_is_told_without_accusing_the_file(tmp_path):
    file = tmp_path / "history.duckdb"
    die_with_all_loaded(file)
    shutil.rmtree(Layout.of(file).folder)
    told = wrong(file)
    assert "missing or cut" in told
    assert "stored files missing, 3" in told
    assert "cannot be read" not in told
    assert any("whole" in finding.what for finding in examine(file))


@pytest.mark.parametrize("content", [b"hello", None])
def test_a_file_whose_folder_is_gone_is_looked_into_all_the_same(store, content):
    shutil.rmtree(Layout.of(store).folder)
    if content is not None:
        store.write_bytes(content)
    assert "is not there" in notes(store)
    assert ("is not a DuckDB file" in wrong(store)) == (content is not None)
    assert not Layout.of(store).folder.exists()


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_a_cut_file_is_found_to_be_cut(store, part):
    size = store.stat().st_size
    os.truncate(store, int(size * part))
    assert wrong(store)
    assert store.stat().st_size == int(size * part)


def test_a_missing_file_is_told_from_a_store_that_never_was(store, tmp_path):
    assert "there is no history" in wrong(tmp_path / "other.duckdb")
    left = tmp_path / "left" / "history.duckdb"
    left.parent.mkdir()
    with run(left, "ask") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    left.unlink()
    assert "journal(s) that belong to it are" in wrong(left)


def test_a_killed_engine_is_named_with_what_its_journal_keeps_and_with_its_instances(tmp_path):
    file = tmp_path / "history.duckdb"
    die_with_all_loaded(file)
    told = notes(file)
    assert "Keeps/k1 is unfinished and its kernel is gone" in told
    assert not wrong(file)
    journal = next((tmp_path / "history.nbflow" / "journal").glob("*.seg"))
    journal.unlink()
    assert "may be lost" in wrong(file)


def test_somebody_who_only_looks_in_is_waited_for(store):
    connection = duckdb.connect(str(store), read_only=True)
    leaves = threading.Timer(0.5, connection.close)
    leaves.start()
    try:
        assert {finding.severity for finding in examine(store)} == {Severity.FINE}
    finally:
        leaves.join()


def test_a_holder_of_the_file_is_named_and_waited_for_no_longer_than_asked(store):
    holds = f"import duckdb, sys; c = duckdb.connect({str(store)!r}); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        began = time.monotonic()
        assert f"PID {process.pid}" in notes(store, patience=1.0)
        assert time.monotonic() - began < 10


def test_what_others_may_read_is_noted(store):
    store.chmod(0o644)
    assert "others may look into" in notes(store)


def test_compact_removes_old_files_that_nothing_names_and_no_others(store):
    folder = artifacts(store)[0].parent
    young, old = folder / "00000000000000aa.npy", folder / "00000000000000bb.npy"
    for path in (young, old):
        path.write_bytes(b"left")
    long_ago = time.time() - 7200
    os.utime(old, (long_ago, long_ago))
    for path in artifacts(store):
        if path != young:
            os.utime(path, (long_ago, long_ago))
    assert "1 file(s) of 4 bytes belong to nothing" in notes(store)
    with nbflow.Engine(store) as engine:
        engine.compact()
    assert young.exists()
    assert not old.exists()
    assert not wrong(store)
    assert len(artifacts(store)) == 4


def test_compact_removes_what_deaths_left_half_made_long_ago_and_nobody_takes_it_for_an_engine(store):
    folder = Layout.of(store).folder
    dead = [folder / "journal" / f".{'e' * 32}.nbj", folder / f"{store.name}.holder.json.{'e' * 32}"]
    young = folder / "journal" / f".{'f' * 32}.nbj"
    for path in (*dead, young):
        path.touch()
    long_ago = time.time() - 7200
    for path in dead:
        os.utime(path, (long_ago, long_ago))
    assert segments.engines(folder / "journal") == set()
    assert notes(store) == ""
    with nbflow.Engine(store) as engine:
        assert engine.store.warnings == []
        engine.compact()
    assert [path.exists() for path in (*dead, young)] == [False, False, True]


def test_the_mark_by_which_workers_know_the_store_is_no_leftover(store):
    folder = artifacts(store)[0].parents[2]
    staging.mark(folder)
    long_ago = time.time() - 7200
    for path in artifacts(store):
        os.utime(path, (long_ago, long_ago))
    assert notes(store) == ""
    with nbflow.Engine(store) as engine:
        engine.compact()
    assert (folder / staging.MARK).exists()
