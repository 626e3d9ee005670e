"""Several processes at one file: kernels, shells, a database tool; one is stopped, killed, robbed of its lock, or forks."""

import contextlib
import fcntl
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nbflow import Engine
from nbflow.core.model import Kind
from tests.crash.hosts import LightKernel, RealKernel
from tests.jupyter.kernels import ROOT

SECONDS = float(os.environ.get("NBFLOW_NEIGHBOURS", "18"))
SOAK = SECONDS >= 300
"""Whether times are judged: on a machine that is busy with other tests they say nothing."""

pytestmark = [pytest.mark.kernel, pytest.mark.crash, pytest.mark.timeout(300 + 3 * SECONDS)]

BOOT = """
%load_ext nbflow
import asyncio, os, threading, time
import nbflow
from nbflow import WorkflowEntrypoint
from tests.crash.work import note
nbflow.current_engine()
"""

STEPS = """%%workflow {id} --as inst
class Steps(WorkflowEntrypoint):
    async def run(self, event, step):
        note("run", event.instance_id, os.getpid())
        for n in range(200):
            await step.do(f"s{{n}}", one, n, retries=0)
            note("got", event.instance_id, n)
        return os.getpid()
"""

ONE = """
def one(n, ctx):
    note("begin", ctx.instance_id, n, os.getpid())
    time.sleep({seconds})
    {more}
    return n
note("ready", os.getpid())
"""


def shell(folder: Path, *words: str, code: int | None = 0) -> Any:
    """The command line, with JSON answers."""
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("NBFLOW")}, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "nbflow", "--json", *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert code is None or done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout) if done.stdout else done.returncode


class Lab:
    """Light kernels in one folder, and what they noted."""

    def __init__(self, zygote, folder: Path) -> None:
        self.folder, self._zygote = folder, zygote
        self.hosts: list[LightKernel] = []

    def kernel(self, name: str, *cells: str) -> LightKernel:
        host = LightKernel(self._zygote, self.folder, name)
        self.hosts.append(host)
        host.start()
        host.run([BOOT, *cells])
        return host

    def lines(self, *what: Any) -> list[list[Any]]:
        """Notes that begin so."""
        path = self.folder / "side.txt"
        data = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        noted = [json.loads(line) for line in data if line.endswith(b"\n")]
        assert not [line for line in noted if line[0] == "cell failed"], [host.log() for host in self.hosts]
        return [line for line in noted if line[: len(what)] == list(what)]

    def until(self, *what: Any, times: int = 1, seconds: float = 60) -> float:
        """Wait for such a note; gives the seconds that took."""
        began = time.monotonic()
        while len(self.lines(*what)) < times:
            assert time.monotonic() < began + seconds, f"{what} was not noted {times} times: {[h.log() for h in self.hosts]}"
            time.sleep(0.005)
        return time.monotonic() - began

    def entries(self, instance: str) -> list[Any]:
        with Engine(self.folder / ".nbflow" / "history.duckdb", notebook="look") as engine:
            return engine.get(instance).history()

    def ends(self, instance: str) -> list[str]:
        """Steps that have ended, in the order of their ends."""
        return [entry.step for entry in self.entries(instance) if entry.kind is Kind.DO_FINISHED]

    def stop(self) -> None:
        for host in self.hosts:
            if host.pid:
                os.kill(host.pid, signal.SIGCONT)
            host.stop()


@pytest.fixture
def lab(zygote, tmp_path) -> Iterator[Lab]:
    made = Lab(zygote, tmp_path)
    yield made
    made.stop()


def test_a_death_is_taken_over_at_once_and_only_what_was_not_recorded_runs_again(lab):
    a = lab.kernel("a", ONE.format(seconds=0.02, more=""), STEPS.format(id="t1"))
    b = lab.kernel("b", ONE.format(seconds=0.02, more=""))
    lab.until("got", "t1", 20)
    lab.until("ready", b.pid)
    a.kill()
    died = time.monotonic()
    b.run([STEPS.format(id="t1")])
    lab.until("begin", "t1", lab.lines("got", "t1")[-1][2] + 1)
    lab.until("run", "t1", b.pid)
    took = time.monotonic() - died
    print(f"taken over {took:.2f} s after the death")
    assert took < (2 if SOAK else 10)
    seen = len(lab.lines("got", "t1"))
    lab.until("got", "t1", times=seen + 5)
    begun = Counter(line[2] for line in lab.lines("begin", "t1"))
    assert sum(count - 1 for count in begun.values()) <= 1  # the one in flight


