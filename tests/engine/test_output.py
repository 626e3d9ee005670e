"""What a body prints, logs, warns and draws goes to its step and attempt, and to nobody else's (PANEL.md 7)."""

import asyncio
import contextlib
import io
import logging
import subprocess
import sys
import threading
import tracemalloc

import pytest
import tqdm as tqdms

from nbflow import Engine, WorkflowEntrypoint
from nbflow.core.log import LogItem, joined, settled, text_of
from nbflow.core.model import Kind
from nbflow.engine.logs import log as logs
from nbflow.engine.logs.output import OUTPUT
from tests.engine.conftest import Gate, entrypoint, eventually


@pytest.fixture(autouse=True)
def _in_a_notebook():
    """Logs are shown in a panel: bodies' prints are not echoed."""
    logs.set_echo(lambda: False)
    yield
    logs.set_echo(None)


def items(instance, name="s"):
    return [(item.stream, item.text) for item in instance.step(name).log]


# -- prints -------------------------------------------------------------------------------------------------------------------


def test_prints_of_parallel_steps_and_of_a_thread_of_the_user_each_land_where_they_belong(lab, capsys):
    turns = threading.Barrier(3, timeout=5)

    def plain(name):
        for number in range(20):
            turns.wait()
            print(name, number)

    async def looped(name):
        for number in range(20):
            print(name, number)
            await asyncio.sleep(0)

    def user():
        for number in range(20):
            turns.wait()
            print("user", number)

    async def run(event, step):
        print("in run")
        await asyncio.gather(
            *(step.do(name, plain, name) for name in ("one", "two")),
            *(step.do(name, looped, name) for name in ("three", "four")),
        )

    thread = threading.Thread(target=user)
    thread.start()
    instance = lab.run(run)
    thread.join()
    for name in ("one", "two", "three", "four"):
        assert instance.step(name).logs == "".join(f"{name} {number}\n" for number in range(20))
    out, err = capsys.readouterr()
    assert [line for line in out.splitlines() if line != "in run"] == [f"user {number}" for number in range(20)]
    assert out.count("in run\n") == 1
    assert err == ""


def test_threads_and_tasks_that_a_body_starts_in_its_context_print_for_it(lab, capsys):
    async def body():
        async def task():
            print("task")

        await asyncio.create_task(task())
        await asyncio.to_thread(print, "thread")

    async def run(event, step):
        await step.do("s", body)

    assert lab.run(run).step("s").logs == "task\nthread\n"
    assert capsys.readouterr().out == ""


def test_each_attempt_has_its_own_part_and_its_stream(lab):
    def body(ctx):
        print("try", ctx.attempt)
        print("oops", file=sys.stderr)
        if ctx.attempt < 3:
            raise OSError

    async def run(event, step):
        await step.do("s", body, retries={"limit": 3, "delay": 1})

    found = lab.run(run).step("s").log
    assert [(i.attempt, i.stream, i.text) for i in found] == [
        (n, stream, text) for n in (1, 2, 3) for stream, text in (("stdout", f"try {n}\n"), ("stderr", "oops\n"))
    ]
    assert all(item.at is not None for item in found)


def test_a_step_that_puts_nothing_out_has_an_empty_log_and_makes_none(lab):
    seen = []

    async def run(event, step):
        await step.do("s", lambda: seen.append(OUTPUT.get()))

    instance = lab.run(run)
    assert instance.step("s").log == ()
    assert instance.step("s").logs == ""
    assert seen[0]._log is None


def test_what_redirect_stdout_in_a_body_catches_stays_with_the_body(lab):
    def body():
        caught = io.StringIO()
        with contextlib.redirect_stdout(caught):
            print("inside")
        print("after")
        return caught.getvalue()

    async def run(event, step):
        return await step.do("s", body)

    instance = lab.run(run)
    assert instance.output == "inside\n"
    assert instance.step("s").logs == "after\n"


