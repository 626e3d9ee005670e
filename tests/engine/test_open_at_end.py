"""Steps that stand open when their instance, or the map whose items they are, is over: SQL and Python tell the same of them."""

import asyncio
import threading

from nbflow import NonRetryableError
from tests.engine.conftest import eventually


def told_by_sql(lab, view):
    columns = "name, key, status, ended_at" if view == "steps" else "name, key, attempt, status, ended_at"
    return {tuple(row[:-2]): tuple(row[-2:]) for row in lab.engine.sql(f"select {columns} from {view}").fetchall()}


def told_by_python(instance, *maps):
    steps = instance.steps + [item for name in maps for item in instance.items(name)[1]]
    told = {(step.key.name, step.key.key): (step.status.value, step.ended_at) for step in steps}
    tries = {
        (step.key.name, step.key.key, each.number): (each.status.value, each.ended_at)
        for step in steps
        for each in step.attempts
    }
    return told, tries


def test_items_of_a_stream_that_is_left_are_cancelled_in_every_view(lab):  # S21
    forever = asyncio.Event

    async def body(item):
        if item:
            await forever().wait()
        return item

    async def run(event, step):
        async for _ in step.map("m", body, range(6), concurrency=3):
            break
        await step.wait_for_event("ask", "go")
        await step.do("after", lambda: 1)

    instance = lab.start(run)
    eventually(lambda: instance.status().status == "waiting")
    lab.idle()
    assert lab.engine.sql("select status from instances").fetchall() == [("waiting",)]
    steps, tries = told_by_python(instance, "m")
    left = steps["m", None]
    assert left[0] == "cancelled"
    assert [steps["m", str(n)] for n in range(1, 4)] == [left, left, left]
    assert tries["m", "1", 1] == left
    assert (told_by_sql(lab, "steps"), told_by_sql(lab, "attempts")) == (steps, tries)
    assert [item.key.key for item in instance.items("m", state="cancelled")[1]] == ["1", "2", "3"]
    assert instance.items("m", state="running") == (0, [])
    instance.send_event("go")
    lab.finish(instance)
    assert (told_by_sql(lab, "steps"), told_by_sql(lab, "attempts")) == told_by_python(instance, "m")


def waits(step):
    return [step.sleep("nap", 100), step.wait_for_event("ask", "go")]


def tries_again():
    raise ValueError


def test_what_is_open_when_an_instance_is_terminated_was_interrupted_then(lab):
    held = threading.Event()

    async def run(event, step):
        again = {"limit": 3, "delay": 100}
        body, ret = step.do("body", held.wait), step.do("ret", tries_again, retries=again)
        await asyncio.gather(body, ret, *waits(step), step.map("m", lambda item: 1 / item, [1, 0], retries=again))

    instance = lab.start(run)
    eventually(
        lambda: len(instance.steps) == 5 and [item.status for item in instance.items("m")[1]] == ["finished", "retrying"]
    )
    eventually(lambda: instance.step("ret").status == "retrying")
    assert instance.step("nap").due_at is not None
    instance.terminate()
    held.set()
    lab.idle()
    ended = instance.view().ended_at
    steps, tries = told_by_python(instance, "m")
    done = ("m", "0")
    opened = [("body", None), ("ret", None), ("nap", None), ("ask", None), ("m", None), ("m", "1")]
    assert {key: told for key, told in steps.items() if key != done} == dict.fromkeys(opened, ("interrupted", ended))
    assert tries["body", None, 1] == ("interrupted", ended)
    assert (told_by_sql(lab, "steps"), told_by_sql(lab, "attempts")) == (steps, tries)
    view = instance.view()
    assert (view.running, view.retrying, view.work.running, view.work.retrying) == (0, 0, 0, 0)
    assert instance.step("m").items.retrying == 0
    assert instance.step("nap").due_at is None
    assert lab.engine.sql("from steps where status in ('running', 'retrying', 'sleeping', 'waiting')").fetchall() == []


def test_a_step_that_was_open_when_its_instance_errored_goes_on_as_itself_when_that_is_resumed(lab):
    broken = [True]

    def ends():
        if broken[0]:
            raise NonRetryableError

    async def run(event, step):
        await asyncio.gather(*waits(step), step.do("ends", ends))

    instance = lab.run(run)
    steps, tries = told_by_python(instance)
    ended = instance.view().ended_at
    assert steps == {
        ("nap", None): ("interrupted", ended),
        ("ask", None): ("interrupted", ended),
        ("ends", None): ("failed", steps["ends", None][1]),
    }
    assert (told_by_sql(lab, "steps"), told_by_sql(lab, "attempts")) == (steps, tries)
    broken[0] = False
    instance.resume()
    eventually(lambda: [step.status for step in instance.steps if step.key.name == "ends"] == ["finished"])
    lab.idle()
    assert [instance.step(name).status.value for name in ("nap", "ask")] == ["sleeping", "waiting"]
    steps, tries = told_by_python(instance)
    assert (told_by_sql(lab, "steps"), told_by_sql(lab, "attempts")) == (steps, tries)


def test_an_item_that_waited_for_another_try_when_its_map_failed_is_not_retrying(lab):
    def body(item):
        if item == "ends":
            raise NonRetryableError
        raise ValueError

    async def run(event, step):
        try:
            await step.map("m", body, ["again", "ends"], retries={"limit": 3, "delay": 100})
        except NonRetryableError:
            await step.wait_for_event("ask", "go")

    instance = lab.start(run)
    eventually(lambda: instance.status().status == "waiting" and len(instance.steps) == 2)
    lab.idle()
    steps, tries = told_by_python(instance, "m")
    assert steps["m", "0"] == ("interrupted", None)
    assert (told_by_sql(lab, "steps"), told_by_sql(lab, "attempts")) == (steps, tries)
