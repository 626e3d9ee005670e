"""Record the histories: `python -m tests.histories.record [NAME…]`.

Files that are there are left alone: a recorded history is never recorded anew, it has to be read as it was written then.
For a new kind of entry, add a scenario.
"""

import sys
from collections.abc import Callable
from typing import Any

from nbflow import WorkflowInstance
from nbflow.core.model import Entry, Kind
from nbflow.store.memory import claim_body
from tests.engine.conftest import Lab, eventually
from tests.histories import flows
from tests.histories.recorded import HERE, artifacts_of, opened, write

SCENARIOS: dict[str, tuple[Callable[["Stage"], None], dict[str, Any]]] = {}


def scenario(then: list[list[Any]], becomes: dict[str, Any], runs: list[str]) -> Callable[..., Any]:
    """What is done with the history after it was recorded, what its instances become, and which bodies run on the way."""

    def note(play: Callable[["Stage"], None]) -> Callable[["Stage"], None]:
        SCENARIOS[play.__name__] = (play, {"about": play.__doc__, "then": then, "becomes": becomes, "runs": sorted(runs)})
        return play

    return note


class Stage:
    """Where a scenario is played: one kernel after another."""

    def __init__(self) -> None:
        self.lab = Lab()
        self.register()

    def register(self) -> None:
        for flow in flows.FLOWS:
            self.lab.engine.register(flow)

    def create(self, workflow: str, instance_id: str, params: Any = None, *, idle: bool = True) -> WorkflowInstance:
        instance = self.lab.engine.workflow(workflow).create(instance_id, params)
        if idle:
            self.lab.idle()
        return instance

    def get(self, name: str) -> WorkflowInstance:
        return self.lab.engine.get(name)

    def advance(self, span: Any) -> None:
        self.lab.advance(span)

    def die(self, *, register: bool = True) -> None:
        """The kernel is killed, and another one comes."""
        old, entries = self.lab, self.lab.entries()
        self.lab = opened(entries, artifacts_of(old), old.clock)
        old.die()
        if register:
            self.register()
            self.lab.idle()

    def leave(self) -> None:
        """The kernel ends in order, and another one comes."""
        old = self.lab
        close, old.store.close = old.store.close, lambda: None
        old.engine.close()
        self.lab = opened(old.entries(), artifacts_of(old), old.clock)
        close()
        self.register()
        self.lab.idle()

    def broken(self, *names: str) -> None:
        flows.BROKEN.clear()
        flows.BROKEN.update(names)


@scenario(
    then=[["advance", "2 days"]],
    becomes={
        "Nap/done": ["complete", [[1, {"two": None}], "woken"]],
        "Nap/asleep": ["complete", [None, "woken"]],
        "Tick/Tick-20260101T0100Z": ["complete"],
    },
    runs=["after", "tick"],
)
def life(stage: Stage) -> None:
    """Created, run, complete; closed in order and claimed by the next kernel; killed and claimed; made by a schedule."""
    stage.create("Nap", "done", {"for": "1 minute", "n": [1, {"two": None}]})
    stage.advance("10 minutes")
    stage.create("Nap", "asleep")
    stage.leave()
    stage.lab.engine.workflow("Tick").schedule("0 * * * *")
    stage.advance("1 hour")
    stage.lab.engine.workflow("Tick").unschedule()
    stage.die()


@scenario(
    then=[["advance", "30 days"], ["status", "Nap/resting", "paused"], ["resume", "Nap/resting"], ["advance", "1 day"]],
    becomes={"Nap/resting": ["complete", [None, "woken"]], "Nap/shifted": ["complete", [None, "woken"]]},
    runs=["after", "after"],
)
def pause(stage: Stage) -> None:
    """Paused and resumed with its deadline moved; paused and left so."""
    shifted, resting = stage.create("Nap", "shifted"), stage.create("Nap", "resting")
    stage.advance("1 hour")
    shifted.pause()
    resting.pause()
    stage.advance("5 days")
    shifted.resume()
    stage.advance("1 hour")


@scenario(
    then=[["resume", "Chain/failed"], ["restart", "Chain/again", "third"], ["advance", "1 minute"]],
    becomes={name: ["complete", ["FIRST", "SECOND", "THIRD"]] for name in ("Chain/mended", "Chain/again", "Chain/failed")},
    runs=["second", "third", "third"],
)
def again(stage: Stage) -> None:
    """Errored and resumed at the failed step; restarted from a step, and from the start; errored and left so."""
    stage.broken("second")
    mended, _ = stage.create("Chain", "mended"), stage.create("Chain", "failed")
    stage.broken()
    mended.resume()
    again = stage.create("Chain", "again")
    again.restart(from_step="second")
    stage.lab.idle()
    again.restart()
    stage.advance("1 minute")


