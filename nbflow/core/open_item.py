"""What is known of one item of a map while it is open. Pure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nbflow.core.model import StepState


@dataclass(slots=True)
class OpenItem:
    """An item that has started and not ended.

    Attributes:
        failures: attempts that count against the limit (S27).
        died_in: the number of the activation that was cut off while its body ran.
        begun: its body has, in some attempt; False where each has left its queue before (S46).
    """

    key: str
    index: int
    state: StepState
    started_at: datetime
    attempt: int = 0
    failures: int = 0
    due_at: datetime | None = None
    error: dict[str, Any] | None = None
    died_in: int = 0
    begun: bool = True
