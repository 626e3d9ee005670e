"""The code of a step as parts, each with its own hash, so that what changed can be named (S56).

Pure. The fingerprint of a body is the hash over its parts; the history keeps it in the entries of the step, and once per
hash, among the sources, which parts it was made of and the text of each.
"""

import difflib
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

BODY = "the body"
UNKNOWN = "its code changed"
_LONGEST = 2_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that the code of a step is made of.

    Attributes:
        label: what it is called in messages: "the body", "load_docs", "MODEL".
        hash: 16 hex digits.
        text: its source, "" where it has none.
    """

    label: str
    hash: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The code of a step: its parts, and one hash over all of them."""

    hash: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The source of the body."""
        return next((part.text for part in self.parts if part.label == BODY), "")

    def sources(self) -> Iterable[tuple[str, str]]:
        """What is kept in the store, once per hash: the list of parts, and each part's text."""
        for part in self.parts:
            if part.text:
                yield part.hash, part.text
        yield self.hash, msgspec.json.encode({part.label: part.hash for part in self.parts}).decode()


def digest(*texts: str) -> str:
    """16 hex digits over these texts."""
    joined = "\n".join(f"{len(text)}:{text}" for text in texts)
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def fingerprint(parts: Iterable[Part]) -> Fingerprint:
    """One fingerprint of these parts; several under one label count as one."""
    by_label: dict[str, list[Part]] = {}
    for part in parts:
        by_label.setdefault(part.label, []).append(part)
    merged = tuple(
        _merged(label, same) for label, same in sorted(by_label.items(), key=lambda pair: (pair[0] != BODY, pair[0]))
    )
    return Fingerprint(digest(*(f"{part.label}={part.hash}" for part in merged)), merged)


def _merged(label: str, same: list[Part]) -> Part:
    if len(same) == 1:
        return same[0]
    distinct = list({part.hash: part for part in same}.values())
    if len(distinct) == 1:
        return distinct[0]
    return Part(label, digest(*(part.hash for part in distinct)), "\n\n".join(part.text for part in distinct if part.text))


def parts_of(text: str | None) -> dict[str, str] | None:
    """The hashes of parts by label, from what the store keeps under a fingerprint; None where it is nothing of the kind."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        return None


def changed(old: Mapping[str, str] | None, new: Mapping[str, str]) -> tuple[str, ...]:
    """The labels of what differs: parts that changed, else those that only one of the two has."""
    if old is None:
        return ()
    differ = tuple(label for label in new if label in old and old[label] != new[label])
    return differ or tuple(label for label in {**old, **new} if (label in old) != (label in new))


def difference(label: str, old: str, new: str) -> str:
    """A unified diff of one part, recorded to present."""
    if len(old) + len(new) > _LONGEST:
        return f"{label}: {len(old):,} characters were recorded, {len(new):,} are there now, too many to compare"
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), f"{label} (recorded)", f"{label} (now)", lineterm="")
    return "\n".join(lines)
