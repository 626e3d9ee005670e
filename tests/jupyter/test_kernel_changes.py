"""What cells do to their kernel under a waiting instance: %reset, %autoreload, another folder, a fork."""

import pytest

from tests.jupyter.kernels import kernel_in

pytestmark = pytest.mark.kernel

CELL = """%%workflow w1 --as first
from nbflow import WorkflowEntrypoint
class Waits(WorkflowEntrypoint):
    async def run(self, event, step):
        before = await step.do("before", lambda: 40)
        more = await step.wait_for_event("ask", "go")
        return before + await step.do("after", lambda: more.payload)
"""


@pytest.mark.parametrize(
    "change",
    [
        "%reset",
        "%reset -f",
        "%load_ext autoreload\n%autoreload 2",
        "import os, tempfile; os.chdir(tempfile.mkdtemp())",
        "import os\nchild = os.fork()\nif not child:\n    os._exit(0)\nos.waitpid(child, 0)",
    ],
)
def test_a_waiting_instance_goes_on_whatever_a_cell_does_to_the_kernel(tmp_path, change):
    with kernel_in(tmp_path) as kernel:
        kernel.run("%load_ext nbflow", ok=True)
        kernel.run(CELL, ok=True)
        asked = kernel.send(change)
        if change == "%reset":
            assert "delete" in kernel.client.get_stdin_msg(timeout=60)["content"]["prompt"]
            kernel.client.input("y")
        assert kernel.collect(asked).errors == []
        kernel.run("%workflow send-event w1 go 2", ok=True)
        assert "complete" in kernel.run("%workflow wait w1 20s", ok=True).text
        said = kernel.run("import nbflow\nprint(nbflow.current_engine().workflow('Waits').get('w1').output)", ok=True)
        assert said.stdout.strip() == "42"
        assert "attached" in kernel.run(CELL, ok=True).text or "Nothing ran" in kernel.run(CELL, ok=True).text
    assert (tmp_path / ".nbflow" / "history.duckdb").exists()