def test_a_body_that_starts_while_another_redirects_stdout_disturbs_neither(lab):
    gate = Gate()

    def redirects():
        caught = io.StringIO()
        with contextlib.redirect_stdout(caught):
            print("before")
            gate()
            print("after")
        return caught.getvalue()

    def other():
        print("other")
        gate.open()

    async def run(event, step):
        first = asyncio.ensure_future(_value(step.do("first", redirects)))
        await asyncio.to_thread(gate.reached)
        await step.do("other", other)
        return await first

    instance = lab.run(run)
    assert instance.output == "before\nafter\n"
    assert instance.step("other").logs == "other\n"


async def _value(call):
    return await call


def test_streams_are_tapped_again_when_somebody_took_ours_out(lab, monkeypatch):
    async def run(event, step):
        await step.do("one", print, "one")
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        await step.do("two", print, "two")

    instance = lab.run(run)
    assert (instance.step("one").logs, instance.step("two").logs) == ("one\n", "two\n")


def test_what_others_put_in_place_of_write_sees_all_but_bodies(lab):
    """IPython does that around each cell, and keeps what it sees."""
    seen = []

    async def run(event, step):
        await step.do("zero", print, "zero")
        original = sys.stdout.write
        stream = sys.stdout

        def patched(text, *args):
            seen.append(text)
            return original(text, *args)

        stream.write = patched
        try:
            print("mine")
            await step.do("one", print, "one")
        finally:
            stream.write = original
        print("later")

    instance = lab.run(run)
    assert "".join(seen) == "mine\n"
    assert instance.step("one").logs == "one\n"


def test_the_last_engine_to_close_leaves_streams_loggers_and_bars_as_they_were(make_lab):
    before = sys.stdout, sys.stderr, logging.Logger.callHandlers, dict(tqdms.std.tqdm.__dict__)
    one, two = make_lab(), make_lab()

    async def run(event, step):
        await step.do("s", print, "x")

    one.run(run)
    two.run(run)
    assert type(sys.stdout).__name__ == "Tap"
    one.close()
    assert type(sys.stdout).__name__ == "Tap"
    two.close()
    assert before == (sys.stdout, sys.stderr, logging.Logger.callHandlers, dict(tqdms.std.tqdm.__dict__))


def test_where_no_panel_shows_logs_prints_are_shown_too(lab, capsys):
    logs.set_echo(None)

    def body(ctx):
        print("out")
        print("err", file=sys.stderr)
        ctx.log("line")

    async def run(event, step):
        await step.do("s", body)

    instance = lab.run(run)
    assert items(instance) == [("stdout", "out\n"), ("stderr", "err\n"), ("log", "line")]
    assert capsys.readouterr() == ("out\nline\n", "err\n")


@pytest.mark.parametrize("trouble", [ValueError("I/O operation on closed file"), BrokenPipeError(32, "Broken pipe")])
def test_a_print_that_is_kept_and_can_be_shown_nowhere_fails_no_step(lab, monkeypatch, trouble):
    class Gone(io.StringIO):
        def write(self, text):
            raise trouble

    logs.set_echo(lambda: True)
    monkeypatch.setattr(sys, "stdout", Gone())

    async def run(event, step):
        await step.do("s", lambda: print("hello"), retries={"limit": 0, "delay": 0})

    instance = lab.start(run)
    lab.finish(instance)
    assert instance.status().status == "complete"
    assert instance.step("s").logs == "hello\n"
    with pytest.raises(type(trouble)):
        print("not a body's")


def test_lines_of_parallel_bodies_are_shown_whole_at_a_flush_and_at_the_end(lab, capfd):
    logs.set_echo(None)
    begun, other = asyncio.Event(), asyncio.Event()

    async def slow():
        print("slow", end=" ")
        begun.set()
        await other.wait()
        print("line")
        print("flushed", end="", flush=True)
        seen.append(capfd.readouterr().out)
        print(" end", end="")

    async def quick():
        await begun.wait()
        print("quick", "line")
        other.set()

    async def run(event, step):
        await asyncio.gather(step.do("slow", slow), step.do("quick", quick))

    seen = []
    inst = lab.run(run)
    assert seen == ["quick line\nslow line\nflushed"]
    assert capfd.readouterr().out == " end"
    assert inst.step("slow").logs == "slow line\nflushed end"


