"""Exceptions as data, and the copies of them that `run` sees (API.md §9).

What a class does in its constructor is unknown, so it is never called for classes of others: the copy is an instance of
a subclass of the same name made on the spot, which carries the recorded text and the attributes that could be stored.
"""

import builtins
import functools
import linecache
import os
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from nbflow import errors
from nbflow.errors import StepError, UndecodableError
from nbflow.values.classes import find_class, is_quiet
from nbflow.values.codec import decode, encode
from nbflow.values.nodes import own_names, type_name

Record = dict[str, Any]

LIMIT = 64_000
_MESSAGE, _TRACEBACK, ARGS, _ATTRIBUTE, ATTRIBUTES, _FRAMES, _CHAIN, _GROUP = 16_000, 16_000, 20_000, 8_000, 16_000, 20, 4, 20
_COPY = "__nbflow_copy__"
_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)
# what BaseException itself holds is recorded by name; characters_written is an OSError's count for non-blocking writes
_PARTS = 20_000  # containers in one attribute: errors are recorded on the workflow loop
REMOTE = "__nbflow_remote__"  # (record, raised in the notebook) of an error that came from another process
_NOT_ATTRIBUTES = frozenset(
    {"__notes__", REMOTE, "__dict__", "__weakref__", "args", "exceptions", "message", "characters_written"}
)
_STOPS = (StopIteration, StopAsyncIteration)
_ARGUMENTS, _CAUSE = (vars(BaseException)[name] for name in ("args", "__cause__"))  # past a class's own `__setattr__`

name_file: Callable[[str], str] = str
"""How a file is called in tracebacks: the notebook side names cells here."""


def record_error(error: BaseException) -> Record:
    """Record an exception as JSON: at most about 64 kB, and nothing of the user's can make this fail.

    Returns:
        type, module, qualname, message, traceback (text, nbflow's own frames left out), frames (the user's, each file,
        line, name, text), args and attributes (stored values as text), lost (names of attributes not kept), notes,
        [cause], and for groups [exceptions].
    """
    try:
        record = _record(error, _CHAIN, set())
    except BaseException:  # noqa: BLE001 - a class that fails at every touch is still recorded, by name and text
        record = _bare_record(error)
    if _size(record) > LIMIT:
        _shorten(record, 1_000)
    for drop in ("attributes", "args", "cause", "exceptions", "frames"):
        if _size(record) <= LIMIT:
            return record
        if drop == "attributes":
            record["lost"] = sorted({*record["lost"], *record["attributes"]})
            record["attributes"] = {}
        elif drop == "frames":
            record["frames"] = []
        elif drop == "exceptions" and drop in record:
            record["left_out"] += len(record["exceptions"])
            record["exceptions"] = []
        else:
            record.pop(drop, None)
    for text in ("traceback", "message"):
        if _size(record) > LIMIT:
            record[text] = _clean(record[text], 3_000, tail=text == "traceback")
    return record


def _size(record: Record) -> int:
    return len(msgspec.json.encode(record))


def _bare_record(error: BaseException) -> Record:
    cls = type(error)
    module, qualname, name = own_names(cls)
    names: Record = {"type": name, "module": module, "qualname": qualname}
    texts: Record = {"message": _message(error), "traceback": _stack(error)}
    return {**names, **texts, "frames": [], "notes": [], "attributes": {}, "lost": ["args"]}


def _shorten(record: Record, limit: int) -> None:
    """Cut the tracebacks of causes and group members: the outer one repeats them."""
    for part in (*record.get("exceptions", ()), *([record["cause"]] if "cause" in record else [])):
        part["traceback"] = _clean(part["traceback"], limit, tail=True)
        part["message"] = _clean(part["message"], limit)
        part["frames"] = part["frames"][-3:]
        _shorten(part, limit)


