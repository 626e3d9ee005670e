"""`step.map`: one durable step per item (API.md §6, S57, S61)."""

import asyncio
import threading
from datetime import timedelta

import duckdb
import pytest

from nbflow import Engine, Instances, InvalidStatusError, NonRetryableError, UsageError, WorkflowEntrypoint
from nbflow.core.model import Kind, Status
from nbflow.engine.maps.commits import Commits
from nbflow.store.counts import Work
from tests.engine.conftest import Gate, entrypoint, eventually, failure_of, source_of


async def square(x):
    return x * x


class Bench:
    """Bodies that note what they are given, and fail where they are told to."""

    def __init__(self, *broken):
        self.ran, self.broken = [], set(broken)

    def __call__(self, x):
        self.ran.append(x)
        if x in self.broken:
            raise ValueError(f"{x} is broken")
        return x


class Many:
    """Any iterable: made anew at each pass, counting what was drawn."""

    def __init__(self, number):
        self.number, self.drawn, self.threads = number, 0, set()

    def __iter__(self):
        for x in range(self.number):
            self.drawn += 1
            self.threads.add(threading.get_ident())
            yield x


def mapping(fn, items, **options):
    async def run(event, step):
        return await step.map("m", fn, items, **options)

    return run


def waiting_after(run):
    """The same workflow, that then waits: so that it can be replayed."""

    async def longer(event, step):
        result = await run(event, step)
        await step.wait_for_event("stay", "go")
        return result

    return longer


def counted(instance, **wanted):
    """Wait until so many items of its map stand so."""

    def reached():
        counts = next((step.items for step in instance.steps if step.type == "map"), None)
        return counts is not None and all(getattr(counts, name) == number for name, number in wanted.items())

    eventually(reached, f"{wanted}: {[step.items for step in instance.steps]}")


def replayed(lab, run, instance, *, entries=None):
    """The instance in the next kernel, which does not know how the last one ended."""
    lab2 = lab.revive(entries)
    lab2.workflow(run)
    lab2.idle()
    return lab2, lab2.engine.get(instance.id)


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "items",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        {1: "a", 2: "b", 3: "c"},
        lambda: (x for x in (1, 2, 3)),
        lambda: iter([1, 2, 3]),
        lambda: map(int, "123"),
    ],
)
def test_results_come_in_the_order_of_the_items_of_any_iterable(lab, items):
    async def run(event, step):
        its = items() if callable(items) else items
        return await step.map("m", square, its, concurrency=2)

    assert lab.output(run) == [1, 4, 9]


def test_a_relation_of_duckdb_gives_its_rows_as_tuples(lab):
    async def run(event, step):
        relation = duckdb.sql("select i, i::varchar as t from range(3) r(i)")
        return await step.map("m", lambda row: list(row), relation)

    assert lab.output(run) == [[0, "0"], [1, "1"], [2, "2"]]


def test_an_async_iterable_may_be_made_of_steps(lab):
    async def run(event, step):
        async def numbers():
            for x in range(4):
                yield await step.do("number", lambda x=x: x + 1)

        return await step.map("m", square, numbers())

    assert lab.output(run) == [1, 4, 9, 16]


def test_a_map_of_nothing_gives_nothing(lab):
    async def run(event, step):
        streamed = [x async for x in step.map("s", square, iter(()))]
        return [await step.map("m", square, []), await step.map("n", square, (x for x in ())), streamed]

    assert lab.output(run) == [[], [], []]


def test_results_are_decoded_copies_live_and_replayed(lab):
    class Live:
        items = ([], [1])

    run = waiting_after(mapping(lambda x: x, Live.items))
    instance = lab.start(run)
    lab.idle()
    lab2, again = replayed(lab, run, instance)
    again.send_event("go")
    assert lab2.finish(again).output == [[], [1]]


def test_items_are_drawn_one_ahead_of_need_in_one_thread(lab):
    many, gate = Many(50), Gate()
    instance = lab.start(mapping(lambda x: gate(), many, concurrency=2))
    gate.reached(2)
    lab.move(0)
    eventually(lambda: many.drawn == 3)
    gate.open()
    lab.finish(instance)
    assert many.drawn == 50
    assert len(many.threads) == 1
    assert threading.get_ident() not in many.threads


def test_at_most_concurrency_bodies_run_at_once(lab):
    most = running = 0

    async def body(x):
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    lab.output(mapping(body, range(20), concurrency=3))
    assert most == 3


def test_plain_bodies_run_one_at_a_time_and_async_ones_sixteen_by_default(lab):
    gate, ran = Gate(), 0

    async def body(x):
        nonlocal ran
        ran += 1
        await asyncio.get_running_loop().create_future()

    plain = lab.start(mapping(lambda x: gate(), range(50)), name="P")
    looped = lab.start(mapping(body, range(50)), name="A")
    gate.reached()
    eventually(lambda: ran == 16)
    assert (plain.step("m").items.running, looped.step("m").items.running) == (1, 16)
    looped.terminate()
    plain.terminate()
    gate.open()


def test_discarded_results_give_their_number_and_need_not_be_storable(lab):
    assert lab.output(mapping(lambda x: threading.Lock(), range(5), discard_results=True)) == 5


