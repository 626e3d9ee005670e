"""What is recorded of the code of an instance's steps, and which of them are stale against the present code (S56, S57)."""

import threading
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nbflow.clock import SystemClock
from nbflow.core.history import Head, History, StepRecord
from nbflow.core.items import Items
from nbflow.core.model import ENDED, Status, StepKey, StepState, StepType
from nbflow.core.parts import BODY, UNKNOWN, Fingerprint, Part, changed, difference, parts_of
from nbflow.engine.code.content import Contents
from nbflow.engine.code.fingerprints import of_callable
from nbflow.engine.code.frames import Frames
from nbflow.errors import NbflowError

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.live import LiveInstance
    from nbflow.engine.registry import Workflow

ARGUMENTS = "arguments"
_SHOWN = 3
_RESPITE = 30.0  # seconds
_CALM = 4  # looks at a body at work without another call of a recorded step: then `run` has come to what is new
_pause = threading.Event().wait


@dataclass(frozen=True, slots=True)
class Present:
    """What a call gives a step to run, as far as it can be told: code, constants bound to it, arguments, changed items.

    Of the names in *open* it is not known whether they are constants or data of `run`.
    """

    fingerprint: Fingerprint | None
    bound: dict[str, str]
    args_hash: str | None
    items: tuple[str, ...] = ()
    open: frozenset[str] = frozenset()

    def marks(self) -> dict[str, Any]:
        """What the entries of the step say of it."""
        marks: dict[str, Any] = {}
        if self.fingerprint is not None:
            marks["code_hash"] = self.fingerprint.hash
            if self.bound:
                marks["bound"] = self.bound
        if self.args_hash is not None:
            marks["args_hash"] = self.args_hash
        return marks

    def differs(self, recorded: Mapping[str, Any]) -> bool:
        """Whether it is not what was recorded; what was not recorded, or cannot be told now, is the same."""
        if self.items:
            return True
        return self._code_differs(recorded) or self._code_differs(recorded.get("served", {})) or self._args_differ(recorded)

    def _code_differs(self, recorded: Mapping[str, Any]) -> bool:
        present, known = self.fingerprint, recorded.get("code_hash")
        return present is not None and bool(known) and (known != present.hash or bool(self._other_constants(recorded)))

    def _other_constants(self, recorded: Mapping[str, Any]) -> list[str]:
        """The names of what is bound to it by another value; what may be data counts only where both say it."""
        bound, now = recorded.get("bound", {}), self.bound
        return [
            name
            for name in ({**bound, **now} if bound != now else ())
            if bound.get(name) != now.get(name) and (name not in self.open or (name in bound and name in now))
        ]

    def against(self, recorded: Mapping[str, Any]) -> Mapping[str, Any]:
        """What was recorded, with the code that differs: some items of a map may have ended under other code than the rest."""
        served = recorded.get("served", {})
        return {**recorded, "bound": {}, **served} if self._code_differs(served) else recorded

    def _args_differ(self, recorded: Mapping[str, Any]) -> bool:
        known = recorded.get("args_hash")
        return known is not None and self.args_hash is not None and known != self.args_hash

    def what_differs(self, recorded: Mapping[str, Any], old: Mapping[str, str] | None) -> list[str]:
        """The labels of what differs from what was recorded, whose parts were *old*."""
        labels: list[str] = []
        if self.fingerprint is not None and recorded.get("code_hash"):
            if recorded["code_hash"] != self.fingerprint.hash:
                labels += changed(old, self.parts) or [UNKNOWN]
            labels += self._other_constants(recorded)
        if self._args_differ(recorded):
            labels.append(ARGUMENTS)
        labels += [f"item {key!r}" for key in self.items]
        return list(dict.fromkeys(labels))

    @property
    def parts(self) -> dict[str, str]:
        """Its parts by label."""
        return {} if self.fingerprint is None else {part.label: part.hash for part in self.fingerprint.parts}


@dataclass(slots=True)
class Differing:
    """The steps of one instance that were found to differ, under the code whose hash is *reach*."""

    reach: str
    steps: dict[StepKey, Present] = field(default_factory=dict)


