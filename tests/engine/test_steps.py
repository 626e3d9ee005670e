"""What a step is known by, what its body gets, what comes back (S6 to S17; API.md §1)."""

import asyncio
import contextvars
import functools
import threading

import pytest

from nbflow import NotSerialisableError, UsageError
from nbflow.core.model import Status, StepState
from tests.engine.conftest import Gate, eventually, failure_of, kinds

FLAVOUR: contextvars.ContextVar[str] = contextvars.ContextVar("flavour", default="plain")


def double(x):
    return 2 * x


# -- the forms of step.do ---------------------------------------------------------------------------------------------


class Adder:
    def __init__(self, base):
        self.base = base

    def add(self, x):
        return self.base + x

    async def add_async(self, x):
        return self.base + x

    def with_ctx(self, x, ctx):
        return self.base + x, ctx.step.name

    async def __call__(self, x):
        return self.base * x


def through(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


async def returns_async(x):
    await asyncio.sleep(0)
    return 2 * x


@pytest.mark.parametrize(
    ("fn", "args", "wanted"),
    [
        (double, (4,), 8),
        (returns_async, (4,), 8),
        (lambda: 7, (), 7),
        (functools.partial(double, 5), (), 10),
        (functools.partial(returns_async, x=5), (), 10),
        (functools.partial(functools.partial(returns_async), 5), (), 10),
        (Adder(10).add, (1,), 11),
        (Adder(10).add_async, (1,), 11),
        (Adder(10), (3,), 30),
        (lambda x: returns_async(x), (3,), 6),  # a coroutine given by a plain def is awaited
        (through(returns_async), (3,), 6),
        (max, (3, 9, 4), 9),  # a builtin without a signature
        (dict, (), {}),
        ("{}-{}".format, (1, 2), "1-2"),
    ],
)
def test_any_callable_is_a_body(lab, fn, args, wanted):
    async def run(event, step):
        return await step.do("s", fn, *args)

    assert lab.output(run) == wanted


@pytest.mark.parametrize(
    ("fn", "args", "wanted"),
    [
        (lambda ctx: ctx.step.name, (), "s"),
        (lambda ctx, a, b: (ctx.attempt, a, b), (1, 2), (1, 1, 2)),
        (lambda a, ctx, b: (a, ctx.attempt, b), (1, 2), (1, 1, 2)),
        (lambda a, b, ctx: (a, b, ctx.attempt), (1, 2), (1, 2, 1)),
        (lambda a, *, ctx: (a, ctx.attempt), (1,), (1, 1)),
        (lambda a, b=5, ctx=None: (a, b, ctx.attempt), (1,), (1, 5, 1)),
        (lambda *args, ctx: (args, ctx.attempt), (1, 2), ((1, 2), 1)),
        (lambda *ctx: ctx, (1,), (1,)),  # not a parameter named ctx, a tuple of that name
        (lambda **ctx: ctx, (), {}),
        (functools.partial(lambda a, ctx, b: (a, ctx.attempt, b), 1, b=2), (), (1, 1, 2)),
        (functools.partial(lambda ctx, a: (ctx.attempt, a), a=2), (), (1, 2)),
        (Adder(10).with_ctx, (1,), (11, "s")),
        (through(lambda a, ctx: (a, ctx.attempt)), (1,), (1, 1)),
    ],
)
def test_the_context_is_given_by_name_wherever_the_parameter_stands(lab, fn, args, wanted):
    async def run(event, step):
        return await step.do("s", fn, *args)

    assert lab.output(run) == wanted


def test_a_decorated_step_is_run_by_calling_and_awaiting_it(lab):
    async def run(event, step):
        @step.do("embed", retries=1)
        async def anything(ctx):
            return ctx.step.name

        return await anything()

    assert lab.output(run) == "embed"


def test_a_decorated_step_is_named_after_its_function(lab):
    async def run(event, step):
        @step.do()
        async def first():
            return 1

        @step.do
        def second(ctx):
            return ctx.step.name

        return await first(), await second()

    instance = lab.run(run)
    assert instance.output == (1, "second")
    assert [s.name for s in instance.steps] == ["first", "second"]


def test_decorated_steps_in_a_loop_keep_their_defaults(lab):
    async def run(event, step):
        calls = []
        for i in range(3):

            @step.do("square")
            async def square(i=i):
                return i * i

            calls.append(square())
        return await asyncio.gather(*calls)

    assert lab.output(run) == [0, 1, 4]


@pytest.mark.parametrize("concurrent", [False, True])
def test_dependencies_are_results_of_earlier_decorated_steps_each_run_once(lab, concurrent):
    ran = []

    async def run(event, step):
        @step.do("the first")
        async def one():
            ran.append("one")
            return 1

        @step.do()
        def two(one):
            ran.append("two")
            return one + 1

        @step.do("sum", concurrent=concurrent)
        async def total(ctx, two, one, extra=10):
            return one + two + extra, ctx.step.name

        return await total(), await one()

    # The dependency ran for `total`; the explicit call of `one` after it is a call of its own (S8).
    instance = lab.run(run)
    assert instance.output == ((13, "sum"), 1)
    assert sorted(ran) == ["one", "one", "two"]
    assert sorted((s.name, s.count) for s in instance.steps) == [("sum", 1), ("the first", 1), ("the first", 2), ("two", 1)]


def test_dependencies_already_run_are_not_run_again(lab):
    ran = []

    async def run(event, step):
        @step.do()
        async def one():
            ran.append("one")
            return 1

        @step.do()
        async def two(one):
            return one + 1

        return await one(), await two()

    assert lab.output(run) == (1, 2)
    assert ran == ["one"]


def test_concurrent_dependencies_run_at_the_same_time(lab):
    met = threading.Barrier(2, timeout=10)

    async def run(event, step):
        @step.do()
        def left():
            met.wait()
            return "l"

        @step.do()
        def right():
            met.wait()
            return "r"

        @step.do(concurrent=True)
        def both(left, right):
            return left + right

        return await both()

    assert lab.output(run) == "lr"


def test_dependencies_run_one_after_another_by_default(lab):
    running, most = 0, 0

    async def run(event, step):
        async def body():
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.002)
            running -= 1

        left = step.do("left")(body)
        body.__name__ = "body"

        @step.do()
        async def right():
            await body()

        @step.do()
        async def both(body, right):
            return "done"

        assert left.__name__ == "body"
        return await both()

    assert lab.output(run) == "done"
    assert most == 1


