"""The body of one item of a map: a body like any other, whose ends go to its map."""

from typing import TYPE_CHECKING, Any

from nbflow.core.model import StepKey, StepType
from nbflow.engine.bodies import Body
from nbflow.engine.calls import Call
from nbflow.engine.maps.sources import Drawn
from nbflow.engine.threads import Outcome
from nbflow.values import codec

if TYPE_CHECKING:
    from datetime import timedelta

    from nbflow.engine.maps.run import MapRun

_OF_VALUE = ("preview", "output_type", "json", "uri")
_NOTHING = codec.encode(None, None, with_preview=False)


class ItemBody(Body):
    """One item in one activation, over all its attempts."""

    def __init__(self, run: "MapRun", drawn: Drawn) -> None:
        self.run, self.drawn, self.index = run, drawn, drawn.index
        asked, key = run.asked, run.call.key
        call = Call(StepKey(StepType.MAP, key.name, key.count, drawn.key), run.call.order, run.call.future)
        args, context = (drawn.item,), run.context.copy()
        super().__init__(
            run.activation, call, asked.fn, args, run.config, asked.on, context, undoable=asked.rollback is not None
        )

    def _fixed_body(self) -> dict[str, Any]:
        order = self.call.order
        return {"order": order, "index": self.drawn.index} if self.run.draw.named else {"order": order}

    def _marks(self) -> dict[str, Any]:
        return self.run.code

    def _failures(self) -> int | None:
        item = self.run.items.open.get(self.drawn.key)
        return None if item is None else item.failures

    def _has_begun(self) -> bool:
        item = self.run.items.open.get(self.drawn.key)
        return item is not None and item.begun

    @property
    def _giving_up(self) -> bool:
        return self.scope.failure is not None or self.run.failing

    def _settle(self, outcome: Outcome) -> None:
        super()._settle((True, None) if outcome[0] and self.run.asked.discard else outcome)

    def _encode(self, value: object) -> Outcome:
        return (True, _NOTHING) if value is None and self.run.asked.discard else super()._encode(value)

    def _end(self, what: str, body: dict[str, Any], value: bytes | None = None) -> None:
        if self.drawn.hash:
            body["hash"] = self.drawn.hash
        if what == "failed":
            value = None  # of an error that is shown nowhere `run` gets no more than is shown
        if self.run.asked.discard and what == "finished":
            value = None
            for name in _OF_VALUE:
                body.pop(name, None)
        self.run.ended(self, self._kind(what), body, value)

    def retry(self, error: BaseException, delay: "timedelta") -> None:
        """The attempt has failed, and another comes after *delay*; meanwhile others may run."""
        super().retry(error, delay)
        self.run.rests()

    def withdraw(self) -> None:
        """See `OnExecutors`: its place is free."""
        working = self._running
        super().withdraw()
        if working and not self._running:
            self.run.rests()

    def _go_on(self) -> None:
        if self.is_open:
            self.run.ready(self)
