"""What `make demo` shows: `01_ingest.ipynb` in a real kernel, the kernel killed in the middle, the cells run again.

Nobody clicks here, so the notebook's own cell gives the answer. Every claim that is printed is checked; one that does not
hold makes the exit code 1. The history and the vectors stay in `.demo/`, to be opened in JupyterLab afterwards.
"""

import ast
import os
import re
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

NOTEBOOK = Path(__file__).with_name("01_ingest.ipynb")
FOLDER = Path(__file__).resolve().parents[1] / ".demo"
BODIES = FOLDER / "bodies.log"
KERNEL_LOG = FOLDER / "kernel.log"
TIMEOUT = 300  # seconds for one cell

# Run after the notebook's functions are defined: each call of a body leaves a line when it begins and one when it ends, in a
# file, so that lines of a killed kernel are kept.
COUNT = f"""
def _counted(body):
    import functools, os

    @functools.wraps(body)
    def counted(*args):
        name = f"{{body.__name__}}({{args[-1] if args else ''}})"
        log = os.open({str(BODIES)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(log, f"began {{name}}\\n".encode())
            value = body(*args)
            os.write(log, f"ended {{name}}\\n".encode())
        finally:
            os.close(log)
        return value

    return counted

load_docs, store_chunks, embed_batch, publish = map(_counted, (load_docs, store_chunks, embed_batch, publish))
"""
RECORDED = """[(name, count) for name, count in __import__("nbflow").sql(
    "select name, count from steps where workflow = 'IngestDocs' and type = 'do' and ended_at is not null").fetchall()]"""
FROM_HISTORY = "sum(step.from_history for step in run.steps)"
STEPS = "[(step.name, step.count, len(step.attempts)) for step in run.steps if step.type == 'do']"
VECTORS = """duckdb.connect(INDEX).execute(
    "select count(*), count(distinct id), any_value(typeof(vector)), (select count(*) from chunks) from vectors").fetchone()"""


class CellFailed(Exception):
    """A cell of the notebook raised."""


class Kernel:
    """One kernel process in the demo's folder, spoken to as papermill does it: nobody can be asked."""

    def __init__(self) -> None:
        self._manager = KernelManager(kernel_name="python3")
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self._manager._kernel_spec = KernelSpec(argv=argv, display_name="Python 3", language="python")
        # The name that JupyterLab gives: the notebook opened there later is the same notebook to nbflow.
        env = {name: value for name, value in os.environ.items() if not name.startswith("NBFLOW_")}
        env |= {"JPY_SESSION_NAME": NOTEBOOK.name, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        with KERNEL_LOG.open("ab") as log:
            self._manager.start_kernel(cwd=str(FOLDER), env=env, stderr=log)
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)

    @property
    def pid(self) -> int:
        return self._manager.provisioner.pid

    def send(self, code: str) -> None:
        """Have a cell run, and return at once."""
        self._client.execute(code, allow_stdin=False)

    def run(self, code: str) -> str:
        """Run a cell; what it shows, as text."""
        return self._run(code)[0]

    def value(self, expression: str) -> object:
        """The value of an expression there, by its literal repr."""
        answer = self._run("", it=f"repr({expression})")[1]["it"]
        if answer["status"] != "ok":
            raise CellFailed(f"{answer['ename']}: {answer['evalue']}\n\nthe expression was:\n{expression}")
        return ast.literal_eval(ast.literal_eval(answer["data"]["text/plain"]))

    def _run(self, code: str, **expressions: str) -> tuple[str, dict]:
        shown = []

        def show(message: dict) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                shown.append(content["text"])
            elif message["msg_type"] in ("execute_result", "display_data"):
                shown.append(content["data"].get("text/plain", ""))

        reply = self._client.execute_interactive(
            code, allow_stdin=False, output_hook=show, timeout=TIMEOUT, user_expressions=expressions
        )["content"]
        if reply["status"] != "ok":
            trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(reply.get("traceback", [])))
            raise CellFailed(f"{trace or reply}\n\nthe cell was:\n{code}")
        return "\n".join(text.rstrip() for text in shown), reply["user_expressions"]

    def kill(self) -> None:
        """SIGKILL: no handler, no `finally`, no last write."""
        os.kill(self.pid, signal.SIGKILL)
        while self._manager.is_alive():
            time.sleep(0.01)
        self.stop()

    def stop(self) -> None:
        self._client.stop_channels()
        if self._manager.has_kernel:
            self._manager.shutdown_kernel(now=not self._manager.is_alive())
        self._manager.cleanup_resources()