class Codes:
    """The code of one instance's steps, while its engine runs it."""

    def __init__(self, live: "LiveInstance") -> None:
        self._live, self._engine = live, live.engine
        self._contents = Contents()
        self._frames: Frames | None = None
        self._recorded_calls = 0

    def begin(self) -> None:
        """Another activation begins: what is stale shows as its calls are made."""
        self._engine.registry.stale.pop(self._live.created_seq, None)
        self._contents = Contents()
        workflow = self._live.workflow
        self._frames = None if workflow is None else Frames(workflow.cls)  # another class may be registered meanwhile

    def marks(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
        """What entries of an attempt of *fn* say of its code; the sources go to the journal before them."""
        fingerprint, bound, _ = of_callable(fn, args, self._frames)
        if fingerprint is not None and fingerprint.hash not in self._engine.registry.kept:
            keep(self._engine, fingerprint)
        if fingerprint is not None and not bound and not args:  # nearly every step, and each pays for what is done here
            return {"code_hash": fingerprint.hash}
        return self._present(fn, args).marks()

    def called(
        self, key: StepKey, record: StepRecord, fn: Callable[..., Any], args: tuple[Any, ...], edited: Sequence[str] = ()
    ) -> None:
        """A recorded step was called: it is stale where its code, arguments or *edited* items are not what they were (S57)."""
        self._recorded_calls += 1
        if record.state is not StepState.FINISHED or not ("code_hash" in record.body or "args_hash" in record.body):
            return
        items = record.body.get("stale", ())
        if edited:
            items = list(dict.fromkeys([*items, *edited]))[:_SHOWN]
        # A thousand of these are looked at before the first new body runs.
        if not args and not items and "args_hash" not in record.body and "served" not in record.body:
            fingerprint, bound, _ = of_callable(fn, args, self._frames)
            if fingerprint is not None and (fingerprint.hash, bound) == (
                record.body["code_hash"],
                record.body.get("bound", {}),
            ):
                return
        present = self._present(fn, args if "args_hash" in record.body else ())
        if items:
            present = replace(present, items=tuple(items))
        if present.differs(record.body):
            self._found(key, present)

    def _found(self, key: StepKey, present: Present) -> None:
        workflow = self._live.workflow
        known = Differing("" if workflow is None else workflow.reach)
        self._engine.registry.stale.setdefault(self._live.created_seq, known).steps[key] = present

    def goes_on(self, key: StepKey, fn: Callable[..., Any], items: Items) -> None:
        """A map goes on: it is stale where items of it have ended under other code, which are served as they are (S57)."""
        if codes := items.codes():
            present = self._present(fn, ())
            if any(present.differs(_whole(code, present)) for code in codes):
                self._found(key, present)

    def items_changed(
        self, key: StepKey, fn: Callable[..., Any], changed: Sequence[str], items: Items, drawn: Container[str]
    ) -> dict[str, Any]:
        """Which items of a map were served whose content or code is not what it was (S57), for the entry of the map's end.

        They are not drawn again, so later calls and other engines know it from there.
        """
        codes, present, body = items.codes(), self._present(fn, ()), dict[str, Any]()
        other = [code for code in codes if present.differs(_whole(code, present)) and items.ended_under(code, 1, drawn)]
        if other:
            body["served"] = other[0]
        if changed:
            body["stale"] = list(changed[:_SHOWN])
            present = replace(present, items=tuple(body["stale"]))
        if body:
            self._found(key, present)
        return body

    def _present(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Present:
        fingerprint, bound, open_ = of_callable(fn, args, self._frames)
        try:
            args_hash = self._contents.of(args) if args else None
        except BaseException:  # noqa: BLE001 - an object of the user's that raises when it is looked at: nothing is said of it
            args_hash = None
        return Present(fingerprint, bound, args_hash, open=open_)

    @property
    def stale(self) -> tuple[StepKey, ...]:
        """The finished steps that are stale, in order."""
        return stale_steps(self._engine, self._live.history)

    def has_new(self, workflow: "Workflow") -> bool:
        """Whether the workflow, or what it reaches, is not what the last activation ran (S58)."""
        head = self._live.history.head
        return head.code_hash != workflow.code_hash or (head.reach or workflow.reach) != workflow.reach

    def after_replay(self, seconds: float) -> tuple[StepKey, ...]:
        """What is stale, once the calls that history answers have been made; for whoever has just let it go on."""
        known, calm, clock = -1, 0, SystemClock()
        end = clock.monotonic() + seconds
        while calm < _CALM and clock.monotonic() < end:
            if self._live.is_settled() or self._live.status() is Status.WAITING:
                break
            activation = self._live.activation
            at_work = activation is not None and activation.in_flight and not getattr(activation, "ready", 0)
            calm = calm + 1 if at_work and self._recorded_calls == known else 0
            known = self._recorded_calls
            _pause(0.005)
        return self.stale

    @property
    def same(self) -> bool | None:
        """Whether the registered workflow's source is the one that ran last."""
        return code_same(self._engine, self._live.history.head)


def code_same(engine: "Engine", head: Head) -> bool | None:
    """Whether the registered workflow's source is the one that *head* ran last; None where none is registered."""
    workflow = engine.registry.find(head.workflow)
    return None if workflow is None or not head.code_hash else workflow.code_hash == head.code_hash


def code_of(engine: "Engine", record: StepRecord, created_seq: int) -> "StepCode":
    """What a view says of the code of a step of that instance, or of an item of a map."""
    known, key = engine.registry.stale.get(created_seq), record.key
    body: Mapping[str, Any] = record.body
    present = None if known is None else known.steps.get(key)
    if known is not None and key.key is not None and key.type is StepType.MAP:
        present = known.steps.get(StepKey(key.type, key.name, key.count))
        if present is not None:
            present = replace(present, items=tuple(name for name in present.items if name == key.key))
            body = _whole(body, present)
    if present is None or not _is_stale(record, present, body):
        return StepCode(engine, record.body)
    return StepCode(engine, present.against(_other_code(record, present) or body), present)


def _whole(code: Mapping[str, Any], present: Present) -> Mapping[str, Any]:
    """What an entry of an item says of its code; what stores of earlier versions did not say of it is the same."""
    return code if "bound" in code or not present.bound else {**code, "bound": present.bound}


def _is_stale(record: StepRecord, present: Present, body: Mapping[str, Any]) -> bool:
    """Whether it is served although its present code differs: it has finished, or items of it have while it goes on."""
    if record.items is not None and record.state not in ENDED:
        return bool(present.items) or _other_code(record, present) is not None
    return record.state is StepState.FINISHED and present.differs(body)


def _other_code(record: StepRecord, present: Present) -> Mapping[str, Any] | None:
    """The code of items that have ended, of a map that goes on, where the present one is another."""
    if record.items is None or record.state in ENDED:
        return None
    return next((whole for code in record.items.codes() if present.differs(whole := _whole(code, present))), None)


def stale_steps(engine: "Engine", history: History) -> tuple[StepKey, ...]:
    """The finished steps of an instance that are known to be stale, in order, with maps that go on with items that are."""
    differing = engine.registry.stale.get(history.head.created_seq)
    if differing is None:
        return ()
    known = differing.steps
    records = [history.steps[key] for key in tuple(known) if key in history.steps]
    found = [each for each in records if _is_stale(each, known[each.key], each.body)]
    return tuple(each.key for each in sorted(found, key=lambda each: each.order))


def keep(engine: "Engine", fingerprint: Fingerprint) -> None:
    """Store the parts of a fingerprint and their texts, once per hash."""
    try:
        for hash_, text in fingerprint.sources():
            engine.store.save_source(hash_, text)
    except NbflowError:
        return  # the entry that follows meets the same trouble, and says so
    engine.registry.kept.add(fingerprint.hash)


class StepCode:
    """The code of one step for a view: what was recorded, read when it is asked for, and what differs from it now."""

    def __init__(self, engine: "Engine", recorded: Mapping[str, Any], present: Present | None = None) -> None:
        self._engine, self._recorded, self._present = engine, recorded, present

    @property
    def stale(self) -> bool:
        """Whether the present code is known to differ."""
        return self._present is not None

    @property
    def why(self) -> tuple[str, ...]:
        """What changed: "MODEL changed", "the body changed"."""
        return tuple(label if label is UNKNOWN else f"{label} changed" for label in self._differing())

    @property
    def text(self) -> str:
        """The recorded source of the body."""
        return self._texts().get(BODY, "")

    @property
    def diff(self) -> str:
        """What changed, as unified diffs, recorded to present."""
        present = self._present
        if present is None or present.fingerprint is None:
            return ""
        old, new = self._texts(), {part.label: part.text for part in present.fingerprint.parts}
        labels = [label for label in self._differing() if label in old or label in new]
        return "\n".join(filter(None, (difference(label, old.get(label, ""), new.get(label, "")) for label in labels)))

    def _differing(self) -> list[str]:
        return [] if self._present is None else self._present.what_differs(self._recorded, self.parts())

    def parts(self) -> dict[str, str] | None:
        """The recorded parts by label, where the store has them."""
        hash_ = self._recorded.get("code_hash")
        return parts_of(self._source(hash_)) if hash_ else None

    @property
    def fingerprint(self) -> Fingerprint | None:
        """What was recorded, as if it were the present code."""
        hash_, parts, texts = self._recorded.get("code_hash"), self.parts(), self._texts()
        if not hash_ or parts is None:
            return None
        return Fingerprint(hash_, tuple(Part(label, part, texts.get(label, "")) for label, part in parts.items()))

    def _texts(self) -> dict[str, str]:
        return {label: self._source(hash_) or "" for label, hash_ in (self.parts() or {}).items()}

    def _source(self, hash_: str) -> str | None:
        registry, now = self._engine.registry, SystemClock().monotonic()
        if now < registry.unreadable_until:
            return None
        try:
            return self._engine.store.source(hash_)
        except NbflowError:  # the file is held by somebody else: what is only shown can wait, and is not asked for in vain
            registry.unreadable_until = SystemClock().monotonic() + _RESPITE
            return None
