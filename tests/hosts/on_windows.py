"""What only Windows' own processes show: killed engines and kernels, locks of files, processes for bodies (tests.hosts.windows)."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from nbflow import Engine, WorkflowEntrypoint
from tests.jupyter.kernels import kernel_in

KILLS = 12
WORKS = r"""
import os, sys
from nbflow import Engine, WorkflowEntrypoint

def note(text):
    number = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_BINARY)
    os.write(number, f"{text}\n".encode())
    os.close(number)

class Works(WorkflowEntrypoint):
    async def run(self, event, step):
        total = 0
        for n in range(300):
            def body(n=n):
                note(f"ran {n}")
                return n
            total += await step.do(f"s{n}", body)
            note(f"acknowledged {n}")
        table = await step.do("table", lambda: b"x" * 3_000_000)
        squares = await step.map("squares", lambda x: x * x, range(200))
        return [total, len(table), sum(squares)]

engine = Engine(sys.argv[1], notebook="works.ipynb")
works = engine.register(Works)
instance = works.get("it") if works.list() else works.create(id="it")
print("up", flush=True)
print(instance.wait(120, until="finished").output, flush=True)
engine.close()
"""


def test_killed_again_and_again_it_goes_on_and_repeats_nothing(tmp_path):
    words = [sys.executable, "-c", WORKS, str(tmp_path / "h.duckdb"), str(tmp_path / "notes.txt")]
    chance = random.Random(7)
    for _ in range(KILLS):
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "up\n"
            time.sleep(chance.random() * 0.3)
            process.kill()
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == f"up\n[{sum(range(300))}, 3000000, {sum(x * x for x in range(200))}]\n"
    notes = (tmp_path / "notes.txt").read_text().split("\n")
    repeated = [n for n in range(300) if f"ran {n}" in notes[notes.index(f"acknowledged {n}") :]]
    assert repeated == []
    assert list((tmp_path / "h.nbflow" / "journal").iterdir()) == []


def test_two_engines_on_one_file_see_each_others_instances(tmp_path):
    class Asks(WorkflowEntrypoint):
        async def run(self, event, step):
            return (await step.wait_for_event("ask", "answer")).payload

    first, second = (Engine(tmp_path / "h.duckdb", notebook=f"{name}.ipynb") for name in "ab")
    asked = first.register(Asks).create(id="it")
    asked.wait(20)
    second.get("Asks/it").send_event("answer", {"from": "there"})
    assert asked.wait(20, until="finished").output == {"from": "there"}
    second.close()
    first.close()


def test_processes_for_bodies_live_die_and_are_replaced(tmp_path):
    class Away(WorkflowEntrypoint):
        async def run(self, event, step):
            def where():
                import os

                return os.getpid()

            def dies():
                import os

                os._exit(3)

            there = await step.do("where", where, on="processes")
            try:
                await step.do("dies", dies, on="processes", retries=0)
            except Exception as error:
                return there != os.getpid(), "ended with exit code 3" in str(error)

    engine = Engine(tmp_path / "h.duckdb", notebook="bodies.ipynb")
    assert engine.register(Away).create().wait(120, until="finished").output == (True, True)
    engine.close()


CELL = """%%workflow --id=a
class Ingest(WorkflowEntrypoint):
    async def run(self, event, step):
        loaded = await step.do("load", lambda: 20)
        await step.wait_for_event("approve", "approval")
        return loaded + 1
"""


def test_a_kernel_killed_while_it_waits_goes_on_from_its_history(tmp_path: Path):
    with kernel_in(tmp_path) as kernel:
        kernel.run("from nbflow import WorkflowEntrypoint\n%load_ext nbflow")
        assert "new instance a" in kernel.run(CELL).text
        kernel.kill()
    with kernel_in(tmp_path) as kernel:
        kernel.run("from nbflow import WorkflowEntrypoint\n%load_ext nbflow")
        assert "resumed a: 1 step from history" in kernel.run(CELL).text
