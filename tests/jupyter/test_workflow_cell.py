"""`%%workflow` in a real kernel: the decision table of API.md §3, one test per row, and what a bad cell leaves behind."""

import re
import time

import pytest

from tests.jupyter.kernels import Kernel, kernel_in

pytestmark = pytest.mark.kernel

SETUP = """%load_ext nbflow
import nbflow, os, threading
from nbflow import WorkflowEntrypoint
engine = nbflow.current_engine()
ran = []
def side(name):
    ran.append(name)
    with open("side.txt", "a") as file:
        file.write(name + "\\n")
    return name
"""

ASKS = """%%workflow {line}
class Asks(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("load", side, "load")
        answer = await step.wait_for_event("ask", "approval")
        await step.do("publish", side, "publish")
        return [event.payload, answer.payload]
"""

FAILS = """%%workflow {line}
class Fails(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("load", side, "load")
        @step.do("break", retries=0)
        async def broken():
            {body}
        return await broken()
"""

IDS = "[i.id for name in list(engine.workflows) for i in engine.workflows[name].list()]"


@pytest.fixture
def kernel(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run(SETUP, ok=True)
        yield kernel


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with kernel_in(tmp_path_factory.mktemp("shared")) as kernel:
        kernel.run(SETUP, ok=True)
        yield kernel


def side_effects(kernel: Kernel) -> list[str]:
    path = kernel.folder / "side.txt"
    return path.read_text().split() if path.exists() else []


def restarted(kernel: Kernel) -> None:
    kernel.kill()
    kernel.restart()
    kernel.run(SETUP, ok=True)


# -- the decision table ---------------------------------------------------------------------------------------------------


def test_a_new_id_is_created_and_started(kernel):
    out = kernel.run(ASKS.format(line="a1 --params {'n': 1} --as inst"), ok=True)
    assert "new instance a1" in out.text
    kernel.run("inst.wait(20)", ok=True)
    assert kernel.evaluate("(inst.id, inst.params, inst.status().status.value, ran)") == ("a1", {"n": 1}, "waiting", ["load"])


def test_the_workflows_own_name_may_stand_before_the_id_and_no_others(kernel):  # S3
    for line in ("a1 --as inst", "Asks/a1 --as again"):
        kernel.run(ASKS.format(line=line), ok=True)
    assert kernel.evaluate(f"({IDS}, inst.id == again.id)") == (["a1"], True)
    out = kernel.run(ASKS.format(line="Other/a1"), ok=False)
    assert out.error.startswith(
        "UsageError: instance id 'Other/a1' is not allowed: it names workflow 'Other', and this is workflow 'Asks'"
    )
    kernel.run("inst.wait(20)", ok=True)
    assert "1 of 2 steps" in kernel.run("%workflow show Asks/a1", ok=True).text


def test_without_an_id_the_newest_with_the_same_params_is_taken(kernel):
    kernel.run(ASKS.format(line="--params {'n': 1} --as first"), ok=True)
    kernel.run("first.wait(20)", ok=True)
    kernel.run(ASKS.format(line="--params {'n': 2} --as other"), ok=True)
    kernel.run(ASKS.format(line="--params {'n': 1} --as again"), ok=True)
    assert kernel.evaluate("(again.id == first.id, other.id != first.id)") == (True, True)
    kernel.run("other.wait(20)", ok=True)
    assert kernel.evaluate("ran") == ["load", "load"]


def test_other_params_under_the_same_id_are_refused_and_nothing_happens(kernel):
    kernel.run(ASKS.format(line="a1 --params {'n': 1, 'm': 2} --as inst"), ok=True)
    kernel.run("inst.wait(20)", ok=True)
    out = kernel.run(ASKS.format(line="a1 --params {'n': 1, 'm': 3}"), ok=False)
    assert out.error.startswith("UsageError")
    assert re.search(r"\bm'? differ", out.error)
    assert not re.search(r"\bn\b", out.error)
    assert kernel.evaluate(f"({IDS}, inst.params, ran)") == (["a1"], {"n": 1, "m": 2}, ["load"])


def test_a_running_instance_is_attached_and_nothing_starts_twice(kernel):
    kernel.run("go = threading.Event()")
    code = (
        "%%workflow a1 --as inst\nclass Held(WorkflowEntrypoint):\n    async def run(self, event, step):\n"
        "        await step.do('load', side, 'load')\n        return await step.do('hold', go.wait, 30)\n"
    )
    kernel.run(code, ok=True)
    kernel.until("len(inst.steps) == 2")
    kernel.run("first = inst")
    kernel.run(code, ok=True)
    kernel.run("go.set(); inst.wait(20)", ok=True)
    assert kernel.evaluate("(inst.output, ran, first.id == inst.id, [len(s.attempts) for s in inst.steps])") == (
        True,
        ["load"],
        True,
        [1, 1],
    )


def test_a_waiting_instance_is_attached(kernel):
    for _ in range(3):
        kernel.run(ASKS.format(line="a1 --as inst"), ok=True)
        kernel.run("inst.wait(20)", ok=True)
    kernel.run("inst.send_event('approval', 'yes'); inst.wait(20)", ok=True)
    assert kernel.evaluate("(inst.output, ran)") == ([{}, "yes"], ["load", "publish"])


def test_an_instance_whose_kernel_was_killed_is_resumed_from_history(kernel):
    kernel.run(ASKS.format(line="a1 --as inst"), ok=True)
    kernel.run("inst.wait(20)", ok=True)
    restarted(kernel)
    out = kernel.run(ASKS.format(line="a1 --as inst"), ok=True)
    assert "resumed a1" in out.text
    kernel.run("inst.send_event('approval', 'yes'); inst.wait(20)", ok=True)
    assert kernel.evaluate("inst.output") == [{}, "yes"]
    assert side_effects(kernel) == ["load", "publish"]


def test_without_an_id_the_killed_instance_of_this_notebook_is_resumed(kernel):
    kernel.run(ASKS.format(line="--params {'n': 1} --as inst"), ok=True)
    kernel.run("inst.wait(20)", ok=True)
    restarted(kernel)
    kernel.run(ASKS.format(line="--params {'n': 1} --as inst"), ok=True)
    kernel.run("inst.send_event('approval', 'yes'); inst.wait(20)", ok=True)
    assert kernel.evaluate(f"(inst.output, len({IDS}))") == ([{"n": 1}, "yes"], 1)
    assert side_effects(kernel) == ["load", "publish"]


def test_a_paused_instance_of_a_dead_kernel_is_adopted_and_stays_paused(kernel):
    kernel.run(ASKS.format(line="a1 --as inst"), ok=True)
    kernel.run("inst.wait(20); inst.pause(); inst.wait(20)", ok=True)
    restarted(kernel)
    kernel.run(ASKS.format(line="a1 --as inst"), ok=True)
    assert kernel.evaluate("inst.status().status.value") == "paused"
    kernel.run("inst.resume(); inst.send_event('approval', 'yes'); inst.wait(20, until='finished')", ok=True)
    assert kernel.evaluate("inst.output") == [{}, "yes"]
    assert side_effects(kernel) == ["load", "publish"]


def test_an_instance_of_another_living_kernel_is_shown_and_controlled_from_here(kernel):
    kernel.run(ASKS.format(line="a1 --as inst"), ok=True)
    kernel.run("inst.wait(20)", ok=True)
    with kernel_in(kernel.folder) as other:
        other.run(SETUP, ok=True)
        out = other.run(ASKS.format(line="a1 --as inst"), ok=True)
        assert f"PID {kernel.pid}" in out.text
        other.run("inst.send_event('approval', 'from afar')", ok=True)
        other.run("inst.wait(20, until='finished')", ok=True)
        assert other.evaluate("(inst.output, ran)") == ([{}, "from afar"], [])
    assert kernel.evaluate("ran") == ["load", "publish"]


def test_an_errored_instance_goes_on_at_its_failed_step_with_the_present_code(kernel):
    kernel.run(FAILS.format(line="a1 --as inst", body="raise RuntimeError('no luck')"), ok=True)
    kernel.run("inst.wait(20)", ok=True)
    assert kernel.evaluate("(inst.status().status.value, ran)") == ("errored", ["load"])
    kernel.run(FAILS.format(line="a1 --as inst", body="return 'mended'"), ok=True)
    kernel.run("inst.wait(20)", ok=True)
    assert kernel.evaluate("(inst.output, ran)") == ("mended", ["load"])


def test_a_complete_instance_is_shown_and_nothing_runs(kernel):
    done = FAILS.format(line="a1 --as inst", body="return side('body')")
    kernel.run(done, ok=True)
    kernel.run("inst.wait(20)", ok=True)
    out = kernel.run(done, ok=True)
    assert "Nothing ran: complete since" in out.text
    assert "--again" in out.text
    assert kernel.evaluate("ran") == ["load", "body"]


def test_a_terminated_instance_is_shown_and_nothing_runs(kernel):
    kernel.run(ASKS.format(line="a1 --as inst"), ok=True)
    kernel.run("inst.wait(20); inst.terminate()", ok=True)
    out = kernel.run(ASKS.format(line="a1 --as inst"), ok=True)
    assert "Nothing ran: terminated since" in out.text
    assert kernel.evaluate("(inst.status().status.value, ran)") == ("terminated", ["load"])


def test_without_an_id_changed_code_makes_a_new_instance_where_one_is_complete(kernel):
    kernel.run(FAILS.format(line="--as first", body="return 1"), ok=True)
    kernel.run("first.wait(20)", ok=True)
    kernel.run(FAILS.format(line="--as same", body="return 1"), ok=True)
    kernel.run(FAILS.format(line="--as second", body="return 2"), ok=True)
    kernel.run("second.wait(20)", ok=True)
    assert kernel.evaluate("(same.id == first.id, second.id != first.id, second.output)") == (True, True, 2)


def test_again_makes_a_new_one_where_one_is_finished_and_attaches_where_not(kernel):
    for expected in ("a1", "a1-2", "a1-3"):
        kernel.run(FAILS.format(line="a1 --again --as inst", body="return 1"), ok=True)
        kernel.run("inst.wait(20)", ok=True)
        assert kernel.evaluate("inst.id") == expected
    kernel.run(ASKS.format(line="b1 --again --as one"), ok=True)
    kernel.run("one.wait(20)", ok=True)
    kernel.run(ASKS.format(line="b1 --again --as two"), ok=True)
    assert kernel.evaluate("(one.id, two.id)") == ("b1", "b1")


# -- the cell as a cell ---------------------------------------------------------------------------------------------------


def test_the_cells_value_is_the_instance_and_it_is_shown_once(kernel):
    out = kernel.run(ASKS.format(line="a1"), ok=True)
    assert out.result is None
    assert len(out.views) == 1
    assert sum("text/html" in bundle and bundle["text/html"] != "" for bundle in out.displays) == 1
    assert kernel.evaluate("_.id") == "a1"
    assert kernel.evaluate("Out[max(Out)] is _") is True
    kernel.run("_.wait(20)", ok=True)
    again = kernel.run("engine.instance('a1')", ok=True)
    assert len(again.views) == 1  # asked for later, it shows itself


def test_helpers_names_and_magics_of_the_cell_are_the_notebooks(kernel):
    out = kernel.run(
        "%%workflow a1 --as inst\n"
        "# a comment first\n"
        "import math\n"
        "here = %pwd\n"
        "def area(r):\n    return round(math.pi * r)\n"
        "class Areas(WorkflowEntrypoint):\n"
        "    async def run(self, event, step):\n"
        "        return await step.do('area', area, 2)\n",
        ok=True,
    )
    assert out.errors == []
    kernel.run("inst.wait(20)", ok=True)
    assert kernel.evaluate("(area(1), inst.output, here, Areas.__module__)") == (3, 6, str(kernel.folder), "__main__")
    source = kernel.run("import inspect; print(inspect.getsource(Areas.run))", ok=True).stdout
    assert "step.do('area', area, 2)" in source


def test_params_are_one_expression_over_the_users_names_evaluated_once_before_the_body(kernel):
    kernel.run(
        "calls = []\nn = 3\ndef make():\n    calls.append(dict(globals()).get('Late'))\n    return {'n': n, 't': '$n {n}'}"
    )
    kernel.run(
        "%%workflow a1 -p make() --as inst\nclass Late(WorkflowEntrypoint):\n"
        "    async def run(self, event, step):\n        return event.payload\n",
        ok=True,
    )
    kernel.run("inst.wait(20)", ok=True)
    assert kernel.evaluate("(calls, inst.output)") == ([None], {"n": 3, "t": "$n {n}"})


def test_the_error_of_a_step_shows_line_numbers_of_the_cell_as_the_user_sees_it(kernel):
    kernel.run(
        "%%workflow a1 --as inst\n\nclass Bad(WorkflowEntrypoint):\n    async def run(self, event, step):\n"
        "        def body():\n            return 1 / 0\n        return await step.do('x', body, retries=0)\n",
        ok=True,
    )
    kernel.run("inst.wait(20)", ok=True)
    assert "line 6, in Bad.run.<locals>.body" in kernel.evaluate("inst.status().error.traceback")


def test_define_only_registers(kernel):
    out = kernel.run(ASKS.format(line="--define"), ok=True)
    assert "registered workflow 'Asks'" in out.text
    assert out.displays == []
    assert kernel.evaluate(f"(list(engine.workflows), {IDS})") == (["Asks"], [])
    kernel.run("inst = engine.workflow('Asks').create(id='x')\ninst.wait(20)", ok=True)
    assert kernel.evaluate("ran") == ["load"]


def test_the_decorator_does_the_same_as_define(kernel):
    kernel.run(
        "@nbflow.workflow\nclass Plain(WorkflowEntrypoint):\n    async def run(self, event, step):\n        return 1\n"
        "@nbflow.workflow(name='Named')\nclass Other(WorkflowEntrypoint):\n    async def run(self, event, step):\n        return 2\n",
        ok=True,
    )
    assert kernel.evaluate("sorted(engine.workflows)") == ["Named", "Plain"]
    kernel.run("inst = engine.workflow('Named').create()\ninst.wait(20)", ok=True)
    assert kernel.evaluate("inst.output") == 2


def test_a_display_that_fails_does_not_keep_the_workflow_from_running(kernel):
    kernel.run(
        "import nbflow.jupyter.display as shown\n"
        "def broken(self):\n    raise RuntimeError('no screen')\n"
        "shown.Display.show = broken",
        ok=True,
    )
    out = kernel.run(ASKS.format(line="a1 --as inst"), ok=True)
    assert "no screen" in out.stderr
    assert "new instance a1" in out.text
    kernel.run("inst.wait(20)", ok=True)
    assert kernel.evaluate("ran") == ["load"]


# -- bad cells --------------------------------------------------------------------------------------------------------------

RUN = "    async def run(self, event, step):\n        return 1\n"
GOOD = "class Good(WorkflowEntrypoint):\n" + RUN


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("%%workflow --agian\n" + GOOD, "UsageError: %%workflow has no option '--agian'"),
        ("%%workflow 'two words'\n" + GOOD, "UsageError: instance id 'two words' is not allowed"),
        ("%%workflow a/b\n" + GOOD, "UsageError: instance id 'a/b' is not allowed"),
        ("%%workflow a b\n" + GOOD, "UsageError: one ID is expected"),
        ("%%workflow --params {'a': 1\n" + GOOD, "never closed"),
        ("%%workflow --params {'a' 1}\n" + GOOD, "not one Python expression"),
        ("%%workflow --params unknown_name\n" + GOOD, "NameError: name 'unknown_name' is not defined"),
        ("%%workflow x1 --params {'f': open}\n" + GOOD, "NotSerialisableError"),
        ("%%workflow --each range(3) --params 3\n" + GOOD, "--each gives the params of each instance"),
        ("%%workflow --schedule 'often'\n" + GOOD, "cannot be read"),
        ("%%workflow --wait soon later\n" + GOOD, "UsageError"),
        ("%%workflow\nclass Good(WorkflowEntrypoint:\n" + RUN, "SyntaxError"),
        ("%%workflow\ntouched.append(1)\nreturn 5\n" + GOOD, "SyntaxError: 'return' outside function"),
        ("%%workflow\ntouched.append(1)\nx = 1\n", "UsageError: this cell defines no class"),
        ("%%workflow\ntouched.append(1)\nclass Other:\n    pass\n", "UsageError: this cell defines no workflow"),
        ("%%workflow\ntouched.append(1)\n" + GOOD + "class Two(WorkflowEntrypoint):\n" + RUN, "'Good', 'Two'"),
        ("%%workflow\ntouched.append(1)\nclass NoRun(WorkflowEntrypoint):\n    pass\n", "has no run method"),
        (
            "%%workflow\ntouched.append(1)\nclass Plain(WorkflowEntrypoint):\n    def run(self, event, step):\n        return 1\n",
            "plain `def run`",
        ),
        ("%%workflow\n" + GOOD + "1 / 0\n", "ZeroDivisionError: division by zero"),
        ("%%workflow\n" + GOOD + "raise KeyboardInterrupt('by hand')\n", "KeyboardInterrupt: by hand"),
        ("%%workflow\n" + GOOD + "Good = 5\n", "UsageError"),
    ],
)
@pytest.mark.parametrize("stdin", [True, False], ids=["notebook", "headless"])
def test_a_bad_cell_is_one_clear_error_and_leaves_nothing(shared, cell, says, stdin):
    shared.run("touched = []")
    out = shared.run(cell, ok=False, stdin=stdin)
    assert len(out.errors) == 1
    assert says in out.error
    assert out.reply["ename"] == out.errors[0]["ename"]
    assert out.displays == []
    assert out.stdout == out.stderr == ""
    assert shared.evaluate(f"(list(engine.workflows), {IDS}, touched)") in (([], [], []), (["Good"], [], []))
    assert "magics.py" not in out.traceback


