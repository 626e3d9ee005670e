"""`ctx` is given by name, wherever it stands, to whatever a body is made of (API.md §1)."""

import functools

import pytest

from nbflow.testing import introspect

P = functools.partial


def first(ctx, a):
    return a, ctx.attempt


def middle(a, ctx, b):
    return a, b, ctx.attempt


async def async_middle(a, ctx, b):
    return a, b, ctx.attempt


def last(a, b, ctx):
    return a, b, ctx.attempt


def positional(a, ctx, /, b=2):
    return a, b, ctx.attempt


def all_defaults(a=1, b=2, ctx=None, /):
    return a, b, ctx.attempt


def call(ctx, prompt, model="small"):
    return prompt, model, ctx.attempt


async def call_by_keyword(ctx, prompt, *, model):
    return prompt, model, ctx.attempt


def through(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Many:
    def method(self, a, ctx, b):
        return a, b, ctx.attempt

    async def __call__(self, a, ctx, b):
        return a, b, ctx.attempt

    @classmethod
    def of_class(cls, a, ctx, b):
        return a, b, ctx.attempt

    @staticmethod
    def static(a, ctx, b):
        return a, b, ctx.attempt

    bound = functools.partialmethod(method, 1)
    by_keyword = functools.partialmethod(method, b=2)


class Sub(functools.partial):
    pass


def with_marks(partial):
    partial.mark = "so that functools does not flatten it"
    return partial


BODIES = {
    "nothing bound, first": (P(first), (1,), (1, 1)),
    "nothing bound, middle": (P(middle), (1, 2), (1, 2, 1)),
    "nothing bound, last": (P(last), (1, 2), (1, 2, 1)),
    "before it": (P(middle, 1), (2,), (1, 2, 1)),
    "before it, async": (P(async_middle, 1), (2,), (1, 2, 1)),
    "all but it": (P(last, 1, 2), (), (1, 2, 1)),
    "some before it": (P(last, 1), (2,), (1, 2, 1)),
    "after it by keyword": (P(middle, b=2), (1,), (1, 2, 1)),
    "before it by keyword": (P(middle, a=1, b=2), (), (1, 2, 1)),
    "both ways": (P(middle, 1, b=2), (), (1, 2, 1)),
    "a default by keyword": (P(call, model="big"), ("hi",), ("hi", "big", 1)),
    "keyword-only": (P(call_by_keyword, model="big"), ("hi",), ("hi", "big", 1)),
    "the one after it": (P(call, prompt="hi"), (), ("hi", "small", 1)),
    "partial of partial": (P(P(middle, 1), b=2), (), (1, 2, 1)),
    "partial of a marked partial": (P(with_marks(P(middle, 1))), (2,), (1, 2, 1)),
    "subclass of partial": (Sub(Sub(middle, 1)), (2,), (1, 2, 1)),
    "method": (Many().method, (1, 2), (1, 2, 1)),
    "partial of a method": (P(Many().method, 1), (2,), (1, 2, 1)),
    "partial of a function of a class": (P(Many.method, Many(), 1), (2,), (1, 2, 1)),
    "partial of a class method": (P(Many.of_class, 1), (2,), (1, 2, 1)),
    "partial of a static method": (P(Many.static, 1), (2,), (1, 2, 1)),
    "partialmethod": (Many().bound, (2,), (1, 2, 1)),
    "partialmethod by keyword": (Many().by_keyword, (1,), (1, 2, 1)),
    "object": (Many(), (1, 2), (1, 2, 1)),
    "partial of an object": (P(Many(), 1), (2,), (1, 2, 1)),
    "wrapped": (through(middle), (1, 2), (1, 2, 1)),
    "partial of wrapped": (P(through(middle), 1), (2,), (1, 2, 1)),
    "wrapped partial": (through(P(middle, 1)), (2,), (1, 2, 1)),
    "partial that looks like its function": (functools.update_wrapper(P(middle, 1), middle), (2,), (1, 2, 1)),
    "partial of such a one": (P(functools.update_wrapper(P(last, 1), last), 2), (), (1, 2, 1)),
    "positional-only": (positional, (1,), (1, 2, 1)),
    "partial of positional-only": (P(positional, 1), (3,), (1, 3, 1)),
    "positional-only after defaults": (all_defaults, (3,), (3, 2, 1)),
    "bound by position": (P(lambda ctx, a: (ctx, a), "mine"), (2,), ("mine", 2)),
}


@pytest.mark.parametrize("name", BODIES)
def test_args_fill_the_parameters_beside_ctx_whatever_the_body_is_made_of(lab, name):
    fn, args, wanted = BODIES[name]

    async def run(event, step):
        found = [await step.do("s", fn, *args, retries=0)]
        if len(args) == 1:
            found += await step.map("m", fn, args, retries=0)
        return found

    instance = lab.run(run)
    assert instance.status().error is None
    assert instance.output == [wanted] * (1 + (len(args) == 1))


def test_a_body_that_is_made_to_fail_first_gets_the_same_then(lab):
    async def run(event, step):
        return await step.do("s", P(middle, 1), 2)

    workflow = lab.workflow(run)
    introspect(workflow).mock_step_error("s", ValueError("mocked"), times=1)
    assert lab.finish(workflow.create()).output == (1, 2, 2)


def test_a_positional_only_ctx_with_nothing_for_what_stands_before_it_is_pythons_error(lab):
    async def run(event, step):
        await step.do("s", positional, retries=0)

    assert "missing 2 required positional arguments: 'a' and 'ctx'" in str(lab.failure(run))


def test_decorated_partials_get_ctx_and_what_they_depend_on(lab):
    async def run(event, step):
        @step.do()
        def b():
            return 2

        return await step.do("s")(P(middle, 1))(), await step.do("t")(functools.update_wrapper(P(middle, 1), middle))()

    assert lab.output(run) == ((1, 2, 1), (1, 2, 1))


def test_what_a_decorated_step_depends_on_may_be_positional_only(lab):
    async def run(event, step):
        @step.do()
        def one():
            return 1

        @step.do()
        def two(one, ctx, /, *, more=0):
            return one + ctx.attempt + more

        @step.do()
        async def three(one, ctx, /, two):
            return one, two, ctx.attempt

        return await three()

    assert lab.output(run) == (1, 2, 1)


def test_rollback_handlers_that_are_partials_get_what_they_leave_open(lab):
    undone = []

    def undo(client, output, ctx, step_name):
        undone.append((client, output, ctx.attempt, step_name))

    async def run(event, step):
        await step.do("a", lambda: "A", rollback=P(undo, "client"))
        await step.do("b", lambda: "B", rollback=functools.update_wrapper(P(undo, "client", "mine"), undo))
        await step.do("c", lambda: 1 / 0, retries=0)

    lab.run(run)
    assert undone == [("client", "mine", 1, "b"), ("client", "A", 1, "a")]


def test_delay_functions_may_be_partials(lab):
    async def later(base, ctx, error, *, more):
        return base + ctx.attempt + more

    async def run(event, step):
        fn = P(lambda a, ctx, b: 1 / 0 if ctx.attempt == 1 else (a, b), 1)
        return await step.do("s", fn, 2, retries={"limit": 1, "delay": P(later, 10, more=5)})

    assert lab.output(run) == (1, 2)
