"""`%workflow`: the notebook's half of the one table of commands, and Tab."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import nbflow
from nbflow.engine.commands import COMMANDS, Answer, Front, commands
from nbflow.ids import new_instance_id
from nbflow.jupyter.stable import stable
from nbflow.jupyter.table import step_table
from nbflow.jupyter.words import say
from tests.jupyter.kernels import Kernel, kernel_in

pytestmark = pytest.mark.kernel

SETUP = """%load_ext nbflow
import nbflow, threading
from nbflow import WorkflowEntrypoint
engine = nbflow.current_engine()
ran = []
"""
ASKS = """%%workflow {line}
class Asks(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("load", ran.append, "load")
        await step.do("load", ran.append, "load again")
        answer = await step.wait_for_event("ask", "approval")
        await step.do("publish", ran.append, "publish")
        return answer.payload
"""


@pytest.fixture
def kernel(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run(SETUP, ok=True)
        kernel.run(ASKS.format(line="a1 --as inst"), ok=True)
        kernel.run("inst.wait(20)", ok=True)
        yield kernel


def status(kernel: Kernel) -> str:
    return kernel.evaluate("inst.status().status.value")


def test_every_command_says_what_it_takes_and_does():
    for name, command in COMMANDS.items():
        assert command.name == name
        assert command.help
        assert command.usage.startswith(name)


def test_the_notebook_has_its_rows_of_the_table_and_no_others():
    assert "store" in commands(Front.NOTEBOOK)
    assert "run" not in commands(Front.NOTEBOOK)
    assert "store" not in commands(Front.SHELL)
    assert commands(Front.SHELL).keys() >= {"list", "show", "run", "wait", "send-event"}


def test_list_shows_instances_newest_first(kernel):
    kernel.run(ASKS.format(line="a2"), ok=True)
    table = kernel.run("%workflow list", ok=True).result["text/plain"]
    assert table.index("a2") < table.index("a1")
    assert "waiting" in table
    assert "a1" not in kernel.run("%workflow list Asks --limit 1", ok=True).text
    assert "no instances" in kernel.run("%workflow list --status complete", ok=True).stdout


def test_answers_leave_times_and_generated_ids_out_where_stable_output_is_asked_for(tmp_path):
    with kernel_in(tmp_path, env={"NBFLOW_STABLE_OUTPUT": "1"}) as kernel:
        kernel.run(SETUP, ok=True)
        kernel.run(ASKS.format(line=" --as inst"), ok=True)
        kernel.run("inst.wait(20)", ok=True)
        shown = kernel.run("%workflow list", ok=True).result
        rows = [line.split() for line in shown["text/plain"].splitlines()]
        assert rows == [["workflow", "id", "status", "steps", "error"], ["Asks", "asks-…", "waiting", "2/3"]]
        assert "20" not in shown["text/html"]
        assert kernel.run("%workflow pause", ok=True).stdout == "asks-…: paused\n"
        entries = kernel.run("%workflow history", ok=True).result["text/plain"]
        assert "do.finished" in entries
        assert re.search(r"\d\d:\d\d", entries) is None
        assert re.search(r"pausing[ ]*$", entries, re.MULTILINE)  # not who paused it


def test_of_a_remark_stable_output_leaves_out_who():
    remarks = ["by=ann@host", "attempt=1, by=ann@host, notebook=a.ipynb", "attempt=1, by=ann@host", "standby=1"]
    told = stable(Answer("", ("what", "more"), [("by=me", remark) for remark in remarks]))
    assert told.rows == [("by=me", more) for more in ("", "attempt=1, notebook=a.ipynb", "attempt=1", "standby=1")]


def test_a_line_is_written_in_one_piece(monkeypatch):  # what a body prints meanwhile may come between two
    written = []
    monkeypatch.setattr("sys.stdout", SimpleNamespace(write=written.append, flush=lambda: None))
    say("asks-1: running")
    assert [text for text in written if text] == ["asks-1: running\n"]


def test_the_fronts_say_their_lines_in_one_piece():
    for path in Path(nbflow.__file__).parent.joinpath("jupyter").glob("*.py"):
        if path.name != "words.py":
            assert not re.search(r"(?<!\w)print\(", path.read_text()), f"{path.name}: `say` it"


def test_only_what_is_generated_of_an_id_is_left_out():
    made, day = new_instance_id("Ingest"), "2026-11-30T08:00:00+00:00"
    rows = [(made, day), (f"{made}.c-1", "my-own-id"), ("nightly-20261130T0600Z", f"due_at={day}")]
    told = stable(Answer(f"sent 'go' to {made!r}", ("id", "created", "more"), [(left, 1, right) for left, right in rows]))
    assert told.line == "sent 'go' to 'ingest-…'"
    assert told.columns == ("id", "more")
    assert told.rows == [("ingest-…", "…"), ("ingest-….c-1", "my-own-id"), ("nightly-…", "due_at=…")]


def test_of_a_store_stable_output_says_what_the_next_run_finds_too():
    facts = {"path": "/home/ann/.nbflow/history.duckdb", "size": 9, "entries": 3, "uid": "0" * 32, "schema": 2, "trouble": None}
    told = stable(Answer("", ("fact", "value"), list(facts.items())))
    assert told.rows == [("path", "history.duckdb"), ("schema", 2), ("trouble", None)]
    assert [line.split() for line in repr(step_table([], stable=True)).splitlines()] == [["step", "status", "error"]]


def test_of_a_history_stable_output_leaves_out_what_hangs_on_how_fast_a_body_was():
    rows = [(7, 1, "do.started", "load", ""), (9, 2, "do.finished", "load", "attempt=1"), (10, 3, "wait.started", "ask", "")]
    told = stable(Answer("", ("seq", "recorded", "what", "step", "more"), rows))
    assert told.columns == ("what", "step", "more")
    assert told.rows == [("do.finished", "load", "attempt=1"), ("wait.started", "ask", "")]


def test_no_answer_of_any_command_differs_between_two_stores_where_stable_output_is_asked_for(tmp_path):
    def told(folder: Path) -> list[str]:
        folder.mkdir()
        with kernel_in(folder, env={"NBFLOW_STABLE_OUTPUT": "1"}) as kernel:
            kernel.run(SETUP, ok=True)
            kernel.run(ASKS.format(line=" --as inst"), ok=True)
            kernel.run("inst.wait(20)", ok=True)
            cells = [ASKS.format(line="--schedule '17 3 1 * *'"), ASKS.format(line="")]
            cells += [ASKS.format(line="--each [{'i': 1}] --wait 9"), "engine.list()"]
            lines = ["store", "list", "show", "schedules", "wait 1", "pause", "resume", "retry-now", "send-event inst other 1"]
            lines += ["terminate", "restart", "wait 5", "history", "delete", "delete --older-than 9d", "unschedule"]
            found = []
            for cell in [*cells, *(f"%workflow {line}" for line in lines)]:
                out = kernel.run(cell, ok=True)
                html = [bundle.get("text/html") for bundle in (*out.displays, out.result or {})]
                found.append(f"{cell}: {out.text} {html}")
            return found

    first, second = told(tmp_path / "a"), told(tmp_path / "b")
    assert first == second
    assert not [text for text in first if re.search(r"\d\d:\d\d|\d\d\d\d-\d\d|\d(ms|\.\ds)|[0-9a-f]{32}", text)]


UNSCHEDULED = "removed the schedule of 'Asks'; its instances stay\n"


def test_unschedule_alone_means_the_workflow_shown_last_else_the_only_one_with_a_schedule(kernel):
    def scheduled() -> list[str]:
        return kernel.evaluate("sorted(engine.schedules.all())")

    assert "there is no schedule" in kernel.run("%workflow unschedule").error
    kernel.run(ASKS.format(line="--schedule '0 6 * * *'"), ok=True)
    kernel.run(ASKS.format(line="--schedule '0 6 * * *'").replace("Asks(", "Other("), ok=True)
    assert kernel.run("%workflow unschedule", ok=True).stdout == UNSCHEDULED  # inst was shown
    assert scheduled() == ["Other"]
    assert "'Other'" in kernel.run("%workflow unschedule", ok=True).stdout
    assert scheduled() == []
    for name in ("Other", "Third"):
        kernel.run(ASKS.format(line="--schedule '0 6 * * *'").replace("Asks(", f"{name}("), ok=True)
    assert "which schedule? name its workflow: 'Other', 'Third'" in kernel.run("%workflow unschedule").error
    assert scheduled() == ["Other", "Third"]


def test_an_instance_of_a_notebook_that_died_says_so_elsewhere(tmp_path):
    with kernel_in(tmp_path, env={"JPY_SESSION_NAME": str(tmp_path / "a.ipynb")}) as kernel:
        kernel.run(SETUP, ok=True)
        kernel.run(ASKS.format(line="a1 --as inst"), ok=True)
        kernel.run("inst.wait(20)", ok=True)
        kernel.kill()
    with kernel_in(tmp_path, env={"JPY_SESSION_NAME": str(tmp_path / "b.ipynb")}) as kernel:
        kernel.run(SETUP, ok=True)
        assert "waiting, interrupted in a.ipynb" in kernel.run("%workflow list", ok=True).text
        assert "Asks: interrupted in a.ipynb" in kernel.run("%workflow show a1", ok=True).text
        said = kernel.run("%workflow resume a1", ok=True).stdout
        assert "a1: waiting, interrupted in a.ipynb; nobody runs it now, it goes on when its notebook a.ipynb next" in said


@pytest.mark.parametrize("word", ["a1", "Asks/a1", "Asks", "inst", ""])
def test_an_instance_may_be_named_in_every_way(kernel, word):
    out = kernel.run(f"%workflow show {word}", ok=True)
    assert len(out.views) == 1
    assert kernel.evaluate("_.id") == "a1"


def test_pause_resume_terminate(kernel):
    assert "a1: paused" in kernel.run("%workflow pause a1", ok=True).stdout
    assert status(kernel) == "paused"
    kernel.run("%workflow resume", ok=True)
    kernel.until("inst.status().status.value == 'waiting'")
    assert "a1: terminated" in kernel.run("%workflow terminate inst", ok=True).stdout
    out = kernel.run("%workflow terminate a1", ok=False)
    assert out.error.startswith("InvalidStatusError")
    assert len(out.errors) == 1


@pytest.mark.parametrize(
    ("rest", "payload"),
    [
        ("a1 approval {'n': n, 't': '$n {n} --x'}", {"n": 3, "t": "$n {n} --x"}),
        ("inst approval n + 1", 4),
        ("approval {'n': n}", {"n": 3}),
        ("approval True", True),
        ("a1 approval", None),
        ("approval", None),
    ],
)
def test_send_event_takes_an_expression(kernel, rest, payload):
    kernel.run("n = 3")
    assert "sent 'approval' to 'a1'" in kernel.run(f"%workflow send-event {rest}", ok=True).stdout
    assert "a1: complete" in kernel.run("%workflow wait a1 20s", ok=True).stdout
    assert kernel.evaluate("inst.output") == payload


def test_wait_takes_a_duration_and_may_leave_the_id_out(kernel):
    out = kernel.run("%workflow wait", ok=True)
    assert "a1: waiting" in out.stdout
    kernel.run("go = threading.Event()")
    kernel.run(
        "%%workflow h1\nclass Held(WorkflowEntrypoint):\n    async def run(self, event, step):\n"
        "        return await step.do('hold', go.wait, 30)",
        ok=True,
    )
    out = kernel.run("%workflow wait 1.5 seconds", ok=True)
    assert "h1: running" in out.stdout
    assert 1.4 < out.seconds < 4
    kernel.run("go.set()")
    assert "h1: complete" in kernel.run("%workflow wait h1", ok=True).stdout


def test_restart_from_a_step_by_name_and_number(kernel):
    said = kernel.run("%workflow restart --from load#2", ok=True).stdout
    assert said.startswith("a1: 1 step kept, 2 steps run again (load#2, ask)\na1: ")  # S44
    kernel.run("inst.wait(20)", ok=True)
    assert kernel.evaluate("ran") == ["load", "load again", "load again"]
    kernel.run("%workflow restart a1", ok=True)
    kernel.run("inst.wait(20)", ok=True)
    assert kernel.evaluate("ran") == ["load", "load again", "load again", "load", "load again"]
    out = kernel.run("%workflow restart a1 --from nowhere", ok=False)
    assert out.error.startswith("NotFoundError")
    assert "'load'" in out.error


def test_retry_failed_runs_the_failed_step_again(kernel):
    kernel.run("luck = []")
    kernel.run(
        "%%workflow f1 --as failing\nclass Fails(WorkflowEntrypoint):\n    async def run(self, event, step):\n"
        "        await step.do('fine', ran.append, 'fine')\n"
        "        return await step.do('break', lambda: luck[0], retries=0)\n",
        ok=True,
    )
    kernel.run("failing.wait(20); luck.append(7)", ok=True)
    kernel.run("%workflow retry-failed f1", ok=True)
    kernel.run("failing.wait(20)", ok=True)
    assert kernel.evaluate("(failing.output, ran.count('fine'))") == (7, 1)


def test_history_lists_the_entries(kernel):
    table = kernel.run("%workflow history a1", ok=True).result["text/plain"]
    for what in ("created", "do.finished", "wait.started", "load#2"):
        assert what in table


def test_delete_removes_the_instance(kernel):
    assert "deleted 'a1'" in kernel.run("%workflow delete a1", ok=True).stdout
    assert kernel.run("%workflow show a1", ok=False).error.startswith("NotFoundError")
    out = kernel.run("%workflow delete", ok=False)  # the one last shown is gone
    assert len(out.errors) == 1


def test_store_shows_where_the_history_is_and_switches(kernel):
    assert "history.duckdb" in kernel.run("%workflow store", ok=True).result["text/plain"]
    out = kernel.run("%workflow store other.duckdb", ok=True)
    assert str(kernel.folder / "other.duckdb") in out.stdout
    assert "no instances" in kernel.run("%workflow list", ok=True).stdout
    assert kernel.run("%workflow store nowhere/at/all.duckdb", ok=False).error.startswith("StoreError")
    assert "no instances" in kernel.run("%workflow list", ok=True).stdout  # the one before is used on
    kernel.run("%workflow store .nbflow/history.duckdb", ok=True)
    assert "a1" in kernel.run("%workflow list", ok=True).text


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("frobnicate", "has no command 'frobnicate'"),
        ("run x.py:A", "exists on the shell only"),
        ("show a1 a2", "one word too many"),
        ("show --rollback", "has no option '--rollback'"),
        ("show nobody", "NotFoundError"),
        ("list --limit none", "--limit is 'none'"),
        ("list --status busy", "--status 'busy' is none of"),
        ("send-event", "is written: send-event ID TYPE"),
        ("send-event a1 approval {", "not one Python expression"),
        ("send-event a1 approval unknown", "NameError"),
        ("restart a1 --from load --stale", "exclude each other"),
        ("wait a1 soon", "DURATION"),
    ],
)
def test_a_mistake_is_one_clear_error(kernel, line, says):
    out = kernel.run(f"%workflow {line}", ok=False)
    assert says in out.error
    assert status(kernel) == "waiting"


def complete(kernel: Kernel, code: str) -> list[str]:
    message = kernel.client.complete(code, len(code))
    while True:
        reply = kernel.client.get_shell_msg(timeout=20)
        if reply["parent_header"]["msg_id"] == message:
            return reply["content"]["matches"]


def test_tab_completes_options_subcommands_ids_steps_and_event_types(kernel):
    assert complete(kernel, "%%workflow --wa") == ["--wait"]
    assert "--awaited-by-the-cell" not in complete(kernel, "%%workflow --a")
    assert complete(kernel, "%%workflow a") == ["a1"]
    assert complete(kernel, "%workflow sen") == ["send-event"]
    assert complete(kernel, "%workflow pause a") == ["a1"]
    assert complete(kernel, "%workflow send-event a1 app") == ["approval"]
    assert complete(kernel, "%workflow terminate a1 --r") == ["--rollback"]
    assert complete(kernel, "%workflow restart a1 --from lo") == ["load", "load#2"]
    assert complete(kernel, "%workflow restart a1 --from ") == ["ask", "load", "load#2"]
    assert complete(kernel, "%workflow list As") == ["Asks"]
    assert complete(kernel, "%workflow list --status wai") == ["waiting", "waitingForPause"]
    assert "real" in complete(kernel, "%%workflow\nx = 1\nx.rea")[0]


def test_tab_before_the_first_use_opens_no_store(tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run("%load_ext nbflow", ok=True)
        complete(kernel, "%workflow pause a")
        assert complete(kernel, "%%workflow --par") == ["--params"]
        assert not (tmp_path / ".nbflow").exists()
