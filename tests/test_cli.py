"""`nbflow` on the shell, beside a kernel that lives and without one."""

import json
import os
import subprocess
import sys
import time

import duckdb
import pytest

from tests.jupyter.kernels import ROOT, kernel_in

FILE = """
import dataclasses
import time
from nbflow import WorkflowEntrypoint

def note(text):
    with open("side.txt", "a") as file:
        file.write(text + "\\n")
    return text

class Adds(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("note", note, "ran")
        return event.payload["a"] + event.payload["b"]

class Asks(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("note", note, "asked")
        return (await step.wait_for_event("ask", "approval")).payload

@dataclasses.dataclass
class Mark:
    grade: int

class Marks(WorkflowEntrypoint):
    async def run(self, event, step):
        return Mark(1)

class Fails(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("break", note, 1 / 0, retries=0)
"""


ENV = {**{k: v for k, v in os.environ.items() if not k.startswith("NBFLOW")}, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def command(tmp_path):
    (tmp_path / "flows.py").write_text(FILE)

    def run(*words: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "nbflow", *words],
            cwd=tmp_path,
            env=ENV | more,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    return run


@pytest.fixture
def shell(command):
    def run(*words: str, code: int = 0) -> str:
        done = command(*words, code=code)
        return done.stdout + done.stderr

    return run


@pytest.fixture
def killed(tmp_path):
    def run(*words: str, until: str) -> None:
        """Run a command and kill it when the file *until* is there."""
        process = subprocess.Popen([sys.executable, "-m", "nbflow", *words], cwd=tmp_path, env=ENV, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not (tmp_path / until).exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        process.wait()

    return run


def test_run_runs_to_the_end_once(shell, tmp_path):
    assert "new instance" in shell("run", "flows.py:Adds", "r1", "--params", '{"a": 1, "b": 2}')
    assert "Nothing ran" in shell("run", "flows.py:Adds", "r1", "--params", '{"a": 1, "b": 2}')
    assert (tmp_path / "side.txt").read_text() == "ran\n"
    assert "r1" in shell("list", "Adds", "--status", "complete")
    assert "complete" in shell("show", "r1")


def test_the_exit_code_says_how_it_ended(shell):
    shell("run", "flows.py:Fails", "f1", code=1)
    shell("run", "flows.py:Asks", "a1", code=3)
    shell("wait", "a1", code=3)
    shell("terminate", "a1")
    shell("wait", "a1", code=4)
    shell("show", "nobody", code=2)
    shell("run", "flows.py:Nothing", code=2)
    shell("run", "flows.py", code=2)
    shell("list", "--limit", "none", code=2)
    shell("unschedule", code=2)
    shell("frobnicate", code=2)


def test_an_event_from_the_shell_is_taken_by_the_next_run(shell):
    told = json.loads(shell("--json", "run", "flows.py:Asks", "a1", code=3))
    assert [(wait["name"], wait["event_type"]) for wait in told["waits"]] == [("ask", "approval")]
    assert "sent 'approval'" in shell("send-event", "a1", "approval", '{"ok": true}')
    shell("run", "flows.py:Asks", "a1")
    assert json.loads(shell("--json", "show", "a1"))["status"] == "complete"


def test_answers_come_as_json(shell):
    shell("run", "flows.py:Adds", "r1", "--params", '{"a": 1, "b": 2}')
    listed = json.loads(shell("--json", "list"))
    assert [(one["workflow"], one["id"], one["status"]) for one in listed] == [("Adds", "r1", "complete")]
    assert [step["step"] for step in json.loads(shell("--json", "show", "r1"))["steps"]] == ["note"]
    assert json.loads(shell("--json", "history", "r1"))[0]["what"] == "created"
    assert json.loads(shell("show", "r1", "--json"))["output"] == 3
    assert json.loads(shell("list", "--json", "--store", ".nbflow/history.duckdb")) == listed
    assert "no history at" in shell("list", "--store", "nowhere.duckdb", code=2)


DECORATED = """
import os, time
import nbflow

@nbflow.workflow
class Counts(nbflow.WorkflowEntrypoint):
    async def run(self, event, step):
        if event.payload.get("wait"):
            await step.wait_for_event("ask", "approval")
        await step.do("count", lambda: open("side.txt", "a").write(event.instance_id + "\\n"))
        await step.do("slow", time.sleep, 0.5)
        return os.getpid()

@nbflow.workflow(name="other-name")
class Other(nbflow.WorkflowEntrypoint):
    async def run(self, event, step):
        return "other"
"""


def test_a_decorator_in_the_file_registers_with_the_engine_of_run(command, tmp_path):
    (tmp_path / "decorated.py").write_text(DECORATED)
    made = command("--store", "elsewhere.duckdb", "run", "decorated.py:Counts", "one")
    assert "Counts one: complete" in made.stdout
    assert not (tmp_path / ".nbflow").exists()
    assert "other-name o1" in command("--store", "elsewhere.duckdb", "run", "decorated.py:Other", "o1").stdout


def test_a_decorator_in_the_file_resumes_nothing_that_run_was_not_asked_for(command, tmp_path):
    (tmp_path / "decorated.py").write_text(DECORATED)
    command("run", "decorated.py:Counts", "mine", "--params", '{"wait": true}', code=3)
    command("send-event", "mine", "approval", "1")
    command("--store", "elsewhere.duckdb", "run", "decorated.py:Counts", "two")
    command("run", "decorated.py:Other", "o1")
    assert (tmp_path / "side.txt").read_text() == "two\n"
    assert "resumed mine" in command("run", "decorated.py:Counts", "mine", "--params", '{"wait": true}').stdout
    assert (tmp_path / "side.txt").read_text() == "two\nmine\n"


FAMILY = """
import time
from nbflow import WorkflowEntrypoint

def note(text):
    with open("side.txt", "a") as file:
        file.write(text + "\\n")

class Child(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("first", note, "first")
        await step.do("second", lambda: open("second.txt", "w").close() or time.sleep(event.payload["seconds"]))
        return await step.child("grand", "Grandchild")

class Grandchild(WorkflowEntrypoint):
    async def run(self, event, step):
        return 7

class Parent(WorkflowEntrypoint):
    async def run(self, event, step):
        return await step.child("c", "Child", event.payload)

class ByEnv(WorkflowEntrypoint):
    async def run(self, event, step):
        async def make():
            return (await self.env.Grandchild.create()).id
        return await step.do("make", make, retries=0)

class Lost(WorkflowEntrypoint):
    async def run(self, event, step):
        return await step.child("c", "Nowhere")
"""


def test_a_workflow_of_the_file_may_have_children_there(shell, tmp_path):
    (tmp_path / "family.py").write_text(FAMILY)
    told = json.loads(shell("--json", "run", "family.py:Parent", "p1", "--params", '{"seconds": 0}'))
    assert (told["status"], told["output"]) == ("complete", 7)
    shell("run", "family.py:ByEnv", "e1")
    lost = shell("run", "family.py:Lost", "l1", code=1)
    assert "no workflow 'Nowhere' is registered here" in lost
    assert "@nbflow.workflow" in lost
    assert "cell" not in lost


def test_a_parent_run_again_after_a_death_takes_its_children_up_again(command, killed, tmp_path):
    (tmp_path / "family.py").write_text(FAMILY)
    params = json.dumps({"seconds": 3})
    killed("run", "family.py:Parent", "p1", "--params", params, until="second.txt")
    told = command("show", "p1").stdout
    assert "interrupted in family.py" in told
    assert "waits for its child 'p1.c-1': nbflow show Child/p1.c-1" in told
    told = json.loads(command("--json", "show", "p1").stdout)
    assert (told["waits"], told["children"]) == ([], [{"step": "c", "workflow": "Child", "id": "p1.c-1"}])
    command("run", "family.py:Parent", "p1", "--params", params)
    assert (tmp_path / "side.txt").read_text() == "first\n"


def test_with_json_stdout_has_the_answer_alone(command, tmp_path):
    (tmp_path / "noisy.py").write_text(
        "import atexit, os, subprocess\n"
        "from nbflow import WorkflowEntrypoint\n"
        "print('FROM FILE')\n"
        "atexit.register(print, 'FROM EXIT')\n"
        "class Says(WorkflowEntrypoint):\n"
        "    async def run(self, event, step):\n"
        "        print('FROM RUN')\n"
        "        await step.do('say', print, 'FROM BODY')\n"
        "        await step.do('call', subprocess.call, ['echo', 'FROM CHILD'])\n"
        "        return {'nan': float('nan'), 'far': [float('inf'), -float('inf')]}\n"
    )
    for words in (("run", "noisy.py:Says", "n1"), ("show", "n1"), ("wait", "n1"), ("list",), ("history", "n1"), ("schedules",)):
        done = command("--json", *words)
        told = json.loads(done.stdout, parse_constant=pytest.fail)
        if words[0] == "run":
            assert told["output"] == {"nan": "NaN", "far": ["Infinity", "-Infinity"]}
            for place in ("FILE", "EXIT", "RUN", "BODY", "CHILD"):
                assert f"FROM {place}" in done.stderr


def test_an_instance_whose_process_died_says_so_and_who_goes_on(command, killed, tmp_path):
    (tmp_path / "slow.py").write_text(
        "import time\n"
        "from nbflow import WorkflowEntrypoint\n"
        "class Slow(WorkflowEntrypoint):\n"
        "    async def run(self, event, step):\n"
        "        await step.do('slow', lambda: open('begun', 'w').close() or time.sleep(60))\n"
    )
    killed("run", "slow.py:Slow", "x", until="begun")
    assert "running, interrupted in slow.py" in command("list").stdout
    told = command("show", "x").stdout
    assert told.startswith("Slow x: running, interrupted in slow.py, 0 of 1 steps\n  its kernel is gone (slow.py, PID ")
    assert "it goes on when slow.py next registers 'Slow', or by `nbflow run`" in told
    for shown in (json.loads(command("--json", "show", "x").stdout), *json.loads(command("--json", "list").stdout)):
        assert shown["status"] == "running"
        assert shown["interrupted"].startswith("its kernel is gone (slow.py, PID ")
    told = command("resume", "x").stdout  # there is nothing to record
    assert told.startswith("x: running, interrupted in slow.py; nobody runs it now, it goes on when slow.py next registers")
    assert command("pause", "x").stdout == "x: paused\n"
    assert command("resume", "x").stdout.startswith("x: recorded; nobody runs it now, it goes on when slow.py")


def test_who_waits_for_somebody_in_order_is_not_interrupted(shell):
    shell("run", "flows.py:Asks", "a1", code=3)
    told = shell("show", "a1")
    assert told.startswith("Asks a1: waiting, 1 of 2 steps\n  nobody runs it now; it goes on when flows.py")
    assert json.loads(shell("--json", "show", "a1"))["interrupted"] is None


def test_failed_items_are_told_where_the_instance_is_complete(shell, tmp_path):
    (tmp_path / "maps.py").write_text(
        "from nbflow import WorkflowEntrypoint\n"
        "class Grp(WorkflowEntrypoint):\n"
        "    async def run(self, event, step):\n"
        "        await step.map('m', lambda n: 1 / (n - 2), range(5), return_exceptions=True, retries=0)\n"
    )
    for told in (shell("run", "maps.py:Grp", "g1"), shell("show", "g1")):
        assert "Grp g1: complete, 1 of 1 steps, 4/5 items, 1 failed\n" in told
        assert "finished, 4/5 items, 1 failed" in told
    assert "1/1 · 4/5 items, 1 failed" in shell("list")
    shown, again = json.loads(shell("--json", "show", "g1")), json.loads(shell("--json", "run", "maps.py:Grp", "g1"))
    for one in (shown, again, *json.loads(shell("--json", "list"))):
        assert (one["status"], one["failed_items"]) == ("complete", 1)
    assert shown["steps"][0]["items"] == {"done": 4, "total": 5, "failed": 1}
    said = shell("retry-failed", "g1").splitlines()
    assert said[0] == "g1: 4 other items kept, 1 step run again (m)"
    assert said[1].startswith("g1: recorded; nobody runs it now, it goes on when maps.py")


def test_what_a_restart_or_a_resume_runs_again_is_said_before_it_is_done(shell, tmp_path):
    """S44, S48: a refusal says only why; JSON has all of it in one line."""
    (tmp_path / "trips.py").write_text(
        "from nbflow import WorkflowEntrypoint\n"
        "class Trip(WorkflowEntrypoint):\n"
        "    async def run(self, event, step):\n"
        "        await step.do('a', lambda: 1)\n"
        "        await step.do('b', lambda: 1, rollback=lambda: None)\n"
        "        await step.do('c', lambda: 1)\n"
        "        raise ValueError('no more')\n"
    )
    shell("run", "trips.py:Trip", "t1", code=1)
    told = shell("restart", "t1", "--from", "c", code=2)
    assert "was rolled back" in told
    assert "run again" not in told
    kept = "t1: rolled back: 1 step kept, 2 steps run again (b, c)\n"
    assert json.loads(shell("--json", "resume", "t1"))["line"].startswith(f"{kept}t1: recorded")
    shell("run", "trips.py:Trip", "t1", code=1)
    assert shell("resume", "t1").startswith(kept)
    shell("run", "trips.py:Trip", "t1", code=1)
    assert shell("restart", "t1", "--from", "b").startswith("t1: 1 step kept, 2 steps run again (b, c)\n")


def test_the_hint_for_an_event_names_the_workflow_where_the_id_is_not_enough(shell):
    shell("run", "flows.py:Asks", "a1", code=3)
    assert "waits for 'approval': nbflow send-event a1 approval JSON" in shell("show", "a1")
    shell("run", "flows.py:Adds", "a1", "--params", '{"a": 1, "b": 2}')
    assert "waits for 'approval': nbflow send-event Asks/a1 approval JSON" in shell("show", "Asks/a1")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("class Adds:\n  def\n", "SyntaxError: invalid syntax"),
        ("import sys\nsys.exit(0)\n", "SystemExit: 0; put what ends it under `if __name__ == '__main__':`"),
    ],
)
def test_a_file_that_cannot_be_imported_is_wrong_use_and_shows_its_own_frames(command, tmp_path, text, says):
    (tmp_path / "flows.py").write_text(text)
    for words in (("run", "flows.py:Adds"), ("--json", "run", "flows.py:Adds")):
        done = command(*words, code=2)
        assert done.stderr.endswith(f"nbflow: 'flows.py' cannot be imported: {says}\n")
        assert 'flows.py", line ' in done.stderr or "SystemExit" in says
        for stranger in ("click", "nbflow/cli.py", "importlib"):
            assert stranger not in done.stderr
        assert done.stdout == ""
    assert not (tmp_path / ".nbflow").exists()


