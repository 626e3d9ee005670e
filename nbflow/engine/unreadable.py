"""What an instance says that was interrupted because a stored value cannot be read now (S17)."""

from nbflow.core.history import History
from nbflow.core.model import StepKey
from nbflow.errors import UndecodableError

_FILE = "file "


def why_interrupted(history: History, key: StepKey | None, error: UndecodableError) -> str:
    """What is needed, the step that it belongs to, and for a file, which no cell brings back, what to do.

    Args:
        history: of the instance; a file read by reference is looked up there, its step is the one that made it.
        key: the step whose value was read, None for the params.
        error: why it could not be.
    """
    if not error.needs.startswith(_FILE):
        return f"needs {error.needs} ({_named(key)})"
    key = _maker(history, error.needs.removeprefix(_FILE)) or key
    advice = "put it back and resume"
    if key is not None and key in history.steps:
        advice += f", or make it again: restart(from_step={_place(key)})"
    return f"needs {error.needs} ({_named(key)}): {advice}"


def _named(key: StepKey | None) -> str:
    return "params" if key is None else f'step "{key}"'


def _place(key: StepKey) -> str:
    if key.key is not None:
        return repr((key.name, key.key))
    return repr(key.name if key.count == 1 else (key.name, key.count))


def _maker(history: History, uri: str) -> StepKey | None:
    """The first step whose value names the file."""
    mark = uri.encode()
    found = [step for step in history.steps.values() if step.value is not None and mark in step.value]
    return min(found, key=lambda step: step.order).key if found else None