def test_a_parameter_that_is_no_earlier_step_is_a_type_error_that_names_it(lab):
    async def run(event, step):
        @step.do()
        async def load(sourc):
            return 1

        return await load()

    error = lab.failure(run)
    assert type(error).__name__ == "TypeError"
    assert "'sourc'" in str(error)
    assert "'load'" in str(error)


def test_the_failure_of_a_dependency_is_the_failure_of_the_dependant(lab):
    async def run(event, step):
        @step.do(retries=0)
        async def one():
            raise ValueError("no one")

        @step.do()
        async def two(one):
            return one

        try:
            await two()
        except ValueError as error:
            return str(error)

    assert lab.output(run) == "no one"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda step: step.do("load", 5), ["'load'", "int", "not callable"]),
        (lambda step: step.do("load", None), ["'load'", "NoneType", "not callable"]),
        (lambda step: step.do("load", double, retries={"limt": 3}), ["'load'", "'limt'", "3", "'limit'"]),
        (lambda step: step.do("load", double, retries=-1), ["'load'", "-1"]),
        (lambda step: step.do("load", double, timeout="ten minutes"), ["'load'", "'ten minutes'"]),
        (lambda step: step.do("load", double, timeout=0), ["'load'", "0"]),
        (lambda step: step.do("load", double, retries={"backoff": "cubic"}), ["'load'", "'cubic'"]),
        (lambda step: step.do("load", double, retries={"delay": "soon"}), ["'load'", "'soon'"]),
        (lambda step: step.do("load", double, config={"retries": 1}, timeout=5), ["'load'", "config=", "timeout="]),
        (lambda step: step.do("", double), ["step name", "''"]),
        (lambda step: step.do("a\nb", double), ["step name", "'a\\nb'"]),
        (lambda step: step.do("x" * 257, double), ["257"]),
        (lambda step: step.do(5, double), ["5", "int"]),
        (lambda step: step.do("load", double, on="gpu"), ["'gpu'"]),
        (lambda step: step.sleep("nap", -1), ["'nap'", "-1"]),
        (lambda step: step.sleep("nap", "366 days"), ["'nap'", "365"]),
        (lambda step: step.sleep("nap\x00", 1), ["nap"]),
        (lambda step: step.wait_for_event("ask", "two words"), ["'two words'"]),
        (lambda step: step.wait_for_event("ask", ""), ["''"]),
        (lambda step: step.wait_for_event("ask", "go", timeout="366 days"), ["'ask'", "365"]),
        (lambda step: step.wait_for_event("ask", "go", timeout=-5), ["'ask'", "-5"]),
        (lambda step: step.sleep_until("nap", 1_790_000_000_000), ["'nap'", "milliseconds"]),
        (lambda step: step.sleep_until("nap", "tomorrow"), ["'nap'", "'tomorrow'"]),
    ],
)
def test_a_wrong_call_is_a_usage_error_at_the_call_and_nothing_is_recorded(lab, call, words):
    async def run(event, step):
        try:
            call(step)
        except UsageError as error:
            return str(error)

    instance = lab.run(run)
    for word in words:
        assert word in instance.output
    assert instance.steps == []


