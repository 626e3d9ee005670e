"""Which class of a cell is its workflow, and what of its code counts (API.md §3, S56)."""

import ast
import re
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbflow.core.source import classes, code_hash, find_workflow, hash_of, parse
from nbflow.errors import UsageError

IMPORT = "from nbflow import WorkflowEntrypoint\n"
RUN = "    async def run(self, event, step):\n        return 1\n"
ADD = re.escape("add the line: from nbflow import WorkflowEntrypoint")


def workflow(name: str = "Ingest", base: str = "WorkflowEntrypoint", body: str = RUN) -> str:
    return f"class {name}({base}):\n{body}"


def names(text: str, **given_) -> list[str]:
    return [each.class_name for each in classes(parse(text), text, **given_) if each.workflow]


def test_the_one_class_is_found_with_its_lines_bases_and_text():
    text = "import x\n\n" + IMPORT + "\n@decorate\n" + workflow() + "\nclass Helper:\n    pass\n"
    found = find_workflow(text)
    assert (found.class_name, found.start_line, found.end_line, found.bases) == ("Ingest", 5, 8, ("WorkflowEntrypoint",))
    assert found.text == ("@decorate\n" + workflow()).rstrip()
    assert text.split("\n")[found.start_line - 1] == "@decorate"


@pytest.mark.parametrize(
    "text",
    [
        IMPORT + workflow(),
        workflow(),
        "import nbflow\n" + workflow(base="nbflow.WorkflowEntrypoint"),
        "import nbflow as nb\n" + workflow(base="nb.WorkflowEntrypoint"),
        "from nbflow import WorkflowEntrypoint as W\n" + workflow(base="W"),
        "from nbflow import *\n" + workflow(),
        IMPORT + "Base = WorkflowEntrypoint\n" + workflow(base="Base"),
        "import nbflow\nBase = nbflow.WorkflowEntrypoint\n" + workflow(base="Base"),
        IMPORT + "class Base(WorkflowEntrypoint):\n    pass\n" + workflow(base="Base"),
        IMPORT + workflow("Base") + "class Ingest(Mixin, Base):\n    pass\n",
        IMPORT + workflow(base="Mixin, WorkflowEntrypoint"),
        IMPORT + workflow(base="WorkflowEntrypoint[Params]"),
        IMPORT + "if x:\n    y = 1\nelse:\n" + textwrap.indent(workflow(), "    "),
        IMPORT + "try:\n    import y\nexcept ImportError:\n" + textwrap.indent(workflow(), "    "),
        IMPORT + "match x:\n    case 1:\n" + textwrap.indent(workflow(), "        "),
        IMPORT + "await warm_up()\n" + workflow() + "await more()\n",
        IMPORT + workflow() + workflow(),
        IMPORT.replace("\n", "\r\n") + workflow().replace("\n", "\r\n"),
        IMPORT + workflow(body="    run = other_run\n"),
        IMPORT + workflow(body="    @traced\n    def run(self, event, step):\n        pass\n"),
        IMPORT + workflow(body="    if x:\n        async def run(self, event, step):\n            pass\n"),
        IMPORT + "def factory():\n    class Inner(WorkflowEntrypoint):\n        pass\n" + workflow(),
    ],
)
def test_a_workflow_is_known_however_the_cell_names_its_base(text):
    assert find_workflow(text).class_name == "Ingest"


def test_a_base_of_an_earlier_cell_is_known_from_the_namespace():
    text = "class Ingest(Base):\n    pass\n"
    assert names(text) == []
    assert names(text, workflows=["Base"]) == ["Ingest"]
    assert find_workflow(text, workflows=["Base"], defined=["Base"]).run == "unknown"


def test_a_name_that_the_cell_binds_anew_is_no_workflow_any_more():
    assert names("Base = 3\nclass Ingest(Base): pass\n", workflows=["Base"]) == []
    assert names("class Ingest: pass\nclass Other(Ingest): pass\n", workflows=["Ingest"]) == []
    assert names("from shapes import Ingest\n", workflows=["Ingest"]) == []


def test_a_class_that_builds_on_its_own_earlier_version_is_one():
    assert find_workflow("class Ingest(Ingest):\n    pass\n", workflows=["Ingest"]).class_name == "Ingest"


