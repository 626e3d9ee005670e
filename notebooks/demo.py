"""What `make demo` shows: `01_ingest.ipynb` in a real kernel, the kernel killed in the middle, the cells run again.

Nobody clicks here, so the notebook's own cell gives the answer. Every claim that is printed is checked; one that does not
hold makes the exit code 1. The history and the vectors stay in `.demo/`, to be opened in JupyterLab afterwards.
"""

import argparse
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

NOTEBOOK = Path(__file__).resolve().with_name("01_ingest.ipynb")
FOLDER = NOTEBOOK.parents[1] / ".demo"
BODIES, LOG = "bodies.log", "kernels.log"
TIMEOUT = 300  # seconds for one cell

# Run after the notebook's functions are defined: each call of a body leaves a line when it begins and one when it ends, in a
# file, so that lines of a killed kernel are kept.
COUNT = """
def _counted(body):
    import functools, os

    @functools.wraps(body)
    def counted(*args):
        name = f"{body.__name__}({args[-1] if args else ''})"
        log = os.open("bodies.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(log, f"began {name}\\n".encode())
            value = body(*args)
            os.write(log, f"ended {name}\\n".encode())
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

    def __init__(self, folder: Path) -> None:
        self._manager = KernelManager(kernel_name="python3")
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self._manager._kernel_spec = KernelSpec(argv=argv, display_name="Python 3", language="python")
        # The name that JupyterLab gives: the notebook opened there later is the same notebook to nbflow.
        env = {name: value for name, value in os.environ.items() if not name.startswith("NBFLOW_")}
        env |= {"JPY_SESSION_NAME": NOTEBOOK.name, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        with (folder / LOG).open("ab") as log:
            self._manager.start_kernel(cwd=str(folder), env=env, stderr=log)
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
            self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()


class Story:
    """Tell what happens, and keep what did not hold."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.broken: list[str] = []

    def tell(self, text: str, shown: str = "") -> None:
        print(f"{time.monotonic() - self._started:5.1f} s  {text}", flush=True)
        for line in shown.splitlines():
            print(f"         │ {line}".rstrip(), flush=True)

    def claim(self, holds: bool, text: str) -> None:
        print(f"         {'✓' if holds else '✗ NOT TRUE:'} {text}", flush=True)
        if not holds:
            self.broken.append(text)


