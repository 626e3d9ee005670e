"""What the front end may say, parsed strictly.

A page is not trusted: a message is one of the classes below, with exactly its fields, or it is refused and nothing is done.
Questions and commands carry an `id` that the answer repeats. Commands name the engine that the page believes to talk to, so
that a click made for a kernel that is gone does nothing in the next one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, TypeVar

from nbflow.core.model import StepKey, StepState, StepType
from nbflow.errors import UsageError, listed
from nbflow.values import jsontext
from nbflow.values.schemas import UnfitPayloadError

PAGE = 200
_ID_CHARACTERS = 64
_TEXT_CHARACTERS = 256
_KEY_CHARACTERS = 1_000
_INTEGER = 2**53
_DEPTH = 64
_OPEN = 50
PAYLOAD_BYTES = 1 << 20


class Control(StrEnum):
    """The buttons that act on the whole instance."""

    PAUSE = "pause"
    RESUME = "resume"
    TERMINATE = "terminate"
    TERMINATE_AND_ROLL_BACK = "terminate_and_roll_back"
    RETRY_NOW = "retry_now"


class Since(StrEnum):
    """Where a restart begins."""

    START = "start"
    STEP = "step"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Hello:
    """A view was drawn, or has heard nothing for a while, and asks for an answer."""

    id: str


@dataclass(frozen=True, slots=True)
class Heard:
    """The page has received everything up to this seq."""

    seq: int


@dataclass(frozen=True, slots=True)
class AskRows:
    """Lines start…stop of the list of steps, in order of start, of those that match.

    Attributes:
        open: the groups that show their steps.
    """

    id: str
    start: int
    stop: int
    text: str
    state: StepState | None
    kind: StepType | None
    open: frozenset[tuple[StepType, str]]


@dataclass(frozen=True, slots=True)
class AskStep:
    """Everything about one step; *index* is where the page saw it."""

    id: str
    index: int
    key: StepKey


@dataclass(frozen=True, slots=True)
class AskError:
    """The instance's own error in full."""

    id: str


@dataclass(frozen=True, slots=True)
class AskEvents:
    """Entries of the history start…stop, newest first."""

    id: str
    start: int
    stop: int
    steps: bool


@dataclass(frozen=True, slots=True)
class AskLog:
    """What all steps have printed and logged, the last of it."""

    id: str


@dataclass(frozen=True, slots=True)
class AskInstances:
    """The workflow's instances, newest first."""

    id: str


@dataclass(frozen=True, slots=True)
class AskPlan:
    """What a restart would keep and run again."""

    id: str
    since: Since
    key: StepKey | None


@dataclass(frozen=True, slots=True)
class OpenInstance:
    """Make the panel of another instance of this workflow, for the page to draw in place of this one."""

    id: str
    instance: int


@dataclass(frozen=True, slots=True)
class Restart:
    """A click on Restart, after the plan was shown."""

    id: str
    engine: str
    since: Since
    key: StepKey | None


@dataclass(frozen=True, slots=True)
class Retry:
    """A click on Retry now in one row."""

    id: str
    engine: str
    key: StepKey


@dataclass(frozen=True, slots=True)
class Command:
    """A click on Pause, Resume, Terminate or Retry now."""

    id: str
    engine: str
    control: Control


@dataclass(frozen=True, slots=True)
class Decide:
    """The answer to an open wait; a page sends its payload as the text of its JSON."""

    id: str
    engine: str
    name: str
    count: int
    payload: Any


@dataclass(frozen=True, slots=True)
class CloseOutput:
    """The panel's own ✕: take that one out of the notebook, leave the line above.

    Attributes:
        display: of which output it is, "" where its page cannot tell.
    """

    id: str
    engine: str
    display: str


Question = AskRows | AskStep | AskError | AskEvents | AskLog | AskInstances | AskPlan | OpenInstance
Click = Command | Decide | Restart | Retry
Message = Hello | Heard | Question | Click | CloseOutput
Fields = Mapping[str, Any]
_Word = TypeVar("_Word", bound=StrEnum)


