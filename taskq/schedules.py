"""Schedules of an app: tasks that are enqueued by the clock. ``@app.cron`` and ``@app.every``."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, Unpack

from taskq.call import Call
from taskq.core.durations import Duration, nanoseconds
from taskq.core.errors import InvalidCall, UsageError
from taskq.core.model import SECOND_NS, Conflict
from taskq.core.schedules import DETAILS_BYTES_MAX, SCHEDULES_MAX
from taskq.listeners import Listeners
from taskq.log.requests import Enrolment, check_name
from taskq.origins import origin_here
from taskq.scheduleheaders import MOMENT_HEADER, SCHEDULE_HEADER
from taskq.schedulestimes import JITTER_NS_MAX, Every, moment_in, parse_cron, parse_every
from taskq.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from taskq.decorate import TaskChoices, TaskDecorator
    from taskq.schedulestimes import Rule

#: What becomes of ticks that no worker was there for.
CatchUp: TypeAlias = Literal["skip", "last", "all"]
#: What becomes of a tick while the job of an earlier one waits or runs.
Overlap: TypeAlias = Literal["allow", "skip"]

_CATCH_UPS: Final = ("skip", "last", "all")
_OVERLAPS: Final = ("allow", "skip")


class ScheduleChoices(TypedDict, total=False):
    """What a schedule takes besides its rule; all may be left out."""

    #: "last": of the ticks that were missed while no worker ran, one is made up for; "all": each,
    #: up to CATCH_UP_MAX; "skip": none
    catch_up: CatchUp
    #: each tick comes later by up to so long; how much is the same in all processes
    jitter: Duration
    #: "skip": no job for a tick while that of an earlier one waits or runs
    overlap: Overlap


class Schedule:
    """When a call is enqueued, again and again. Made by ``app.cron``, ``every`` and ``schedule``.

    Attributes:
        name: what it is known by in the log.
        rule: its moments.
        catch_up: "skip", "last" or "all".
        jitter_ns: its longest jitter.
        overlap: "allow" or "skip".
        source: the task or call that it was made of.
        origin: where it was declared.
    """

    def __init__(
        self,
        name: str,
        rule: Rule,
        source: Task[..., Any] | Call[Any],
        make: Callable[[], Call[Any]],
        choices: ScheduleChoices,
    ) -> None:
        self.origin = origin_here()
        check_name("schedule name", name)
        unknown = choices.keys() - ScheduleChoices.__annotations__.keys()
        if unknown:
            raise UsageError(
                f"a schedule has no option {min(unknown)!r}: its options are name, tz, args, "
                f"kwargs, {', '.join(ScheduleChoices.__annotations__)}"
            )
        self.name = name
        self.rule = rule
        self.source = source
        self.catch_up = choices.get("catch_up", "last")
        self.overlap = choices.get("overlap", "allow")
        for word, value, known in (
            ("catch_up", self.catch_up, _CATCH_UPS),
            ("overlap", self.overlap, _OVERLAPS),
        ):
            if value not in known:
                raise UsageError(
                    f"{word} of the schedule {name!r} is {value!r:.60}, it must be one of "
                    f"{', '.join(map(repr, known))}"
                )
        self.jitter_ns = nanoseconds(choices.get("jitter", 0), "jitter")
        most_ns = min(rule.interval_ns, JITTER_NS_MAX) if type(rule) is Every else JITTER_NS_MAX
        if self.jitter_ns > most_ns:
            raise UsageError(
                f"jitter of the schedule {name!r} is {self.jitter_ns / SECOND_NS:g} s, it must be "
                f"at most {most_ns / SECOND_NS:g} s (an hour, and not over the interval)"
            )
        self._make = make

    @functools.cached_property
    def call(self) -> Call[Any]:
        """What each tick enqueues; checked when first asked for, which a worker does as it starts.

        Raises:
            InvalidCall: the arguments do not fit the task.
            UsageError: overlap="skip" is given, and a key.
        """
        try:
            call = self._make()
        except InvalidCall as error:
            problem = str(error).removeprefix(f"{error.task}: ")
            raise InvalidCall(
                error.task,
                f"{problem}; the schedule {self.name!r} gives arguments with args= and kwargs=",
            ) from None
        if self.overlap == "skip":
            if call.extras is not None and call.extras.key is not None:
                raise UsageError(
                    f"the schedule {self.name!r} has overlap='skip', which needs the job's key, "
                    f"and {call.name} has a key of its own: leave one of them out"
                )
            return call.options(key=f"{SCHEDULE_HEADER}:{self.name}")
        if call.extras is not None and call.extras.on_conflict is Conflict.RAISE:
            # A tick has nobody to raise to: it is over, and the job that holds the key stands.
            return call.options(on_conflict="first")
        return call

    def is_new_form_of(self, known: Schedule) -> bool:
        """Whether the cell, module or function that declared ``known`` has run again."""
        if self.origin.is_rerun_of(known.origin):
            return True
        ours, theirs = self.source, known.source
        if ours is theirs or not (isinstance(ours, Task) and isinstance(theirs, Task)):
            return False
        return ours.origin.is_line_of(theirs.origin)

    def call_at(self, moment_ns: int) -> Call[Any]:
        """What the tick of that moment enqueues."""
        at = moment_in(self.rule.zone, moment_ns).isoformat()
        return self.call.options(headers={SCHEDULE_HEADER: self.name, MOMENT_HEADER: at})

    def enrolment(self) -> Enrolment:
        """What the log keeps of it.

        Raises:
            UsageError: as ``call``, or its names are too long.
        """
        call = self.call
        details = {
            "task": call.name,
            "queue": call.chosen.queue,
            "catch_up": self.catch_up,
            "jitter_seconds": self.jitter_ns / SECOND_NS,
            "overlap": self.overlap,
        }
        encoded = json.dumps(details, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(encoded) > DETAILS_BYTES_MAX:
            raise UsageError(f"the schedule {self.name!r}: its names are too long")
        return Enrolment(self.name, self.rule.rule, encoded)

    def __repr__(self) -> str:
        return f"<Schedule {self.name} {self.rule}>"


class Planned:
    """The schedules of one app, by name.

    Attributes:
        all: the schedules.
        listeners: who wants to hear of new ones.
    """

    def __init__(self) -> None:
        self.all: dict[str, Schedule] = {}
        self.listeners = Listeners()

    def add(self, schedule: Schedule) -> None:
        """Take up a schedule.

        Raises:
            UsageError: its name is taken, or there are too many.
        """
        name = schedule.name
        taken = self.all.get(name)
        if taken is not None and not schedule.is_new_form_of(taken):
            raise UsageError(
                f"there are two schedules named {name!r} ({taken.rule} and {schedule.rule}): "
                f"give one of them another name with name="
            )
        if len(self.all) >= SCHEDULES_MAX:
            raise UsageError(f"an app has at most {SCHEDULES_MAX} schedules")
        self.all[name] = schedule
        self.listeners.tell()


class AppSchedules:
    """What an app can do by the clock."""

    _planned: Planned

    def cron(
        self,
        expression: str,
        *,
        tz: object = "UTC",
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        **choices: Unpack[ScheduleChoices],
    ) -> TaskDecorator:
        """Enqueue a task by a cron expression; above ``@app.task``, or on a plain function.

        ::

            @app.cron("*/5 * * * *", tz="Europe/Berlin", catch_up="last", jitter="30s")
            @app.task(queue="reports")
            async def report() -> None: ...

        Each tick is written once, however many workers run with it. Workers tick all schedules of
        their app, whatever queues they serve; one that is to end by itself (burst) ticks none.

        Args:
            expression: five fields, or six with the seconds first.
            tz: the time zone that it is in, by name.
            name: of the schedule, else that of its task. What the log knows goes by it.
            args: with which the task is called.
            kwargs: likewise.
            choices: see ``ScheduleChoices``.

        Raises:
            UsageError: the expression, the zone or a choice is wrong, or the name is taken.
        """
        rule = parse_cron(expression, tz)
        return functools.partial(self._plan, rule, name, args, dict(kwargs or {}), choices)  # type: ignore[return-value]

    def every(
        self,
        interval: Duration,
        *,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        **choices: Unpack[ScheduleChoices],
    ) -> TaskDecorator:
        """Enqueue a task at each whole multiple of an interval since 1970 in UTC: ``"10m"``.

        All else is as with ``cron``.

        Raises:
            UsageError: the interval or a choice is wrong, or the name is taken.
        """
        rule = parse_every(interval)
        return functools.partial(self._plan, rule, name, args, dict(kwargs or {}), choices)  # type: ignore[return-value]

    def schedule(
        self,
        name: str,
        call: Call[Any],
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: object = "UTC",
        **choices: Unpack[ScheduleChoices],
    ) -> Schedule:
        """Enqueue a call by the clock: ``app.schedule("sync", sync.call("eu"), every="10m")``.

        Raises:
            UsageError: neither or both of cron and every are given, one is wrong, or the name is
                taken.
        """
        if not isinstance(call, Call):
            raise UsageError(
                f"the schedule {name!r} takes a call such as task.call(...), got {call!r:.60}"
            )
        if call.task is not None and call.task.app is not self:
            raise UsageError(f"{call.name} is a task of another app: schedule it with that one")
        if (cron is None) == (every is None):
            raise UsageError(f"the schedule {name!r} takes either cron= or every=")
        rule = parse_every(every) if every is not None else parse_cron(cron or "", tz)
        schedule = Schedule(name, rule, call, lambda: call, choices)
        self._planned.add(schedule)
        return schedule

    def _plan(
        self,
        rule: Rule,
        name: str | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        choices: ScheduleChoices,
        fn: Callable[..., Any],
    ) -> Task[..., Any]:
        task = fn if isinstance(fn, Task) else self._add_task(fn, {})
        if task.app is not self:
            raise UsageError(f"{task.name} is a task of another app: schedule it with that one")

        def make() -> Call[Any]:
            return task.call(*args, **kwargs)

        self._planned.add(Schedule(name or task.name, rule, task, make, choices))
        return task

    def _add_task(self, fn: Callable[..., Any], choices: TaskChoices) -> Task[..., Any]:
        raise NotImplementedError  # of the app
