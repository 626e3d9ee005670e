"""Children: created by a step, waited for durably, independent of their parent (S60)."""

import asyncio

import msgspec
import pytest

from nbflow.core.children import ChildCall
from nbflow.core.head import Head
from nbflow.core.model import Kind, Status, StepKey, StepType
from nbflow.core.names import instance_id as checked_id
from nbflow.engine.engine import Engine
from nbflow.engine.entrypoint import WorkflowEntrypoint
from nbflow.engine.env import Env
from nbflow.engine.recovery import register_only
from nbflow.errors import AlreadyExistsError, InstanceFailedError
from nbflow.testing import ManualClock
from tests.engine.conftest import Gate, entrypoint, eventually, kinds, source_of


class Child(WorkflowEntrypoint):
    async def run(self, event, step):
        if event.payload.get("fail"):
            raise ValueError("child broke")
        if event.payload.get("wait"):
            await step.wait_for_event("wait", "go")
        return await step.do("double", lambda: event.payload["n"] * 2)


class Parent(WorkflowEntrypoint):
    async def run(self, event, step):
        return await step.child("make-one", "Child", event.payload)


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
    """S60: the default id is parent.name-n."""
    parent = engine.workflow("Parent").create(id="p", params={"n": 21})
    assert parent.wait(10, until="finished").output == 42
    child = engine.get("p.make-one-1")
    assert child.workflow_name == "Child"
    assert parent.step("make-one").type == "child"
    assert parent.step("make-one").output == 42


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


@pytest.mark.parametrize(("way", "notebook"), [("child", "a.ipynb"), ("child", "b.ipynb"), ("env", "a.ipynb")])
def test_a_parent_that_goes_on_takes_its_child_up_where_registering_left_it_alone(lab, way, notebook):
    """S51, S60: but not one that last ran in another notebook, with other code."""

    async def child(event, step):
        await step.sleep("z", "1 minute")
        return 7

    async def other(event, step):
        await step.sleep("z", "1 minute")
        return 8

    async def parent(event, step):
        return await step.child("c", "Child")

    async def by_env(event, step):
        async def make():
            created = await event_env.Child.create("own")
            return await created

        return await step.do("make", make)

    event_env = Env(lab.engine)
    lab.workflow(child, "Child")
    run = parent if way == "child" else by_env
    lab.start(run, id="p", name="Parent")
    name = "p.c-1" if way == "child" else "own"
    eventually(lambda: lab.engine.store.find(name, "Child") and lab.engine.get(name).status().status is Status.WAITING)
    later = lab.revive(notebook=notebook)
    event_env = Env(later.engine)
    code = child if notebook == "a.ipynb" else other
    register_only(later.engine, entrypoint(code), "Child")
    assert later.engine.get(name).view().unattended
    resumed = later.engine.register(entrypoint(run), "Parent", source=source_of(run)).get("p")
    if notebook == "b.ipynb":
        resumed.resume()
        eventually(lambda: later.engine.ends._waiting)  # it has looked for its child
        assert "kernel is gone" in later.engine.get(name).status().interrupted
        return
    eventually(lambda: later.engine.get(name).view().here)
    eventually(lambda: later.engine.get(name).status().status is Status.WAITING)
    later.move("2 minutes")
    assert resumed.wait(20, until="finished").output == 7


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


def test_a_batch_of_env_gives_only_what_it_created_linked_to_the_step_that_made_it(engine):
    """S3, S60: in async and plain bodies, and in `run`, where nothing is a child."""
    engine.workflow("Child").create(id="old", params={"n": 1})
    before = {"id": "old"}

    class Makes(WorkflowEntrypoint):
        async def run(self, event, step):
            async def in_async():
                return [one.id for one in await self.env.Child.create_batch([before, {"id": "one"}, {"id": "one"}])]

            def in_plain():
                return [one.id for one in self.env.Child.create_batch([before, {"id": "one"}, {"id": "two"}])]

            def all_of_them():
                return [one.id for one in self.env.Child.create_batch([before, {"id": "one"}], existing="found")]

            made = [await step.do("async", in_async), await step.do("plain", in_plain), await step.do("all", all_of_them)]
            return [*made, [one.id for one in await self.env["Child"].create_batch([before, {"id": "three"}])]]

    maker = engine.register(Makes).create(id="m")
    assert maker.wait(10, until="finished").output == [["one"], ["two"], ["old", "one"], ["three"]]
    parents = dict(engine.sql("select instance_id, parent_id from instances where workflow = 'Child'").fetchall())
    assert parents == {"old": None, "one": "m", "two": "m", "three": None}