def parse(raw: object) -> Message:
    """Give the message that *raw* is.

    Raises:
        UsageError: it is none; the text names what is wrong and never repeats more than a short piece of it.
    """
    if not isinstance(raw, dict):
        msg = f"message is {type(raw).__name__}, not an object with a 'type'"
        raise UsageError(msg)
    kind = raw.get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        msg = f"message has the unknown type {_short(kind)}; known are {listed(sorted(_KINDS))}"
        raise UsageError(msg)
    build, fields = _KINDS[kind]
    if unknown := list(islice((_short(name) for name in raw if name not in fields and name != "type"), 5)):
        msg = f"message '{kind}' has unknown fields: {', '.join(unknown)}"
        raise UsageError(msg)
    if missing := sorted(fields - raw.keys()):
        msg = f"message '{kind}' lacks {listed(missing)}"
        raise UsageError(msg)
    return build(raw)


def reply_id(raw: object) -> str | None:
    """Give the id that an answer to *raw* can repeat, however malformed the rest is."""
    found = raw.get("id") if isinstance(raw, dict) else None
    return found if isinstance(found, str) and 0 < len(found) <= _ID_CHARACTERS else None


def _ask_rows(raw: Fields) -> AskRows:
    start, stop = _integer(raw, "start", 0), _integer(raw, "stop", 0)
    _check_page("rows", start, stop)
    state, kind = _text(raw, "state", _TEXT_CHARACTERS), _text(raw, "kind", _TEXT_CHARACTERS)
    return AskRows(
        _id(raw),
        start,
        stop,
        _text(raw, "text", _TEXT_CHARACTERS),
        _member(StepState, state) if state else None,
        _member(StepType, kind) if kind else None,
        frozenset(_names(raw["open"])),
    )


def _check_page(what: str, start: int, stop: int) -> None:
    if not start <= stop <= start + PAGE:
        msg = f"message '{what}' asks for {start} to {stop}; at most {PAGE} rows at a time"
        raise UsageError(msg)


def _names(value: object) -> list[tuple[StepType, str]]:
    if not isinstance(value, list) or len(value) > _OPEN:
        msg = f"'open' is no list of at most {_OPEN} groups"
        raise UsageError(msg)
    found = []
    for one in value:
        if not isinstance(one, list) or len(one) != 2:
            raise UsageError("'open' holds something that is no pair of type and name")
        raw = {"type": one[0], "name": one[1]}
        found.append((_member(StepType, _text(raw, "type", _TEXT_CHARACTERS)), _text(raw, "name", _TEXT_CHARACTERS)))
    return found


def _ask_events(raw: Fields) -> AskEvents:
    start, stop = _integer(raw, "start", 0), _integer(raw, "stop", 0)
    _check_page("events", start, stop)
    if type(raw["steps"]) is not bool:
        raise UsageError("'steps' is neither true nor false")
    return AskEvents(_id(raw), start, stop, raw["steps"])


def _since(raw: Fields) -> tuple[Since, StepKey | None]:
    since = _member(Since, _text(raw, "since", _TEXT_CHARACTERS))
    if (raw["key"] is None) is (since is Since.STEP):
        raise UsageError("'key' is given with since 'step' and with nothing else")
    return since, None if raw["key"] is None else _step_key(raw["key"])


def _ask_plan(raw: Fields) -> AskPlan:
    return AskPlan(_id(raw), *_since(raw))


def _open_instance(raw: Fields) -> OpenInstance:
    return OpenInstance(_id(raw), _integer(raw, "instance", 1))


def _restart(raw: Fields) -> Restart:
    return Restart(_id(raw), _text(raw, "engine", _TEXT_CHARACTERS), *_since(raw))


def _retry(raw: Fields) -> Retry:
    return Retry(_id(raw), _text(raw, "engine", _TEXT_CHARACTERS), _step_key(raw["key"]))


def _ask_step(raw: Fields) -> AskStep:
    return AskStep(_id(raw), _integer(raw, "index", 0), _step_key(raw["key"]))


def _command(raw: Fields) -> Command:
    return Command(_id(raw), _text(raw, "engine", _TEXT_CHARACTERS), _member(Control, _text(raw, "control", _TEXT_CHARACTERS)))


def _decide(raw: Fields) -> Decide:
    payload = _payload(raw["payload"])
    name, count = _text(raw, "name", _TEXT_CHARACTERS), _integer(raw, "count", 1)
    return Decide(_id(raw), _text(raw, "engine", _TEXT_CHARACTERS), name, count, payload)