@pytest.mark.parametrize("name", ["x", "x" * 256, "Ünïcödé 名前 🙂", "with spaces, 'quotes' and /slashes/", "0"])
def test_step_names_are_1_to_256_characters_of_any_text(lab, name):  # S2
    async def run(event, step):
        return await step.do(name, lambda ctx: ctx.step.name)

    assert lab.output(run) == name


# -- what the body sees -----------------------------------------------------------------------------------------------


def test_the_context_shows_the_step_and_the_resolved_config_with_defaults(lab):  # S12
    async def run(event, step):
        def body(ctx):
            return [
                ctx.step.name,
                ctx.step.count,
                ctx["step"]["count"],
                ctx.attempt,
                ctx.config,
                ctx["config"]["timeout"],
                ctx.instance_id,
                ctx.workflow_name,
                ctx.key,
                ctx.index,
            ]

        await step.do("s", body)
        return await step.do("s", body, retries={"limit": 2}, timeout="1 minute")

    config = {"retries": {"limit": 2, "delay": 10, "backoff": "exponential"}, "timeout": 60}
    instance = lab.run(run, id="one")
    assert instance.output == ["s", 2, 2, 1, config, 60, "one", "W", None, None]
    assert instance.step("s").output[4] == {"retries": {"limit": 5, "delay": 10, "backoff": "exponential"}, "timeout": 600}


def test_changing_the_context_changes_nothing(lab):  # S12
    attempts = []

    async def run(event, step):
        def body(ctx):
            attempts.append(ctx.config["retries"]["limit"])
            ctx.config["retries"]["limit"] = 0
            ctx.config.clear()
            if len(attempts) < 3:
                raise ValueError
            return len(attempts)

        return await step.do("s", body, retries=2)

    assert lab.output(run) == 3
    assert attempts == [2, 2, 2]


def test_the_idempotency_key_is_one_for_all_attempts_and_replays_and_differs_otherwise(lab):  # API.md §1
    keys = []

    async def run(event, step):
        async def body(ctx):
            keys.append((ctx.step.name, ctx.step.count, ctx.instance_id, ctx.idempotency_key))
            if ctx.attempt == 1:
                raise ValueError

        await step.do("a", body)
        await step.do("a", body)
        await step.do("b", body)
        await step.wait_for_event("end", "go")

    one, two = lab.start(run, id="one"), lab.start(run, id="two")
    lab.advance("1 hour")
    assert len(keys) == 12
    by_step: dict = {}
    for *which, key in keys:
        by_step.setdefault(tuple(which), set()).add(key)
    assert all(len(found) == 1 for found in by_step.values())
    before = {key for found in by_step.values() for key in found}
    assert len(before) == 6
    keys.clear()
    later = lab.revive(
        [e for e in lab.entries() if e.kind != "do.finished" or e.step != "b" or e.created_seq != one.created_seq][
            : one_ends(lab, one)
        ]
    )
    later.workflow(run)
    later.advance("1 hour")
    assert {key for *_, key in keys} <= before
    assert keys
    keys.clear()
    later.engine.get("two").restart()
    later.advance("1 hour")
    assert len({key for *_, key in keys}) == 3
    assert not {key for *_, key in keys} & before
    assert two.id == "two"


def one_ends(lab, instance):
    """The place of the last entry about a step "b" of that instance that leaves it unfinished."""
    for place, entry in enumerate(lab.entries()):
        if entry.created_seq == instance.created_seq and entry.kind == "do.finished" and entry.step == "b":
            return place
    raise AssertionError