def test_nothing_ran_is_said_once_where_a_step_is_stale(command, tmp_path):
    (tmp_path / "factor.py").write_text(
        "import os\n"
        "from nbflow import WorkflowEntrypoint\n"
        "FACTOR = int(os.environ['FACTOR'])\n"
        "class Takes(WorkflowEntrypoint):\n"
        "    async def run(self, event, step):\n"
        "        return await step.do('x', lambda: FACTOR)\n"
    )
    command("run", "factor.py:Takes", "t1", FACTOR="1")
    told = command("run", "factor.py:Takes", "t1", FACTOR="2").stdout
    assert told.count("Nothing ran") == 1
    assert "\n1 stale: x\n" in told


def test_an_output_of_a_class_that_no_shell_has_is_shown_by_its_line(shell):
    shell("run", "flows.py:Marks", "m1")
    assert shell("wait", "m1").startswith("Marks m1: complete")
    told = json.loads(shell("show", "m1", "--json"))
    assert (told["status"], told["output"]) == ("complete", 'flows.Mark {"grade":1}')


def test_a_payload_that_is_no_json_is_refused_with_what_to_write(shell):
    shell("run", "flows.py:Asks", "a1", code=3)
    assert "is no JSON" in shell("send-event", "a1", "approval", "yes", code=2)
    assert "NaN is no JSON" in shell("send-event", "a1", "approval", '{"share": NaN}', code=2)
    assert "1e400 is beyond what a float holds" in shell("send-event", "a1", "approval", "[1e400]", code=2)


