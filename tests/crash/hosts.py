"""Processes to be killed: real kernels, and light ones, which host an IPython shell and are forked ready from one that waits."""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.jupyter.kernels import ROOT, Kernel

PATIENCE = 60.0


class Host(Protocol):
    """One process at a time that runs cells."""

    pid: int

    def start(self) -> None:
        """Begin a life."""

    def run(self, cells: Sequence[str]) -> None:
        """Have cells run, one after another; returns at once."""

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""

    def stop(self) -> None:
        """Be done with it all."""


class RealKernel:
    """An IPython kernel; the next one starts while this one lives, so that a life begins at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spare: Kernel | None = None
        self._kernel: Kernel | None = None
        self.pid = 0

    def start(self) -> None:
        self._kernel = self._spare or self._new()
        self._spare = None
        self._kernel._connect()
        self.pid = self._kernel.pid

    def run(self, cells: Sequence[str]) -> None:
        assert self._kernel is not None
        for cell in cells:
            self._kernel.send(cell)

    def prepare(self) -> None:
        """Start the next one."""
        if self._spare is None:
            self._spare = self._new()

    def _new(self) -> Kernel:
        return Started(self._folder)

    @property
    def kernel(self) -> Kernel:
        """The one that lives now."""
        assert self._kernel is not None
        return self._kernel

    def kill(self) -> None:
        assert self._kernel is not None
        self._kernel.kill()
        self._kernel.stop()
        self._kernel = None

    def stop(self) -> None:
        for kernel in (self._kernel, self._spare):
            if kernel is not None:
                kernel.stop()
        self._kernel = self._spare = None


class Started(Kernel):
    """A kernel whose process is started and not waited for."""

    def start(self) -> None:
        self.manager.start_kernel(cwd=str(self.folder), env=self.env)


class Zygote:
    """A process that has everything imported, nothing open, and forks."""

    def __init__(self) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("NBFLOW_")}
        env |= {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.hosts"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            cwd=ROOT,
        )

    def ask(self, **what: Any) -> Any:
        """One question, one answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process that forks has ended"
        return json.loads(line)

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._process.stdout.close()  # type: ignore[union-attr]


class LightKernel:
    """A fork of the zygote."""

    def __init__(self, zygote: Zygote, folder: Path, name: str = "light", notes: str = "") -> None:
        self._zygote, self._folder, self._name, self._notes = zygote, folder, name, notes
        self.pid = 0
        self._cells = -1

    def start(self, seam: dict[str, Any] | None = None) -> None:
        pipe = self._folder / f"{self._name}.cells"
        if not pipe.exists():
            os.mkfifo(pipe)
        self._cells = os.open(pipe, os.O_RDWR)  # both ends, so that nobody waits for the other
        self.pid = self._zygote.ask(cwd=str(self._folder), name=self._name, notes=self._notes, seam=seam)

    def run(self, cells: Sequence[str]) -> None:
        for cell in cells:
            os.write(self._cells, (json.dumps(cell) + "\n").encode())

    @property
    def dead(self) -> bool:
        """Whether it has ended and waits to be looked after."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

    def reap(self) -> int:
        """Wait for its end; gives how it ended, as the system says it."""
        status = int(self._zygote.ask(reap=self.pid))
        os.close(self._cells)
        self._cells = -1
        self.pid = 0
        return status

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        status = self.reap()
        assert os.WIFSIGNALED(status), f"it ended by itself: {self.log()}"
        assert os.WTERMSIG(status) == signal.SIGKILL

    def log(self) -> str:
        """What it printed."""
        return (self._folder / f"{self._name}.log").read_text()[-5_000:]

    def stop(self) -> None:
        if self.pid:
            self.kill()


def _shell(name: str, cwd: str) -> None:
    """Run cells as they come, for ever."""
    os.chdir(cwd)
    log = os.open(f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    sys.argv = [f"{name}.ipynb"]
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    from tests.crash.work import note

    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    with open(f"{name}.cells", encoding="utf-8") as cells:
        for line in cells:
            if not shell.run_cell(json.loads(line)).success:
                note("cell failed", name)


def _patch(folder: Path, seam: dict[str, Any]) -> None:
    from tests.crash.faults import Seam

    Seam(folder / ".nbflow", folder / "image" / ".nbflow", **seam).patch()


def _call(place: str, given: dict[str, Any]) -> None:
    """Run a function that ends the process; a life that hangs is ended from outside."""
    signal.alarm(60)
    module, name = place.split(":")
    getattr(importlib.import_module(module), name)(**given)


def _learn_modules() -> None:
    """Import what one life imports, so that the others need not; nothing is opened here."""
    read, told = os.pipe()
    if os.fork() == 0:
        try:
            from tests.crash import work

            with tempfile.TemporaryDirectory() as folder:
                os.mkfifo(f"{folder}/first.cells")
                cells = os.open(f"{folder}/first.cells", os.O_RDWR)
                last = "inst.wait(60, 'finished'); tell()"
                for cell in (work.BOOT, work.CELL.format(id="w1", fails=False), work.FOLLOW, last):
                    os.write(cells, (json.dumps(cell) + "\n").encode())
                work.tell = lambda: (os.write(told, json.dumps(sorted(sys.modules)).encode()), os._exit(0))
                _shell("first", folder)
        finally:
            os._exit(3)
    os.close(told)
    with open(read) as known:
        for name in json.load(known):
            if name != "__main__" and name not in sys.modules:
                with contextlib.suppress(ImportError):  # a submodule that its package makes itself
                    importlib.import_module(name)
    os.wait()


def _fork_for_ever() -> None:
    _learn_modules()
    for line in sys.stdin:
        asked = json.loads(line)
        if "reap" in asked:
            print(json.dumps(os.waitpid(asked["reap"], 0)[1]), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            try:
                if "call" in asked:
                    _call(asked["call"], asked["given"])
                if asked["notes"]:
                    os.environ["NOTES"] = asked["notes"]
                if asked["seam"]:
                    _patch(Path(asked["cwd"]), asked["seam"])
                _shell(asked["name"], asked["cwd"])
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(3)
        print(json.dumps(os.waitpid(pid, 0)[1] if "call" in asked else pid), flush=True)


if __name__ == "__main__":
    _fork_for_ever()
