"""User objects that raise when they are looked at, never end when they are written down, or stop the loop (S30, S55)."""

import asyncio
import os
import weakref

import pytest

from tests.engine.conftest import eventually, failure_of


def hidden_class():
    """A class that raises at every touch; made in a function, since pytest looks at the names of modules."""

    class Meta(type):
        def __getattribute__(cls, name):
            raise RuntimeError("do not look")

    class Hidden(metaclass=Meta):
        def __getattribute__(self, name):
            raise RuntimeError("do not look")

    return Hidden


def hidden():
    return hidden_class()()


def never_asked(cls, other):
    raise RuntimeError("do not ask")


class HiddenError(Exception):
    def __getattribute__(self, name):
        raise RuntimeError("do not look")


def dead_proxy():
    class Gone:
        pass

    return weakref.proxy(Gone())


def shared(depth=40):
    value = []
    for _ in range(depth):
        value = [value, value]
    return value


def lives_on(lab):
    async def run(event, step):
        return await step.do("still here", lambda: "yes")

    assert lab.finish(lab.start(run, id="after")).output == "yes"


def raises_hidden():
    raise HiddenError


def raises_with_shared_attribute():
    error = ValueError("text is kept")
    error.node = shared()
    raise error


@pytest.mark.parametrize("make", [hidden, hidden_class, dead_proxy, shared], ids=["object", "class", "proxy", "shared"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
def test_a_value_that_cannot_be_looked_at_fails_its_step_at_once(lab, make, asynchronous):
    async def coroutine():
        return make()

    async def run(event, step):
        return await step.do("odd", coroutine if asynchronous else make)

    instance = lab.start(run)
    eventually(instance.is_finished)
    assert len(instance.step("odd").attempts) == 1
    lives_on(lab)


@pytest.mark.parametrize("body", [raises_hidden, raises_with_shared_attribute])
def test_an_error_that_cannot_be_looked_at_fails_its_step(lab, body):
    async def run(event, step):
        await step.do("odd", body, retries=0)

    instance = lab.start(run)
    eventually(instance.is_finished)
    assert instance.view().status == "errored"
    lives_on(lab)


def test_such_an_error_from_run_fails_its_instance(lab):
    async def run(event, step):
        raise HiddenError

    instance = lab.start(run)
    eventually(instance.is_finished)
    lives_on(lab)


def test_such_an_output_of_run_fails_its_instance(lab):
    async def run(event, step):
        return shared()

    assert "too many parts" in str(failure_of(lab.finish(lab.start(run))))
    lives_on(lab)


def test_a_class_in_errors_that_raises_when_asked_fails_the_step(lab):
    async def run(event, step):
        def body():
            raise ValueError("x")

        class Odd(Exception, metaclass=type("M", (type,), {"__instancecheck__": never_asked})):
            pass

        await step.do("odd", body, retries={"limit": 3, "errors": (Odd,)})

    instance = lab.start(run)
    eventually(instance.is_finished)
    lives_on(lab)


def test_stopping_the_loop_does_not_end_the_engine(lab):
    async def run(event, step):
        async def stops():
            asyncio.get_running_loop().stop()
            return "stopped"

        return await step.do("stop", stops)

    assert lab.finish(lab.start(run)).output == "stopped"
    lives_on(lab)


def test_a_forked_child_of_a_body_ends(lab):  # S54
    async def run(event, step):
        def forks():
            child = os.fork()
            if child == 0:
                raise SystemExit(7)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        return await step.do("fork", forks)

    assert lab.finish(lab.start(run)).output == 7
