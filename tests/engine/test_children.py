"""Children: created by a step, waited for durably, independent of their parent (S60)."""

import asyncio

import pytest

from nbflow.core.model import Status
from nbflow.engine.engine import Engine
from nbflow.engine.entrypoint import WorkflowEntrypoint
from nbflow.errors import AlreadyExistsError, InstanceFailedError
from nbflow.testing import ManualClock
from tests.engine.conftest import eventually


class Child(WorkflowEntrypoint):
    async def run(self, event, step):
        if event.payload.get("fail"):
            raise ValueError("child broke")
        if event.payload.get("wait"):
            await step.wait_for_event("wait", "go")
        return await step.do("double", lambda: event.payload["n"] * 2)


class Parent(WorkflowEntrypoint):
    async def run(self, event, step):
        return await step.child("make one", "Child", event.payload)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def engine(clock):
    with Engine(":memory:", clock=clock) as engine:
        engine.register(Child)
        engine.register(Parent)
        yield engine


def test_a_parent_gets_its_childs_output(engine):
    """S60: the default id is parent.name-n, in the characters that ids have."""
    parent = engine.workflow("Parent").create(id="p", params={"n": 21})
    assert parent.wait(10, until="finished").output == 42
    child = engine.get("p.make-one-1")
    assert child.workflow_name == "Child"
    assert parent.step("make one").type == "child"
    assert parent.step("make one").output == 42


def test_a_failed_child_is_an_instance_failed_error_in_the_parent(engine):
    """S60."""
    caught = []

    class Careful(WorkflowEntrypoint):
        async def run(self, event, step):
            try:
                await step.child("c", Child, {"fail": True})
            except InstanceFailedError as error:
                caught.append(str(error))
                return "went on"

    assert engine.register(Careful).create().wait(10, until="finished").output == "went on"
    assert "child broke" in caught[0]


def test_a_parent_is_settled_where_its_children_are_and_nothing_else_is_in_the_way(engine):
    """API.md §3: the path through the child too waits for an event that nobody has sent."""
    parent = engine.workflow("Parent").create(id="p", params={"n": 1, "wait": True})
    child = _wait_for(engine, "p.make-one-1")
    child.wait(10)
    eventually(lambda: parent.status().status is Status.WAITING)
    status = parent.status()
    assert status.waiting_for[0].kind == "child"
    assert parent.wait(10).status is Status.WAITING
    child.pause()
    assert parent.is_settled()
    child.resume()
    child.send_event("go")
    assert parent.wait(10).status is Status.COMPLETE


def test_a_parent_is_not_settled_while_a_child_sleeps_or_another_path_does(engine):
    class Sleeps(WorkflowEntrypoint):
        async def run(self, event, step):
            await step.sleep("z", event.payload["child"])

    class Both(WorkflowEntrypoint):
        async def run(self, event, step):
            await asyncio.gather(step.child("c", "Sleeps", event.payload), step.sleep("own", event.payload["own"]))

    engine.register(Sleeps)
    for number, params in enumerate(({"child": "1 hour", "own": 0}, {"child": 0, "own": "1 hour"})):
        parent = engine.register(Both).create(f"s{number}", params)
        eventually(lambda: len(parent.status().waiting_for) == 1)  # noqa: B023 - called before the next turn
        assert not parent.is_settled()


def test_a_waiting_child_makes_a_waiting_parent(engine):
    parent = engine.workflow("Parent").create(id="p", params={"n": 1, "wait": True})
    child = _wait_for(engine, "p.make-one-1")
    child.wait(10)
    child.send_event("go")
    assert parent.wait(10, until="finished").output == 2


def _wait_for(engine, instance_id):
    import threading

    from nbflow.errors import NotFoundError

    for _ in range(500):
        try:
            return engine.get(instance_id)
        except NotFoundError:
            threading.Event().wait(0.01)
    raise AssertionError(instance_id)


def test_terminating_the_parent_leaves_the_child(engine):
    """S60."""
    parent = engine.workflow("Parent").create(id="p", params={"n": 1, "wait": True})
    child = _wait_for(engine, "p.make-one-1")
    child.wait(10)
    parent.terminate()
    assert child.status().status is Status.WAITING


def test_a_terminated_child_fails_its_parent(engine):
    parent = engine.workflow("Parent").create(id="p", params={"n": 1, "wait": True})
    child = _wait_for(engine, "p.make-one-1")
    child.wait(10)
    child.terminate()
    status = parent.wait(10, until="finished")
    assert status.status is Status.ERRORED
    assert status.error.type == "InstanceFailedError"


def test_an_instance_that_env_gives_can_be_awaited_and_a_workflow_cannot(engine):
    class Waits(WorkflowEntrypoint):
        async def run(self, event, step):
            async def both():
                child = await self.env.Child.create(id="one", params={"n": 5})
                try:
                    await self.env.Child
                except TypeError as error:
                    return [await child, str(error)]

            return await step.do("both", both)

    output, says = engine.register(Waits).create(id="m").wait(10, until="finished").output
    assert output == 10
    assert "create()" in says


def test_env_creates_children_in_steps_once_per_id(engine):
    """S60, API.md §5: async in async bodies, plain in plain ones; the one made before is given again."""
    seen = []

    class Maker(WorkflowEntrypoint):
        async def run(self, event, step):
            async def make():
                child = await self.env.Child.create(id="one", params={"n": 5})
                seen.append(child.id)
                return (await child.status()).status.value

            await step.do("make", make)

            def make_again():
                child = self.env.Child.create(id="one", params={"n": 5})
                return child.id

            return await step.do("again", make_again)

    maker = engine.register(Maker).create(id="m")
    assert maker.wait(10, until="finished").output == "one"
    assert engine.get("one").wait(10, until="finished").output == 10
    assert engine.store.find("one")[0].body["parent"] == "m"
    with pytest.raises(AlreadyExistsError):
        engine.workflow("Child").create(id="one")


def test_an_unknown_name_in_env_lists_the_known_ones(engine):
    """API.md §5."""

    class Asks(WorkflowEntrypoint):
        async def run(self, event, step):
            return self.env.Nothing

    status = engine.register(Asks).create().wait(10, until="finished")
    assert status.error.type == "AttributeError"
    assert "Child" in status.error.message


def test_what_env_was_given_is_there(clock):
    """API.md §5."""

    class Uses(WorkflowEntrypoint):
        async def run(self, event, step):
            return self.env.db + self.env["more"]

    with Engine(":memory:", clock=clock, env={"db": 1}) as engine:
        engine.env["more"] = 2
        assert engine.register(Uses).create().wait(10, until="finished").output == 3