@pytest.mark.kernel
def test_a_waiting_kernel_sees_an_event_from_the_shell_within_a_second(shell, tmp_path):
    with kernel_in(tmp_path) as kernel:
        kernel.run("%load_ext nbflow\nfrom nbflow import WorkflowEntrypoint", ok=True)
        kernel.run(
            "%%workflow k1 --as inst\nclass Asks(WorkflowEntrypoint):\n    async def run(self, event, step):\n"
            "        return (await step.wait_for_event('ask', 'approval')).payload\n",
            ok=True,
        )
        kernel.run("inst.wait(20)", ok=True)
        assert "k1" in shell("list")
        shell("send-event", "k1", "approval", '"from the shell"')
        started = time.monotonic()
        kernel.until("inst.is_finished()")
        assert time.monotonic() - started < 1
        assert kernel.evaluate("inst.output") == "from the shell"
        shell("wait", "k1")


def test_doctor_answers_with_an_exit_code_and_demo_keeps_its_promise(shell, tmp_path):
    assert "no history" in shell("doctor", code=1)
    shell("run", "flows.py:Adds", "r1", "--params", '{"a": 1, "b": 2}')
    assert "whole" in shell("doctor")
    assert {row["severity"] for row in json.loads(shell("--json", "doctor"))} == {"fine"}
    assert "Steps 1 to 4 came from the history" in shell("demo")