def test_a_step_that_is_tried_again_gets_the_batch_that_it_made_before(engine):
    """S11, S60: as `create` in a step does."""

    class Makes(WorkflowEntrypoint):
        async def run(self, event, step):
            def make(ctx):
                made = [one.id for one in self.env.Child.create_batch([{"id": "a"}, {"id": "b"}, {"id": "a"}])]
                if ctx.attempt == 1:
                    raise OSError("after it has made them")
                return made

            return await step.do("make", make, retries={"delay": 0})

    assert engine.register(Makes).create(id="m").wait(10, until="finished").output == ["a", "b"]


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


# -- whose child is whose (S2, S44, S60)


async def echo(event, step):
    """A child that gives its params and its id, or fails while the world is broken."""
    return await step.do("echo", _echo, event.payload, event.instance_id, retries=0)


BROKEN = set()


def _echo(params, instance_id):
    if "all" in BROKEN or params in BROKEN:
        raise ValueError("broken")
    return [params, instance_id]


@pytest.fixture(autouse=True)
def _whole_world():
    BROKEN.clear()


@pytest.fixture
def echoing(lab):
    lab.workflow(echo, "Echo")
    return lab


async def calls(event, step):
    """A parent with a child for each name that it is given."""
    return [await step.child(name, "Echo", number) for number, name in enumerate(event.payload)]


ALIKE = [
    "load data",
    "load-data",
    "load/data",
    "load  data",
    "東京",
    "大阪",
    "é",
    "a.b",
    "-",
    "x" * 97,
    "x" * 256,
    "x" * 255 + "y",
]


def test_children_with_different_names_are_different_children(echoing):
    """S6, S60: whatever of a name an id cannot hold."""
    output = echoing.output(calls, ALIKE)
    assert [params for params, _ in output] == list(range(len(ALIKE)))
    assert len({child_id for _, child_id in output}) == len(ALIKE)


@pytest.mark.parametrize("first", ["a", "a.b"])
def test_children_of_different_parents_are_different_children(echoing, first):
    """S2: where ids and names have dots, or are cut, and where the parents are of two workflows."""
    workflows = echoing.workflow(calls, "One"), echoing.workflow(calls, "Two")
    wanted = [("a", "b.c"), ("a.b", "c"), ("q" * 99 + "1", "d"), ("q" * 99 + "2", "d"), ("p", "same"), ("p2", "é")]
    wanted.sort(key=lambda one: one[0] != first)
    found = []
    for workflow in workflows:
        for parent, name in wanted:
            instance = echoing.finish(workflow.create(parent, [name]))
            assert instance.status().status is Status.COMPLETE, instance.status().error
            found.append(instance.output[0][1])
    assert len(set(found)) == len(found)
    assert "a.b.c-1" in found
    assert "p.same-1" in found


@pytest.mark.parametrize("given", [None, "mine", "m" * 100])
@pytest.mark.parametrize("name", [*ALIKE, "c", "a-b_C9"], ids=range(len(ALIKE) + 2))
@pytest.mark.parametrize("parent", ["p", "a.b", "q" * 99, "q" * 100])
def test_every_id_of_a_child_is_one(parent, name, given):
    """S2: and the same each time it is made."""
    key = StepKey(StepType.CHILD, name, 12)
    for redone in (0, 1, 41):
        call = ChildCall.of(Head(created_seq=7, workflow="W", instance_id=parent, redone=redone), key, given)
        ids = [*call.ids(), call.id_for(b"j1")]
        assert [checked_id(one) for one in ids] == ids == [*call.ids(), call.id_for(b"j1")]
        assert len(set(ids)) == len(ids)
        assert given is None or all(map(call.may_name, ids))
    if given is not None:
        assert not call.may_name("other")
        assert next(call.ids()) == given
    elif name in ("c", "a-b_C9") and parent in ("p", "a.b"):
        assert next(call.ids()) == f"{parent}.{name}-12"


