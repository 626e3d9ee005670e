"""Creation, the engine's own life, undecodable values, changed code, notifications (S1 to S5, S17, S51 to S58)."""

import asyncio
import dataclasses
import datetime as dt
import logging
import threading

import pytest

from nbflow import (
    AlreadyExistsError,
    Engine,
    InvalidStatusError,
    NotFoundError,
    NotSerialisableError,
    UsageError,
    WaitTimeoutError,
    WorkflowEntrypoint,
)
from nbflow.core.model import Status, StepState
from nbflow.values import classes
from tests.engine.conftest import Gate, eventually, failure_of, kinds
from tests.engine.test_sleeps_and_events import waits


async def nothing(event, step):
    return event.payload


# -- identity and creation --------------------------------------------------------------------------------------------


def test_new_ids_are_unique_sortable_and_begin_with_the_workflow(lab):  # S1
    workflow = lab.workflow(nothing, "Ingest")
    ids = [workflow.create().id for _ in range(50)]
    assert len(set(ids)) == 50
    assert all(one.startswith("ingest-") for one in ids)
    prefix = len("ingest-") + 10
    assert [one[:prefix] for one in ids] == sorted(one[:prefix] for one in ids)


def test_create_returns_once_the_instance_is_there_and_before_run_ends(lab):  # S1
    gate = Gate()

    async def run(event, step):
        await step.do("s", gate)

    instance = lab.start(run, id="one")
    assert kinds(instance)[:2] == ["created", "claimed"]
    assert not instance.is_finished()
    gate.open()


@pytest.mark.parametrize("good", ["a", "_", "0", "A-b_c.9", "lr0.01-d3", "x" * 100])
def test_instance_ids_that_are_allowed(lab, good):  # S2
    assert lab.run(nothing, id=good).id == good


@pytest.mark.parametrize("bad", ["", "-a", ".a", "a b", "a/b", "ü", "a\n", "x" * 101, 5, b"a"])
def test_instance_ids_that_are_refused_before_anything_is_stored(lab, bad):  # S2
    workflow = lab.workflow(nothing)
    with pytest.raises(UsageError, match="instance id"):
        workflow.create(bad)
    assert lab.entries() == []


@pytest.mark.parametrize("bad", ["", "-a", "a.b", "x" * 65, "a b"])
def test_workflow_names_that_are_refused(lab, bad):  # S2
    with pytest.raises(UsageError, match="workflow name"):
        lab.workflow(nothing, bad)


@pytest.mark.parametrize("finished", [True, False])
def test_an_id_in_use_is_refused_and_the_first_is_untouched(lab, finished):  # S3
    first = lab.start(nothing if finished else waits("ask"), {"x": 1}, id="one")
    lab.idle()
    before = first.history()
    with pytest.raises(AlreadyExistsError, match="'one'"):
        lab.engine.workflow("W").create("one", {"x": 2})
    assert first.history() == before
    assert first.params == {"x": 1}


def test_a_batch_is_created_whole_or_not_at_all(lab):  # S3
    workflow = lab.workflow(nothing)
    for bad in ({"id": "not good"}, {"id": "b", "parms": 1}, {"params": threading.Lock()}):
        with pytest.raises((UsageError, NotSerialisableError)):
            workflow.create_batch([{"id": "a"}, bad])
        assert lab.entries() == []


def test_a_batch_gives_created_and_found_ones_in_order(lab):  # S3
    workflow = lab.workflow(nothing)
    lab.finish(workflow.create("b", 0))
    many = workflow.create_batch(
        [{"id": "a", "params": 1}, {"id": "b", "params": 2}, {"id": "c"}, {}, {"id": "a", "params": 9}]
    )
    many.wait(10)
    assert [one.id for one in many][:3] == ["a", "b", "c"]
    assert many.outputs() == [1, 0, {}, {}, 1]
    assert [one.id for one in workflow.create_batch([{"id": "b"}, {"id": "d"}], existing="skip")] == ["d"]
    assert workflow.create_batch([]) == []
    with pytest.raises(UsageError, match="'maybe'"):
        workflow.create_batch([], existing="maybe")


