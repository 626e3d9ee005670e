"""`--wait`, headless runs and interrupts: the cell is held as long as it should be, and nothing else is."""

import json
import subprocess
import sys
import time

import nbformat
import pytest
from nbclient import NotebookClient

from tests.jupyter.kernels import ROOT, kernel_in

pytestmark = pytest.mark.kernel

SETUP = """%load_ext nbflow
import nbflow, threading, time
from nbflow import WorkflowEntrypoint
engine = nbflow.current_engine()
go = threading.Event()
"""
CLASS = """class Work(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.sleep("a moment", 0.4)
        return await step.do("end", lambda: "done")
"""
HELD = """class Held(WorkflowEntrypoint):
    async def run(self, event, step):
        return await step.do("hold", go.wait, 60)
"""
ASKS = """class Asks(WorkflowEntrypoint):
    async def run(self, event, step):
        return (await step.wait_for_event("ask", "approval")).payload
"""
DONE = "engine.instance('w1').status().status.value"


# A page that draws the panel a second after it was displayed, and a person who answers later than any hello may take.
VISITOR = """
from nbflow.jupyter.panel import panel_for
def visit():
    while not engine.workflows.get("Asks") or not engine.workflows["Asks"].list():
        time.sleep(0.05)
    time.sleep(1)
    panel_for(engine.instance("w1")).hello_seen.set()
    time.sleep(3.5)
    engine.instance("w1").send_event("approval", "late")
threading.Thread(target=visit, daemon=True).start()
"""


