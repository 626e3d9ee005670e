"""Where the items of a map come from: any iterable, drawn little by little, what is recorded of it passed over (API.md §6).

Lists, tuples and ranges are drawn on the loop: nothing of the user's runs for that. Everything else is drawn by a thread of
its own, one for each map, so that a generator may block, and finds itself in one thread all its life. Async iterables are
drawn by a task of the activation, so that they may be made of steps.
"""

import asyncio
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from nbflow.core import names
from nbflow.core.items import Items
from nbflow.engine.loop import ACTIVATION
from nbflow.engine.outputs import is_light
from nbflow.engine.threads import Outcome, call_in
from nbflow.errors import UsageError, article
from nbflow.values.fingerprint import fingerprint

if TYPE_CHECKING:
    from nbflow.engine.activation import Activation

AT_ONCE = 1_000  # items looked at before others have their turn
SOON = 0.01  # seconds from an item that has ended before to the look at what it lets out, with those that come meanwhile
_BUILT_IN = (list, tuple, range)


class Drawn:
    """An item that has to run; *index* is its place among all."""

    __slots__ = ("hash", "index", "item", "key")

    def __init__(self, index: int, key: str, item: Any, hash: str) -> None:  # noqa: A002
        self.index, self.key, self.item, self.hash = index, key, item, hash


class Draw:
    """One pass over the items; used by one thread at a time.

    Attributes:
        count: how many were drawn.
        named: key= names them.
        keys: those they are recorded under, in order; None where each is the index.
        pending: those drawn that have not begun.
        failed: the first that has failed for good before.
        stale: keys of recorded items whose content has changed (S57).
        exhausted: all are drawn.
        served: told of each item that has ended before.
    """

    def __init__(self, name: str, key: Callable[[Any], Any] | None, items: Items) -> None:
        self._name, self._key, self.items = name, key, items
        self.count = 0
        self.named = key is not None
        self.keys: list[str] | None = [] if self.named or items.any_named else None
        self._seen: set[str] = set()
        self._renamed: set[str] = set()  # keys of items that are recorded under another one,
        self._others: set[str] = set()  # and those others
        self._contents: dict[str, Iterator[str]] | None = None
        self.pending: deque[Drawn] = deque()
        self.failed = ""
        self.stale: list[str] = []
        self.exhausted = False
        self.served: Callable[[], None] | None = None

    def some(self, iterator: Iterator[Any], wanted: int) -> None:
        """Draw until so many wait to run, or many were looked at."""
        for _ in range(AT_ONCE):
            try:
                item = next(iterator)
            except StopIteration:
                self.exhausted = True
                return
            self.take(item)
            if len(self.pending) >= wanted:
                return

    def take(self, item: Any) -> None:
        """Look at one item: it runs, unless it has ended before.

        Raises:
            UsageError: its key is no text or came before, or another item is recorded under its key or index.
        """
        index = self.count
        name = self._key_of(item, index) if self.named else str(index)
        key, now = self._recorded_as(name, index, item)
        if self.keys is not None:
            self.keys.append(key)
            self._seen.add(key)
            if key != name:
                self._renamed.add(name)
                self._others.add(key)
        if now is not None:
            self.pending.append(Drawn(index, key, item, now))
        if not self.failed and self.items.is_failed(key):
            self.failed = key
        self.count += 1
        if now is None and self.served is not None:
            self.served()

    def _recorded_as(self, name: str, index: int, item: Any) -> tuple[str, str | None]:
        """The key under which an item is recorded, or will be, and its fingerprint; None for that where it has ended.

        An index says nothing of a name, nor a name of an index: what ended under one and is known by the other now is told by
        its content, so that no item gets the result of another when key= comes or goes.
        """
        items = self.items
        ended = items.ended(name)
        if ended and items.is_named(name) is self.named:
            if (recorded := items.hash(name)) and (now := fingerprint(item)) and now != recorded:
                if not self.named:
                    raise UsageError(self._shifted(index))
                self.stale.append(name)
            return name, None
        now = fingerprint(item)
        if ended and now and now == items.hash(name) and name not in self._seen:
            return name, None
        if self.keys is not None and (key := self._same(now)) is not None:
            return key, None
        if ended:
            raise UsageError(self._taken(name, index))
        return name, now

    def _same(self, content: str) -> str | None:
        """The key of an item of that content that ended, named if these are not; each for one item alone."""
        if self._contents is None:
            found = self.items.by_content(named=not self.named)
            self._contents = {its: iter(keys) for its, keys in found.items()}
        return next((key for key in self._contents.get(content, ()) if key not in self._seen), None)

    def _shifted(self, index: int) -> str:
        return (
            f"item {index} of {self._name!r} is not the one recorded; pass key= to step.map, a function that gives "
            f"each item a text of its own that is no mere number, so that results stay with their items when the list changes"
        )

    def _taken(self, name: str, index: int) -> str:
        anew = f"or restart the instance from {self._name!r} to run all items"
        if not self.named:
            return (
                f"item {index} of {self._name!r} is not known to be the one that key= named {name!r}; "
                f"pass key= to step.map again, {anew}"
            )
        return (
            f"item {index} of {self._name!r} is not known to be the one recorded under index {name} before the map had a key=; "
            f'let key= give text that is no mere number, such as f"item {{…}}" (what has finished is kept), {anew}'
        )

    def __contains__(self, key: object) -> bool:
        """Whether an item of that key was drawn."""
        return (
            key in self._seen if self.keys is not None else isinstance(key, str) and key.isdecimal() and int(key) < self.count
        )

    def _key_of(self, item: Any, index: int) -> str:
        assert self._key is not None
        assert self.keys is not None
        key = self._key(item)
        if not isinstance(key, str):
            what = article(type(key).__name__)
            msg = f"key= of map {self._name!r} gave {what} for item {index}; it must give text, such as str(…)"
            raise UsageError(msg)
        key = names.item_key(key, f"key= of map {self._name!r} for item {index}")
        if key in self._renamed or (key in self._seen and key not in self._others):
            msg = f"map {self._name!r}: the key {key!r} of item {index} came before; each item needs a key of its own"
            raise UsageError(msg)
        return key


