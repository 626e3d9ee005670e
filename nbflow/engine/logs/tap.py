"""Put into `sys.stdout` and `sys.stderr`: what a body writes goes to its step's log, anything else where it always went.

Which body writes is told by a context variable, so parallel steps and a cell that prints at the same time do not mix. A
thread that a body starts without its context (`threading.Thread` before Python 3.14) is nobody's, and prints as always.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from nbflow.engine.logs import bars, records
from nbflow.engine.logs.output import OUTPUT, UNKEPT, Output
from nbflow.system import at_fork

_STREAMS = ("stdout", "stderr")
_lock = threading.RLock()
_users: set[object] = set()
_made = 0
_off = False


class Tap:
    """A stream in front of another.

    What others put in place of `write` (IPython does, around each cell) is asked for all that is not a body's.
    """

    def __init__(self, stream: Any, name: str, serial: int, *, home: bool = False) -> None:
        self._stream, self._name, self._serial = stream, name, serial
        self._home = home or stream in (sys.__stdout__, sys.__stderr__) or type(stream).__name__ == "OutStream"
        self._patches: list[Callable[[str], Any]] = []
        self._depth = threading.local()

    @property  # type: ignore[misc]  # who asks whether this is the kernel's stream means the stream behind
    def __class__(self) -> Any:
        return type(self._stream)

    @property
    def write(self) -> Callable[[str], Any]:
        """Write text."""
        return self._write

    @write.setter
    def write(self, patch: Callable[[str], Any]) -> None:
        if patch == self._write:
            del self._patches[-1:]
        else:
            self._patches.append(patch)

    @write.deleter
    def write(self) -> None:
        del self._patches[-1:]

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts."""
        for line in lines:
            self._write(line)

    def flush(self) -> None:
        """Show the line that a body has begun, too."""
        output = OUTPUT.get()
        if output is not None and self._takes(output):
            self._show(output.held.rest(self._name))
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __repr__(self) -> str:
        return repr(self._stream)

    @property
    def stream(self) -> Any:
        """The stream behind."""
        return self._stream

    def _write(self, text: str) -> Any:
        output = OUTPUT.get()
        if output is None or not isinstance(text, str) or not self._takes(output):
            return self._pass_on(text)
        if not UNKEPT.get():
            text = str.__str__(text)
            output.write(_kind(self._name), text)
        if output.log.echo:
            self._show(output.held.lines(self._name, text))
        return len(text)

    def _show(self, text: str) -> None:
        if text:
            with contextlib.suppress(OSError, ValueError):  # closed, a pipe that nobody reads, a terminal that is gone:
                self._pass_on(text)  # what is kept need not be seen, and is no reason for a step to fail

    def _takes(self, output: Output) -> bool:
        """Whether this is that body's.

        A stream put in later, over one that is not the process's own, may cover what the body itself put there to catch
        its prints (`contextlib.redirect_stdout`): that stays as the body wants it.
        """
        return not _off and (self._home or output.serial >= self._serial) and not output.log.gone

    def _pass_on(self, text: str) -> Any:
        patches = self._patches
        if not patches:
            return self._stream.write(text)
        depth: int = getattr(self._depth, "now", 0)
        if depth >= len(patches):
            return self._stream.write(text)
        self._depth.now = depth + 1
        try:
            return patches[-1 - depth](text)
        finally:
            self._depth.now = depth


def _kind(name: str) -> str:
    """Which stream of the log: what `warnings` writes to stderr is told by who writes it."""
    if name == "stderr" and sys._getframe(2).f_code.co_name == "_showwarnmsg_impl":  # noqa: SLF001 - cheap, and changes nothing
        return "warning"
    return name


def ensure(user: object) -> int:
    """See that both streams are tapped, for as long as *user* needs it; gives the number of taps made so far."""
    if type(sys.stdout) is not Tap or type(sys.stderr) is not Tap or user not in _users or not bars.wired():
        with _lock:
            _put_in(user)
    return _made


def renew(user: object) -> None:
    """Put taps back where they were replaced, if *user* has any: after a cell, which may have been under `%%capture`."""
    if user in _users:
        ensure(user)


def cover() -> None:
    """Tap the streams that a cell has just put in to catch its own prints; what bodies print is none of those."""
    with _lock:
        if _users:
            _tap_all(home=True)


def _tap_all(*, home: bool = False) -> None:
    global _made
    for name in _STREAMS:
        stream = getattr(sys, name)
        if stream is not None and type(stream) is not Tap:
            _made += 1
            setattr(sys, name, Tap(stream, name, _made, home=home))


def _put_in(user: object) -> None:
    _tap_all()
    if not _users:
        records.put_in(is_console)
    _users.add(user)
    bars.wire()


def release(user: object) -> None:
    """*user* has ended; with the last one everything is taken out, where it is still ours."""
    with _lock:
        _users.discard(user)
        if _users:
            return
        for name in _STREAMS:
            while type(stream := getattr(sys, name)) is Tap:
                setattr(sys, name, stream.stream)
        records.take_out()
        bars.unwire()


def is_console(stream: Any) -> bool:
    """Whether what is written there is seen where prints are."""
    if type(stream) is Tap:
        return True
    shown = [sys.__stdout__, sys.__stderr__]
    for name in _STREAMS:
        behind = getattr(sys, name)
        while type(behind) is Tap:
            behind = behind.stream
        shown.append(behind)
    return any(stream is one for one in shown)


def _in_child() -> None:
    """What a forked child prints goes where it always went: the log is its parent's (S54)."""
    global _off
    _off = True


at_fork(after_in_child=_in_child)
