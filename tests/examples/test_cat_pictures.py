"""The guide of the cat pictures: what goes wrong and how it is meant, each pair seen at work.

Instances hibernate here as soon as they wait, as after a kernel restart: `run` is called again from the top.
"""

import random

import pytest

from nbflow import Engine, WorkflowEntrypoint
from nbflow.testing import ManualClock


@pytest.fixture
def engine():
    with Engine(":memory:", clock=ManualClock(), notebook="") as engine:
        engine.waiting.keep = 0
        yield engine


class Cats:
    """A service of cat pictures that notes each request."""

    def __init__(self):
        self.requests = []
        self.down = set()

    def get(self, name):
        self.requests.append(name)
        if name in self.down:
            raise ConnectionError(name)
        return f"{name}.jpg"


@pytest.fixture
def cats(engine):
    engine.env["cats"] = cats = Cats()
    return cats


def run(engine, cls, params=None, days=2):
    instance = engine.register(cls).create(params=params)
    engine.clock.advance("1 minute")
    if not instance.is_finished():
        live = engine.live[instance.created_seq]
        assert live.rest.hibernating, "nothing of it is in memory"
    engine.clock.advance(f"{days} days")
    return instance


# -- state outside steps ----------------------------------------------------------------------------------------------


class KeepsAListOutside(WorkflowEntrypoint):
    """Bad: bodies append to a list of `run`; when `run` is replayed the bodies do not run, and the list stays empty."""

    async def run(self, event, step):
        cats = self.env.cats
        pictures = []
        await step.do("get the first", lambda: pictures.append(cats.get("first")))
        await step.do("get the second", lambda: pictures.append(cats.get("second")))
        await step.sleep("nap", "3 hours")
        return await step.do("choose", lambda: list(pictures))


class BuildsTheListOfResults(WorkflowEntrypoint):
    """Good: the list is made of what steps gave, so a replay makes it again."""

    async def run(self, event, step):
        cats = self.env.cats
        pictures = [await step.do(f"get the {name}", cats.get, name) for name in ("first", "second")]
        await step.sleep("nap", "3 hours")
        return await step.do("choose", lambda: list(pictures))


def test_state_outside_steps_is_lost_in_hibernation(engine, cats):
    assert run(engine, KeepsAListOutside).output == []
    assert cats.requests == ["first", "second"]


def test_state_made_of_results_is_kept(engine, cats):
    assert run(engine, BuildsTheListOfResults).output == ["first.jpg", "second.jpg"]
    assert cats.requests == ["first", "second"]


def test_without_hibernation_the_bad_one_seems_to_work(engine, cats):
    """Which is why it is worth a guide: it fails only on the day when the kernel restarts."""
    engine.waiting.keep = 1000
    instance = engine.register(KeepsAListOutside).create()
    engine.clock.advance("1 day")
    assert instance.output == ["first.jpg", "second.jpg"]


# -- one big step -----------------------------------------------------------------------------------------------------


class OneBigStep(WorkflowEntrypoint):
    """Bad: two requests in one body; when the second fails, the first is made again."""

    async def run(self, event, step):
        cats = self.env.cats
        return await step.do("get both", lambda: [cats.get("first"), cats.get("second")])


class TwoSmallSteps(WorkflowEntrypoint):
    """Good: one request in each."""

    async def run(self, event, step):
        cats = self.env.cats
        return [await step.do("get first", cats.get, "first"), await step.do("get second", cats.get, "second")]


@pytest.mark.parametrize(("cls", "firsts"), [(OneBigStep, 3), (TwoSmallSteps, 1)])
def test_what_shares_a_body_is_repeated_together(engine, cats, cls, firsts):
    cats.down = {"second"}
    instance = engine.register(cls).create()
    engine.clock.advance("10 seconds")
    cats.down = set()
    engine.clock.advance("20 seconds")
    assert instance.output == ["first.jpg", "second.jpg"]
    assert (cats.requests.count("first"), cats.requests.count("second")) == (firsts, 3)


# -- effects outside steps --------------------------------------------------------------------------------------------


class CreatesOutside(WorkflowEntrypoint):
    """Bad: an effect between steps is repeated at every replay."""

    async def run(self, event, step):
        self.env.cats.get("outside")
        await step.sleep("nap", "3 hours")
        await step.sleep("another nap", "3 hours")


class CreatesInAStep(WorkflowEntrypoint):
    """Good."""

    async def run(self, event, step):
        await step.do("create", self.env.cats.get, "inside")
        await step.sleep("nap", "3 hours")
        await step.sleep("another nap", "3 hours")


@pytest.mark.parametrize(("cls", "requests"), [(CreatesOutside, ["outside"] * 3), (CreatesInAStep, ["inside"])])
def test_effects_outside_steps_are_repeated(engine, cats, cls, requests):
    run(engine, cls)
    assert cats.requests == requests


# -- chance -----------------------------------------------------------------------------------------------------------


class ChoosesOutside(WorkflowEntrypoint):
    """Bad: chance between steps falls differently at each replay."""

    async def run(self, event, step):
        choice = self.env.roll()
        before = await step.do("before", lambda: choice)
        await step.sleep("nap", "3 hours")
        return [before, choice]


class ChoosesInAStep(WorkflowEntrypoint):
    """Good: what chance gave is recorded."""

    async def run(self, event, step):
        choice = await step.do("choose", self.env.roll)
        before = await step.do("before", lambda: choice)
        await step.sleep("nap", "3 hours")
        return [before, choice]


@pytest.mark.parametrize(("cls", "same"), [(ChoosesOutside, False), (ChoosesInAStep, True)])
def test_chance_belongs_into_a_step(engine, cls, same):
    rolls = random.Random(7)
    engine.env["roll"] = lambda: rolls.randrange(10**9)
    before, after = run(engine, cls).output
    assert (before == after) is same


# -- names ------------------------------------------------------------------------------------------------------------


class NamesByTheClock(WorkflowEntrypoint):
    """Bad: a name that differs at each replay is another step."""

    async def run(self, event, step):
        picture = await step.do(f"get at {self.env.clock.now().isoformat()}", self.env.cats.get, "one")
        await step.sleep("nap", "3 hours")
        return picture


class NamesByTheEvent(WorkflowEntrypoint):
    """Good: what comes from the event is the same for ever."""

    async def run(self, event, step):
        picture = await step.do(f"get at {event.timestamp.isoformat()}", self.env.cats.get, "one")
        await step.sleep("nap", "3 hours")
        return picture


@pytest.mark.parametrize(("cls", "requests"), [(NamesByTheClock, 2), (NamesByTheEvent, 1)])
def test_a_step_is_known_by_its_name(engine, cats, cls, requests):
    engine.env["clock"] = engine.clock
    instance = run(engine, cls)
    assert instance.output == "one.jpg"
    assert len(cats.requests) == requests
    assert len(instance.status().unreached) == requests - 1


# -- the event --------------------------------------------------------------------------------------------------------


class ChangesTheEvent(WorkflowEntrypoint):
    """Bad: the event is a fresh copy in each activation."""

    async def run(self, event, step):
        event.payload["name"] = await step.do("name it", lambda: event.payload.get("name") or "Tom")
        seen = [event.payload["name"]]
        await step.do("forget", lambda: event.payload.pop("name"))
        await step.sleep("nap", "3 hours")
        return [*seen, event.payload.get("name")]


def test_a_changed_event_is_whole_again_after_hibernation(engine):
    instance = run(engine, ChangesTheEvent)
    assert instance.output == ["Tom", "Tom"], "the body that forgot the name did not run again"
    assert instance.params == {}