class Source:
    """Draws in the right place; on the loop.

    Attributes:
        draw: what was drawn.
        error: what ended the drawing before its end.
    """

    def __init__(self, activation: "Activation", items: Any, draw: Draw, more: Callable[[], None]) -> None:
        self._activation, self._engine, self._items, self.draw = activation, activation.engine, items, draw
        self._more = more
        self.error: BaseException | None = None
        self.busy = self._closed = False
        self._iterator: Iterator[Any] | None = None
        self._inline = type(items) in _BUILT_IN and not draw.named
        self._demands: queue.SimpleQueue[int] | None = None
        self._task: asyncio.Task[None] | None = None
        self._demand = asyncio.Event()
        self._wanted = 0
        self._told = self._posted = False

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return self.error is not None or (self.draw.exhausted and not self.draw.pending)

    def want(self, wanted: int) -> None:
        """Have so many waiting to run; *more* is called when there are, unless it is so already."""
        if self._closed or self.busy or self.error is not None or self.draw.exhausted or len(self.draw.pending) >= wanted:
            return
        self._wanted = wanted
        if self._inline:
            self._draw_here(wanted)
        else:
            self._begin()
            if self._task is not None:
                self._demand.set()
            else:
                self._demand_of_thread(wanted)

    def close(self) -> None:
        """Draw no more."""
        if self._closed:
            return
        self._closed, self.draw.served = True, None  # or what was drawn would hold on to this, and to the items
        if self._demands is not None:
            self._demands.put(0)
        if self._task is not None:
            self._task.cancel()
        if self.busy:
            self._idle()

    def _draw_here(self, wanted: int) -> None:
        if self._iterator is None:
            self._iterator = _light_first(self._items) if self._items else iter(())
            if self._iterator is None:  # what is heavy to look at is looked at in a thread
                self._inline = False
                self.want(wanted)
                return
        before = self.draw.count
        try:
            self.draw.some(self._iterator, wanted)
        except BaseException as error:  # noqa: BLE001 - a key that came twice, or whatever a value's own code raises
            self.error = error
            return
        if self.draw.count - before >= AT_ONCE and len(self.draw.pending) < wanted:
            self._work()
            self._engine.thread.post(self._drawn, (True, None))

    def _work(self) -> None:
        self.busy = True
        self._activation.drawing += 1

    def _idle(self) -> None:
        self.busy = False
        self._activation.drawing -= 1

    def _begin(self) -> None:
        if self._task is not None or self._demands is not None:
            return
        self.draw.served = self._served
        if hasattr(type(self._items), "__aiter__"):
            self._task = self._engine.loop.create_task(self._drive())
            return
        self._demands = queue.SimpleQueue()
        context = contextvars.copy_context()
        context.run(ACTIVATION.set, None)
        threading.Thread(target=self._main, args=(context, self._demands), name="nbflow-items", daemon=True).start()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _demand_of_thread(self, wanted: int) -> None:
        assert self._demands is not None
        self._work()
        self._demands.put(wanted)

    def _main(self, context: contextvars.Context, demands: "queue.SimpleQueue[int]") -> None:
        made, iterator = call_in(context, self._iterated)
        while wanted := demands.get():
            outcome = (made, iterator) if not made else call_in(context, lambda: self._some(iterator, wanted))
            self._engine.thread.post(self._drawn, outcome)
            del outcome
        if made and hasattr(type(iterator), "close"):
            call_in(context, iterator.close)  # a generator's `finally` runs in the thread where the rest of it ran

    def _some(self, iterator: Iterator[Any], wanted: int) -> None:
        """Draw until so many wait to run; each may begin at once, while the next one is drawn."""
        draw = self.draw
        before = draw.count
        while True:
            draw.some(iterator, len(draw.pending) + 1)
            if draw.exhausted or len(draw.pending) >= wanted or draw.count - before >= AT_ONCE:
                return
            self._engine.thread.post(self._begun)

    def _iterated(self) -> Iterator[Any]:
        if type(self._items).__name__ == "DuckDBPyRelation":
            return iter(self._items.iter_rows())  # its rows as tuples
        return iter(self._items)

    def _begun(self) -> None:
        self._posted = False
        if not self._closed:
            self._more()

    def _drawn(self, outcome: Outcome) -> None:
        if self._closed:
            return
        self._idle()
        if not outcome[0]:
            self.error = outcome[1]
        if self._activation.over:
            self.close()
            return
        self._more()

    def _served(self) -> None:
        """An item has ended before: its value may have to be taken before the iterable gives another."""
        if not self._told:
            self._told = True
            self._engine.thread.post(self._tell_soon)

    def _tell_soon(self) -> None:
        loop = self._engine.loop
        loop.call_later(SOON, self._tell, context=loop.uncounted)

    def _tell(self) -> None:
        self._told = False
        self._begun()

    # -- async iterables ----------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        outcome: Outcome = (True, None)
        try:
            await self._draw_all()
        except BaseException as error:  # what the iterable raises ends the map, not the loop
            if self._closed and isinstance(error, asyncio.CancelledError):  # ours
                raise
            outcome = (False, error)
        self.draw.exhausted = True
        if not outcome[0]:
            self.error = outcome[1]
        self._engine.thread.post(self._more)

    async def _draw_all(self) -> None:
        iterator = aiter(self._items)
        try:
            async for item in iterator:
                self.draw.take(item)
                if self.draw.pending and not self._posted:  # the iterable may take long over the next, or wait for this one
                    self._posted = True
                    self._engine.thread.post(self._begun)
                while len(self.draw.pending) >= self._wanted:
                    self._demand.clear()
                    self._engine.thread.post(self._more)
                    await self._demand.wait()
        finally:
            if hasattr(iterator, "aclose"):
                await iterator.aclose()  # a generator's `finally` runs now, not when the garbage collector comes


