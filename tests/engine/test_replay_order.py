"""Random programs on the real engine go the same way again, in whole and in part (S20, S21).

A program is a tree of sequences, gathers, races with and without cancelled losers, TaskGroups, semaphores and
`as_completed` over tasks; its leaves are steps, maps and streams of maps whose async bodies take random short real times, some of them failing. Each is
run live; then its entries are given to a new engine, all of them or cut at a random place.
`NBFLOW_PROGRAMS` says how many programs are tried.
"""

import asyncio
import os
import random
from collections import Counter
from typing import Any

import pytest

from nbflow.core.model import ENDS, FAILURES, FENCES, Entry, Kind
from tests.engine.conftest import Lab, eventually

PROGRAMS = int(os.environ.get("NBFLOW_PROGRAMS", "300"))
BATCH = 25

Program = tuple[str, Any]
LEAVES = ("do", "fail", "map", "stream")
ITEMS = 3


class Expected(Exception):
    """What failing steps raise."""


def random_program(chance: random.Random, depth: int = 0) -> Program:
    nodes = (
        "do",
        "do",
        "do",
        "fail",
        "map",
        "stream",
        "seq",
        "gather",
        "race",
        "race and cancel",
        "group",
        "semaphore",
        "completed",
    )
    kind = chance.choice(nodes if depth < 3 else ("do", "do", "do", "fail", "map", "stream"))
    if kind in LEAVES:
        return kind, chance.choice("abcdefgh")
    return kind, [random_program(chance, depth + 1) for _ in range(chance.randint(2, 4))]


def whole_program(seed: int) -> Program:
    chance = random.Random(seed)
    return "gather", [random_program(chance) for _ in range(2)]


class Trace:
    """What one activation of one program did: calls and deliveries in order, bodies that ran."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.told: list[tuple[str, int]] = []
        self.bodies: list[str] = []


class Walker:
    """Walks a program as a user's `run` would."""

    def __init__(self, step: Any, trace: Trace, seed: int) -> None:
        self.step, self.trace = step, trace
        self.chance = random.Random(seed)
        self.counts: dict[str, int] = {}

    async def do(self, name: str, *, fails: bool = False) -> Any:
        count = self.counts[name] = self.counts.get(name, 0) + 1
        label = f"{name}#{count}"
        self.trace.calls.append(label)
        seconds = self.chance.choice((0, 0, 0.0005, 0.001, 0.002, 0.004))

        async def body() -> str:
            self.trace.bodies.append(label)
            await asyncio.sleep(seconds)
            if fails:
                raise Expected(label)
            return label

        try:
            value = await self.step.do(name, body, retries=0)
        except Expected:
            value = f"{label} failed"
        self.trace.told.append((label, len(self.trace.calls)))
        return value

    async def map(self, name: str, *, stream: bool) -> Any:
        count = self.counts[name] = self.counts.get(name, 0) + 1
        label = f"{name}#{count}"
        self.trace.calls.append(label)
        seconds = [self.chance.choice((0, 0.0005, 0.001, 0.002)) for _ in range(ITEMS)]

        async def body(place: int) -> int:
            self.trace.bodies.append(f"{label}[{place}]")
            await asyncio.sleep(seconds[place])
            return place

        call = self.step.map(name, body, range(ITEMS), concurrency=2)
        if stream:
            async for place in call:
                self.trace.told.append((f"{label}[{place}]", len(self.trace.calls)))
        else:
            assert await call == list(range(ITEMS))
        self.trace.told.append((label, len(self.trace.calls)))
        return label

    async def walk(self, program: Program) -> Any:
        kind, parts = program
        match kind:
            case "do" | "fail":
                return await self.do(parts, fails=kind == "fail")
            case "map" | "stream":
                return await self.map(f"{kind} {parts}", stream=kind == "stream")
            case "seq":
                return [await self.walk(part) for part in parts]
            case "gather":
                return await asyncio.gather(*(self.walk(part) for part in parts))
            case "group":
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self.walk(part)) for part in parts]
                return [task.result() for task in tasks]
            case "semaphore":
                two = asyncio.Semaphore(2)

                async def limited(part: Program) -> Any:
                    async with two:
                        return await self.walk(part)

                return await asyncio.gather(*(limited(part) for part in parts))
        tasks = [asyncio.ensure_future(self.walk(part)) for part in parts]
        if kind == "completed":
            return [await task for task in asyncio.as_completed(tasks)]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        winners = sorted(tasks.index(task) for task in done)
        if kind == "race and cancel":
            for task in sorted(pending, key=tasks.index):
                task.cancel()
        after = await self.do(f"after {winners}")
        if pending:
            await asyncio.wait(pending)
        return winners, after


class Programs:
    """Workflow "P": its instance number n walks program n; *traces* are those of this kernel."""

    def __init__(self, durations: int = 0) -> None:
        self.traces: dict[int, Trace] = {}
        self.durations = durations

    def run(self) -> Any:
        async def run(event: Any, step: Any) -> Any:
            seed = event.payload["seed"]
            trace = self.traces[seed] = Trace()
            return await Walker(step, trace, seed + self.durations).walk(whole_program(seed))

        return run


