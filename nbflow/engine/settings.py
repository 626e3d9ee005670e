"""What an engine is told when it is made, checked before it opens anything."""

from collections.abc import Mapping
from typing import Any

from nbflow.core.durations import duration
from nbflow.errors import UsageError, article


def check_settings(
    env: Any,
    max_threads: Any,
    max_steps: Any,
    max_running: Any,
    lock_timeout: Any,
    retention: Any,
    notify: Any,
    default_executor: Any,
) -> None:
    """Refuse what could only fail, or hang, later.

    Raises:
        UsageError: names the setting, its value and what it may be.
    """
    for name, value in (("max_threads", max_threads), ("max_steps", max_steps), ("max_running", max_running)):
        if value is None and name == "max_running":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            _refuse(name, value, "a whole number from 1" + (", or None for no limit" if name == "max_running" else ""))
    if isinstance(lock_timeout, bool) or not isinstance(lock_timeout, int | float) or not lock_timeout >= 0:
        _refuse("lock_timeout", lock_timeout, "seconds, from 0")
    if env is not None and not isinstance(env, Mapping):
        _refuse("env", env, 'a dict such as {"db": con}')
    if notify is not None and not callable(notify):
        _refuse("notify", notify, "a callable (instance, what)")
    if default_executor is not None and not isinstance(default_executor, str):
        _refuse("default_executor", default_executor, 'a name, such as "processes"; put the executor into engine.executors')
    if retention is not None:
        duration(retention, what="Engine(retention=)")


def _refuse(name: str, value: Any, allowed: str) -> None:
    shown = repr(value) if isinstance(value, str | int | float) else article(type(value).__name__)
    msg = f"Engine({name}=) is {shown}; give {allowed}"
    raise UsageError(msg)
