"""Which instance a cell is about, where several could be meant: renamed notebooks, unknown ones, `--again` (API.md §3)."""

import subprocess
import sys
import threading
from collections import Counter

import pytest

from nbflow import Engine
from nbflow.engine import current
from nbflow.engine.each import open_each
from tests.engine.conftest import entrypoint, eventually


async def one(event, step):
    await step.do("work", lambda: None)
    return 1


async def asks(event, step):
    await step.do("work", lambda: None)
    await step.wait_for_event("ask", "go")


async def fails(event, step):
    await step.do("work", lambda: 1 / 0, retries=0)


class Kernel:
    """An engine on a store beside its notebook, and its cell."""

    def __init__(self, folder, notebook="a.ipynb"):
        self.engine = Engine(folder / ".nbflow" / "history.duckdb", notebook=notebook)

    def cell(self, run, instance_id=None, params=None, *, again=False, source="s"):
        """Run a cell to where it rests; gives what happened, and to which instance."""
        workflow = self.engine.register(entrypoint(run), "W", source=source, resume=False)
        opened = self.engine.open(workflow, instance_id, params, again=again)
        opened.start()
        opened.instance.wait(20)
        return opened.what, opened.instance.id

    def close(self):
        self.engine.close()


@pytest.fixture
def kernel(tmp_path):
    made: list[Kernel] = []

    def make(notebook="a.ipynb"):
        for former in made:
            former.close()
        (tmp_path / notebook).touch()
        made.append(Kernel(tmp_path, notebook))
        return made[-1]

    yield make
    for each in made:
        each.close()


def rename(folder, before, after):
    (folder / before).rename(folder / after)


@pytest.mark.parametrize("run", [asks, one, fails])
def test_the_cell_of_a_renamed_notebook_means_the_instance_it_meant_before(kernel, tmp_path, run):
    _, known = kernel("Untitled.ipynb").cell(run)
    rename(tmp_path, "Untitled.ipynb", "ingest.ipynb")
    later = kernel("ingest.ipynb")
    what, found = later.cell(run)
    assert found == known
    assert what == {asks: "resumed", one: "finished", fails: "retried"}[run]
    assert len(later.engine.list()) == 1


def test_a_notebook_beside_it_has_an_instance_of_its_own_once_that_is_finished(kernel):
    _, first = kernel("a.ipynb").cell(one)
    what, second = kernel("copy.ipynb").cell(one)
    assert what == "created"
    assert second != first


def test_what_registering_resumes_is_what_the_cell_means(kernel):  # S51: the very same code, its kernel gone
    _, known = kernel("a.ipynb").cell(asks)
    later = kernel("copy.ipynb")
    assert later.cell(asks) == ("resumed", known)
    assert len(later.engine.list()) == 1


def test_a_kernel_that_lives_keeps_its_instance(kernel, tmp_path):
    _, known = kernel("a.ipynb").cell(asks)
    with Engine(tmp_path / ".nbflow" / "history.duckdb", notebook="b.ipynb") as other:
        workflow = other.register(entrypoint(asks), "W", source="s", resume=False)
        opened = other.open(workflow, None, None, again=False)
        assert opened.what == "created"
        assert opened.instance.id != known


def test_other_code_of_a_renamed_notebook_is_no_claim_to_its_instances(kernel, tmp_path):
    _, known = kernel("Untitled.ipynb").cell(one)
    rename(tmp_path, "Untitled.ipynb", "ingest.ipynb")
    what, found = kernel("ingest.ipynb").cell(one, source="another")
    assert what == "created"
    assert found != known


def test_of_many_instances_the_one_with_the_same_params_is_found_whatever_their_order(kernel):
    here = kernel()
    for number in range(12):
        here.cell(one, params={"n": number, "of": {"a": 1, "b": number}})
    what, found = here.cell(one, params={"of": {"b": 7, "a": 1}, "n": 7})
    assert what == "finished"
    assert here.engine.get(found).params == {"n": 7, "of": {"a": 1, "b": 7}}
    assert here.cell(one, params={"n": "7", "of": {"a": 1, "b": 7}})[0] == "created"


def test_params_that_are_tables_are_found_too(kernel):
    pandas = pytest.importorskip("pandas")
    here = kernel()
    _, known = here.cell(one, params={"table": pandas.DataFrame({"a": [1, 2]})})
    here.cell(one, params={"table": pandas.DataFrame({"a": [1, 3]})})
    assert here.cell(one, params={"table": pandas.DataFrame({"a": [1, 2]})}) == ("finished", known)


# -- --again ------------------------------------------------------------------------------------------------------------


def test_again_goes_on_with_the_numbered_instance_that_is_not_finished(kernel):
    here = kernel()
    assert here.cell(one, "nightly") == ("created", "nightly")
    assert here.cell(asks, "nightly", again=True, source="t") == ("created", "nightly-2")
    assert here.cell(asks, "nightly", again=True, source="t") == ("attached", "nightly-2")
    here.engine.get("nightly-2").pause()
    here.engine.get("nightly-2").wait(20)
    assert here.cell(asks, "nightly", again=True, source="t") == ("attached", "nightly-2")
    later = kernel()
    assert later.cell(asks, "nightly", again=True, source="t") == ("adopted", "nightly-2")
    later.engine.get("nightly-2").terminate()
    assert later.cell(asks, "nightly", again=True, source="t") == ("created", "nightly-3")
    assert kernel().cell(asks, "nightly", again=True, source="t") == ("resumed", "nightly-3")


