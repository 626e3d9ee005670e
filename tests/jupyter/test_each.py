"""`%%workflow --each` in a real kernel: one instance for each params (API.md §6)."""

import pytest

from tests.jupyter.kernels import kernel_in

pytestmark = pytest.mark.kernel

SETUP = """%load_ext nbflow
import nbflow
from nbflow import WorkflowEntrypoint
engine = nbflow.current_engine()
broken, ran = {3}, []
def act(n):
    ran.append(n)
    if n in broken:
        raise ValueError(n)
    return n * 10
"""

EACH = """%%workflow {line}
class Squares(WorkflowEntrypoint):
    async def run(self, event, step):
        return await step.do("act", act, event.payload["n"], retries=0)
"""


@pytest.fixture
def kernel(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run(SETUP, ok=True)
        yield kernel


def test_each_params_has_one_instance_and_only_new_ones_start_again(kernel):
    cell = EACH.format(line="--each [{'n': n} for n in (1, 2, 2, 3)] --as every --wait")
    first = kernel.run(cell, ok=True)
    assert "Squares: 3 instances (3 new)" in first.text
    assert first.result is None, "the table is shown once; it is the value all the same"
    [table] = first.latest.values()
    assert table["text/html"].count("<tr>") == 4, "one table, and its heads"
    assert "3 instances: 2 complete · 1 errored" in table["text/plain"]
    assert "nbflow retry-failed Squares/Squares-" in table["text/html"]
    assert kernel.evaluate("sorted(ran)") == [1, 2, 3]
    assert kernel.evaluate("[one.view().status.value for one in every]") == ["complete", "complete", "errored"]
    assert kernel.evaluate("all(one.id.startswith('Squares-') for one in every) and len({one.id for one in every})") == 3

    kernel.run("broken.clear()", ok=True)
    again = kernel.run(EACH.format(line="--each ({'n': n} for n in range(1, 5)) --as every -w"), ok=True)
    assert "Squares: 4 instances (1 new, 1 retried, 2 finished before)" in again.text
    assert kernel.evaluate("sorted(ran)") == [1, 2, 3, 3, 4]
    assert kernel.evaluate("every.outputs()") == [10, 20, 30, 40]
    assert kernel.run("every", ok=True).result["text/html"].count("<tr>") == 5, "in a later cell it shows itself"
    assert kernel.evaluate("len(Out[max(Out)])") == 4


def test_as_many_run_at_once_as_there_are_processors(kernel):
    kernel.run(
        "import os, threading\ngate, lock, inside, most = threading.Event(), threading.Lock(), [0], [0]\n"
        "def act(n):\n    with lock:\n        inside[0] += 1\n        most[0] = max(most[0], inside[0])\n"
        "    assert gate.wait(20)\n    with lock:\n        inside[0] -= 1\n    return n",
        ok=True,
    )
    kernel.run(EACH.format(line="nightly --each [{'n': n} for n in range(12)] --as every"), ok=True)
    kernel.run("import time\nwhile inside[0] < min(12, os.cpu_count()): time.sleep(0.01)", ok=True)
    assert kernel.evaluate("sorted({one.view().status.value for one in every})") == ["queued", "running"]
    kernel.run("gate.set(); every.wait(20, until='finished')", ok=True)
    assert kernel.evaluate("(most[0] == min(12, os.cpu_count()), every[0].id[:8])") == (True, "nightly-")
    assert kernel.evaluate("every.outputs()") == list(range(12))


def test_the_table_follows_and_ends_with_where_each_stands(kernel):  # API §6, PANEL 1 and 11
    kernel.run(
        "import threading\ngate = threading.Event()\n"
        "def act(n):\n    gate.wait(20)\n    if n in broken: raise ValueError(n)\n    return n",
        ok=True,
    )
    first = kernel.run(EACH.format(line="nightly --each [{'n': n} for n in (1, 2, 3)] --as every"), ok=True)
    assert first.result is None
    [(display_id, table)] = first.latest.items()
    assert "complete" not in table["text/plain"]
    message = kernel.send("gate.set(); every.wait(20, until='finished')\nimport time; time.sleep(8)")
    updates = kernel.collect(message).updates
    assert updates, "the table of the first cell is rewritten"
    assert "3 instances: 2 complete · 1 errored" in updates[-1]["text/plain"]
    assert display_id


def test_headless_the_table_is_written_once_at_the_end_and_nothing_follows(kernel):  # API §3
    outputs = kernel.run(EACH.format(line="--each [{'n': n} for n in (1, 2)]"), ok=True, stdin=False)
    assert outputs.result["text/plain"].count("complete") == 2
    assert (outputs.displays, outputs.updates) == ([], [])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--each 3", "--each is an int; give an iterable of params"),
        ("--each {'n': 1}", "--each is a dict"),
        ("--each [object()]", "params 0 cannot be stored"),
        ("--each [1] --params 2", "leave one out"),
        ("--each [1] --define", "leave out --each"),
        ("--each 1/0", "--each 1/0 could not be evaluated"),
    ],
)
def test_what_is_no_iterable_of_params_is_refused_and_nothing_runs(kernel, line, says):
    reply = kernel.run(EACH.format(line=line))
    assert says in reply.error
    assert kernel.evaluate("ran") == []
