"""Keep records of `logging` that a body makes in its step's log; loggers, levels and handlers stay as the user set them."""

import logging
from collections.abc import Callable
from typing import Any

from nbflow.engine.logs.output import OUTPUT, unkept

_original = logging.Logger.callHandlers
_format = logging.Formatter("%(levelname)s %(name)s: %(message)s").format
_is_console: Callable[[Any], bool] = lambda _stream: False  # noqa: E731 - told by `put_in`


def _call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
    output = OUTPUT.get()
    if output is None or logger.name.partition(".")[0] == "nbflow" or output.log.gone:
        _original(logger, record)
        return
    output.write("log", _text(record))
    with unkept():
        if output.log.echo:
            _original(logger, record)
        else:
            _call_others(logger, record)


def _text(record: logging.LogRecord) -> str:
    try:
        return _format(record)
    except Exception as error:  # noqa: BLE001 - what is logged may raise when it is formatted
        return f"{record.levelname} {record.name}: a record that could not be formatted ({type(error).__name__})"


def _call_others(logger: logging.Logger, record: logging.LogRecord) -> None:
    """Hand the record to the handlers, except for those that would show it where prints are shown."""
    current: logging.Logger | None = logger
    while current is not None:
        for handler in current.handlers:
            console = isinstance(handler, logging.StreamHandler) and _is_console(handler.stream)
            if record.levelno >= handler.level and not console:
                handler.handle(record)
        current = current.parent if current.propagate else None


def put_in(is_console: Callable[[Any], bool]) -> None:
    """Watch what loggers hand to their handlers; *is_console* tells the streams that show what is printed."""
    global _original, _is_console
    _is_console = is_console
    if logging.Logger.callHandlers is not _call_handlers:
        _original = logging.Logger.callHandlers
        logging.Logger.callHandlers = _call_handlers  # type: ignore[method-assign, assignment]


def take_out() -> None:
    """Watch no more, where what watches is still ours."""
    if logging.Logger.callHandlers is _call_handlers:
        logging.Logger.callHandlers = _original  # type: ignore[method-assign]