def finish(lab: Lab, ids: list[str]) -> list[Any]:
    instances = [lab.engine.get(one) for one in ids]
    for instance in instances:
        eventually(instance.is_finished, f"the end of {instance!r}")
    return [instance.output for instance in instances]


def ended_in(entries: list[Entry]) -> set[str]:
    """Steps and items that ended with a value or a failure."""
    ends = [entry for entry in entries if entry.kind in ENDS | FAILURES]
    return {f"{entry.step}#{entry.count}" + (f"[{entry.key}]" if entry.key is not None else "") for entry in ends}


def handed_in(entries: list[Entry]) -> set[str]:
    """What those entries handed to `run`: ends, and of a stream as many values as went out."""
    out: Counter[str] = Counter()
    for entry in entries:
        if entry.step is not None:
            out[f"{entry.step}#{entry.count}"] += entry.body.get("out", 0)
    values = {f"{label}[{place}]" for label, number in out.items() for place in range(number)}
    return values | {label for label in ended_in(entries) if "[" not in label}


def live_run(lab: Lab, seeds: list[int]) -> tuple[Programs, list[Any], list[Entry]]:
    programs = Programs()
    workflow = lab.workflow(programs.run(), "P")
    workflow.create_batch([{"id": f"p{seed}", "params": {"seed": seed}} for seed in seeds])
    outputs = finish(lab, [f"p{seed}" for seed in seeds])
    return programs, outputs, lab.entries()


def instance_of(entries: list[Entry]) -> dict[int, int]:
    """created_seq of each program by its seed."""
    return {int(entry.body["id"][1:]): entry.seq for entry in entries if entry.kind == "created"}


def cut_short(entries: list[Entry], chance: random.Random) -> tuple[list[Entry], dict[int, list[Entry]]]:
    """For each instance its entries up to a random one, as a kernel's death leaves them; and by instance.

    Entries are joined by seq, so what is cut is replaced by events that nobody waits for.
    """
    of: dict[int, list[Entry]] = {}
    for entry in entries:
        of.setdefault(entry.created_seq, []).append(entry)
    for created_seq, its in of.items():
        first = next(place for place, entry in enumerate(its) if entry.kind == "activated") + 1
        of[created_seq] = its[: chance.randint(first, len(its) - 1)]
    kept = {entry.seq for its in of.values() for entry in its}
    return [entry if entry.seq in kept else blank(entry) for entry in entries], of


def blank(entry: Entry) -> Entry:
    body = {"event_id": f"blank {entry.seq}", "type": "nobody-waits", "by": ""}
    return Entry(Kind.EVENT, entry.created_seq, 0, entry.recorded_at, body=body, value=b"null", seq=entry.seq)


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_a_program_goes_the_same_way_again_in_whole_and_in_part(lab: Lab, first: int) -> None:
    seeds = list(range(first, min(first + BATCH, PROGRAMS)))
    live, outputs, entries = live_run(lab, seeds)
    created = instance_of(entries)

    # In whole: all ends but the instance's own are known, so the same calls, the same deliveries, and no body runs.
    whole = [blank(entry) if entry.kind == "completed" else entry for entry in entries]
    replay = Programs(durations=999)
    lab2 = lab.revive(whole, kernel_dies=False)
    lab2.workflow(replay.run(), "P")
    assert finish(lab2, [f"p{seed}" for seed in seeds]) == outputs
    for seed in seeds:
        one, two = live.traces[seed], replay.traces[seed]
        assert (seed, two.calls) == (seed, one.calls)
        assert (seed, two.told) == (seed, one.told)
        assert (seed, two.bodies) == (seed, [])

    # In part, with other durations for what is new: up to the last recorded delivery all goes the same way.
    for round_ in range(2):
        part, of = cut_short(entries, random.Random(first + round_ * 1_000_003))
        again = Programs(durations=1_000 + round_)
        lab3 = lab.revive(part, kernel_dies=False)
        lab3.workflow(again.run(), "P")
        finish(lab3, [f"p{seed}" for seed in seeds])
        for seed in seeds:
            its = of[created[seed]]
            compare_part(seed, its, live.traces[seed], again.traces[seed])
        lab3.close()
    assert not any(entry.kind in FENCES and entry.kind != "claimed" for entry in entries)


def compare_part(seed: int, its: list[Entry], one: Trace, two: Trace) -> None:
    finished = ended_in(its)
    # A result that lost against a cancellation of its call is recorded and handed to nobody.
    handed = [place for place, (label, _) in enumerate(one.told) if label in handed_in(its)]
    upto = handed[-1] + 1 if handed else 0
    assert (seed, two.told[:upto]) == (seed, one.told[:upto])
    calls = one.told[upto - 1][1] if upto else 0
    assert (seed, two.calls[:calls]) == (seed, one.calls[:calls])
    assert not finished & set(two.bodies), f"program {seed}: a finished step ran again"