def test_the_plain_id_is_exactly_that(echoing):
    """S60."""
    echoing.run(calls, ["c", "c", "load_data", "Load-2"], id="p")
    assert {"p.c-1", "p.c-2", "p.load_data-1", "p.Load-2-1"} == {one.id for one in echoing.engine.list("Echo")}


def test_an_id_that_was_given_is_that_of_one_call_only(echoing):
    """S60: the second call with it is no call for the first one's child."""

    async def run(event, step):
        first = await step.child("one", "Echo", 1, id="mine")
        try:
            return first, await step.child("two", "Echo", 2, id="mine")
        except AlreadyExistsError as error:
            return first, str(error)

    first, second = echoing.output(run)
    assert first == [1, "mine"]
    assert "'mine'" in second


def test_what_a_body_has_created_can_be_waited_for_by_its_id(echoing):
    """S60."""

    async def run(self, event, step):
        async def make():
            return (await self.env.Echo.create(id="mine", params=5)).id

        return await step.child("wait", "Echo", 5, id=await step.do("make", make))

    assert echoing.output(run) == [5, "mine"]


def test_the_entry_of_a_child_says_which_call_made_it(echoing):
    echoing.run(calls, ["c"], id="p")
    body = echoing.engine.get("p.c-1").history()[0].body
    assert body["parent"] == "p"
    assert body["parent_step"] == {"type": "child", "name": "c", "count": 1, "redone": 0}


def test_a_parent_that_was_deleted_and_created_anew_has_a_child_of_its_own(echoing):
    """S45: its id is free, those of its children are not."""
    echoing.run(calls, ["c"], id="u").delete()
    parent = echoing.run(calls, ["c"], id="u")
    (number, child_id), *_ = parent.output
    assert number == 0
    assert child_id.startswith("u.c-1-")
    echoing.finish(_restarted(parent))
    assert parent.output[0][1] == "u.c-1-r2"


def _restarted(instance, from_step=None):
    instance.restart(from_step)
    return instance


async def box_then_child(event, step):
    value = await step.do("box", BOX.copy)
    return await step.child("c", "Echo", value[0], **event.payload)


BOX = [1]


@pytest.mark.parametrize("given", [{}, {"id": "mine"}], ids=["plain", "given"])
@pytest.mark.parametrize("from_step", [None, "box", "c"])
def test_a_restart_runs_the_child_again(echoing, given, from_step):
    """S44: what it gives is of today's params, the old child is left as it is."""
    BOX[0] = 1
    parent = echoing.run(box_then_child, given, id="p")
    plain = given.get("id", "p.c-1")
    assert parent.output == [1, plain]
    for value in (2, 3):
        BOX[0] = value
        echoing.finish(_restarted(parent, from_step))
        assert parent.output == [1 if from_step == "c" else value, f"{plain}-r{value}"]
    assert echoing.engine.get(plain).output == [1, plain]


def test_a_restart_that_keeps_the_child_keeps_its_output(echoing):
    """S44."""

    async def run(event, step):
        return await step.child("c", "Echo", 1), await step.do("after", lambda: 2)

    parent = echoing.run(run, id="p")
    echoing.finish(_restarted(parent, "after"))
    assert parent.output == ([1, "p.c-1"], 2)
    assert len(echoing.engine.list("Echo")) == 1


@pytest.mark.parametrize("given", [{}, {"id": "mine"}], ids=["plain", "given"])
def test_a_restart_does_not_fail_with_the_error_of_the_old_child(echoing, given):
    BOX[0] = 1
    BROKEN.add(1)
    parent = echoing.run(box_then_child, given, id="p")
    assert parent.status().error.type == "InstanceFailedError"
    BROKEN.clear()
    echoing.finish(_restarted(parent))
    assert parent.output[0] == 1


