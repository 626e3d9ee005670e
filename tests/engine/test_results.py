"""Results that are data: artefacts, lazy references, pickles, seen through instances (API.md §2, S17)."""

import functools
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nbflow import NotSerialisableError
from nbflow.core.model import Kind, StepState
from nbflow.errors import UndecodableError
from nbflow.testing import introspect
from nbflow.values.artifacts import ArtifactRef
from tests.engine.conftest import eventually

TWO_MB = "x" * 2_000_000


def files_of(lab, instance="one", name="W"):
    folder = lab.store.artifacts / name / instance
    return sorted(path for path in folder.iterdir()) if folder.exists() else []


# -- artefacts


def test_fifty_steps_that_return_the_same_two_megabytes_take_two_megabytes(lab):
    async def run(event, step):
        return [len(await step.do("load", lambda: TWO_MB)) for _ in range(50)]

    instance = lab.run(run, id="one")
    assert instance.output == [2_000_000] * 50
    [path] = files_of(lab)
    assert 2_000_000 <= path.stat().st_size < 2_001_000
    assert sum(len(entry.value or b"") for entry in lab.entries()) < 50_000


def test_instances_share_no_files_so_deleting_one_leaves_the_other_whole(lab):
    async def run(event, step):
        return len(await step.do("load", lambda: TWO_MB))

    first, second = lab.run(run, id="one"), lab.run(run, id="two")
    first.delete()
    assert files_of(lab) == []
    assert second.step("load").output == TWO_MB


async def loads_and_waits(event, step):
    table = await step.do("load", lambda: np.arange(10))
    other = await step.do("other", lambda: np.arange(20))
    await step.wait_for_event("ask", "go")
    return int(table.sum() + other.sum())


def interrupted(lab, harm):
    """A new kernel over a history whose files were harmed meanwhile; gives its instance."""
    lab.start(loads_and_waits, id="one")
    lab.idle()
    later = lab.revive()
    load = later.engine.get("one").step("load").preview["file"]["uri"]
    harm(later, later.store.artifacts / load)
    later.workflow(loads_and_waits)
    later.idle()
    return later, later.engine.get("one")


def missing(_lab, path):
    path.rename(path.with_name("away"))


def damaged(_lab, path):
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")


def swapped(lab, path):
    [other] = [found for found in files_of(lab) if found != path]
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def emptied(_lab, path):
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [missing, damaged, swapped, emptied])
def test_a_file_that_is_not_what_was_stored_interrupts_and_says_how_to_go_on(lab, harm):  # S17
    later, instance = interrupted(lab, harm)
    status = instance.status()
    assert not instance.is_finished()
    assert status.interrupted.startswith("needs file W/one/")
    assert '(step "load")' in status.interrupted
    assert "restart(from_step='load')" in status.interrupted
    assert instance.step("load").status is StepState.FINISHED
    with pytest.raises(UndecodableError, match=r"put the file back"):
        _ = instance.step("load").output
    instance.restart(from_step="load")
    later.idle()
    assert instance.status().interrupted is None
    instance.send_event("go")
    assert later.finish(instance).output == 45 + 190


def test_an_instance_goes_on_when_the_file_is_put_back(lab):  # S17
    later, instance = interrupted(lab, missing)
    for _ in range(4):  # trying in vain is no death of the kernel
        instance.resume()
        later.idle()
        assert "needs file" in instance.status().interrupted
    [away] = [path for path in files_of(later) if path.name == "away"]
    away.rename(later.store.artifacts / instance.step("load").preview["file"]["uri"])
    instance.resume()
    later.idle()
    instance.send_event("go")
    assert later.finish(instance).output == 45 + 190


def test_large_params_that_are_gone_interrupt(lab):  # S17
    async def run(event, step):
        await step.wait_for_event("ask", "go")
        return len(event.payload["text"])

    lab.start(run, {"text": TWO_MB}, id="one")
    lab.idle()
    later = lab.revive()
    [path] = files_of(later)
    content = path.read_bytes()
    path.unlink()
    later.workflow(run)
    later.idle()
    instance = later.engine.get("one")
    assert instance.status().interrupted == f"needs file W/one/{path.name} (params): put it back and resume"
    path.write_bytes(content)
    instance.resume()
    later.idle()
    instance.send_event("go")
    assert later.finish(instance).output == 2_000_000