def _record(error: BaseException, depth: int, seen: set[int]) -> Record:
    seen.add(id(error))
    if (remote := object.__getattribute__(error, "__dict__").get(REMOTE)) is not None:
        return {**remote[0]}
    cls = type(error)
    module, qualname, name = own_names(cls)
    record: Record = {
        "type": name,
        "module": module,
        "qualname": qualname,
        "message": _message(error),
        "frames": _frames(error),
        "notes": _notes(error),
    }
    _add_state(error, record)
    cause = error.__cause__
    if cause is not None and depth and id(cause) not in seen:
        record["cause"] = _record(cause, depth - 1, seen)
    if isinstance(error, BaseExceptionGroup):
        parts = error.exceptions
        record["group_message"] = _clean(str(error.message), _MESSAGE)
        record["exceptions"] = [_record(part, depth - 1, seen) for part in parts[:_GROUP]] if depth else []
        record["left_out"] = len(parts) - len(record["exceptions"])
    record["traceback"] = _clean(_traceback(error, record), _TRACEBACK, tail=True)
    return record


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as inner:  # noqa: BLE001 - whatever a user's __str__ raises is no error of ours
        text = f"<the text of this error cannot be made: its __str__ raised {type_name(type(inner))}>"
    return _clean(text, _MESSAGE)


def _clean(text: str, limit: int, *, tail: bool = False) -> str:
    """Text that UTF-8 can hold, cut to *limit* characters."""
    text = str.__str__(text)
    if len(text) > limit:
        gone = len(text) - limit
        text = f"[{gone:,} characters left out]\n{text[-limit:]}" if tail else f"{text[:limit]}… [{gone:,} more characters]"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _notes(error: BaseException) -> list[str]:
    notes = object.__getattribute__(error, "__dict__").get("__notes__")
    return [_clean(note, 1_000) for note in notes[:10] if isinstance(note, str)] if type(notes) is list else []


def _user_frames(error: BaseException) -> list[tuple[types.FrameType, int]]:
    frames = []
    walked: Iterator[tuple[types.FrameType, int]] = traceback.walk_tb(error.__traceback__)
    for frame, line in walked:
        if not os.path.abspath(frame.f_code.co_filename).startswith(_OURS):
            frames.append((frame, line))
    return frames


def _frames(error: BaseException) -> list[Record]:
    result = []
    for frame, line in _user_frames(error)[-_FRAMES:]:
        code = frame.f_code
        text = linecache.getline(code.co_filename, line or 0, frame.f_globals).strip()
        name = {"file": _clean(file_name(code.co_filename), 500), "line": line, "name": _clean(code.co_qualname, 200)}
        result.append({**name, "text": _clean(text, 300)})
    return result


def file_name(file: str) -> str:
    """How a file is called in tracebacks."""
    try:
        return str(name_file(file))
    except Exception:  # noqa: BLE001 - then it is made without it
        return file


def _traceback(error: BaseException, record: Record) -> str:
    parts = []
    if "cause" in record:
        parts += [record["cause"]["traceback"], "\nThe above exception was the direct cause of the following exception:\n\n"]
    context = error.__context__
    if "cause" not in record and context is not None and not error.__suppress_context__:
        parts += [_stack(context), f"{type_name(type(context))}: {_message(context)}\n"]
        parts.append("\nDuring handling of the above exception, another exception occurred:\n\n")
    title = f"{record['type']}: {record['message']}" if record["message"] else record["type"]
    parts += [_stack(error), title, "\n", *(f"{note}\n" for note in record["notes"])]
    for number, part in enumerate(record.get("exceptions", ()), 1):
        lines = part["traceback"].splitlines()
        parts += [f"  +-- {number} of {len(record['exceptions']) + record['left_out']}\n", *(f"  | {line}\n" for line in lines)]
    return "".join(parts)


def _stack(error: BaseException) -> str:
    lines = []
    for frame, line in _user_frames(error)[-60:]:
        code = frame.f_code
        lines.append(f'  File "{file_name(code.co_filename)}", line {line}, in {code.co_qualname}\n')
        if text := linecache.getline(code.co_filename, line or 0, frame.f_globals).strip():
            lines.append(f"    {text}\n")
    return "Traceback (most recent call last):\n" + "".join(lines) if lines else ""