@pytest.mark.parametrize("text", ["", "x = 1\n", "%matplotlib inline".replace("%", "# ")])
def test_a_cell_without_a_class_says_what_a_workflow_is(text):
    with pytest.raises(UsageError, match=r"this cell defines no class: .*subclasses WorkflowEntrypoint.*from nbflow import"):
        find_workflow(text)


def test_a_cell_with_other_classes_names_them():
    with pytest.raises(UsageError, match="this cell defines no workflow, only 'A', 'B': "):
        find_workflow("class A: pass\nclass B(A): pass\n")


def test_a_class_that_has_run_and_lacks_the_base_is_told_so():
    with pytest.raises(UsageError, match=r"class 'Ingest' has a run method but .*`class Ingest\(WorkflowEntrypoint\):`"):
        find_workflow("class Ingest:\n" + RUN + "class Helper(dict):\n    pass\n")


def test_several_workflows_are_refused_by_name():
    with pytest.raises(UsageError, match="defines 2 workflows: 'A', 'B'; a cell holds one"):
        find_workflow(IMPORT + workflow("A") + workflow("B"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (workflow(), "class 'Ingest' subclasses WorkflowEntrypoint, but 'WorkflowEntrypoint' is not defined; " + ADD),
        (workflow(base="nbflow.WorkflowEntrypoint"), "'nbflow' is not defined; add the line: import nbflow$"),
        (workflow(base="nb.WorkflowEntrypoint"), "'nb' is not defined; add the line: import nbflow as nb$"),
        (workflow("Base") + "class Ingest(Base): pass\n", "class 'Base' subclasses WorkflowEntrypoint, .*" + ADD),
    ],
)
def test_a_missing_name_comes_with_the_import_line_to_add(text, says):
    with pytest.raises(UsageError, match=says):
        find_workflow(text, defined=["x", "y"])


@pytest.mark.parametrize(
    "text",
    [
        IMPORT + workflow(),
        "from nbflow import *\n" + workflow(),
        "if 1:\n    import nbflow\nclass A(nbflow.WorkflowEntrypoint):\n" + RUN,
    ],
)
def test_a_name_that_the_cell_binds_is_not_missing(text):
    assert find_workflow(text, defined=())


@pytest.mark.parametrize("defined", ["WorkflowEntrypoint", "nbflow"])
def test_a_name_of_an_earlier_cell_is_not_missing(defined):
    base = defined if defined == "WorkflowEntrypoint" else "nbflow.WorkflowEntrypoint"
    assert find_workflow(workflow(base=base), defined=[defined])


def test_an_import_from_cloudflares_module_is_answered_with_ours():
    with pytest.raises(
        UsageError, match="line 2 imports from 'workers', which is Cloudflare's; write instead: from nbflow import"
    ):
        find_workflow("import x\nfrom workers import WorkflowEntrypoint\n" + workflow())


@pytest.mark.parametrize(
    "head",
    [IMPORT + "class Ingest(WorkflowEntrypoint):\n", "from nbflow import WorkflowEntrypoint as W\nclass Ingest(W[int]):\n"],
)
def test_a_workflow_without_run_is_refused(head):
    with pytest.raises(UsageError, match=r"class 'Ingest' has no run method; .*async def run"):
        find_workflow(head + "    async def go(self): pass\n")


def test_a_plain_def_run_is_refused_also_when_inherited():
    plain = IMPORT + workflow("Base", body="    def run(self, event, step): pass\n")
    with pytest.raises(UsageError, match="class 'Base' has a plain `def run`"):
        find_workflow(plain)
    with pytest.raises(UsageError, match="class 'Ingest' has a plain `def run`"):
        find_workflow(plain + "class Ingest(Base):\n    pass\n")
    assert find_workflow(plain + workflow(base="Base")).run == "async"


def test_a_syntax_error_is_pythons_own():
    with pytest.raises(SyntaxError):
        find_workflow("class Ingest(\n")


def test_warnings_about_the_cell_are_left_to_its_run():
    assert find_workflow(IMPORT + "x = '\\d'\nassert (1, 'x')\n" + workflow())


