"""Schedules: a cron line per workflow, one instance per match while a kernel with the workflow is alive (S59)."""

import contextvars
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from nbflow.engine.timers import Timer
from nbflow.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine
    from nbflow.engine.registry import Workflow

PREFIX = "schedule/"
AHEAD = timedelta(days=1)  # a timer further away is set anew: the clock may be changed meanwhile


@dataclass(frozen=True, slots=True)
class Schedule:
    """A workflow's schedule.

    Attributes:
        workflow: its name.
        cron: five fields.
        tz: name of the time zone the fields are read in; UTC by default.
        catch_up: one instance for the last time missed, while no kernel was alive.
        after: matches up to here are dealt with.
    """

    workflow: str
    cron: str
    tz: str
    catch_up: bool
    after: datetime

    def next(self) -> datetime | None:
        """The next match, in UTC; None where there is none (30 February)."""
        try:
            found: datetime = next(CronSim(self.cron, self.after.astimezone(zone(self.tz))))
        except StopIteration:
            return None
        return found.astimezone(UTC)

    def moved(self, after: datetime) -> "Schedule":
        """The same, with everything up to *after* dealt with."""
        return Schedule(self.workflow, self.cron, self.tz, self.catch_up, after)

    def to_text(self) -> str:
        """What is stored."""
        fields = {"cron": self.cron, "tz": self.tz, "catch_up": self.catch_up, "after": self.after.isoformat()}
        return json.dumps(fields)

    @classmethod
    def from_text(cls, workflow: str, text: str) -> "Schedule":
        """Read what is stored."""
        fields = json.loads(text)
        return cls(workflow, fields["cron"], fields["tz"], fields["catch_up"], datetime.fromisoformat(fields["after"]))


def zone(name: str) -> tzinfo:
    """The time zone of that name; UsageError where there is none."""
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        msg = f"time zone {name!r} is not known; give a name such as 'Europe/Berlin'"
        raise UsageError(msg) from None


def parse(workflow: str, cron: Any, tz: Any, *, catch_up: bool, now: datetime) -> Schedule:
    """Check what a user gave."""
    name = "UTC" if tz is None else str(getattr(tz, "key", tz))
    where = zone(name)
    try:
        if len(str(cron).split()) != 5:
            raise CronSimError("five fields are wanted: minute hour day month weekday")
        CronSim(str(cron), now.astimezone(where))
    except CronSimError as error:
        whose = f" of workflow {workflow!r}" if workflow else ""
        msg = f"schedule {cron!r}{whose} cannot be read: {error or 'not a cron line'}; e.g. '0 6 * * 1-5'"
        raise UsageError(msg) from None
    return Schedule(workflow, str(cron), name, catch_up, now)


class Schedules:
    """The schedules of one engine's store, and the timers of those whose workflow is registered here."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._timers: dict[str, Timer] = {}
        self._known: dict[str, Schedule] | None = None

    def set(self, workflow: "Workflow", cron: Any, tz: Any, *, catch_up: bool) -> Schedule:
        """Give a workflow a schedule, in place of the one it has. The same one again changes nothing."""
        schedule = parse(workflow.name, cron, tz, catch_up=catch_up, now=self._engine.clock.now())
        known = self.all().get(workflow.name)
        if known is not None and (known.cron, known.tz, known.catch_up) == (schedule.cron, schedule.tz, schedule.catch_up):
            schedule = known
        else:
            self._save(workflow.name, schedule)
        self._engine.on_loop(partial(self._arm, schedule))
        return schedule

    def remove(self, workflow: str) -> None:
        """Take a workflow's schedule away; its instances stay.

        Raises:
            NotFoundError: it has none.
        """
        if workflow not in self.all():
            msg = f"workflow {workflow!r} has no schedule"
            raise NotFoundError(msg)
        self._save(workflow, None)
        self._engine.on_loop(partial(self._disarm, workflow))

    def all(self) -> Mapping[str, Schedule]:
        """All schedules of the store, by workflow; read once, and again after others have written."""
        known = self._known
        if known is None or self._engine.store.moved():
            texts = self._engine.store.settings(PREFIX)
            names = {key: key.removeprefix(PREFIX) for key in texts}
            known = self._known = {names[key]: Schedule.from_text(names[key], text) for key, text in texts.items()}
        return known

    def forget(self) -> None:
        """Others have written, or we have: read them again."""
        self._known = None

    def _save(self, workflow: str, schedule: Schedule | None) -> None:
        self._engine.store.save_setting(PREFIX + workflow, None if schedule is None else schedule.to_text())
        self.forget()

    def line(self, workflow: str) -> str | None:
        """What a cell says of a workflow's schedule; None where it has none."""
        schedule = self.all().get(workflow)
        if schedule is None:
            return None
        due = schedule.next()
        when = "never" if due is None else f"next at {due:%Y-%m-%d %H:%M} UTC"
        return f"{workflow} is scheduled: {schedule.cron!r} ({schedule.tz}), {when}, while a kernel that has it is alive"

    def registered(self, workflow: "Workflow") -> None:
        """A workflow is here now: catch up what was missed and go on."""
        schedule = self.all().get(workflow.name)
        if schedule is None:
            return
        missed, now = None, self._engine.clock.now()
        while (due := schedule.next()) is not None and due <= now:
            missed, schedule = due, schedule.moved(due)
        if missed is not None:
            if schedule.catch_up:
                self._create(schedule, missed)
            else:
                self._save(workflow.name, schedule)
        self._engine.on_loop(partial(self._arm, schedule))

    def _arm(self, schedule: Schedule) -> None:
        self._disarm(schedule.workflow)
        due = schedule.next()
        if due is None or self._engine.closing:
            return
        soon = min(due, self._engine.clock.now() + AHEAD)
        self._timers[schedule.workflow] = self._engine.timers.at(soon, partial(self._due, schedule, due))

    def _disarm(self, workflow: str) -> None:
        timer = self._timers.pop(workflow, None)
        if timer is not None:
            timer.cancel()

    def _due(self, schedule: Schedule, due: datetime) -> None:
        if self._engine.clock.now() < due:
            self._arm(schedule)
            return
        after = schedule.moved(due)
        self._engine.threads.submit(contextvars.Context(), partial(self._create, after, due), lambda _outcome: None)
        self._arm(after)

    def _create(self, schedule: Schedule, due: datetime) -> None:
        """Create the instance of one match, unless another kernel has; in a thread."""
        from nbflow.engine import creating

        current = self.all().get(schedule.workflow)
        if current is None or (current.cron, current.tz) != (schedule.cron, schedule.tz):
            return  # removed or changed by somebody else meanwhile
        workflow = self._engine.registry.find(schedule.workflow)
        if workflow is None:
            return
        about = {"cron": schedule.cron, "scheduled_time": due.isoformat()}
        creating.create_scheduled(self._engine, workflow, f"{schedule.workflow}-{due:%Y%m%dT%H%MZ}", about)
        self._save(schedule.workflow, schedule)
