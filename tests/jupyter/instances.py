"""An instance made of entries alone, with the surface of `WorkflowInstance` that panel and twin use."""

from contextlib import contextmanager
from datetime import datetime, timedelta

from msgspec import structs

from nbflow.core.history import History
from nbflow.core.model import Kind
from nbflow.errors import InvalidStatusError
from nbflow.store.views import InstanceView, StepView, instance_view, step_view
from nbflow.testing import ManualClock
from tests.core.stories import entry, seconds

HOSTILE = [
    "<script>alert(1)</script>",
    '<img src=x onerror="window.hit=1">',
    "\" onmouseover='alert(1)' x=\"",
    "</details></table><h1>out</h1>",
    "a\x1b[31mred\x07",
    "\u202egnp.exe",
    "\ud800 alone",
    "&lt;b&gt; &amp;",
    "line\nbreak\r\nand\u2028more",
    "x" * 100_000,
    "{{7*7}} ${7*7} %s %(x)s",
]


class Feed:
    def __init__(self) -> None:
        self.subscribers: list = []

    def subscribe(self, callback):
        self.subscribers.append(callback)
        return lambda: self.subscribers.remove(callback)

    def publish(self, created_seq: int = 1) -> None:
        for callback in list(self.subscribers):
            callback(created_seq)


class Watch:
    """Which other engines are looked at, and for whom."""

    def __init__(self) -> None:
        self.shown: dict[object, tuple] = {}

    def show(self, who, owners) -> None:
        self.shown[who] = tuple(owners)


class FakeEngine:
    def __init__(self) -> None:
        self.watch = Watch()
        self.uid, self.engine_id, self.feed = "store-1", "engine-1", Feed()
        self.trouble = ""
        self.clock, self.live = ManualClock(seconds(60)), {}


class FakeInstance:
    """One instance whose history a test writes; controls note that they were called."""

    def __init__(self, workflow: str = "Ingest", instance_id: str = "ingest-01jd3k7q", **created) -> None:
        self.engine = FakeEngine()
        self.created_seq = 1
        self.workflow_name, self.id = workflow, instance_id
        self.seq = 1
        self.entries = [entry(Kind.CREATED, 0, 0, 1, value=b"{}", workflow=workflow, id=instance_id, **created)]
        self.known = History(self.entries)
        self.calls: list = []
        self.answered: dict = {}
        self.failing: Exception | None = None
        self.write(Kind.CLAIMED, 0, by="cell")
        self.write(Kind.ACTIVATED, 0)

    @property
    def created_at(self) -> datetime:
        return seconds(0)

    def write(self, kind: Kind, at: float = 1, step: str | None = None, count: int = 1, **body) -> None:
        self.seq += 1
        token = 2 if kind is Kind.TERMINATED else 1
        value = b"1" if kind.value.endswith("finished") or kind is Kind.COMPLETED else None
        self.entries.append(entry(kind, token, at, self.seq, step, count if step else None, value, **body))
        assert self.known.apply(self.entries[-1])
        self.engine.feed.publish()

    def done(self, step: str, order: int, at: float = 1, count: int = 1, line: str = "3", **body) -> None:
        preview = {"kind": "text", "text": line, "truncated": False, "line": line}
        started = (seconds(at) - timedelta(seconds=1)).isoformat()
        self.write(Kind.DO_FINISHED, at, step, count, order=order, preview=preview, started_at=started, **body)

    def item(self, step: str, key: str, index: int, at: float = 1, kind: Kind = Kind.MAP_FINISHED, **body) -> None:
        """An entry of an item of a map."""
        self.seq += 1
        made = entry(kind, 1, at, self.seq, step, 1, b"1", index=index, attempt=1, **body)
        self.entries.append(structs.replace(made, key=key))
        assert self.known.apply(self.entries[-1])

    def wait_for(self, step: str, order: int, event_type: str = "approval", **body) -> None:
        self.write(Kind.WAIT_STARTED, 2, step, order=order, event_type=event_type, **body)

    def history(self) -> list:
        return self.entries

    def view(self) -> InstanceView:
        if self.failing is not None:
            raise self.failing
        return instance_view(self.known, here=True)

    def rows(self, start: int, stop: int | None) -> tuple[int, list[StepView]]:
        ordered = sorted(self.known.steps.values(), key=lambda step: step.order)
        return len(ordered), [step_view(step, self.known.replayed) for step in ordered[start:stop]]

    @contextmanager
    def folded(self):
        yield self.known

    def view_of(self, history, step) -> StepView:
        return step_view(step, history.replayed)

    @property
    def steps(self) -> list[StepView]:
        return self.rows(0, None)[1]

    def answer(self, name: str, count: int, payload: object, by: str | None = None) -> None:
        if (name, count) in self.answered:
            msg = f"'{name}' was answered by ana@lab at 10:02"
            raise InvalidStatusError(msg)
        self.answered[name, count] = payload

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def terminate(self, rollback: bool = False) -> None:
        self.calls.append("terminate and roll back" if rollback else "terminate")

    def retry_now(self, step=None) -> None:
        self.calls.append("retry_now" if step is None else f"retry_now {step}")

    def restart(self, from_step=None) -> None:
        self.calls.append("restart" if from_step is None else f"restart from {from_step}")