def test_context_variables_set_in_run_are_seen_in_bodies(lab):
    async def run(event, step):
        FLAVOUR.set("vanilla")

        async def from_loop():
            return FLAVOUR.get()

        plain = await step.do("thread", FLAVOUR.get)
        FLAVOUR.set("mint")
        return plain, await step.do("loop", from_loop)

    assert lab.output(run) == ("vanilla", "mint")


def test_plain_bodies_run_in_threads_where_asyncio_run_works(lab):
    async def inner():
        await asyncio.sleep(0)
        return threading.current_thread().name

    async def run(event, step):
        here = threading.current_thread().name
        there = await step.do("s", lambda: asyncio.run(inner()))
        return here != there

    assert lab.output(run) is True


def test_async_bodies_run_on_the_workflow_loop(lab):
    async def run(event, step):
        async def where():
            return threading.get_ident()

        return await step.do("s", where) == threading.get_ident()

    assert lab.output(run) is True


def test_a_value_is_not_awaited_for_having_an_await_of_its_own(lab):
    class Odd:
        def __await__(self):
            raise AssertionError("awaited")

    async def run(event, step):
        try:
            await step.do("s", Odd)
        except NotSerialisableError as error:
            return str(error)

    assert "Odd" in lab.output(run)


# -- what comes back --------------------------------------------------------------------------------------------------


def test_a_finished_step_is_served_from_history_none_too(lab):  # S7
    ran = []

    async def run(event, step):
        values = [
            await step.do("a", lambda: ran.append("a")),
            await step.do("b", lambda: (ran.append("b"), [1, {"x": (2, 3)}])[1]),
            await step.do("c", lambda: (ran.append("c"), 0)[1]),
        ]
        await step.wait_for_event("go", "go")
        return values

    lab.start(run, id="one")
    lab.idle()
    later = lab.revive()
    later.workflow(run)
    instance = later.engine.get("one")
    instance.send_event("go")
    assert later.finish(instance).output == [None, [1, {"x": (2, 3)}], 0]
    assert ran == ["a", "b", "c"]


def test_run_gets_the_decoded_copy_and_never_the_live_object(lab):  # S17
    kept = []

    async def run(event, step):
        def body():
            kept.append([1, 2])
            return kept[0]

        value = await step.do("s", body)
        value.append(3)
        return value is kept[0], value, kept[0]

    assert lab.output(run) == (False, [1, 2, 3], [1, 2])


def test_kinds_of_steps_never_collide(lab):  # S6
    async def run(event, step):
        did = await step.do("x", lambda: "did")
        await step.sleep("x", 1)
        event = await step.wait_for_event("x", "go")
        again = await step.do("x", lambda: "again")
        return did, event.payload, again

    instance = lab.start(run)
    instance.send_event("go", 5)
    assert lab.finish(instance).output == ("did", 5, "again")
    assert [(s.type, s.name, s.count, s.order) for s in instance.steps] == [
        ("do", "x", 1, 1),
        ("sleep", "x", 1, 2),
        ("wait", "x", 1, 3),
        ("do", "x", 2, 4),
    ]


def test_counting_is_in_call_order_also_before_any_is_awaited(lab):  # S8
    async def run(event, step):
        async def body(ctx, tag):
            return ctx.step.name, ctx.step.count, tag

        calls = [step.do(name, body, tag) for tag, name in enumerate(["same", "same", "same-1", "same"])]
        return [await call for call in reversed(calls)]

    assert lab.output(run) == [("same", 3, 3), ("same-1", 1, 2), ("same", 2, 1), ("same", 1, 0)]


def test_new_steps_run_gone_ones_are_ignored_and_moved_ones_are_found(lab):  # S9
    ran = []

    def body(ctx):
        ran.append(ctx.step.name)
        return ctx.step.name

    async def before(event, step):
        await step.do("a", body)
        await step.do("gone", body)
        await step.do("b", body)
        await step.wait_for_event("go", "go")

    async def after(event, step):
        got = [await step.do("b", body), await step.do("new", body), await step.do("a", body)]
        await step.wait_for_event("go", "go")
        return got

    instance = lab.start(before)
    lab.idle()
    ran.clear()
    lab.workflow(after)
    lab.idle()
    assert ran == ["new"]
    assert [str(key) for key in instance.status().unreached] == ["gone"]
    instance.send_event("go")
    assert lab.finish(instance).output == ["b", "new", "a"]
    assert [str(key) for key in instance.status().unreached] == ["gone"]
    later = lab.revive()
    assert [str(key) for key in later.engine.get(instance.id).status().unreached] == ["gone"]  # its end has recorded it
    orders = {s.name: s.order for s in later.engine.get(instance.id).steps if s.type == "do"}
    assert orders == {"a": 1, "gone": 2, "b": 3, "new": 5}  # S8: kept ones keep theirs, new ones count on (4 is the wait)


