"""What the killed kernels do: a workflow with steps of every kind, whose bodies note in a file when they begin.

Every body gives something else each time it runs, so a result that is the same in two lives came from the history.
"""

import asyncio
import hashlib
import json
import os
import random
import threading
import time

from nbflow import InvalidStatusError
from nbflow.core.model import Kind

EVENTS = 3
ITEMS = 30
STREAMED = 30

NOTES = "side.txt"
_notes = -1


def note(*words: object) -> None:
    """Add a line, which no death can tear: it is one short write."""
    global _notes
    if _notes < 0:
        _notes = os.open(os.environ.get("NOTES", NOTES), os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(_notes, (json.dumps(words) + "\n").encode())


def digest(value: object) -> str:
    """Tells two values apart, whatever they are."""
    if type(value).__module__.startswith("pandas"):
        value = value.to_csv()  # type: ignore[attr-defined]
    elif type(value).__module__.startswith("numpy"):
        value = value.tobytes()  # type: ignore[attr-defined]
    data = value if isinstance(value, bytes) else repr(value).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def begin(ctx) -> None:
    note("begin", ctx.instance_id, str(ctx.step.name), ctx.step.count, ctx.key, ctx.attempt)


def plain(seconds, ctx):
    begin(ctx)
    time.sleep(seconds)
    return random.getrandbits(60)


async def easy(seconds, ctx):
    begin(ctx)
    await asyncio.sleep(seconds)
    return random.getrandbits(60)


def large(ctx):
    begin(ctx)
    return os.urandom(3_000_000)


def array(ctx):
    import numpy as np

    begin(ctx)
    return np.random.default_rng().integers(0, 1 << 30, (300, 1000))


def frame(ctx):
    import pandas as pd

    begin(ctx)
    numbers = [random.random() for _ in range(20_000)]
    return pd.DataFrame({"number": numbers, "text": [f"row {n:.3f}" for n in numbers]})


def size(table, blob, ctx):
    begin(ctx)
    return [len(table), len(blob), digest(table), digest(blob)]


def flaky(ctx):
    begin(ctx)
    if ctx.attempt < 3:
        raise ConnectionError(f"attempt {ctx.attempt}")
    return random.getrandbits(60)


def doomed(ctx):
    begin(ctx)
    raise LookupError(str(random.getrandbits(60)))


def item(number, ctx):
    begin(ctx)
    time.sleep(0.002)
    if number % 13 == 5 and ctx.attempt == 1:
        raise ConnectionError("once")
    return [number, random.getrandbits(60)]


async def streamed(number, ctx):
    begin(ctx)
    await asyncio.sleep(0.004)
    return [number, random.getrandbits(60)]


def undo(ctx, output):
    note("undo", ctx.instance_id, ctx.step.name, ctx.attempt, digest(output))
    time.sleep(0.02)


def got(inst: str, name: str, value):
    note("got", inst, name, digest(value))
    return value


def send_events(inst) -> None:
    """Send what the workflow waits for, each once, from a thread of the kernel."""

    def send() -> None:
        there = sum(entry.kind is Kind.EVENT for entry in inst.history())
        for number in range(there, EVENTS):
            time.sleep(random.random() * 0.3)
            try:
                inst.send_event("go", number)
            except InvalidStatusError:
                return  # pausing of the kernel, or it has failed
            note("sent", inst.id, number)

    threading.Thread(target=send, daemon=True).start()


def say_when_finished(inst) -> None:
    """Note the end as this kernel tells it, and whether its panel says the same."""

    def wait() -> None:
        status = inst.wait(until="finished")
        output = inst.output if status.status.value == "complete" else None
        note("finished", inst.id, status.status.value, status.rollback and status.rollback[0], output)

    threading.Thread(target=wait, daemon=True).start()


KEPT = 6


def tidy(inst) -> None:
    """Delete what ended long ago, and sometimes make the file small: both may be cut off too."""

    def clean() -> None:
        engine = inst.engine
        for old in engine.list("Work")[KEPT:]:
            if old.is_finished():
                old.delete()
                note("deleted", old.id)
        if random.random() < 0.1:
            before, after = engine.compact()
            note("compacted", inst.id, before, after)

    threading.Thread(target=clean, daemon=True).start()


BOOT = """
%load_ext nbflow
import nbflow
from nbflow import WorkflowEntrypoint
from tests.crash.work import *
nbflow.current_engine()
note("ready")
"""

CELL = """%%workflow {id} --params {{'fails': {fails}}} --as inst
class Work(WorkflowEntrypoint):
    async def run(self, event, step):
        me = event.instance_id
        note("run", me)
        seen = []
        for n in range(4):
            undoes = {{"rollback": undo}} if event.payload["fails"] else {{}}
            seen.append(got(me, f"plain {{n}}", await step.do(f"plain {{n}}", plain, 0.005, **undoes)))
        await step.sleep("nap", 0.15)
        note("woke", me)
        async def one(n):
            return got(me, f"many {{n}}", await step.do(f"many {{n}}", plain if n % 2 else easy, 0.01 * (n % 3)))
        seen += await asyncio.gather(*(one(n) for n in range(6)))
        race = [asyncio.ensure_future(step.do(f"race {{n}}", easy, 0.02)) for n in range(3)]
        done, pending = await asyncio.wait(race, return_when=asyncio.FIRST_COMPLETED)
        first = [n for n, task in enumerate(race) if task in done]
        seen.append(got(me, "first", first))
        seen += [got(me, f"race {{n}}", await task) for n, task in enumerate(race)]
        back = await step.map("items", item, range(ITEMS), concurrency=3, retries={{"limit": 3, "delay": 0.02}})
        assert [number for number, _ in back] == list(range(ITEMS))
        seen.append(got(me, "items", back))
        stream = []
        async for value in step.map("stream", streamed, (n for n in range(STREAMED)), concurrency=5):
            stream.append(got(me, f"stream {{len(stream)}}", value))
        assert [number for number, _ in stream] == list(range(STREAMED))
        seen.append(got(me, "flaky", await step.do("flaky", flaky, retries={{"limit": 4, "delay": 0.05, "backoff": "constant"}})))
        try:
            await step.do("doomed", doomed, retries={{"limit": 1, "delay": 0.01}})
        except LookupError as error:
            seen.append(got(me, "doomed", str(error)))
        table = await step.do("frame", frame, lazy=True)
        blob = got(me, "large", await step.do("large", large))
        numbers = got(me, "array", await step.do("array", array))
        sizes = got(me, "size", await step.do("size", size, table, blob))
        assert sizes[1] == 3_000_000 and sizes[3] == digest(blob)
        seen += sizes[2:] + [digest(numbers)]
        for n in range(EVENTS):
            answer = await step.wait_for_event(f"ask {{n}}", "go", timeout="1 hour")
            seen.append(got(me, f"ask {{n}}", answer.payload))
            seen.append(got(me, f"late {{n}}", await step.do(f"late {{n}}", plain, 0.003)))
        if event.payload["fails"]:
            raise RuntimeError(digest(seen))
        return digest(seen)
"""

FOLLOW = """
note("created", inst.id)
send_events(inst)
say_when_finished(inst)
tidy(inst)
"""
