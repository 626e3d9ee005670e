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
        """Run a cell; its workflow is known under a name of this test's own: others of one name would go on with it."""
        code = code.replace("{id}", self.id).replace("{line}", line)
        return self.kernel.run(code.replace("Ingest", f"Ingest_{self.id}"), ok=ok)

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
    return "\n".join(bundle["text/plain"] for bundle in outputs.latest.values() if bundle.get("text/plain"))


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
    yield Notebook(kernel)
    kernel.run("[i.terminate() for i in engine.list() if not i.is_finished()]", ok=True)


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


def test_a_changed_constant_is_named(book):
    book.cell(CELL.replace("len(doc)", "len(doc) if MODEL else 0"))
    book.run('MODEL = "large"')
    line = book.cell(CELL.replace("len(doc)", "len(doc) if MODEL else 0"))
    assert "1 stale: embed" in line
    assert book.stale == {"embed": ("MODEL changed",)}
    assert "-MODEL = 'small'" in book.see("inst.step('embed').code_diff")
    assert book.see("(inst.view().stale, inst.status().status.value)") == (1, "waiting")


def test_comments_and_formatting_change_nothing(book):
    book.cell()
    entries = book.see("len(inst.history())")
    book.run(HELPERS.replace("return text.strip()", '"""Docs."""\n    # a comment\n    return (text\n        .strip())'))
    line = book.cell(
        edited(
            CELL,
            ("            ran.append", "            # what it does\n            ran.append"),
            ("return [len", "return  [len"),
        )
    )
    assert "stale" not in line
    assert book.stale == {}
    assert book.see("len(inst.history())") == entries  # not even another activation
    assert book.see("inst.view().code_same") is True


def test_the_failing_step_is_fixed_and_goes_on(book):
    broken = CELL.replace("len(doc)", "len(doc) / 0")
    assert "errored" in book.cell(broken, line="-w")
    line = book.cell()
    assert "resumed" in line
    assert "1 step from history, goes on" in line or "goes on at embed" in line
    assert "stale" not in line
    assert book.ran == ["load", "embed", "embed"]
    assert book.see("inst.step('embed').output") == [1, 1]
    assert book.see("[a.status.value for a in inst.step('embed').attempts]") in (["finished"], ["failed", "finished"])


def test_a_fixed_helper_lets_the_failed_step_go_on_and_leaves_the_rest_alone(book):
    book.run(HELPERS.replace('ran.append("load")', 'ran.append("load"); 1 / 0'))
    flow = CELL.replace('"load", load_docs', '"load", load_docs, retries=0')
    assert "errored" in book.cell(flow, line="-w")
    book.run(HELPERS)
    line = book.cell(flow)
    assert "resumed" in line
    assert "stale" not in line
    assert book.ran == ["load", "load", "embed"]


def test_a_renamed_finished_step_runs_and_the_old_one_shows_as_unreached(book):
    book.cell()
    book.cell(edited(CELL, ('"load"', '"fetch"')))
    assert book.ran == ["load", "embed", "load"]
    assert book.see("[str(key) for key in inst.status().unreached]") == ["load"]
    assert "1 not reached: load" in book.text
    assert book.stale == {}
    assert book.see("sorted({e.step for e in inst.history() if e.step})") == ["ask", "embed", "fetch", "load"]


def test_inserted_removed_and_reordered_steps_keep_what_is_recorded(book):
    steps = """%%workflow {id} --as inst
class Steps(WorkflowEntrypoint):
    async def run(self, event, step):
        BODY
        return (await step.wait_for_event("ask", "approval")).payload
"""
    call = 'await step.do("NAME", lambda: ran.append("NAME") or "NAME")'

    def flow(*names):
        return steps.replace("BODY", "\n        ".join(call.replace("NAME", name) for name in names))

    book.cell(flow("a", "b", "c"))
    assert book.ran == ["a", "b", "c"]
    line = book.cell(flow("c", "a", "new"))
    assert "stale" not in line
    assert book.ran == ["new"]
    assert book.see("[str(key) for key in inst.status().unreached]") == ["b"]
    assert book.see("[(s.name, s.status.value) for s in inst.steps if s.type == 'do']") == [
        ("a", "finished"), ("b", "finished"), ("c", "finished"), ("new", "finished"),
    ]  # fmt: skip


