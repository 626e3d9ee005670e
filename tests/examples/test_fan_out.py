"""Fan-out over a list: a step for each item, all at once, results in the order of the list."""

import asyncio
import threading

import pytest

from nbflow import WorkflowEntrypoint
from nbflow.core.model import Status


class Checks(WorkflowEntrypoint):
    async def run(self, event, step):
        sites = await step.do("list sites", self.env.sites)

        async def check(site):
            return await step.do(f"check {site}", self.env.check, site, retries={"limit": 1, "delay": "1 minute"})

        results = await asyncio.gather(*(check(site) for site in sites))
        slow = [site for site, ms in zip(sites, results, strict=True) if ms > 100]
        return await step.do("report", lambda: f"{len(sites)} checked, slow: {', '.join(slow) or 'none'}")


class Net:
    def __init__(self, times, together=1):
        self.times, self.calls, self.down = times, [], set()
        self._all_here = threading.Barrier(together)

    def check(self, site):
        self.calls.append(site)
        self._all_here.wait(10)
        if site in self.down:
            raise ConnectionError(site)
        return self.times[site]


def start(engine, net):
    engine.env.update({"sites": lambda: list(net.times), "check": net.check})
    return engine.register(Checks).create("c1")


def test_all_items_run_at_the_same_time(engine):
    """Each body waits until all five are there."""
    net = Net({f"s{n}": 50 * n for n in range(5)}, together=5)
    checks = start(engine, net)
    engine.clock.advance("1 second")
    assert checks.output == "5 checked, slow: s3, s4"


def test_only_the_failing_item_is_tried_again(engine):
    net = Net({"a": 1, "b": 2, "c": 300})
    net.down = {"b"}
    checks = start(engine, net)
    engine.clock.advance("30 seconds")
    assert sorted(net.calls) == ["a", "b", "c"]
    net.down = set()
    engine.clock.advance("30 seconds")
    assert checks.output == "3 checked, slow: c"
    assert sorted(net.calls) == ["a", "b", "b", "c"]


def test_finished_items_are_kept_over_a_kernel_restart_and_an_error(engine, reopen):
    net = Net({"a": 1, "b": 2, "c": 3})
    net.down = {"b"}
    start(engine, net)
    engine.clock.advance("2 minutes")
    later = reopen(engine, Checks)
    checks = later.get("c1")
    assert checks.status().status is Status.ERRORED
    net.down, net.calls[:] = set(), []
    checks.resume()
    later.clock.advance("1 second")
    assert checks.output == "3 checked, slow: none"
    assert net.calls == ["b"]


@pytest.mark.parametrize("items", [0, 1, 200])
def test_any_length_will_do(engine, items):
    checks = start(engine, Net({f"s{n}": 1 for n in range(items)}))
    engine.clock.advance("1 second")
    assert checks.output == f"{items} checked, slow: none"