def _light_first(items: Any) -> Iterator[Any] | None:
    """An iterator over built-in items that are light to look at, as far as the first one tells."""
    return iter(items) if is_light(items[0]) else None


def check_items(name: str, items: Any) -> None:
    """Refuse at the call what cannot be the items of a map.

    Raises:
        UsageError: it is no iterable, or iterating over it gives what nobody means.
    """
    cls = type(items)
    what = f"map {name!r} was given {article(cls.__name__)} as its items"
    library = cls.__module__.partition(".")[0]
    if library in ("pandas", "polars", "pyarrow") and cls.__name__ in ("DataFrame", "Table", "LazyFrame"):
        ways = {"pandas": "frame.itertuples()", "polars": "frame.iter_rows()", "pyarrow": "table.to_pylist()"}
        msg = f"{what}; iterating over that gives columns, not rows: pass {ways[library]}"
        raise UsageError(msg)
    if not any(hasattr(cls, method) for method in ("__iter__", "__aiter__", "__getitem__", "iter_rows")):
        msg = f"{what}, which is not iterable; give a list, a generator, a DuckDB relation or any other iterable"
        raise UsageError(msg)


def total_of(items: Any) -> int | None:
    """How many there will be, where that can be known without running code of the user's."""
    return len(items) if type(items) in (*_BUILT_IN, dict, set, frozenset, deque) else None
