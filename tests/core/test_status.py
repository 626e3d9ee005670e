"""The life of an instance as one table (S5, S40 to S44)."""

from itertools import product

import pytest

from nbflow.core.model import FINISHED, Kind, Status
from nbflow.core.status import TABLE, after

PAIRS = list(product(Status, Kind))


@pytest.mark.parametrize(("status", "cause"), PAIRS, ids=[f"{status}-{cause}" for status, cause in PAIRS])
def test_every_pair_ends_in_a_status_and_only_a_retry_or_a_restart_leaves_a_finished_one(status, cause):
    then = after(status, cause)
    assert then in Status
    if status in FINISHED and then is not status:
        assert cause in (Kind.RETRIED, Kind.RESTARTED)
        assert then not in FINISHED


def test_no_entry_leads_to_waiting_which_is_read_off_the_open_steps():
    assert Status.WAITING not in TABLE.values()


def test_every_other_status_can_be_reached_from_a_new_instance():
    reached, new = set(), {Status.QUEUED}
    while new:
        reached |= new
        new = {after(status, cause) for status in reached for cause in Kind} - reached
    assert reached == set(Status) - {Status.WAITING}


@pytest.mark.parametrize("status", sorted(set(Status) - FINISHED - {Status.WAITING}))
def test_every_unfinished_instance_can_be_terminated_and_restarted(status):
    assert after(status, Kind.TERMINATED) is Status.TERMINATED
    assert after(status, Kind.RESTARTED) is Status.QUEUED


@pytest.mark.parametrize("cause", [Kind.PAUSING, Kind.PAUSED])
def test_a_pause_takes_a_running_instance_away_from_running_and_a_resume_gives_it_back(cause):
    assert after(after(Status.RUNNING, cause), Kind.RESUMED) is Status.RUNNING


def test_a_step_entry_or_an_event_never_changes_the_status():
    for status, cause in PAIRS:
        if "." in cause or cause is Kind.EVENT:
            assert after(status, cause) is status
