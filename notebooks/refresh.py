"""Run the notebooks and store their outputs as `pytest --nbval` will compare them: `make outputs`."""

import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def refresh(path: Path) -> None:
    """Run one in an empty folder; times, ids and widgets of the run are not stored."""
    book = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="nbflow-") as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(book, timeout=600, kernel_name="python3", record_timing=False, resources=resources).execute()
    book.metadata.language_info = {"name": "python"}
    book.metadata.pop("widgets", None)
    nbformat.validate(book)
    nbformat.write(book, path)


if __name__ == "__main__":
    os.environ["NBFLOW_STABLE_OUTPUT"] = "1"
    os.environ.pop("NBFLOW_STORE", None)
    for notebook in sorted(Path(__file__).parent.glob("*.ipynb")):
        refresh(notebook)
        print(f"stored the outputs of {notebook.name}")
