"""A kernel killed in the middle of its rollback: run again, the chain goes on, and no handler that ended runs twice (S47, S49)."""

import pytest

from tests.jupyter.kernels import kernel_in

pytestmark = [pytest.mark.kernel, pytest.mark.crash]

BOOT = """
%load_ext nbflow
import os, time
import nbflow
from nbflow import WorkflowEntrypoint

def note(text):
    with open("side.txt", "a") as side:
        side.write(text + "\\n")
"""

CELL = """%%workflow trip
class Trip(WorkflowEntrypoint):
    async def run(self, event, step):
        for name in ("flight", "hotel", "car"):
            def undo(step_name, output):
                note(f"undo {step_name} {output}")
                if step_name == "hotel" and not os.path.exists("go"):
                    time.sleep(60)
                note(f"undone {step_name}")
            await step.do(name, lambda name=name: note(name) or name, rollback=undo)
        raise ValueError("no money left")
"""


def test_the_chain_goes_on_after_the_kernel_died_in_it(tmp_path):
    side = tmp_path / "side.txt"
    with kernel_in(tmp_path) as kernel:
        kernel.run(BOOT, ok=True)
        kernel.run(CELL, ok=True)
        kernel.until("os.path.exists('side.txt') and 'undo hotel hotel' in open('side.txt').read()")
        kernel.kill()
        kernel.restart(now=True)
        (tmp_path / "go").touch()
        kernel.run(BOOT, ok=True)
        kernel.run(CELL, ok=True)
        kernel.until("nbflow.current_engine().get('trip').is_finished()")
        status = kernel.evaluate(
            "[str(s.status) for s in [nbflow.current_engine().get('trip').status()]] + "
            "[nbflow.current_engine().get('trip').status().rollback[0], nbflow.current_engine().get('trip').status().error.message]"
        )
        assert status == ["errored", "complete", "no money left"]
    noted = side.read_text().splitlines()
    assert [noted.count(name) for name in ("flight", "hotel", "car")] == [1, 1, 1]
    assert [noted.count(f"undone {name}") for name in ("car", "hotel", "flight")] == [1, 1, 1]
    assert noted.count("undo car car") == 1
    assert noted.count("undo hotel hotel") == 2  # the one that was cut off, and its next attempt
    assert noted[-1] == "undone flight"