def test_the_context_tells_key_and_index_and_keys_of_idempotency_differ(lab):
    async def run(event, step):
        def body(x, ctx):
            return [ctx.key, ctx.index, ctx.attempt, ctx.step.name, ctx.idempotency_key]

        return [*await step.map("m", body, [1, 2]), *await step.map("m", body, ["a"], key=str), await step.do("m", body, 0)]

    told = lab.output(run)
    assert [one[:4] for one in told] == [["0", 0, 1, "m"], ["1", 1, 1, "m"], ["a", 0, 1, "m"], [None, None, 1, "m"]]
    assert len({one[4] for one in told}) == 4


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda step: step.map("m", 3, []), "not callable"),
        (lambda step: step.map("m", square, 3), "not iterable"),
        (lambda step: step.map("m", 0, []), "given an int to run"),
        (lambda step: step.map("m", square, [], on="gpu"), "map 'm': on='gpu' names no executor"),
        (lambda step: step.map("m", square, [], key="id"), "key= of map 'm'"),
        (lambda step: step.map("m", square, [], concurrency=0), "concurrency= of map 'm'"),
        (lambda step: step.map("m", square, [], rate="fast"), "rate= of map 'm'"),
        (lambda step: step.map("m", square, [], rate="0/minute"), "rate= of map 'm'"),
        (lambda step: step.map("m", square, [], retries={"limits": 3}), "limits"),
        (lambda step: step.map("", square, []), "step name"),
    ],
)
def test_a_wrong_call_is_a_usage_error_at_the_call(lab, call, says):
    async def run(event, step):
        try:
            call(step)
        except UsageError as error:
            return str(error)

    instance = lab.run(run)
    assert says in instance.output
    assert instance.steps == []


def test_text_and_bytes_are_iterables_like_any_other(lab):
    async def run(event, step):
        return [await step.map("m", lambda x: x, "ab", key=str), await step.map("m", square, b"\x02\x03")]

    assert lab.output(run) == [["a", "b"], [4, 9]]


def test_a_frame_is_refused_with_the_way_to_its_rows(lab):
    import pandas as pd

    with pytest.raises(UsageError, match="itertuples"):
        raise lab.failure(mapping(square, pd.DataFrame({"a": [1]})))


def test_a_map_in_a_body_is_refused(lab):  # S15
    async def run(event, step):
        async def body(x):
            await step.map("inner", square, [1])

        await step.map("m", body, [1], retries=0)

    assert "move it out of the body" in str(lab.failure(run))


def test_a_step_in_an_items_body_is_counted_for_that_item_alone(lab):  # S15
    gate, ran = Gate(), []

    async def run(event, step):
        async def body(x):
            found = await step.do("inner", lambda: ran.append(x) or x * 10)
            return found if x else await step.do("wait", gate)

        return await step.map("m", body, range(3), concurrency=3)

    instance = lab.start(run)
    gate.reached()
    counted(instance, done=2)
    lab2 = lab.revive()
    gate.value = "late"
    gate.open()
    lab2.workflow(run)
    assert lab2.finish(lab2.engine.get(instance.id)).output == ["late", 10, 20]
    assert sorted(ran) == [0, 1, 2]
    kinds = {(row[0], row[1]) for row in lab2.engine.sql("select type, key from steps where name = 'inner'").fetchall()}
    assert kinds == {("do", "m[0]"), ("do", "m[1]"), ("do", "m[2]")}


# -- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (str, "the key '3' of item 2 came before"),
        (lambda x: x, "gave an int for item 0"),
        (lambda x: "", "key= of map 'm'"),
        (lambda x: 1 / 0, "division by zero"),
    ],
)
def test_a_key_that_is_none_ends_the_map_when_it_is_drawn(lab, key, says):
    assert says in str(lab.failure(mapping(square, [3, 4, 3], key=key)))


def test_a_shifted_list_without_keys_is_not_served_wrong_results(lab):  # S57
    items, body = [1, 2, 3], Bench(3)

    async def run(event, step):
        return await step.map("m", body, list(items), retries=0)

    instance = lab.run(run)
    items.insert(0, 9)
    body.broken.clear()
    instance.resume()
    lab.finish(instance)
    assert "item 0 of 'm' is not the one recorded; pass key=" in str(failure_of(instance))
    assert body.ran == [1, 2, 3]


def test_rows_of_a_frame_that_has_shifted_are_not_served_wrong_results(lab):  # S57: their class cannot be imported
    pandas = pytest.importorskip("pandas")
    names, body = ["anna", "bob", "cleo"], Bench("cleo")

    async def run(event, step):
        frame = pandas.DataFrame({"name": names})
        return await step.map("m", lambda row: body(row.name), frame.itertuples(index=False), retries=0)

    instance = lab.run(run)
    body.broken.clear()
    names.insert(0, "new")
    instance.resume()
    lab.finish(instance)
    assert "item 0 of 'm' is not the one recorded; pass key=" in str(failure_of(instance))
    names.pop(0)
    instance.resume()
    assert lab.finish(instance).output == names


def test_a_failed_item_may_be_corrected_in_the_list(lab):
    items, body = [1, "two", 3], Bench("two")

    async def run(event, step):
        return await step.map("m", body, list(items), retries=0)

    instance = lab.run(run)
    items[1] = 2
    instance.resume()
    assert lab.finish(instance).output == [1, 2, 3]
    assert body.ran == [1, "two", 2, 3]


