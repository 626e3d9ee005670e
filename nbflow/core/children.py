"""Which instance is the child of which call of `step.child`, and what its id is (S2, S44, S60). Pure."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nbflow.core.head import Head
from nbflow.core.model import StepKey, StepType

LONGEST = 100  # S2
_SHORT = 40  # characters that a name keeps where it and its parent's id are too long together
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")  # no dot: `a` with `b.c` and `a.b` with `c` would have one id
_MARKS = re.compile(r"(-[0-9a-f]{8})?(-r[0-9]+)?")
_KEPT = 80  # characters of an id that no mark can take the place of
_OTHER = re.compile(r"[^A-Za-z0-9_.-]+")


def made_by(parent: Head, key: StepKey) -> dict[str, Any]:
    """What the `created` entry of an instance says of the step that made it.

    `redone` tells calls of one step apart: a restart drops a call, and the next one makes a child of its own.
    """
    step = {"type": str(key.type), "name": key.name, "count": key.count, "redone": parent.redone}
    if key.key is not None:
        step["key"] = key.key
    return {"parent": parent.instance_id, "parent_seq": parent.created_seq, "parent_step": step}


@dataclass(frozen=True, slots=True)
class ChildCall:
    """One call of `step.child`, as it was when it was made.

    Attributes:
        workflow: of the parent.
        parent: its id.
        key: the step.
        given: the id asked for, None for one of its own.
        redone: how often steps of the parent had been dropped to run again.
        about: what the child's `created` entry says of the call.
    """

    workflow: str
    parent: str
    key: StepKey
    given: str | None
    redone: int
    about: dict[str, Any]

    @classmethod
    def of(cls, parent: Head, key: StepKey, given: str | None) -> "ChildCall":
        """A call that is made now."""
        return cls(parent.workflow, parent.instance_id, key, given, parent.redone, made_by(parent, key))

    def made(self, child: Head) -> bool | None:
        """Whether this very call made that instance; None where its history is of before, and does not say which did."""
        if child.body.get("parent_seq") == self.about["parent_seq"] and "parent_step" not in child.body:
            return None if self.redone == 0 else False
        return all(child.body.get(name) == value for name, value in self.about.items())

    def may_take(self, child: Head) -> bool:
        """Whether a body of the same parent made it, under the id that is asked for now: it is given again (S60)."""
        step = self._step(child)
        return self.given is not None and step is not None and step.get("type", StepType.CHILD) != StepType.CHILD

    def may_differ(self, child: Head) -> bool:
        """Whether another id is taken where that instance has this one: where none was asked for, and after a restart."""
        if self.given is None:
            return True
        step = self._step(child)
        redone = None if step is None else step.get("redone", 0)
        return type(redone) is int and redone < self.redone

    def may_name(self, child_id: str) -> bool:
        """Whether a call that asks for the same id may have made a child of that one."""
        if self.given is None or not child_id.startswith(self.given[:_KEPT]):
            return self.given is None and bool(child_id)
        return len(self.given) > _KEPT or _MARKS.fullmatch(child_id, len(self.given)) is not None

    def _step(self, child: Head) -> dict[str, Any] | None:
        """What an instance says of the step of this parent that made it; None where it is another's."""
        step = child.body.get("parent_step", {})
        ours = child.body.get("parent_seq") == self.about["parent_seq"]
        return step if ours and isinstance(step, dict) else None

    def ids(self) -> Iterator[str]:
        """Ids for the child, first choice first; the next is for where the one before belongs to somebody else.

        The first is the one that was given, or `parent.name-n`, with a hash where anything was replaced or cut. After a
        restart comes the same with `-r2`, `-r3` and so on. Last, where none was given, one with a hash of its own.
        """
        again = f"-r{self.redone + 1}" if self.redone else ""
        yield self._id()
        if again:
            yield self._id(again)
        if self.given is None:
            yield self._id(again, self.about["parent_seq"])

    def id_for(self, params: bytes) -> str:
        """The id where the child of this call is there, made from other params than these (encoded)."""
        return self._id(f"-r{self.redone + 1}" if self.redone else "", self.about["parent_seq"], params)

    def _id(self, again: str = "", *of_its_own: object) -> str:
        if self.given is not None:
            mark = f"-{_hash(self.given, *of_its_own)}" if of_its_own or len(self.given + again) > LONGEST else ""
            return _joined(self.given, mark + again)
        name, tail = self.key.name, f"-{self.key.count}"
        whole = f"{self.parent}.{name}{tail}{again}"
        if not of_its_own and len(whole) <= LONGEST and _PLAIN.fullmatch(name):
            return whole
        # Ids are unique in a workflow, and the parents may be of two with the same id.
        tail += f"-{_hash(self.workflow, self.parent, name, self.key.count, *of_its_own)}{again}"
        name = _OTHER.sub("-", name)[: max(_SHORT, LONGEST - len(tail) - 1 - len(self.parent))]
        return _joined(self.parent, f".{name}{tail}")


def _joined(head: str, tail: str) -> str:
    return head[: LONGEST - len(tail)] + tail


def _hash(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=4).hexdigest()