def test_changed_params_make_an_instance_of_their_own_and_under_an_id_are_refused(book):
    flow = CELL.replace("{id}", "")
    book.cell(flow, line=f"--params {{'n': '{book.id}'}}")
    first = book.see("inst.id")
    book.cell(flow, line=f"--params {{'n': '{book.id}', 'm': 2}}")
    assert book.see("inst.id") != first
    assert book.ran == ["load", "embed"] * 2
    book.cell(CELL, line="--params {'n': 1}")
    out = book.run(CELL, line="--params {'n': 2}", ok=False)
    assert "'n' differ" in out.error
    assert book.ran == ["load", "embed"]


def test_other_retries_of_an_unfinished_step_hold_from_now_on_and_make_nothing_stale(book):
    failing = CELL.replace("len(doc)", "1 / 0").replace("retries=0", 'retries={"limit": 1, "delay": "1 hour"}')
    book.run(failing)
    book.kernel.until("any(s.status == 'retrying' for s in inst.steps)")
    entries = book.see("len(inst.history())")
    book.run(failing.replace('"limit": 1', '"limit": 3'))
    book.kernel.until("inst.step('embed').limit == 4")
    book.kernel.until("any(s.status == 'retrying' for s in inst.steps)")
    assert book.ran == ["load", "embed", "embed"]  # tried at once (S58)
    assert book.stale == {}
    assert book.see(f"[e.kind.value for e in inst.history()[{entries}:]]") == ["activated", "do.started", "do.retrying"]
    book.run("inst.terminate()")


def test_a_helper_fixed_during_a_retry_delay_is_tried_at_once(book):
    book.run(HELPERS.replace("return text.strip()", "return text.nothing()"))
    flow = CELL.replace('"load", load_docs', '"load", load_docs, retries={"limit": 1, "delay": "1 hour"}')
    book.run(flow)
    book.kernel.until("any(s.status == 'retrying' for s in inst.steps)")
    book.run(HELPERS)
    line = book.cell(flow)
    assert "stale" not in line
    assert book.ran == ["load", "load", "embed"]
    assert book.see("inst.step('load').status.value") == "finished"


def test_edited_while_it_runs_it_keeps_its_class_and_changes_over_by_pause_and_resume(book):
    flow = """%%workflow {id} --as inst
class Held(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("hold", lambda: ran.append("hold") or go.wait(20))
        return await step.do("end", lambda: "first")
"""
    book.run("go = threading.Event()")
    book.run(flow)
    book.kernel.until("ran == ['hold']")
    line = said(book.run(flow.replace('"first"', '"second"')))
    assert "still runs the previous class; pause and resume to change over" in line
    book.run(
        "threading.Timer(0.2, go.set).start(); inst.pause(); inst.wait(20); inst.resume(); inst.wait(20, until='finished')"
    )
    assert book.see("(inst.output, ran)") == ("second", ["hold"])
    assert book.see("[e.kind.value for e in inst.history() if e.kind == 'activated']") == ["activated", "activated"]


def test_edited_while_it_sleeps_it_goes_on_with_the_new_code_and_keeps_its_deadline(book):
    flow = CELL.replace('await step.wait_for_event("ask", "approval")', 'await step.sleep("rest", "1 hour")').replace(
        "return answer.payload", "return 1"
    )
    book.run(flow)
    book.kernel.until("inst.status().status == 'waiting'")
    due = book.see("str(inst.step('rest').due_at)")
    line = said(book.run(flow.replace("return 1", "return 2").replace("len(doc)", "3 * len(doc)")))
    assert "1 stale: embed" in line
    assert book.see("str(inst.step('rest').due_at)") == due
    assert book.ran == ["load", "embed"]
    book.run("inst.terminate()")