def test_keyed_items_may_move_come_and_go(lab):
    items, body = ["a", "b", "c"], Bench("c")

    async def run(event, step):
        return await step.map("m", body, list(items), key=lambda x: x, retries=0)

    instance = lab.run(run)
    items[:] = ["d", "c", "b"]
    body.broken.clear()
    instance.resume()
    assert lab.finish(instance).output == ["d", "c", "b"]
    assert body.ran == ["a", "b", "c", "d", "c"]
    assert instance.step("m").output == ["d", "c", "b"]


def test_a_keyed_item_with_another_content_is_served_and_the_map_is_stale(lab):  # S57
    items, body = [("a", 1), ("b", 2)], Bench(("b", 2))

    async def run(event, step):
        return await step.map("m", body, list(items), key=lambda item: item[0], retries=0)

    instance = lab.run(run)
    items[0] = ("a", 100)
    body.broken.clear()
    instance.resume()
    assert lab.finish(instance).output == [("a", 1), ("b", 2)]
    assert instance.step("m").stale_why == ("item 'a' changed",)
    assert [step.stale_why for step in instance.code_changes().stale] == [("item 'a' changed",)]


def test_that_an_item_was_another_one_is_known_to_later_activations_and_kernels(lab):  # S57
    items, body = [("a", 1), ("b", 2)], Bench(("b", 2))

    async def run(event, step):
        await step.map("m", body, list(items), key=lambda item: item[0], retries=0)
        await step.wait_for_event("w", "go")

    instance = lab.run(run)
    items[0] = ("a", 100)
    body.broken.clear()
    instance.resume()
    lab.idle()
    instance.pause()
    instance.resume()
    lab.idle()
    assert instance.step("m").stale_why == ("item 'a' changed",)
    lab2 = lab.revive()
    lab2.workflow(run)
    again = lab2.engine.get(instance.id)
    lab2.idle()
    assert again.step("m").stale_why == ("item 'a' changed",)
    again.restart(("m", "a"))
    lab2.idle()
    assert body.ran[-1] == ("a", 100)
    assert not again.step("m").stale


def old_and_new(world):
    """Two versions of a workflow whose map fails under the first, and two functions that are the bodies."""

    def old(x):
        if x == 2:
            raise ValueError(x)
        return ("old", x)

    def new(x):
        return ("new", x)

    async def run(event, step):
        body = new if world["new"] else old
        result = step.map("m", body, range(world["items"]), key=world["key"], retries=0)
        result = [value async for value in result] if world["stream"] else await result
        await step.wait_for_event("w", "go")
        return result

    return run


def stale_items(instance):
    return [one.key.key for one in instance.items("m")[1] if one.stale]


@pytest.mark.parametrize("key", [None, str])
@pytest.mark.parametrize("stream", [False, True])
def test_items_served_with_code_that_has_changed_are_stale_with_their_map(lab, key, stream):  # S57
    world = {"new": False, "key": key, "stream": stream, "items": 4}
    run = old_and_new(world)
    instance = lab.run(run, id="a")
    assert not instance.step("m").stale
    world["new"] = True
    instance.resume()
    lab.idle()
    assert instance.step("m").stale_why == ("the body changed",)
    assert instance.view().stale_steps == (instance.step("m").key,)
    assert stale_items(instance) == ["0", "1"]
    assert [one.from_history for one in instance.items("m")[1]] == [True, True, False, False]
    lab2 = lab.revive()  # as well in the next kernel, and where the code is the old one again: then the others are stale
    lab2.workflow(run)
    lab2.idle()
    again = lab2.engine.get("a")
    assert again.step("m").stale_why == ("the body changed",)
    assert stale_items(again) == ["0", "1"]
    assert "old" in again.step("m").code_diff
    assert [step.key.name for step in again.code_changes().stale] == ["m"]
    world["new"] = False
    lab3 = lab2.revive()
    lab3.workflow(run)
    lab3.idle()
    assert stale_items(lab3.engine.get("a")) == ["2", "3"]
    assert lab3.engine.get("a").step("m").stale
    world["new"] = True
    again = lab3.engine.get("a")
    again.restart_stale()
    lab3.idle()
    assert not again.step("m").stale
    assert stale_items(again) == []
    again.send_event("go")
    assert lab3.finish(again).output == [("new", 0), ("new", 1), ("new", 2), ("new", 3)]


def test_a_map_that_goes_on_with_other_code_is_stale_before_it_has_ended(lab):  # S57: the cell's line is written meanwhile
    gate, world = Gate(), {"new": False}

    def old(x):
        if x == 1:
            raise ValueError(x)
        return x

    def new(x):
        return gate()

    async def run(event, step):
        return await step.map("m", new if world["new"] else old, range(2), retries=0)

    instance = lab.run(run)
    world["new"] = True
    instance.resume()
    gate.reached()
    assert instance.step("m").stale_why == ("the body changed",)
    assert stale_items(instance) == ["0"]
    assert instance.view().stale == 1
    gate.open()
    lab.finish(instance)


def test_items_that_are_gone_and_those_that_run_again_make_no_map_stale(lab):  # S57
    world = {"new": False, "gone": False}

    def old(x):
        if x == "c":
            raise ValueError(x)
        return x

    def new(x):
        return x * 2

    async def run(event, step):
        items = ["d", "c"] if world["gone"] else ["a", "b", "c"]
        return await step.map("m", new if world["new"] else old, items, key=str, retries=0)

    instance = lab.run(run)
    world.update(new=True, gone=True)
    instance.resume()
    assert lab.finish(instance).output == ["dd", "cc"]
    assert not instance.step("m").stale