def test_a_terminal_does_not_act_on_what_a_history_says(shell, tmp_path):
    told = "\x1b]0;owned\x07\x1b[2J\u202e\r"
    (tmp_path / "flows.py").write_text(
        "from nbflow import WorkflowEntrypoint\n"
        "class Says(WorkflowEntrypoint):\n"
        "    async def run(self, event, step):\n"
        "        await step.do('a', lambda: event.payload)\n"
        "        raise ValueError(event.payload)\n"
    )
    shell("run", "flows.py:Says", "s1", "--params", json.dumps(told), code=1)
    with duckdb.connect(str(tmp_path / ".nbflow" / "history.duckdb")) as connection:
        connection.execute("update entries set step = $1 where step = 'a'", [told])
        connection.execute(
            "update entries set body = json_merge_patch(body, $1) where kind = 'claimed'", [json.dumps({"by": told})]
        )
    said = shell("show", "s1") + shell("history", "s1") + shell("list") + shell("doctor") + shell("wait", "s1", code=1)
    assert "�" in said
    assert not {"\x1b", "\x07", "\u202e", "\r"} & set(said)


def test_letters_that_the_terminals_encoding_lacks_are_spelt_out(command, tmp_path):
    """Names are the user's; on Windows what goes into a file or a pipe has the system's old encoding."""
    file = "from nbflow import WorkflowEntrypoint\n\nclass Names(WorkflowEntrypoint):\n"
    file += '    async def run(self, event, step):\n        return await step.do("東京 → ü", lambda: "größe 東京")\n'
    (tmp_path / "named.py").write_text(file, encoding="utf-8")
    assert command("run", "named.py:Names", "a", PYTHONIOENCODING="ascii").returncode == 0
    told = command("show", "a", PYTHONIOENCODING="ascii")
    assert r"\u6771\u4eac" in told.stdout
    assert told.returncode == 0