def test_a_large_payload_that_is_gone_interrupts_also_where_it_has_a_schema(lab):  # S17, S39
    async def run(event, step):
        await step.sleep("nap", 5)
        answer = await step.wait_for_event("ask", "go", schema=dict)
        return len(answer.payload["text"])

    instance = lab.start(run, id="one")
    lab.idle()
    instance.send_event("go", {"text": TWO_MB})
    [path] = files_of(lab)
    content = path.read_bytes()
    path.unlink()
    lab.advance(5)
    lab.idle()
    assert f'needs file W/one/{path.name} (step "ask")' in instance.status().interrupted
    path.write_bytes(content)
    instance.resume()
    assert lab.finish(instance).output == 2_000_000


def test_an_output_of_a_child_that_is_gone_interrupts_the_parent(lab):  # S17, S60
    async def child(event, step):
        await step.wait_for_event("ask", "go")
        return TWO_MB

    async def run(event, step):
        return len(await step.child("sub", "Child"))

    lab.workflow(child, "Child")
    lab.start(run, id="one")
    lab.idle()
    lab.engine.get("one.sub-1").send_event("go")
    lab.finish(lab.engine.get("one"))
    told = [entry for entry in lab.entries() if entry.kind is Kind.CHILD_FINISHED]
    [path] = files_of(lab, "one.sub-1", "Child")
    content = path.read_bytes()
    path.unlink()
    later = lab.revive([entry for entry in lab.entries() if entry.seq < told[0].seq])
    later.workflow(child, "Child")
    later.workflow(run)
    later.idle()
    again = later.engine.get("one")
    later.advance(1)  # the child is not at work here: it is looked for each second
    assert "needs file Child/one.sub-1/" in eventually(lambda: again.status().interrupted)
    (later.store.artifacts / "Child" / "one.sub-1" / path.name).write_bytes(content)
    again.resume()
    later.idle()
    later.advance(1)
    assert later.finish(again).output == 2_000_000


def test_a_rollback_handler_whose_output_is_gone_interrupts(lab):  # S17, S47
    seen = []

    async def run(event, step):
        await step.do("load", lambda: np.arange(10), rollback=lambda output: seen.append(int(output.sum())))
        await step.wait_for_event("ask", "go")
        raise RuntimeError("no")

    instance = lab.start(run, id="one")
    lab.idle()
    [path] = files_of(lab)
    content = path.read_bytes()
    path.unlink()
    instance.send_event("go")
    lab.idle()
    assert "needs file W/one/" in instance.status().interrupted
    assert seen == []
    path.write_bytes(content)
    instance.resume()
    lab.finish(instance)
    assert seen == [45]
    assert instance.status().rollback == ("complete", None)


# -- lazy


async def lazily(event, step):
    frame = await step.do("load", lambda: pd.DataFrame({"a": range(1_000)}), lazy=True)
    assert type(frame) is ArtifactRef
    small = await step.do("count", len, frame)
    kept = await step.do("keep", lambda: {"frame": frame, "n": small})
    await step.wait_for_event("ask", "go")
    again = await step.do("sum", lambda ref: int(ref["frame"].load()["a"].sum()), kept)
    return [small, again, frame.type, frame.preview["shape"], frame]


def test_a_lazy_step_gives_a_reference_that_later_steps_receive_as_the_value(lab):
    instance = lab.start(lazily, id="one")
    lab.idle()
    instance.send_event("go")
    *told, ref = lab.finish(instance).output
    assert told == [1_000, 499_500, "pandas.DataFrame", [1_000, 1]]
    assert type(ref) is ArtifactRef
    assert Path(ref.uri).suffix == ".parquet"
    assert ref.load()["a"].sum() == 499_500


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_step_that_depends_on_a_lazy_step_receives_the_value(lab, concurrent):
    async def run(event, step):
        @step.do(lazy=True)
        def big():
            return np.arange(1_000)

        @step.do(concurrent=concurrent)
        def plain(big, ctx):
            return int(big.sum()) + ctx.attempt

        @step.do(concurrent=concurrent)
        async def asynchronous(big, plain):
            return int(big.sum()) + plain

        return type(await big()) is ArtifactRef, await plain(), await asynchronous()

    assert lab.output(run) == (True, 499_501, 999_001)


def test_references_that_partials_bind_arrive_as_values_those_within_values_stay(lab):
    def told(a, b, *, c):
        return [type(each) is ArtifactRef for each in (a, b, c[0])], int(a.sum() + b.sum() + c[0].load().sum())

    async def run(event, step):
        ref = await step.do("load", lambda: np.arange(10), lazy=True)
        inner = functools.partial(told, ref)
        inner.mark = "so that functools does not flatten it"
        fn = functools.partial(inner, c=[ref])
        return await step.do("a", fn, ref), await step.do("b", functools.partial(fn, b=ref)), await step.map("m", fn, [ref])

    expected = [False, False, True], 135
    assert lab.output(run) == (expected, expected, [expected])


