"""A second process that decodes what this one has stored, and stores it again: run as a script by `NewProcess`.

It defines classes in its `__main__`, as cells of a notebook do.
"""

import enum
import json
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass
class Cell:
    title: Any
    tags: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Slotted:
    a: Any


class Suit(enum.Enum):
    HEARTS = "h"
    SPADES = 4


class Rank(enum.IntFlag):
    ACE = 1
    KING = 2


Pair = namedtuple("Pair", "left right")  # noqa: PYI024 - the old way is met, too
CLASSES = (Cell, Slotted, Suit, Rank, Pair)


class NewProcess:
    """The other process; `store_again` gives what it makes of stored texts."""

    def __init__(self, root: Path, relative: str) -> None:
        command = [sys.executable, "-W", "error", str(Path(__file__)), str(root), relative]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def store_again(self, stored: list[str]) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(stored) + "\n")
        self._process.stdin.flush()
        answer: list[str] = json.loads(self._process.stdout.readline())
        return answer

    def end(self) -> None:
        self._process.communicate(timeout=20)


def main() -> None:
    sys.path.insert(0, str(ROOT))
    import tests.values.shapes  # noqa: F401 - its classes are looked up
    from nbflow.values.artifacts import ArtifactFolder
    from nbflow.values.codec import decode, encode

    files = ArtifactFolder(Path(sys.argv[1]), sys.argv[2])
    for line in sys.stdin:
        answer = []
        for text in json.loads(line):
            try:
                answer.append(encode(decode(text.encode(), files), files).data.decode())
            except Exception as error:
                answer.append(f"{type(error).__name__}: {error}")
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