@pytest.mark.parametrize("key", [None, str])
@pytest.mark.parametrize("again", [False, True])
def test_items_that_are_gone_from_the_list_are_told_apart_from_those_that_are_done(lab, key, again):  # S9, S61
    items, body = list("abcdef"), Bench("f")

    async def run(event, step):
        result = await step.map("m", body, list(items), key=key, retries=0)
        await step.wait_for_event("stay", "go")
        return result

    instance = lab.run(run, id="a")
    del items[2:]
    instance.resume()
    lab.idle()
    if again:
        lab = lab.revive()
        lab.workflow(run)
        lab.idle()
        instance = lab.engine.get("a")
    view = instance.step("m")
    assert (view.items.done, view.items.total, view.items.failed, view.items.gone) == (2, 2, 0, 3)
    assert "2 of 2 items · 3 gone from the list" in repr(view)
    work = instance.view().work
    assert (work.items_done, work.items_total) == (2, 2)
    instance.restart(("m", "0" if key is None else "a"))
    lab.idle()
    assert instance.step("m").items.gone == 3
    items[2:] = "cdef"
    body.broken.clear()
    instance.restart(("m", "0" if key is None else "a"))
    lab.idle()
    assert (instance.step("m").items.done, instance.step("m").items.gone) == (6, 0)


# -- failures ---------------------------------------------------------------------------------------------------------


def test_items_are_retried_as_steps_are(lab):
    tries = []

    def body(x, ctx):
        tries.append((x, ctx.attempt))
        if x == 1 and ctx.attempt < 3:
            raise ValueError(x)
        return x

    instance = lab.run(mapping(body, range(3)))
    assert instance.output == [0, 1, 2]
    assert tries == [(0, 1), (1, 1), (2, 1), (1, 2), (1, 3)]
    (item,) = [one for one in instance.items("m")[1] if one.key.key == "1"]
    assert [attempt.status for attempt in item.attempts] == ["failed", "failed", "finished"]


def test_a_map_of_which_all_that_is_open_waits_for_a_retry_is_waiting(lab):  # S5
    instance = lab.start(mapping(Bench(0, 1), range(2), retries={"limit": 1, "delay": "1 hour"}))
    eventually(lambda: instance.status().status is Status.WAITING)
    (waiting,) = instance.status().waiting_for
    assert (waiting.name, waiting.kind) == ("m", "retry")


def test_the_first_item_that_fails_for_good_ends_the_map_when_those_that_run_have_ended(lab):
    gate, ran = Gate("slow"), []

    def body(x):
        ran.append(x)
        if x == 1:
            raise NonRetryableError("one")
        return gate() if x == 0 else x

    instance = lab.start(mapping(body, range(10), concurrency=2))
    counted(instance, failed=1)
    assert instance.status().status is Status.RUNNING
    gate.open()
    lab.finish(instance)
    error = failure_of(instance)
    assert isinstance(error, NonRetryableError)
    assert "step 'm[1]' failed after 1 attempt" in error.__notes__
    assert ran == [0, 1]
    counts = instance.step("m").items
    assert (counts.done, counts.failed, counts.total) == (1, 1, 10)
    assert instance.status().failed_items == 1


@pytest.mark.parametrize("how", ["resume", "retry_failed", "cell", "restart of the kernel"])
def test_after_a_failure_failed_and_missing_items_run_and_no_finished_one(lab, how):  # S41, S48
    body = Bench(2)
    run = mapping(body, range(5), retries=0)
    instance = lab.run(run)
    assert body.ran == [0, 1, 2]
    body.broken.clear()
    match how:
        case "resume":
            instance.resume()
        case "retry_failed":
            instance.retry_failed()
        case "cell":
            lab.engine.open(lab.engine.workflow("W"), instance.id).start()
        case _:
            lab, instance = replayed(lab, run, instance)
            assert instance.status().status is Status.ERRORED
            instance.resume()
    assert lab.finish(instance).output == [0, 1, 2, 3, 4]
    assert body.ran == [0, 1, 2, 2, 3, 4]
    rows = lab.engine.sql("select key, status, attempts from steps order by key nulls first").fetchall()
    assert rows == [(None, "finished", 0), *((str(x), "finished", 1) for x in range(5))]


def test_a_cell_says_at_which_map_it_goes_on_and_how_many_of_its_items_are_kept(lab):
    bench = Bench(2)

    class Flow(WorkflowEntrypoint):
        async def run(self, event, step):
            await step.do("first", lambda: 0)
            await step.map("m", bench, range(4), retries=0)

    workflow = lab.engine.register(Flow)
    workflow.create("one").wait(10, "finished")
    bench.broken.clear()
    opened = lab.engine.open(workflow, "one", None)
    assert opened.line == "resumed one: 1 step from history, goes on at m (2 items from history)"


def test_an_error_of_the_iterable_ends_the_map(lab):
    async def run(event, step):
        def items():
            yield 1
            raise OSError("the disk is gone")

        try:
            await step.map("m", square, items())
        except OSError as error:
            return str(error)

    assert lab.output(run) == "the disk is gone"


