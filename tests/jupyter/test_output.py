"""In a real kernel: what bodies put out is in their step's log, and what cells put out is in their cells (PANEL.md 7)."""

import nbformat
import pytest
from nbclient import NotebookClient

from nbflow import Engine
from tests.jupyter.kernels import kernel_in

pytestmark = pytest.mark.kernel

SETUP = """%load_ext nbflow
import asyncio, logging, sys, threading, time, warnings, nbflow
from nbflow import WorkflowEntrypoint
from IPython.display import HTML, clear_output, display
def texts(name):
    return [(item.stream, item.text) for item in inst.step(name).log]
"""

PARALLEL = """%%workflow p --as inst
print("cell")
go = threading.Event()
class Parallel(WorkflowEntrypoint):
    async def run(self, event, step):
        print("run")
        def plain():
            print("plain begins")
            go.wait(20)
            for number in range(10):
                print("plain", number); time.sleep(0.01)
        async def looped():
            while not go.is_set():
                await asyncio.sleep(0.01)
            for number in range(10):
                print("looped", number); await asyncio.sleep(0.01)
        def late():
            print("late", file=sys.stderr)
        await asyncio.gather(step.do("plain", plain), step.do("looped", looped))
        await step.do("late", late)
"""

USER = """go.set()
for number in range(10):
    print("user", number); time.sleep(0.01)
"""