def test_the_same_id_under_two_workflows_is_two_instances(lab):  # S3
    one, two = lab.run(nothing, 1, id="a", name="Ingest"), lab.run(nothing, 2, id="a", name="Publish")
    assert (one.output, two.output) == (1, 2)
    with pytest.raises(UsageError, match=r"Ingest/a.*Publish/a"):
        lab.engine.get("a")
    assert lab.engine.get("Publish/a").output == 2
    assert lab.engine.workflow("Ingest").get("a").output == 1
    assert lab.engine.instance("Publish").id == "a"


def test_workflow_and_id_are_accepted_wherever_an_id_is_taken(lab):  # S3
    one, two = lab.run(nothing, 1, id="a", name="Ingest"), lab.run(nothing, 2, id="a", name="Publish")
    ingest, publish = lab.engine.workflow("Ingest"), lab.engine.workflow("Publish")
    assert ingest.get("Ingest/a").output == lab.engine.get("Ingest/a", "Ingest").output == 1
    assert lab.engine.instance("Publish/a").output == publish.get("Publish/a").output == 2

    async def through_env(self, event, step):
        return (await self.env.Publish.get("Publish/a")).id

    assert lab.run(through_env, name="Asks").output == "a"
    assert lab.engine.open(ingest, "Ingest/a", 1).instance.created_seq == one.created_seq
    assert lab.engine.open(publish, "a", 2).instance.created_seq == two.created_seq


def test_an_id_with_the_name_of_another_workflow_is_refused_and_says_whose_it_is(lab):  # S3
    lab.run(nothing, 1, id="a", name="Ingest")
    publish = lab.workflow(nothing, "Publish")
    with pytest.raises(NotFoundError, match=r"'Ingest/a' of workflow 'Publish': that is one of workflow 'Ingest'"):
        publish.get("Ingest/a")
    with pytest.raises(
        UsageError, match=r"'Ingest/a' is not allowed: it names workflow 'Ingest', and this is workflow 'Publish'"
    ):
        lab.engine.open(publish, "Ingest/a")
    with pytest.raises(NotFoundError, match=r"no instance 'b' of workflow 'Publish'"):
        publish.get("Publish/b")
    with pytest.raises(UsageError, match="1 to 100"):
        publish.create("Publish/b")
    assert publish.list() == []


def test_lists_are_newest_first_and_by_status(lab):
    workflow = lab.workflow(waits("ask"))
    for name in "abc":
        workflow.create(name)
    lab.idle()
    workflow.get("b").send_event("go")
    lab.idle()
    assert [one.id for one in workflow.list()] == ["c", "b", "a"]
    assert [one.id for one in workflow.list(limit=2)] == ["c", "b"]
    assert [one.id for one in workflow.list(status="complete")] == ["b"]
    assert [one.id for one in workflow.list(status=Status.WAITING)] == ["c", "a"]
    with pytest.raises(UsageError, match="'done'"):
        workflow.list(status="done")


def test_unknown_workflows_and_instances_are_named_with_what_there_is(lab):
    lab.workflow(nothing, "Ingest")
    with pytest.raises(NotFoundError, match=r"'Publish'.*Ingest"):
        lab.engine.workflow("Publish")
    with pytest.raises(NotFoundError, match="'nobody'"):
        lab.engine.get("nobody")
    instance = lab.run(nothing, name="Ingest")
    with pytest.raises(NotFoundError, match="'s'"):
        instance.step("s")


async def _yields(self, event, step):
    yield 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: 5, "5"),
        (lambda: type("A", (), {}), "WorkflowEntrypoint"),
        (lambda: type("A", (WorkflowEntrypoint,), {}), "no `run`"),
        (lambda: type("A", (WorkflowEntrypoint,), {"run": lambda self, event, step: 1}), "plain def"),
        (lambda: type("A", (WorkflowEntrypoint,), {"run": _yields}), "has a `yield` in it"),
    ],
)
def test_what_is_no_workflow_is_refused_with_advice(lab, make, words):
    with pytest.raises(UsageError, match=words):
        lab.engine.register(make())