class Demo:
    """One run of the story in one folder."""

    def __init__(self, notebook: Path, folder: Path) -> None:
        self._folder, self._story = folder, Story()
        shutil.copy(notebook, folder / NOTEBOOK.name)
        cells = nbformat.read(notebook, as_version=4).cells
        sources = {cell.id: cell.source for cell in cells if cell.cell_type == "code"}
        names = list(sources)
        at = names.index("workflow")
        self._before = [*(sources[name] for name in names[:at]), COUNT]
        self._workflow = sources["workflow"]
        self._after = {name: sources[name] for name in names[at + 1 :]}
        self._batches = int(re.search(r'"batches": (\d+)', self._workflow)[1])

    def run(self) -> list[str]:
        """Tell the story; gives the claims that did not hold."""
        kernel = Kernel(self._folder)
        try:
            self._until_killed(kernel)
            kernel = Kernel(self._folder)
            self._again(kernel)
        finally:
            kernel.stop()
        return self._story.broken

    def _until_killed(self, kernel: Kernel) -> None:
        story = self._story
        story.tell(f"kernel {kernel.pid} runs {NOTEBOOK.name}: load documents, chunk, embed in {self._batches} steps")
        for source in self._before:
            kernel.run(source)
        kernel.send(self._workflow)
        self._wait_for_batch(self._batches // 3 + 1)
        kernel.kill()
        began, ended = self._bodies("began"), self._bodies("ended")
        cut = [name for name in began if began[name] > ended[name]]
        what = f"{began.total()} bodies had begun, {ended.total()} had ended; cut off: {', '.join(cut) or 'none'}"
        story.tell(f"SIGKILL. {what}")

    def _again(self, kernel: Kernel) -> None:
        story, after = self._story, dict(self._after)
        story.tell(f"kernel {kernel.pid} runs the same cells again")
        for source in self._before:
            kernel.run(source)
        recorded = kernel.value(RECORDED)
        story.tell(f"the history has {len(recorded)} finished steps")
        said = kernel.run(self._workflow)
        story.tell("the workflow cell says:", said)
        from_history = kernel.value(FROM_HISTORY)
        kernel.run(after.pop("approve"))
        story.tell("nobody clicks here: the notebook's next cell has sent the approval")
        output = ast.literal_eval(kernel.run(after.pop("output")))
        story.tell(f"complete: {output}")
        found = kernel.run(after.pop("search"))
        story.tell("search for 'merge two tables on a key column':", found)
        for source in after.values():
            kernel.run(source)
        story.tell("counted:")
        self._check_bodies(kernel, recorded, from_history, said)
        self._check_vectors(kernel, output, found)

    def _check_bodies(self, kernel: Kernel, recorded: list, from_history: int, said: str) -> None:
        claim, batches = self._story.claim, self._batches
        began = self._bodies("began")
        steps = kernel.value(STEPS)
        embedded = sum(name == "embed" for name, _ in recorded)
        claim(0 < embedded < batches, f"the kill fell into the embedding: {embedded} of {batches} batches were recorded")
        claim(
            from_history == len(recorded) > 0 and f"{from_history} steps from history" in said,
            f"{len(recorded)} steps were finished before the kill, {from_history} came from history; the cell says so",
        )
        twice = [step for step in recorded if began[self._body_of(*step)] != 1]
        claim(not twice, f"{len(twice)} finished bodies ran twice")
        cut = began.total() - len(steps)
        claim(
            cut in (0, 1), f"{began.total()} bodies began for {len(steps)} steps: {cut} was cut off by the kill and began again"
        )
        claim(len(steps) == batches + 3, f"{len(steps)} steps, each recorded once: load, chunk, {batches} × embed, publish")

    def _check_vectors(self, kernel: Kernel, output: dict, found: str) -> None:
        claim = self._story.claim
        rows, distinct, kind, chunks = kernel.value(VECTORS)
        complete = rows == distinct == chunks == output["published"]
        claim(complete, f"{rows:,} vectors ({kind}) for {chunks:,} chunks: none is missing, none is there twice")
        claim("pandas.merge" in found, "the search finds what it should")

    def _bodies(self, what: str) -> Counter:
        """How often each body began or ended so far."""
        path = self._folder / BODIES
        lines = path.read_text().splitlines() if path.exists() else []
        return Counter(name for kind, _, name in (line.partition(" ") for line in lines) if kind == what)

    def _body_of(self, name: str, count: int) -> str:
        """The body that a recorded step ran, as the log names it."""
        others = {"load": "load_docs()", "chunk": f"store_chunks({self._batches})", "publish": "publish()"}
        return others.get(name, f"embed_batch({count - 1})")

    def _wait_for_batch(self, number: int) -> None:
        """Return when the body of that batch has begun, so that the kill falls into it."""
        end = time.monotonic() + TIMEOUT
        while sum(count for name, count in self._bodies("began").items() if name.startswith("embed_batch")) < number:
            if time.monotonic() > end:
                raise CellFailed(f"batch {number} did not begin within {TIMEOUT} s")
            time.sleep(0.002)


def how_to_open(folder: Path) -> str:
    """The commands that open it in JupyterLab."""
    jupyter = Path(sys.executable).with_name("jupyter")
    within = folder.parent in jupyter.parents  # then a path that survives moving the project reads better
    command = os.path.relpath(jupyter, folder) if within else str(jupyter)
    return (
        f"The history is in {os.path.relpath(folder)}/.nbflow. To see it with the panel, and to click Approve yourself:\n\n"
        f"    cd {os.path.relpath(folder)} && {command} lab {NOTEBOOK.name}\n\n"
        f"Run all cells: everything comes from history. With --again on the %%workflow line a new instance starts."
    )


def main() -> int:
    """Run the story; gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where it happens, new or empty; .demo in the project, emptied, by default")
    parser.add_argument("--notebook", type=Path, default=NOTEBOOK, help="another version of the notebook")
    asked = parser.parse_args()
    if asked.folder is None:
        shutil.rmtree(FOLDER, ignore_errors=True)
    folder = (asked.folder or FOLDER).resolve()
    folder.mkdir(exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{str(folder)!r} is not empty")
    try:
        broken = Demo(asked.notebook, folder).run()
    except CellFailed as error:
        print(f"\na cell failed: {error}\nthe kernels' log is {folder / LOG}", file=sys.stderr)
        return 1
    if broken:
        print(f"\nnot true: {'; '.join(broken)}\nthe kernels' log is {folder / LOG}", file=sys.stderr)
        return 1
    print(f"\n{how_to_open(folder)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
