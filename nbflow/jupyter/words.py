"""How states, durations and previews are said in text: the one vocabulary of twin, table and panel."""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TextIO

from nbflow.core.durations import local
from nbflow.core.model import ErrorInfo, Status, StepState
from nbflow.core.names import UNSAFE
from nbflow.store.views import InstanceView, StepView
from nbflow.store.wording import interrupted_text, items_text, stale_text, unreached_text

# Signs that common fonts have: where they are shown is not known here (the panel draws its own).
STATUS = {
    Status.QUEUED: ("○", "queued"),
    Status.RUNNING: ("●", "running"),
    Status.WAITING: ("◔", "waiting"),
    Status.PAUSED: ("‖", "paused"),
    Status.WAITING_FOR_PAUSE: ("‖", "pausing"),
    Status.ROLLING_BACK: ("↩", "rolling back"),
    Status.ERRORED: ("✗", "errored"),
    Status.TERMINATED: ("■", "terminated"),
    Status.COMPLETE: ("✓", "complete"),
}

STEP = {
    StepState.RUNNING: ("●", "running"),
    StepState.RETRYING: ("↻", "retrying"),
    StepState.SLEEPING: ("☾", "sleeping"),
    StepState.WAITING: ("◔", "waiting"),
    StepState.FINISHED: ("✓", "done"),
    StepState.FAILED: ("✗", "failed"),
    StepState.CANCELLED: ("■", "cancelled"),
    StepState.INTERRUPTED: ("⚡", "interrupted"),
}


def standing_word(standing: str) -> str:
    """Say a status, or that it is interrupted, in one word: "pausing"."""
    known = next((status for status in Status if status.value == standing), None)
    return standing if known is None else STATUS[known][1]


_FRAME = re.compile(r'^ *(?:\| *)*File "([^"]*)", line (\d+), in (.+)$', re.MULTILINE)
_LIBRARY = re.compile(r"[\\/](site-packages|dist-packages)[\\/]|[\\/]lib[\\/]python\d|^<frozen ")  # as in panel.js


def status_text(view: InstanceView) -> str:
    """Say what the instance does, without times and ids: "waiting for 'approval'"."""
    if interrupted := interrupted_text(view):
        return interrupted
    if view.status is Status.ERRORED and view.error is not None:
        return f"errored: {first_line(str(view.error), 200)}"
    if view.status is not Status.WAITING:
        return STATUS[view.status][1]
    if view.waits or view.children:
        awaited = [wait.event_type or wait.name for wait in view.waits] + [name for name, *_ in view.children]
        names = list(dict.fromkeys(map(repr, awaited)))
        return f"waiting for {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    if view.waiting_for:
        first = view.waiting_for[0]
        return f"{_WAITS_IN.get(first.kind, 'sleeping in')} {first.name!r}"
    return "waiting"


_WAITS_IN = {"retry": "retrying", "rate": "waiting for the rate of"}


def progress_text(view: InstanceView) -> str:
    """Say how far it is: "2 of 4 steps", and what of it is stale or not reached: "4 steps · 1 stale: load"."""
    steps = f"{view.total:,} step{'' if view.total == 1 else 's'}"
    if view.total != view.done:
        steps = f"{view.done:,} of {view.total:,} steps"
    failed = f"{view.failed_items:,} item{'' if view.failed_items == 1 else 's'} failed" if view.failed_items else ""
    return " · ".join(filter(None, [steps, failed, stale_text(view), unreached_text(view)]))


def step_text(step: StepView) -> str:
    """Say where a step stands: "attempt 2 of 6", "from history", "waiting for 'approval'"."""
    word = STEP[step.status][1]
    if step.items is not None:
        return f"{items_text(step.items)} {word}" if step.status is not StepState.FINISHED else items_text(step.items)
    if step.status is StepState.WAITING:
        return f"waiting for {step.event_type!r}"
    if step.status is StepState.FINISHED and step.from_history:
        return "from history"
    attempt = step.attempts[-1].number if step.attempts else 0
    if attempt > 1 or step.status in (StepState.RETRYING, StepState.FAILED):
        return f"{word}, attempt {attempt}" + (f" of {step.limit}" if step.limit else "") if attempt else word
    return word


def duration_text(seconds: float) -> str:
    """Say a duration in at most two units: "12ms", "0.4s", "12m04s", "3h51m", "2d 4h"."""
    if seconds < 0.1:
        return f"{max(0, round(seconds * 1000))}ms"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"


def between(start: datetime | None, end: datetime | None) -> str:
    """Say how long it was from *start* to *end*, nothing where one is not known."""
    return "" if start is None or end is None else duration_text((end - start) / timedelta(seconds=1))


def say(text: object, file: TextIO | None = None) -> None:
    """Print a line in one piece: `print` writes its end apart, and what a body prints may come between the two."""
    print(f"{text}\n", end="", file=file)


def moment_text(at: datetime | None) -> str:
    """Say a moment in the machine's own time zone."""
    return "" if at is None else local(at).strftime("%Y-%m-%d %H:%M:%S %Z").strip()


def first_line(text: str, limit: int = 160) -> str:
    """Give the first line that says something, cut to *limit* characters."""
    stripped = text.lstrip()
    line = stripped[: limit + 1].splitlines()[0].rstrip() if stripped else ""
    cut = len(line) > limit or len(line) < len(stripped.rstrip())
    return UNSAFE.sub("�", f"{line[: limit - 1]}…" if cut else line)


def place_text(error: ErrorInfo) -> str:
    """Say where in the user's code an error was raised: "Cell In[2], line 5, in helper"; nothing where that is not known."""
    found = [frame for frame in _FRAME.findall(error.traceback) if not _LIBRARY.search(frame[0])]
    return first_line("{}, line {}, in {}".format(*found[-1]), 120) if found else ""


def preview_line(preview: Mapping[str, Any] | None, limit: int = 160) -> str:
    """Give a stored preview as one line."""
    return first_line(str(preview.get("line", "")), limit) if preview else ""


def outcome_line(step: StepView, limit: int = 160) -> str:
    """Give what came of a step, its error or its output, as one line."""
    if step.error is not None:
        return first_line(str(step.error), limit)
    return preview_line(step.preview, limit)