@pytest.fixture
def kernel(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run(SETUP, ok=True)
        yield kernel


def shown_once(out) -> bool:
    return len(out.views) == 1 and out.errors == []


def test_a_waiting_cell_ends_with_the_instance_and_gives_it(kernel):
    out = kernel.run("%%workflow w1 --wait\n" + CLASS, ok=True)
    assert shown_once(out)
    assert kernel.evaluate(f"({DONE}, _.id, _.output)") == ("complete", "w1", "done")


def test_a_cell_without_wait_returns_at_once(kernel):
    out = kernel.run("%%workflow w1\n" + HELD, ok=True)
    assert out.seconds < 3
    assert kernel.evaluate(DONE) == "running"
    kernel.run("go.set()")


def test_the_kernels_loop_goes_on_while_the_cell_waits(kernel):
    kernel.run(
        "import asyncio\nticks = []\nasync def tick():\n    while True:\n        ticks.append(1)\n        await asyncio.sleep(.05)\n"
        "task = asyncio.get_running_loop().create_task(tick())",
        ok=True,
    )
    kernel.run("ticks.clear()")
    kernel.run("%%workflow w1 --wait\n" + CLASS.replace("0.4", "1"), ok=True)
    assert kernel.evaluate("len(ticks)") > 8


@pytest.mark.parametrize(
    "above",
    ["%%time", "%%capture caught", "%%capture caught\n%%time"],
)
def test_waiting_works_under_other_cell_magics(kernel, above):
    out = kernel.run(f"{above}\n%%workflow w1 --wait --as inst\n" + CLASS, ok=True)
    assert out.errors == []
    assert kernel.evaluate(f"({DONE}, inst.output)") == ("complete", "done")


def test_an_instance_whose_cell_was_captured_is_shown_where_it_is_asked_for(kernel):
    kernel.run("%%capture caught\n%%workflow w1 --as inst\n" + HELD, ok=True)
    assert len(kernel.run("inst", ok=True).views) == 1
    assert len(kernel.run("inst", ok=True).views) == 1
    kernel.run("go.set()")


def test_waiting_works_with_autoawait_off(kernel):
    kernel.run("%autoawait off", ok=True)
    assert shown_once(kernel.run("%%workflow w1 --wait\n" + CLASS, ok=True))
    assert kernel.evaluate(f"({DONE}, _.id)") == ("complete", "w1")


def test_waiting_works_in_a_script_that_is_run(kernel):
    (kernel.folder / "script.ipy").write_text("%%workflow w1 --wait\n" + CLASS)
    assert kernel.run("%run -i script.ipy", ok=True).errors == []
    assert kernel.evaluate(DONE) == "complete"


def test_waiting_works_in_a_cell_that_a_cell_runs(kernel):
    kernel.run(f"get_ipython().run_cell({'%%workflow w1 --wait' + chr(10) + CLASS!r})", ok=True)
    assert kernel.evaluate(DONE) == "complete"


def test_waiting_works_after_nest_asyncio(kernel):
    kernel.run("import nest_asyncio; nest_asyncio.apply()", ok=True)
    assert shown_once(kernel.run("%%workflow w1 --wait\n" + CLASS, ok=True))
    kernel.run("%%time\n%%workflow w2 --wait\n" + CLASS, ok=True)
    assert kernel.evaluate("(engine.instance('w1').output, engine.instance('w2').output)") == ("done", "done")


def test_wait_ends_after_its_duration_and_the_instance_goes_on(kernel):
    out = kernel.run("%%workflow w1 --wait 1.5s\n" + HELD, ok=True)
    assert 1.4 < out.seconds < 4
    assert kernel.evaluate(DONE) == "running"
    kernel.run("go.set(); _.wait(20)", ok=True)
    assert kernel.evaluate(DONE) == "complete"


def test_without_a_panel_that_says_hello_the_wait_ends_when_the_instance_is_settled(kernel):
    out = kernel.run("%%workflow w1 --wait\n" + ASKS, ok=True, timeout=30)
    assert 2.5 < out.seconds < 8
    assert kernel.evaluate(DONE) == "waiting"


def test_a_panel_that_said_hello_holds_the_cell_until_the_instance_is_finished(kernel):
    kernel.run(VISITOR, ok=True)
    out = kernel.run("%%workflow w1 --wait\n" + ASKS, ok=True, timeout=30)
    assert out.seconds > 4
    assert kernel.evaluate(f"({DONE}, _.output)") == ("complete", "late")


@pytest.mark.parametrize("above", ["", "%%time\n"])
def test_an_interrupt_ends_the_wait_and_leaves_the_instance_alone(kernel, above):
    message = kernel.send(above + "%%workflow w1 --wait --as inst\n" + HELD)
    time.sleep(1.5)
    started = time.monotonic()
    kernel.interrupt()
    out = kernel.collect(message, timeout=20)
    assert time.monotonic() - started < 5
    if not above:  # %%time reports errors of its own
        assert out.status == "error"
    assert out.error == "KeyboardInterrupt: stopped waiting for 'w1'; it keeps running"
    assert "File" not in out.traceback
    assert kernel.evaluate("inst.status().status.value") == "running"
    kernel.run("go.set(); inst.wait(20)", ok=True)
    assert kernel.evaluate("inst.output") is True
    assert kernel.run("print(1)", ok=True).stdout == "1\n"


@pytest.mark.parametrize("above", ["", "%%time\n"])
def test_bodies_of_the_main_thread_run_while_the_cell_waits(kernel, above):
    kernel.run(
        above + "%%workflow w1 --wait --as inst\nclass Main(WorkflowEntrypoint):\n    async def run(self, event, step):\n"
        "        return await step.do('draw', lambda: threading.current_thread() is threading.main_thread(), on='main')\n",
        ok=True,
    )
    assert kernel.evaluate("inst.output") is True


def test_a_body_of_the_main_thread_runs_between_cells(kernel):
    kernel.run(
        "%%workflow w1 --as inst\nclass Main(WorkflowEntrypoint):\n    async def run(self, event, step):\n"
        "        return await step.do('draw', lambda: threading.current_thread() is threading.main_thread(), on='main')\n",
        ok=True,
    )
    kernel.until("inst.is_finished()")
    assert kernel.evaluate("inst.output") is True


# -- nobody there --------------------------------------------------------------------------------------------------------


def test_headless_waits_until_settled_makes_no_widget_and_writes_once_at_the_end(kernel):
    code = CLASS.replace('"end", lambda: "done"', '"end", print, "a word"')
    out = kernel.run("%%workflow w1 --as inst\n" + code, ok=True, stdin=False)
    assert out.views == []
    assert out.comms == []
    assert len([bundle for bundle in out.displays if bundle.get("text/html")]) == 1
    assert out.updates == []
    assert "a word" in out.stdout
    assert "complete" in out.text
    assert kernel.evaluate("(inst.status().status.value, _.id)") == ("complete", "w1")


def test_headless_stops_at_a_wait_for_an_event_and_a_later_cell_answers(kernel):
    out = kernel.run("%%workflow w1 --as inst\n" + ASKS, ok=True, stdin=False)
    assert out.seconds < 3
    assert "approval" in out.text
    kernel.run("inst.send_event('approval', 'from a cell')", ok=True, stdin=False)
    assert kernel.run("(await inst)", ok=True, stdin=False).result["text/plain"] == "'from a cell'"


def test_headless_the_panel_is_its_twin_and_nothing_is_kept_of_a_widget_in_the_saved_notebook(kernel):  # API.md §3
    kernel.run("%%workflow w1 --as inst\n" + ASKS, ok=True, stdin=False)
    kept = kernel.run("shown = inst.panel()\nfrom IPython.display import display", ok=True, stdin=False)
    value = kernel.run("shown", ok=True, stdin=False)
    displayed = kernel.run("display(inst.panel())", ok=True, stdin=False)
    for out, bundle in ((value, value.result), (displayed, displayed.displays[0])):
        assert set(bundle) == {"text/html", "text/plain"}
        assert bundle["text/plain"].startswith("Asks: waiting for 'approval'")
        assert "approval" in bundle["text/html"]
        assert out.comms == kept.comms == []
    kernel.run("inst.send_event('approval', 1); inst.wait(20)", ok=True, stdin=False)
    assert "complete" in kernel.run("shown", ok=True, stdin=False).result["text/plain"]  # as things are when it is displayed
    there = kernel.run("inst.panel()", ok=True)  # somebody is there to press its buttons
    assert "application/vnd.jupyter.widget-view+json" in there.result


def test_the_saved_notebook_of_a_headless_run_holds_no_widget_state(tmp_path, monkeypatch):  # API.md §3
    monkeypatch.delenv("NBFLOW_STORE", raising=False)
    cells = ["%load_ext nbflow", "%%workflow w1 --as inst\nfrom nbflow import WorkflowEntrypoint\n" + CLASS, "inst.panel()"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, timeout=60, kernel_name="python3", resources=resources).execute()
    assert "widgets" not in book.metadata
    assert set(book.cells[2].outputs[0].data) == {"text/html", "text/plain"}


def test_headless_a_sleep_that_the_corrected_cell_no_longer_has_holds_nothing_up(kernel):
    cell = """%%workflow w1 {line}
class Edited(WorkflowEntrypoint):
    async def run(self, event, step):
        {first}
        return (await step.wait_for_event("ask", "approval")).payload
"""
    kernel.run(cell.format(line="--wait 1s", first="await step.sleep('z', '1 hour')"), ok=True)
    out = kernel.run(cell.format(line="", first="pass"), stdin=False, timeout=20, ok=True)
    assert "waiting for 'approval'" in out.text
    assert "1 not reached: z" in out.text


def test_headless_an_errored_instance_is_told_in_the_output(kernel):
    out = kernel.run(
        "%%workflow w1\nclass Bad(WorkflowEntrypoint):\n    async def run(self, event, step):\n        raise ValueError('broken')\n",
        ok=True,
        stdin=False,
    )
    assert "errored" in out.text
    assert "broken" in out.text


NOTEBOOK = [
    "%load_ext nbflow\nfrom nbflow import WorkflowEntrypoint",
    "%%workflow nb1 --as inst\n" + ASKS,
    "inst.send_event('approval', {'ok': True})\nprint(await inst)",
    "%%workflow nb2 --wait --as two\n" + CLASS,
    "print(two.output)",
]


def notebook(path) -> None:
    import nbformat

    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in NOTEBOOK])
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(made, path)


