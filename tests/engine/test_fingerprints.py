"""What counts as the code of a step, point by point (S56). Cells are run as IPython runs them: text in the line cache."""

import functools
import itertools
import linecache
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbflow.core.parts import BODY, changed
from nbflow.engine.code.fingerprints import of_callable, of_class
from nbflow.engine.code.objects import NESTED
from nbflow.engine.code.reach import Reach

_numbers = itertools.count(1)


class Cells:
    """The cells of one notebook."""

    def __init__(self) -> None:
        self.names = {"__name__": "__main__", "functools": functools}

    def run(self, text: str) -> dict:
        file = f"<cell {next(_numbers)}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), self.names)
        return self.names

    def parts(self, name: str = "body", *args) -> dict[str, str]:
        return parts(self.names[name], *args)


def parts(fn, *args) -> dict[str, str]:
    found, bound, _ = of_callable(fn, args)
    assert found is not None
    return {part.label: part.hash for part in found.parts} | {f"{name}=": value for name, value in bound.items()}


def changed_names(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before | after if before.get(name) != after.get(name)}


def of(*texts: str) -> dict[str, str]:
    """The parts of `body` after these cells."""
    cells = Cells()
    for text in texts:
        cells.run(text)
    return cells.parts()


def why(old: str, new: str, *, before: str = "") -> tuple[str, ...]:
    return changed(of(before, old), of(before, new))


def test_the_body_counts_without_comments_docstrings_and_formatting():
    plain = of("def body(x):\n    return [x, 1]")
    assert of('def body(x):\n    """Docs."""\n    # a comment\n    return [\n        x,\n        1,\n    ]') == plain
    assert of("\n\n\nif True:\n  def body( x ):\n      return [x,1]") == plain
    assert why("def body(x):\n    return [x, 1]", "def body(x):\n    return [x, 2]") == (BODY,)


