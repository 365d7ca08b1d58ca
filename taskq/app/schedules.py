"""Schedules of an app: tasks that are enqueued by the clock. ``@app.cron`` and ``@app.every``."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from taskq.app import tasks
from taskq.calls.call import Call
from taskq.calls.naming import Origin, origin_here
from taskq.core import durations, errors, model, parsing, schedules
from taskq.core.values import TypedDict
from taskq.log.requests import TICKS_MAX, Enrolment, Item, Turn

if TYPE_CHECKING:
    from taskq.schedules import DueTicks, Rule


class Listeners:
    """Functions to call at each change, on any thread."""

    def __init__(self) -> None:
        self._all: list[Callable[[], object]] = []

    def listen(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call ``listener`` at each change. Return a function that ends this; legal twice."""
        self._all = [*self._all, listener]

        def leave() -> None:
            self._all = [known for known in self._all if known is not listener]

        return leave

    @property
    def count(self) -> int:
        return len(self._all)

    def notify(self) -> None:
        """Call them all."""
        for listener in self._all:
            listener()


#: The treatment of ticks missed while no worker ran.
CatchUp: TypeAlias = Literal["skip", "last", "all"]
#: The treatment of a tick while an earlier tick's job waits or runs.
Overlap: TypeAlias = Literal["allow", "skip"]

_CATCH_UPS: Final = ("skip", "last", "all")
_OVERLAPS: Final = ("allow", "skip")
#: Most bytes of the jobs in one request of ticks.
_TURN_BYTES: Final = model.TRANSACTION_BYTES_MAX // 2
#: Estimated bytes of the frame and the headers of one tick.
_ITEM_BYTES: Final = 1_024


class ScheduleChoices(TypedDict, total=False):
    """Options of a schedule besides its rule; all may be left out."""

    #: "last": one missed tick is made up for after a time without workers; "all": each missed
    #: tick, up to CATCH_UP_MAX; "skip": none
    catch_up: CatchUp
    #: longest delay of a tick; all processes delay one tick equally
    jitter: durations.Duration
    #: "skip": no job for a tick while the job of an earlier tick waits or runs
    overlap: Overlap


