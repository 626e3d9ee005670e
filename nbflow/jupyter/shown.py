"""What bodies display goes to their step's log: the shell's publishers are watched for what comes from a body.

The classes are, not the shell's own publisher: `%%capture` swaps that, and the streams, while a cell runs.
"""

import functools
from collections.abc import Callable
from typing import Any

from nbflow.engine.logs import tap
from nbflow.engine.logs.output import OUTPUT, unkept


def watch(shell: Any) -> Callable[[], None]:
    """Watch the publishers of a shell; gives what ends that, where what watches is still ours."""
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.utils.capture import capture_output

    undo: list[tuple[type, str, Any, Any]] = []

    def put_in(cls: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        original = cls.__dict__.get(name)
        if original is not None:
            ours = wrap(original)
            setattr(cls, name, ours)
            undo.append((cls, name, original, ours))

    for cls in {type(shell.display_pub), CapturingDisplayPublisher}:
        put_in(cls, "publish", _publish)
        put_in(cls, "clear_output", _clear)
    put_in(capture_output, "__enter__", _capture)

    def end() -> None:
        for cls, name, original, ours in undo:
            if cls.__dict__.get(name) is ours:
                setattr(cls, name, original)

    return end


def _publish(original: Any) -> Any:
    @functools.wraps(original)
    def publish(publisher: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        output = OUTPUT.get()
        if output is None or output.log.gone:
            return original(publisher, data, *args, **kwargs)
        display_id = (kwargs.get("transient") or {}).get("display_id")
        output.display(data, display_id=display_id, update=bool(kwargs.get("update")))
        if not output.log.echo:
            return None
        with unkept():
            return original(publisher, data, *args, **kwargs)

    return publish


def _capture(original: Any) -> Any:
    @functools.wraps(original)
    def enter(capture: Any) -> Any:
        captured = original(capture)
        if OUTPUT.get() is None:  # a cell's, under `%%capture`: bodies that run meanwhile are no part of it
            tap.cover()
        return captured

    return enter


def _clear(original: Any) -> Any:
    @functools.wraps(original)
    def clear_output(publisher: Any, *args: Any, **kwargs: Any) -> Any:
        output = OUTPUT.get()
        if output is None or output.log.gone:
            return original(publisher, *args, **kwargs)
        output.log.clear()
        return None  # the cell's output is not this body's alone

    return clear_output