@pytest.mark.parametrize("kind", ["async generator", "generator"])
@pytest.mark.parametrize("how", ["break", "pause", "failure"])
def test_a_generator_given_as_items_is_closed_when_no_more_of_it_is_drawn(lab, kind, how):
    closed = []

    def given():
        try:
            yield from range(100)
        finally:
            closed.append(kind)

    async def given_async():
        try:
            for x in range(100):
                yield x
        finally:
            await asyncio.sleep(0)
            closed.append(kind)

    async def body(x):
        if x == 3 and how == "pause":
            lab.engine.get("a").pause()
        if x == 3 and how == "failure":
            raise ValueError(x)
        return x

    async def run(event, step):
        async for value in step.map("m", body, given() if kind == "generator" else given_async(), concurrency=1, retries=0):
            if value == 3:
                break
        await step.wait_for_event("w", "go")

    lab.start(run, id="a")
    eventually(lambda: closed, "it is closed")
    assert closed == [kind]


def test_an_iterable_that_is_cancelled_by_itself_ends_the_map(lab):  # nobody has cancelled the map
    class Feed:
        def __init__(self):
            self.left = 2

        def __aiter__(self):
            return self

        async def __anext__(self):
            self.left -= 1
            if self.left < 0:
                raise asyncio.CancelledError("the connection is gone")
            return self.left

    async def run(event, step):
        return await step.map("m", square, Feed())

    assert "the connection is gone" in str(failure_of(lab.finish(lab.start(run))))


def test_a_map_that_has_just_ended_leaves_nothing_to_be_recorded_after_the_engine_closed(lab, caplog):  # S54
    async def run(event, step):
        return await step.map("m", abs, range(3), discard_results=True)

    instance = lab.start(run)
    assert lab.finish(instance).output == 3
    commits = Commits(lab.engine, lambda ends: None)
    lab.engine.close()
    commits.add()  # as its timer does
    assert lab.engine.failure is None
    assert not caplog.records


def test_exceptions_take_the_places_of_results(lab):
    async def run(event, step):
        results = await step.map("m", Bench(1), range(3), retries=0, return_exceptions=True)
        return [f"{type(one).__name__}: {one}" if isinstance(one, Exception) else one for one in results]

    run = waiting_after(run)
    instance = lab.start(run)
    lab.idle()
    assert instance.status().failed_items == 1
    lab2, again = replayed(lab, run, instance)
    again.send_event("go")
    assert lab2.finish(again).output == [0, "ValueError: 1 is broken", 2]


def test_retry_failed_of_a_complete_instance_runs_failed_items_and_what_followed_the_map(lab):  # S61
    body, told = Bench(1, 2), []

    async def run(event, step):
        before = await step.do("before", lambda: told.append("before"))
        results = await step.map("m", body, range(4), retries=0, return_exceptions=True)
        return await step.do("after", lambda: told.append("after") or [str(one) for one in results]), before

    instance = lab.run(run)
    assert (instance.status().status, instance.status().failed_items) == (Status.COMPLETE, 2)
    body.broken = {2}
    instance.retry_failed()
    lab.finish(instance)
    assert instance.output[0] == ["0", "1", "2 is broken", "3"]
    assert instance.status().failed_items == 1
    assert body.ran == [0, 1, 2, 3, 1, 2]
    assert told == ["before", "after", "after"]
    failed = lab.engine.sql("select key from steps where status = 'failed'").fetchall()
    assert failed == [("2",)]


def test_resume_of_an_errored_instance_leaves_the_exceptions_of_an_earlier_map_alone(lab):
    body, fails = Bench(1), Bench("x")

    async def run(event, step):
        results = await step.map("m", body, range(2), retries=0, return_exceptions=True)
        return [str(one) for one in results], await step.do("x", fails, "x", retries=0)

    instance = lab.run(run)
    fails.broken.clear()
    instance.resume()
    assert lab.finish(instance).output == (["0", "1 is broken"], "x")
    assert body.ran == [0, 1]
    assert lab.engine.sql("select key, status from steps where type = 'map' order by key").fetchall() == [
        ("0", "finished"),
        ("1", "failed"),
        (None, "finished"),
    ]


def test_restart_from_an_item_runs_it_and_what_followed_the_map_not_its_siblings(lab):  # S44
    body, told = Bench(), []

    async def run(event, step):
        results = await step.map("m", body, range(3))
        return await step.do("after", lambda: told.append("after") or results)

    instance = lab.run(run)
    instance.restart(("m", "1"))
    assert lab.finish(instance).output == [0, 1, 2]
    assert body.ran == [0, 1, 2, 1]
    assert told == ["after", "after"]
    assert lab.engine.sql("select count(*) from steps").fetchall() == [(5,)]


def test_restart_from_a_step_before_the_map_runs_all_items_again(lab):
    body = Bench()

    async def run(event, step):
        await step.do("before", lambda: None)
        return await step.map("m", body, range(3))

    instance = lab.run(run)
    instance.restart("before")
    assert lab.finish(instance).output == [0, 1, 2]
    assert body.ran == [0, 1, 2] * 2
    assert lab.engine.sql("select count(*) from steps").fetchall() == [(5,)]


def test_items_are_undone_last_first(lab):  # S46
    undone = []

    async def run(event, step):
        await step.map("m", square, [5, 6, 7], rollback=lambda output, ctx, step_name: undone.append((step_name, output)))
        await step.do("fails", lambda: 1 / 0, retries=0)

    instance = lab.run(run)
    assert undone == [("m", 49), ("m", 36), ("m", 25)]
    assert instance.status().rollback == ("complete", None)
    instance.resume()
    lab.finish(instance)
    assert len(undone) == 6


