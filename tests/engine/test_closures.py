"""What bodies read of the variables of `run`: constants that it wrote down count as code, what it computed does not (S56)."""

import itertools
import textwrap

import msgspec
import pytest

from nbflow.engine.code import frames
from nbflow.engine.code.fingerprints import of_callable
from tests.engine.conftest import revive
from tests.engine.test_fingerprints import Cells

_readings = itertools.count(1000)
PAYLOAD = {"limit": 70_000, "name": "ann", "other": "bob"}


def now() -> float:
    """Another value each time, as a clock gives."""
    return next(_readings) / 2**10


def flow(run: str, above: str = "", members: str = "") -> str:
    lines = ["from nbflow import WorkflowEntrypoint", textwrap.dedent(above), "class Flow(WorkflowEntrypoint):"]
    lines += [textwrap.indent(textwrap.dedent(members), "    "), "    async def run(self, event, step):"]
    return "\n".join(
        [*lines, textwrap.indent(textwrap.dedent(run), "        "), "        await step.wait_for_event('ask', 'a')\n"]
    )


def register(lab, text, module="__main__"):
    cells = Cells()
    cells.names |= {"now": now, "__name__": module}
    cells.run(text)
    workflow = lab.engine.register(cells.names["Flow"], "W", source=text)
    lab.idle()
    return workflow


def recorded(lab, text, module="__main__"):
    """An instance that has run this code until it waits."""
    instance = register(lab, text, module).create(None, PAYLOAD)
    lab.idle()
    assert instance.status().status == "waiting", instance.steps
    return instance


def stale_in(lab, instance, text, module="__main__"):
    """What is stale in a new kernel that runs this code, with why."""
    register(lab, text, module)
    found = lab.engine.get(instance.id)
    changes = {step.name: step.stale_why for step in found.code_changes().stale}
    assert {step.name: step.stale_why for step in found.steps if step.stale} == changes
    return changes


def why(lab, old, new):
    instance = recorded(lab, old)
    revived = lab.revive()
    return stale_in(revived, instance, new)


BODIES = {
    "decorated": "@step.do('s')\ndef s(): return [value]\nawait s()",
    "lambda": "await step.do('s', lambda: [value])",
    "through another": "def read(): return value\nasync def s(): return [read()]\nawait step.do('s', s)",
    "deep": "def outer():\n    def inner(): return [value]\n    return inner\nawait step.do('s', outer())",
    "comprehension": "for each in [(lambda: [value]) for _ in (1,)]: await step.do('s', each)",
    "map": "await step.map('s', lambda x: [value, x], [1, 2])",
    "partial": "import functools\nawait step.do('s', functools.partial(lambda x: [value, x], 5))",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_constant_that_run_wrote_down_counts_and_what_it_computed_does_not(lab, body):
    def text(value):
        return flow(f"value = {value}\n{body}")

    instance = recorded(lab, text("'small'"))
    same = lab.revive()
    assert stale_in(same, instance, text("'small'")) == {}
    edited = same.revive()
    assert stale_in(edited, instance, text("'large'")) == {"s": ("value changed",)}
    computed = edited.revive()
    assert stale_in(computed, instance, text("now()")) == {}  # it cannot be told what it would be


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("value", ["now()", "str(now())", "(now(), 'a')", "int(now() * 2**20)", "await step.do('t', now)"])
def test_what_run_computes_anew_makes_nothing_stale(lab, body, value):
    text = flow(f"value = {value}\n{body}")
    assert why(lab, text, text) == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("event.payload['name']", "event.payload['other']"),
        ("event.payload['limit']", "event.payload['limit'] + 1"),
        ("await step.do('t', lambda: 'ann')", "await step.do('t2', lambda: 'bob')"),
    ],
)
def test_what_run_takes_from_the_payload_or_a_step_is_data(lab, old, new):
    body = "await step.do('s', lambda: [value])"
    text = flow(f"value = {old}\n{body}")
    expected = {"s": ("value changed",)} if "bob" in new and "step" in new else {}  # written in the code, of that step
    assert why(lab, text, flow(f"value = {new}\n{body}")) == expected


WRITTEN = [
    ("300", "301"),
    ("0.5", "0.25"),
    ("1", "True"),
    ("1", "1.0"),
    ("0.0", "-0.0"),
    ("b'a'", "'a'"),
    ("('a', 300)", "('a', 301)"),
    ("60 * 60", "60 * 61"),
    ("-300", "300"),
    ("None", "False"),
    ("3", "4"),
    ("2**60", "2**61"),
]