def test_a_stopped_kernel_is_not_dead_hinders_nobody_and_does_what_it_was_told_when_it_goes_on(lab):  # S52
    a = lab.kernel("a", ONE.format(seconds=0.05, more=""), STEPS.format(id="t1"))
    lab.until("got", "t1", 3)
    os.kill(a.pid, signal.SIGSTOP)
    try:
        [row] = shell(lab.folder, "list")  # waits where it was stopped inside its lease, which lasts some milliseconds
    except AssertionError as error:
        assert "stopped (Ctrl-Z?)" in str(error)  # noqa: PT017 - it holds the file: who waits is told so
        os.kill(a.pid, signal.SIGCONT)
        return
    assert row["id"] == "t1"
    b = lab.kernel("b", ONE.format(seconds=0.05, more=""), STEPS.format(id="t1"), STEPS.format(id="t2"))
    lab.until("got", "t2", 3)
    assert lab.lines("run", "t1", b.pid) == []
    shell(lab.folder, "pause", "t1")
    before = len(lab.lines("begin", "t1"))
    os.kill(a.pid, signal.SIGCONT)
    end = time.monotonic() + 30
    while shell(lab.folder, "show", "t1")["status"] != "paused":
        assert time.monotonic() < end
    assert len(lab.lines("begin", "t1")) <= before + 20


def stopped_outside_its_lease(kernel: Any, folder: Path) -> None:
    """Stop a kernel while it does not hold the file."""
    with (folder / ".nbflow" / "history.duckdb.lock").open("rb+") as lock:
        while True:
            os.kill(kernel.pid, signal.SIGSTOP)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            os.kill(kernel.pid, signal.SIGCONT)
            time.sleep(0.01)


def test_a_life_lock_that_is_deleted_is_made_anew_and_its_engine_goes_on(lab):
    lab.kernel("a", ONE.format(seconds=0.05, more=""), STEPS.format(id="t1"))
    lab.until("got", "t1", 5)
    journal = lab.folder / ".nbflow" / "journal"
    [life] = journal.glob("*.nbj")
    life.unlink()
    end = time.monotonic() + 20
    while not life.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    b = lab.kernel("b", ONE.format(seconds=0.05, more=""), STEPS.format(id="t1"))
    reached = len(lab.lines("got", "t1"))
    lab.until("got", "t1", reached + 5)
    assert lab.lines("run", "t1", b.pid) == []


def test_a_life_lock_that_is_deleted_under_a_stopped_engine_costs_the_instance_not_the_history(lab):
    a = lab.kernel("a", ONE.format(seconds=0.05, more=""), STEPS.format(id="t1"))
    lab.until("got", "t1", 5)
    stopped_outside_its_lease(a, lab.folder)  # else it makes its lock anew within a moment
    for path in (lab.folder / ".nbflow" / "journal").glob("*.nbj"):
        path.unlink()
    b = lab.kernel("b", ONE.format(seconds=0.05, more=""), STEPS.format(id="t1"))
    lab.until("run", "t1", b.pid)
    os.kill(a.pid, signal.SIGCONT)
    lab.until("begin", "t1", 40)
    time.sleep(1.5)  # by then the one that was robbed has seen the claim of the other
    of_a = [line for line in lab.lines("begin", "t1") if line[3] == a.pid]
    time.sleep(0.5)
    assert [line for line in lab.lines("begin", "t1") if line[3] == a.pid] == of_a, "two engines run it"
    acked_by_both = {line[2] for line in lab.lines("got", "t1")}
    b.kill()
    a.kill()
    entries = lab.entries("t1")
    fence = max(entry.token for entry in entries)
    first = [e.step for e in entries if e.kind is Kind.DO_FINISHED and e.token < fence]
    second = [e.step for e in entries if e.kind is Kind.DO_FINISHED and e.token == fence]
    counted = first[: int(second[0][1:])]  # what the first recorded behind the claim does not count
    assert counted + second == [f"s{n}" for n in range(len(counted) + len(second))]
    assert acked_by_both <= {int(step[1:]) for step in first + second}