class Schedule:
    """Moments at which a call is enqueued. Made by ``app.cron``, ``every`` and ``schedule``.

    Attributes:
        name: its name in the log.
        rule: its moments.
        catch_up: "skip", "last" or "all".
        jitter_ns: its longest jitter.
        overlap: "allow" or "skip".
        source: the task or call that was scheduled.
        origin: the place of its declaration.
        kept: the call as the log stores it, if it was added at run time and is in no code.
    """

    def __init__(
        self,
        name: str,
        rule: Rule,
        source: tasks.Task[..., Any] | Call[Any],
        make: Callable[[], Call[Any]],
        choices: ScheduleChoices,
    ) -> None:
        from taskq.schedules import JITTER_NS_MAX, Every  # noqa: PLC0415 - few have schedules

        self.origin: Origin = origin_here()
        parsing.check_name("schedule name", name)
        unknown = choices.keys() - ScheduleChoices.__annotations__.keys()
        if unknown:
            raise errors.UsageError(
                f"a schedule has no option {min(unknown)!r}: its options are name, tz, args, "
                f"kwargs, {', '.join(ScheduleChoices.__annotations__)}"
            )
        self.name = name
        self.rule = rule
        self.source = source
        self.kept: dict[str, Any] | None = None
        self.catch_up = choices.get("catch_up", "last")
        self.overlap = choices.get("overlap", "allow")
        for word, value, known in (
            ("catch_up", self.catch_up, _CATCH_UPS),
            ("overlap", self.overlap, _OVERLAPS),
        ):
            if value not in known:
                raise errors.UsageError(
                    f"{word} of the schedule {name!r} is {value!r:.60}, it must be one of "
                    f"{', '.join(map(repr, known))}"
                )
        self.jitter_ns: int = durations.nanoseconds(choices.get("jitter", 0), "jitter")
        most_ns = min(rule.interval_ns, JITTER_NS_MAX) if type(rule) is Every else JITTER_NS_MAX
        if self.jitter_ns > most_ns:
            raise errors.UsageError(
                f"jitter of the schedule {name!r} is {self.jitter_ns / model.SECOND_NS:g} s, it "
                f"must be "
                f"at most {most_ns / model.SECOND_NS:g} s (an hour, and not over the interval)"
            )
        self._make = make

    @functools.cached_property
    def call(self) -> Call[Any]:
        """Return the call of each tick; it is checked at first use, when a worker starts.

        Raises:
            InvalidCall: the arguments do not fit the task.
            UsageError: overlap="skip" is given together with a key.
        """
        try:
            call = self._make()
        except errors.InvalidCall as error:
            problem = str(error).removeprefix(f"{error.task}: ")
            raise errors.InvalidCall(
                error.task,
                f"{problem}; the schedule {self.name!r} gives arguments with args= and kwargs=",
            ) from None
        if self.overlap == "skip":
            if call.extras is not None and call.extras.key is not None:
                raise errors.UsageError(
                    f"the schedule {self.name!r} has overlap='skip', which needs the job's key, "
                    f"and {call.name} has a key of its own: leave one of them out"
                )
            return call.options(key=f"{schedules.SCHEDULE_HEADER}:{self.name}")
        if call.extras is not None and call.extras.on_conflict is model.Conflict.RAISE:
            # A tick has no caller to raise to: it is over, and the job that holds the key is kept.
            return call.options(on_conflict="first")
        return call

    def is_new_form_of(self, known: Schedule) -> bool:
        """Return whether the cell, module or function that declared ``known`` has run again."""
        if self.origin.is_rerun_of(known.origin):
            return True
        ours, theirs = self.source, known.source
        if ours is theirs or not (isinstance(ours, tasks.Task) and isinstance(theirs, tasks.Task)):
            return False
        return ours.origin.is_line_of(theirs.origin)

    def call_at(self, moment_ns: int) -> Call[Any]:
        """Return the call of the tick at that moment."""
        from taskq.schedules import moment_in  # noqa: PLC0415 - as above

        at = moment_in(self.rule.zone, moment_ns).isoformat()
        return self.call.options(
            headers={schedules.SCHEDULE_HEADER: self.name, schedules.MOMENT_HEADER: at}
        )

    def due(self, done_ns: int, now_ns: int) -> DueTicks:
        """Return the ticks to write now, after the ticks up to ``done_ns``."""
        from taskq.schedules import due_ticks  # noqa: PLC0415 - as above

        return due_ticks(self.name, self.rule, self.catch_up, self.jitter_ns, done_ns, now_ns)

    def turns(self, seen_ns: int, due: DueTicks, items: list[Item]) -> list[Turn]:
        """Return the requests that write these ticks and their jobs, each within the size limit.

        The first request expects the schedule to be done until ``seen_ns``, each further one until
        the end of the request before.
        """
        if not items:
            return [Turn(self.name, seen_ns, due.done_ns, (), ())]
        largest = max(len(body) for _, body, _ in items) + _ITEM_BYTES
        count = min(max(_TURN_BYTES // largest, 1), TICKS_MAX)
        turns: list[Turn] = []
        for start in range(0, len(items), count):
            moments, some = due.moments[start : start + count], items[start : start + count]
            turns.append(Turn(self.name, seen_ns, moments[-1], moments, tuple(some)))
            seen_ns = moments[-1]
        return turns

    def next_due_ns(self, done_ns: int) -> int | None:
        """Return when the first tick after ``done_ns`` is due; None if none follows."""
        from taskq.schedules import next_due_ns  # noqa: PLC0415 - as above

        return next_due_ns(self.name, self.rule, self.jitter_ns, done_ns)

    def enrolment(self) -> Enrolment:
        """Return the entry that the log stores for the schedule.

        Raises:
            UsageError: as ``call``, or its names are too long.
        """
        call = self.call
        details = {
            "task": call.name,
            "queue": call.chosen.queue,
            "catch_up": self.catch_up,
            "jitter_seconds": self.jitter_ns / model.SECOND_NS,
            "overlap": self.overlap,
        }
        most = schedules.DETAILS_BYTES_MAX
        if self.kept is not None:
            details["call"], most = self.kept, schedules.ADDED_BYTES_MAX
        encoded = json.dumps(details, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(encoded) > most:
            what = "names" if self.kept is None else "arguments"
            raise errors.UsageError(f"the schedule {self.name!r}: its {what} are too long")
        return Enrolment(self.name, self.rule.rule, encoded, self.kept is not None)

    def __repr__(self) -> str:
        return f"<Schedule {self.name} {self.rule}>"


class Planned:
    """The schedules of one app, by name.

    Attributes:
        listeners: functions to call for each new schedule.
    """

    def __init__(self) -> None:
        self._all: dict[str, Schedule] = {}
        self.listeners: Listeners = Listeners()

    @property
    def all(self) -> dict[str, Schedule]:
        return self._all

    def add(self, schedule: Schedule) -> None:
        """Add a schedule.

        Raises:
            UsageError: its name is taken, or there are too many.
        """
        name = schedule.name
        taken = self.all.get(name)
        if taken is not None and not schedule.is_new_form_of(taken):
            raise errors.UsageError(
                f"there are two schedules named {name!r} ({taken.rule} and {schedule.rule}): "
                f"give one of them another name with name="
            )
        if len(self.all) >= schedules.SCHEDULES_MAX:
            raise errors.UsageError(f"an app has at most {schedules.SCHEDULES_MAX} schedules")
        self.all[name] = schedule
        self.listeners.notify()

    def decorator(
        self,
        own_task: Callable[[Callable[..., Any]], tasks.Task[..., Any]],
        rule: Rule,
        choices: ScheduleChoices,
        name: str | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
    ) -> tasks.TaskDecorator:
        """Return a decorator that schedules the task of its function.

        Args:
            own_task: returns the app's task for a function; the function may be a task already.
            rule: the moments of the schedule.
            choices: see ``ScheduleChoices``.
            name: name of the schedule; None: the task's name.
            args: positional arguments of each call.
            kwargs: keyword arguments of each call.

        Raises:
            UsageError: raised when it decorates: a choice is wrong, or the name is taken.
        """
        given = dict(kwargs or {})

        def plan(fn: Callable[..., Any]) -> tasks.Task[..., Any]:
            task = own_task(fn)

            def make() -> Call[Any]:
                return task.call(*args, **given)

            self.add(Schedule(name or task.name, rule, task, make, choices))
            return task

        return plan  # type: ignore[return-value]


def schedule_of(
    name: str,
    call: Call[Any],
    choices: ScheduleChoices,
    *,
    cron: str | None,
    every: durations.Duration | None,
    tz: object,
) -> Schedule:
    """Return a schedule of a call.

    Raises:
        UsageError: neither or both of cron and every are given, or one is wrong.
    """
    if not isinstance(call, Call):
        raise errors.UsageError(
            f"the schedule {name!r} takes a call such as task.call(...), got {call!r:.60}"
        )
    if (cron is None) == (every is None):
        raise errors.UsageError(f"the schedule {name!r} takes either cron= or every=")
    if every is not None and tz != "UTC":
        raise errors.UsageError(
            f"tz of the schedule {name!r} is {tz!r:.60}: it is for cron=, and every= counts from "
            f"1970 in UTC"
        )
    return Schedule(name, rule_of(cron, every, tz), call, lambda: call, choices)


def rule_of(cron: str | None, every: durations.Duration | None, tz: object = "UTC") -> Rule:
    """Return the rule for a cron expression or an interval.

    Raises:
        UsageError: the expression or the interval is wrong.
    """
    from taskq.schedules import parse_cron, parse_every  # noqa: PLC0415 - as above

    return parse_cron(cron, tz) if cron is not None else parse_every(every)  # type: ignore[arg-type]