def printed(path) -> str:
    cells = json.loads(path.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert [output for output in outputs if output["output_type"] == "error"] == []
    assert "widget-view" not in path.read_text()
    return "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")


def run_tool(folder, *arguments: str) -> None:
    import os

    env = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder / ".ipython"), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_nbclient_runs_a_notebook_with_workflows(tmp_path):
    notebook(tmp_path / "a.ipynb")
    run_tool(tmp_path, "nbconvert", "--to", "notebook", "--execute", "--output", "out.ipynb", "a.ipynb")
    text = printed(tmp_path / "out.ipynb")
    assert "{'ok': True}" in text
    assert "done" in text


def test_papermill_runs_a_notebook_with_workflows(tmp_path):
    notebook(tmp_path / "a.ipynb")
    run_tool(tmp_path, "papermill", "a.ipynb", "out.ipynb", "--no-progress-bar")
    assert "{'ok': True}" in printed(tmp_path / "out.ipynb")


def test_the_outputs_of_a_notebook_are_the_same_twice_where_stable_output_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("NBFLOW_STABLE_OUTPUT", "1")
    monkeypatch.setenv("NBFLOW_STORE", ":memory:")
    notebook(tmp_path / "a.ipynb")
    run_tool(tmp_path, "nbconvert", "--to", "notebook", "--execute", "--inplace", "a.ipynb")
    run_tool(tmp_path, "pytest", "--nbval", "-p", "no:cacheprovider", "a.ipynb")


# -- the kernel goes ------------------------------------------------------------------------------------------------------


def test_the_restart_button_is_not_held_up_by_a_body_that_blocks(kernel):
    kernel.run(
        "%%workflow w1\nclass Long(WorkflowEntrypoint):\n    async def run(self, event, step):\n"
        "        await step.do('first', lambda: 1)\n        return await step.do('sleep', time.sleep, 60)\n",
        ok=True,
    )
    kernel.until("len(engine.instance('w1').steps) == 2")
    kernel.run("import atexit\natexit.register(lambda: open('left.txt', 'w').write('in order'))")
    assert kernel.restart(now=False) < 3
    assert (kernel.folder / "left.txt").read_text() == "in order"
    kernel.run(SETUP, ok=True)
    out = kernel.run(
        "%%workflow w1 --as inst\nclass Long(WorkflowEntrypoint):\n    async def run(self, event, step):\n"
        "        await step.do('first', lambda: 1)\n        return await step.do('sleep', time.sleep, 0)\n",
        ok=True,
    )
    assert "resumed w1" in out.text
    kernel.run("inst.wait(20)", ok=True)
    assert kernel.evaluate("(inst.status().status.value, inst.step('first').from_history)") == ("complete", True)