def test_integers_that_no_reader_of_json_takes_are_told_by_their_digits(shell, tmp_path):
    (tmp_path / "flows.py").write_text(
        "import dataclasses\n"
        "from nbflow import WorkflowEntrypoint\n"
        "@dataclasses.dataclass\n"
        "class Holds:\n"
        "    number: int\n"
        "class Big(WorkflowEntrypoint):\n"
        "    async def run(self, event, step):\n"
        "        return [10**5000, {'a': -(10**5000), 'b': 10**100}]\n"
        "class Odd(WorkflowEntrypoint):\n"
        "    async def run(self, event, step):\n"
        "        return Holds(10**5000)\n"
    )
    digits = "1" + "0" * 5000
    for words in (("run", "flows.py:Big", "b1"), ("show", "b1"), ("wait", "b1")):
        assert json.loads(shell("--json", *words))["output"] == [digits, {"a": f"-{digits}", "b": 10**100}]
    assert "Holds" in json.loads(shell("--json", "run", "flows.py:Odd", "o1"))["output"]


@pytest.mark.parametrize(
    "words",
    [
        ("send-event", "a1", "approval", "[" * 2000),
        ("send-event", "a1", "approval", b'"\xff"'),
        ("send-event", "a1", b"\xff", "1"),
        ("show", b"\xff\xfe"),
        ("list", b"\xff"),
        ("list", "--status", b"\xff"),
        ("list", "--limit", "0"),
        ("run", "flows.py:Adds", "--params", "[" * 2000),
        ("run", "flows.py:Adds", b"\xff"),
        ("run", b"\xff.py:Adds"),
    ],
)
def test_words_that_cannot_be_taken_are_wrong_use(shell, words):
    shell("run", "flows.py:Asks", "a1", code=3)
    told = shell(*words, code=2)
    assert told.startswith("nbflow: ")
    assert told.count("\n") == 1