def test_a_line_that_is_not_ended_is_shown_within_the_second(lab, capfd):
    logs.set_echo(None)

    async def dots():
        print(".", end="")
        step_engine.outputs.flush()
        seen.append(capfd.readouterr().out)
        print(".", end="")

    seen = []
    step_engine = lab.engine
    inst = lab.run(lambda event, step: step.do("dots", dots))
    assert (seen, capfd.readouterr().out) == (["."], ".")
    assert inst.step("dots").logs == ".."


def test_output_of_a_sensitive_step_is_neither_kept_nor_shown(lab, capsys):
    logs.set_echo(None)

    def body():
        for _ in range(3):
            print("secret")

    async def run(event, step):
        await step.do("s", body, sensitive="output")

    instance = lab.run(run)
    assert items(instance) == [("note", "[REDACTED]")]
    assert lab.engine.sql("select text from logs").fetchall() == [("[REDACTED]",)]
    assert "secret" not in "".join(capsys.readouterr())


def test_handlers_that_undo_and_delay_functions_print_into_logs(lab, capsys):
    def delay(ctx, error):
        print("delay")
        return 1

    def undo():
        print("undone")

    def fails(ctx):
        print("try", ctx.attempt)
        raise ValueError

    async def run(event, step):
        await step.do("s", fails, retries={"limit": 1, "delay": delay}, rollback=undo)

    instance = lab.run(run)
    eventually(lambda: instance.step("s").logs == "try 1\ndelay\ntry 2\n")
    [handler] = [step for step in instance.steps if step.type == "rollback"]
    assert handler.logs == "undone\n"
    assert capsys.readouterr().out == ""


def test_an_instance_that_a_body_makes_prints_where_run_prints(lab, capsys):
    async def child(event, step):
        print("child runs")

    wf = lab.workflow(child, "Child")

    async def run(event, step):
        await step.do("s", lambda: wf.create("c").id)

    instance = lab.run(run)
    lab.finish(wf.get("c"))
    assert instance.step("s").logs == ""
    assert capsys.readouterr().out == "child runs\n"


def test_what_an_abandoned_body_prints_later_is_kept_with_its_attempt(lab):
    gate = Gate()

    def body():
        print("before")
        gate()
        print("late")

    async def run(event, step):
        await step.do("s", body, timeout=1, retries=0)

    instance = lab.start(run)
    gate.reached()
    lab.move(2)
    lab.finish(instance)
    gate.open()
    eventually(lambda: instance.step("s").logs == "before\nlate\n")


def test_a_restart_begins_a_new_log(lab):
    numbers = iter(range(9))

    async def run(event, step):
        await step.do("s", lambda: print("round", next(numbers)))

    instance = lab.run(run)
    assert instance.step("s").logs == "round 0\n"
    lab.move(1)
    instance.restart()
    lab.finish(instance)
    assert instance.step("s").logs == "round 1\n"
    assert lab.engine.sql("select text from logs").fetchall() == [("round 1\n",)]


# -- how much -----------------------------------------------------------------------------------------------------------------


def test_one_megabyte_of_a_step_is_kept_and_the_rest_counted(lab):
    def body(ctx):
        for _ in range(700):
            print("x" * 999)
        if ctx.attempt == 1:
            raise OSError

    async def run(event, step):
        await step.do("s", body, retries={"limit": 1, "delay": 1})

    found = lab.run(run).step("s").log
    assert sum(len(item.text) for item in found if item.stream == "stdout") == logs.LIMIT
    assert [(item.attempt, item.text) for item in found if item.stream == "note"] == [
        (2, "cut: 400,000 more bytes were printed")
    ]


def test_a_body_that_prints_a_hundred_megabytes_takes_little_memory(lab):
    def body():
        tracemalloc.start()
        try:
            for _ in range(100):
                for _ in range(10):
                    sys.stdout.write("x" * 100_000)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    async def run(event, step):
        return await step.do("s", body)

    instance = lab.run(run)
    assert instance.output < 10_000_000
    assert instance.step("s").log[-1].text == "cut: 99,000,000 more bytes were printed"


def test_one_write_larger_than_all_is_cut(lab):
    async def run(event, step):
        await step.do("s", lambda: print("é" * 2_000_000, end=""))

    first, note = lab.run(run).step("s").log
    assert len(first.text.encode()) == logs.LIMIT
    assert note.text == "cut: 3,000,000 more bytes were printed"


