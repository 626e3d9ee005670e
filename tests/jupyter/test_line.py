"""The raw line of `%%workflow`: what people write means what they think, and everything else is one clear error."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbflow.errors import UsageError
from nbflow.jupyter.line import AWAITED, CellLine, Takes, parse_cell_line, split

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12) | st.binary(max_size=6)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=8
)
TAILS = st.sampled_from(["", " --again", " --wait", " -w 5m", " --as inst", "  --again --wait '2 hours'"])


@given(VALUES, NAMES, TAILS)
def test_any_literal_survives_the_line_whatever_stands_around_it(value, instance_id, tail):
    source = repr(value).replace("inf", "9e999")
    line = parse_cell_line(f"{instance_id} --params {source}{tail}")
    assert line.instance_id == instance_id
    assert ast.literal_eval(line.params) == ast.literal_eval(source)
    assert line.again == ("--again" in tail)


@given(VALUES, NAMES)
def test_the_id_may_follow_the_options_by_its_long_form(value, instance_id):
    source = repr(value).replace("inf", "9e999")
    line = parse_cell_line(f"-p {source} --again --id {instance_id}")
    assert (line.instance_id, line.again) == (instance_id, True)
    assert ast.literal_eval(line.params) == ast.literal_eval(source)


@given(st.text(max_size=60))
def test_no_line_does_anything_but_parse_or_raise_a_usage_error(text):
    try:
        line = parse_cell_line(text)
    except UsageError:
        return
    assert isinstance(line, CellLine)


@pytest.mark.parametrize(
    "source",
    [
        "{'uri': uri, 'n': n}",
        "{n}",
        "f'{n} $x'",
        "dict(a=-5, b='x  y', c=\"--again\")",
        "{'a': [1, -2], 'b': (3, '--wait')}",
        "a - b",
        "x if -1 < y else -5",
        "'it\\'s -- fine'",
        "'''three ' quotes --again'''",
        'r"\\d --again"',
        "lambda: {'a --b': 1}",
        "config['--params']",
    ],
)
def test_params_run_to_the_next_option_outside_brackets_and_quotes(source):
    line = parse_cell_line(f"run-1 --params {source} --again")
    assert (line.instance_id, line.params, line.again) == ("run-1", source, True)


@pytest.mark.parametrize(
    ("text", "instance_id", "at_most"),
    [
        ("--wait", None, None),
        ("-w", None, None),
        ("a1 --wait", "a1", None),
        ("--wait a1", "a1", None),
        ("--wait 5m", None, 300),
        ("--wait 90", None, 90),
        ("--wait 5 minutes", None, 300),
        ("--wait 5 minutes a1", "a1", 300),
        ("--wait '2 hours' a1", "a1", 7200),
        ("a1 --wait 5m --again", "a1", 300),
        ("--wait=30s a1", "a1", 30),
        ("--wait --again", None, None),
        ("--wait 1h 30m a1", "a1", 5400),
        ("a1 --wait 1.5 hours", "a1", 5400),
    ],
)
def test_wait_takes_a_duration_where_one_follows(text, instance_id, at_most):
    line = parse_cell_line(text)
    assert line.wait
    assert (line.instance_id, line.at_most) == (instance_id, at_most)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("--agian", "no option '--agian'"),
        ("--par {}", "no option '--par'"),
        ("-x", "no option '-x'"),
        ("--", "no option '--'"),
        ("a b", "one ID is expected, not 'a' 'b'"),
        ("a --id b", "two ids"),
        ("--id", "--id needs a value"),
        ("--id --again", "--id needs a value"),
        ("--params", "--params needs a Python expression"),
        ("--params --again", "--params needs a Python expression"),
        ("--params {'a': 1", "is never closed"),
        ("--params {'a: 1}", "never closed"),
        ("--params 1)", "closes nothing"),
        ("--params {'a' 1}", "not one Python expression"),
        ("--params x = 1", "not one Python expression"),
        ("--params a -b", "put that in parentheses"),
        ("--again --again", "--again is given twice"),
        ("-p 1 --params 2", "--params is given twice"),
        ("--as 1x", "no name for a variable"),
        ("--as class", "no name for a variable"),
        ("--again=yes", "--again takes no value"),
        ("--wait=", "needs a duration"),
        ("a1 --wait 5 parsecs", "the unit 'parsecs' is unknown"),
        ("--wait 5minits", "the unit 'minits' is unknown"),
        ("--wait '-5 minutes'", "cannot be negative"),
        ("a1 --wait soon", "'soon' after --wait is not a duration"),
        ("--define a1", "--define only registers"),
        ("--define --again", "--define only registers"),
        ("--schedule 0 * * * *", "is not one Python expression"),
        ("--schedule '0 * * * *' --wait", "starts no instance of its own; leave out --wait"),
        ("--each range(3) -p 1", "leave one out"),
        ("'a", "never closed"),
        ("'a'b", "put a space between"),
    ],
)
def test_a_mistake_in_the_line_is_one_clear_error(text, says):
    with pytest.raises(UsageError) as caught:
        parse_cell_line(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert AWAITED not in str(caught.value)


def test_other_magics_use_the_same_splitter_with_their_own_table():
    given_line = split("run-1 --from load --rollback", {"--from": Takes.WORD, "--rollback": Takes.NOTHING}, magic="%workflow")
    assert given_line.words == ("run-1",)
    assert given_line.options == {"--from": "load", "--rollback": None}
