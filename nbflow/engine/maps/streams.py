"""`async for value in step.map(…)`: the values of a map in item order, one at a time, live as on replay (S20, S61).

Which entry made which values go out is recorded with it (`out`), so a replay hands them on in the same places of the order of
all results. What has gone out and was not taken yet waits in `ready`: at most `concurrency` + 1,000 with what is behind it.
Where more could go out than that, it is held back until `run` has taken half of it: nothing else may come that would wake it.
"""

import asyncio
import contextvars
from collections import deque
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from nbflow.core.items import stream_key
from nbflow.core.model import Kind
from nbflow.engine.calls import Call
from nbflow.engine.maps.results import Kept
from nbflow.engine.maps.sources import AT_ONCE
from nbflow.engine.outputs import is_artifact
from nbflow.engine.threads import Outcome
from nbflow.errors import UndecodableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbflow.engine.maps.run import MapRun


class Stream:
    """The values of one map on their way to `run`; on the loop.

    Attributes:
        ready: those that went out and were not taken yet.
        held_back: more could go out, and as many as may wait for `run` have done so already.
    """

    def __init__(self, run: "MapRun") -> None:
        self.run, self.activation = run, run.activation
        self.ready: deque[Any] = deque()
        self.held_back = False
        items = run.items
        self._recorded = items.handed
        self._position = 0
        self._names = items.handed_keys()
        if self._names is None and run.draw.keys is not None:  # what went out before it had a key= did so in its places
            self._names = [str(place) for place in range(self._recorded)]
        self._before = frozenset(self._names or ())
        self._frontier = self._recorded if self._names is None else 0
        self._out: deque[str] = deque()
        self._page: dict[str, Kept] = {}
        self._outcome: tuple[bool, Any] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._token = Call(stream_key(run.call.key), run.call.order, run.call.future)
        self._token.deliver = self._deliver
        self.activation.calls[self._token.key] = self._token
        run.call.awaited = True

    # -- what goes out ------------------------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        """How many more may go out before `run` takes some."""
        return max(0, AT_ONCE - len(self._out) - len(self.ready))

    @property
    def may_go_on(self) -> bool:
        """Whether what is held back may go out: not one for each that is taken, which would be an entry for each."""
        return self.held_back and self._room >= (AT_ONCE + 1) // 2

    def passed(self, key: str | None, fields: dict[str, Any]) -> int:
        """Let out what stands first in item order and has ended, *key* with it; notes it in that entry's fields."""
        draw, items = self.run.draw, self.run.items
        out: list[str] = []
        room, self.held_back = self._room, False
        while self._frontier < draw.count:
            at = str(self._frontier) if draw.keys is None else draw.keys[self._frontier]
            if at not in self._before:
                if at != key and not (items.ended(at) and (self.run.asked.exceptions or not items.is_failed(at))):
                    break
                if len(out) == room:
                    self.held_back = True
                    break
                out.append(at)
            self._frontier += 1
        if out:
            fields["out"] = len(out) if self._names is None else out
            self._out.extend(out)
        return len(out)

    @property
    def behind(self) -> bool:
        """Whether values that have ended are still to go out."""
        return self._frontier < self.run.draw.count

    def catch_up(self) -> None:
        """Let out what ended in earlier activations, and what was held back."""
        fields: dict[str, Any] = {"order": self.run.call.order}
        if (self.held_back and not self.may_go_on) or not (out := self.passed(None, fields)):
            return
        self.activation.unacked += 1
        self.activation.record(Kind.MAP_STARTED, self.run.call.key, fields, acked=partial(self._acked, out))

    def _acked(self, out: int) -> None:
        self.activation.unacked -= 1
        self.arrived(out)

    def arrived(self, out: int) -> None:
        """So many more may go out, in their turn."""
        for _ in range(out):
            self.activation.deliveries.arrive(self._token.key)
        self.activation.take_turn()

    def complete(self, total: int) -> bool:
        """Whether all of so many values went out."""
        return self._position >= total

    def rest(self, keys: list[str]) -> list[str]:
        """Of all keys those whose values did not go out."""
        return keys[self._position :] if self._names is None else [key for key in keys if key not in self._before]

    # -- one value ----------------------------------------------------------------------------------------------------

    def _ahead(self) -> "Iterator[str]":
        """The keys of the values that go out next."""
        places = range(self._position, self._recorded)
        names = self._names
        return chain((str(place) if names is None else names[place] for place in places), self._out)

    def _deliver(self) -> None:
        key = next(self._ahead(), None)
        if key is None:  # a history that says of more values that they went out than there are
            self.activation.on_quiet()
            return
        kept = self._page.pop(key, None)
        if kept is None:
            kept = self.run.kept.pop(key, None)
        if kept is None:
            wanted = [each for each in islice(self._ahead(), 2 * AT_ONCE) if each not in self.run.kept]
            self._in_thread(partial(self._read, wanted))
        elif not isinstance(kept, dict) and is_artifact(kept):
            self._in_thread(partial(self._decode, key, kept))
        else:
            self._decoded(self._decode(key, kept))

    def _in_thread(self, call: "Callable[[], Any]") -> None:
        self.activation.decoding = True
        self.activation.engine.threads.submit(contextvars.Context(), call, self._back)

    def _read(self, keys: list[str]) -> Outcome:
        """Read a page; its first value is due."""
        found = self.run.results.read(keys)
        first = self.run.results.decode(keys[0], found.pop(keys[0], None))
        self._page.update(found)
        return True, first

    def _decode(self, key: str, kept: Kept) -> Outcome:
        try:
            return True, self.run.results.decode(key, kept)
        except UndecodableError as error:
            return False, error

    def _back(self, outcome: Outcome) -> None:
        self.activation.decoding = False
        if not self.activation.over:
            self._decoded(outcome[1] if outcome[0] else outcome)

    def _decoded(self, outcome: Outcome) -> None:
        run, activation = self.run, self.activation
        if isinstance(outcome[1], UndecodableError) and not outcome[0]:
            run.live.interrupt(activation, run.call.key, outcome[1])
            return
        if not outcome[0]:
            self.concluded(outcome)
            activation.handing.hand_out(run.call, outcome)
            return
        if self._position >= self._recorded:
            self._out.popleft()
        self._position += 1
        self.ready.append(outcome[1])
        self._wake()
        if not activation.ready:
            activation.on_quiet()

    # -- whoever takes them -------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def concluded(self, outcome: tuple[bool, Any]) -> None:
        """The map has ended: after what is ready comes the end, or the error."""
        self._outcome = outcome
        self.closed()
        self._wake()

    def closed(self) -> None:
        """Nothing more goes out."""
        self.activation.calls.pop(self._token.key, None)
        self.activation.deliveries.leave(self._token.key)

    @property
    def over(self) -> bool:
        """Whether the map has ended."""
        return self._outcome is not None

    async def next(self) -> Any:
        """The next value; StopAsyncIteration after the last."""
        while not self.ready:
            if self._outcome is not None:
                (succeeded, error), self._outcome = self._outcome, (True, None)
                if succeeded:
                    raise StopAsyncIteration
                raise error
            self._waiter = self.activation.engine.loop.create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
        value = self.ready.popleft()
        self.run.taken()
        return value

    def cancel(self) -> None:
        """Nobody takes any more: the map is cancelled (S21)."""
        if self._outcome is None:
            self._outcome = (True, None)
            self.closed()
            self.run.close()
            self.activation.call_cancelled(self.run.call)


class StreamIterator:
    """What `async for` holds; letting go of it before the end cancels the map."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __aiter__(self) -> "StreamIterator":
        return self

    async def __anext__(self) -> Any:
        """The next value."""
        return await self._stream.next()

    async def aclose(self) -> None:
        """Take no more: items that run are cancelled, no further ones begin."""
        self._stream.cancel()

    def __del__(self) -> None:
        stream = self._stream
        if not stream.over and not stream.activation.over:
            thread = stream.activation.engine.thread
            if thread.here:
                stream.cancel()
            else:
                thread.post(stream.cancel)
