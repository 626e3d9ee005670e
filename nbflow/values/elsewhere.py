"""Errors of bodies that ran in another process: recorded over there, where their frames were, and completed here."""

import linecache
import pickle
import re
from collections.abc import Callable
from typing import Any

import msgspec

from nbflow.values import failures
from nbflow.values.classes import find_class

Lost = dict[str, Any]

_FRAME = re.compile(r'(?P<start>\s*File ")(?P<file>[^"]+)(?P<end>", line (?P<line>\d+), in .*)')


def raised_in_notebook(error: BaseException, home: str = "__main__") -> bool:
    """Whether the innermost frame is the user's own code, not a library's (S22): a cell, a script, or the module *home*."""
    if (remote := object.__getattribute__(error, "__dict__").get(failures.REMOTE)) is not None:
        return bool(remote[1])
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_globals.get("__name__") in ("__main__", home)


def left_over(error: BaseException, record: failures.Record, pack: Callable[[Any], bytes], *, there: bool = False) -> Lost:
    """Of an error that was recorded in one process what another cannot find or store, each part pickled by itself.

    Args:
        error, record: the error, and what `record_error` made of it.
        pack: pickles one part; what it refuses is lost.
        there: for a worker, which does not have the notebook's classes.

    Returns:
        class: the error's own, where it is not found by its name. lost: values of attributes, of args too, by name. cause,
        exceptions: the same of those.
    """
    found: Lost = {}
    cls = type(error)
    unknown = there or find_class(f"{record['module']}:{record['qualname']}") is not cls
    if unknown and (packed := _packed(pack, cls)):
        found["class"] = packed
    values = {**failures.attributes_of(error), "args": error.args}
    lost = {name: packed for name in record["lost"] if name in values and (packed := _packed(pack, values[name]))}
    if lost:
        found["lost"] = lost
    if (
        "cause" in record
        and error.__cause__ is not None
        and (of_cause := left_over(error.__cause__, record["cause"], pack, there=there))
    ):
        found["cause"] = of_cause
    if isinstance(error, BaseExceptionGroup):
        its = zip(error.exceptions, record.get("exceptions", ()), strict=False)
        parts = [left_over(part, of_part, pack, there=there) for part, of_part in its]
        if any(parts):
            found["exceptions"] = parts
    return found


def _packed(pack: Callable[[Any], bytes], part: Any) -> bytes:
    try:
        return pack(part)
    except Exception:  # noqa: BLE001 - a lock, a connection, too large, or whatever an object of the user's raises
        return b""


def error_from_elsewhere(record: failures.Record, *, ours: bool, lost: Lost | None = None) -> BaseException:
    """The error of a body that ran in another process: recording it gives *record* again, with what is known here.

    Args:
        record: what `record_error` made over there.
        ours: it was raised in code of the notebook.
        lost: what `left_over` made over there.
    """
    record = _completed(_with_lines(record), lost or {})
    error = failures.decode_error(_with_classes(record, lost or {}), step="", attempts=1)
    object.__getattribute__(error, "__dict__")[failures.REMOTE] = (record, ours)
    return error


def _completed(record: failures.Record, lost: Lost) -> failures.Record:
    """A record with the values that have a stored form here, where their classes are, as far as records have room."""
    for name, packed in lost.get("lost", {}).items():
        is_args = name == "args"
        try:
            text = failures.stored_text(pickle.loads(packed), *((failures.ARGS,) if is_args else ()))  # noqa: S301 - as replies
        except Exception:  # noqa: BLE001 - a class that is over there alone
            continue
        if text is None or name not in record["lost"]:
            continue
        kept = record["attributes"] if is_args else {**record["attributes"], name: text}
        more = {**record, "attributes": kept, "lost": [each for each in record["lost"] if each != name]}
        if is_args:
            more["args"] = text
        if sum(map(len, kept.values())) <= failures.ATTRIBUTES and len(msgspec.json.encode(more)) <= failures.LIMIT:
            record = more
    return _with_parts(record, lost, _completed)


def _with_classes(record: failures.Record, lost: Lost) -> failures.Record:
    """A record for `decode_error`, with classes that are not found by their names, as those made in functions are."""
    if "class" in lost:
        try:
            record = {**record, "class": pickle.loads(lost["class"])}  # noqa: S301 - as replies
        except Exception:  # noqa: BLE001 - as above
            pass
    return _with_parts(record, lost, _with_classes)


def _with_parts(
    record: failures.Record, lost: Lost, change: Callable[[failures.Record, Lost], failures.Record]
) -> failures.Record:
    """A record with its cause and the members of its group changed in the same way."""
    if "cause" in lost:
        record = {**record, "cause": change(record["cause"], lost["cause"])}
    if "exceptions" in lost:
        parts = zip(record["exceptions"], lost["exceptions"], strict=True)
        record = {**record, "exceptions": [change(part, its) for part, its in parts]}
    return record


def _with_lines(record: failures.Record) -> failures.Record:
    """A record from a process that does not have the notebook's cells: their names and lines are filled in here."""
    frames = []
    for frame in record.get("frames", ()):
        text = frame["text"] or linecache.getline(frame["file"], frame["line"] or 0).strip()
        frames.append({**frame, "file": failures.file_name(frame["file"]), "text": text[:300]})
    changed = {**record, "frames": frames, "traceback": _with_code(record.get("traceback", ""))}
    if "cause" in record:
        changed["cause"] = _with_lines(record["cause"])
    if "exceptions" in record:
        changed["exceptions"] = [_with_lines(part) for part in record["exceptions"]]
    return changed


def _with_code(text: str) -> str:
    lines = text.splitlines()
    found = []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        match = _FRAME.match(line)
        if match is None:
            found.append(line)
            continue
        file, number = match["file"], int(match["line"])
        found.append(f"{match['start']}{failures.file_name(file)}{match['end']}")
        if not after.startswith("    ") and (code := linecache.getline(file, number).strip()):
            found.append(f"    {code}")
    return "\n".join(found)
