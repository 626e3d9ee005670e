"""A kernel killed in the middle of a map: run again, no item that had ended runs twice (S18, S53, S61)."""

import pytest

from tests.jupyter.kernels import kernel_in

pytestmark = [pytest.mark.kernel, pytest.mark.crash]

BOOT = """
%load_ext nbflow
import os, time
import nbflow
from nbflow import WorkflowEntrypoint

def embed(x):
    with open("side.txt", "a") as side:
        side.write(f"{x}\\n")
    if x == 700 and not os.path.exists("go"):
        time.sleep(60)
    return x * 2
"""

CELL = """%%workflow shards
class Shards(WorkflowEntrypoint):
    async def run(self, event, step):
        total = 0
        async for value in step.map("embed", embed, (x for x in range(1_000)), concurrency=3):
            total += value
        return total
"""


def test_no_item_that_had_ended_runs_again_after_a_kill(tmp_path):
    side = tmp_path / "side.txt"
    side.touch()  # it is looked into before the first item has begun
    with kernel_in(tmp_path) as kernel:
        kernel.run(BOOT, ok=True)
        kernel.run(CELL, ok=True)
        kernel.until(
            "'700\\n' in open('side.txt').read() and nbflow.current_engine().get('shards').step('embed').items.done > 800"
        )
        kernel.kill()
        ran = side.read_text().splitlines()
        (tmp_path / "go").touch()
        kernel.restart(now=True)
        kernel.run(BOOT, ok=True)
        kernel.run(CELL, ok=True)
        kernel.until("nbflow.current_engine().get('shards').is_finished()")
        assert kernel.evaluate("nbflow.current_engine().get('shards').output") == sum(2 * x for x in range(1_000))
        done = kernel.evaluate(
            "nbflow.current_engine().sql(\"select count(*) from steps where status = 'finished'\").fetchall()[0][0]"
        )
    assert done == 1_001
    again = side.read_text().splitlines()[len(ran) :]
    twice = [x for x in again if x in set(ran)]
    assert "700" in twice
    assert len(twice) <= 3, "at most those in flight"
    assert {int(x) for x in ran + again} == set(range(1_000))