@scenario(
    then=[["restart", "Nap/stopped", None], ["advance", "1 day"]],
    becomes={"Nap/stopped": ["complete", [None, "woken"]], "Nap/gone": ["complete", [None, "woken"]]},
    runs=["before", "after", "after"],
)
def ends(stage: Stage) -> None:
    """Terminated; deleted, and the id used again."""
    stage.create("Nap", "stopped").terminate()
    stage.create("Nap", "gone").delete()
    stage.advance("1 hour")
    stage.create("Nap", "gone")


@scenario(
    then=[["advance", "1 hour"], ["resume", "Trip/undone"], ["send", "Trip/undone", "back-home", 1], ["advance", "1 minute"]],
    becomes={
        "Trip/undone": ["complete", "home"],
        "Trip/stuck": ["errored"],
        "Trip/called-off": ["terminated"],
        "Trip/half-undone": ["errored"],
    },
    runs=["undo flight", "flight", "hotel", "pay"],
)
def rollback(stage: Stage) -> None:
    """All handlers end well, one after a retry; one fails for good; a trip called off; the kernel dies half way."""
    stage.broken("pay", "undo hotel")
    stage.create("Trip", "undone")
    stage.broken("pay")
    stage.advance("1 hour")
    stage.broken("pay", "undo hotel")
    stage.create("Trip", "stuck")
    stage.advance("1 hour")
    stage.broken()
    stage.create("Trip", "called-off").terminate(rollback=True)
    stage.lab.idle()
    stage.broken("pay", "undo flight")
    stage.create("Trip", "half-undone")
    stage.die()
    stage.broken()


@scenario(
    then=[["advance", "1 hour"]],
    becomes={"Trip/called-off": ["terminated"], "Trip/cut-short": ["terminated"]},
    runs=["undo hotel", "undo flight"],
)
def called_off(stage: Stage) -> None:
    """A trip called off, and one where the kernel dies while its first handler waits to be tried again."""
    stage.create("Trip", "called-off").terminate(rollback=True)
    stage.lab.idle()
    stage.broken("undo hotel")
    stage.create("Trip", "cut-short").terminate(rollback=True)
    stage.lab.idle()
    stage.die()
    stage.broken()


@scenario(
    then=[["send", "Answers/a", "answer", 8], ["advance", "1 minute"]],
    becomes={"Answers/a": ["complete", [7, "timed out", 8]]},
    runs=[],
)
def events(stage: Stage) -> None:
    """Sent early and kept, set aside as unfit, taken, timed out, a wait cancelled in a race, one still open."""
    one = stage.create("Answers", "a")
    one.send_event("answer", "many", by="grace")
    one.send_event("answer", 7, by="grace")
    stage.advance("3 hours")


@scenario(
    then=[["advance", "1 hour"]],
    becomes={
        "Work/w": ["complete", [2, "doomed is broken", {"won": True}, 15, True, 6, "at last"]],
        "CutOff/c": ["complete", [1, 2]],
        "CutOff/old": ["complete", [1, 2]],
    },
    runs=["flaky", "long", "long"],
)
def do(stage: Stage) -> None:
    """Nested, failed and caught, cancelled in a race, an artefact, typed and sensitive values, a retry; attempts cut off."""
    stage.broken("doomed", "flaky", "long")
    stage.create("Work", "w")
    for name in ("c", "old"):
        stage.create("CutOff", name, idle=False)
    eventually(lambda: flows.RAN.count("long") == 2)
    stage.die(register=False)
    # No engine of ours writes `do.interrupted`; whoever takes over may say so of what was cut off, and it must be understood.
    (head,) = stage.lab.store.find("old")
    owner, seq, now = stage.lab.engine.owner, head.created_seq, stage.lab.clock.now()
    stage.lab.store._append(Entry(Kind.CLAIMED, seq, head.token + 1, now, body=claim_body(owner, "register")))
    cut = {"order": 2, "attempt": 1, "started_at": now.isoformat()}
    stage.lab.store._append(Entry(Kind.DO_INTERRUPTED, seq, head.token + 1, now, "long", 1, body=cut))
    stage.lab.store._append(Entry(Kind.RELEASED, seq, head.token + 1, now, body={"why": "closed"}))


@scenario(then=[["advance", "90 days"]], becomes={"Naps/n": ["complete", "rested"]}, runs=[])
def sleeps(stage: Stage) -> None:
    """Over, cancelled in a race, until a moment."""
    stage.create("Naps", "n")
    stage.advance("2 hours")


@scenario(
    then=[["send", "Child/the-open-one", "grown-up", None], ["advance", "10 seconds"]],
    becomes={
        "Parent/p": ["complete", ["GOOD", True, "OPEN"]],
        "Child/the-open-one": ["complete", "OPEN"],
        "Child/p.slow-1": ["waiting"],
    },
    runs=["grow open"],
)
def children(stage: Stage) -> None:
    """One that gave its output, one that failed, one given up in a race, one still waited for."""
    stage.create("Parent", "p")
    stage.advance("2 hours")


