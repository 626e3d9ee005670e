"""Another store is opened before the one that is open is left: a refused switch costs no running work (API.md §3, §11, §12)."""

import pytest

from tests.jupyter.kernels import kernel_in

pytestmark = pytest.mark.kernel

HELD = """%%workflow held --as held
from nbflow import WorkflowEntrypoint
class Held(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("hold", go.wait, 60)
        return (await step.wait_for_event("ask", "answer")).payload
"""


@pytest.fixture
def kernel(tmp_path):
    (tmp_path / "notes.txt").write_text("no history")
    with kernel_in(tmp_path) as kernel:
        kernel.run("%load_ext nbflow\nimport os, threading, nbflow\ngo = threading.Event()", ok=True)
        kernel.run(HELD, ok=True)
        kernel.run("engine = nbflow.current_engine(); shown = held.panel()", ok=True)
        kernel.until("held.step('hold').status.value == 'running'")
        yield kernel


def still_at_work(kernel):
    """The engine is the same and open, its panel is there, and what ran runs on to its end."""
    from_pages = "__import__('nbflow.jupyter.panel', fromlist=['_panels'])._panels"
    assert kernel.evaluate(f"(nbflow.current_engine() is engine, engine.closed, shown in {from_pages}.values())") == (
        True,
        False,
        True,
    )
    assert kernel.evaluate("held.status().status.value") == "running"
    kernel.run("go.set(); held.wait(30); held.send_event('answer', 7); held.wait(30)", ok=True)
    assert kernel.evaluate("(held.output, len(held.step('hold').attempts))") == (7, 1)


BAD = ["typo/hist.duckdb", "notes.txt", ".", "/proc/nowhere/x.duckdb", "notes.txt/x.duckdb"]


def test_a_refused_store_stops_nothing(kernel):
    for path in BAD:
        out = kernel.run(f"%workflow store {path}", ok=False)
        assert out.error.split(":")[0] in ("StoreError", "StoreCorruptError", "UsageError"), path
        assert "history " not in out.stdout
        assert all(one["text/html"] for one in out.updates)  # no panel was emptied; the line above one may be rewritten
        assert kernel.evaluate("get_ipython().run_line_magic('config', 'NBFlow.store')") == "", path
    still_at_work(kernel)


def test_a_refused_store_in_config_stops_nothing_and_is_not_kept(kernel):
    for path in BAD:
        out = kernel.run(f"%config NBFlow.store = {path!r}", ok=True)
        assert out.text.strip(), path  # why it was refused
        assert kernel.evaluate("get_ipython().run_line_magic('config', 'NBFlow.store')") == "", path
    kernel.run("%config NBFlow.store = 5", ok=True)
    assert "NBFlow" not in kernel.run("%config NBFlow.panel = False", ok=True).text  # a refused one is not read again
    still_at_work(kernel)


def test_the_store_that_is_open_is_left_open_however_it_is_spelt(kernel):
    (kernel.folder / "link").symlink_to(kernel.folder / ".nbflow")
    for path in (
        ".nbflow/history.duckdb",
        "./.nbflow/../.nbflow/history.duckdb",
        "link/history.duckdb",
        str(kernel.folder / ".nbflow" / "history.duckdb"),
    ):
        out = kernel.run(f"%workflow store {path}", ok=True)
        assert "open already; nothing has changed" in out.stdout
        assert "history.duckdb" in out.result["text/plain"]
    assert "open already" in kernel.run("%config NBFlow.store = 'link/../.nbflow/history.duckdb'", ok=True).stdout
    still_at_work(kernel)


def test_an_environment_changed_by_a_cell_moves_nothing_and_what_it_names_is_tried_first(kernel):
    kernel.run("os.environ['NBFLOW_STORE'] = 'nowhere/x.duckdb'", ok=True)
    kernel.run("%workflow list", ok=True)
    kernel.run("%workflow store notes.txt", ok=False)  # going back to what was set is no switch to what that means now
    kernel.run("%workflow store .nbflow/history.duckdb", ok=True)
    assert "nowhere" in kernel.run("%config NBFlow.store = ''", ok=True).text
    still_at_work(kernel)


def test_a_reload_keeps_the_history_that_is_open_whatever_it_reads(kernel):
    kernel.run("get_ipython().config.NBFlow.store = 5", ok=True)
    kernel.run("%reload_ext nbflow", ok=False)
    kernel.run("%workflow list", ok=True)  # refused while all of it was in place
    kernel.run("get_ipython().config.NBFlow.store = 'nowhere/x.duckdb'", ok=True)
    assert "stays open" in kernel.run("%reload_ext nbflow", ok=True).stdout
    set_now = kernel.evaluate("get_ipython().run_line_magic('config', 'NBFlow.store')")
    assert set_now == str(kernel.folder / ".nbflow" / "history.duckdb")
    still_at_work(kernel)


def test_a_switch_leaves_the_old_store_in_order_and_a_later_cd_makes_it_no_other(kernel):
    kernel.run("go.set(); held.wait(30)", ok=True)
    out = kernel.run("%workflow store other.duckdb", ok=True)
    assert str(kernel.folder / "other.duckdb") in out.stdout
    assert kernel.evaluate("(engine.closed, nbflow.current_engine() is engine)") == (True, False)
    kernel.run("os.mkdir('sub'); os.chdir('sub'); nbflow.current_engine().close()", ok=True)
    assert str(kernel.folder / "other.duckdb") in kernel.run("%workflow list", ok=True).stdout
    kernel.run("%workflow store ../.nbflow/history.duckdb", ok=True)
    assert "resumed held" in kernel.run(HELD, ok=True).text
    kernel.run("held.send_event('answer', 7); held.wait(30)", ok=True)
    assert kernel.evaluate("held.output") == 7


def test_a_refused_store_leaves_what_was_set_also_where_none_is_open_yet(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run("%load_ext nbflow", ok=True)
        kernel.run("%workflow store nowhere/x.duckdb", ok=False)
        assert str(tmp_path / ".nbflow" / "history.duckdb") in kernel.run("%workflow list", ok=True).stdout