def test_output_of_an_unfinished_instance_says_to_await_it(lab):
    instance = lab.start(waits("ask"))
    with pytest.raises(InvalidStatusError, match="await"):
        _ = instance.output


def test_an_instance_can_be_awaited_on_any_loop(lab):
    instance = lab.start(waits("ask"))
    threading.Timer(0.02, instance.send_event, ("go", 1)).start()

    async def main():
        return await instance

    assert asyncio.run(main()) == [1]


def test_awaiting_a_failed_instance_raises_with_the_error_as_cause(lab):
    async def run(event, step):
        raise KeyError("x")

    instance = lab.run(run)

    async def main():
        await instance

    with pytest.raises(Exception, match="KeyError") as caught:
        asyncio.run(main())
    assert type(caught.value).__name__ == "InstanceFailedError"
    assert isinstance(caught.value.__cause__, KeyError)


# -- status -----------------------------------------------------------------------------------------------------------


def test_status_tells_running_waiting_and_complete(lab):  # S5
    gate = Gate()

    async def run(event, step):
        await step.do("s", gate)
        await step.sleep("nap", "1 hour")
        return 5

    instance = lab.start(run)
    gate.reached()
    assert instance.status().status == "running"
    assert instance.status().waiting_for == ()
    gate.open()
    lab.idle()
    assert instance.status().status == "waiting"
    lab.advance("1 hour")
    status = instance.status()
    assert (status.status, status.output, status.error, status.waiting_for, status.interrupted) == (
        "complete",
        5,
        None,
        (),
        None,
    )


def test_an_instance_sleeping_and_working_at_once_is_running(lab):  # S5
    gate = Gate()

    async def run(event, step):
        await asyncio.gather(step.do("s", gate), step.sleep("nap", "1 hour"))

    instance = lab.start(run)
    gate.reached()
    assert instance.status().status == "running"
    gate.open()
    lab.idle()
    assert instance.status().status == "waiting"


# -- notify -----------------------------------------------------------------------------------------------------------


def test_notify_is_called_once_each_and_never_in_a_replay(make_lab):  # API.md §4
    told = []
    lab = make_lab(notify=lambda instance, what: told.append((instance.id, what)))
    run = waits("ask", "again")
    lab.start(run, id="one")
    eventually(lambda: told == [("one", "waiting")])
    later = lab.revive()
    later.workflow(run)
    later.idle()
    instance = later.engine.get("one")
    instance.send_event("go")
    eventually(lambda: len(told) == 2)
    instance.send_event("go")
    eventually(lambda: len(told) == 3)
    assert told == [("one", "waiting"), ("one", "waiting"), ("one", "complete")]

    async def bad(event, step):
        raise ValueError

    later.run(bad, id="two", name="Bad")
    eventually(lambda: told[3:] == [("two", "errored")])


def test_a_notify_that_fails_hurts_nobody(make_lab, caplog):
    def notify(instance, what):
        raise ValueError("no network")

    lab = make_lab(notify=notify)
    assert lab.run(nothing, 7).output == 7
    eventually(lambda: "no network" in caplog.text)


# -- undecodable values -----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Doc:
    text: str


@pytest.fixture
def doc_is_gone(monkeypatch):
    """Take the class away and give it back, as a new kernel does until the cell has run."""

    class Switch:
        def gone(self):
            monkeypatch.delitem(globals(), "Doc")
            if hasattr(classes.find_class, "cache_clear"):
                classes.find_class.cache_clear()

        def back(self):
            monkeypatch.setitem(globals(), "Doc", Doc_)

    Doc_ = Doc
    yield Switch()
    globals()["Doc"] = Doc_


def make_doc():
    return Doc("x")


async def with_doc(event, step):
    doc = await step.do("load", make_doc)
    await step.wait_for_event("ask", "go")
    return doc.text


