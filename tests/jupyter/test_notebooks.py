"""The notebooks that are shipped, as people without a browser run it, and the demo that kills its kernel."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import papermill
import pytest
from nbclient import NotebookClient

from nbflow import Engine

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
INGEST = ROOT / "notebooks" / "01_ingest.ipynb"
DEMO = ROOT / "notebooks" / "demo.py"

pytestmark = pytest.mark.kernel


@pytest.fixture(autouse=True)
def _stable(monkeypatch):
    monkeypatch.setenv("NBFLOW_STABLE_OUTPUT", "1")
    monkeypatch.delenv("NBFLOW_STORE", raising=False)


def notebook(name="01_ingest"):
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def cell(book, name):
    return next(each for each in book.cells if each.id == name)


def smaller(book, batches=3):
    """The same notebook with less to embed."""
    source = cell(book, "workflow").source
    assert '"batches": 30' in source
    cell(book, "workflow").source = source.replace('"batches": 30', f'"batches": {batches}')
    return book


def executed(book, folder):
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(book, timeout=100, kernel_name="python3", record_timing=False, resources=resources).execute()
    return book


def text(book, name):
    """What a cell shows, as plain text."""
    shown = [output.get("text") or output["data"].get("text/plain", "") for output in cell(book, name).outputs]
    return "\n".join(shown).strip()


def history(folder, query):
    with Engine(folder / ".nbflow" / "history.duckdb", notebook="test") as engine:
        return engine.sql(query).fetchall()


def test_the_notebook_runs_twice_in_one_folder_and_the_second_time_nothing_runs(tmp_path):
    first = executed(notebook(), tmp_path)
    assert text(first, "workflow") == "IngestDocs: waiting for 'approval' (32 of 33 steps)"
    assert ast.literal_eval(text(first, "output")) == {"published": 9000}
    assert "pandas.merge" in text(first, "search")
    entries = history(tmp_path, "select count(*), count(distinct created_seq) from history where step is not null")
    assert entries[0][1] == 1
    second = executed(notebook(), tmp_path)
    assert text(second, "workflow") == "IngestDocs: complete (34 steps)"
    assert text(second, "approve") == ""
    for name in ("output", "search", "history"):
        assert text(second, name) == text(first, name)
    assert history(tmp_path, "select count(*), count(distinct created_seq) from history where step is not null") == entries


def test_papermill_runs_it_from_another_directory_and_its_files_lie_where_it_ran(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    before = sorted(path.name for path in INGEST.parent.iterdir())
    papermill.execute_notebook(
        str(INGEST), str(tmp_path / "out.ipynb"), cwd=str(there), kernel_name="python3", progress_bar=False
    )
    out = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    assert ast.literal_eval(text(out, "output")) == {"published": 9000}
    assert sorted(path.name for path in there.iterdir()) == [".nbflow", "docs.duckdb"]
    assert sorted(path.name for path in INGEST.parent.iterdir()) == before
    assert "widgets" not in out.metadata


def test_without_wordllama_scikit_learn_does_the_same_job(tmp_path):
    book = smaller(notebook())
    cell(book, "load-ext").source += "\nimport sys\nsys.modules['wordllama'] = None  # importing it now fails"
    cell(book, "search").source += "\nprint(search('numbers with exact decimal arithmetic'))"
    cell(book, "history").source = "type(model().__self__).__name__"
    executed(book, tmp_path)
    assert ast.literal_eval(text(book, "output")) == {"published": 900}
    assert ast.literal_eval(text(book, "history")) == "Pipeline"
    best = text(book, "search").splitlines()[1:6]
    assert any("decimal" in line or "numbers" in line for line in best), best


def test_a_rejected_ingest_publishes_nothing_and_the_notebook_still_ends(tmp_path):
    book = smaller(notebook())
    cell(book, "approve").source = cell(book, "approve").source.replace("True", "False")
    executed(book, tmp_path)
    assert ast.literal_eval(text(book, "output")) == {"published": 0}
    assert "rejected" in text(book, "search")
    assert history(tmp_path, "select count(*) from steps where name = 'publish'") == [(0,)]


# What a cell shows in a second run: what came of the work, not the work.
AGAIN = {
    "02_durable_steps": {
        "order": "Order: complete (4 steps · 1 stale: e-mail)",
        "output": "'sent to ada@example.org'",
        "log": "[]",
    },
    "03_sleeping_and_waiting": {"approval": "Expense: complete (2 steps)", "answer": "'paid 500'"},
    "04_parallel_and_children": {"fan-out": "Measure: complete (6 steps)", "book": "Book: complete (2 steps)"},
    "06_dataframes_and_sql": {"workflow": "Topics: complete (3 steps)", "join": "[('Topics', 'load', 60)]"},
    "09_cluster_embedding": {"workflow": "EmbedShards: complete (2 steps)", "output": "{'files': 12, 'chunks': 1200}"},
    "08_approvals": {"workflow": "Release: complete (3 steps)", "refused": "answered already"},
}


@pytest.mark.parametrize("name", AGAIN)
def test_a_second_run_of_a_whole_notebook_runs_no_step_again(tmp_path, name):
    executed(notebook(name), tmp_path)
    count = "select count(*), count(distinct created_seq) from history where step is not null"
    entries = history(tmp_path, count)
    assert entries[0][0] > 0
    second = executed(notebook(name), tmp_path)
    assert history(tmp_path, count) == entries
    assert {shows: text(second, shows) for shows in AGAIN[name]} == AGAIN[name]


def test_notebooks_of_one_folder_share_its_history_and_show_their_own(tmp_path):
    executed(smaller(notebook()), tmp_path)
    after, shown = executed(notebook("06_dataframes_and_sql"), tmp_path), ("sql", "join", "cursor")
    stored = notebook("06_dataframes_and_sql")
    assert {name: text(after, name) for name in shown} == {name: text(stored, name) for name in shown}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_queries_of_notebooks_ask_for_what_is_of_theirs(path):  # all of them are run in one folder
    for each in nbformat.read(path, as_version=4).cells:
        for query in re.findall(r'"""(.*?)"""|"([^"\n]*)"', each.source, re.DOTALL) if each.cell_type == "code" else ():
            asked = "".join(query)
            if re.search(r"\b(from|join|,)\s+(instances|steps|attempts|events|logs|history)\b", asked):
                assert re.search(r"\b(workflow|instance_id|output_uri) = '", asked), asked


def test_the_order_is_corrected_without_touching_its_cell():
    book = notebook("02_durable_steps")
    assert cell(book, "order").source == cell(book, "again").source


def test_the_tests_of_the_testing_notebook_are_a_test_file_as_they_stand(tmp_path):
    book = notebook("05_testing")
    cells = [cell(book, name).source for name in ("subject", "test-time", "test-no-time", "test-errors")]
    (tmp_path / "test_subscription.py").write_text("\n\n\n".join(cells))
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_subscription.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_in_a_notebook_holds_nothing_of_one_machine_or_moment(path):
    book = notebook(path.stem)
    nbformat.validate(book)
    assert set(book.metadata) == {"kernelspec", "language_info"}
    assert set(book.metadata.language_info) == {"name"}
    assert all(set(each.metadata) <= {"tags"} for each in book.cells)
    shown = [str(output) for each in book.cells if each.cell_type == "code" for output in each.outputs]
    assert shown
    for output in shown:
        assert not re.search(r"\b[a-z]+-[0-9a-z]{18}\b", output), "a generated id"
        assert not re.search(r"/(home|root|tmp|work|Users)/", output)
        assert str(ROOT) not in output
        assert "widget-view" not in output


def demo(folder, *arguments):
    command = [sys.executable, str(DEMO), "--folder", str(folder), *arguments]
    env = {name: value for name, value in os.environ.items() if name != "NBFLOW_STABLE_OUTPUT"}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=280)


@pytest.mark.crash
def test_the_demo_kills_the_kernel_in_the_embedding_and_every_claim_it_makes_holds(tmp_path):
    done = demo(tmp_path / "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 finished bodies ran twice" in done.stdout
    assert "NOT TRUE" not in done.stdout


@pytest.mark.crash
def test_the_demo_fails_when_history_does_not_survive_the_kernel(tmp_path):
    book = smaller(notebook(), batches=6)
    forget = "import shutil\nshutil.rmtree('.nbflow', ignore_errors=True)\n"
    cell(book, "load-ext").source = forget + cell(book, "load-ext").source
    nbformat.write(book, tmp_path / "forgets.ipynb")
    done = demo(tmp_path / "demo", "--notebook", str(tmp_path / "forgets.ipynb"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("NOT TRUE") >= 2
    assert "not true: " in done.stderr
