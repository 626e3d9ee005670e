"""`nbflow demo`: a workflow whose process is killed in the middle and started again, and what each of the two did.

`python -m nbflow.demo FOLDER` is the process that is killed; its bodies leave a line in FOLDER/bodies.log.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from nbflow.clock import SystemClock, pause
from nbflow.engine.engine import Engine
from nbflow.engine.entrypoint import WorkflowEntrypoint

STEPS = 8
KILLED_AFTER = 5
PATIENCE = 60.0  # seconds for one of the two processes
_BODY = 0.2  # seconds


class Tour(WorkflowEntrypoint):  # type: ignore[misc, unused-ignore]
    """Squares some numbers, slowly, a step each, and adds them up."""

    async def run(self, event, step):  # type: ignore[no-untyped-def]  # noqa: D102
        log = Path(event.payload["log"])
        return sum([await step.do(f"square {number}", _square, number, log) for number in range(1, STEPS + 1)])


def _square(number: int, log: Path) -> int:
    with log.open("a") as lines:
        lines.write(f"{number}\n")
    pause(_BODY)
    return number * number


def run(folder: Path) -> None:
    """Run the tour, or go on with it."""
    with Engine(folder / "history.duckdb", notebook="demo") as engine:
        opened = engine.open(engine.register(Tour, resume=False), "tour", {"log": folder / "bodies.log"})
        print(f"  {opened.line}", flush=True)  # noqa: T201 - the process that is watched
        opened.start()
        opened.instance.wait(PATIENCE)
        print(f"  result: {opened.instance.output}", flush=True)  # noqa: T201


def show(say: Callable[[str], None]) -> int:
    """Run it, kill it, run it again, say what happened; 1 where a finished step ran twice or the result is wrong."""
    with tempfile.TemporaryDirectory(prefix="nbflow-demo-") as name:
        folder = Path(name)
        say(f"A workflow of {STEPS} steps starts in a process of its own; it is killed (SIGKILL) in step {KILLED_AFTER}.")
        first = _bodies_until_killed(folder)
        say(f"  bodies that ran: {' '.join(first)}; the last one had not ended")
        say("The same command again:")
        done = subprocess.run([*_COMMAND, name], timeout=PATIENCE, check=False, capture_output=True, text=True)
        say(done.stdout.rstrip() or done.stderr.rstrip())
        second = _bodies(folder)[len(first) :]
        say(f"  bodies that ran: {' '.join(second)}")
        expected = [str(number) for number in range(KILLED_AFTER, STEPS + 1)]
        result = sum(number * number for number in range(1, STEPS + 1))
        if second != expected or f"result: {result}" not in done.stdout:
            say(f"That is not what nbflow promises: {' '.join(expected)} and {result} were expected.")
            return 1
        say(
            f"Steps 1 to {KILLED_AFTER - 1} came from the history. In a notebook: `%load_ext nbflow`, then a `%%workflow` cell."
        )
        return 0


_COMMAND = (sys.executable, "-m", "nbflow.demo")


def _bodies(folder: Path) -> list[str]:
    log = folder / "bodies.log"
    return log.read_text().split() if log.exists() else []


def _bodies_until_killed(folder: Path) -> list[str]:
    time = SystemClock()
    process = subprocess.Popen([*_COMMAND, str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE
    while len(_bodies(folder)) < KILLED_AFTER and process.poll() is None and time.monotonic() < deadline:
        pause(0.01)
    process.kill()
    process.wait()
    return _bodies(folder)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
