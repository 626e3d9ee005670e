"""Kernels killed at random moments over steps of every kind; see work.py for what they do and ledger.py for what must hold."""

import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nbflow import Engine
from nbflow.store import doctor
from tests.crash import work
from tests.crash.faults import CRASHES, DIED
from tests.crash.hosts import LightKernel, RealKernel, Zygote
from tests.crash.ledger import Ledger, Outsider, check_panel, panel_state, whole_artifacts

KILLS = int(os.environ.get("NBFLOW_KILLS", "40"))
CUTS = int(os.environ.get("NBFLOW_CUTS", "8"))
ENGINE_KILLS = int(os.environ.get("NBFLOW_ENGINE_KILLS", "12"))
SEED = int(os.environ.get("NBFLOW_SEED", "7"))
SHARE = int(os.environ.get("NBFLOW_REAL", "5"))
"""Every so manieth life is that of a real kernel."""

pytestmark = [pytest.mark.kernel, pytest.mark.crash, pytest.mark.timeout(300 + 20 * max(KILLS, ENGINE_KILLS, CUTS))]


@contextmanager
def image_of(folder: Path, instance: str | None) -> Iterator[Path]:
    """What the death left, in a folder of its own: looking at it heals it, and the next kernel must do that by itself."""
    source, target = folder / ".nbflow", folder / "image" / ".nbflow"
    shutil.rmtree(target.parent, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("artifacts"))
    (target / "artifacts").mkdir(exist_ok=True)
    if instance is not None and (files := source / "artifacts" / "Work" / instance).exists():
        shutil.copytree(files, target / "artifacts" / "Work" / instance, copy_function=os.link)
    yield target / "history.duckdb"
    shutil.rmtree(target.parent)


class Soak:
    """Lives and deaths over one store, one instance after another."""

    def __init__(self, folder: Path, zygote: Zygote) -> None:
        self.folder, self.ledger = folder, Ledger(folder)
        self.chance = random.Random(SEED)
        self.real, self.light = RealKernel(folder), LightKernel(zygote, folder)
        self.outsider = Outsider()
        self.number, self.barren = 1, 0
        self.finished: list[str] = []
        self.deaths: dict[str, int] = {"while booting": 0, "at work": 0, "after the end": 0}

    @property
    def name(self) -> str:
        return f"w{self.number}"

    def cells(self, name: str) -> list[str]:
        return [work.BOOT, work.CELL.format(id=name, fails=int(name[1:]) % 3 == 0), work.FOLLOW]

    def said(self, what: str) -> bool:
        return any(line[0] == what for line in self.ledger.lines())

    def await_said(self, *what: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not any(map(self.said, what)):
            assert time.monotonic() < end, f"nobody said {what} in time"
            time.sleep(0.005)

    def live_and_die(self, number: int) -> None:
        host = self.real if number % SHARE == 0 else self.light
        host.start()
        host.run(self.cells(self.name))
        if self.barren < 2 and self.chance.random() < 0.12:
            time.sleep(self.chance.uniform(0, 0.3))
            kind = "while booting"
        else:
            self.await_said("ready")
            if host is self.real and number + SHARE <= KILLS:
                self.real.prepare()
            if self.barren >= 2:  # a third death in a row without a step would fail the instance (S27)
                self.await_progress()
            self.wait_for_death(self.chance.choice((0.3, 0.6, 1.2)) * self.chance.random() + 0.03)
            kind = "after the end" if self.said("finished") else "at work"
        host.kill()
        self.deaths[kind] += 1
        self.barren = 0 if self.ledger.take() else self.barren + 1

    def await_progress(self) -> None:
        told = self.ledger[self.name]
        end = time.monotonic() + 60
        while not any(what == "got" and rest[1] not in told.values for what, *rest in self.ledger.lines()):
            if self.said("finished") or self.said("undo"):
                return
            assert time.monotonic() < end, "it never went on"
            time.sleep(0.01)

    def wait_for_death(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))
            if self.said("finished"):
                time.sleep(min(left, 0.1) * self.chance.random())
                return

    def look(self, number: int) -> None:
        """Check what the last death left."""
        assert not list((self.folder / ".nbflow").glob("*.damaged*"))
        assert not list((self.folder / ".nbflow" / "journal").glob("*.damaged*"))
        if not (self.folder / ".nbflow" / "history.duckdb").exists():
            assert not self.ledger.told
            return
        with image_of(self.folder, self.name) as file:
            thorough = number % 10 == 0
            with Engine(file, notebook="look") as engine:
                assert engine.store.warnings == []
                found = engine.store.find(self.name, "Work")
                assert len(found) <= 1
                inst = engine.get(self.name, "Work") if found else None
                entries = inst.history() if inst is not None else []
                self.ledger.check(self.name, entries)
                whole_artifacts(engine.store.artifacts, entries)
                state = panel_state(inst) if inst is not None else {}
                for name in self.finished[-3:] if thorough else ():
                    self.ledger.check(name, engine.get(name, "Work").history())
            with self.outsider.attached(file) as sql:
                if inst is not None:
                    check_panel(state, inst.created_seq, sql)
                assert sql(
                    "select coalesce(max(seq), 0) - count(*) = any_value(m.value::bigint) from entries, meta as m where m.key = 'purged'"
                ) in ([(True,)], [(None,)])
                gone = [name for name, told in self.ledger.told.items() if told.deleted]
                assert sql(f"select instance_id from instances where instance_id in {(*gone, '', '')}") == []
            if thorough:
                wrong = [f for f in doctor.examine(file) if f.severity is doctor.Severity.WRONG and "missing" not in f.what]
                assert wrong == []
        if self.ledger[self.name].finished is not None:
            self.check_result(self.name)
            self.finished.append(self.name)
            self.number += 1

    def check_result(self, name: str) -> None:
        told = self.ledger[name]
        assert told.finished is not None
        status, rollback, _ = told.finished
        assert (status, rollback) == (("errored", "complete") if int(name[1:]) % 3 == 0 else ("complete", None))
        assert len(told.values) == 4 + 6 + 1 + 3 + 1 + work.STREAMED + 2 + 3 + 2 * work.EVENTS
        if status == "errored":
            assert told.undone == {f"plain {n}" for n in range(4)}