def test_the_end_of_a_step_that_was_restarted_from_outside_does_not_count(lab):  # S52
    held = "while not os.path.exists('restarted'): time.sleep(0.01)\n    note('end', n)"
    lab.kernel("a", ONE.format(seconds=0.005, more=held), STEPS.format(id="t1"))
    lab.until("begin", "t1", 0)
    shell(lab.folder, "restart", "t1")
    (lab.folder / "restarted").touch()
    lab.until("end", 0, times=2)
    lab.until("got", "t1", 50)
    for host in lab.hosts:
        host.kill()
    entries = lab.entries("t1")
    token = next(entry.token for entry in entries if entry.kind is Kind.RESTARTED)
    ends = [entry for entry in entries if entry.kind is Kind.DO_FINISHED and entry.step == "s0"]
    assert [entry.token for entry in ends if entry.token >= token] == [ends[-1].token]
    assert len([entry for entry in ends if entry.token >= token]) == 1
    begun = Counter(line[2] for line in lab.lines("begin", "t1"))
    assert begun.pop(0) == 2
    assert set(begun.values()) == {1}


def test_a_forked_worker_that_outlives_its_kernel_holds_nothing(lab):  # S54
    fork = "if n == 3 and os.fork() == 0: note('worker', os.getpid()); time.sleep(60); os._exit(0)"
    a = lab.kernel("a", ONE.format(seconds=0.02, more=fork), STEPS.format(id="t1"))
    lab.until("worker")
    lab.until("got", "t1", 10)
    worker = lab.lines("worker")[0][1]
    a.kill()
    try:
        assert Path(f"/proc/{worker}").exists()
        b = lab.kernel("b", ONE.format(seconds=0.02, more=""), STEPS.format(id="t1"))
        lab.until("run", "t1", b.pid)
        lab.until("got", "t1", 30)
        assert Path(f"/proc/{worker}").exists()
    finally:
        os.kill(worker, signal.SIGKILL)
    begun = Counter(line[2] for line in lab.lines("begin", "t1") if line[3] in (a.pid, b.pid))
    assert set(begun.values()) <= {1, 2}
    assert len({line[3] for line in lab.lines("begin", "t1")}) == 2