def test_a_restart_while_the_child_runs_makes_another_and_leaves_it(echoing):
    """S44, S60: the old one is independent."""

    async def waits(event, step):
        return (await step.wait_for_event("w", "go")).payload

    async def run(event, step):
        return await step.child("c", "Waits")

    echoing.workflow(waits, "Waits")
    parent = echoing.start(run, id="p")
    eventually(lambda: parent.status().status is Status.WAITING)
    parent.restart()
    new = _wait_for(echoing.engine, "p.c-1-r2")
    eventually(lambda: new.status().status is Status.WAITING)
    echoing.engine.get("p.c-1").send_event("go", "old")
    new.send_event("go", "new")
    assert echoing.finish(parent).output == "new"


@pytest.mark.parametrize("value", [1, 2])
def test_a_resume_after_a_rollback_runs_the_child_again(echoing, value):
    """S48: what came after a step that was undone no longer counts as done."""

    async def run(event, step):
        box = await step.do("box", BOX.copy, rollback=lambda: None)
        child = await step.child("c", "Echo", box[0])
        await step.do("after", _echo, "after", "", retries=0)
        return child

    BOX[0] = 1
    BROKEN.add("after")
    parent = echoing.run(run, id="p")
    assert parent.status().status is Status.ERRORED
    BROKEN.clear()
    BOX[0] = value
    parent.resume()
    assert echoing.finish(parent).output == [value, "p.c-1-r2"]


def test_a_parent_whose_kernel_died_goes_on_with_the_same_child(echoing):
    """S60: also where it died after the child was created and before that was recorded of the parent."""
    gate = Gate(1)

    async def slow(event, step):
        return await step.do("slow", gate)

    async def run(event, step):
        return await step.child("load data", "Slow")

    echoing.workflow(slow, "Slow")
    parent = echoing.start(run, id="p")
    gate.reached()
    eventually(lambda: parent.status().status is Status.WAITING)
    entries = echoing.entries()
    started = next(n for n, entry in enumerate(entries) if entry.kind is Kind.CHILD_STARTED)
    of_child = [n for n, entry in enumerate(entries) if entry.body.get("workflow") == "Slow" and entry.kind is Kind.CREATED]
    assert of_child < [started]
    for count in (of_child[0] + 1, started + 1, len(entries)):
        later = echoing.revive(entries[:count], kernel_dies=False)
        gate.open()
        later.workflow(slow, "Slow")
        again = later.workflow(run)
        assert later.finish(again.get("p")).output == 1
        assert len(later.engine.list("Slow")) == 1


def test_a_resume_of_the_parent_resumes_the_child_that_failed(echoing):
    """S41: it goes on at the failed step; what the child has finished stays."""
    ran = []

    async def two(event, step):
        await step.do("first", ran.append, 1)
        return await step.do("second", _echo, event.payload, event.instance_id, retries=0)

    async def run(event, step):
        return await step.child("c", "Two", 5)

    echoing.workflow(two, "Two")
    BROKEN.add(5)
    parent = echoing.run(run, id="p")
    assert parent.status().status is Status.ERRORED
    parent.resume()  # nothing was mended: it fails again, and says so
    assert echoing.finish(parent).status().error.type == "InstanceFailedError"
    BROKEN.clear()
    parent.retry_failed()
    assert echoing.finish(parent).output == [5, "p.c-1"]
    assert ran == [1]
    retried = [entry for entry in echoing.engine.get("p.c-1").history() if entry.kind is Kind.RETRIED]
    assert retried[0].body["by"] == "step 'c' of W/p"


def test_a_resume_of_the_parent_takes_up_a_child_that_was_resumed_meanwhile(echoing):
    """S41."""
    BROKEN.add(0)
    parent = echoing.run(calls, ["c"], id="p")
    BROKEN.clear()
    child = echoing.engine.get("p.c-1")
    child.resume()
    echoing.finish(child)
    parent.resume()
    assert echoing.finish(parent).output == [[0, "p.c-1"]]
    assert kinds(child).count("retried") == 1


