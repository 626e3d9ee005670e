"""What is recorded of the code of steps, what is stale by it, and what the present code would do (S56, S57)."""

import functools

import pytest

from nbflow import Engine, UsageError, WorkflowEntrypoint
from nbflow.core.model import Kind, StepKey, StepType
from nbflow.errors import StoreLockedError
from nbflow.store import segments
from tests.engine.conftest import eventually, kinds, revive
from tests.engine.test_fingerprints import Cells

SIZE = 1


def flow(values=(1, 2), *, body=None, extra=False):
    async def run(event, step):
        total = await step.do("sum", body or sum, list(values))
        if extra:
            await step.do("extra", lambda: SIZE)
        return (await step.wait_for_event("ask", "approval")).payload, total

    return run


def again(lab, instance, run):
    """Register other code, and give the instance as it has gone on with it."""
    lab.workflow(run)
    lab.idle()
    return instance


def test_other_arguments_make_a_step_stale_and_equal_ones_do_not(lab):
    instance = lab.start(flow((1, 2)))
    lab.idle()
    revived = lab.revive()
    again(revived, lab, flow((1, 2)))
    same = revived.engine.get(instance.id)
    assert same.view().stale_steps == ()
    later = revived.revive()
    again(later, lab, flow((1, 3)))
    other = later.engine.get(instance.id)
    assert [(step.name, step.stale_why) for step in other.steps if step.stale] == [("sum", ("arguments changed",))]
    assert other.view().stale == 1


def test_what_was_recorded_without_its_code_is_never_stale(lab):
    instance = lab.start(flow((1, 2)))
    lab.idle()
    old = [
        dataclasses_replace(
            entry, {k: v for k, v in entry.body.items() if k not in ("code_hash", "args_hash", "bound", "reach")}
        )
        if entry.step
        else entry
        for entry in lab.entries()
    ]
    revived = revive(old, lab, **lab.settings)
    lab.die()
    again(revived, lab, flow((1, 3), body=max))
    other = revived.engine.get(instance.id)
    assert other.view().stale == 0
    assert other.step("sum").code == other.step("sum").code_diff == ""
    assert not other.step("sum").stale
    changes = other.code_changes()
    assert [step.name for step in changes.kept] == ["sum"]
    assert changes.stale == ()


def dataclasses_replace(entry, body):
    import msgspec

    return msgspec.structs.replace(entry, body=body)


def test_another_body_from_an_installed_module_is_another_code(lab):
    instance = lab.start(flow((1, 2), body=sum))
    lab.idle()
    revived = lab.revive()
    again(revived, lab, flow((1, 2), body=max))
    assert revived.engine.get(instance.id).step("sum").stale_why == ("the body changed",)


def test_every_entry_of_an_attempt_says_its_code_and_a_handler_has_its_own(lab):
    def undo(output):
        return output

    async def run(event, step):
        await step.do("load", lambda: SIZE, rollback=undo)
        await step.do("break", functools.partial(int, "x"), retries={"limit": 1, "delay": 0})

    entries = [entry for entry in lab.run(run).history() if entry.step]
    codes = {(entry.kind, entry.step): entry.body.get("code_hash") for entry in entries}
    assert all(codes.values())
    assert codes[Kind.DO_STARTED, "load"] == codes[Kind.DO_FINISHED, "load"]
    assert codes[Kind.DO_RETRYING, "break"] == codes[Kind.DO_FAILED, "break"]
    assert codes[Kind.ROLLBACK_FINISHED, "load"] not in (codes[Kind.DO_FINISHED, "load"], None)


def test_the_text_of_a_body_is_kept_and_comes_back(lab):
    def load():
        return SIZE  # what it gives

    async def run(event, step):
        return await step.do("load", load)

    instance = lab.run(run)
    assert instance.step("load").code == "def load():\n    return SIZE  # what it gives"
    assert lab.store.source(instance.step("load")._code.parts()["SIZE"]) == "SIZE = 1"


