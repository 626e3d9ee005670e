"""What one executor has been given and has not done yet: it goes to the next one where that takes its name."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbflow.engine.executors.attempt import Place, RemoteAttempt


class Line:
    """Of one executor; used on the workflow loop."""

    def __init__(self, place: "Place") -> None:
        self.place = place
        self._out: dict[RemoteAttempt, None] = {}

    def __len__(self) -> int:
        return len(self._out)

    def add(self, attempt: "RemoteAttempt") -> None:
        """Give it to the executor."""
        self._out[attempt] = None
        self.place.submit(attempt)

    def left(self, attempt: "RemoteAttempt") -> None:
        """It has ended, or nobody waits for it any more."""
        self._out.pop(attempt, None)
        self._retire_when_empty()

    def end(self, *, replaced: bool) -> None:
        """It has its name no more: what runs there ends there, what has not begun goes where another has the name now."""
        self.place.retired = True
        if replaced:
            for attempt in list(self._out):
                attempt.move()
        self._retire_when_empty()

    def _retire_when_empty(self) -> None:
        if self.place.retired and not self._out:
            self.place.retire()