def test_restart_stale_runs_from_the_first_stale_step(book):
    book.cell()
    book.cell(edited(CELL, ("len(doc)", "2 * len(doc)")))
    assert book.ran == ["load", "embed"]
    out = book.run("%workflow restart {id} --stale")
    book.run("inst.wait(20)")
    assert "running" in out.text or "waiting" in out.text
    assert book.ran == ["embed"]
    assert book.stale == {}
    assert "stale" not in book.text
    assert book.see("inst.step('embed').output") == [2, 2]
    assert "no step of" in book.run("%workflow restart {id} --stale", ok=False).error


def test_code_changes_tells_kept_stale_unreached_and_new_without_running_anything(book):
    flow = CELL.replace('answer = await step.wait_for_event("ask", "approval")', "ran.append('run')").replace(
        "return answer.payload", "return await step.do('end', len, docs)"
    )
    book.cell(flow, until="finished")
    assert book.ran == ["load", "embed", "run"]
    entries = book.see("len(inst.history())")
    assert repr_of(book) == {"kept": ["load", "embed", "end"], "stale": [], "unreached": [], "new": [], "unknown": []}
    changed = edited(
        flow, ("2 * " if "2 * " in flow else "len(doc)", "9 * len(doc)"), ("'end', len, docs", "'last', len, docs")
    )
    book.run(changed.replace("--as inst", "--define").replace("{id}", ""))
    assert repr_of(book) == {"kept": ["load"], "stale": ["embed"], "unreached": [], "new": ["last"], "unknown": ["end"]}
    assert "9 * len(doc)" in book.see("str(inst.code_changes())")
    assert set(book.ran) == {"run"}  # outside steps
    assert book.see("len(inst.history())") == entries
    assert book.see("inst.view().code_same") is False


def repr_of(book: Notebook):
    names = ["kept", "stale", "unreached", "unknown"]
    found = book.see(
        f"(lambda c: ([(n, [s.name for s in getattr(c, n)]) for n in {names}], [str(k) for k in c.new]))(inst.code_changes())"
    )
    return dict(found[0]) | {"new": found[1]}


def test_a_complete_instance_is_shown_and_says_what_is_stale_by_name(book):
    flow = CELL.replace('answer = await step.wait_for_event("ask", "approval")', "").replace(
        "return answer.payload", "return 1"
    )
    book.cell(flow, until="finished")
    book.run(HELPERS.replace("text.strip()", "text.strip().lower()"))
    line = book.cell(flow, until="finished")
    assert "Nothing ran: complete" in line
    assert "1 stale: load" in line
    assert book.ran == ["load", "embed"]
    book.run("%workflow restart {id} --stale")
    book.run("inst.wait(20, until='finished')")
    assert book.ran == ["load", "embed"]
    assert "stale" not in book.cell(flow, until="finished")


def test_a_complete_instance_goes_on_saying_what_is_stale_in_a_body_inside_run(book):
    flow = CELL.replace('answer = await step.wait_for_event("ask", "approval")', "").replace(
        "return answer.payload", "return 1"
    )
    book.cell(flow, until="finished")
    changed = edited(flow, ("len(doc)", "2 * len(doc)"))
    for _ in range(2):
        assert "1 stale: embed" in book.cell(changed, until="finished")
    assert book.stale == {"embed": ("the body changed",)}
    assert "stale" not in book.cell(flow, until="finished")
    assert book.ran == ["load", "embed"]


BODIES_WITHOUT_A_NAME = """%%workflow {id} --as inst
class Ingest(WorkflowEntrypoint):
    async def run(self, event, step):
        words = await step.do("load", lambda: ["a", "bb"])
        await step.do("count", len, words)
        await step.do("upper", "x".upper)
        return await step.map("lengths", len, words)
"""


def test_a_complete_instance_says_nothing_of_bodies_that_have_no_name_of_the_notebook(book):
    for _ in range(2):
        assert "stale" not in book.cell(BODIES_WITHOUT_A_NAME, until="finished")
    assert book.stale == {}