def test_code_changes_sorts_what_is_recorded_and_neither_runs_nor_records(lab):
    ran = []
    instance = lab.start(flow((1, 2)))
    lab.idle()
    before = kinds(instance)
    lab.engine.register(_quietly(flow((1, 3), extra=True), ran), "W", source="x = 1")
    lab.idle()
    recorded = [kind for kind in kinds(instance) if kind not in before]
    assert recorded == ["activated", "do.started extra", "do.finished extra"] or recorded[1:] == ["do.finished extra"]
    changes = instance.code_changes()
    assert [str(step.key) for step in changes.stale] == ["sum"]
    assert [str(step.key) for step in changes.kept] == ["extra"]
    assert (changes.new, changes.unreached) == ((), ())
    entries = len(instance.history())
    lab.engine.register(_quietly(flow((1, 2)), ran), "W", source="x = 2")
    lab.idle()
    ran.clear()
    changes = instance.code_changes()
    assert ran == ["run"]
    assert changes.stale == ()
    assert [str(step.key) for step in changes.unknown] == ["extra"]  # behind the open wait nothing is known
    assert len(instance.history()) == entries + 1  # the activation of the new class
    assert "1 kept" in str(changes)


def _quietly(run, ran):
    class Flow(WorkflowEntrypoint):
        async def run(self, event, step):
            ran.append("run")
            return await run(event, step)

    return Flow


def test_steps_that_a_finished_run_does_not_ask_for_are_unreached_and_new_ones_new(lab):
    async def first(event, step):
        await step.do("a", lambda: 1)
        await step.sleep("rest", 1)
        return await step.do("b", lambda: 2)

    async def second(event, step):
        await step.do("a", lambda: 1)
        await step.sleep("rest", 1)
        return 3

    async def third(event, step):
        await step.do("a", lambda: 1)
        return await step.do("new", lambda: 3)

    instance = lab.run(first)
    lab.workflow(second)
    changes = instance.code_changes()
    assert [str(step.key) for step in changes.kept] == ["a", "rest"]
    assert [str(step.key) for step in changes.unreached] == ["b"]
    lab.workflow(third)
    changes = instance.code_changes()
    assert changes.new == (StepKey(StepType.DO, "new"),)
    assert [str(step.key) for step in changes.unknown] == ["rest", "b"]
    assert instance.status().output == 2


def test_code_changes_of_a_run_that_fails_now_tells_what_was_reached(lab):
    async def first(event, step):
        return await step.do("a", lambda: 1) + await step.do("b", lambda: 2)

    async def second(event, step):
        await step.do("a", lambda: 1)
        raise ValueError

    instance = lab.run(first)
    lab.workflow(second)
    changes = instance.code_changes()
    assert [str(step.key) for step in changes.kept] == ["a"]
    assert [str(step.key) for step in changes.unreached] == ["b"]


def test_restart_stale_restarts_from_the_first_in_order_and_refuses_where_none_is(lab):
    async def first(event, step):
        a = await step.do("a", lambda: 1)
        b = await step.do("b", lambda: 2)
        return [a, b, await step.do("c", lambda: 3)]

    async def second(event, step):
        a = await step.do("a", lambda: 1)
        b = await step.do("b", lambda: 20)
        return [a, b, await step.do("c", lambda: 30)]

    instance = lab.run(first)
    with pytest.raises(UsageError, match=r"no step of .* is stale; nothing was done"):
        instance.restart_stale()
    lab.workflow(second)
    instance.restart_stale()
    lab.finish(instance)
    assert instance.output == [1, 20, 30]
    restarted = next(entry for entry in instance.history() if entry.kind is Kind.RESTARTED)
    assert restarted.body["keep_below"] == 2


def test_a_shell_that_has_no_code_says_where_stale_steps_are_known(lab):
    lab.run(flow_of_one, id="a")
    shell = lab.revive()
    with pytest.raises(UsageError, match="known only where the code of 'W' is: run %workflow restart --stale in its notebook"):
        shell.engine.get("a").restart_stale()


async def flow_of_one(event, step):
    return await step.do("one", lambda: SIZE)


def test_sources_that_cannot_be_read_now_are_not_asked_for_in_vain(lab, monkeypatch):
    instance = lab.run(flow_of_one)
    asked = []

    def held(hash_):
        asked.append(hash_)
        raise StoreLockedError("held")

    monkeypatch.setattr(lab.store, "source", held)
    assert (instance.step("one").code, instance.step("one").code_diff, instance.step("one").stale_why) == ("", "", ())
    assert len(asked) == 1