PLAIN = """
class Ingest(Base):
    limit = 3

    async def run(self, event, step):
        docs = await step.do("load", load, event.payload["source"], retries={"limit": 3})
        return [d for d in docs if d and "x" in d]
"""


@pytest.mark.parametrize(
    "same",
    [
        PLAIN.replace("\n", "\n\n"),
        PLAIN.replace("    limit = 3", "    limit = 3  # a comment"),
        PLAIN.replace("class Ingest(Base):", 'class Ingest(Base):\n    """Say what it does."""'),
        PLAIN.replace("step):", "step):\n        '''Say what it does.'''"),
        PLAIN.replace("        return", '        "a note to myself"\n        return'),
        PLAIN.replace('"load", load', "\n'load',\n      (load)\n"),
        textwrap.indent(PLAIN, "    "),
        PLAIN.replace("limit = 3", "limit = 0x3"),
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace('"load"', 'u"load"').replace('"x"', '"\\x78"'),
    ],
)
def test_docstrings_comments_and_formatting_do_not_count(same):
    assert same != PLAIN
    assert code_hash(same) == code_hash(PLAIN)


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace("limit = 3", "limit = 3.0"),
        PLAIN.replace("limit = 3", "limit = True"),
        PLAIN.replace("limit = 3", "limit = None"),
        PLAIN.replace("limit = 3", "limit = '3'"),
        PLAIN.replace("limit = 3", "limit: int = 3"),
        PLAIN.replace('"load"', '"Load"'),
        PLAIN.replace('"load"', 'b"load"'),
        PLAIN.replace("and", "or"),
        PLAIN.replace("async def", "def"),
        PLAIN.replace("step.do", "step.map"),
        PLAIN.replace("Ingest", "Ingest2"),
        PLAIN.replace('{"limit": 3}', "{**limits}"),
        PLAIN.replace("[d for", "(d for").replace("in d]", "in d)"),
        PLAIN + "    x = 1\n",
    ],
)
def test_what_the_code_does_counts(other):
    assert other != PLAIN
    assert code_hash(other) != code_hash(PLAIN)


sources = st.recursive(
    st.sampled_from(["a", "b", "1", "1.0", "True", "None", "'a'", "b'a'", "...", "-1", "f'{a}'", "f'{a!r:>3}'"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "and", "in", "is", "<"]), inner).map(
            lambda it: f"({it[0]} {it[1]} {it[2]})"
        ),
        st.lists(inner, max_size=3).map(lambda it: f"[{', '.join(it)}]"),
        st.lists(inner, max_size=3).map(lambda it: f"g({', '.join(it)})"),
        st.tuples(inner, inner).map(lambda it: f"{{{it[0]}: {it[1]}, **c}}"),
        inner.map(lambda it: f"(lambda x, *y, z={it}: x)"),
        st.tuples(inner, inner).map(lambda it: f"[{it[0]} for i in {it[1]} if i]"),
    ),
    max_leaves=8,
)


@given(sources, sources)
def test_two_expressions_have_one_hash_exactly_when_their_trees_are_the_same(one, two):
    same = ast.dump(ast.parse(one)) == ast.dump(ast.parse(two))
    # A string that stands alone is a remark, the only thing besides formatting that does not count.
    assert (code_hash(f"x = {one}") == code_hash(f"x = {two}")) == same


@given(sources)
def test_a_hash_outlives_writing_the_tree_anew(source):
    tree = ast.parse(f"x = {source}")
    assert hash_of(ast.parse(ast.unparse(tree))) == hash_of(tree)


@pytest.mark.parametrize(
    "text", ["", "x =", "!ls\n%time", "\0", "x = " + "+".join("1" * 20_000), "x = " + "9" * 10_000, "x = '\\ud800'", "\ud800"]
)
def test_any_text_has_a_hash_and_it_depends_on_the_text(text):
    assert re.fullmatch("[0-9a-f]{32}", code_hash(text))
    assert code_hash(text) != code_hash(text + "\ny = 1")


def test_the_hash_is_the_same_in_every_process():
    program = f"from nbflow.core.source import code_hash; print(code_hash({PLAIN!r}))"
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}
    )
    assert printed.stdout.strip() == code_hash(PLAIN) == "622bd04296b86ce99475f303e504d587"
