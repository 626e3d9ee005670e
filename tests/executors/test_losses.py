"""Losses that come again and again: nothing waits for ever, and only what is guilty fails (API.md §7)."""

import concurrent.futures
import os
import signal
import threading
import time
from functools import partial

import pytest

from tests.executors.conftest import PATIENCE, Bench, eventually


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """What is lost is tried again without a pause: nothing here needs time to come back."""
    monkeypatch.setattr("nbflow.engine.executors.attempt.DELAYS", (0.0, 0.1, 0.1))


# -- what executors do in their own time --------------------------------------------------------------------------------


def test_workers_of_loky_that_die_one_after_another_cost_attempts_only(tmp_path):  # API.md §7
    import loky

    bench = Bench("loky", loky.get_reusable_executor(2, kill_workers=True))

    def body(died, number):
        time.sleep(0.05)
        if number == 2 and not os.path.exists(died):
            open(died, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    async def run(event, step):
        return await step.map("items", partial(body, event.payload), range(5), on="x", retries=0)

    with bench.engine:
        for turn in range(5):
            instance = bench.wait(bench.start(run, str(tmp_path / f"died-{turn}")))
            assert instance.output == list(range(5))


class Slow(concurrent.futures.Executor):
    """Takes a body only when it is let, and ends a cancelled one likewise."""

    def __init__(self):
        self.asked, self.let = threading.Event(), threading.Event()
        self.futures = []

    def submit(self, fn, /, *args, **kwargs):
        self.asked.set()
        assert self.let.wait(PATIENCE)
        self.futures.append(concurrent.futures.Future())
        return self.futures[-1]


def test_an_executor_that_takes_its_turnholds_no_workflow():  # API.md §7
    slow = Slow()
    bench = Bench("pool", slow)
    with bench.engine:
        instance = bench.start(lambda event, step: step.do("it", os.getpid, on="x"))
        assert slow.asked.wait(PATIENCE)
        instance.pause()
        other = bench.start(lambda event, step: step.do("here", lambda: "done"))
        assert bench.wait(other).output == "done"
        instance.terminate()
        slow.let.set()
        eventually(lambda: slow.futures and slow.futures[0].cancelled(), "what nobody waits for is not begun")
