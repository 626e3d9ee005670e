"""The notebook that is shipped, as people without a browser run it, and the demo that kills its kernel."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import papermill
import pytest
from nbclient import NotebookClient

from nbflow import Engine

ROOT = Path(__file__).resolve().parents[2]
INGEST = ROOT / "notebooks" / "01_ingest.ipynb"
DEMO = ROOT / "notebooks" / "demo.py"

pytestmark = pytest.mark.kernel


@pytest.fixture(autouse=True)
def _stable(monkeypatch):
    monkeypatch.setenv("NBFLOW_STABLE_OUTPUT", "1")
    monkeypatch.delenv("NBFLOW_STORE", raising=False)


def notebook():
    return nbformat.read(INGEST, as_version=4)


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


def test_what_is_stored_in_the_notebook_holds_nothing_of_one_machine_or_moment():
    book = notebook()
    nbformat.validate(book)
    assert set(book.metadata) == {"kernelspec", "language_info"}
    assert set(book.metadata.language_info) == {"name"}
    assert all(set(each.metadata) <= {"tags"} for each in book.cells)
    shown = [str(output) for each in book.cells if each.cell_type == "code" for output in each.outputs]
    assert len(shown) >= 4
    for output in shown:
        assert "ingestdocs-" not in output
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
