"""One table: (status, cause) -> status. A pair that is not in it changes nothing.

Pure. What the history says of an instance's life; whether a running instance shows as `waiting` is decided by what of it
is open (S5), in `core/history.py`.
"""

from nbflow.core.model import Kind, Status

_LIVE = (Status.QUEUED, Status.RUNNING)
_UNFINISHED = (*_LIVE, Status.WAITING_FOR_PAUSE, Status.PAUSED, Status.ROLLING_BACK)

TABLE: dict[tuple[Status, Kind], Status] = {
    **{(status, Kind.ACTIVATED): Status.RUNNING for status in _LIVE},
    **{(status, Kind.PAUSING): Status.WAITING_FOR_PAUSE for status in _LIVE},
    **{(status, Kind.PAUSED): Status.PAUSED for status in (*_LIVE, Status.WAITING_FOR_PAUSE)},
    **{(status, Kind.RESUMED): Status.RUNNING for status in (Status.PAUSED, Status.WAITING_FOR_PAUSE)},
    **{(status, Kind.ROLLING_BACK): Status.ROLLING_BACK for status in (*_LIVE, Status.WAITING_FOR_PAUSE, Status.PAUSED)},
    **{(status, Kind.TERMINATING): Status.ROLLING_BACK for status in _UNFINISHED},
    **{(status, Kind.COMPLETED): Status.COMPLETE for status in (*_LIVE, Status.WAITING_FOR_PAUSE)},
    **{(status, Kind.ERRORED): Status.ERRORED for status in (*_LIVE, Status.WAITING_FOR_PAUSE, Status.ROLLING_BACK)},
    **{(status, Kind.TERMINATED): Status.TERMINATED for status in _UNFINISHED},
    **{(status, Kind.RETRIED): Status.RUNNING for status in (Status.ERRORED, Status.COMPLETE)},
    **{(status, Kind.RESTARTED): Status.QUEUED for status in Status},
}


_TURNS = frozenset({Kind.COMPLETED, Kind.ERRORED, Kind.TERMINATED, Kind.ROLLING_BACK, Kind.TERMINATING, Kind.RETRIED})


def is_void(status: Status, cause: Kind) -> bool:
    """Whether *cause* would end an instance, begin to roll it back or open it again, and changes nothing in this status."""
    return cause in _TURNS and (status, cause) not in TABLE


def after(status: Status, cause: Kind) -> Status:
    """Give the status that *cause* leads to, the same one where it changes nothing."""
    return TABLE.get((status, cause), status)
