"""A tab that is closed over a busy panel: Jupyter Server keeps what is sent meanwhile, so nearly nothing may be.

`NBFLOW_AWAY` says how many seconds the tab stays closed.
"""

import json
import os
from pathlib import Path

from tests.browser.lab import Lab
from tests.browser.test_lab import IMPORTS, replace

AWAY = float(os.environ.get("NBFLOW_AWAY", "25"))
UNHEARD = 12  # seconds until the kernel takes the page for gone

COUNT_WHAT_IS_SENT = """
import json, os, time
session, sent = get_ipython().kernel.session, []
original = session.send
def counted(stream, msg_or_type, *args, **kwargs):
    message = original(stream, msg_or_type, *args, **kwargs)
    if (message or {}).get("msg_type", "").startswith("comm_"):
        sent.append((time.monotonic(), len(json.dumps(message["content"], default=str))))
    return message
session.send = counted
def sent_between(start, end): return sum(size for at, size in sent if start <= at < end)
"""

BUSY = """%%workflow busy --as inst
class Busy(WorkflowEntrypoint):
    async def run(self, event, step):
        async def tick(number): return number
        await step.map("tick", tick, range(10**7), concurrency=4, rate="100/s", discard_results=True)
"""


def resident(pid: int) -> float:
    """Megabytes that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


def test_while_the_tab_is_closed_next_to_nothing_is_sent_and_it_is_live_again_when_it_comes_back(
    open_notebook, context, lab: Lab
):
    notebook = open_notebook(IMPORTS + COUNT_WHAT_IS_SENT, BUSY, "print(json.dumps([os.getpid(), time.monotonic()]))", "")
    for place in (0, 1):
        notebook.run_to_end(place)
    notebook.panel(1).await_live()
    kernel, seen = json.loads(notebook.run_to_end(2))
    notebook.page.wait_for_timeout(3_000)
    notebook.save()
    notebook.page.goto("about:blank")
    notebook.page.wait_for_timeout(UNHEARD * 1000)
    before = resident(lab.pid), resident(kernel)
    notebook.page.wait_for_timeout(int(AWAY * 1000))
    after = resident(lab.pid), resident(kernel)
    notebook.open()
    notebook.panel(1).await_live()
    closed = f"{seen} + 3 + {UNHEARD} + 2"
    replace(
        notebook, 3, f"print(json.dumps([sent_between({seen}, {seen} + 3), sent_between({closed}, {closed} + {AWAY - 4})]))"
    )
    open_bytes, away_bytes = json.loads(notebook.run_to_end(3))
    replace(notebook, 3, "print(inst.terminate())")
    notebook.run_to_end(3)
    assert open_bytes > 3_000, "the panel was not busy"
    assert away_bytes <= (AWAY / 10 + 1) * 2_000
    if AWAY >= 120:  # less says nothing: what a process holds moves by megabytes of its own accord
        assert after[0] - before[0] < 10, f"the server grew by {after[0] - before[0]:.1f} MB"
        assert after[1] - before[1] < 20, f"the kernel grew by {after[1] - before[1]:.1f} MB"