@pytest.mark.parametrize("key", [None, str])
def test_the_handler_of_an_item_is_told_which_item_it_undoes(lab, key):
    told = []

    async def run(event, step):
        await step.map("m", square, [5, 6], key=key, rollback=lambda ctx: told.append((ctx.step.name, ctx.key, ctx.index)))
        await step.do("d", lambda: 1, rollback=lambda ctx: told.append((ctx.step.name, ctx.key, ctx.index)))
        raise ValueError

    lab.run(run)
    assert told == [("d", None, None), *((("m", "6", 1), ("m", "5", 0)) if key else (("m", "1", 1), ("m", "0", 0)))]


def test_the_handler_of_a_keyed_item_is_told_where_it_stood_when_it_last_ran(lab):
    told, items, body = [], ["a", "b"], Bench("b")

    async def run(event, step):
        undo = lambda ctx: told.append((ctx.key, ctx.index))  # noqa: E731
        await step.map("m", body, list(items), key=str, rollback=undo, retries=0)
        raise ValueError

    instance = lab.start(run)
    lab.finish(instance)
    told.clear()
    items.insert(0, "new")
    body.broken.clear()
    instance.resume()
    lab.finish(instance)
    assert sorted(told) == [("a", 1), ("b", 2), ("new", 0)]


# -- kernels that die -------------------------------------------------------------------------------------------------


def test_after_a_death_only_unfinished_items_run_again(lab):  # S18, S27
    gate, ran = Gate("late"), []

    def body(x):
        ran.append(x)
        return gate() if x == 3 else x

    async def run(event, step):
        return await step.map("m", body, (x for x in range(6)), concurrency=2)

    instance = lab.start(run)
    gate.reached()
    counted(instance, done=5)
    lab2 = lab.revive()
    gate.open()
    workflow = lab2.engine.register(entrypoint(run), "W", source=source_of(run), resume=False)
    opened = lab2.engine.open(workflow, instance.id, None)
    assert opened.line == f"resumed {instance.id}: 0 steps and 5 items from history, 1 run again"
    opened.start()
    again = lab2.engine.get(instance.id)
    assert lab2.finish(again).output == [0, 1, 2, "late", 4, 5]
    assert sorted(ran) == [0, 1, 2, 3, 3, 4, 5]
    (item,) = [one for one in again.items("m")[1] if one.key.key == "3"]
    assert [attempt.status for attempt in item.attempts] == ["interrupted", "finished"]


def test_an_item_that_kills_the_kernel_is_found_and_named(lab):  # S27
    hang = Gate()
    run = mapping(lambda x: hang(), range(3), concurrency=3)
    instance = lab.start(run)
    hang.reached(3)
    for _ in range(2):
        lab, before = lab.revive(), hang.came
        lab.workflow(run)
        hang.reached(before + 1)
    eventually(lambda: lab.engine.get(instance.id).step("m").items.running == 1)
    lab = lab.revive()
    lab.workflow(run)
    error = failure_of(lab.finish(lab.engine.get(instance.id)))
    assert "died 3 times in a row while 'm[" in str(error)
    hang.open()


def test_a_death_between_the_end_of_an_item_and_the_end_of_its_map_fails_the_map(lab):
    body = Bench(1)
    run = mapping(body, range(5), retries=0)
    instance = lab.run(run)
    entries = lab.entries()
    cut = next(place for place, entry in enumerate(entries) if entry.kind is Kind.MAP_FAILED and entry.key is None)
    lab2, again = replayed(lab, run, instance, entries=entries[:cut])
    error = failure_of(lab2.finish(again))
    assert str(error) == "1 is broken"
    assert body.ran == [0, 1]


def test_a_retry_delay_of_an_item_survives_a_death(lab):  # S25
    body = Bench(0)
    run = mapping(body, range(1), retries={"limit": 1, "delay": "1 hour"})
    instance = lab.start(run)
    counted(instance, retrying=1)
    lab.advance("30 minutes")
    lab2, again = replayed(lab, run, instance)
    body.broken.clear()
    lab2.advance("29 minutes")
    assert body.ran == [0]
    lab2.advance("1 minute")
    assert lab2.finish(again).output == [0]


@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_a_rate_is_kept_across_deaths_without_a_burst(lab, deaths):
    starts = []

    def body(x):
        starts.append(lab.clock.now())
        return x

    run = mapping(body, range(7), rate="2/minute", concurrency=5)
    instance = lab.start(run)
    lab.idle()
    for _ in range(deaths):
        lab.advance("70 seconds")
        lab2, instance = replayed(lab, run, instance)
        lab2.clock = lab.clock
        lab = lab2
    lab.finish(instance)
    assert len(starts) == 7
    for first, third in zip(starts, starts[2:]):
        assert third - first >= timedelta(minutes=1)
    assert starts[-1] - starts[0] <= timedelta(minutes=4)


def test_every_attempt_counts_for_the_rate(lab):
    starts = []

    def body(x, ctx):
        starts.append(lab.clock.now())
        if ctx.attempt < 3:
            raise ValueError
        return x

    lab.output(mapping(body, [1], rate="1/minute", retries={"limit": 3, "delay": 0}))
    assert [start - starts[0] for start in starts] == [timedelta(minutes=x) for x in range(3)]


# -- controls ---------------------------------------------------------------------------------------------------------


def test_pause_lets_bodies_end_and_starts_no_other(lab):  # S40
    gate = Gate(1)
    instance = lab.start(mapping(lambda x: gate(), range(3)))
    gate.reached()
    instance.pause()
    assert instance.status().status is Status.WAITING_FOR_PAUSE
    gate.open()
    eventually(lambda: instance.status().status is Status.PAUSED)
    assert gate.came == 1
    instance.resume()
    assert lab.finish(instance).output == [1, 1, 1]
    assert gate.came == 3