@pytest.mark.parametrize(("old", "new"), WRITTEN)
def test_constants_count_by_type_and_value(lab, old, new):
    body = "await step.do('s', lambda: [value])"
    assert why(lab, flow(f"value = {old}\n{body}"), flow(f"value = {new}\n{body}")) == {"s": ("value changed",)}


@pytest.mark.parametrize(
    ("above", "members", "old", "new"),
    [
        ("MODEL = 'small'", "", "MODEL", ""),
        ("class Config:\n    model = 'small'", "", "Config.model", ""),
        ("import enum\nclass Model(enum.Enum):\n    A = 'small'", "", "Model.A.value", ""),
        ("def model(): return 'small'", "", "model()", ""),
        ("def model(name='small'): return name", "", "model()", ""),
        ("", "model = 'small'", "self.model", ""),
        ("", "def model(self): return 'small'", "self.model()", ""),
        ("", "", "{'model': 'small'}['model']", ""),
    ],
)
def test_constants_that_run_takes_from_the_code_it_reaches_count(lab, above, members, old, new):
    def text(model):
        run = f"value = {old}\nawait step.do('s', lambda: [value])"
        return flow(*(each.replace("small", model) for each in (run, above, members)))

    assert why(lab, text("small"), text("large")) == {"s": ("value changed",)}


def test_loop_variables_count_where_they_are_written_and_defaults_and_partials_always(lab):
    def text(values):
        run = """
        import functools
        for value in VALUES:
            await step.do("loop", lambda: [value])
            await step.do("default", lambda value=value: [value])
            await step.do("partial", functools.partial(lambda value: [value], value=value))
        [await step.do("comprehension", each) for each in [(lambda: [value]) for value in VALUES]]
        """
        return flow(run.replace("VALUES", values))

    instance = recorded(lab, text("('small', 1000)"))
    names = {"loop", "default", "partial", "comprehension"}
    same = lab.revive()
    assert stale_in(same, instance, text("('small', 1000)")) == {}
    edited = same.revive()
    found = stale_in(edited, instance, text("('small', 1001)"))
    assert found == dict.fromkeys(names, ("value changed",))
    computed = edited.revive()
    assert set(stale_in(computed, instance, text("(now(), now())"))) == {"default", "partial"}


HELPERS = """
async def load(step, model):
    started = now()
    size = 512
    @step.do("s")
    def s(): return [started, size, model]
    return await s()
"""


@pytest.mark.parametrize(
    ("where", "call"), [("above", "await load(step, 'small')"), ("members", "await self.load(step, 'small')")]
)
def test_coroutines_and_methods_that_run_awaits_have_constants_and_data_as_run_has(lab, where, call):
    helper = HELPERS if where == "above" else HELPERS.replace("def load(", "def load(self, ")

    def text(size, model):
        return flow(call.replace("small", model), **{where: helper.replace("512", size)})

    instance = recorded(lab, text("512", "small"))
    for size, model, expected in [
        ("512", "small", ()),
        ("513", "small", ("size changed",)),
        ("512", "large", ("model changed",)),
    ]:
        lab = lab.revive()
        assert stale_in(lab, instance, text(size, model)) == ({"s": expected} if expected else {})


def test_workflows_of_installed_modules_have_constants_and_data_too(lab):
    text = flow("started, size = now(), 512\nawait step.do('s', lambda: [started, size])")
    instance = recorded(lab, text, "json")
    same = lab.revive()
    assert stale_in(same, instance, text, "json") == {}
    edited = same.revive()
    assert stale_in(edited, instance, text.replace("512", "513"), "json").keys() == {"s"}


def test_an_inherited_run_has_constants_and_data(lab):
    text = flow("started, size = now(), 512\nawait step.do('s', lambda: [started, size])").replace("Flow(", "Base(")
    text += "class Flow(Base):\n    pass\n"
    instance = recorded(lab, text)
    same = lab.revive()
    assert stale_in(same, instance, text) == {}
    edited = same.revive()
    assert stale_in(edited, instance, text.replace("512", "513")) == {"s": ("size changed",)}


@pytest.mark.parametrize("wraps", ["", "    @functools.wraps(fn)\n"])
def test_a_decorated_run_has_constants_and_data(lab, wraps):
    above = f"import functools\ndef traced(fn):\n{wraps}    async def call(*args): return await fn(*args)\n    return call"
    text = flow("started, size = now(), 512\nawait step.do('s', lambda: [started, size])", above)
    text = text.replace("    async def run(", "    @traced\n    async def run(")
    instance = recorded(lab, text)
    same = lab.revive()
    assert stale_in(same, instance, text) == {}
    edited = same.revive()
    assert stale_in(edited, instance, text.replace("512", "513")) == {"s": ("size changed",)}