def test_code_changes_on_the_loop_is_refused(lab):
    async def run(event, step):
        with pytest.raises(UsageError, match="would block the workflow loop"):
            lab.engine.get("a").code_changes()
        return 1

    assert lab.run(run, id="a").output == 1


def test_a_step_given_what_cannot_be_looked_at_runs_all_the_same(lab):
    class Odd:
        def __call__(self):
            return 1

        def __getattribute__(self, name):
            if name == "__dict__":
                raise RuntimeError(name)
            return object.__getattribute__(self, name)

    async def run(event, step):
        return await step.do("odd", Odd())

    assert lab.output(run) == 1


def test_the_source_stands_in_the_journal_before_the_entries_that_name_it(tmp_path):
    class Flow(WorkflowEntrypoint):
        async def run(self, event, step):
            return await step.do("load", lambda: SIZE)

    with Engine(tmp_path / "h.duckdb", notebook="a.ipynb") as engine:
        instance = engine.register(Flow).create("a")
        instance.wait(20)
        code_hash = instance.history()[-2].body["code_hash"]
        folder = engine.store.path.parent / "h.nbflow" / "journal"
        journal = b"".join(path.read_bytes() for path in sorted(folder.glob("*.seg")))
        source, entry = journal.find(f'"source":"{code_hash}"'.encode()), journal.find(b'"kind":"do.started"')
        assert 0 <= source < entry
        assert eventually(lambda: engine.store.source(code_hash))
    with Engine(tmp_path / "h.duckdb", notebook="a.ipynb") as engine:
        assert "lambda: SIZE" in engine.get("a").step("load").code
        assert segments.engines(folder)


def test_an_instance_that_ends_since_other_code_lets_it_go_on_is_not_called_one_that_ended_before(lab):
    async def waits(event, step):
        await step.sleep("rest", "1 hour")
        return "rested"

    async def does_not(event, step):
        return "at once"

    instance = lab.start(waits, id="a")
    lab.idle()
    workflow = lab.workflow(does_not)
    lab.idle()
    assert instance.output == "at once"
    assert lab.engine.open(workflow, "a").line == "went on with the changed code: complete. Run again: --again"
    workflow = lab.workflow(does_not)
    assert lab.engine.open(workflow, "a").line.startswith("Nothing ran: complete since ")


@pytest.mark.parametrize("again", [False, True])
def test_one_run_of_a_changed_cell_does_nothing_twice_where_that_fails_at_once(lab, again):  # S58, API.md §3
    done: list[str] = []

    async def waits(event, step):
        await step.wait_for_event("ask", "go")

    async def fails(event, step):
        await step.do("new", lambda: done.append("body") or 1 / 0, retries=0, rollback=lambda: done.append("undo"))

    instance = lab.start(waits, id="a")
    lab.idle()
    lab.clock.advance(1)
    workflow = lab.workflow(fails)
    lab.idle()
    assert instance.status().status == "errored"
    opened = lab.engine.open(workflow, "a", again=again)
    opened.start()
    lab.idle()
    assert done == ["body", "undo"]
    assert opened.line == "went on with the changed code: errored. Run the cell once more to go on"
    assert opened.instance.id == "a"
    workflow = lab.workflow(fails)
    opened = lab.engine.open(workflow, "a")
    opened.start()
    lab.idle()
    assert done == ["body", "undo"] * 2


@pytest.mark.parametrize("noted", ["('body', x)", "{'x': ('body', x)}", "body"])
def test_the_same_cell_run_again_is_the_same_code_although_bodies_noted_something_in_the_notebook(lab, noted):
    cells = Cells()
    cells.run(
        f"from nbflow import WorkflowEntrypoint\nlog = []\ndef body(x):\n    log.append({noted})\n    return x\n"
        f"def bad(x):\n    log.append({noted})\n    raise ValueError(x)"
    )
    cell = """
class Flow(WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("load", body, 1)
        await step.do("fail", bad, 2, retries={"limit": 3, "delay": "1 hour"})
"""
    cells.run(cell)
    instance = lab.engine.register(cells.names["Flow"], "W", source=cell).create()
    lab.idle()
    cells.run(cell)
    lab.engine.register(cells.names["Flow"], "W", source=cell)
    lab.idle()
    assert len(cells.names["log"]) == 2
    assert len(instance.step("fail").attempts) == 1  # its delay goes on (S58)
    assert instance.view().stale_steps == ()
