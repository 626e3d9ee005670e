"""What bodies put out, shown where it always was: in whole lines, so that those of parallel bodies are not mixed up."""

import threading

_LONG = 8192


class Held:
    """The line of each stream that one attempt has begun and not ended; from any thread."""

    __slots__ = ("_begun", "_lock")

    def __init__(self) -> None:
        self._begun: dict[str, str] = {}
        self._lock = threading.Lock()

    def lines(self, stream: str, text: str) -> str:
        """What is to be shown now that *text* follows: all up to the last end of a line, or where it is drawn anew."""
        with self._lock:
            text = self._begun.pop(stream, "") + text
            end = max(text.rfind("\n"), text.rfind("\r")) + 1
            if len(text) - end > _LONG:
                end = len(text)
            if end < len(text):
                self._begun[stream] = text[end:]
        return text[:end]

    def rest(self, stream: str) -> str:
        """What was begun: it is to be shown as it is."""
        with self._lock:
            return self._begun.pop(stream, "")