def test_variables_of_factories_in_the_notebook_count_whoever_wrote_them(lab):
    above = """
    def make(name):
        def embed(): return [name]
        return embed
    embed = make(VALUE)
    def flow_of(name):
        class Flow(WorkflowEntrypoint):
            async def run(self, event, step):
                await step.do("s", embed)
                await step.do("t", lambda: [name])
                await step.wait_for_event('ask', 'a')
        return Flow
    """

    def text(value):
        return flow("pass", above.replace("VALUE", value)) + f"Flow = flow_of({value})"

    instance = recorded(lab, text("'sm' + str(now)[:0]"))
    same = lab.revive()
    assert stale_in(same, instance, text("'sm' + str(now)[:0]")) == {}
    edited = same.revive()
    assert stale_in(edited, instance, text("'la' + str(now)[:0]")) == {"s": ("name changed",), "t": ("name changed",)}


def test_flags_and_small_integers_count_whoever_made_them_where_both_sides_have_one(lab):
    def text(value):
        return flow(f"value = {value}\nawait step.do('s', lambda: [value])")

    instance = recorded(lab, text("len(event.payload)"))
    more = lab.revive()
    assert stale_in(more, instance, text("len(event.payload) + 1")) == {"s": ("value changed",)}
    data = more.revive()
    assert stale_in(data, instance, text("now()")) == {}


def test_a_constant_in_the_place_of_what_was_computed_counts_and_none_does_not(lab):
    def text(value):
        return flow(f"value = {value}\nawait step.do('s', lambda: [value])")

    instance = recorded(lab, text("now()"))
    for value, stale in [("'small'", True), ("700", True), ("3", True), ("None", False), ("len(event.payload)", False)]:
        lab = lab.revive()
        assert stale_in(lab, instance, text(value)) == ({"s": ("value changed",)} if stale else {}), value


def test_a_history_in_which_computed_values_are_recorded_is_not_stale_for_them(lab):
    text = flow("value, size = now(), 512\nawait step.do('s', lambda: [value, size])")
    instance = recorded(lab, text)

    def as_before(entry):
        if "bound" not in entry.body:
            return entry
        assert set(entry.body["bound"]) == {"size"}
        return msgspec.structs.replace(entry, body={**entry.body, "bound": {"value": "0badcafe", **entry.body["bound"]}})

    entries = [as_before(entry) for entry in lab.entries()]
    assert entries != lab.entries()
    old = revive(entries, lab, **lab.settings)
    lab.die()
    assert stale_in(old, instance, text) == {}
    edited = old.revive()
    assert stale_in(edited, instance, text.replace("512", "513")) == {"s": ("size changed",)}


def test_a_replay_of_a_finished_and_of_a_running_instance_with_data_in_closures_has_nothing_stale(lab):
    text = flow("started = now()\n@step.do('s')\ndef s(): return [started]\nawait s()")
    instance = recorded(lab, text)
    for _ in range(3):
        instance.pause()
        lab.idle()
        instance.resume()
        lab.idle()
        assert instance.view().stale_steps == ()
        assert instance.code_changes().stale == ()


def test_the_class_of_the_activation_counts_also_after_another_was_registered():
    cells = Cells()
    cells.names["now"] = now
    cells.run(flow("size, value = 512, now()\nreturn lambda: [size, value]"))
    held = frames.Frames(cells.names["Flow"])

    def bodies():
        try:
            cells.names["Flow"]().run(None, None).send(None)
        except StopIteration as end:
            return end.value

    first = bodies()
    cells.run(flow("size, value = 513, now()\nreturn lambda: [size, value]"))
    second = bodies()
    assert set(of_callable(first, (), held)[1]) == {"size"}
    assert of_callable(first, (), held)[2] == {"value"}
    assert set(of_callable(second, (), frames.Frames(cells.names["Flow"]))[1]) == {"size"}
    assert set(of_callable(first, ())[1]) == {"size", "value"}


def test_nan_is_known_again(lab):
    def text(value):
        return flow(f"value = {value}\nawait step.do('s', lambda: [value])", above="NAN = float('nan')")

    instance = recorded(lab, text("NAN"))
    same = lab.revive()
    assert stale_in(same, instance, text("NAN")) == {}
    edited = same.revive()
    assert stale_in(edited, instance, text("0.5")) == {"s": ("value changed",)}
