"""`%load_ext nbflow` and `%unload_ext`: what goes into a shell comes out again, and only that."""

import pytest

from tests.jupyter.kernels import kernel_in

pytestmark = pytest.mark.kernel

SNAPSHOT = """
def _shell_as_it_is():
    import atexit, logging, sys, threading
    from IPython.utils import capture
    ip = get_ipython()
    formatter = ip.display_formatter.ipython_display_formatter
    return {
        "magics": {kind: {name: id(f) for name, f in table.items()} for kind, table in ip.magics_manager.magics.items()},
        "registry": sorted(ip.magics_manager.registry),
        "user_magics": sorted(vars(ip.magics_manager.user_magics)),
        "transformers": [id(f) for f in (*ip.input_transformers_post, *ip.input_transformers_cleanup)],
        "line transformers": [id(f) for f in ip.input_transformer_manager.line_transforms],
        "ast transformers": [id(f) for f in ip.ast_transformers],
        "matchers": [id(f) for f in ip.Completer.custom_matchers],
        "events": {name: [id(f) for f in found] for name, found in ip.events.callbacks.items()},
        "formatters": {str(kind): sorted(map(str, [*f.type_printers, *f.deferred_printers])) for kind, f in
                       [*ip.display_formatter.formatters.items(), ("itself", formatter),
                        ("bundle", ip.display_formatter.mimebundle_formatter)]},
        "configurables": [id(c) for c in ip.configurables],
        "publish": (id(ip.display_pub), "publish" in vars(ip.display_pub)),
        "streams": [type(sys.stdout).__name__, type(sys.stderr).__name__],
        "publishers": [id(vars(cls).get(name)) for cls in type(ip.display_pub).__mro__ for name in ("publish", "clear_output")],
        "capture": id(capture.capture_output.__enter__),
        "logging": id(logging.Logger.callHandlers),
        "hooks": sorted(vars(ip.hooks)),
        "names": sorted(name for name in ip.user_ns if not name.startswith("_")),
        "threads": sorted(t.name for t in threading.enumerate() if "nbflow" in t.name.lower()),
    }
"""

CELL = """%%workflow --define
from nbflow import WorkflowEntrypoint
class Ingest(WorkflowEntrypoint):
    async def run(self, event, step):
        return await step.do("one", lambda: 1)
"""