@pytest.mark.parametrize("how", ["cell", "resume"])
def test_a_value_that_cannot_be_decoded_now_interrupts_and_goes_on_when_it_can(lab, doc_is_gone, how):  # S17
    lab.start(with_doc, id="one")
    lab.idle()
    doc_is_gone.gone()
    later = lab.revive()
    later.workflow(with_doc)
    later.idle()
    instance = later.engine.get("one")
    status = instance.status()
    assert status.interrupted == 'needs class tests.engine.test_life.Doc (step "load")'
    assert not instance.is_finished()
    assert instance.is_settled()
    assert instance.step("load").status is StepState.FINISHED
    doc_is_gone.back()
    later.workflow(with_doc) if how == "cell" else instance.resume()
    later.idle()
    assert instance.status().interrupted is None
    instance.send_event("go")
    later.idle()
    assert instance.output == "x"


def test_an_interrupted_instance_can_be_terminated(lab, doc_is_gone):  # S17
    lab.start(with_doc, id="one")
    lab.idle()
    doc_is_gone.gone()
    later = lab.revive()
    later.workflow(with_doc)
    later.idle()
    instance = later.engine.get("one")
    instance.terminate()
    assert instance.status().status == "terminated"


def test_an_interrupted_instance_holds_no_slot(make_lab, doc_is_gone):  # S5, S17
    lab = make_lab(max_running=1)
    lab.start(with_doc, id="one")
    lab.idle()
    doc_is_gone.gone()
    later = lab.revive()
    later.workflow(with_doc)
    later.idle()
    assert later.engine.get("one").status().interrupted is not None
    assert later.run(nothing, 5, name="Other").output == 5


def test_interruptions_are_no_deaths(lab, doc_is_gone):  # S17, S27
    lab.start(with_doc, id="one")
    lab.idle()
    doc_is_gone.gone()
    later = lab
    for _ in range(4):
        later = later.revive()
        later.workflow(with_doc)
        later.idle()
    assert not later.engine.get("one").is_finished()
    doc_is_gone.back()
    later.engine.retry_interrupted()
    later.engine.get("one").send_event("go")
    eventually(lambda: later.engine.get("one").is_finished())
    assert later.engine.get("one").output == "x"


# -- resuming, closing ------------------------------------------------------------------------------------------------


def test_registering_resumes_unfinished_instances_of_this_notebook(lab):  # S51
    lab.start(waits("ask"), id="one")
    lab.idle()
    later = lab.revive()
    later.workflow(waits("ask"))
    later.idle()
    assert later.engine.get("one").view().here
    assert later.engine.get("one").status().interrupted is None


def test_an_instance_of_another_notebook_with_other_code_waits_for_resume(lab):  # S51
    lab.start(waits("ask"), id="one")
    lab.idle()
    later = lab.revive(notebook="b.ipynb")

    async def other(event, step):
        return (await step.wait_for_event("ask", "go")).payload

    later.workflow(other)
    later.idle()
    instance = later.engine.get("one")
    assert not instance.view().here
    assert "a.ipynb" in instance.status().interrupted
    instance.resume()
    later.idle()
    assert instance.view().here
    instance.send_event("go", 5)
    later.idle()
    assert instance.output == 5


def test_an_instance_of_another_notebook_with_the_same_code_is_resumed(lab):  # S51
    lab.start(waits("ask"), id="one")
    lab.idle()
    later = lab.revive(notebook="b.ipynb")
    later.workflow(waits("ask"))
    later.idle()
    assert later.engine.get("one").view().here


def test_finished_instances_rest_after_a_death(lab):  # S51
    lab.run(nothing, id="one")
    later = lab.revive()
    before = len(later.entries())
    later.workflow(nothing)
    later.idle()
    assert len(later.entries()) == before
    assert later.engine.get("one").output == {}


def test_a_closed_engine_refuses_and_closing_twice_is_fine(lab):  # S54
    workflow = lab.workflow(nothing)
    instance = workflow.create("one")
    lab.idle()
    lab.engine.close()
    lab.engine.close()
    for act in (
        workflow.create,
        instance.pause,
        lambda: lab.engine.get("one"),
        lambda: lab.engine.register(WorkflowEntrypoint),
    ):
        with pytest.raises(InvalidStatusError, match="closed"):
            act()