@given(
    blanks=st.integers(0, 3),
    indent=st.sampled_from(["  ", "    ", "\t"]),
    comment=st.text(
        st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\r\n\x0c\x85\u2028\u2029"), max_size=20
    ),
    doc=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_no_formatting_and_no_comment_changes_the_hash(blanks, indent, comment, doc):
    docstring = f'{indent}"""Says what it does."""\n' if doc else ""
    text = (
        "\n" * blanks + f"def body(a, b=2):  # {comment}\n{docstring}{indent}# {comment}\n{indent}return (a +\n   helper(b))\n"
    )
    helper = "def helper(x): return x * 2"
    assert of(helper, text) == of("def helper(x):\n    return x*2", "def body(a,b=2): return a + helper(b)")


def test_lambdas_on_one_line_differ():
    cells = Cells()
    cells.run("a, b, c = lambda: 1, lambda: 2, (lambda: (lambda: 1))")
    names = cells.names
    hashes = [parts(names[name])[BODY] for name in "abc"] + [parts(names["c"]())[BODY]]
    assert len(set(hashes)) == 3
    assert hashes[3] == hashes[0]  # the inner lambda of c is what a is
    cells.run("a2 = lambda: 1")
    assert parts(names["a2"])[BODY] == hashes[0]


def test_lambdas_of_one_line_keep_their_hash_when_one_beside_them_changes():
    cells = Cells()
    cells.run("first, body = (lambda x: x + 1), (lambda x: x + 2)")
    before = cells.parts()
    cells.run("first, body = (lambda x: x + 100), (lambda x: x + 2)")
    assert cells.parts() == before


def test_helpers_count_through_helpers_and_cycles_end():
    chain = "def inner(x): return x + 1\ndef outer(x): return inner(x)\ndef body(): return outer(1)"
    assert why(chain, chain.replace("x + 1", "x + 2")) == ("inner",)
    cycle = "def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and even(n - 1)\ndef body(): return even(4)"
    assert set(of(cycle)) == {BODY, "even", "odd"}
    assert why(cycle, cycle.replace("n != 0", "n > 0")) == ("odd",)


def test_a_redefined_helper_counts_from_the_next_look_on():
    cells = Cells()
    cells.run("def helper(): return 1")
    cells.run("def body(): return helper()")
    before = cells.parts()
    cells.run("def helper(): return 2")
    assert changed(before, cells.parts()) == ("helper",)
    cells.run("def helper():\n    return 1  # again")
    assert cells.parts() == before


def test_small_constants_count_by_value_and_type_and_data_does_not():
    body = "def body(): return VALUE"
    assert why("VALUE = 'small'\n" + body, "VALUE = 'large'\n" + body) == ("VALUE",)
    kinds = [
        "None",
        "True",
        "1",
        "1.0",
        "-0.0",
        "0.0",
        "float('nan')",
        "2j",
        "'a'",
        "b'a'",
        "('a', 1)",
        "('a', True)",
        "2**8000",
    ]
    found = [of(f"VALUE = {kind}\n{body}")["VALUE"] for kind in kinds]
    assert len(set(found)) == len(kinds)
    for one, other in [("[1]", "[2]"), ("{'a': 1}", "{}"), ("'x' * 2000", "'y' * 2000"), ("object()", "object()")]:
        assert why(f"VALUE = {one}\n{body}", f"VALUE = {other}\n{body}") == ()


def test_what_the_code_assigns_itself_is_no_constant():
    cells = Cells()
    cells.run("COUNT = 0\ndef body():\n    global COUNT\n    COUNT += 1\n    return COUNT")
    before = cells.parts()
    cells.names["body"]()
    assert cells.names["COUNT"] == 1
    assert cells.parts() == before


def test_partials_closures_and_defaults_count_by_what_they_bind():
    make = "def make(i, fn):\n    def body(): return fn(i)\n    return body\ndef one(x): return x\ndef two(x): return x + 2\n"
    cells = Cells()
    cells.run(make)
    first, same, other, function = (
        cells.run(f"body = make({given})") and cells.parts() for given in ("1, one", "1, one", "2, one", "1, two")
    )
    assert first == same
    assert changed(first, other) == ("i=",)
    assert "two" in changed(first, function)
    cells.run("body = functools.partial(one, 5)")
    five = cells.parts()
    cells.run("body = functools.partial(one, 6)")
    assert changed(five, cells.parts()) == ("arguments=",)
    cells.run("bodies = [lambda i=i: i for i in (1, 2)]")
    assert changed(*map(parts, cells.names["bodies"])) == ("i=",)


def test_large_data_in_closures_does_not_count():
    cells = Cells()
    cells.run("def make(docs):\n    def body(): return len(docs)\n    return body")
    cells.run("one, two = make(['a'] * 5000), make(['b'] * 9000)")
    assert parts(cells.names["one"]) == parts(cells.names["two"])


def test_decorated_and_cached_functions_count_with_their_decorator():
    wraps = (
        "def timed(fn):\n    @functools.wraps(fn)\n    def wrapper(*a): return fn(*a)\n    return wrapper\n"
        "@timed\ndef body(): return 1"
    )
    assert set(of(wraps)) == {BODY, "timed"}
    assert why(wraps, wraps.replace("return 1", "return 2")) == (BODY,)
    assert why(wraps, wraps.replace("return fn(*a)", "return [fn(*a)]")) == ("timed",)
    bare = wraps.replace("    @functools.wraps(fn)\n", "").replace("def body", "def work").replace("1", "1\nbody = work")
    assert why(bare, bare.replace("return 1", "return 2")) != ()
    cached = "@functools.lru_cache\ndef helper(): return 1\ndef body(): return helper()"
    assert why(cached, cached.replace("return 1", "return 2")) == ("helper",)
    direct = "@functools.lru_cache(maxsize=None)\ndef body(): return 1"
    assert why(direct, direct.replace("return 1", "return 2")) == (BODY,)


def test_decorators_that_say_how_a_step_runs_are_not_its_code():
    step = "class step:\n    def do(*a, **k): return lambda fn: fn\n"
    cells = Cells()
    cells.run(step + "@step.do('load', retries=1)\ndef body(): return 1")
    before = cells.parts()
    cells.run("@step.do('load', retries=5, timeout='1 hour')\ndef body(): return 1")
    assert cells.parts() == before


CLASSES = """
class Base:
    def shared(self): return 1
class Model(Base):
    '''Docs.'''
    size = 3
    def encode(self, x): return clean(x) + self.size
def clean(x): return x
model = Model()
"""


@pytest.mark.parametrize(
    "body",
    ["def body(): return model.encode(1)", "def body(): return Model().encode(1)", "body = model.encode", "body = Model"],
)
def test_classes_methods_and_objects_count_with_bases_and_what_methods_reach(body):
    whole = CLASSES + body
    label = BODY if body == "body = Model" else "Model"
    assert set(why(whole, whole.replace("+ self.size", "- self.size"))) <= {"Model", BODY}
    assert why(whole, whole.replace("+ self.size", "- self.size")) != ()
    assert label in why(whole, whole.replace("size = 3", "size = 4"))
    assert why(whole, whole.replace("return 1", "return 2")) == ("Base",)
    assert why(whole, whole.replace("def clean(x): return x", "def clean(x): return -x")) == ("clean",)
    assert why(whole, whole.replace("Docs.", "Other docs.")) == ()


def test_callable_objects_count_by_their_call():
    text = "class Call:\n    def __call__(self): return helper()\ndef helper(): return 1\nbody = Call()"
    assert why(text, text.replace("return helper()", "return [helper()]")) != ()
    assert why(text, text.replace("return 1", "return 2")) == ("helper",)


def test_classes_without_methods_count_by_their_fields():
    text = (
        "import dataclasses\n@dataclasses.dataclass\nclass Doc:\n    text: str\n    size: int = 3\ndef body(): return Doc('a')"
    )
    assert why(text, text.replace("size: int = 3", "size: int = 4")) == ("Doc",)
    assert why(text, text.replace("text: str", "text: bytes")) == ("Doc",)
    enum = "import enum\nclass Colour(enum.Enum):\n    RED = 1\ndef body(): return Colour.RED"
    assert why(enum, enum.replace("RED = 1", "RED = 2")) == ("Colour",)


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("data", ["chain(20_000)", "tree(14)"])
def test_of_data_that_is_nested_without_end_a_little_is_looked_at_and_the_rest_of_the_code_counts(data, bound):
    cells = Cells()
    cells.run(
        "def chain(depth):\n    made = []\n    for _ in range(depth):\n        made = [made]\n    return made\n"
        "def tree(depth):\n    return {'left': tree(depth - 1), 'right': tree(depth - 1)} if depth else {}\n"
        "def helper():\n    return 1\n"
    )
    body = "def make():\n    held = DATA\n    def body():\n        return held, helper()\n    return body\nbody = make()"
    cells.run(f"DATA = {data}\n" + (body if bound else "def body():\n    return DATA, helper()"))
    before = cells.parts()
    walk = Reach()
    walk.root(cells.names["body"])
    assert 0 < len(walk.snapshots) <= NESTED
    cells.run("def helper():\n    return 2")
    assert changed_names(before, cells.parts()) == {"helper"}


def test_functions_in_small_containers_count():
    text = "def load(): return 1\nSTEPS = {'load': [load, (lambda: 5)]}\ndef body(): return STEPS['load'][0]()"
    assert why(text, text.replace("return 1", "return 2")) == ("load",)
    assert why(text, text.replace("lambda: 5", "lambda: 6")) == ("STEPS",)
    cells = Cells()
    cells.run(text)
    before = cells.parts()
    cells.names["STEPS"]["load"][0] = len
    assert cells.parts() != before


@pytest.mark.parametrize("held", ["1", "('a', 1)", "(('a', 1), [(2,)])", "[('a', 1)]", "{'a': (1,)}", "()", "load"])
@pytest.mark.parametrize(
    "put", ["DATA.append({})", "DATA[0] = {}", "DATA[:] = [{}] * 40", "TABLE['k'] = {}", "TABLE['d'] = [{}]"]
)
def test_what_bodies_put_into_lists_and_dicts_is_data(put, held):
    text = (
        "def load(): return load\nDATA = [('b', 2)]\nTABLE = {'k': (5,)}\ndef note():\n    PUT\n    return load\n"
        "def make(data, table):\n    def body(): return note(), data, table\n    return body\nbody = make(DATA, TABLE)"
    )
    cells = Cells()
    cells.run(text.replace("PUT", put.format(held)))
    before = cells.parts()
    for _ in range(3):
        cells.names["body"]()
        assert cells.parts() == before
    cells.run("def load(): return 5")
    assert changed_names(before, cells.parts()) >= {"load"}


def test_tuples_of_constants_count_where_they_are_read_and_not_in_what_holds_data():
    body = "def body(): return VALUE"
    for one, other in [
        ("[(1, 1)]", "[(1, 2)]"),
        ("{'a': ('x',)}", "{'a': ('y',)}"),
        ("{(1,)}", "{(2,)}"),
        ("[len, (1,)]", "[len, (2,)]"),
        ("(len, (1,))", "(len, (2,))"),
        ("[[((1,),)]]", "[[((2,),)]]"),
    ]:
        assert why(f"VALUE = {one}\n{body}", f"VALUE = {other}\n{body}") == ()
    assert why(f"VALUE = (1, (2,))\n{body}", f"VALUE = (1, (3,))\n{body}") == ("VALUE",)
    cells = Cells()
    cells.run("def one(x): return x\ndef make(x):\n    def body(): return x\n    return body")
    for form in ("lambda x=VALUE: x", "functools.partial(one, VALUE)", "make(VALUE)"):
        texts = [f"VALUE = {held}\nbody = {form}" for held in ("(1, 2)", "(1, 3)", "[(1, 2)]", "[(1, 3)]")]
        found = [cells.run(text) and cells.parts() for text in texts]
        assert found[0] != found[1]
        assert found[2] == found[3]
    table = "def load(): return 1\nSTEPS = [('load', 1, (load, 'a'))]\ndef body(): return STEPS"
    assert why(table, table.replace("return 1", "return 2")) == ("load",)
    assert why(table, table.replace("'load', 1", "'read', 2")) == ()


def test_data_that_grows_is_looked_over_once_and_what_it_holds_of_code_each_time(monkeypatch):
    walks = []
    monkeypatch.setattr("nbflow.engine.code.fingerprints.Reach", lambda: walks.append(1) or Reach())
    cells = Cells()
    cells.run("def load(): return 1\nDATA = []\ndef body(): return DATA")
    before = cells.parts()
    for n in range(100):
        cells.names["DATA"].append(("row", n))
        assert cells.parts() == before
    assert len(walks) == 1
    cells.names["DATA"][3:] = [cells.names["load"]]
    assert changed_names(before, cells.parts()) == {"load"}


def test_functions_among_the_arguments_count():
    cells = Cells()
    cells.run("def apply(fn, x): return fn(x)\ndef clean(x): return x")
    before = cells.parts("apply", cells.names["clean"], 1)
    cells.run("def clean(x): return -x")
    assert changed(before, cells.parts("apply", cells.names["clean"], 1)) == ("clean",)


def test_installed_modules_do_not_count_and_one_that_is_given_counts_by_name():
    assert set(of("import json\ndef body(): return json.dumps(textwrap.dedent(''))\nimport textwrap")) == {BODY}
    assert parts(linecache.getline) == parts(linecache.getline)
    assert parts(linecache.getline) != parts(linecache.getlines)
    assert parts(len) != parts(sorted)


def test_modules_beside_the_notebook_count_by_what_is_asked_of_them(tmp_path, monkeypatch):
    import importlib

    file = tmp_path / "beside_the_notebook.py"
    file.write_text("def clean(x):\n    return x\ndef other():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    cells = Cells()
    cells.run("import beside_the_notebook as lib\ndef body(): return lib.clean(1)")
    before = cells.parts()
    assert set(before) == {BODY, "lib.clean"}
    file.write_text("def clean(x):\n    return -x  # another length\ndef other():\n    return 2\n")
    linecache.checkcache(str(file))
    importlib.invalidate_caches()
    importlib.reload(cells.names["lib"])
    assert changed(before, cells.parts()) == ("lib.clean",)


def test_methods_of_the_workflow_count_and_its_run_does_not():
    text = """
from nbflow import WorkflowEntrypoint
class Flow(WorkflowEntrypoint):
    size = 3
    async def run(self, event, step):
        return 'RUN'
    def load(self): return self.clean(1) + self.size
    def clean(self, x): return x
    def unused(self): return 7
    def body_of(self):
        def body(): return self.load()
        return body
body = Flow().load
"""
    for ending in ("", "body = Flow().body_of()"):
        whole = text + ending
        assert why(whole, whole.replace("'RUN'", "'OTHER'")) == ()
        assert why(whole, whole.replace("return 7", "return 8")) == ()
        assert why(whole, whole.replace("return x", "return -x")) == ("Flow.clean",)
        assert why(whole, whole.replace("size = 3", "size = 4")) == ("Flow.size",)
        assert why(whole, whole.replace("clean(1)", "clean(2)")) != ()


def test_code_without_source_counts_by_its_bytecode_wherever_it_stands():
    def compiled(text: str, file: str):
        names = {"__name__": "__main__"}
        exec(compile(text, file, "exec"), names)
        return parts(names["body"])

    one = compiled("def body(x): return [y for y in x if y in {1, 2}]", "<nowhere 1>")
    assert compiled("\n\n\ndef body(x):\n    'docs'\n    return [y for y in x if y in {2, 1}]", "<nowhere 2>") == one
    assert compiled("def body(x): return [y for y in x if y in {1, 3}]", "<nowhere 3>") != one


def test_nothing_of_the_users_is_called_and_nothing_raises():
    text = """
class Meta(type):
    def __getattribute__(cls, name): raise SystemExit(name)
    def __instancecheck__(cls, other): raise SystemExit('instance')
    def __hash__(cls): raise SystemExit('hash')
    def __eq__(cls, other): raise SystemExit('eq')
class Hostile(metaclass=Meta):
    def __getattribute__(self, name): raise SystemExit(name)
    def __eq__(self, other): raise SystemExit('eq')
    def __hash__(self): raise SystemExit('hash')
    def __repr__(self): raise SystemExit('repr')
    def __bool__(self): raise SystemExit('bool')
    def __len__(self): raise SystemExit('len')
hostile = Hostile()
def make(given):
    def body(x=given): return hostile, given, HELD
    return body
HELD = [hostile, {'a': hostile}, (hostile,)]
body = make(hostile)
"""
    cells = Cells()
    cells.run(text)
    assert BODY in cells.parts()
    assert of_callable(cells.names["hostile"]) is not None
    of_callable(types.SimpleNamespace(), (cells.names["hostile"], cells.names["Hostile"]))
    of_class(cells.names["Hostile"])


def test_endless_structures_end():
    cells = Cells()
    cells.run("LOOP = []\nLOOP.append(LOOP)\ndef make():\n    def body(): return body, LOOP\n    return body\nbody = make()")
    assert BODY in cells.parts()
    cells.run("\n".join(f"def f{n}(): return f{n + 1}()" for n in range(3000)) + "\ndef body(): return f0()")
    assert BODY in cells.parts()


@pytest.mark.parametrize("word", ["function", "class"])
def test_a_workflow_counts_with_all_it_reaches(word):
    text = "def helper(): return 1\nclass Flow:\n    async def run(self, event, step):\n        return await step.do('a', helper)\n"
    changed_text = text.replace("return 1", "return 2") if word == "function" else text.replace("'a'", "'b'")

    def hash_of(source: str) -> str:
        cells = Cells()
        cells.run(source)
        return of_class(cells.names["Flow"]).hash

    assert hash_of(text) == hash_of(text + "# more")
    assert hash_of(text) != hash_of(changed_text)