def test_loading_starts_no_thread_opens_no_file_and_is_quick(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run("import threading, time, os; names = {t.name for t in threading.enumerate()}; start = time.perf_counter()")
        kernel.run("%load_ext nbflow", ok=True)
        kernel.run("took = time.perf_counter() - start")
        assert kernel.evaluate("{t.name for t in threading.enumerate()} - names") == set()
        assert not (tmp_path / ".nbflow").exists()
        assert kernel.evaluate("'duckdb' in __import__('sys').modules") is False
        assert kernel.evaluate("took") < 2  # the budget of 250 ms is measured in tests/bench, never asserted


def test_unload_leaves_the_shell_exactly_as_it_was(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run(SNAPSHOT, ok=True)
        kernel.run("%unload_ext nothing")  # IPython loads its own extension magics at their first use
        kernel.run("before = None; after = None; before = _shell_as_it_is()", ok=True)
        kernel.run("%load_ext nbflow", ok=True)
        assert kernel.evaluate("_shell_as_it_is()['magics'] == before['magics']") is False
        kernel.run(CELL, ok=True)
        kernel.run(RUNNING, ok=True)
        kernel.run("import nbflow; nbflow.current_engine().instance('u1').wait(20)", ok=True)
        kernel.run("%unload_ext nbflow", ok=True)
        kernel.run("del Ingest, nbflow, WorkflowEntrypoint, Ends", ok=True)
        kernel.run("after = _shell_as_it_is()", ok=True)
        different = kernel.evaluate("{name: (before[name], after[name]) for name in before if before[name] != after[name]}")
        assert different == {}


RUNNING = """%%workflow u1
class Ends(WorkflowEntrypoint):
    async def run(self, event, step):
        return await step.do("one", print, "said")
"""


def test_a_magic_of_the_user_with_the_same_name_comes_back(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run(
            "from IPython.core.magic import register_line_cell_magic\n"
            "@register_line_cell_magic\ndef workflow(line, cell=None):\n    return f'mine {line}'"
        )
        kernel.run("%load_ext nbflow", ok=True)
        assert "mine" not in kernel.run("%workflow", ok=True).text
        kernel.run("%unload_ext nbflow", ok=True)
        assert kernel.run("%workflow x", ok=True).result["text/plain"] == "'mine x'"
        assert kernel.run("%%workflow y\nbody", ok=True).result["text/plain"] == "'mine y'"


def test_unload_leaves_alone_what_somebody_else_put_in_our_place(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run("%load_ext nbflow", ok=True)
        kernel.run(
            "from IPython.core.magic import register_line_magic\n@register_line_magic\ndef workflow(line):\n    return 'theirs'"
        )
        kernel.run("%unload_ext nbflow", ok=True)
        assert kernel.run("%workflow", ok=True).result["text/plain"] == "'theirs'"
        assert kernel.evaluate("'workflow' in get_ipython().magics_manager.magics['cell']") is False


def test_loading_twice_is_harmless(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run(SNAPSHOT, ok=True)
        kernel.run("%load_ext nbflow", ok=True)
        kernel.run("once = None; once = _shell_as_it_is()", ok=True)
        kernel.run("%load_ext nbflow", ok=True)
        kernel.run("import nbflow; nbflow.load_ipython_extension(get_ipython()); del nbflow", ok=True)
        assert kernel.evaluate("_shell_as_it_is() == once") is True
        for _ in range(2):
            assert kernel.run("print('still prints')", ok=True).stdout == "still prints\n"


def test_reload_keeps_running_instances(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run("%load_ext nbflow\nimport threading, nbflow\ngo = threading.Event()", ok=True)
        kernel.run(
            "%%workflow held --as held\n"
            "from nbflow import WorkflowEntrypoint\n"
            "class Held(WorkflowEntrypoint):\n"
            "    async def run(self, event, step):\n"
            "        return await step.do('hold', go.wait, 30)\n",
            ok=True,
        )
        kernel.run("engine = nbflow.current_engine()")
        kernel.run("%reload_ext nbflow", ok=True)
        assert kernel.evaluate("nbflow.current_engine() is engine") is True
        assert kernel.evaluate("held.status().status.value") == "running"
        kernel.run("go.set(); held.wait(20)", ok=True)
        assert kernel.evaluate("held.output") is True
        assert "held: complete" in kernel.run("%workflow wait held", ok=True).stdout


def test_unload_closes_the_engine_and_loading_again_resumes(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run("%load_ext nbflow\nimport nbflow", ok=True)
        kernel.run(
            "%%workflow w1 --as inst\n"
            "from nbflow import WorkflowEntrypoint\n"
            "ran = []\n"
            "class Waits(WorkflowEntrypoint):\n"
            "    async def run(self, event, step):\n"
            "        await step.do('first', ran.append, 1)\n"
            "        return (await step.wait_for_event('ask', 'answer')).payload\n",
            ok=True,
        )
        kernel.run("inst.wait(20)", ok=True)
        kernel.run("%unload_ext nbflow\n%load_ext nbflow", ok=True)
        out = kernel.run(
            "%%workflow w1 --as inst\n"
            "class Waits(WorkflowEntrypoint):\n"
            "    async def run(self, event, step):\n"
            "        await step.do('first', ran.append, 1)\n"
            "        return (await step.wait_for_event('ask', 'answer')).payload\n",
            ok=True,
        )
        assert "resumed w1" in out.text
        kernel.run("inst.send_event('answer', 7); inst.wait(20)", ok=True)
        assert kernel.evaluate("(ran, inst.output)") == ([1], 7)


def test_settings_are_shown_and_taken_by_config(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run("%load_ext nbflow", ok=True)
        shown = kernel.run("%config NBFlow", ok=True).stdout
        assert all(name in shown for name in ("NBFlow.store", "NBFlow.panel", "NBFlow.stable_output", "NBFlow.notify"))
        (tmp_path / "elsewhere").mkdir()
        out = kernel.run(
            "%config NBFlow.store = 'elsewhere/other.duckdb'\nimport nbflow\nengine = nbflow.current_engine()", ok=True
        )
        assert str(tmp_path / "elsewhere" / "other.duckdb") in out.stdout
        assert (tmp_path / "elsewhere" / "other.duckdb").exists()


def test_what_cannot_be_notified_is_refused_by_config_and_what_was_set_stays(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run("%load_ext nbflow\nheard = []", ok=True)
        kernel.run("%config NBFlow.notify = lambda instance, what: heard.append(what)", ok=True)
        out = kernel.run("%config NBFlow.notify = 5")
        assert "NBFlow.notify = 5 is nothing to call; give a callable (instance, what)" in out.text + str(out.errors)
        kernel.run(CELL.replace("--define", ""), ok=True)
        kernel.until("heard == ['complete']")
        kernel.run("%config NBFlow.notify = None", ok=True)
        kernel.run("%config NBFlow.notify = 'mail'")
        out = kernel.run("%config NBFlow.panel = False", ok=True)  # the refused one is not read again
        assert "notify" not in out.text
        assert kernel.run("%config NBFlow.panel", ok=True).result["text/plain"] == "False"
        assert kernel.run("%config NBFlow.notify", ok=True).result is None
        kernel.run("%workflow list", ok=True)


def test_the_first_use_says_once_where_the_history_is(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run("%load_ext nbflow", ok=True)
        first = kernel.run(CELL, ok=True).stdout
        assert f"{tmp_path / '.nbflow' / 'history.duckdb'} (new)" in first
        assert "history" not in kernel.run(CELL, ok=True).stdout
        kernel.restart()
        kernel.run("%load_ext nbflow", ok=True)
        assert f"{tmp_path / '.nbflow' / 'history.duckdb'} (found)" in kernel.run(CELL, ok=True).stdout


def test_the_environment_names_the_store(tmp_path):
    with kernel_in(tmp_path, env={"NBFLOW_STORE": str(tmp_path / "named.duckdb"), "NBFLOW_STABLE_OUTPUT": "1"}) as kernel:
        kernel.run("%load_ext nbflow", ok=True)
        assert str(tmp_path) not in kernel.run(CELL, ok=True).stdout  # stable output names no path
        assert (tmp_path / "named.duckdb").exists()


def test_the_help_of_both_magics_is_shown(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run("%load_ext nbflow", ok=True)
        page = kernel.run("%%workflow?").reply["payload"][0]["data"]["text/plain"]
        assert "--params" in page
        assert "--awaited" not in page
        assert "send-event" in kernel.run("%workflow?").reply["payload"][0]["data"]["text/plain"]