@pytest.fixture
def kernel(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run(SETUP, ok=True)
        yield kernel


def lines(word):
    return "".join(f"{word} {number}\n" for number in range(10))


@pytest.mark.parametrize("first", ["", "%%capture kept\n"])
def test_parallel_steps_print_into_their_logs_while_a_cell_prints(kernel, first):
    out = kernel.run(PARALLEL, ok=True)
    assert out.stdout.startswith("cell\n")
    assert "plain" not in out.stdout
    out = kernel.run(first + USER, ok=True)
    kernel.run("inst.wait(20)", ok=True)
    said = kernel.evaluate("kept.stdout") if first else out.stdout
    assert said == lines("user")
    assert out.stderr == ""
    assert kernel.evaluate("texts('plain')") == [("stdout", "plain begins\n" + lines("plain"))]
    assert kernel.evaluate("texts('looped')") == [("stdout", lines("looped"))]
    assert kernel.evaluate("texts('late')") == [("stderr", "late\n")]


def test_a_workflow_cell_under_capture_captures_run_and_not_the_bodies(kernel):
    cell = PARALLEL.replace("%%workflow p --as inst", "%%workflow p --as inst --wait").replace("go.wait(20)", "go.set()")
    kernel.run("%%capture kept\n" + cell, ok=True)
    assert kernel.evaluate("[line for line in kept.stdout.splitlines() if not line.startswith('nbflow: ')]") == ["cell", "run"]
    assert kernel.evaluate("texts('plain')") == [("stdout", "plain begins\n" + lines("plain"))]
    assert kernel.run("print('after')", ok=True).stdout == "after\n"
    assert kernel.evaluate("texts('late')") == [("stderr", "late\n")]


RICH = """%%workflow r --as inst --wait
from tqdm.auto import tqdm
class Rich(WorkflowEntrypoint):
    async def run(self, event, step):
        def shows():
            display(HTML("<b>bold</b>"))
            handle = display("first", display_id=True)
            handle.update("second")
            import matplotlib.pyplot as plt
            plt.plot([1, 2]); plt.show()
        def cleared():
            print("gone"); clear_output(wait=True); print("stays")
        def bars():
            for _ in tqdm(range(30), desc="bar"):
                time.sleep(0.01)
        def logs():
            logging.getLogger("mine").warning("logged")
            warnings.warn("careful")
        for body in (shows, cleared, bars, logs):
            await step.do(body.__name__, body)
"""


def test_displays_figures_bars_records_and_warnings_are_kept_and_not_in_the_cell(kernel):
    kernel.run("console = logging.StreamHandler(); logging.getLogger('mine').addHandler(console)", ok=True)
    out = kernel.run(RICH, ok=True)
    assert out.stderr == ""
    assert not [bundle for bundle in out.displays if "image/png" in bundle or "bold" in str(bundle)]
    shown = kernel.evaluate("[(i.stream, i.text, sorted(i.mime)) for i in inst.step('shows').log]")
    assert shown == [
        ("display", "<IPython.core.display.HTML object>", ["text/html", "text/plain"]),
        ("display", "'second'", ["text/plain"]),
        ("display", "<Figure size 640x480 with 1 Axes>", ["image/png", "text/plain"]),
    ]
    assert kernel.evaluate("inst.step('shows').log[2].mime['image/png'][:8]") == "iVBORw0K"
    assert kernel.evaluate("texts('cleared')") == [("stdout", "stays\n")]
    [(stream, text)] = kernel.evaluate("texts('bars')")
    assert stream == "stderr"
    assert text.startswith("bar: 100%")
    assert "30/30" in text
    (first, record), (second, warning) = kernel.evaluate("texts('logs')")
    assert (first, record, second) == ("log", "WARNING mine: logged", "warning")
    assert "UserWarning: careful" in warning


def test_a_bar_of_the_notebook_outside_bodies_is_still_a_widget(kernel):
    kernel.run(RICH, ok=True)
    out = kernel.run("for _ in tqdm(range(2)): pass", ok=True)
    assert len(out.views) == 1


def test_a_gigabyte_printed_while_a_cell_runs_stays_out_of_the_shells_memory(kernel):
    """IPython keeps what a cell prints for its history of outputs."""
    kernel.run(
        "%%workflow g --as inst --wait\n"
        "class Gigabyte(WorkflowEntrypoint):\n"
        "    async def run(self, event, step):\n"
        "        def body():\n"
        "            for _ in range(1000):\n"
        "                print('x' * 1_000_000)\n"
        "        await step.do('s', body)\n",
        ok=True,
    )
    assert kernel.evaluate("inst.step('s').log[-1].text") == "cut: 999,001,000 more bytes were printed"
    assert kernel.evaluate("'xxxx' in str(get_ipython().history_manager.outputs)") is False
    # Of this process alone: `ru_maxrss` begins with what the parent had.
    peak = "next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM'))"
    assert kernel.evaluate(f"{peak} < 600_000") is True


DIES = """%%workflow d --as inst
class Dies(WorkflowEntrypoint):
    async def run(self, event, step):
        def first():
            print("first said")
            display(HTML("<i>shown</i>"))
        def second(ctx):
            print("try", ctx.attempt)
            if again:
                return
            time.sleep(60)
        await step.do("first", first)
        await step.do("second", second)
"""


def test_logs_are_there_after_a_sigkill_in_a_new_kernel(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run(SETUP + "again = False", ok=True)
        kernel.run(DIES, ok=True)
        kernel.until("inst.step('first').ended_at and len(inst.steps) == 2 and inst.step('second').logs")
        kernel.until(
            "b'try 1' in b''.join(f.read_bytes() for f in __import__('pathlib').Path('.nbflow').glob('journal/*.seg'))"
        )
        kernel.kill()
        kernel.restart()
        kernel.run(SETUP + "again = True", ok=True)
        kernel.run(DIES.replace("--as inst", "--as inst --wait"), ok=True)
        assert kernel.evaluate("inst.step('first').logs") == "first said\n<IPython.core.display.HTML object>\n"
        assert kernel.evaluate("inst.step('first').log[1].mime['text/html']") == "<i>shown</i>"
        assert kernel.evaluate("[(i.attempt, i.text) for i in inst.step('second').log]") == [(1, "try 1\n"), (2, "try 2\n")]


def test_headless_bodies_prints_and_displays_are_in_the_notebook_and_kept(tmp_path):
    book = nbformat.v4.new_notebook()
    cell = RICH.replace("--as inst --wait", "--as inst")
    book.cells = [nbformat.v4.new_code_cell(source) for source in (SETUP, PARALLEL.replace("go.wait(20)", "go.set()"), cell)]
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, timeout=60, kernel_name="python3", resources=resources).execute()
    said = "".join(out.text for out in book.cells[1].outputs if out.get("name") == "stdout")
    for word in ("plain", "looped"):
        assert [line for line in said.splitlines() if line.startswith(f"{word} ")][-10:] == lines(word).splitlines()
    shown = [out.data for out in book.cells[2].outputs if out.output_type == "display_data"]
    assert any("image/png" in data for data in shown)
    assert any(data.get("text/html") == "<b>bold</b>" for data in shown)
    with Engine(tmp_path / ".nbflow" / "history.duckdb", notebook="test") as engine:
        assert engine.get("p").step("looped").logs == lines("looped")
        assert engine.get("r").step("shows").log[0].mime["text/html"] == "<b>bold</b>"


def test_without_a_panel_prints_are_in_the_cell_too(kernel):
    out = kernel.run("%config NBFlow.panel = False\n" + "", ok=True)
    out = kernel.run(
        "%%workflow q --as inst --wait\n"
        "class Quiet(WorkflowEntrypoint):\n"
        "    async def run(self, event, step):\n"
        "        await step.do('s', print, 'said')\n",
        ok=True,
    )
    assert "said\n" in out.stdout
    assert kernel.evaluate("texts('s')") == [("stdout", "said\n")]