def test_closing_lets_a_body_in_flight_end_and_leaves_the_instance_resumable(lab):  # S54
    gate = Gate("done")
    ran = []

    async def run(event, step):
        value = await step.do("s", gate)
        await step.do("next", lambda: ran.append("next"))
        return value

    lab.start(run, id="one")
    gate.reached()
    closing = threading.Thread(target=lab.engine.close, args=(10,))
    closing.start()
    gate.open()
    closing.join(10)
    assert ran == []
    entries = lab.entries()
    assert [e.kind for e in entries][-2:] == ["do.finished", "released"]
    later = lab.revive(kernel_dies=False)
    later.workflow(run)
    assert later.finish(later.engine.get("one")).output == "done"
    assert ran == ["next"]
    assert gate.came == 1


def test_an_orderly_close_is_no_death(lab):  # S27, S54
    gate = Gate()

    async def run(event, step):
        await step.do("s", lambda ctx: gate())

    lab.start(run, id="one")
    gate.reached()
    lab.engine.close(timeout=0.1)
    assert lab.entries()[-1].kind == "released"
    gate.open()


def test_the_engine_is_a_context_manager():
    with Engine(":memory:") as engine:
        assert not engine.closed
    assert engine.closed


def test_blocking_code_in_run_does_not_keep_control_methods_from_answering(lab):  # S55
    blocked, go = threading.Event(), threading.Event()

    async def run(event, step):
        await step.do("s", lambda: 1)
        blocked.set()
        go.wait(10)
        await step.do("next", lambda: 2)

    instance = lab.start(run)
    assert blocked.wait(10)
    assert instance.status().status == "running"
    instance.terminate()
    assert instance.status().status == "terminated"
    go.set()
    lab.idle()
    assert [s.name for s in instance.steps] == ["s"]


# -- changed code -----------------------------------------------------------------------------------------------------


def test_a_waiting_instance_goes_on_with_the_new_code(lab):  # S58
    async def before(event, step):
        await step.wait_for_event("ask", "go")
        return "old"

    async def after(event, step):
        await step.wait_for_event("ask", "go")
        return "new"

    instance = lab.start(before)
    lab.idle()
    lab.workflow(after)
    instance.send_event("go")
    lab.idle()
    assert instance.output == "new"


def test_a_running_instance_keeps_its_class_to_the_end_of_the_activation(lab):  # S58
    gate = Gate()

    async def before(event, step):
        await step.do("s", gate)
        return "old"

    async def after(event, step):
        return "new"

    instance = lab.start(before)
    gate.reached()
    lab.workflow(after)
    gate.open()
    assert lab.finish(instance).output == "old"


def test_pause_and_resume_change_over_to_the_new_class(lab):  # S58
    gate = Gate()

    async def before(event, step):
        await step.do("s", gate)
        return "old"

    async def after(event, step):
        await step.do("s", gate)
        return "new"

    instance = lab.start(before)
    gate.reached()
    lab.workflow(after)
    instance.pause()
    gate.open()
    eventually(lambda: instance.status().status == "paused")
    instance.resume()
    assert lab.finish(instance).output == "new"
    assert gate.came == 1


def test_under_new_code_a_step_in_its_retry_delay_is_tried_at_once_and_its_attempts_count_anew(lab):  # S13, S58
    tried = []

    def body():
        tried.append(lab.clock.monotonic())
        raise ValueError

    async def before(event, step):
        await step.do("s", body, retries={"limit": 1, "delay": "1 hour"})

    async def after(event, step):
        await step.do("s", body, retries={"limit": 2, "delay": "1 minute", "backoff": "constant"})

    instance = lab.start(before)
    lab.advance("10 minutes")
    lab.workflow(after)
    lab.idle()
    lab.advance("1 day")
    assert instance.is_finished()
    assert tried == [0, 600, 660, 720]
    assert len(instance.step("s").attempts) == 4


def test_registering_the_same_code_again_changes_nothing(lab):  # S58
    tops = []

    async def run(event, step):
        tops.append(1)
        await step.wait_for_event("ask", "go")

    instance = lab.start(run)
    lab.idle()
    lab.workflow(run)
    lab.workflow(run)
    lab.idle()
    assert tops == [1]
    assert instance.status().status == "waiting"


# -- threads ----------------------------------------------------------------------------------------------------------


