"""The edits of a notebook's daily life, each by running a changed cell in a real kernel (S56, S57, S58).

Every test looks at what a person sees (the cell's one line, the text under it) and at what the history holds.
"""

import re
import uuid

import pytest

from tests.jupyter.kernels import Kernel, Outputs, kernel_in

pytestmark = pytest.mark.kernel

SETUP = """%load_ext nbflow
import nbflow, os, threading
from nbflow import WorkflowEntrypoint
engine = nbflow.current_engine()
ran = []
"""

HELPERS = """
MODEL = "small"
def clean(text):
    return text.strip()
def load_docs():
    ran.append("load")
    return [clean(" a "), clean("b ")]
"""

CELL = """%%workflow {id} --as inst {line}
class Ingest(WorkflowEntrypoint):
    async def run(self, event, step):
        docs = await step.do("load", load_docs)
        @step.do("embed", retries=0)
        def embed():
            ran.append("embed")
            return [len(doc) for doc in docs]
        await embed()
        answer = await step.wait_for_event("ask", "approval")
        return answer.payload
"""


class Notebook:
    """One notebook's worth of cells in a kernel that several tests share; each has an instance of its own."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.id = f"i{uuid.uuid4().hex[:8]}"

    def run(self, code: str, *, line: str = "", ok: bool = True) -> Outputs:
        return self.kernel.run(code.replace("{id}", self.id).replace("{line}", line), ok=ok)

    def cell(self, code: str = CELL, *, until: str = "settled", line: str = "") -> str:
        """Run a workflow's cell, wait for its instance, give what the cell says at last."""
        outputs = self.run(code, line=line)
        self.run(f"inst.wait(20, until={until!r})")
        return said(outputs)

    def see(self, expression: str):
        return self.kernel.evaluate(expression)

    @property
    def ran(self) -> list[str]:
        ran = self.see("ran")
        self.run("ran.clear()")
        return ran

    @property
    def text(self) -> str:
        """The text repr as it is now."""
        return self.run("%workflow show {id}").text

    @property
    def stale(self):
        return dict(self.see("[(s.name, s.stale_why) for s in inst.steps if s.stale]"))


def said(outputs: Outputs) -> str:
    """What stands under the cell: displays, the latest version of each."""
    shown = [*outputs.displays, *outputs.updates]
    lines = [bundle["text/plain"] for bundle in shown if bundle.get("text/plain") and "view_id" not in str(bundle)]
    return lines[-1] if lines else outputs.text


def edited(code: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in code, old
        code = code.replace(old, new)
    return code


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    with kernel_in(tmp_path_factory.mktemp("edits")) as kernel:
        kernel.run(SETUP, ok=True)
        yield kernel


@pytest.fixture
def book(kernel):
    kernel.run("ran.clear()" + HELPERS, ok=True)
    return Notebook(kernel)


def test_a_finished_step_whose_body_was_edited_is_served_and_called_stale(book):
    book.cell()
    assert book.ran == ["load", "embed"]
    line = book.cell(edited(CELL, ("len(doc)", "2 * len(doc)")))
    assert "1 stale: embed" in line
    assert "1 stale: embed" in book.text
    assert book.ran == []
    assert book.stale == {"embed": ("the body changed",)}
    assert book.see("inst.step('embed').output") == [1, 1]
    diff = book.see("inst.step('embed').code_diff")
    assert re.search(r"^-\s+return \[len\(doc\)", diff, re.M)
    assert re.search(r"^\+\s+return \[2 \* len\(doc\)", diff, re.M)
    assert "return [len(doc) for doc in docs]" in book.see("inst.step('embed').code")


def test_an_edited_helper_makes_the_steps_that_reach_it_stale_through_another_helper_too(book):
    book.cell()
    book.run(HELPERS.replace("text.strip()", "text.strip().lower()"))
    line = book.cell()
    assert "1 stale: load" in line
    assert book.stale == {"load": ("clean changed",)}
    assert "+    return text.strip().lower()" in book.see("inst.step('load').code_diff")