def test_a_limit_above_all_numbers_is_all(shell):
    shell("run", "flows.py:Asks", "a1", code=3)
    for limit in ("99999999999999999999", "9" * 5000):
        assert "a1" in shell("list", "--limit", limit)


def written_to(place, tmp_path, *words):
    """Run a command whose stdout is a full disk, or a pipe that nobody reads; gives the exit code and what it said."""
    read, write = os.pipe()
    os.close(read)
    with open("/dev/full", "w") if place == "full" else os.fdopen(write, "w") as out:
        done = subprocess.run(
            [sys.executable, "-m", "nbflow", *words],
            cwd=tmp_path, env=ENV, stdout=out, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no disk that is always full")
@pytest.mark.parametrize("json_too", [(), ("--json",)])
def test_an_answer_that_cannot_be_written_is_told_and_is_no_failure_of_the_instance(shell, tmp_path, json_too):
    unwritten = "nbflow: the answer could not be written: No space left on device; what was asked for is done\n"
    run = ("run", "flows.py:Adds", "r1", "--params", '{"a": 1, "b": 2}')
    assert written_to("full", tmp_path, *json_too, *run) == (5, unwritten)
    assert "complete" in shell("show", "r1")
    assert written_to("full", tmp_path, *json_too, "list") == (5, unwritten)
    assert written_to("full", tmp_path, *json_too, "run", "flows.py:Asks", "a1")[0] == 3
    assert written_to("full", tmp_path, "--help") == (5, unwritten)


@pytest.mark.usefixtures("command")
@pytest.mark.parametrize("json_too", [(), ("--json",)])
def test_a_reader_that_has_gone_changes_no_exit_code(tmp_path, json_too):
    run = ("run", "flows.py:Adds", "r1", "--params", '{"a": 1, "b": 2}')
    assert written_to("pipe", tmp_path, *json_too, *run) == (0, "")
    assert written_to("pipe", tmp_path, *json_too, "show", "r1") == (0, "")
    assert written_to("pipe", tmp_path, *json_too, "run", "flows.py:Asks", "a1") == (3, "")
