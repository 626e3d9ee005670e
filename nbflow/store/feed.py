"""After a change: which instance it was about, to whoever wants to know. No content: readers fetch what they need."""

import logging
import threading
from collections.abc import Callable

Subscriber = Callable[[int], None]
_log = logging.getLogger("nbflow")


class Feed:
    """Tells subscribers the `created_seq` of each instance that has changed; 0 where it may be any."""

    def __init__(self) -> None:
        self._subscribers: dict[int, Subscriber] = {}
        self._next = 0
        self._changing = threading.Lock()

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call *callback*, from any thread, after each change; it must be quick. Gives what ends that."""
        with self._changing:
            number = self._next = self._next + 1
            self._subscribers = {**self._subscribers, number: callback}

        def unsubscribe() -> None:
            with self._changing:
                self._subscribers = {key: kept for key, kept in self._subscribers.items() if key != number}

        return unsubscribe

    def publish(self, created_seq: int) -> None:
        """Tell everybody; a subscriber that fails is logged and hurts nobody else."""
        for callback in self._subscribers.values():
            try:
                callback(created_seq)
            except Exception:  # noqa: BLE001 - whatever it is, the next one is told
                _log.exception("a subscriber of the feed failed over instance %s", created_seq)