def test_text_that_utf8_cannot_hold_is_kept_escaped(lab):
    async def run(event, step):
        await step.do("s", print, "half \ud800 and nul \0")

    assert lab.run(run).step("s").logs == "half \\ud800 and nul ␀\n"


def test_hostile_texts_and_records_hurt_nobody(lab, monkeypatch):
    class Text(str):
        def __str__(self):
            raise RuntimeError("no")

        replace = isascii = encode = __len__ = __str__

    class Arg:
        def __repr__(self):
            raise RuntimeError("no")

        __str__ = __repr__

    user = logging.getLogger("user")
    monkeypatch.setattr(user, "propagate", False)  # pytest's own handler raises what formatting raises

    def body():
        sys.stdout.write(Text("text\n"))
        user.error("arg %s", Arg())
        with pytest.raises(TypeError):
            sys.stdout.write(5)

    async def run(event, step):
        await step.do("s", body)

    assert items(lab.run(run)) == [
        ("stdout", "text\n"),
        ("log", "ERROR user: a record that could not be formatted (RuntimeError)"),
    ]


# -- carriage returns and bars ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("a\rb\n", "b\n"),
        ("100%\r20%\n", "20%%\n"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("long line\r         \rend", "end"),
        ("\r1\r2\r", "2"),
        ("x\ny\rz\nw", "x\nz\nw"),
        ("plain", "plain"),
    ],
)
def test_of_a_line_drawn_over_the_last_state_is_kept(lab, written, shown):
    assert settled(written) == shown

    def by_character():
        for character in written:
            sys.stdout.write(character)

    async def run(event, step):
        await step.do("s", by_character)

    assert lab.run(run).step("s").logs == shown


def test_a_bar_drawn_ten_thousand_times_is_one_line_and_takes_one_lines_room(lab):
    def body():
        for number in range(10_000):
            sys.stderr.write(f"\r{number:>10} " + "#" * 200)
        sys.stderr.write("\n")

    async def run(event, step):
        await step.do("s", body)

    assert items(lab.run(run)) == [("stderr", f"{9999:>10} " + "#" * 200 + "\n")]


def test_the_first_bar_of_a_body_that_loads_tqdm_itself_is_progress(lab, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "tqdm"]:
        monkeypatch.delitem(sys.modules, name)
    go, shown = threading.Event(), threading.Event()
    before = list(sys.meta_path)

    def body():
        from tqdm import tqdm

        with tqdm(total=4, desc="first", mininterval=0, miniters=1, ascii=True) as bar:
            bar.update(1)
            shown.set()
            go.wait(10)

    async def run(event, step):
        await step.do("a", body)

    instance = lab.start(run)
    assert shown.wait(10)
    assert (instance.step("a").progress.done, instance.step("a").progress.note) == (1, "first")
    go.set()
    lab.finish(instance)
    lab.engine.close()
    assert sys.meta_path == before


def test_a_tqdm_bar_is_progress_while_it_runs_and_one_line_after(lab):
    gate = Gate()

    def body():
        with tqdms.tqdm(total=10, desc="embed", mininterval=0, miniters=1, ascii=True) as bar:
            for number in range(10):
                print("item", number)
                bar.update()
                if number == 6:
                    gate()

    async def run(event, step):
        await step.do("s", body)

    instance = lab.start(run)
    gate.reached()
    view = instance.step("s")
    assert (view.progress.done, view.progress.total, view.progress.note) == (7, 10, "embed")
    assert "7/10" in view.logs
    gate.open()
    lab.finish(instance)
    assert instance.step("s").progress is None
    (out, prints), (err, line) = items(instance)
    assert (out, prints) == ("stdout", "".join(f"item {number}\n" for number in range(10)))
    assert err == "stderr"
    assert line.startswith("embed: 100%|##########| 10/10 [")
    assert line.count("\n") == 1