def test_nothing_is_unreached_when_all_is_reached(lab):  # S9
    async def run(event, step):
        async def outer():
            return await step.do("inner", lambda: 1)

        await step.do("outer", outer)
        await step.wait_for_event("go", "go")

    lab.start(run, id="one")
    lab.idle()
    later = lab.revive()
    later.workflow(run)
    later.idle()
    assert later.engine.get("one").status().unreached == ()


def test_code_outside_steps_runs_once_per_activation(lab):  # S10
    seen = []

    async def run(event, step):
        seen.append("top")
        try:
            await step.do("a", lambda: 1)
            await step.wait_for_event("go", "go")
        finally:
            seen.append("finally")

    instance = lab.start(run, id="one")
    lab.idle()
    instance.pause()
    eventually(lambda: instance.status().status == "paused")
    eventually(lambda: seen == ["top", "finally"])
    instance.resume()
    instance.send_event("go")
    lab.finish(instance)
    assert seen == ["top", "finally"] * 2


def test_each_activation_gets_a_fresh_event(lab):  # S10
    seen = []

    async def run(event, step):
        seen.append((event.payload["xs"][:], event.timestamp, event["payload"] is event.payload))
        event.payload["xs"].append(99)
        event.payload = "changed"
        await step.wait_for_event("go", "go")
        return event.instance_id, event["instanceId"], event.workflow_name, event["workflowName"], event.schedule

    instance = lab.start(run, {"xs": [1]}, id="one")
    lab.idle()
    instance.pause()
    eventually(lambda: instance.status().status == "paused")
    lab.advance("1 day")
    instance.resume()
    instance.send_event("go")
    assert lab.finish(instance).output == ("one", "one", "W", "W", None)
    assert seen == [([1], instance.created_at, True)] * 2
    assert instance.params == {"xs": [1]}


def test_no_params_are_an_empty_dict_and_params_keep_their_types(lab):  # S4
    async def run(event, step):
        return event.payload

    assert lab.output(run) == {}
    assert lab.output(run, (1, {2: {3}}, b"x", 1 + 2j)) == (1, {2: {3}}, b"x", 1 + 2j)


def test_a_body_runs_again_when_the_kernel_died_before_its_record(lab):  # S11
    ran = []

    async def run(event, step):
        return await step.do("s", lambda ctx: (ran.append(ctx.attempt), "done")[1])

    lab.run(run, id="one")
    entries = lab.entries()
    cut = next(i for i, e in enumerate(entries) if e.kind == "do.finished")
    later = lab.revive(entries[:cut])
    later.workflow(run)
    assert later.finish(later.engine.get("one")).output == "done"
    assert ran == [1, 2]


def test_the_call_over_the_limit_of_steps_fails_the_instance_and_says_so(make_lab):  # S14
    lab = make_lab(max_steps=3)

    async def run(event, step):
        for _ in range(3):
            await step.do("ok", lambda: 1)
            await step.sleep("ok", 1)
        await step.do("over", lambda: 1)

    error = lab.failure(run)
    assert isinstance(error, UsageError)
    assert "'over'" in str(error)
    assert "3 are allowed" in str(error)


def test_sleeps_and_waits_do_not_count_as_steps(make_lab):  # S14
    lab = make_lab(max_steps=1)

    async def run(event, step):
        for _ in range(5):
            await step.sleep("s", 1)
        return await step.do("one", lambda: "fine")

    assert lab.output(run) == "fine"


# -- steps in bodies --------------------------------------------------------------------------------------------------


def test_a_step_in_a_body_is_recorded_on_its_own(lab):  # S15
    ran = []

    async def run(event, step):
        async def outer(ctx):
            ran.append(f"outer {ctx.attempt}")
            inner = await step.do("inner", lambda: (ran.append("inner"), 20)[1])
            if ctx.attempt == 1:
                raise ValueError("after the inner one")
            return inner + 1

        return await step.do("outer", outer)

    instance = lab.run(run)
    assert instance.output == 21
    # The second attempt calls a second "inner": counting is in call order (S8).
    assert ran == ["outer 1", "inner", "outer 2", "inner"]
    assert instance.step("inner").output == 20