def test_a_body_that_is_made_to_fail_first_receives_the_values_of_references(lab):
    async def run(event, step):
        ref = await step.do("load", lambda: np.arange(10), lazy=True)
        return await step.do("a", lambda a, b: int(a.sum() + b.sum()), ref, ref)

    workflow = lab.workflow(run)
    introspect(workflow).mock_step_error("a", ValueError("mocked"), times=1)
    assert lab.finish(workflow.create()).output == 90


def test_a_replay_reads_nothing_of_a_lazy_step_until_load(lab, monkeypatch):
    lab.start(lazily, id="one")
    lab.idle()
    later = lab.revive()
    [path] = files_of(later)
    path.rename(path.with_name("away"))
    later.workflow(lazily)
    later.idle()
    instance = later.engine.get("one")
    assert instance.status().interrupted is None
    assert instance.status().waiting_for[0].name == "ask"
    instance.send_event("go")
    later.idle()
    why = instance.status().interrupted
    assert "needs file W/one/" in why  # the body of 'sum' loads it
    assert '(step "load")' in why
    path.with_name("away").rename(path)
    instance.resume()
    assert later.finish(instance).output[:2] == [1_000, 499_500]
    assert instance.step("sum").attempts[-1].error is None


def test_a_reference_whose_file_is_gone_interrupts_where_it_is_an_argument_or_loaded_in_run(lab):  # S17
    async def run(event, step):
        ref = await step.do("load", lambda: np.arange(10), lazy=True)
        await step.wait_for_event("ask", "go")
        total = await step.do("sum", lambda array: int(array.sum()), ref) if event.payload["argument"] else ref.load().sum()
        return int(total)

    for argument in (True, False):
        instance = lab.start(run, {"argument": argument}, id=f"one-{argument}")
        lab.idle()
        [path] = files_of(lab, instance.id)
        content = path.read_bytes()
        path.unlink()
        instance.send_event("go")
        lab.idle()
        assert '(step "load")' in instance.status().interrupted, argument
        for _ in range(4):
            instance.resume()
            lab.idle()
            assert "restart(from_step='load')" in instance.status().interrupted, argument
        path.write_bytes(content)
        instance.resume()
        assert lab.finish(instance).output == 45


def test_a_load_that_user_code_catches_is_his_own_affair(lab):
    async def run(event, step):
        ref = await step.do("load", lambda: np.arange(10), lazy=True)
        os.unlink(lab.store.artifacts / ref.uri)
        try:
            ref.load()
        except UndecodableError:
            return "gone"

    assert lab.output(run) == "gone"


def test_a_lazy_step_may_give_anything(lab):
    async def run(event, step):
        refs = [await step.do("x", lambda value=value: value, lazy=True) for value in (None, (1, {2}), TWO_MB, b"", [])]
        return [ref.load() for ref in refs]

    assert lab.output(run) == [None, (1, {2}), TWO_MB, b"", []]


# -- pickle


class Opaque:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is Opaque and other.value == self.value

    __hash__ = None


ran = []


def bang():
    ran.append("bang")
    return Opaque("bang")


class Bomb:
    def __reduce__(self):
        return bang, ()


async def pickles(event, step):
    kept = await step.do("load", lambda: {"model": Opaque(1), "plain": (1, 2)})
    frame = await step.do("frame", lambda: pd.DataFrame({"cells": [{"a": 1}, (1,)]}))
    await step.wait_for_event("ask", "go")
    return [kept["model"].value, kept["plain"], list(frame["cells"])]


def test_without_the_switch_nothing_is_pickled(lab):
    async def run(event, step):
        await step.do("load", lambda: Opaque(1))

    assert isinstance(lab.failure(run), NotSerialisableError)


def test_with_the_switch_what_nothing_else_stores_is_pickled_and_marked(make_lab):
    lab = make_lab(allow_pickle=True)
    instance = lab.start(pickles, id="one")
    lab.idle()
    later = lab.revive()
    later.workflow(pickles)
    later.idle()
    instance = later.engine.get("one")
    values = [entry.value for entry in later.entries() if entry.value is not None]
    assert [b'"codec":"pickle"' in value for value in values] == [False, True, True]
    assert b'{"$":"tuple","v":[1,2]}' in values[1]  # pickled is only what must be
    instance.send_event("go")
    assert later.finish(instance).output == [1, (1, 2), [{"a": 1}, (1,)]]