def test_a_pause_taken_back_goes_on_without_replay(lab):  # S41
    gate = Gate(1)
    instance = lab.start(mapping(lambda x: gate(), range(3)))
    gate.reached()
    instance.pause()
    instance.resume()
    gate.open()
    assert lab.finish(instance).output == [1, 1, 1]
    assert [e.kind for e in instance.history()].count(Kind.ACTIVATED) == 1


@pytest.mark.parametrize("what", ["pause", "terminate"])
def test_an_iterable_that_blocks_holds_nothing_up(lab, what):
    blocked = threading.Event()

    def items():
        yield 1
        assert blocked.wait(5)
        yield 2

    async def run(event, step):
        return await step.map("m", square, items())

    instance = lab.start(run)
    counted(instance, done=1)
    getattr(instance, what)()
    eventually(lambda: instance.status().status in (Status.PAUSED, Status.TERMINATED))
    blocked.set()


def test_terminate_acts_at_once(lab):  # S43
    gate = Gate(1)
    instance = lab.start(mapping(lambda x: gate(), range(3)))
    gate.reached()
    instance.terminate()
    gate.open()
    assert instance.status().status is Status.TERMINATED
    assert not [e for e in instance.history() if e.kind is Kind.MAP_FINISHED]


def test_a_map_in_a_cancelled_task_is_cancelled_and_again_on_replay(lab):  # S21
    begun = []

    async def body(x):
        begun.append(x)
        await asyncio.get_running_loop().create_future()

    async def run(event, step):
        task = asyncio.ensure_future(step.map("m", body, range(5), concurrency=2))
        await step.do("meanwhile", lambda: eventually(lambda: len(begun) == 2))
        task.cancel()
        await asyncio.wait([task])
        await step.wait_for_event("stay", "go")
        return "cancelled" if task.cancelled() else "?"

    instance = lab.start(run)
    lab.idle()
    assert instance.step("m").status == "cancelled"
    lab2, again = replayed(lab, run, instance)
    again.send_event("go")
    assert lab2.finish(again).output == "cancelled"
    assert begun == [0, 1]


def test_a_map_that_nobody_awaits_ends_before_its_instance(lab):  # S16
    body = Bench()

    async def run(event, step):
        step.map("m", body, range(3))

    lab.output(run)
    assert body.ran == [0, 1, 2]


def test_maps_of_one_name_are_different_and_may_be_gathered(lab):
    async def run(event, step):
        return await asyncio.gather(
            step.map("m", square, range(5)), step.map("m", square, range(3)), step.do("m", lambda: "step")
        )

    instance = lab.run(run)
    assert instance.output == [[0, 1, 4, 9, 16], [0, 1, 4], "step"]
    assert [step.count for step in instance.steps if step.type == "map"] == [1, 2]
    assert instance.items("m", count=2)[0] == 3


def test_a_map_may_wait_in_an_instance_that_left_memory(lab):  # S62
    lab.engine.waiting.keep = 0
    body = Bench(0)
    instance = lab.start(mapping(body, [0, 1], retries={"limit": 1, "delay": "1 hour"}, concurrency=2))
    lab.idle()
    body.broken.clear()
    assert lab.finish(instance).output == [0, 1]
    assert sorted(body.ran) == [0, 0, 1]


@pytest.mark.parametrize("key", [None, str])
def test_sql_gives_the_results_of_a_map_in_the_rows_of_its_items_alone(lab, key):  # a keyed map's value is its list of keys
    lab.run(mapping(square, [2, 3], key=key))
    rows = lab.engine.sql("select key, output::text, output_type, output_uri from steps order by output::text nulls last")
    keys = ["0", "1"] if key is None else ["2", "3"]
    assert rows.fetchall() == [(keys[0], "4", "int", None), (keys[1], "9", "int", None), (None, None, None, None)]


def test_pages_of_items_can_be_asked_for_by_state(lab):
    instance = lab.run(mapping(Bench(3, 5), range(8), retries=0, return_exceptions=True))
    total, page = instance.items("m", 2, 4)
    assert (total, [one.key.key for one in page], [one.output for one in page]) == (8, ["2", "3"], [2, None])
    total, failed = instance.items("m", state="failed")
    assert (total, [str(one.error) for one in failed]) == (2, ["ValueError: 3 is broken", "ValueError: 5 is broken"])


def test_the_work_of_an_instance_counts_items_in_place_of_their_maps(lab):  # PANEL: 812/4,102 steps
    async def run(event, step):
        await step.do("list", lambda: 1)
        return await step.map("m", Bench(2), range(5), retries=0, return_exceptions=True)

    instance = lab.start(waiting_after(run))
    lab.idle()
    view = instance.view()
    assert (view.done, view.total) == (2, 3)
    assert view.work == Work(done=5, total=7, running=0, retrying=0, failed=1, items_done=4, items_total=5)


def test_retry_failed_of_an_unfinished_instance_with_failed_items_says_so_and_of_many_leaves_it_out(lab):  # S61
    async def run(event, step):
        return await step.map("m", Bench(1), range(3), retries=0, return_exceptions=True)

    instance = lab.start(waiting_after(run))
    lab.idle()
    with pytest.raises(InvalidStatusError, match=r"waiting with 1 failed item\(s\)"):
        instance.retry_failed()
    Instances([instance]).retry_failed()
    assert instance.status().status is Status.WAITING


