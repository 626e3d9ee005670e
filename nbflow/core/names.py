"""What ids and names may look like (S2), how a value is quoted in a message, and the name of the place that a body is.

Pure. Each check gives the name back as plain text, or raises `UsageError` naming the value and the rule.
"""

import hashlib
import re
import reprlib

from nbflow.core.model import StepKey, StepType
from nbflow.errors import UsageError

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80
_short.maxdict = _short.maxlist = _short.maxtuple = 6

_WORD = "letters A-Z a-z, digits, '_' and '-'"
_INSTANCE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}")
_WORKFLOW_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]{0,63}")
_EVENT_TYPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]{0,99}")
# Control characters garble panels and terminals; lone surrogates cannot be written as UTF-8.
_STEP_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,256}")

# Control characters, lone surrogates and what turns the direction of text: a terminal or a page must not act on them.
_TURNING = "\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff"
UNSAFE = re.compile(f"[\\x00-\\x1f\\x7f-\\x9f{_TURNING}]")
UNSAFE_IN_LINES = re.compile(f"[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f{_TURNING}]")


def quoted(value: object) -> str:
    """Show a value of the user in a message: its repr, shortened, whatever its repr does."""
    try:
        return _short.repr(value)
    except ValueError:  # Python refuses to write very long integers
        return f"a very large {type(value).__name__}"


def instance_id(value: object) -> str:
    """Check an instance id."""
    return _checked("instance id", value, _INSTANCE_ID, f"an id is 1 to 100 of {_WORD} and '.', not starting with '-' or '.'")


def id_of(workflow: str, value: object) -> str:
    """Check an instance id that its workflow's name may stand before: `WORKFLOW/ID` (S3); gives the id."""
    named, slash, rest = value.partition("/") if isinstance(value, str) else ("", "", "")
    if not slash:
        return instance_id(value)
    if named == workflow:
        return instance_id(rest)
    whose = f"it names workflow {quoted(named)}, and this is workflow {workflow!r}"
    msg = f"instance id {quoted(value)} is not allowed: {whose}; write the id alone"
    raise UsageError(msg)


def workflow_name(value: object) -> str:
    """Check a workflow's name."""
    return _checked("workflow name", value, _WORKFLOW_NAME, f"a workflow's name is 1 to 64 of {_WORD}, not starting with '-'")


def event_type(value: object) -> str:
    """Check an event's type."""
    return _checked("event type", value, _EVENT_TYPE, f"an event type is 1 to 100 of {_WORD}, not starting with '-'")


def step_name(value: object) -> str:
    """Check the name of a step, sleep or wait."""
    return _checked("step name", value, _STEP_NAME, "a step's name is 1 to 256 characters without control characters")


def item_key(value: object, what: str) -> str:
    """Check the key of a map's item; *what* says whose."""
    return _checked(what, value, _STEP_NAME, "a key is 1 to 256 characters without control characters")


_LONGEST = 2_000
_READ = re.compile(r"[\\\[\]/#]")


def inside(key: StepKey) -> str:
    """The place that the body of a step is: steps in it are counted for it alone, under this name (S15).

    `m[3]` is the body of item 3 of map `m`, `outer` that of a step, `m[3]/outer` that of a step in the first. No two bodies
    have the same: what is read in a name is escaped in names of steps.
    """
    name = _READ.sub(r"\\\g<0>", key.name)
    if key.count > 1:
        name += f"#{key.count}"
    if key.type is StepType.MAP:
        name = f"{name}[{key.key}]"
    place = name if key.key is None or key.type is StepType.MAP else f"{key.key}/{name}"
    if len(place) <= _LONGEST:
        return place
    digest = hashlib.blake2b(place.encode(), digest_size=16).hexdigest()
    return f"{place[:_LONGEST]}…{digest}"


def _checked(what: str, value: object, pattern: re.Pattern[str], rule: str) -> str:
    if not isinstance(value, str):
        msg = f"{what} {quoted(value)} is of type {type(value).__name__}, not text: {rule}"
        raise UsageError(msg)
    if pattern.fullmatch(value) is None:
        msg = f"{what} {quoted(value)} is not allowed: {rule}"
        if len(value) > 80:
            msg += f" (this one has {len(value)} characters)"
        raise UsageError(msg)
    return str.__str__(value)  # members of a str enum become the text they are
