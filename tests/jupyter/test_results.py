"""Results in a real kernel: classes of cells (S17), SQL tools."""

import pytest

from tests.jupyter.kernels import kernel_in

pytestmark = pytest.mark.kernel

SETUP = "%load_ext nbflow\nfrom nbflow import WorkflowEntrypoint\nimport nbflow\nengine = nbflow.current_engine()"

WORKFLOW = """%%workflow one {line}
class Reads(WorkflowEntrypoint):
    async def run(self, event, step):
        doc = await step.do("load", lambda: make("x"))
        await step.wait_for_event("ask", "go")
        return [type(doc).__name__, doc.title, doc.place.name]
"""

CLASSES = """from dataclasses import dataclass
from enum import Enum

class Place(Enum):
    HERE = 1

@dataclass
class Doc:
    title: str
    place: Place = Place.HERE

def make(title):
    return Doc(title)
"""


def test_run_all_after_a_restart_with_the_dataclass_in_a_later_cell_goes_on_by_itself(tmp_path):  # S17
    with kernel_in(tmp_path) as kernel:
        kernel.run(SETUP)
        kernel.run(CLASSES)
        kernel.run(WORKFLOW.format(line="--wait 20s"))
        assert kernel.evaluate("engine.get('one').status().waiting_for[0].name") == "ask"
    with kernel_in(tmp_path) as kernel:  # Run All, the cells in another order
        kernel.run(SETUP)
        kernel.run(WORKFLOW.format(line="--wait 20s"))
        why = kernel.evaluate("engine.get('one').status().interrupted")
        assert 'needs class Doc (step "load")' in why
        kernel.run(CLASSES)
        kernel.until("engine.get('one').status().interrupted is None")
        kernel.run("engine.get('one').send_event('go')\nengine.get('one').wait(20)")
        assert kernel.evaluate("engine.get('one').output") == ["Doc", "x", "HERE"]


def test_jupysql_asks_a_cursor(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run(SETUP)
        kernel.run(CLASSES)
        kernel.run(WORKFLOW.format(line="--wait 20s"))
        kernel.run("con = nbflow.cursor()\n%load_ext sql\n%config SqlMagic.displaycon = False\n%sql con --alias history")
        kernel.run("found = %sql select name, status from steps order by started_at")
        assert kernel.evaluate("[list(row) for row in found]") == [["load", "finished"], ["ask", "waiting"]]
        kernel.run("engine.get('one').send_event('go')\nengine.get('one').wait(20)")  # the copy holds nothing
        assert kernel.evaluate("engine.get('one').output") == ["Doc", "x", "HERE"]