def test_a_missing_import_is_named_with_the_line_to_add(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run("%load_ext nbflow", ok=True)
        out = kernel.run("%%workflow\n" + GOOD, ok=False)
        assert "from nbflow import WorkflowEntrypoint" in out.error
        assert not (tmp_path / ".nbflow").exists()


def test_an_error_of_the_cell_shows_the_users_frames_with_true_line_numbers(shared):
    out = shared.run("%%workflow\n\ndef boom():\n    return {}['gone']\n\nboom()\n" + GOOD, ok=False)
    assert "line 6" in out.traceback
    assert "----> 6 boom()" in out.traceback
    assert "----> 4     return {}['gone']" in out.traceback
    assert "run_cell_magic" not in out.traceback
    number = shared.evaluate("len(In) - 1")
    assert f"Cell In[{number}], line 4" in out.traceback


def test_a_syntax_error_points_at_the_line_that_the_user_sees(shared):
    out = shared.run("%%workflow\n\nclass Good(WorkflowEntrypoint):\n    x = = 1\n", ok=False)
    assert "line 4" in out.traceback
    assert "x = = 1" in out.traceback
    assert "nbflow" not in out.traceback


def test_running_a_cell_never_takes_longer_for_the_failures_before(shared):
    started = time.monotonic()
    shared.run("%%workflow\n" + GOOD, ok=True)
    assert time.monotonic() - started < 10


def test_a_scheduled_cell_starts_nothing_and_says_when_it_will(shared):  # S59
    source = GOOD.replace("Good", "Scheduled")
    said = shared.run("%%workflow --schedule '0 6 * * *'\n" + source, ok=True).stdout
    assert "Scheduled is scheduled: '0 6 * * *' (UTC), next at " in said
    assert shared.run("%workflow list Scheduled", ok=True).stdout.strip() == "no instances"
    assert "stays" not in shared.run("%%workflow sched1\n" + source, ok=True).stderr
    listed = shared.run("%workflow schedules Scheduled", ok=True).text
    assert "0 6 * * *" in listed
    shared.run("%workflow unschedule Scheduled", ok=True)
    assert shared.run("%workflow schedules", ok=True).stdout.strip() == "no schedules"


def test_several_instances_show_as_one_table(shared):  # API.md §4
    source = GOOD.replace("Good", "Several")
    shared.run("%%workflow --define\n" + source, ok=True)
    shown = shared.run(
        "many = nbflow.current_engine().workflow('Several').create_batch([{'id': 'sev-a'}, {'id': 'sev-b'}])\n"
        "many.wait(10)\nmany",
        ok=True,
    ).result
    assert "<table" in shown["text/html"]
    assert "sev-a" in shown["text/html"]
    assert "sev-b" in shown["text/plain"]
    assert "WorkflowInstance" not in shown["text/plain"]
