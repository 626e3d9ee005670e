"""`nbflow` on the shell, beside a kernel that lives and without one."""

import json
import os
import subprocess
import sys
import time

import duckdb
import pytest

from tests.jupyter.kernels import ROOT, kernel_in

FILE = """
import dataclasses
import time
from nbflow import WorkflowEntrypoint

def note(text):
    with open("side.txt", "a") as file:
        file.write(text + "\\n")
    return text

class Adds(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("note", note, "ran")
        return event.payload["a"] + event.payload["b"]

class Asks(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("note", note, "asked")
        return (await step.wait_for_event("ask", "approval")).payload

@dataclasses.dataclass
class Mark:
    grade: int

class Marks(WorkflowEntrypoint):
    async def run(self, event, step):
        return Mark(1)

class Fails(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("break", note, 1 / 0, retries=0)
"""


@pytest.fixture
def shell(tmp_path):
    (tmp_path / "flows.py").write_text(FILE)

    def run(*words: str, code: int = 0) -> str:
        env = {**{k: v for k, v in os.environ.items() if not k.startswith("NBFLOW")}, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-m", "nbflow", *words],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    return run


def test_run_runs_to_the_end_once(shell, tmp_path):
    assert "new instance" in shell("run", "flows.py:Adds", "r1", "--params", '{"a": 1, "b": 2}')
    assert "Nothing ran" in shell("run", "flows.py:Adds", "r1", "--params", '{"a": 1, "b": 2}')
    assert (tmp_path / "side.txt").read_text() == "ran\n"
    assert "r1" in shell("list", "Adds", "--status", "complete")
    assert "complete" in shell("show", "r1")


def test_the_exit_code_says_how_it_ended(shell):
    shell("run", "flows.py:Fails", "f1", code=1)
    shell("run", "flows.py:Asks", "a1", code=3)
    shell("wait", "a1", code=3)
    shell("terminate", "a1")
    shell("wait", "a1", code=4)
    shell("show", "nobody", code=2)
    shell("run", "flows.py:Nothing", code=2)
    shell("run", "flows.py", code=2)
    shell("list", "--limit", "none", code=2)
    shell("frobnicate", code=2)


def test_an_event_from_the_shell_is_taken_by_the_next_run(shell):
    told = json.loads(shell("--json", "run", "flows.py:Asks", "a1", code=3))
    assert [(wait["name"], wait["event_type"]) for wait in told["waits"]] == [("ask", "approval")]
    assert "sent 'approval'" in shell("send-event", "a1", "approval", '{"ok": true}')
    shell("run", "flows.py:Asks", "a1")
    assert json.loads(shell("--json", "show", "a1"))["status"] == "complete"


def test_answers_come_as_json(shell):
    shell("run", "flows.py:Adds", "r1", "--params", '{"a": 1, "b": 2}')
    listed = json.loads(shell("--json", "list"))
    assert [(one["workflow"], one["id"], one["status"]) for one in listed] == [("Adds", "r1", "complete")]
    assert [step["step"] for step in json.loads(shell("--json", "show", "r1"))["steps"]] == ["note"]
    assert json.loads(shell("--json", "history", "r1"))[0]["what"] == "created"
    assert json.loads(shell("show", "r1", "--json"))["output"] == 3
    assert json.loads(shell("list", "--json", "--store", ".nbflow/history.duckdb")) == listed
    assert "no history at" in shell("list", "--store", "nowhere.duckdb", code=2)


def test_an_output_of_a_class_that_no_shell_has_is_shown_by_its_line(shell):
    shell("run", "flows.py:Marks", "m1")
    assert shell("wait", "m1").startswith("Marks m1: complete")
    told = json.loads(shell("show", "m1", "--json"))
    assert (told["status"], told["output"]) == ("complete", 'flows.Mark {"grade":1}')


def test_a_payload_that_is_no_json_is_refused_with_what_to_write(shell):
    shell("run", "flows.py:Asks", "a1", code=3)
    assert "is no JSON" in shell("send-event", "a1", "approval", "yes", code=2)


@pytest.mark.kernel
def test_a_waiting_kernel_sees_an_event_from_the_shell_within_a_second(shell, tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run("%load_ext nbflow\nfrom nbflow import WorkflowEntrypoint", ok=True)
        kernel.run(
            "%%workflow k1 --as inst\nclass Asks(WorkflowEntrypoint):\n    async def run(self, event, step):\n"
            "        return (await step.wait_for_event('ask', 'approval')).payload\n",
            ok=True,
        )
        kernel.run("inst.wait(20)", ok=True)
        assert "k1" in shell("list")
        shell("send-event", "k1", "approval", '"from the shell"')
        started = time.monotonic()
        kernel.until("inst.is_finished()")
        assert time.monotonic() - started < 1
        assert kernel.evaluate("inst.output") == "from the shell"
        shell("wait", "k1")


def test_doctor_answers_with_an_exit_code_and_demo_keeps_its_promise(shell, tmp_path):
    assert "no history" in shell("doctor", code=1)
    shell("run", "flows.py:Adds", "r1", "--params", '{"a": 1, "b": 2}')
    assert "whole" in shell("doctor")
    assert {row["severity"] for row in json.loads(shell("--json", "doctor"))} == {"fine"}
    assert "Steps 1 to 4 came from the history" in shell("demo")


def test_a_terminal_does_not_act_on_what_a_history_says(shell, tmp_path):
    told = "\x1b]0;owned\x07\x1b[2J\u202e\r"
    (tmp_path / "flows.py").write_text(
        "from nbflow import WorkflowEntrypoint\n"
        "class Says(WorkflowEntrypoint):\n"
        "    async def run(self, event, step):\n"
        "        await step.do('a', lambda: event.payload)\n"
        "        raise ValueError(event.payload)\n"
    )
    shell("run", "flows.py:Says", "s1", "--params", json.dumps(told), code=1)
    with duckdb.connect(str(tmp_path / ".nbflow" / "history.duckdb")) as connection:
        connection.execute("update entries set step = $1 where step = 'a'", [told])
        connection.execute(
            "update entries set body = json_merge_patch(body, $1) where kind = 'claimed'", [json.dumps({"by": told})]
        )
    said = shell("show", "s1") + shell("history", "s1") + shell("list") + shell("doctor") + shell("wait", "s1", code=1)
    assert "�" in said
    assert not {"\x1b", "\x07", "\u202e", "\r"} & set(said)