def test_nested_bars_leave_their_last_states_and_the_outer_one_is_the_progress(lab):
    seen = set()

    def body():
        for _ in tqdms.trange(2, desc="outer", mininterval=0, ascii=True):
            for _ in tqdms.trange(3, desc="inner", mininterval=0, ascii=True, leave=False):
                seen.add(OUTPUT.get().log.progress.note)

    async def run(event, step):
        await step.do("s", body)

    instance = lab.run(run)
    assert seen == {"outer"}
    [(_, line)] = items(instance)
    assert line.startswith("outer: 100%|##########| 2/2 [")


def test_bars_outside_bodies_and_into_files_are_left_alone(lab, capsys):
    def body():
        into = io.StringIO()
        for _ in tqdms.trange(3, file=into, ascii=True):
            pass
        return "3/3" in into.getvalue()

    async def run(event, step):
        return await step.do("s", body)

    instance = lab.run(run)
    for _ in tqdms.trange(3, ascii=True):
        pass
    assert instance.output is True
    assert instance.step("s").logs == ""
    assert "3/3" in capsys.readouterr().err


def test_ctx_progress_is_shown_while_the_body_runs(lab):
    gate = Gate()

    def body(ctx):
        ctx.progress(3, 12, "shards")
        gate()

    async def run(event, step):
        await step.do("s", body)

    told = []
    instance = lab.start(run)
    lab.engine.feed.subscribe(told.append)
    gate.reached()
    progress = instance.step("s").progress
    assert (progress.done, progress.total, progress.note) == (3, 12, "shards")
    gate.open()
    lab.finish(instance)
    assert instance.step("s").progress is None
    assert instance.step("s").log == ()


# -- logging and warnings -----------------------------------------------------------------------------------------------------


@pytest.fixture
def logger():
    """A logger of the user's with its handlers."""
    made = logging.getLogger("shop.cart")
    stream = io.StringIO()
    file, made.console = logging.StreamHandler(stream), logging.StreamHandler(stream)
    made.setLevel(logging.INFO)
    made.propagate = False
    made.handlers = [file, made.console]
    made.stream = stream
    yield made
    made.handlers = []
    made.setLevel(logging.NOTSET)
    made.propagate = True


def test_records_are_kept_once_and_the_users_handlers_get_them(lab, logger, capsys):
    logger.console.setStream(sys.stderr)  # before any body runs: the very stream, not what nbflow puts before it

    def body():
        logger.debug("not asked for")
        logger.info("sold %d", 3)
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError:
            logger.exception("broke")

    async def run(event, step):
        await step.do("s", body)

    instance = lab.run(run)
    (first, sold), (second, broke) = items(instance)
    assert (first, sold, second) == ("log", "INFO shop.cart: sold 3", "log")
    assert broke.startswith("ERROR shop.cart: broke\nTraceback")
    assert logger.stream.getvalue().startswith("sold 3\nbroke\n")
    assert capsys.readouterr().err == ""
    logger.info("outside")
    assert capsys.readouterr().err == "outside\n"


def test_echoed_records_are_shown_as_the_user_set_it_up_and_kept_once(lab, logger, capsys):
    logs.set_echo(None)
    logger.console.setStream(sys.stderr)

    async def run(event, step):
        await step.do("s", logger.info, "sold")

    assert items(lab.run(run)) == [("log", "INFO shop.cart: sold")]
    assert capsys.readouterr().err == "sold\n"


def test_without_any_handler_a_warning_is_kept_once(lab, capsys):
    bare = logging.getLogger("bare")
    bare.propagate = False

    async def run(event, step):
        await step.do("s", bare.warning, "careful")

    try:
        assert items(lab.run(run)) == [("log", "WARNING bare: careful")]
        assert capsys.readouterr().err == ""
    finally:
        bare.propagate = True


SCRIPT = """
import sys, warnings
from nbflow import Engine, WorkflowEntrypoint

def body():
    print("said")
    warnings.warn("careful")

class Script(WorkflowEntrypoint):
    async def run(self, event, step):
        print("in run")
        await step.do("s", body)

with Engine(sys.argv[1]) as engine:
    instance = engine.register(Script).create()
    instance.wait(20)
    for item in instance.step("s").log:
        print(item.stream, "UserWarning: careful" in item.text, len(item.text.splitlines()))
"""