def _add_state(error: BaseException, record: Record) -> None:
    """Record args and attributes, as far as they can be stored and are not too large."""
    kept: dict[str, str] = {}
    lost: list[str] = list(_copied(error)[1])
    if not isinstance(error, BaseExceptionGroup):
        stored = stored_text(error.args, ARGS)
        if stored is None:
            lost.append("args")
        else:
            record["args"] = stored
    room = ATTRIBUTES
    for name, value in attributes_of(error).items():
        stored = stored_text(value)
        if stored is None or len(stored) > room:
            lost.append(_clean(name, 200))
        else:
            kept[_clean(name, 200)] = stored
            room -= len(stored)
    record["attributes"], record["lost"] = kept, sorted(set(lost))[:100]


def attributes_of(error: BaseException) -> dict[str, Any]:
    """What an exception holds in its `__dict__`, its slots and the fields of built-in bases; no property is asked."""
    found: dict[str, Any] = {}
    for base in type(error).__mro__:
        if base in (BaseException, object):
            continue
        for name, member in vars(base).items():
            if type(member) in _DESCRIPTORS and name not in _NOT_ATTRIBUTES and name not in found:
                try:
                    found[name] = member.__get__(error, type(error))
                except Exception:  # noqa: BLE001 - an unset field
                    continue
    found.update(_copied(error)[0])
    found.update(object.__getattribute__(error, "__dict__"))
    return {name: value for name, value in found.items() if type(name) is str and name not in _NOT_ATTRIBUTES - {"message"}}


def _copied(error: BaseException) -> tuple[dict[str, Any], list[str]]:
    """Of a copy that `decode_error` made: what its class holds in place of slots, and what was lost before."""
    kept, lost = vars(type(error)).get(_COPY, ({}, []))
    return kept, lost


def stored_text(value: Any, limit: int = _ATTRIBUTE) -> str | None:
    """A value as records hold it; None for what cannot be stored or is too large."""
    try:
        data = encode(value, None, with_preview=False, parts=_PARTS).data
    except BaseException:  # noqa: BLE001 - objects that fail or change while they are looked at are lost, not fatal
        return None
    return data.decode() if len(data) <= limit else None


def decode_error(record: Record, *, step: str, attempts: int) -> BaseException:
    """Make the copy of a recorded error that `run` sees; never raises and always gives an `Exception` (API.md §9).

    Args:
        record: what `record_error` made.
        step: the step's name, for the note; no note without it.
        attempts: how often it was tried; 0 for what is not, such as a wait.
    """
    try:
        error = _copy({"type": "", "module": "", "qualname": "", "message": "", **record})
    except Exception:  # noqa: BLE001 - no record of ours: nested without end, or of other types
        return StepError(str(record.get("message", ""))[:_MESSAGE], type=str(record.get("type", ""))[:200], attributes={})
    if isinstance(error, _STOPS):
        text = f"step {step!r} raised {type(error).__name__}" + (f": {record['message']}" if record["message"] else "")
        error, stopped = RuntimeError(text), error
        error.__cause__ = stopped
    elif not isinstance(error, Exception):
        error = _step_error({"type": "", "message": "", **record})
    if not step:
        return error
    tries = "" if not attempts else " after 1 attempt" if attempts == 1 else f" after {attempts} attempts"
    original = f"; the error was a '{error.type}'" if type(error) is StepError else ""
    _set_notes(error, [*record.get("notes", ()), f"step {step!r} failed{tries}{original}"])
    return error


def _copy(record: Record) -> BaseException:
    cls = find_class(f"{record['module']}:{record['qualname']}") or record.get("class")
    error: BaseException | None = None
    if isinstance(cls, type) and issubclass(cls, BaseException):
        state, lost = _state(record)
        try:
            error = _built(cls, record, state) if _is_ours_or_builtin(cls) else None
            error = error or _twin(cls, record, state, lost)
        except Exception:  # noqa: BLE001 - final classes, metaclasses and slots that refuse: StepError says the same
            error = None
    error = error or _step_error(record)
    if "cause" in record:
        _CAUSE.__set__(error, _copy(record["cause"]))
    _set_notes(error, record.get("notes", ()))
    return error


