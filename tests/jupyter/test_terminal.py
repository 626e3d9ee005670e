"""Terminal IPython: no kernel, no panel, and the same magic."""

import os
import re
import sys
import time

import pexpect
import pytest

from tests.jupyter.kernels import ROOT

pytestmark = pytest.mark.kernel

PROMPT = r"In \[\d+\]: $"


@pytest.fixture
def terminal(tmp_path):
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "IPYTHONDIR": str(tmp_path / ".ipython"),
        "TERM": "dumb",
        "PROMPT_TOOLKIT_NO_CPR": "1",
    }
    child = pexpect.spawn(
        sys.executable,
        ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor", "--InteractiveShell.history_length=0"],
        cwd=str(tmp_path),
        env=env,
        encoding="utf-8",
        timeout=30,
        dimensions=(50, 200),
    )
    child.expect(r"In \[1\]: ")
    yield child
    child.close(force=True)


def run(child: pexpect.spawn, code: str, *, multi: bool = False) -> str:
    child.sendline(code)
    if multi:
        child.sendline("")
    child.expect(r"In \[\d+\]: ", timeout=40)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", child.before)


def cell(child: pexpect.spawn, text: str) -> str:
    """A cell by the shell's own door: typing several lines is the terminal's business, not ours."""
    return run(child, f"_ran = get_ipython().run_cell({text!r}, store_history=True)")


ASKS = """%%workflow t1 --as inst{wait}
class Asks(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do('load', lambda: 1)
        return (await step.wait_for_event('ask', 'approval')).payload
"""


def test_the_magic_waits_takes_an_event_and_ends(terminal):
    run(terminal, "%load_ext nbflow")
    run(terminal, "from nbflow import WorkflowEntrypoint")
    shown = cell(terminal, ASKS.format(wait=""))
    assert "history.duckdb" in shown
    assert "new instance t1" in shown
    assert "waiting" in cell(terminal, ASKS.format(wait=" --wait"))
    assert "ask" in run(terminal, "%workflow show t1")
    assert "sent 'approval'" in run(terminal, "%workflow send-event t1 approval {'a': 1}")
    assert "t1: complete" in run(terminal, "%workflow wait t1")
    assert "{'a': 1}" in run(terminal, "await inst")
    assert "Error" not in run(terminal, "%unload_ext nbflow")


def test_ctrl_c_ends_the_wait_and_leaves_the_instance_alone(terminal):
    run(terminal, "%load_ext nbflow")
    run(terminal, "import threading; from nbflow import WorkflowEntrypoint; go = threading.Event()")
    held = "%%workflow h1 --as inst --wait\nclass Held(WorkflowEntrypoint):\n    async def run(self, event, step):\n        return await step.do('hold', go.wait, 60)\n"
    terminal.sendline(f"_ran = get_ipython().run_cell({held!r}, store_history=True)")
    terminal.expect("new instance h1")
    time.sleep(1)
    terminal.sendintr()
    terminal.expect(r"In \[\d+\]: ", timeout=30)
    assert "stopped waiting for 'h1'; it keeps running" in terminal.before
    assert "running" in run(terminal, "print(inst.status().status.value)")
    run(terminal, "go.set()")
    assert "h1: complete" in run(terminal, "%workflow wait h1")


def test_leaving_ipython_closes_the_engine_in_order(terminal, tmp_path):
    run(terminal, "%load_ext nbflow")
    run(terminal, "from nbflow import WorkflowEntrypoint")
    cell(terminal, ASKS.format(wait=""))
    terminal.sendline("exit")
    terminal.expect(pexpect.EOF, timeout=10)
    terminal.close()
    assert terminal.exitstatus == 0
    assert list((tmp_path / ".nbflow" / "journal").glob("*.nbj")) == []
