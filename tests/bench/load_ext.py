"""What `%load_ext nbflow` costs in a kernel that has just started."""

import subprocess
import sys
from pathlib import Path

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

CODE = """
import time
started = time.perf_counter()
get_ipython().run_line_magic("load_ext", "nbflow")
took = (time.perf_counter() - started) * 1000
"""


def load_ext(folder: Path) -> float:
    """Milliseconds."""
    manager = KernelManager(kernel_name="python3")
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=argv, display_name="Python 3", language="python")
    manager.start_kernel(cwd=str(folder), stderr=subprocess.DEVNULL)
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        reply = client.execute_interactive(
            CODE, user_expressions={"took": "took"}, timeout=60, output_hook=lambda message: None
        )
        return float(reply["content"]["user_expressions"]["took"]["data"]["text/plain"])
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
