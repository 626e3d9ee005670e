"""Every Python block of the README runs, in order, in one kernel without a browser, and gives what it says."""

import re
from pathlib import Path

import pytest

from tests.jupyter.kernels import kernel_in

README = Path(__file__).resolve().parents[2] / "README.md"

pytestmark = pytest.mark.kernel


def blocks():
    return re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


def test_every_block_of_the_readme_runs_and_gives_what_it_says(tmp_path):
    said = 0
    with kernel_in(tmp_path, stdin=False) as kernel:
        for block in blocks():
            out = kernel.run(block, ok=True)
            expected = re.search(r"# → (.*)$", block.rstrip())
            if expected:
                assert out.result["text/plain"] == expected[1], block
                said += 1
    assert said >= 6


def test_the_readme_names_no_machine_path():
    text = README.read_text()
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)