def test_an_inner_step_that_finished_is_not_run_again_after_a_death(lab):  # S15, S18
    ran = []
    hold = asyncio.Event

    async def run(event, step):
        async def outer(ctx):
            inner = await step.do("inner", lambda: (ran.append("inner"), 20)[1])
            if ctx.attempt == 1:
                await hold().wait()
            return inner + 1

        return await step.do("outer", outer)

    instance = lab.start(run, id="one")
    eventually(lambda: "do.finished inner" in kinds(instance))
    later = lab.revive()
    later.workflow(run)
    assert later.finish(later.engine.get("one")).output == 21
    assert ran == ["inner"]


def test_a_step_in_a_body_takes_no_number_from_those_outside(lab):  # S6, S15, S17
    async def run(event, step):
        async def outer():
            return await step.do("load", lambda: "inner"), await step.do("load", lambda: "second")

        first = await step.do("outer", outer)
        again = await step.do("load", lambda: "own")
        await step.wait_for_event("go", "go")
        return *first, again

    instance = lab.start(run, id="one")
    lab.idle()
    later = lab.revive()
    later.workflow(run)
    later.engine.get("one").send_event("go")
    status = later.finish(later.engine.get("one")).status()
    assert status.output == ("inner", "second", "own")
    assert status.unreached == ()
    recorded = [(str(step.key), step.output) for step in later.engine.get("one").steps if step.name == "load"]
    assert recorded == [("load[outer]", "inner"), ("load#2[outer]", "second"), ("load", "own")]
    assert later.engine.get("one").step("load").output == "own"
    assert later.engine.get("one").step("load", 2).output == "second"
    assert instance.id == "one"


def test_equal_steps_in_parallel_bodies_keep_their_values_over_a_death(lab):  # S15, S18
    hold, ran = Gate(), []

    async def run(event, step):
        def visit(city):
            async def body():
                found = await step.do("fetch", lambda: ran.append(city) or city)
                if city == "Oslo":
                    await step.do("hold", hold)
                return found

            return body

        return await asyncio.gather(*(step.do(city, visit(city)) for city in ("Rome", "Oslo")))

    instance = lab.start(run, id="one")
    hold.reached()
    eventually(lambda: "do.finished Rome" in kinds(instance))
    later = lab.revive()
    hold.open()
    later.workflow(run)
    found = later.finish(later.engine.get("one"))
    assert found.output == ["Rome", "Oslo"]
    assert sorted(ran) == ["Oslo", "Rome"]
    with pytest.raises(UsageError, match=r"several steps 'fetch' number 1: fetch\[Rome\], fetch\[Oslo\]"):
        found.step("fetch")


def test_a_step_two_bodies_deep_in_a_map_keeps_its_value(lab):  # S15, S17
    ran = []

    async def run(event, step):
        async def body(x):
            async def outer():
                return await step.do("load", lambda: ran.append(("deep", x)) or f"deep {x}")

            deep = await step.do("outer", outer)
            own = await step.do("load", lambda: ran.append(("own", x)) or f"own {x}")
            if not ran.count("again"):
                ran.append("again")
                raise ValueError("after both")
            return deep, own

        return await step.map("m", body, range(2), retries={"limit": 2, "delay": 0})

    assert lab.output(run) == [("deep 0", "own 0"), ("deep 1", "own 1")]


@pytest.mark.parametrize("what", ["sleep", "wait_for_event", "sleep_until"])
def test_a_sleep_or_wait_in_a_body_is_refused_with_advice(lab, what):  # S15
    async def run(event, step):
        async def body():
            match what:
                case "sleep":
                    await step.sleep("nap", 1)
                case "sleep_until":
                    await step.sleep_until("nap", 0)
                case _:
                    await step.wait_for_event("nap", "go")

        try:
            await step.do("outer", body, retries=0)
        except UsageError as error:
            return str(error)

    message = lab.output(run)
    assert "'nap'" in message
    assert "'outer'" in message
    assert "move it out" in message


def test_a_step_called_in_a_plain_body_says_where_steps_may_be_called(lab):
    async def run(event, step):
        try:
            await step.do("outer", lambda: step.do("inner", lambda: 1), retries=0)
        except UsageError as error:
            return str(error)

    assert "workflow loop" in lab.output(run)


