"""Real kernels for tests: start one in a folder, run cells, see what a client sees, kill it."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Outputs:
    """What one cell gave back."""

    status: str = ""
    stdout: str = ""
    stderr: str = ""
    result: dict[str, Any] | None = None
    displays: list[dict[str, Any]] = field(default_factory=list)
    updates: list[dict[str, Any]] = field(default_factory=list)
    latest: dict[str, dict[str, Any]] = field(default_factory=dict)  # the displays of this very cell as they are now
    errors: list[dict[str, Any]] = field(default_factory=list)
    comms: list[dict[str, Any]] = field(default_factory=list)
    reply: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def error(self) -> str:
        """`Name: text` of the one error output."""
        assert len(self.errors) == 1, self.errors
        return f"{self.errors[0]['ename']}: {self.errors[0]['evalue']}"

    @property
    def traceback(self) -> str:
        """The traceback as shown, without colours."""
        import re

        return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(self.errors[0]["traceback"]))

    @property
    def text(self) -> str:
        """Everything a person reads: prints, results and displays, as plain text."""
        shown = [*self.displays, *([self.result] if self.result else [])]
        return "\n".join([self.stdout, *(bundle.get("text/plain", "") for bundle in shown), self.stderr])

    @property
    def views(self) -> list[dict[str, Any]]:
        """Displays that hold a widget."""
        return [bundle for bundle in self.displays if "application/vnd.jupyter.widget-view+json" in bundle]


class Kernel:
    """One kernel process at a time, in one working directory."""

    def __init__(self, folder: Path, *, env: dict[str, str] | None = None, stdin: bool = True) -> None:
        self.folder = folder
        self.stdin = stdin
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("NBFLOW", "JPY_"))},
            "PYTHONPATH": str(ROOT),
            "IPYTHONDIR": str(folder / ".ipython"),
            "JUPYTER_RUNTIME_DIR": str(folder / ".runtime"),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            **(env or {}),
        }
        self.manager = KernelManager(kernel_name="python3")
        self.manager._kernel_spec = KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            display_name="nbflow",
            language="python",
        )
        self.client: BlockingKernelClient | None = None
        self.start()

    def start(self) -> None:
        """Start the process and wait until it answers."""
        self.manager.start_kernel(cwd=str(self.folder), env=self.env)
        self._connect()

    def _connect(self) -> None:
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        if first := os.environ.get("NBFLOW_TEST_STARTUP"):  # what a host's kernels do before anything else (tests/hosts)
            self.run(first, ok=True)

    @property
    def pid(self) -> int:
        """The kernel's process id."""
        return self.manager.provisioner.pid

    def send(self, code: str, *, stdin: bool | None = None) -> str:
        """Ask for a cell to be run and return at once."""
        allow = self.stdin if stdin is None else stdin
        return self.client.execute(code, allow_stdin=allow, store_history=True)

    def run(self, code: str, *, stdin: bool | None = None, timeout: float = 60, ok: bool | None = None) -> Outputs:
        """Run a cell and collect what it gives back; *ok* asserts that it went well or failed."""
        outputs = self.collect(self.send(code, stdin=stdin), timeout=timeout)
        if ok is not None:
            assert (outputs.status == "ok") is ok, (outputs.errors, outputs.stderr, outputs.stdout)
        return outputs

    def collect(self, message_id: str, *, timeout: float = 60) -> Outputs:
        """What the cell gives back until the kernel is idle again."""
        started = time.monotonic()
        outputs = Outputs()
        idle = False
        while not idle:
            message = self.client.get_iopub_msg(timeout=timeout - (time.monotonic() - started))
            if message["msg_type"].startswith("comm_"):
                outputs.comms.append(message)
            if message["parent_header"].get("msg_id") != message_id:
                continue
            idle = _take(outputs, message)
        outputs.reply = self._reply(message_id, timeout)["content"]
        outputs.status = outputs.reply["status"]
        outputs.seconds = time.monotonic() - started
        return outputs

    def _reply(self, message_id: str, timeout: float) -> dict[str, Any]:
        while True:
            reply = self.client.get_shell_msg(timeout=timeout)
            if reply["parent_header"].get("msg_id") == message_id:
                return reply

    def evaluate(self, expression: str) -> Any:
        """The value of a Python expression in the kernel, by its literal repr."""
        import ast

        message_id = self.client.execute(
            "", silent=True, user_expressions={"it": f"repr({expression})"}, allow_stdin=self.stdin
        )
        answer = self._reply(message_id, 60)["content"]["user_expressions"]["it"]
        assert answer["status"] == "ok", answer
        return ast.literal_eval(ast.literal_eval(answer["data"]["text/plain"]))

    def until(self, expression: str, *, timeout: float = 20) -> None:
        """Ask the kernel until a Python expression is true there."""
        end = time.monotonic() + timeout
        while not self.evaluate(f"bool({expression})"):
            assert time.monotonic() < end, f"{expression} never became true"
            time.sleep(0.02)

    def interrupt(self) -> None:
        """The Interrupt button."""
        self.manager.interrupt_kernel()

    def kill(self) -> None:
        """SIGKILL, as the out-of-memory killer does it."""
        os.kill(self.pid, signal.SIGKILL)
        end = time.monotonic() + 10
        while self.manager.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
        self._disconnect()

    def restart(self, *, now: bool = True) -> float:
        """Start again after `kill`, or the Restart button (`now=False`); seconds until the old process was gone."""
        started = time.monotonic()
        if self.client is not None:
            self._disconnect()
        self.manager.restart_kernel(now=now, env=self.env, cwd=str(self.folder))
        gone = time.monotonic() - started
        self._connect()
        return gone

    def _disconnect(self) -> None:
        if self.client is not None:
            self.client.stop_channels()
            self.client = None

    def stop(self) -> None:
        """End the process and close all channels."""
        self._disconnect()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
        self.manager.context.destroy(linger=0)


def _take(outputs: Outputs, message: dict[str, Any]) -> bool:
    content, kind = message["content"], message["msg_type"]
    if kind == "stream":
        if content["name"] == "stdout":
            outputs.stdout += content["text"]
        else:
            outputs.stderr += content["text"]
    elif kind == "execute_result":
        outputs.result = content["data"]
    elif kind == "display_data":
        outputs.displays.append(content["data"])
        outputs.latest[content.get("transient", {}).get("display_id", "")] = content["data"]
    elif kind == "update_display_data":
        outputs.updates.append(content["data"])
        if (shown := content.get("transient", {}).get("display_id", "")) in outputs.latest:
            outputs.latest[shown] = content["data"]
    elif kind == "error":
        outputs.errors.append(content)
    return kind == "status" and content["execution_state"] == "idle"


@contextmanager
def kernel_in(folder: Path, **keywords: Any) -> Iterator[Kernel]:
    """A kernel for the length of a `with` block."""
    kernel = Kernel(folder, **keywords)
    try:
        yield kernel
    finally:
        kernel.stop()
