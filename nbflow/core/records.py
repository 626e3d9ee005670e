"""What is known of one step, of its attempts, and of one event: what the fold of an instance is made of. Pure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from nbflow.core.items import Items
from nbflow.core.model import ENDED, StepKey, StepState


class Attempt(msgspec.Struct, gc=False):
    """One try of a step."""

    number: int
    state: StepState
    started_at: datetime
    ended_at: datetime | None = None
    error: dict[str, Any] | None = None


class StepRecord(msgspec.Struct, gc=False):
    """What is known of one step.

    Attributes:
        order: its number in the activation, the only meaning of "started before" (S8).
        attempt: the number of the latest attempt, 1-based; 0 for sleeps and waits.
        failures: attempts that count against the limit (S27).
        due_at: when a sleep, a wait or a retry delay ends.
        value: the encoded result.
        body: the body of its latest entry: preview, output_type and what else the kind carries.
        died_in: the number of the activation that was cut off while its body ran.
        items: of a map.
    """

    key: StepKey
    order: int
    state: StepState
    started_at: datetime
    changed_at: datetime
    attempt: int = 0
    failures: int = 0
    attempts: list[Attempt] = []
    ended_at: datetime | None = None
    due_at: datetime | None = None
    value: bytes | None = None
    error: dict[str, Any] | None = None
    body: dict[str, Any] = {}
    config: dict[str, Any] | None = None
    code_hash: str = ""
    event_type: str | None = None
    parent: str | None = None
    died_in: int = 0
    rollback: bool = False
    sensitive: bool = False
    items: Items | None = None

    @property
    def ended(self) -> bool:
        """Finished, failed for good or cancelled."""
        return self.state in ENDED


@dataclass(slots=True)
class EventRecord:
    """One event sent to the instance; *taken_by* is the wait that took it."""

    event_id: str
    type: str
    sent_at: datetime
    sent_by: str
    value: bytes
    seq: int
    body: dict[str, Any]
    taken_by: StepKey | None = None
    taken_at: datetime | None = None
    set_aside: str | None = None

    @property
    def free(self) -> bool:
        """Whether a wait may take it."""
        return self.taken_by is None and self.set_aside is None