def test_code_changes_corrects_what_was_found_by_name(book):
    flow = edited(CELL, ('answer = await step.wait_for_event("ask", "approval")', ""), ("return answer.payload", "return 1"))
    book.cell(flow, until="finished")
    book.run(HELPERS.replace("text.strip()", "text.strip().lower()"))
    assert "1 stale: load" in book.cell(flow, until="finished")
    book.run(HELPERS)
    assert repr_of(book)["stale"] == []
    assert book.stale == {}


def test_without_an_id_a_complete_workflow_whose_cell_was_edited_is_a_new_instance(book):
    flow = CELL.replace('answer = await step.wait_for_event("ask", "approval")', "").replace(
        "return answer.payload", "return 1"
    )
    flow = flow.replace("{id}", "")
    book.cell(flow, until="finished")
    first = book.see("inst.id")
    book.cell(flow, until="finished")
    assert book.see("inst.id") == first
    line = book.cell(edited(flow, ("return 1", "return 2")), until="finished")
    assert f"new instance {book.see('inst.id')}: the code has changed since {first} was complete" in line
    assert book.see("inst.id") != first


def test_sources_and_secrets_only_what_stands_in_a_cell_is_kept(book):
    book.kernel.run("import os; os.environ['NB_KEY'] = 'sk-' + 'live-' + '4711'")
    book.run("KEY = os.environ['NB_KEY']")
    book.cell(CELL.replace("len(doc)", "len(doc) if KEY else 0"))
    found = book.see("'sk-live-4711' in str([(s.code, s.code_diff) for s in inst.steps]) + str(engine.store._sources)")
    assert found is False
    book.run("KEY = KEY + 'x'")
    book.cell(CELL.replace("len(doc)", "len(doc) if KEY else 0"))
    assert book.stale == {"embed": ("KEY changed",)}


def test_run_all_after_a_kernel_restart_resumes_and_says_what_was_edited_meanwhile(tmp_path):
    with kernel_in(tmp_path) as kernel:
        book = Notebook(kernel)
        kernel.run(SETUP + HELPERS, ok=True)
        book.cell()
        kernel.kill()
        kernel.restart()
        kernel.run(SETUP + edited(HELPERS, ("text.strip()", "text.strip().lower()")), ok=True)
        line = book.cell()
        assert "resumed" in line
        assert "2 steps from history · 1 stale: load" in line
        assert book.ran == []
        assert book.stale == {"load": ("clean changed",)}
        assert "-    return text.strip()\n" in book.see("inst.step('load').code_diff")
        kernel.run("inst.send_event('approval', 7); inst.wait(20)", ok=True)
        assert book.see("inst.output") == 7
        kernel.kill()
        kernel.restart()
        # Nobody looks: the one output that is written at the end says it, too.
        out = kernel.run(SETUP + edited(HELPERS, ("text.strip()", "text.strip().lower()")), stdin=False, ok=True)
        out = kernel.run(
            CELL.replace("{id}", book.id).replace("{line}", "").replace("Ingest", f"Ingest_{book.id}"), stdin=False
        )
        assert "Nothing ran: complete" in out.text
        assert "1 stale: load" in out.text
        assert book.ran == []


def test_the_same_notebook_in_two_kernels_runs_nothing_twice_under_edited_code(tmp_path):
    with kernel_in(tmp_path) as first, kernel_in(tmp_path) as second:
        here, there = Notebook(first), Notebook(second)
        there.id = here.id
        first.run(SETUP + HELPERS, ok=True)
        second.run(SETUP + HELPERS, ok=True)
        here.cell()
        line = said(there.run(edited(CELL, ("len(doc)", "2 * len(doc)"), ("answer.payload", "(answer.payload, 'second')"))))
        assert "runs in another kernel" in line
        assert there.ran == []
        assert there.see("inst.view().code_same") is False
        second.run("inst.send_event('approval', 7); inst.wait(20)", ok=True)
        assert there.see("(inst.output, ran)") == (7, [])
        assert here.ran == ["load", "embed"]
        line = said(there.run(edited(CELL, ("len(doc)", "2 * len(doc)"), ("answer.payload", "(answer.payload, 'second')"))))
        assert "Nothing ran: complete" in line
