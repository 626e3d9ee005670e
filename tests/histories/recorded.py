"""How a recorded history stands in its file, and what is said of it."""

import base64
import json
import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from nbflow.core.history import History, status_of
from nbflow.core.model import Entry, Kind, StepKey, StepType
from nbflow.store.memory import MemoryStore
from nbflow.testing import ManualClock
from tests.engine.conftest import Lab

HERE = Path(__file__).parent


def to_json(entry: Entry) -> dict[str, Any]:
    made: dict[str, Any] = {
        "seq": entry.seq,
        "kind": str(entry.kind),
        "created_seq": entry.created_seq,
        "token": entry.token,
        "recorded_at": entry.recorded_at.isoformat(),
    }
    if entry.step is not None:
        made |= {"step": entry.step, "count": entry.count}
    if entry.key is not None:
        made["key"] = entry.key
    made["body"] = _anonymous(entry.body)
    if entry.value is not None:
        made["value"] = base64.b64encode(entry.value).decode()
    return made


def from_json(made: dict[str, Any]) -> Entry:
    value = made.get("value")
    return Entry(
        Kind(made["kind"]),
        made["created_seq"],
        made["token"],
        datetime.fromisoformat(made["recorded_at"]),
        made.get("step"),
        made.get("count"),
        made.get("key"),
        made["body"],
        None if value is None else base64.b64decode(value),
        made["seq"],
    )


def _anonymous(body: Any) -> Any:
    """Whose machine it was recorded on is nobody's business."""
    if isinstance(body, list | tuple):
        return [_anonymous(one) for one in body]
    if not isinstance(body, dict):
        return body
    fixed = {"host": "kernel.example", "pid": 4711, "folder": ""}
    clean = {key: fixed.get(key, _anonymous(value)) for key, value in body.items()}
    if "@" in str(clean.get("by", "")):
        clean["by"] = "ada@kernel.example"
    if isinstance(clean.get("file"), str):
        clean["file"] = Path(clean["file"]).name
    if isinstance(clean.get("traceback"), str):
        clean["traceback"] = re.sub(r'File "[^"]*?([^/"]+)"', r'File "\1"', clean["traceback"])
    return clean


class Recorded:
    """One file."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        made = json.loads(path.read_text())
        self.entries = [from_json(one) for one in made["entries"]]
        self.moment = datetime.fromisoformat(made["moment"])
        self.artifacts = {name: base64.b64decode(content) for name, content in made["artifacts"].items()}
        self.folded: dict[str, Any] = made["folded"]
        self.then: list[list[Any]] = made["then"]
        self.becomes: dict[str, Any] = made["becomes"]
        self.runs: list[str] = made["runs"]

    def histories(self, count: int | None = None) -> dict[int, History]:
        return histories(self.entries[:count])

    def open(self) -> Lab:
        """A new kernel on this history, at the moment it was recorded."""
        return opened(self.entries, self.artifacts, ManualClock(self.moment))


def opened(entries: Iterable[Entry], artifacts: dict[str, bytes], clock: ManualClock) -> Lab:
    store = MemoryStore(clock)
    for entry in entries:
        stored = store._append(entry)
        assert stored.seq == entry.seq
        if entry.kind is Kind.CREATED:
            store._ids[entry.body["workflow"], entry.body["id"]] = stored.seq
    for name, content in artifacts.items():
        path = store.artifacts / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return Lab(store, clock)


def artifacts_of(lab: Lab) -> dict[str, bytes]:
    """The files of its results, by their place in the store's folder."""
    root = lab.store.artifacts
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def histories(entries: Iterable[Entry]) -> dict[int, History]:
    """The fold of each instance."""
    by_instance: dict[int, list[Entry]] = {}
    for entry in entries:
        by_instance.setdefault(entry.created_seq, []).append(entry)
    return {seq: History(its) for seq, its in by_instance.items()}


def known_by(key: StepKey) -> str:
    """A step's key as these files write it, whatever displays call it."""
    return f"{key.type} {StepKey(StepType.DO, key.name, key.count, key.key)}"


def summary(history: History) -> dict[str, Any]:
    """What a history says, in a form that outlives the fold's own."""
    head = history.head
    return {
        "instance": f"{head.workflow}/{head.instance_id}",
        "status": str(status_of(history)),
        "deleted": head.deleted,
        "error": head.error and head.error["type"],
        "rollback": head.rollback and head.rollback[0],
        "interrupted": head.interrupted,
        "deaths": head.deaths,
        "steps": [
            {
                "key": known_by(step.key),
                "state": str(step.state),
                "order": step.order,
                "attempts": [str(attempt.state) for attempt in step.attempts],
                "failures": step.failures,
                "due_at": step.due_at and step.due_at.isoformat(),
                "error": step.error and step.error["type"],
                "parent": step.parent,
            }
            for step in history.steps.values()
        ],
        "delivered": [known_by(key) for key in history.delivered],
        "events": [
            [event.type, event.taken_by and str(event.taken_by), event.set_aside is not None]
            for event in history.events.values()
        ],
    }


def write(name: str, lab: Lab, **about: Any) -> None:
    """Make the file of what *lab* holds."""
    entries = [to_json(entry) for entry in lab.entries()]
    for number, one in enumerate(sorted({e["body"]["engine"] for e in entries if "engine" in e["body"]}), 1):
        for entry in entries:
            if entry["body"].get("engine") == one:
                entry["body"] = entry["body"] | {"engine": f"engine{number}"}
    made = about | {
        "moment": lab.clock.now().isoformat(),
        "entries": entries,
        "artifacts": {name: base64.b64encode(content).decode() for name, content in artifacts_of(lab).items()},
        "folded": {str(seq): summary(history) for seq, history in histories(map(from_json, entries)).items()},
    }
    order = ("about", "moment", "then", "becomes", "runs", "folded", "artifacts", "entries")
    lines = [f"{json.dumps(key)}: {_pretty(made[key])}" for key in order]
    (HERE / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _pretty(value: Any) -> str:
    """One line for each entry: a history is read and compared by lines."""
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {json.dumps(one)}" for one in value) + "\n]"
    if isinstance(value, dict) and value:
        return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(one)}" for key, one in value.items()) + "\n}"
    return json.dumps(value)