def _step_error(record: Record) -> StepError:
    state, _ = _state(record)
    state.pop("args", None)
    return StepError(record["message"], type=record["type"], attributes=state)


def _state(record: Record) -> tuple[dict[str, Any], list[str]]:
    """The attributes that can be read now, args among them, and the names of those that can't."""
    state: dict[str, Any] = {}
    lost = list(record.get("lost", ()))
    stored = dict(record.get("attributes", ()))
    if "args" in record:
        stored["args"] = record["args"]
    for name, text in stored.items():
        try:
            state[name] = decode(text.encode(), None)
        except UndecodableError:
            lost.append(name)
    return state, lost


def _is_ours_or_builtin(cls: type) -> bool:
    return any(vars(module).get(cls.__name__) is cls for module in (builtins, errors))


def _built(cls: Any, record: Record, state: dict[str, Any]) -> BaseException | None:
    """An instance made by the class's own constructor, None where that gives another text or class."""
    try:
        error = cls(record["group_message"], _parts(record)) if "exceptions" in record else cls(*state["args"])
        for name, value in state.items():
            if name != "args" and getattr(error, name, None) is not value:
                setattr(error, name, value)
        exact = type(error) is cls and str(error) == record["message"]
    except Exception:  # noqa: BLE001 - then it is made without it
        return None
    return error if exact else None


def _parts(record: Record) -> list[BaseException]:
    parts = [_copy(part) for part in record["exceptions"]]
    if record.get("left_out") or not parts:
        parts.append(StepError(f"{record.get('left_out', 0)} more errors of this group were not kept"))
    return parts


def _twin(cls: Any, record: Record, state: dict[str, Any], lost: list[str]) -> BaseException:
    """An instance of a subclass of *cls* with the same name, made without the constructor."""
    message, args = record["message"], state.get("args", (record["message"],))

    def text(_self: object) -> str:
        return str(message)

    def represent(_self: object) -> str:
        return f"{cls.__name__}({message!r})"

    def missing(_self: object, name: str) -> Any:
        msg = f"{name!r} was not kept: decide inside the step, or raise your own error with the fields you need"
        raise AttributeError(msg, name=name)

    def construct(_self: object, *_args: object, **_kwargs: object) -> None:
        """The constructor of the class stays out of it."""

    namespace: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__init__": construct,
        "__str__": text,
        "__repr__": represent,
        "__getattr__": missing,
    }
    own: dict[str, Any] = {}
    hiding: dict[str, Any] = {}
    for name, value in state.items():
        if name != "args":
            # a slot or a C field would hide what is in the instance's __dict__; the class of the copy hides the slot
            (hiding if hasattr(type(_class_member(cls, name)), "__set__") else own)[name] = value
    namespace |= {**hiding, _COPY: (hiding, lost)}
    for name in lost:
        if name != "args" and hasattr(type(_class_member(cls, name)), "__set__"):
            namespace[name] = property(functools.partial(missing, name=name))
    base = next(part for part in cls.__mro__ if "__new__" in vars(part) and not part.__flags__ & (1 << 9))
    if is_quiet(cls, base):
        twin = type(cls.__name__, (cls,), namespace)
    else:
        twin = type(cls.__name__, (base,), namespace)
        twin.__bases__ = (cls,)  # neither its metaclass nor its __init_subclass__ hears of it
    grouped = "exceptions" in record
    error = base.__new__(twin, record["group_message"], _parts(record)) if grouped else base.__new__(twin, *args)
    object.__getattribute__(error, "__dict__").update(own)
    if not grouped:
        _ARGUMENTS.__set__(error, args)
    if str(error) != message:
        raise TypeError("the text differs")
    return error  # type: ignore[no-any-return]


def _class_member(cls: type, name: str) -> Any:
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def _set_notes(error: BaseException, notes: Any) -> None:
    """Set notes past a `__setattr__` that refuses (frozen dataclasses)."""
    if notes:
        object.__getattribute__(error, "__dict__")["__notes__"] = list(notes)