def test_at_most_so_many_plain_bodies_run_at_once(make_lab):  # API.md, where code runs
    lab = make_lab(max_threads=3)
    gate = Gate()

    async def run(event, step):
        await asyncio.gather(*(step.do(f"s{n}", gate) for n in range(10)))

    instance = lab.start(run)
    gate.reached(3)
    lab.engine.on_loop(lambda: None)
    assert gate.came == 3
    gate.open()
    lab.finish(instance)
    assert gate.came == 10


def test_body_threads_are_daemons_and_reused(lab):
    names = []

    async def run(event, step):
        for n in range(5):
            await step.do(f"s{n}", lambda: names.append((threading.current_thread().name, threading.current_thread().daemon)))

    lab.run(run)
    assert len(set(names)) == 1
    assert names[0][1] is True


def test_env_gives_workflows_and_values_and_names_what_it_has(make_lab):  # API.md §5
    lab = make_lab(env={"db": "connection"})
    lab.workflow(nothing, "Child")

    async def run(self, event, step):
        child = await self.env.Child.create(id="c1", params={"x": 1})
        found = await self.env.Child.get("c1")
        status = None
        while status != "complete":
            status = (await found.status()).status

        def plain():
            return self.env.Child.get("c1").output, self.env["db"]

        try:
            _ = self.env.Nobody
        except AttributeError as error:
            return child.id, await step.do("plain", plain), str(error)

    instance = lab.run(run)
    child, plain, message = instance.output
    assert (child, plain) == ("c1", ({"x": 1}, "connection"))
    for word in ("'Nobody'", "Child", "db"):
        assert word in message


def test_nothing_is_logged_by_asyncio_when_all_goes_well_or_wrong(lab, caplog):
    import gc

    async def run(event, step):
        tasks = [asyncio.ensure_future(step.do(f"s{n}", lambda: 1 / 0, retries=0)) for n in range(3)]
        try:
            await asyncio.gather(*tasks)
        except ZeroDivisionError:
            pass
        tasks.append(asyncio.ensure_future(step.wait_for_event("ask", "go")))
        raise KeyError("out")

    with caplog.at_level(logging.WARNING, "asyncio"):
        instance = lab.run(run)
        waiting = lab.start(waits("ask"), name="Other")
        lab.idle()
        waiting.pause()
        waiting.terminate()
        lab.idle()
        gc.collect()
    assert isinstance(failure_of(instance), KeyError)
    assert caplog.records == []


def test_a_wait_for_an_instance_that_nobody_runs_says_so(tmp_path):
    with Engine(tmp_path / "h.duckdb", notebook="a.ipynb") as engine:
        engine.register(AsksTwice).create(id="one").wait(10)
    with (
        Engine(tmp_path / "h.duckdb", notebook="b.ipynb") as other,
        pytest.raises(WaitTimeoutError, match=r"nobody runs it.*resume"),
    ):
        other.get("one").wait(0.2, until="finished")


class AsksTwice(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.wait_for_event("w", "go")


@pytest.mark.parametrize("limit", [-1, None, 1.5, "3"])
def test_a_limit_that_is_none_is_refused_by_its_name(lab, limit):
    workflow = lab.workflow(nothing)
    for listed in (workflow.list, lab.engine.list):
        with pytest.raises(UsageError, match=r"list\(limit="):
            listed(limit=limit)
    assert workflow.list(limit=0) == []
    assert len(lab.engine.list(limit=10**20)) == len(lab.engine.list())


def test_a_wait_takes_any_duration_and_refuses_what_is_none(lab):
    instance = lab.start(asks_later)
    for wait in (instance.wait, lab.engine.list().wait):
        for timeout in ("10 ms", dt.timedelta(milliseconds=10), 0.01):
            with pytest.raises(WaitTimeoutError, match=r"after 0\.0"):
                wait(timeout, "finished")
        for timeout in ("soon", True, object(), float("nan"), -1, -0.001, float("-inf"), "-1 second"):
            with pytest.raises(UsageError, match=r"wait\(timeout=\)"):
                wait(timeout)
    done = lab.start(nothing)
    for endless in (None, float("inf"), 10**400):
        done.wait(endless)


async def asks_later(event, step):
    await step.sleep("z", "1 hour")