def test_kernels_killed_at_random_lose_double_and_repeat_nothing(tmp_path, zygote):
    soak = Soak(tmp_path, zygote)
    try:
        for number in range(1, KILLS + 1):
            soak.live_and_die(number)
            soak.look(number)
            if number % 50 == 0:
                print(f"{number} kills, {len(soak.finished)} instances ended, {soak.deaths}", flush=True)
        assert soak.deaths["at work"] >= KILLS // 3, soak.deaths
        assert len(soak.finished) >= KILLS // 40, soak.finished
    finally:
        soak.real.stop()
        soak.light.stop()
        soak.outsider.close()


class Cuts(Soak):
    """The same, where each life ends at one of its writes, half of them by a power cut: the next begins with what is left."""

    def live_and_die(self, number: int) -> None:
        """One life."""
        seam = {
            # Opening costs some sixty; a third death in a row without a step would fail the instance (S27).
            "at": self.chance.randrange(120 if self.barren >= 2 else 1, self.chance.choice((200, 400, 900))),
            "how": self.chance.choice(CRASHES),
            "power": self.chance.random() < 0.5,
            "seed": number,
        }
        self.light.start(seam)
        self.light.run(self.cells(self.name))
        end = time.monotonic() + 60
        while not (self.light.dead or self.said("finished")):
            assert time.monotonic() < end, (seam, self.light.log())
            time.sleep(0.01)
        if self.light.dead:
            assert os.waitstatus_to_exitcode(self.light.reap()) == DIED, (seam, self.light.log())
            shutil.rmtree(self.folder / ".nbflow")
            (self.folder / "image" / ".nbflow").rename(self.folder / ".nbflow")
            self.deaths["at work"] += 1
        else:
            self.light.kill()
            self.deaths["after the end"] += 1
        self.barren = 0 if self.ledger.take() else self.barren + 1