@pytest.mark.parametrize("given", [{}, {"id": "mine"}], ids=["plain", "given"])
def test_a_resume_with_other_params_makes_a_child_from_those(lab, given):
    """S58: the parent was mended, so the child of the old params is no child of this call."""
    lab.workflow(echo, "Echo")

    async def wrong(event, step):
        return await step.child("c", "Echo", "wrong", **event.payload)

    async def right(event, step):
        return await step.child("c", "Echo", "right", **event.payload)

    BROKEN.update(("wrong", "right"))
    parent = lab.run(wrong, given, id="p")
    lab.workflow(right)
    ids = set()
    for broken in (True, False):
        if not broken:
            BROKEN.clear()
        parent.resume()
        lab.finish(parent)
        assert (parent.status().status is Status.ERRORED) is broken
    params, child_id = parent.output
    ids = {one.id for one in lab.engine.list("Echo")}
    assert params == "right"
    assert ids == {given.get("id", "p.c-1"), child_id}
    assert len(ids) == 2


def test_a_child_that_was_deleted_is_made_anew_by_a_resume(echoing):
    BROKEN.add(0)
    parent = echoing.run(calls, ["c"], id="p")
    BROKEN.clear()
    echoing.engine.get("p.c-1").delete()
    parent.resume()
    assert echoing.finish(parent).output == [[0, "p.c-1"]]


def test_a_parent_whose_child_is_deleted_while_it_waits_is_told_so(lab):
    """S45, S60: as whoever awaits the child is."""

    async def kid(event, step):
        await step.wait_for_event("w", "never")

    async def run(event, step):
        return await step.child("c", "Kid")

    lab.workflow(kid, "Kid")
    for _ in range(10):  # by chance it was not noticed in time
        parent = lab.start(run, id="p")
        eventually(lambda: lab.engine.list("Kid") and lab.engine.get("p.c-1").status().status == "waiting")
        lab.engine.get("p.c-1").delete()
        error = lab.finish(parent).status().error
        assert error.type == "InstanceFailedError"
        assert error.message == "child 'p.c-1' of workflow 'Kid' was deleted; resume its parent to have it made anew"
        parent.delete()


def test_an_instance_that_has_taken_the_id_of_a_deleted_child_is_not_its_parents(echoing):
    """S45: the id is free."""
    BROKEN.add(0)
    parent = echoing.run(calls, ["c"], id="p")
    BROKEN.clear()
    echoing.engine.get("p.c-1").delete()
    echoing.finish(echoing.engine.workflow("Echo").create("p.c-1", "somebody else's"))
    parent.resume()
    (params, child_id), *_ = echoing.finish(parent).output
    assert params == 0
    assert child_id.startswith("p.c-1-")


def test_a_child_that_was_deleted_while_its_parents_kernel_was_gone_fails_its_parent(lab):
    async def waits(event, step):
        return (await step.wait_for_event("w", "go", timeout="300 days")).payload

    async def run(event, step):
        return await step.child("c", "Waits")

    lab.workflow(waits, "Waits")
    parent = lab.start(run, id="p")
    eventually(lambda: parent.status().status is Status.WAITING)
    later = lab.revive()
    again = later.workflow(waits, "Waits")
    again.get("p.c-1").delete()
    again.create("p.c-1")
    parent = later.finish(later.workflow(run).get("p"))
    assert (parent.status().error.type, "was deleted" in parent.status().error.message) == ("InstanceFailedError", True)


def test_a_terminated_child_says_what_to_do_and_its_parent_takes_it_up_again(engine):
    parent = engine.workflow("Parent").create(id="p", params={"n": 1, "wait": True})
    child = _wait_for(engine, "p.make-one-1")
    child.wait(10)
    child.terminate()
    assert "restart it" in parent.wait(10, until="finished").error.message
    child.restart()
    child.wait(10)
    child.send_event("go")
    child.wait(10, until="finished")
    parent.resume()
    assert parent.wait(10, until="finished").output == 2


