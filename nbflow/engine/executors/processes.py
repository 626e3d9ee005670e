"""Local processes for bodies (`on="processes"`, `process_executor(n)`).

Each is a Python of its own at the other end of two pipes, with a thread here that feeds it: which body runs in which process
is always known, so one can be killed without the others noticing, and what a dead one was doing is no guess. Nothing is
forked, and the main module is not imported again: scripts need no `if __name__ == "__main__"`.
"""

import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from nbflow.engine.executors.attempt import RemoteAttempt
from nbflow.engine.executors.frames import READY, REPLY, REQUEST, read_frame, write_frame
from nbflow.errors import UsageError

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine

BOOT = "import json,sys; sys.path[:] = json.loads(sys.argv.pop()); from nbflow.engine.executors.served import serve; serve()"
PATIENCE = 0.5  # seconds that an idle process has to end by itself
START = 60.0  # seconds that a process has to start: until then no body runs whose timeout could end it


class Processes:
    """What `process_executor` gives: a number of processes, made for the engine that first uses it."""

    def __init__(self, n: int | None = None) -> None:
        if n is None:
            n = os.cpu_count() or 1
        if type(n) is not int or n < 1:
            msg = f"process_executor({n!r}): give the number of processes, 1 or more"
            raise UsageError(msg)
        self.n = n

    def face(self, name: str, _engine: "Engine") -> "ProcessWorkers":
        """As an engine knows it."""
        return ProcessWorkers(self.n, name)

    def __repr__(self) -> str:
        return f"process_executor({self.n})"


class _Mine(threading.local):
    """The process of the calling thread."""

    process: "subprocess.Popen[bytes] | None" = None


class ProcessWorkers:
    """The processes of one engine."""

    blind, isolates, url, wire = False, True, None, ("pipe", "")

    def __init__(self, n: int, name: str) -> None:
        self.name, self.retired = name, False
        self._limit = n
        self._attempts: queue.SimpleQueue[RemoteAttempt | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._mine = _Mine()
        self._threads = 0
        self._busy = 0  # attempts that are submitted and have not ended
        self._processes: dict[subprocess.Popen[bytes], RemoteAttempt | None] = {}
        self._doomed: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def submit(self, attempt: RemoteAttempt) -> None:
        """Queue it."""
        with self._lock:
            self._busy += 1
            if self._busy > self._threads and self._threads < self._limit and not self._closed:
                self._threads += 1
                threading.Thread(target=self._feed, name=f"nbflow-{self.name}-{self._threads}", daemon=True).start()
        self._attempts.put(attempt)

    def withdraw(self, attempt: RemoteAttempt) -> bool:
        """See `Place`."""
        with self._lock:
            if self._runs(attempt) is not None:
                return False
            attempt.wanted = False
            return True

    def _runs(self, attempt: RemoteAttempt) -> "subprocess.Popen[bytes] | None":
        return next((process for process, runs in self._processes.items() if runs is attempt), None)

    def leave(self, attempt: RemoteAttempt) -> str:
        """Kill the process it runs in."""
        with self._lock:
            process = self._runs(attempt)
            if process is None:
                return "taken out of its queue"
            self._doomed.add(process)
            process.kill()
        return "its process was killed"

    def retire(self) -> None:
        """Have the processes end."""
        self._end(kill=False)

    def close(self) -> None:
        """End all processes."""
        self._end(kill=True)

    def _end(self, *, kill: bool) -> None:
        with self._lock:
            self._closed = kill
            processes = dict(self._processes)
            for _ in range(self._threads):
                self._attempts.put(None)
            for process, attempt in processes.items():
                if attempt is not None and kill:
                    process.kill()
        if not kill:
            return
        for process in processes:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # -- one thread for each process ------------------------------------------------------------------------------------

    def _feed(self) -> None:
        while (attempt := self._attempts.get()) is not None:
            tell = self._serve(attempt) if attempt.wanted else _nothing
            with self._lock:
                self._busy -= 1  # before anybody hears of it: what comes next finds this process free
            tell()
            del attempt, tell
        if (process := self._mine.process) is not None:
            self._forget(process)

    def _serve(self, attempt: RemoteAttempt) -> Callable[[], None]:
        """Have one attempt run; gives what is to be told to it then."""
        try:
            request = attempt.pack()
        except BaseException as error:  # noqa: BLE001 - whatever the user's objects raise when they are pickled
            return partial(attempt.refused, error)
        try:
            process = self._process()
        except OSError as error:
            return partial(attempt.lost, f"no process could be started: {error}")
        with self._lock:
            if self._closed or not attempt.wanted:
                return _nothing
            self._processes[process] = attempt
        attempt.begun()
        try:
            reply = self._exchange(process, request, attempt)
        except (EOFError, OSError):
            return partial(attempt.lost, self._forget(process))
        with self._lock:
            self._processes[process] = None
            doomed = process in self._doomed  # it was to be killed, and had just ended
        if doomed:
            self._forget(process)
        return partial(attempt.replied, reply)

    def _process(self) -> "subprocess.Popen[bytes]":
        """The process of this thread, a new one where there is none or it was killed while it had nothing to do."""
        process = self._mine.process
        if process is not None and process.poll() is not None:
            self._forget(process)
        if self._mine.process is None:
            self._mine.process = self._start()
        return self._mine.process

    def _exchange(self, process: "subprocess.Popen[bytes]", request: bytes, attempt: RemoteAttempt) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        write_frame(process.stdin, REQUEST, request)
        del request
        while True:
            kind, data = read_frame(process.stdout)
            if kind == REPLY:
                return data
            attempt.told(pickle.loads(data))  # noqa: S301 - from a process of our own

    def _start(self) -> "subprocess.Popen[bytes]":
        path = [os.getcwd() if place == "" else place for place in sys.path if isinstance(place, str)]
        argv = [sys.executable, "-c", BOOT, json.dumps(path)]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with self._lock:
            self._processes[process] = None
            closed = self._closed
        if closed:
            process.kill()
        late = threading.Timer(START, process.kill)
        late.daemon = True
        late.start()
        try:
            assert process.stdout is not None
            if read_frame(process.stdout)[0] != READY:
                process.kill()  # something that Python loads at its start writes to standard output
                raise EOFError
        except EOFError:
            raise OSError(self._forget(process)) from None
        finally:
            late.cancel()
        return process

    def _forget(self, process: "subprocess.Popen[bytes]") -> str:
        """Clear away a process that has ended, or is to; gives how it ended."""
        for stream in (process.stdin, process.stdout):
            try:
                if stream is not None:
                    stream.close()
            except OSError:
                pass  # what was not written yet is of no use to anybody
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self._mine.process = None
        with self._lock:
            self._processes.pop(process, None)
            self._doomed.discard(process)
        return ending(process.pid, code)


def ending(pid: int, code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"its process {pid} ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    memory = "; the system does that to what takes too much memory" if name == "SIGKILL" else ""
    return f"its process {pid} was killed by {name}{memory}"


def _nothing() -> None:
    """Nobody waits for it any more."""