class Story:
    """Tell what happens, and keep what did not hold."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.broken: list[str] = []

    def tell(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:5.1f} s  {text}", flush=True)

    def claim(self, holds: bool, text: str) -> None:
        print(f"         {'✓' if holds else '✗ NOT TRUE:'} {text}", flush=True)
        if not holds:
            self.broken.append(text)


def bodies(what: str) -> Counter:
    """How often each body began or ended so far."""
    lines = BODIES.read_text().splitlines() if BODIES.exists() else []
    return Counter(name for kind, _, name in (line.partition(" ") for line in lines) if kind == what)


def body_of(name: str, count: int, batches: int) -> str:
    """The body that a recorded step ran, as the log names it."""
    return {"load": "load_docs()", "chunk": f"store_chunks({batches})", "publish": "publish()"}.get(name, f"embed_batch({count - 1})")


def main() -> int:
    """Run the story; gives the exit code."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    shutil.copy(NOTEBOOK, FOLDER)
    cells = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"}
    workflow = list(cells).index("workflow")
    before = [*list(cells.values())[:workflow], COUNT]
    after = {name: source for name, source in list(cells.items())[workflow + 1 :]}
    batches = int(re.search(r'"batches": (\d+)', cells["workflow"])[1])
    story = Story()

    kernel = Kernel()
    try:
        story.tell(f"kernel {kernel.pid} runs {NOTEBOOK.name}: load documents, chunk, embed in {batches} steps")
        for source in before:
            kernel.run(source)
        kernel.send(cells["workflow"])
        wait_for_batch(batches // 3 + 1)
        kernel.kill()
        began, ended = bodies("began"), bodies("ended")
        cut = [name for name in began if began[name] > ended[name]]
        story.tell(f"SIGKILL. {began.total()} bodies had begun, {ended.total()} had ended; cut off: {', '.join(cut) or 'none'}")

        kernel = Kernel()
        story.tell(f"kernel {kernel.pid} runs the same cells again")
        for source in before:
            kernel.run(source)
        recorded = kernel.value(RECORDED)
        story.tell(f"the history has {len(recorded)} finished steps")
        shown = kernel.run(cells["workflow"])
        story.tell("the workflow cell says:")
        print(indented(shown))
        from_history = kernel.value(FROM_HISTORY)
        story.claim(f"{from_history} steps from history" in shown, f"the cell says it: {from_history} steps came from history")

        kernel.run(after.pop("approve"))
        story.tell("nobody clicks here, so the notebook's own cell has sent the approval")
        output = ast.literal_eval(kernel.run(after.pop("output")))
        story.tell(f"complete: {output}")
        found = kernel.run(after.pop("search"))
        story.tell("search 'merge two tables on a key column':")
        print(indented(found))
        for source in after.values():
            kernel.run(source)
        check(story, kernel, recorded, from_history, output, found, batches)
    except CellFailed as error:
        print(f"\na cell failed: {error}", file=sys.stderr)
        return 1
    finally:
        kernel.stop()
    return verdict(story)


def wait_for_batch(number: int) -> None:
    """Return when the body of that batch has begun, so that the kill falls into it."""
    end = time.monotonic() + TIMEOUT
    while sum(count for name, count in bodies("began").items() if name.startswith("embed_batch")) < number:
        if time.monotonic() > end:
            raise CellFailed(f"batch {number} did not begin within {TIMEOUT} s; see {KERNEL_LOG}")
        time.sleep(0.002)


def check(story: Story, kernel: Kernel, recorded: list, from_history: int, output: dict, found: str, batches: int) -> None:
    """Hold every claim against what was counted."""
    story.tell("counted:")
    began = bodies("began")
    steps = kernel.value(STEPS)
    repeated = [step for step in recorded if began[body_of(*step, batches)] != 1]
    embedded = sum(name == "embed" for name, _ in recorded)
    cut_off = began.total() - len(steps)
    story.claim(0 < embedded < batches, f"the kill fell into the embedding: {embedded} of {batches} batches were recorded")
    story.claim(from_history == len(recorded), f"{len(recorded)} steps were finished before the kill, {from_history} came from history")
    story.claim(not repeated, f"{len(repeated)} finished bodies ran twice")
    story.claim(
        cut_off in (0, 1), f"{began.total()} bodies began for {len(steps)} steps: {cut_off} was cut off by the kill and began again"
    )
    story.claim(len(steps) == batches + 3, f"{len(steps)} steps, each recorded once: load, chunk, {batches} × embed, publish")
    rows, distinct, kind, chunks = kernel.value(VECTORS)
    story.claim(
        rows == distinct == chunks == output["published"], f"{rows:,} vectors ({kind}) for {chunks:,} chunks, none missing, none double"
    )
    story.claim("merge" in found.splitlines()[1], "the search finds what it should")


def verdict(story: Story) -> int:
    if story.broken:
        print(f"\n{len(story.broken)} claims did not hold; the kernels' log is {KERNEL_LOG}", file=sys.stderr)
        return 1
    jupyter = os.path.relpath(Path(sys.executable).parent / "jupyter", FOLDER)
    folder = os.path.relpath(FOLDER)
    print(f"\nThe history is in {folder}/.nbflow. To see it with the panel, and to click Approve yourself:")
    print(f"\n    cd {folder} && {jupyter} lab {NOTEBOOK.name}\n")
    print("Run all cells: everything comes from history. With --again on the %%workflow line a new instance starts.")
    return 0


def indented(text: str) -> str:
    return "\n".join(f"         │ {line}" for line in text.splitlines())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