@scenario(
    then=[["status", "Reader/r", "running"], ["provide"], ["send", "Reader/r", "read", None], ["advance", "1 minute"]],
    becomes={"Reader/r": ["complete", "Durable, 12 pages"]},
    runs=[],
)
def interrupted(stage: Stage) -> None:
    """A recorded value of a class that the next kernel has not loaded."""
    flows.provide_library()
    stage.create("Reader", "r")
    flows.take_library_away()
    stage.die()


@scenario(
    then=[["resume", "Harvest/sour"], ["advance", "1 day"], ["retry", "Harvest/some"], ["advance", "1 day"]],
    becomes={
        "Harvest/all": ["complete", [["A", "B", "C"], ["A", "B", "C"]]],
        "Harvest/enough": ["complete", [["D", "E", "F"], ["D"]]],
        "Harvest/sour": ["complete", [["G", "H", "I"], ["G", "H", "I"]]],
        "Harvest/some": ["complete", [["J", "K"], ["J", "K"]]],
        "Harvest/cut": ["complete", [["L", "M"], ["L", "M"]]],
        "Harvest/later": ["complete", [["N", "O"], ["N", "O"]]],
    },
    runs=[*(f"press {grape}" for grape in "hijkmmlonoghk"), *(f"cork {grape}" for grape in "GHIJKLMNO")],
)
def maps(stage: Stage) -> None:
    """Maps that ended, were left half way, failed, ended with a failed item; an item that hung, one in its retry delay."""
    stage.create("Harvest", "all", {"grapes": "abc"})
    stage.create("Harvest", "enough", {"grapes": "def", "enough": 1})
    stage.advance("1 hour")
    stage.broken("press h", "press k", "m hangs", "press o")
    stage.create("Harvest", "sour", {"grapes": "ghi"})
    stage.create("Harvest", "some", {"grapes": "jk", "errors": True})
    stage.advance("2 hours")
    stage.broken("m hangs", "press o")
    stage.create("Harvest", "cut", {"grapes": "lm"}, idle=False)
    eventually(lambda: "press m" in flows.RAN)
    stage.create("Harvest", "later", {"grapes": "no"}, idle=False)
    eventually(lambda: "press o" in flows.RAN)
    eventually(lambda: stage.get("Harvest/later").step("press").items.retrying)
    stage.die(register=False)
    (head,) = stage.lab.store.find("cut")  # as an attempt that was lost with the worker it ran on
    owner, seq, now = stage.lab.engine.owner, head.created_seq, stage.lab.clock.now()
    stage.lab.store._append(Entry(Kind.CLAIMED, seq, head.token + 1, now, body=claim_body(owner, "register")))
    lost = {"order": 1, "attempt": 1, "started_at": now.isoformat()}
    stage.lab.store._append(Entry(Kind.MAP_INTERRUPTED, seq, head.token + 1, now, "press", 1, "1", lost))
    stage.lab.store._append(Entry(Kind.RELEASED, seq, head.token + 1, now, body={"why": "closed"}))


@scenario(then=[["advance", "1 hour"]], becomes={"Trip/lost": ["errored"]}, runs=["undo hotel", "undo flight"])
def lost_handler(stage: Stage) -> None:
    """A second attempt of a rollback handler was lost with the worker it ran on."""
    stage.broken("pay", "undo hotel")
    stage.create("Trip", "lost")
    stage.broken()
    stage.die(register=False)
    (head,) = stage.lab.store.find("lost")
    owner, seq, token, now = stage.lab.engine.owner, head.created_seq, head.token + 1, stage.lab.clock.now()
    order = max(entry.body.get("order", 0) for entry in stage.lab.entries())  # the newest began last
    stage.lab.store._append(Entry(Kind.CLAIMED, seq, token, now, body=claim_body(owner, "register")))
    lost = {"order": order, "attempt": 2, "started_at": now.isoformat()}
    stage.lab.store._append(Entry(Kind.ROLLBACK_INTERRUPTED, seq, token, now, "hotel", 1, None, lost))
    stage.lab.store._append(Entry(Kind.RELEASED, seq, token, now, body={"why": "closed"}))


def main(names: list[str]) -> None:
    for name in names or SCENARIOS:
        if (HERE / f"{name}.json").exists():
            print(f"{name}.json is there and stays")
            continue
        play, about = SCENARIOS[name]
        stage = Stage()
        stage.broken()
        play(stage)
        write(name, stage.lab, **about)
        stage.lab.die()
        print(f"{name}.json: {len(stage.lab.entries())} entries")


if __name__ == "__main__":
    main(sys.argv[1:])
