"""A call of `step.map`: what it asks for, and what `run` gets back to await or to go through."""

from collections.abc import AsyncIterator, Callable, Generator
from typing import TYPE_CHECKING, Any

from nbflow.core import rates, replay
from nbflow.core.config import resolve
from nbflow.core.history import StepRecord
from nbflow.core.names import quoted
from nbflow.engine.calls import Call, StepCall
from nbflow.engine.context import is_async
from nbflow.engine.maps.edited import edited_items
from nbflow.engine.maps.run import Asked, MapRun
from nbflow.engine.maps.sources import check_items
from nbflow.engine.maps.streams import Stream, StreamIterator
from nbflow.errors import UsageError, article

if TYPE_CHECKING:
    from nbflow.engine.activation import Activation, RollbackHandler

PLAIN, ASYNC = 1, 16
"""Bodies at once where the call does not say: models, files and connections are rarely safe in several threads."""
MOST = 10_000


def asked_for(
    name: str,
    fn: Any,
    items: Any,
    *,
    key: Any,
    concurrency: Any,
    rate: Any,
    retries: Any,
    timeout: Any,
    rollback: "RollbackHandler | None",
    on: str | None,
    executor: Any,
    return_exceptions: bool,
    discard_results: bool,
) -> Asked:
    """Parse what a call asks for.

    Raises:
        UsageError: naming the map and what is wrong.
    """
    if not callable(fn):
        given = article(type(fn).__name__)
        msg = f"map {name!r} was given {given} to run, which is not callable; give the function, then the items"
        raise UsageError(msg)
    check_items(name, items)
    if key is not None and not callable(key):
        msg = f"key= of map {name!r} is {quoted(key)}, which is not callable; give a function of the item that gives text"
        raise UsageError(msg)
    if concurrency is None:
        concurrency = ASYNC if is_async(fn) else PLAIN
        if executor is not None:
            concurrency = size_of(executor) or ASYNC
    if type(concurrency) is not int or not 1 <= concurrency <= MOST:
        msg = f"concurrency= of map {name!r} is {quoted(concurrency)}; it is a number of bodies at once, from 1 to {MOST:,}"
        raise UsageError(msg)
    return Asked(
        fn,
        items,
        key,
        concurrency,
        rates.rate(rate, f"rate= of map {name!r}"),
        resolve(name, retries=retries, timeout=timeout),
        rollback,
        on,
        bool(return_exceptions),
        bool(discard_results),
    )


def size_of(executor: Any) -> int | None:
    """How many bodies an executor runs at once, where it says so."""
    size = getattr(executor, "_max_workers", None) or getattr(executor, "n", None)
    return min(size, MOST) if type(size) is int and size > 0 else None


def call_map(
    activation: "Activation", call: Call, known: StepRecord | None, asked: Asked, decision: replay.Decision | None
) -> "MapCall":
    """Make the call; *decision* None where it waits for ever."""
    if call.key not in activation.calls:
        return MapCall(activation, call, None)
    if asked.rollback is not None:
        activation.rollbacks[call.key] = asked.rollback
    run = MapRun(activation, call, asked, known)
    begin = None
    match decision:
        case replay.Recorded() if known is not None:
            edited = edited_items(known, asked.items, activation.live.files, keyed=asked.key is not None)
            activation.live.codes.called(call.key, known, asked.fn, (), edited)
        case None | replay.Recorded():
            pass
        case replay.HoldForCancel():
            call.begin = run.begin
        case _:
            begin = run.begin
    return MapCall(activation, call, run, begin)


class MapCall(StepCall):
    """What `step.map` gives: awaited it is the list of results, in `async for` they come one by one."""

    __slots__ = ("_begin", "_begun", "_run")

    def __init__(
        self, activation: "Activation", call: Call, run: "MapRun | None", begin: "Callable[[], None] | None" = None
    ) -> None:
        super().__init__(activation, call)
        self._run, self._begin, self._begun = run, begin, False
        if begin is not None:  # with a reference of its own, so that a map that nobody awaits begins too (S16)
            activation.engine.loop.call_soon(self._start)

    def _start(self) -> None:
        """Begin; how its values are taken is known by now."""
        if self._begun:
            return
        self._begun = True
        run = self._run
        if run is not None and run.stream is None and run.items.handed:
            run.ignore_stream()
        if self._begin is not None:
            self._begin()

    def send(self, value: Any) -> Any:
        """Go on (coroutine protocol)."""
        self._start()
        return super().send(value)

    def __await__(self) -> "Generator[Any, Any, Any]":
        self._start()
        return super().__await__()

    def __aiter__(self) -> "AsyncIterator[Any]":
        run = self._run
        if run is not None and run.asked.discard:
            msg = f"map {run.call.key.name!r} has discard_results=True, which leaves nothing to go through; await it"
            raise UsageError(msg)
        if run is None or self._begun:
            return self._listed()
        self.close()
        self._started = True
        run.stream = Stream(run)
        self._start()
        return StreamIterator(run.stream)

    async def _listed(self) -> "AsyncIterator[Any]":
        for value in await self:
            yield value
