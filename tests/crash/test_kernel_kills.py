"""A kernel killed at every kind of moment, its cell run again each time: no finished body runs twice, the result is right.

Bodies say in a file beside the store when they begin and end, `run` says what results it has seen. After each kill the next
kernel says which steps are recorded. Two rules are then checked (S11, S53): a body whose step is recorded never begins
again, and a result that `run` has seen is recorded.
"""

import hashlib
import time
from dataclasses import dataclass, field

import pytest

from tests.jupyter.kernels import Kernel, kernel_in

pytestmark = [pytest.mark.kernel, pytest.mark.crash]

BOOT = """
%load_ext nbflow
import asyncio, hashlib, os, signal, threading, time
import nbflow
from nbflow import WorkflowEntrypoint
from nbflow.store.database import Database

side = os.open("side.txt", os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)

def note(text):
    os.write(side, (text + "\\n").encode())

def die():
    os.kill(os.getpid(), signal.SIGKILL)

KILL = {kill!r}
calls = {{}}

def nth(what):
    calls[what] = calls.get(what, 0) + 1
    return KILL[0] == what and KILL[1] == calls[what]

# Kills in the middle of a write, before and after the sync that makes it last, and while the journal goes to DuckDB.
_pwrite, _fdatasync, _load, _detach = os.pwrite, os.fdatasync, Database.load, Database.detach

def pwrite(descriptor, data, offset):
    if len(data) > 8 and nth("write"):  # the 8 bytes of the news counter cannot be torn by a death
        _pwrite(descriptor, data[: len(data) // 2], offset)
        die()
    return _pwrite(descriptor, data, offset)

def fdatasync(descriptor):
    if nth("sync"):
        die()
    _fdatasync(descriptor)
    if nth("synced"):
        die()

def soon():
    def wait():
        time.sleep(KILL[2])
        die()
    threading.Thread(target=wait).start()

def load(self, *given):
    if nth("load"):
        soon()
    return _load(self, *given)

def detach(self, *given):
    if nth("detach"):
        soon()
    return _detach(self, *given)

def arm():
    os.pwrite, os.fdatasync, Database.load, Database.detach = pwrite, fdatasync, load, detach

begun = set()  # in this life; kills are counted by it, so that no kill is planned for a body that had ended before

def begin(name):
    note(f"begin {{name}}")
    begun.add(name)
    return nth("in")

def body(number, ctx):
    name = ctx.step.name
    doomed = begin(name)
    time.sleep(0.015)
    if doomed:
        die()
    note(f"end {{name}}")
    return number * number

async def async_body(number, ctx):
    name = ctx.step.name
    doomed = begin(name)
    await asyncio.sleep(0.01)
    if doomed:
        die()
    note(f"end {{name}}")
    return number * number

def large(ctx):
    if begin("large"):
        die()
    note("end large")
    return b"nbflow" * 400_000

def got(name, value):
    note(f"got {{name}}")
    if name in begun and nth("after"):
        die()
    return value

recorded = []
try:
    inst = nbflow.current_engine().instance("c1")
    recorded = [step.name for step in inst.steps if step.status.value == "finished"]
    {event}
except nbflow.NotFoundError:
    pass
arm()
"""

CELL = """%%workflow c1 --params {'base': 7} --as inst
class Crash(WorkflowEntrypoint):
    async def run(self, event, step):
        total = event.payload["base"]
        for number in range(8):
            total += got(f"plain {number}", await step.do(f"plain {number}", body, number))
        note("napping")
        await step.sleep("nap", 2.5)
        async def one(number):
            name = f"many {number}"
            return got(name, await step.do(name, body if number % 2 else async_body, number))
        total += sum(await asyncio.gather(*(one(number) for number in range(8))))
        for number in range(6):
            total += got(f"async {number}", await step.do(f"async {number}", async_body, number))
        blob = got("large", await step.do("large", large))
        answer = await step.wait_for_event("ask", "go")
        for number in range(7):
            total += got(f"late {number}", await step.do(f"late {number}", body, number))
        return [total, answer.payload, hashlib.sha256(blob).hexdigest()]
"""
EXPECTED = [
    7 + 2 * sum(n * n for n in range(8)) + sum(n * n for n in range(6)) + sum(n * n for n in range(7)),
    "went",
    hashlib.sha256(b"nbflow" * 400_000).hexdigest(),
]
STEPS = 8 + 8 + 6 + 1 + 7