def _close(raw: Fields) -> CloseOutput:
    return CloseOutput(_id(raw), _text(raw, "engine", _TEXT_CHARACTERS), _text(raw, "display", _TEXT_CHARACTERS))


_KINDS: dict[str, tuple[Callable[[Fields], Message], frozenset[str]]] = {
    "hello": (lambda raw: Hello(_id(raw)), frozenset({"id"})),
    "heard": (lambda raw: Heard(_integer(raw, "seq", 0)), frozenset({"seq"})),
    "rows": (_ask_rows, frozenset({"id", "start", "stop", "text", "state", "kind", "open"})),
    "step": (_ask_step, frozenset({"id", "index", "key"})),
    "events": (_ask_events, frozenset({"id", "start", "stop", "steps"})),
    "error": (lambda raw: AskError(_id(raw)), frozenset({"id"})),
    "log": (lambda raw: AskLog(_id(raw)), frozenset({"id"})),
    "instances": (lambda raw: AskInstances(_id(raw)), frozenset({"id"})),
    "plan": (_ask_plan, frozenset({"id", "since", "key"})),
    "open": (_open_instance, frozenset({"id", "instance"})),
    "restart": (_restart, frozenset({"id", "engine", "since", "key"})),
    "retry": (_retry, frozenset({"id", "engine", "key"})),
    "command": (_command, frozenset({"id", "engine", "control"})),
    "decide": (_decide, frozenset({"id", "engine", "name", "count", "payload"})),
    "close": (_close, frozenset({"id", "engine", "display"})),
}


def _id(raw: Fields) -> str:
    found = _text(raw, "id", _ID_CHARACTERS)
    if not found:
        raise UsageError("message has an empty 'id'")
    return found


def _text(raw: Fields, field: str, limit: int) -> str:
    value = raw[field]
    if not isinstance(value, str):
        msg = f"'{field}' is {type(value).__name__}, not text"
        raise UsageError(msg)
    if len(value) > limit:
        msg = f"'{field}' has {len(value)} characters; at most {limit}"
        raise UsageError(msg)
    return value


def _integer(raw: Fields, field: str, least: int) -> int:
    value = raw[field]
    if type(value) is not int or not least <= value <= _INTEGER:  # a bool is an int to isinstance
        msg = f"'{field}' is {_short(value)}, not a whole number from {least}"
        raise UsageError(msg)
    return value


def _member(words: type[_Word], value: str) -> _Word:
    try:
        return words(value)
    except ValueError:
        msg = f"{_short(value)} is none of {listed([word.value for word in words])}"
        raise UsageError(msg) from None


def _step_key(value: object) -> StepKey:
    if not isinstance(value, list) or len(value) != 4:
        raise UsageError("'key' is not a list of type, name, count and item key")
    kind, _name, _count, item = value
    raw = {"type": kind, "name": _name, "count": _count, "item": item}
    name, count = _text(raw, "name", _TEXT_CHARACTERS), _integer(raw, "count", 1)
    kind = _member(StepType, _text(raw, "type", _TEXT_CHARACTERS))
    return StepKey(kind, name, count, None if item is None else _text(raw, "item", _KEY_CHARACTERS))


def _payload(text: object) -> Any:
    """The payload that a page has written as JSON, read here: JavaScript would change numbers that are large, or `1.0`."""
    if not isinstance(text, str):
        msg = f"'payload' is {type(text).__name__}, not the text of its JSON"
        raise UsageError(msg)
    if (size := len(text.encode("utf-8", "replace"))) > PAYLOAD_BYTES:
        msg = f"the payload has {size:,} bytes; at most {PAYLOAD_BYTES:,}"
        raise UnfitPayloadError(msg, [((), msg)])
    try:
        return jsontext.read(text, deepest=_DEPTH)
    except ValueError as error:
        msg = f"not JSON that can be taken: {error}"
        raise UnfitPayloadError(msg, [((), msg)]) from None


def _short(value: object) -> str:
    if isinstance(value, int) and abs(value) > _INTEGER:
        return "a very large number"  # Python refuses to write very long ones
    text = repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:37]}…"