def test_a_script_shows_what_bodies_print_and_keeps_it_and_warnings_as_such(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    command = [sys.executable, str(file), str(tmp_path / "h.duckdb")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "in run\nsaid\nstdout False 1\nwarning True 2\n"
    assert "UserWarning: careful" in ran.stderr


def test_a_child_that_a_body_forks_prints_to_the_terminal(tmp_path):
    file = tmp_path / "script.py"
    forks = "    import os; child = os.fork()\n    print('child' if not child else 'parent', flush=True)\n"
    forks += "    child or os._exit(0); os.waitpid(child, 0)\n"
    quiet = "from nbflow.engine.logs.log import set_echo\nset_echo(lambda: False)\n"
    file.write_text(quiet + SCRIPT.replace('    print("said")\n', forks).replace('    warnings.warn("careful")\n', ""))
    command = [sys.executable, "-W", "ignore", str(file), str(tmp_path / "h.duckdb")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert sorted(ran.stdout.split("\n")) == sorted(["in run", "child", "stdout False 1", ""])


# -- kept ---------------------------------------------------------------------------------------------------------------------


class Prints(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("s", print, "kept")
        await step.wait_for_event("w", "go")


def test_a_log_is_there_in_a_new_engine_and_in_sql(tmp_path):
    with Engine(tmp_path / "h.duckdb") as engine:
        instance = engine.register(Prints).create("one")
        instance.wait(10)
        assert instance.step("s").logs == "kept\n"
    with Engine(tmp_path / "h.duckdb") as engine:
        assert engine.get("one").step("s").log[0].text == "kept\n"
        assert engine.sql("select workflow, instance_id, name, attempt, stream, text from logs").fetchall() == [
            ("Prints", "one", "s", 1, "stdout", "kept\n")
        ]
        engine.get("one").delete()
        assert engine.sql("select * from logs").fetchall() == []
        engine.compact()
        assert engine.sql("select * from log_chunks").fetchall() == []


def test_logs_add_no_entries_to_the_history_and_are_not_in_the_fold(tmp_path):
    async def run(event, step):
        await step.do("s", lambda: print("x" * 50_000))

    with Engine(tmp_path / "h.duckdb") as engine:
        instance = engine.register(entrypoint(run), "W").create("one")
        instance.wait(10)
        assert {entry.kind for entry in instance.history() if entry.step} <= {Kind.DO_STARTED, Kind.DO_FINISHED}
        assert "xxxxx" not in str(instance.history())
        assert len(instance.step("s").logs) == 50_001


def test_a_running_bodys_log_can_be_read_and_is_in_the_journal_within_the_second(tmp_path):
    gate = Gate()

    def body():
        print("so far")
        gate()
        print("and on")

    async def run(event, step):
        await step.do("s", body)

    with Engine(tmp_path / "h.duckdb") as engine:
        instance = engine.register(entrypoint(run), "W").create("one")
        gate.reached()
        assert instance.step("s").logs == "so far\n"
        folder = tmp_path / "h.nbflow" / "journal"
        eventually(lambda: any(b"so far" in file.read_bytes() for file in folder.glob("*.seg")))
        assert instance.step("s").logs == "so far\n"
        gate.open()
        instance.wait(10)
        assert instance.step("s").logs == "so far\nand on\n"
        assert len(instance.step("s").log) == 1


def test_items_brought_back_from_elsewhere_are_the_attempts(lab):
    def body():
        OUTPUT.get().extend([("stdout", "there\n", None), ("display", "<F>", {"text/html": "<b>f</b>"})])

    async def run(event, step):
        await step.do("s", body)

    found = lab.run(run).step("s").log
    assert [(item.stream, item.text, item.mime) for item in found] == [
        ("stdout", "there\n", None),
        ("display", "<F>", {"text/html": "<b>f</b>"}),
    ]


def test_the_text_of_a_log_begins_a_line_where_another_kind_of_item_begins():
    found = joined(
        [
            LogItem(1, "stdout", "no end"),
            LogItem(1, "log", "INFO x: y"),
            LogItem(1, "stdout", "one "),
            LogItem(1, "stdout", "line\n"),
            LogItem(2, "stdout", "two"),
        ]
    )
    assert len(found) == 4
    assert text_of(found) == "no end\nINFO x: y\none line\ntwo"
