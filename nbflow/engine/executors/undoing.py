"""A rollback handler as the body of its step: given what its signature names, here or on an executor (API.md §1, §7)."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from nbflow.engine.context import is_async, parameters_of
from nbflow.engine.executors.packing import pack_part
from nbflow.values import elsewhere, failures

CTX = "ctx"
_OFFERED = ("error", "output", "step_name")

Read = Callable[[], dict[str, Any]]


class Given:
    """What a handler is given beside `ctx`, made anew for each attempt, where it is needed: in the handler's thread, or in the
    one that packs it for a worker."""

    def __init__(self, offers: Mapping[str, Callable[[], Any]], in_thread: Callable[[Read], Awaitable[dict[str, Any]] | None]):
        self._offers, self._in_thread = offers, in_thread

    def read(self) -> dict[str, Any]:
        """The values by name."""
        return {name: offer() for name, offer in self._offers.items()}

    async def read_async(self) -> dict[str, Any]:
        """The same on a loop, which must not wait for a file."""
        reading = self._in_thread(self.read)
        return self.read() if reading is None else await reading

    def __reduce__(self) -> tuple[Any, ...]:
        """To a worker the values go; an error as what is recorded of it, with what only the notebook has."""
        values = self.read()
        sent = None if (error := values.pop("error", None)) is None else _taken_apart(error)
        return _arrived, (values, "error" in self._offers, sent)


def _taken_apart(error: BaseException) -> tuple[failures.Record, elsewhere.Lost]:
    record = failures.record_error(error)
    return record, elsewhere.left_over(error, record, pack_part, there=True)


def _arrived(values: dict[str, Any], has_error: bool, sent: tuple[failures.Record, elsewhere.Lost] | None) -> Given:
    """What was given, over there; the error is the copy that a replay gives, too."""
    if has_error:
        values["error"] = None if sent is None else elsewhere.error_from_elsewhere(sent[0], ours=False, lost=sent[1])
    return Given({name: partial(_same, value) for name, value in values.items()}, _at_once)


def _same(value: Any) -> Any:
    return value


def _at_once(_read: Read) -> None:
    """Nothing over there is read from a file any more."""


class Undo:
    """Calls a handler with what it names, and gives nothing back: a worker would have to send it."""

    def __init__(self, fn: Callable[..., Any], *, wants_ctx: bool) -> None:
        self._fn, self._wants_ctx = fn, wants_ctx

    def __call__(self, given: Given, *, ctx: Any) -> Any:
        """Undo."""
        result = self._fn(**self._told(given.read(), ctx))
        return _discarded(result) if inspect.iscoroutine(result) else None

    def _told(self, values: dict[str, Any], ctx: Any) -> dict[str, Any]:
        return {CTX: ctx, **values} if self._wants_ctx else values


class UndoAsync(Undo):
    """The same for one that is async."""

    async def __call__(self, given: Given, *, ctx: Any) -> None:
        """Undo."""
        await self._fn(**self._told(await given.read_async(), ctx))


async def _discarded(result: Any) -> None:
    """What a handler gives is of no use to anybody."""
    await result


def as_body(
    fn: Callable[..., Any],
    offers: Mapping[str, Callable[[], Any]],
    in_thread: Callable[[Read], Awaitable[dict[str, Any]] | None],
) -> Callable[..., None]:
    """Give the body of the step that runs a handler.

    Args:
        fn: the handler: gets by keyword what its signature names of ctx, error, output and step_name.
        offers: how the last three of these are had.
        in_thread: reads them elsewhere where the calling thread must not; None where it may.
    """
    parameters = parameters_of(fn)
    everything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters}
    wanted = {name: offers[name] for name in _OFFERED if everything or name in names}
    handler = (UndoAsync if is_async(fn) else Undo)(fn, wants_ctx=everything or CTX in names)
    return partial(handler, Given(wanted, in_thread))
