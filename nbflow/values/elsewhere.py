"""Errors of bodies that ran in another process: recorded over there, where their frames were, and completed here."""

import linecache
import re

from nbflow.values import failures

_FRAME = re.compile(r'(?P<start>\s*File ")(?P<file>[^"]+)(?P<end>", line (?P<line>\d+), in .*)')


def raised_in_notebook(error: BaseException, home: str = "__main__") -> bool:
    """Whether the innermost frame is the user's own code, not a library's (S22): a cell, a script, or the module *home*."""
    if (remote := object.__getattribute__(error, "__dict__").get(failures.REMOTE)) is not None:
        return bool(remote[1])
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_globals.get("__name__") in ("__main__", home)


def error_from_elsewhere(record: failures.Record, *, ours: bool) -> BaseException:
    """The error of a body that ran in another process: recording it gives *record* again, with the lines of code known here.

    Args:
        record: what `record_error` made over there.
        ours: it was raised in code of the notebook.
    """
    record = _with_lines(record)
    error = failures.decode_error(record, step="", attempts=1)
    object.__getattribute__(error, "__dict__")[failures.REMOTE] = (record, ours)
    return error


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
