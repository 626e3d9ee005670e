"""The other end of the pipes: a process that runs one body after another, and does not outlive its kernel."""

import os
import pickle
import queue
import signal
import sys
import threading
from typing import Any

from nbflow.engine.executors import remote
from nbflow.engine.executors.frames import MESSAGE, READY, REPLY, read_frame, write_frame


def serve() -> None:
    """Run what comes in by standard input until that ends."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Interrupt is for the cell that waits, not for bodies
    inbox, outbox = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)  # what C code prints goes where the kernel's own goes
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    busy = threading.Event()

    def read() -> None:
        while True:
            try:
                requests.put(read_frame(inbox)[1])
            except (EOFError, OSError):
                if busy.is_set():
                    os._exit(1)  # nobody is left to hear of it
                requests.put(None)
                return

    write_frame(outbox, READY, b"")  # all that every body needs is loaded: the time until now is not the first one's
    threading.Thread(target=read, name="nbflow-requests", daemon=True).start()
    lock = threading.Lock()

    def send(message: dict[str, Any]) -> None:
        with lock:
            write_frame(outbox, MESSAGE, pickle.dumps(message))

    while (request := requests.get()) is not None:
        busy.set()
        reply = remote.run(request, send)
        with lock:
            write_frame(outbox, REPLY, reply)
        del request, reply
        busy.clear()
    sys.stdout.flush()


def _die_with_parent() -> None:
    """Ask Linux to end us with the kernel even while C code holds the GIL; elsewhere the end of the pipe does it."""
    if sys.platform != "linux":
        return
    import ctypes

    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        pass  # a libc without it