def opened_by(tool: Path, file: Path) -> subprocess.Popen[str]:
    """A DuckDB shell that has the file open to write."""
    for _ in range(100):
        held = subprocess.Popen(
            [tool, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
        )
        try:
            held.stdin.write("select 'got in';\n")
            for line in held.stdout:
                if "got in" in line:
                    return held
        except BrokenPipeError:
            pass
        held.wait(30)  # it was refused
        held.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            held.stdin.close()
    raise AssertionError("DuckDB's shell was refused a hundred times")


def test_duckdbs_own_shell_opens_the_file_while_a_workflow_runs_and_holding_it_stops_nothing(lab):
    a = lab.kernel("a", ONE.format(seconds=0.02, more=""), STEPS.format(id="t1"))
    lab.until("got", "t1", 5)
    tool, file = Path(sys.executable).with_name("duckdb"), lab.folder / ".nbflow" / "history.duckdb"
    end = time.monotonic() + 30
    while True:  # it is refused where it comes in the middle of a load, which lasts some milliseconds
        query = "select count(*) from steps where status = 'finished'"
        done = subprocess.run(
            [tool, "-readonly", "-noheader", "-list", "-c", query, file], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            break
        assert "lock" in done.stderr.lower(), done.stderr
        assert time.monotonic() < end
    assert int(done.stdout) >= 0
    with opened_by(tool, file) as held:
        seen = len(lab.lines("got", "t1"))
        lab.until("got", "t1", times=seen + 40)
        held.stdin.write(".quit\n")
    lab.until("got", "t1", 199)
    assert shell(lab.folder, "wait", "t1")["status"] == "complete"
    a.kill()
    assert lab.ends("t1") == [f"s{n}" for n in range(200)]


# -- long ---------------------------------------------------------------------------------------------------------------

BUSY = """
STEPS, ROUNDS = 60, 2

async def tick(ctx):
    note("tick", ctx.instance_id, ctx.step.count)

class Busy(WorkflowEntrypoint):
    async def run(self, event, step):
        me, took = event.instance_id, []
        payloads = []
        for turn in range(ROUNDS):
            for n in range(STEPS):
                began = time.perf_counter()
                await step.do("tick", tick)
                took.append(time.perf_counter() - began)
                await asyncio.sleep(0.004)
            if event.payload["alone"]:
                continue
            answer = await step.wait_for_event("ask", "go", timeout="1 hour")
            note("event", me, answer.payload, time.time())
            payloads.append(answer.payload)
        note("took", me, took)
        return payloads

def go_on(name, alone, seconds):
    busy = nbflow.current_engine().register(Busy)
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        inst = busy.create(f"{name}-{number}", {"alone": alone})
        note("created", inst.id)
        inst.wait(until="finished")
        note("ended", inst.id, inst.output)
        number += 1
    note("over", name)
"""


def go(name: str, *, alone: bool, seconds: float) -> str:
    return f"threading.Thread(target=go_on, args=({name!r}, {alone}, {seconds}), daemon=True).start()"


def p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100)[98] * 1000


def test_two_kernels_and_a_shell_lose_and_double_nothing_and_slow_no_step_down(lab, tmp_path):
    kernels = [RealKernel(tmp_path) for _ in range(2)]
    sent: dict[str, list[Any]] = {}
    commands: Counter[str] = Counter()
    try:
        for kernel in kernels:
            kernel.start()
            kernel.kernel.run(BOOT, ok=True)
            kernel.kernel.run(BUSY, ok=True)
        kernels[0].run([go("alone", alone=True, seconds=SECONDS / 6)])
        lab.until("over", "alone", seconds=SECONDS + 60)
        for number, kernel in enumerate(kernels):
            kernel.run([go(f"k{number}", alone=False, seconds=SECONDS)])
        end = time.monotonic() + SECONDS
        number = 0
        while len(lab.lines("over")) < 3:
            assert time.monotonic() < end + 120, "the last instances did not end"
            for row in shell(tmp_path, "list", "--limit", "6"):
                commands["list"] += 1
                if row["status"] in ("running", "waiting") and commands["pause"] < commands["send-event"] / 2:
                    commands["pause"] += 1
                    shell(tmp_path, "pause", row["id"])
                    shell(tmp_path, "resume", row["id"])
                elif row["status"] == "waiting":
                    open_turns = sum(line[0] == "event" for line in lab.lines() if line[1] == row["id"])
                    if len(sent.setdefault(row["id"], [])) > open_turns:
                        continue  # it is on its way
                    shell(tmp_path, "send-event", row["id"], "go", str(number))
                    sent[row["id"]].append((number, time.time()))
                    commands["send-event"] += 1
                    number += 1
    finally:
        for kernel in kernels:
            kernel.stop()
    assert commands["send-event"] >= 2
    assert commands["pause"] >= 1
    late = check_events(lab, sent)
    check_steps(lab, tmp_path)
    alone, together = ([t for line in lab.lines("took") if line[1].startswith(who) for t in line[2]] for who in ("alone", "k"))
    print(f"\n{dict(commands)}, events seen after {max(late):.2f} s at most, {len(together):,} steps")
    print(f"step p50 alone {statistics.median(alone) * 1000:.2f} ms, together {statistics.median(together) * 1000:.2f} ms")
    print(f"step p99 alone {p99(alone):.2f} ms, together {p99(together):.2f} ms")
    if SOAK:
        assert p99(together) < 2 * p99(alone)
        assert max(late) < 1


def check_events(lab: Lab, sent: dict[str, list[Any]]) -> list[float]:
    """Each event was taken once, by the instance that it was sent to, in order; gives how long each took."""
    late = [0.0]
    for instance, events in sent.items():
        taken = lab.lines("event", instance)
        numbers = list(dict.fromkeys(line[2] for line in taken))  # a resumed run is told again
        assert numbers == [number for number, _ in events][: len(numbers)]
        assert len(numbers) >= len(events) - 1
        first = {line[2]: line[3] for line in reversed(taken)}
        late += [first[number] - at for number, at in events if number in first]
    for _, instance, payloads in lab.lines("ended"):
        assert payloads == [number for number, _ in sent.get(instance, [])]
    return late


def check_steps(lab: Lab, folder: Path) -> None:
    """Every body that ran is recorded, once, and ran once."""
    ticks = Counter((line[1], line[2]) for line in lab.lines("tick"))
    assert set(ticks.values()) == {1}, "a body ran twice"
    with Engine(folder / ".nbflow" / "history.duckdb", notebook="look") as engine:
        assert engine.store.warnings == []
        rows = engine.sql(
            "select instance_id, step, count, kind from history where kind like 'do.%' and not kind like '%started'"
        )
        ends = Counter((instance, count) for instance, _, count, kind in rows.fetchall() if kind == "do.finished")
        assert set(ends.values()) == {1}
        running = len(lab.lines("created")) - len(lab.lines("ended"))
        assert len(set(ticks) - set(ends)) <= running
        assert engine.sql("select max(seq) - count(*) from history").fetchall() == [(0,)]
        for _, instance, payloads in lab.lines("ended"):
            assert engine.get(instance).output == payloads