RUNS = {
    "bodies and gaps": [
        ("in", 1),
        ("after", 2),
        ("in", 2),
        ("after", 3),
        ("outside", "napping"),
        ("outside", "napping"),
        ("in", 2),
        ("after", 2),
        ("in", 1),
        ("after", 1),
        ("settled", "ask"),
        ("answered", "in", 1),
        ("after", 7),
    ],
    "journal": [
        ("write", 3),
        ("sync", 2),
        ("synced", 3),
        ("write", 5),
        ("synced", 1),
        ("sync", 6),
        ("write", 9),
        ("write", 2),
        ("settled", "ask"),
        ("answered", "write", 2),
        ("synced", 4),
    ],
    "loads": [
        ("load", 1, 0.0),
        ("load", 1, 0.004),
        ("detach", 1, 0.0),
        ("detach", 2, 0.001),
        ("load", 2, 0.0),
        ("load", 2, 0.01),
        ("detach", 3, 0.0),
        ("settled", "ask"),
        ("answered", "load", 1, 0.002),
        ("detach", 1, 0.002),
    ],
}


@dataclass
class Log:
    """The side file, read on from where it was read last."""

    kernel: Kernel
    at: int = 0
    recorded: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)

    def check(self, recorded: set[str]) -> None:
        """Hold the rules for the life of a kernel that has just died, given what the next one finds recorded."""
        path = self.kernel.folder / "side.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        fresh, self.at = lines[self.at :], len(lines)
        begun = [line.removeprefix("begin ") for line in fresh if line.startswith("begin ")]
        assert self.recorded.isdisjoint(begun), "a finished body ran again"
        assert len(set(begun)) == len(begun), "a body ran twice in one kernel"
        self.seen |= {line.removeprefix("got ") for line in fresh if line.startswith("got ")}
        assert self.seen <= recorded, "a result that run had seen is lost"
        assert self.recorded <= recorded, "a recorded step is lost"
        self.recorded = recorded


def boot(kernel: Kernel, log: Log, kill: tuple, event: str = "pass") -> None:
    kernel.run(BOOT.format(kill=kill, event=event), ok=True)
    log.check(set(kernel.evaluate("recorded")) - {"nap", "ask"})


def await_death(kernel: Kernel) -> None:
    end = time.monotonic() + 20
    while kernel.manager.is_alive():
        assert time.monotonic() < end, "the planned kill never came"
        time.sleep(0.01)


def one_life(kernel: Kernel, log: Log, kill: tuple) -> None:
    """Boot, run the cell, be killed at the planned moment."""
    event = "pass"
    if kill[0] == "answered":
        event, kill = "inst.send_event('go', 'went')", kill[1:]
    boot(kernel, log, kill, event)
    message = kernel.send(CELL)
    if kill[0] == "settled":
        assert kernel.collect(message).status == "ok"
        kernel.kill()
    elif kill[0] == "outside":
        side = kernel.folder / "side.txt"
        end = time.monotonic() + 20
        while kill[1] not in side.read_text().splitlines()[log.at :]:
            assert time.monotonic() < end, "it never came to sleep"
            time.sleep(0.01)
        time.sleep(0.1)
        kernel.kill()
    else:
        await_death(kernel)
    kernel.restart()


@pytest.mark.parametrize("run", sorted(RUNS))
def test_no_finished_body_runs_twice_and_the_result_is_right_however_the_kernel_dies(run, tmp_path):
    with kernel_in(tmp_path, stdin=False) as kernel:
        log = Log(kernel)
        for kill in RUNS[run]:
            one_life(kernel, log, kill)
        boot(kernel, log, ("never", 0))
        kernel.run(CELL, ok=True)
        assert kernel.evaluate("inst.status().status.value") == "complete"
        assert kernel.evaluate("inst.output") == EXPECTED
        done = [step for step in kernel.evaluate("[(s.name, s.type, s.status.value) for s in inst.steps]") if step[1] == "do"]
        assert [status for _, _, status in done] == ["finished"] * STEPS
        assert kernel.evaluate("nbflow.sql('select max(seq) - count(*) from history').fetchall()") == [(0,)]
        log.check({name for name, _, _ in done})


def test_the_kills_are_many_and_of_every_kind():
    kills = [kill for run in RUNS.values() for kill in run]
    assert len(kills) >= 30
    kinds = {kill[1] if kill[0] == "answered" else kill[0] for kill in kills}
    assert kinds == {"in", "after", "outside", "settled", "write", "sync", "synced", "load", "detach"}