def test_power_cuts_and_deaths_at_any_write_cost_nothing_that_was_recorded(tmp_path, zygote):
    cuts = Cuts(tmp_path, zygote)
    try:
        for number in range(1, CUTS + 1):
            cuts.live_and_die(number)
            cuts.look(number)
            if number % 50 == 0:
                print(f"{number} cuts, {len(cuts.finished)} instances ended, {cuts.deaths}", flush=True)
        assert cuts.deaths["at work"] >= CUTS // 3, cuts.deaths
    finally:
        cuts.light.stop()
        cuts.outsider.close()


class Three:
    """Three engines at work on one file, each with instances of its own; one of them dies, the others go on."""

    def __init__(self, folder: Path, zygote: Zygote) -> None:
        self.ledgers = {name: Ledger(folder, f"{name}.notes") for name in "abc"}
        self.chance = random.Random(SEED)
        self.hosts = {name: LightKernel(zygote, folder, name, f"{name}.notes") for name in "abc"}
        self.numbers = dict.fromkeys("abc", 1)
        self.ended = 0
        for name in "abc":
            self.begin(name)

    def instance(self, name: str) -> str:
        return f"{name}{self.numbers[name]}"

    def begin(self, name: str) -> None:
        which = self.instance(name)
        self.hosts[name].start()
        self.hosts[name].run([work.BOOT, work.CELL.format(id=which, fails=self.numbers[name] % 3 == 0), FOLLOW])

    def await_run(self, name: str) -> None:
        """Until it has its instance: registering takes over what the dead had (S51), and it must not be another's."""
        which, end = self.instance(name), time.monotonic() + 60
        while not any(line[:2] in (["created", which], ["finished", which]) for line in self.ledgers[name].lines()):
            assert time.monotonic() < end, self.hosts[name].log()
            time.sleep(0.01)

    def kill_one(self, engine: Engine) -> None:
        """One dies at any moment; what the living one beside sees of it is held against what it said."""
        name = self.chance.choice("abc")
        which, ledger = self.instance(name), self.ledgers[name]
        for each in "abc":
            self.await_run(each)
        lines, end = 0, time.monotonic() + 60
        wanted = self.chance.choice((0, 1, 4, 20))
        while lines < wanted and time.monotonic() < end:  # a death without a step now and then, never three in a row (S27)
            noted = [line[:2] for line in ledger.lines()]
            lines = sum(line in (["got", which], ["undo", which]) for line in noted)
            if ["finished", which] in noted:
                break
            time.sleep(0.01)
        time.sleep(self.chance.random() * 0.15)
        self.hosts[name].kill()
        ledger.take()
        found = engine.store.find(which, "Work")
        if found:
            inst = engine.get(which, "Work")
            entries = inst.history()
            ledger.check(which, entries)
            whole_artifacts(engine.store.artifacts, entries)
            check_panel(panel_state(inst), inst.created_seq, lambda query: engine.sql(query).fetchall())
        else:
            ledger.check(which, [])
        if ledger[which].finished is not None:
            self.ended += 1
            self.numbers[name] += 1
        self.begin(name)


FOLLOW = work.FOLLOW.replace("tidy(inst)", "")


def test_an_engine_killed_under_two_others_loses_doubles_and_repeats_nothing(tmp_path, zygote):
    three = Three(tmp_path, zygote)
    try:
        while not (tmp_path / ".nbflow" / "history.duckdb").exists():
            time.sleep(0.01)
        with Engine(tmp_path / ".nbflow" / "history.duckdb", notebook="look", lock_timeout=60) as engine:
            for number in range(1, ENGINE_KILLS + 1):
                three.kill_one(engine)
                if number % 50 == 0:
                    print(f"{number} engines killed, {three.ended} instances ended", flush=True)
            assert engine.store.warnings == []
            assert engine.sql("select max(seq) - count(*) from history").fetchall() == [(0,)]
    finally:
        for host in three.hosts.values():
            host.stop()
