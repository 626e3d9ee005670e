"""What `%load_ext nbflow` costs in a kernel that has just started."""

from pathlib import Path

from tests.jupyter.kernels import kernel_in

CODE = """
import time
started = time.perf_counter()
get_ipython().run_line_magic("load_ext", "nbflow")
took = time.perf_counter() - started
"""


def load_ext(folder: Path) -> float:
    """Milliseconds."""
    folder.mkdir(exist_ok=True)
    with kernel_in(folder) as kernel:
        kernel.run(CODE, ok=True)
        return kernel.evaluate("took") * 1000
