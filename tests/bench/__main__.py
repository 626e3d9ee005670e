"""Measure everything in one run and print it beside its budget."""

import argparse
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import duckdb

from nbflow import Engine
from tests.bench.bare import Bare
from tests.bench.executors import executors
from tests.bench.load_ext import load_ext
from tests.bench.maps import FEW, ITEMS, Maps
from tests.bench.measure import Measured, in_turns, ratios, table
from tests.bench.others import installed, sqlite
from tests.bench.resume import Resume
from tests.bench.scale import SQL, Scale, build
from tests.bench.steps import Steps, steps_in

ENTRIES = 100_000


def step_costs(steps: Steps, bare: Bare, rounds: int) -> Iterator[Measured]:
    found = in_turns(
        rounds, append=bare.append, plain=steps.sequential_plain, looped=steps.sequential_async, commit=bare.commit
    )
    yield Measured("bare append of 250 bytes + fdatasync", found["append"], "ms")
    yield Measured("bare DuckDB insert + commit", found["commit"], "ms")
    yield Measured("one sequential step, async body", found["looped"], "ms")
    yield Measured("  ÷ bare append", ratios(found["looped"], found["append"]), "×", 1.7)
    yield Measured("  ÷ bare DuckDB commit", ratios(found["looped"], found["commit"]), "×", 0.35)
    yield Measured("one sequential step, plain body", found["plain"], "ms")
    yield Measured("  ÷ bare append", ratios(found["plain"], found["append"]), "×", 2.2)
    yield Measured("  ÷ bare DuckDB commit", ratios(found["plain"], found["commit"]), "×", 0.35)


def throughput(steps: Steps, rounds: int) -> Iterator[Measured]:
    found = in_turns(rounds, instances=steps.instances, gather=steps.gather)
    yield Measured("100 instances × 20 steps at once", found["instances"], "/s", 12_000, at_least=True)
    yield Measured("one instance, gather of 1,000", found["gather"], "/s", 12_000, at_least=True)


def maps(folder: Path, rounds: int) -> Iterator[Measured]:
    with Engine(folder / "history.duckdb", notebook="bench.ipynb") as engine:
        measures = Maps(engine)
        few = in_turns(min(rounds, 5), it=measures.items)["it"]
        yield Measured(f"step.map, {FEW:,} trivial items at concurrency 4", few, "/s", 12_000, at_least=True)
        yield Measured(f"the same, {ITEMS:,} items", [measures.items(ITEMS)], "/s", 12_000, at_least=True)
        yield Measured(f"memory that streaming {ITEMS:,} items adds after the first tenth", [measures.growth()], " MB", 20)


def growth(folder: Path, rounds: int) -> Iterator[Measured]:
    with steps_in(folder / "full") as full, steps_in(folder / "empty") as empty:
        entries = full.fill(ENTRIES)
        found = in_turns(rounds, full=full.sequential_async, empty=empty.sequential_async)
    what = f"one step with {entries:,} entries in the file ÷ in a new file"
    yield Measured(what, ratios(found["full"], found["empty"]), "×", 1.1)


def in_steps(folder: Path, rounds: int) -> Iterator[Measured]:
    bare = Bare(folder)
    with steps_in(folder / "steps") as steps:
        yield from step_costs(steps, bare, rounds)
        yield from throughput(steps, min(rounds, 7))
    bare.close()


def others(folder: Path, rounds: int) -> Iterator[Measured]:
    """Others doing the same in the same run; more than 1 × is slower than we are."""
    measures = {"bare SQLite insert + commit": sqlite(folder)} | installed(folder / "others")
    with steps_in(folder / "ours") as steps:
        found = in_turns(min(rounds, 5), **measures, ours=steps.sequential_async)
    for what in measures:
        yield Measured(what, found[what], "ms")
        yield Measured("  ÷ one sequential step of ours", ratios(found[what], found["ours"]), "×")


def resumed(folder: Path, rounds: int) -> Iterator[Measured]:
    resume = Resume(folder / "resume")
    found = in_turns(min(rounds, 7), it=resume.up_to_new_body)["it"]
    yield Measured("resume 1,000 finished steps up to the first new body", found, "ms", 20)


def loaded(folder: Path, rounds: int) -> Iterator[Measured]:
    found = in_turns(min(rounds, 5), it=lambda: load_ext(folder))["it"]
    yield Measured("%load_ext nbflow in a new kernel", found, "ms", 250)


def scale(folder: Path, rounds: int) -> Iterator[Measured]:
    """Over a million entries of ten thousand instances."""
    entries = build(folder / "history.duckdb")
    with Engine(folder / "history.duckdb", notebook="bench.ipynb") as engine:
        measures = Scale(engine)
        for what, query in SQL.items():
            asked = in_turns(min(rounds, 7), it=measures.asking(query))["it"]
            yield Measured(f"SQL over {entries:,} entries: {what}", asked, "ms", 50)
        found = in_turns(rounds, list=measures.listing, open=measures.opening, create=measures.creating)
        yield Measured("list, with as many entries", found["list"], "ms", 20)
        yield Measured("open an instance and its steps, the same", found["open"], "ms", 20)
        yield Measured("create, the same", found["create"], "ms", 10)
        yield Measured("memory that 100 of each add", [measures.growth()], " MB", 20)


def on_executors(folder: Path, rounds: int) -> Iterator[Measured]:
    yield from executors(folder, min(rounds, 2))


PARTS: dict[str, Callable[[Path, int], Iterator[Measured]]] = {
    "steps": in_steps,
    "others": others,
    "maps": maps,
    "resume": resumed,
    "growth": growth,
    "scale": scale,
    "load_ext": loaded,
    "executors": on_executors,
}


def report(folder: Path, parts: Sequence[str], rounds: int) -> Iterator[Measured]:
    for part in parts:
        (folder / part).mkdir()
        yield from PARTS[part](folder / part, rounds)


def main() -> None:
    """Print the report as it comes, then as a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"what to measure (all): {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=15, help="how often each measure is taken in turn (15)")
    parser.add_argument("--dir", default=".", help="where the files are written: the disk that is measured (.)")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    print(f"Python {platform.python_version()}, DuckDB {duckdb.__version__}, {os.cpu_count()} cores, {asked.rounds} rounds\n")
    rows = [["", "median", "min – max", "budget", ""]]
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=asked.dir) as folder:
        for measured in report(Path(folder).resolve(), asked.parts or tuple(PARTS), max(1, asked.rounds)):
            rows.append(measured.row())
            print(f"  measured: {measured.what.strip()}", flush=True)
    print(f"\n{table(rows)}\n\n{how_busy()}")


def how_busy() -> str:
    """What the machine had to do besides, which nothing that is printed can be read without."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    judged = "busy with other things: read the ratios, and those with care" if load > cores else "quiet enough"
    return f"load {load:.1f} on {cores} cores in the last minute, this run included: {judged}"


if __name__ == "__main__":
    main()
