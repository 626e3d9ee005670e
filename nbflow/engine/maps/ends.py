"""What `run` gets when a map has ended: the list of results, their number, the end of the stream, or the error (S20, S61)."""

import contextvars
from functools import partial
from typing import TYPE_CHECKING, Any

from nbflow.core.history import StepRecord
from nbflow.core.items import stream_key
from nbflow.core.model import StepKey, StepState
from nbflow.engine.maps.results import read_keys
from nbflow.engine.outputs import is_artifact
from nbflow.engine.threads import Outcome
from nbflow.errors import UndecodableError
from nbflow.values import failures

if TYPE_CHECKING:
    from nbflow.engine.maps.run import MapRun


FEW = 1_000  # values decoded on the loop


class Conclusion:
    """The end of one map in one activation, live as on replay."""

    def __init__(self, run: "MapRun") -> None:
        self._run, self._activation, self._key = run, run.activation, run.call.key

    def deliver(self) -> None:
        """Its turn has come."""
        run = self._run
        record = run.live.history.steps.get(self._key)
        if record is None:
            return  # restarted at this moment, in another thread
        total: int = record.body.get("total", 0)
        if record.state is StepState.FAILED:
            self._conclude((False, self._error(record)))
        elif run.asked.discard and run.stream is None:
            self._conclude((True, total))
        elif run.stream is not None and run.stream.complete(total):
            self._conclude((True, None))
        elif run.stream is None and record.value is None and len(run.kept) == total <= FEW and self._light():
            self._collected((True, list(run.results.all([str(index) for index in range(total)], run.kept))))
        else:  # nothing else is handed out before it: the order is part of the promise
            self._activation.decoding = True
            run.engine.threads.submit(contextvars.Context(), partial(self._collect, record), self._back)

    def _light(self) -> bool:
        return not any(isinstance(kept, dict) or is_artifact(kept) for kept in self._run.kept.values())

    def _error(self, record: StepRecord) -> BaseException:
        item, key, original = record.body.get("item"), self._key, self._run.call.original
        step = str(key if item is None else StepKey(key.type, key.name, key.count, item))
        error = failures.decode_error(record.error or {}, step=step, attempts=record.body.get("item_attempts", 0))
        if original is not None and error is not original:
            error.__cause__ = original
        return error

    def _collect(self, record: StepRecord) -> list[Any]:
        run = self._run
        keys = read_keys(record, run.live.files)
        if run.stream is not None:
            keys = run.stream.rest(keys)
        return list(run.results.all(keys, run.kept))

    def _back(self, outcome: Outcome) -> None:
        self._activation.decoding = False
        if not self._activation.over:
            self._collected(outcome)

    def _collected(self, outcome: Outcome) -> None:
        run = self._run
        if isinstance(outcome[1], UndecodableError) and not outcome[0]:
            run.live.interrupt(self._activation, self._key, outcome[1])
            return
        if outcome[0] and run.stream is not None:
            run.stream.ready.extend(outcome[1])
            outcome = (True, None)
        self._conclude(outcome)

    def _conclude(self, outcome: tuple[bool, Any]) -> None:
        run = self._run
        run.let_go()
        self._activation.calls.pop(stream_key(self._key), None)
        if run.stream is not None:
            run.stream.concluded(outcome)
        self._activation.handing.hand_out(run.call, outcome)