def test_a_child_whose_cancelled_call_is_wanted_after_all_is_the_same(lab):
    """S21: the code was changed, so that nothing cancels it any more."""

    async def waits(event, step):
        return (await step.wait_for_event("w", "go", timeout="300 days")).payload

    async def raced(event, step):
        child = asyncio.ensure_future(step.child("c", "Waits"))
        await step.sleep("limit", "1 hour")
        child.cancel()
        return await step.wait_for_event("w", "go", timeout="300 days")

    async def patient(event, step):
        child = asyncio.ensure_future(step.child("c", "Waits"))
        await step.sleep("limit", "1 hour")
        return await child

    lab.workflow(waits, "Waits")
    parent = lab.start(raced, id="p")
    lab.idle()
    lab.advance("1 hour")
    eventually(lambda: parent.steps[0].status == "cancelled")
    lab.idle()
    later = lab.revive()
    later.workflow(waits, "Waits")
    again = later.workflow(patient)
    later.idle()
    later.engine.get("p.c-1").send_event("go", 5)
    assert later.finish(again.get("p")).output == 5
    assert len(later.engine.list("Waits")) == 1


def _without_calls(entries):
    """As histories were before the entries of children said which call had made them."""
    for entry in entries:
        body = {name: value for name, value in entry.body.items() if name != "parent_step"}
        if entry.kind is Kind.CHILD_FAILED:
            body = {name: value for name, value in body.items() if name not in ("id", "workflow")}
        yield msgspec.structs.replace(entry, body=body)


def test_children_of_older_histories_are_found_again(echoing):
    """One that was created and not yet recorded as waited for, and one that failed and was resumed."""
    echoing.run(calls, ["c"], id="p")
    entries = list(_without_calls(echoing.entries()))
    created = next(n for n, entry in enumerate(entries) if entry.body.get("id") == "p.c-1")
    later = echoing.revive(entries[: created + 1], kernel_dies=False)
    later.workflow(echo, "Echo")
    assert later.finish(later.workflow(calls).get("p")).output == [[0, "p.c-1"]]

    BROKEN.add(0)
    echoing.run(calls, ["c"], id="q")
    BROKEN.clear()
    later = echoing.revive(list(_without_calls(echoing.entries())))
    later.workflow(echo, "Echo")
    parent = later.workflow(calls).get("q")
    later.engine.get("q.c-1").resume()
    later.finish(later.engine.get("q.c-1"))
    parent.resume()
    assert later.finish(parent).output == [[0, "q.c-1"]]


def test_a_child_of_an_older_history_is_not_taken_by_another_call(echoing):
    """`load data` and `load-data` had one id."""
    echoing.run(calls, ["load-data"], id="p")
    entries = list(_without_calls(echoing.entries()))
    entries = [msgspec.structs.replace(e, step="load data") if e.step == "load-data" else e for e in entries]
    last = next(n for n, entry in enumerate(entries) if entry.kind is Kind.CHILD_FINISHED)
    later = echoing.revive(entries[: last + 1])
    later.workflow(echo, "Echo")

    async def both(event, step):
        return [await step.child("load data", "Echo", 0), await step.child("load-data", "Echo", 7)]

    first, second = later.finish(later.workflow(both).get("p")).output
    assert first == [0, "p.load-data-1"]
    assert second[0] == 7
    assert second[1] != "p.load-data-1"


def test_the_error_of_a_child_has_the_same_cause_the_first_time_as_on_replay(echoing):
    """API.md §4, §9: that of the step which failed; and no note of attempts, for a child has none."""
    seen = []

    async def run(event, step):
        try:
            await step.child("c", "Echo", 1)
        except InstanceFailedError as error:
            cause = error.__cause__
            seen.append((str(error), type(cause), str(cause), cause.__notes__, getattr(error, "__notes__", None)))
        return await step.do("p", lambda: 1)

    BROKEN.add(1)
    parent = echoing.run(run, id="p")
    echoing.finish(_restarted(parent, "p"))
    first, again = seen
    assert first == again
    text, cause, *_, notes = first
    assert issubclass(cause, ValueError)
    assert text.startswith("instance 'p.c-1' errored: ValueError: broken (step 'echo' failed after 1 attempt)")
    assert notes is None


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_parent_that_leaves_a_child_while_it_is_being_created_ends(echoing, turns):  # S21
    async def run(event, step):
        task = asyncio.ensure_future(step.child("c", "Echo", 1))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        return "left"

    assert echoing.output(run) == "left"