# -- items of a finished map that were edited ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keyed", "now", "why"),
    [
        (False, [("a", 1), ("b", 2), ("c", 3)], ()),
        (False, [("a", 1), ("b", 9), ("c", 3)], ("item '1' changed",)),
        (False, [("z", 0), ("a", 1), ("b", 2), ("c", 3)], ("item '0' changed", "item '1' changed", "item '2' changed")),
        (False, [("a", 1), ("b", 2)], ("item '2' changed",)),
        (True, [("c", 3), ("a", 1), ("b", 2)], ()),
        (True, [("a", 1), ("b", 9), ("c", 3)], ("item 'b' changed",)),
        (True, [("a", 1), ("b", 2)], ("item 'c' changed",)),
        (True, [("a", 1), ("b", 2), ("c", 3), ("d", 4)], ("item '3' changed",)),
    ],
)
@pytest.mark.parametrize("how", ["list", "tuple", "dict", "stream", "generator"])
def test_a_finished_map_whose_items_were_edited_is_served_and_stale(lab, keyed, now, why, how):  # S57
    items = [("a", 1), ("b", 2), ("c", 3)]

    def given():
        match how:
            case "tuple":
                return tuple(items)
            case "dict":
                return dict.fromkeys(items)
            case "generator":
                return (item for item in items)
            case _:
                return items

    async def run(event, step):
        found = step.map("m", lambda item: item[1], given(), key=(lambda item: item[0]) if keyed else None)
        found = [value async for value in found] if how == "stream" else await found
        await step.wait_for_event("go", "go")
        return found

    lab.start(run, id="one")
    lab.idle()
    items[:] = now
    later = lab.revive()
    later.workflow(run)
    later.idle()
    instance = later.engine.get("one")
    view = instance.step("m")
    assert view.stale == bool(why and how != "generator")
    assert view.stale_why == (why if how != "generator" else ())
    assert instance.view().stale_steps == ((view.key,) if view.stale else ())
    instance.send_event("go")
    assert later.finish(instance).output == [1, 2, 3]


def test_a_look_at_the_items_of_a_finished_map_harms_nothing(lab):  # S57
    class Breaks:
        def __reduce__(self):
            raise RuntimeError

        def __eq__(self, other):
            raise RuntimeError

        __hash__ = None

    hostile = False

    async def run(event, step):
        found = await step.map("m", lambda item: 1, [Breaks(), Breaks()] if hostile else [1, 2])
        await step.wait_for_event("go", "go")
        return found

    lab.start(run, id="one")
    lab.idle()
    hostile = True
    later = lab.revive()
    later.workflow(run)
    later.engine.get("one").send_event("go")
    assert later.finish(later.engine.get("one")).output == [1, 1]


def test_of_many_items_of_a_finished_map_the_first_are_compared_and_the_number(lab):  # S57
    items = list(range(3_000))

    async def run(event, step):
        found = await step.map("m", lambda item: item, items, concurrency=16)
        await step.wait_for_event("go", "go")
        return len(found)

    lab.start(run, id="one")
    lab.idle()
    for edit, stale in (({2_000: -1}, False), ({10: -1}, True)):
        for place, value in edit.items():
            items[place] = value
        later = lab.revive()
        later.workflow(run)
        later.idle()
        assert later.engine.get("one").step("m").stale is stale


@pytest.mark.parametrize("loaded_between", [False, True])
@pytest.mark.parametrize("ends", ["well", "with a failure"])
def test_a_map_began_when_it_was_first_called_whoever_tells_it_and_whatever_of_it_ran_again(tmp_path, loaded_between, ends):
    """API.md §4: `started_at` of the step and of SQL are one; what of a map is read with its end, and what before, is chance."""
    file, gate, began, broken = tmp_path / "history.duckdb", threading.Event(), threading.Event(), {ends == "with a failure"}

    class Maps(WorkflowEntrypoint):
        async def run(self, event, step):
            def body(x):
                began.set()
                gate.wait(20)
                return 1 / (x != 2 or True not in broken)

            await step.map("m", body, [1, 2, 3], retries=0)

    def told(engine, instance):
        [step] = instance.steps
        in_sql = engine.sql("select started_at, ended_at, duration_s from steps where key is null").fetchall()
        seconds = None if step.ended_at is None else (step.ended_at - step.started_at).total_seconds()
        assert in_sql == [(step.started_at, step.ended_at, seconds)]
        return step.started_at

    def run_again(engine, act):
        gate.clear()
        began.clear()
        act()
        assert began.wait(20)
        if loaded_between:
            assert told(engine, instance) == at
        gate.set()
        instance.wait(20, until="finished")
        assert told(engine, instance) == at

    with Engine(file) as engine:
        instance = engine.register(Maps).create("a")
        assert began.wait(20)
        if loaded_between:
            told(engine, instance)
        gate.set()
        instance.wait(20, until="finished")
        at = told(engine, instance)
    with Engine(file) as engine:
        instance = engine.instance("a")
        assert told(engine, instance) == at
        engine.register(Maps)
        instance = engine.get("a")
        if ends == "well":
            run_again(engine, lambda: instance.restart(from_step=("m", "1")))
        else:
            broken.clear()
            run_again(engine, instance.retry_failed)
    with Engine(file) as engine:
        assert told(engine, engine.instance("a")) == at
