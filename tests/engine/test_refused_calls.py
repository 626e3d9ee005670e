"""A call that is refused is none: `run` may catch the UsageError, and the instance goes on to its end (S2, S16)."""

import asyncio

import pytest

from nbflow import NbflowError, UsageError
from nbflow.core.model import Status

LONG = "x" * 257


async def _plain(step):
    raise AssertionError("it was called")


def _decorated(step, name="a", **options):
    return step.do(name, **options)(lambda: 1)()


def _depends(step):
    """A decorated step whose name was taken after it was decorated is refused when it is called."""

    @step.do("a")
    def first():
        return 1

    first.name = LONG
    return first()


def _in_body(call):
    return lambda step: step.do("outer", _calls(step, call), retries=0)


def _calls(step, call):
    async def body():
        return await call(step)

    return body


class Unwritable:
    def __str__(self):
        raise UsageError("no text")


REFUSED = {
    "do without a name": lambda s: s.do("", _plain),
    "do, long name": lambda s: s.do(LONG, _plain),
    "do, name is no text": lambda s: s.do(5, _plain),
    "do, no function": lambda s: s.do("a", 5),
    "do, retries": lambda s: s.do("a", _plain, retries=-1),
    "do, timeout": lambda s: s.do("a", _plain, timeout="x"),
    "do, nothing to run": lambda s: s.do("a"),
    "do, no name": lambda s: s.do(lambda: 1),
    "do, config": lambda s: s.do("a", _plain, config=5),
    "do, executor": lambda s: s.do("a", _plain, on="nowhere"),
    "do, rollback": lambda s: s.do("a", _plain, rollback=5),
    "do, rollback_config": lambda s: s.do("a", _plain, rollback_config={"timeout": 1}),
    "do, sensitive": lambda s: s.do("a", _plain, sensitive="input"),
    "decorated, long name": lambda s: _decorated(s, LONG),
    "decorated, control character": lambda s: _decorated(s, "a\n"),
    "decorated, retries": lambda s: _decorated(s, retries=-1),
    "decorated, refused when called": _depends,
    "sleep, name": lambda s: s.sleep(LONG, 0),
    "sleep, duration": lambda s: s.sleep("a", "x"),
    "sleep, too long": lambda s: s.sleep("a", "2 years"),
    "sleep_until": lambda s: s.sleep_until("a", "x"),
    "sleep_until, beyond the calendar": lambda s: s.sleep_until("a", 1e300),
    "sleep_until, no moment": lambda s: s.sleep_until("a", float("nan")),
    "wait, name": lambda s: s.wait_for_event("", "go"),
    "wait, type": lambda s: s.wait_for_event("a", "b c"),
    "wait, timeout": lambda s: s.wait_for_event("a", "b", timeout="x"),
    "wait, schema": lambda s: s.wait_for_event("a", "b", schema=5),
    "wait, prompt": lambda s: s.wait_for_event("a", "b", prompt=Unwritable()),
    "map, name": lambda s: s.map(LONG, _plain, []),
    "map, function": lambda s: s.map("m", 5, [1]),
    "map, items": lambda s: s.map("m", _plain, 5),
    "map, key": lambda s: s.map("m", _plain, [1], key=5),
    "map, key of an item": lambda s: s.map("m", _plain, [1], key=lambda item: LONG),
    "map, keys that repeat": lambda s: s.map("m", len, ["a", "b"], key=lambda item: "same"),
    "map, concurrency": lambda s: s.map("m", _plain, [], concurrency=0),
    "map, rate": lambda s: s.map("m", _plain, [], rate="x"),
    "map, retries": lambda s: s.map("m", _plain, [], retries=-1),
    "map, executor": lambda s: s.map("m", _plain, [], on="nowhere"),
    "map, nothing to go through": lambda s: _gone_through(s.map("m", len, ["a"], discard_results=True)),
    "child, name": lambda s: s.child(LONG, "Child"),
    "child, id": lambda s: s.child("a", "Child", id="bad id"),
    "child, id that begins with a dot": lambda s: s.child("a", "Child", id=".a"),
    "child, id that is too long": lambda s: s.child("a", "Child", id="x" * 101),
    "child, id that is no text": lambda s: s.child("a", "Child", id=5),
    "child, workflow": lambda s: s.child("a", "Nobody"),
    "child, what is no workflow": lambda s: s.child("a", 5),
    "child, params": lambda s: s.child("a", "Child", {"a": object()}),
    "sleep in a body": _in_body(lambda s: s.sleep("a", 0)),
    "wait in a body": _in_body(lambda s: s.wait_for_event("a", "b")),
    "map in a body": _in_body(lambda s: s.map("m", _plain, [])),
    "child in a body": _in_body(lambda s: s.child("a", "Child")),
    "do in a body": _in_body(lambda s: s.do(LONG, _plain)),
}


async def _gone_through(results):
    return [one async for one in results]


@pytest.mark.parametrize("what", REFUSED)
def test_an_instance_that_catches_a_refusal_goes_on_to_its_end(lab, what):
    """However the refused call was made, no later step waits for it, and neither does the end."""

    async def child(event, step):
        return 1

    async def run(event, step):
        try:
            await REFUSED[what](step)
        except (NbflowError, TypeError) as error:
            refused = type(error).__name__
        return (
            refused,
            await step.do("after", lambda: 1),
            await asyncio.gather(step.do("a", lambda: 2), step.child("b", "Child")),
        )

    lab.workflow(child, "Child")
    instance = lab.run(run)
    assert instance.status().status is Status.COMPLETE, instance.status().error
    assert instance.output[0] in ("UsageError", "NotFoundError", "NotSerialisableError")
    assert instance.output[1:] == (1, [2, 1])


def _one():
    return 1


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (
            lambda s: s.do("load"),
            "step 'load' has nothing to run; write `await step.do('load', fn)`, or `@step.do('load')` above",
        ),
        (lambda s: s.do(), "`await step.do('name', fn)`"),
        (lambda s: s.do(lambda: 1), "given a function and no name; write `await step.do('name', fn)`"),
        (lambda s: s.do("load")(_one), "step 'load' was not called; write `await _one()`, or, undecorated,"),
        (lambda s: asyncio.gather(s.do("load")), "step 'load' has nothing to run"),
    ],
)
def test_a_step_without_a_body_or_a_call_says_what_is_missing(lab, call, advice):
    async def run(event, step):
        await call(step)

    error = lab.run(run).status().error
    assert error.type == "UsageError"
    assert advice in error.message


def test_a_step_too_many_is_refused_and_the_instance_goes_on(make_lab):
    """S14."""

    async def run(event, step):
        await step.do("a", lambda: 1)
        try:
            await step.do("a", lambda: 2)
        except UsageError:
            return await step.sleep("z", 0) or "went on"

    assert make_lab(max_steps=1).output(run) == "went on"