def test_again_after_an_error_makes_the_next_one(kernel):
    here = kernel()
    assert here.cell(fails, "n") == ("created", "n")
    assert here.cell(fails, "n", again=True) == ("created", "n-2")
    assert here.cell(fails, "n", again=True) == ("created", "n-3")
    assert here.cell(fails, "n") == ("retried", "n")


def test_again_leaves_alone_what_only_looks_like_one_of_its_own(kernel):
    here = kernel()
    here.cell(one, "n")
    here.cell(asks, "n-2", params={"other": 1})
    here.cell(asks, "n-x")
    here.cell(asks, "n-02")
    here.cell(asks, "n-7-1")
    assert here.cell(asks, "n", again=True) == ("created", "n-3")
    assert here.cell(asks, "n", again=True) == ("attached", "n-3")


def test_several_that_run_again_at_once_make_one(tmp_path):
    file = tmp_path / ".nbflow" / "history.duckdb"
    with Engine(file, notebook="a.ipynb") as engine:
        engine.register(entrypoint(one), "W", source="s").create("n").wait(20)
    engines = [Engine(file, notebook="a.ipynb") for _ in range(4)]
    opened = []

    def cell(engine):
        workflow = engine.register(entrypoint(asks), "W", source="s", resume=False)
        opened.append(engine.open(workflow, "n", None, again=True))

    threads = [threading.Thread(target=cell, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(one.what for one in opened) == ["created", "elsewhere", "elsewhere", "elsewhere"]
    assert {one.instance.id for one in opened} == {"n-2"}
    for engine in engines:
        engine.close()


def test_however_many_params_the_file_is_asked_as_often_as_for_one(tmp_path, monkeypatch):
    """API §6: a thousand rows begin within a second. One that somebody else makes meanwhile is his, and goes on."""
    with Engine(tmp_path / "h.duckdb", notebook="a.ipynb") as engine:
        workflow = engine.register(entrypoint(one), "W", source="s", resume=False)
        asked = []
        for name in ("create", "claim_unfinished", "heads"):
            real = getattr(engine.store, name)
            monkeypatch.setattr(
                engine.store, name, lambda *a, _name=name, _real=real, **k: (asked.append(_name), _real(*a, **k))[1]
            )
        each = open_each(engine, workflow, None, [{"n": n} for n in range(50)], again=False)
        each.start()
        assert each.line == "W: 50 instances (50 new)"
        assert {str(each_one.wait(20, until="finished").status) for each_one in each.instances} == {"complete"}
        assert Counter(asked) == {"create": 1, "claim_unfinished": 1, "heads": 1}
        more = open_each(engine, workflow, None, [{"n": n} for n in range(48, 52)], again=False)
        assert more.line == "W: 4 instances (2 new, 2 finished before)"
        assert [each_one.id for each_one in more.instances[:2]] == [each_one.id for each_one in each.instances[48:]]


# -- which notebook this is ---------------------------------------------------------------------------------------------

STARTED = {
    ("jupyter-nbconvert", "--execute", "--to", "notebook", "a.ipynb"): "a.ipynb",
    ("jupyter-nbconvert", "--execute", "x/a.ipynb", "--output", "b.ipynb"): "a.ipynb",
    ("jupyter-nbconvert", "--execute", "a.ipynb", "--output=b.ipynb"): "a.ipynb",
    ("jupyter-nbconvert", "--execute", "a.ipynb", "b.ipynb"): "",
    ("jupyter-execute", "a.ipynb"): "a.ipynb",
    ("bin/papermill", "a.ipynb", "b.ipynb", "-p", "n", "3"): "a.ipynb",
    ("bin/pytest", "--nbval", "a.ipynb"): "a.ipynb",
    ("bin/pytest", "--nbval", "notebooks"): "",
    ("script.py",): "",
}


@pytest.mark.parametrize(("words", "name"), STARTED.items())
def test_a_kernel_whose_program_was_given_one_notebook_knows_it(monkeypatch, words, name):
    wait = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", wait, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        program.stdout.readline()
        monkeypatch.setitem(sys.modules, "ipykernel", sys)
        monkeypatch.setenv("JPY_PARENT_PID", str(program.pid))
        monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
        assert current.notebook_name() == name
        monkeypatch.setenv("JPY_SESSION_NAME", "lab/named.ipynb")
        assert current.notebook_name() == "named.ipynb"
        program.stdin.close()
    assert current.notebook_name() == "named.ipynb"


def test_where_the_system_has_no_proc_the_program_is_asked_for_otherwise(monkeypatch):  # macOS, Windows
    pytest.importorskip("psutil")
    wait = "import sys; print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", wait, "jupyter-execute", "a.ipynb"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        program.stdout.readline()
        monkeypatch.setitem(sys.modules, "ipykernel", sys)
        monkeypatch.setenv("JPY_PARENT_PID", "no number of a process")
        monkeypatch.setattr(current.os, "getppid", lambda: program.pid)
        monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
        assert current.notebook_name() == "a.ipynb"
        program.stdin.close()


def test_a_notebook_that_is_not_known_equals_no_other(tmp_path):  # S51
    file = tmp_path / "h.duckdb"
    with Engine(file, notebook="") as engine:
        engine.register(entrypoint(asks), "W", source="s").create("w1").wait(20)
    with Engine(file, notebook="") as engine:
        engine.register(entrypoint(one), "W", source="another")
        assert engine.get("w1").view().unattended
        engine.register(entrypoint(asks), "W", source="s")
        eventually(lambda: engine.get("w1").view().here)