# -- steps that are not awaited ---------------------------------------------------------------------------------------


def test_an_instance_completes_only_after_steps_that_nobody_awaited(lab):  # S16
    gate = Gate("late")

    async def run(event, step):
        step.do("forgotten", gate)
        return "returned"

    instance = lab.start(run)
    gate.reached()
    assert instance.status().status == "running"
    gate.open()
    assert lab.finish(instance).output == "returned"
    assert instance.step("forgotten").output == "late"


def fails():
    raise ValueError("unseen")


async def forget(step):
    step.do("f", fails, retries=0)


async def forget_before_another(step):
    step.do("f", fails, retries=0)
    await step.do("ok", lambda: 1)


async def forget_task(step):
    forget_task.kept = asyncio.create_task(asyncio.sleep(0))
    task = asyncio.create_task(step.do("f", fails, retries=0))
    await step.do("ok", lambda: 1)
    await step.do("ok", lambda: 1)
    del task


async def forget_decorated(step):
    @step.do(retries=0)
    async def f():
        fails()

    @step.do()
    async def dependant(f):
        return f

    dependant()
    await step.do("ok", lambda: 1)
    await step.do("ok", lambda: 1)


async def forget_in_a_task_of_its_own(step):
    async def background():
        await step.do("ok", lambda: 1)
        await step.do("f", fails, retries=0)

    forget_in_a_task_of_its_own.kept = asyncio.create_task(background())


@pytest.mark.parametrize("how", [forget, forget_before_another, forget_task, forget_decorated, forget_in_a_task_of_its_own])
def test_a_failure_that_nobody_looked_at_fails_the_instance(lab, how):  # S16
    async def run(event, step):
        await how(step)
        return "returned"

    error = lab.failure(run)
    assert (type(error).__name__, str(error)) == ("ValueError", "unseen")


def test_a_failure_that_a_background_task_caught_does_not_fail_the_instance(lab):  # S16
    async def run(event, step):
        async def background():
            try:
                await step.do("f", fails, retries=0)
            except ValueError:
                await step.do("instead", lambda: 1)

        run.kept = asyncio.create_task(background())
        return "returned"

    instance = lab.run(run)
    assert instance.output == "returned"
    assert instance.step("instead").status is StepState.FINISHED


def test_an_unawaited_sleep_holds_the_end_back(lab):  # S16
    async def run(event, step):
        step.sleep("nap", "1 hour")
        return "returned"

    instance = lab.start(run)
    lab.idle()
    assert instance.status().status == "waiting"
    lab.advance("59 minutes")
    assert instance.status().status == "waiting"
    lab.advance("1 minute")
    assert instance.output == "returned"


def test_the_output_must_be_storable(lab):  # S31
    async def run(event, step):
        return {"model": threading.Lock()}

    error = lab.failure(run)
    assert isinstance(error, NotSerialisableError)
    assert "$.model" in str(error) or "model" in str(error)
    assert "lock" in str(error)


def test_a_class_that_cannot_be_made_fails_the_instance(lab):
    from nbflow import WorkflowEntrypoint

    class Broken(WorkflowEntrypoint):
        def __init__(self):
            raise ValueError("no self")

        async def run(self, event, step):
            return 1

    instance = lab.finish(lab.engine.register(Broken).create())
    assert instance.status().status is Status.ERRORED
    assert str(failure_of(instance)) == "no self"


def test_the_attempts_of_a_step_are_listed_and_counted(lab):  # API.md §4
    def flaky(ctx):
        if ctx.attempt < 3:
            raise OSError("busy")

    async def run(event, step):
        await step.do("flaky", flaky, retries={"limit": 5, "delay": 0})

    instance = lab.start(run)
    lab.finish(instance)
    attempts = instance.step("flaky").attempts
    assert [attempt.number for attempt in attempts] == [1, 2, 3]
    assert attempts == 3
    assert 2 < attempts <= 3
    assert attempts != 2
    assert int(attempts) == 3


def test_a_forgotten_await_is_told(lab):
    async def returns_it(event, step):
        return step.do("a", lambda: 1)

    async def uses_it(event, step):
        return step.do("a", lambda: 1).payload

    assert "await it" in str(failure_of(lab.run(returns_it)))
    assert "`await` it first" in str(failure_of(lab.run(uses_it)))