def test_a_history_with_pickles_opens_without_the_switch_and_runs_nothing_of_them(make_lab):  # S17
    async def run(event, step):
        await step.do("bomb", Bomb, lazy=True)
        await step.wait_for_event("ask", "go")
        loaded = await step.do("again", Bomb)
        return loaded.value

    lab = make_lab(allow_pickle=True)
    lab.start(run, id="one")
    lab.idle()
    assert ran == []  # stored, and read by nobody
    later = lab.revive(allow_pickle=False)
    later.workflow(run)
    later.idle()
    instance = later.engine.get("one")
    assert instance.status().waiting_for[0].name == "ask"
    with pytest.raises(UndecodableError, match=r"a pickled 'tests.*Bomb' is not read.*Engine\(allow_pickle=True\)"):
        _ = instance.step("bomb").output
    assert "pickle" in instance.step("bomb").preview["line"]
    assert ran == []
    trusted = later.revive(allow_pickle=True)
    trusted.workflow(run)
    trusted.idle()
    trusted.engine.get("one").send_event("go")
    assert trusted.finish(trusted.engine.get("one")).output == "bang"
    assert ran == ["bang"]
    ran.clear()


def test_a_status_is_told_though_its_output_cannot_be_read(make_lab):  # S5, S17
    lab = make_lab(allow_pickle=True)

    async def run(event, step):
        return Opaque("kept")

    lab.run(run, id="kept")
    later = lab.revive(allow_pickle=False)
    status = later.engine.get("kept").status()
    assert (status.status, status.error, later.engine.get("kept").wait(1).status) == ("complete", None, "complete")
    with pytest.raises(UndecodableError, match="is not read"):
        _ = status.output
    assert "is not read" in repr(status)
    assert later.revive(allow_pickle=True).engine.get("kept").status().output.value == "kept"


def test_replaying_a_pickle_without_the_switch_interrupts_and_says_so(make_lab):  # S17
    lab = make_lab(allow_pickle=True)
    lab.start(pickles, id="one")
    lab.idle()
    later = lab.revive(allow_pickle=False)
    later.workflow(pickles)
    later.idle()
    instance = later.engine.get("one")
    assert instance.status().interrupted == 'needs Engine(allow_pickle=True) (step "load")'
    trusted = later.revive(allow_pickle=True)
    trusted.workflow(pickles)
    trusted.idle()
    trusted.engine.get("one").resume()
    trusted.idle()
    trusted.engine.get("one").send_event("go")
    assert trusted.finish(trusted.engine.get("one")).output == [1, (1, 2), [{"a": 1}, (1,)]]


def test_params_and_payloads_and_outputs_may_be_pickles_too(make_lab):
    async def run(event, step):
        answer = await step.wait_for_event("ask", "go")
        return Opaque(event.payload["x"].value + answer.payload.value)

    lab = make_lab(allow_pickle=True)
    instance = lab.start(run, {"x": Opaque(1)}, id="one")
    lab.idle()
    instance.send_event("go", Opaque(2))
    assert lab.finish(instance).output == Opaque(3)


def test_cycles_stay_refused_with_the_switch(make_lab):
    lab = make_lab(allow_pickle=True)
    cycle = [1]
    cycle.append(cycle)

    async def run(event, step):
        await step.do("load", lambda: cycle)

    assert "it contains itself" in str(lab.failure(run))


# -- registered codecs


class Money:
    def __init__(self, amount):
        self.amount = amount


def test_a_codec_that_is_not_registered_any_more_interrupts_and_goes_on_when_it_is(lab):  # S17
    from nbflow import register_codec
    from nbflow.values import classes, nodes

    async def run(event, step):
        money = await step.do("earn", lambda: Money(5))
        await step.wait_for_event("ask", "go")
        return money.amount

    def register():
        register_codec(Money, lambda money: money.amount, Money, name="money")

    def forget():
        classes.CUSTOM.pop(Money, None)
        nodes.ENCODERS.pop(Money, None)

    try:
        register()
        lab.start(run, id="one")
        lab.idle()
        forget()
        later = lab.revive()
        later.workflow(run)
        later.idle()
        instance = later.engine.get("one")
        assert instance.status().interrupted == 'needs codec money (step "earn")'
        register()
        later.workflow(run)
        later.idle()
        assert instance.status().interrupted is None
        instance.send_event("go")
        assert later.finish(instance).output == 5
    finally:
        forget()
