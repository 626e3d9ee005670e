"""Hand results to `run`: read what is recorded of a step, and give it to the call that asked (S20)."""

import contextvars
from functools import partial
from typing import TYPE_CHECKING, Any

from nbflow.core.history import StepRecord
from nbflow.core.model import StepState
from nbflow.engine.calls import Call
from nbflow.engine.loop import ACTIVATION
from nbflow.engine.outputs import failure_of, is_artifact, reference
from nbflow.errors import UndecodableError
from nbflow.values import codec

if TYPE_CHECKING:
    from nbflow.engine.activation import Activation

Outcome = tuple[bool, Any]

_FINISHED, _FAILED = StepState.FINISHED, StepState.FAILED  # looked up once: see core/history.py
_STRAIGHT = 100  # results in a row after which others on the loop come first


class Handing:
    """What the calls of one activation are given, one result at a time; lives on the workflow loop."""

    def __init__(self, activation: "Activation") -> None:
        self._activation = activation
        self._straight = 0

    def at_once(self, call: Call) -> Outcome | None:
        """The recorded result of a call that is just being awaited, where the next turn would hand out this one.

        It would where the awaiting callback is the only one of the activation that can run: when it waits all is quiet, and
        the result at the head goes out (S20). A replay of a thousand steps in a row is a third quicker for it.
        """
        activation = self._activation
        if activation.ready != 1 or not activation.deliveries.is_next(call.key) or self._straight >= _STRAIGHT:
            self._straight = 0
            return None
        if activation.turns_otherwise or ACTIVATION.get() is not activation or call.future.done():
            return None
        record = activation.live.history.steps.get(call.key)
        if record is None or record.state is not _FINISHED or call.deliver is not None or _is_large(call, record):
            return None
        if not activation.live.rest.may_work(activation.on_quiet):
            return None
        outcome = self._decode(call, record)
        if not outcome[0]:
            return None
        self._straight += 1
        self.hand_out(call, outcome)
        return outcome

    def deliver(self, call: Call) -> None:
        """Give a call what is recorded of its step."""
        if call.deliver is not None:
            call.deliver()
            return
        live = self._activation.live
        record = live.history.steps.get(call.key)
        if record is None:
            return  # restarted at this moment, in another thread
        if record.state is _FAILED:
            known, error = failure_of(record, live.files, call.original)
            if known and record.value is not None:  # beside what is shown of it
                self._activation.secrets.append(error)
            (self.hand_out if known else self._decoded)(call, (False, error))
            return
        if not _is_large(call, record):
            self._decoded(call, self._decode(call, record))
            return
        # A table is read in a thread, and nothing else is handed out before it: the order is part of the promise.
        self._activation.decoding = True
        decode, then = partial(self._decode, call, record), partial(self._decoded_in_thread, call)
        self._activation.engine.threads.submit(contextvars.Context(), decode, then)

    def hand_out(self, call: Call, outcome: Outcome) -> None:
        """Give a call its result."""
        activation = self._activation
        activation.calls.pop(call.key, None)
        activation.deliveries.leave(call.key)
        if not call.future.done():
            call.future.set_result(outcome)
        if not outcome[0]:
            activation.failed_calls.append(call)
        if not activation.ready:  # nobody waits for it yet
            activation.on_quiet()

    def _decode(self, call: Call, record: StepRecord) -> Outcome:
        try:
            files = self._activation.live.files
            value: object = None
            if record.value is not None:
                lazy = call.lazy
                value = reference(record.value, record.body, files) if lazy else codec.decode(record.value, files)
            return True, value if call.payload_of is None else call.payload_of(value, record.body)
        except UndecodableError as error:
            return False, error

    def _decoded_in_thread(self, call: Call, outcome: tuple[bool, Any]) -> None:
        self._activation.decoding = False
        if self._activation.over:
            return
        self._decoded(call, outcome[1] if outcome[0] else outcome)

    def _decoded(self, call: Call, outcome: Outcome) -> None:
        if not outcome[0]:
            self._activation.live.interrupt(self._activation, call.key, outcome[1])
            return
        self.hand_out(call, outcome)


def _is_large(call: Call, record: StepRecord) -> bool:
    """Whether reading the result takes long enough for a thread."""
    return not call.lazy and record.value is not None and is_artifact(record.value)
