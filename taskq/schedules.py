"""Schedules: when they tick, and how they are listed, paused and resumed.

A rule is a cron expression or an interval. It keeps no state, so it gives the same moments in every
process. Moments are nanoseconds of wall time.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from taskq.connection.blocking import blocking
from taskq.core import durations, errors, model, parsing, schedules
from taskq.core.values import NamedTuple, dataclass
from taskq.log.requests import Steer

if TYPE_CHECKING:
    from taskq.connection.connection import Connection
    from taskq.log.state.facets import LogView

#: Most missed ticks that ``catch_up="all"`` makes up for, the latest ones.
CATCH_UP_MAX: Final = 1_000
#: With ``catch_up="skip"``, a tick with more delay counts as missed. The time covers a scheduler's
#: longest sleep.
LATE_SECONDS: Final = 60.0
#: The shortest interval, and the longest jitter of a cron schedule.
INTERVAL_NS_MIN: Final = model.SECOND_NS
JITTER_NS_MAX: Final = 3_600 * model.SECOND_NS
_LATE_NS: Final = round(LATE_SECONDS * model.SECOND_NS)
#: First span of the search for the latest ticks, and its growth from try to try.
_LOOK_BACK_NS: Final = 3_600 * model.SECOND_NS
_LOOK_BACK_GROWTH: Final = 8
_MINUTE: Final = 60
_DAY: Final = 86_400
#: Most difference between elapsed time and the clock's change in one time zone.
_SHIFT_MAX: Final = 27 * 3_600
#: An expression without a tick in 50 years of days never ticks.
_DAYS_MAX: Final = 18_263
_DAY_ZERO: Final = date(1970, 1, 1)
_NO_DAY: Final = -(10**9)
_FIELDS: Final = "minute hour day-of-month month day-of-week"
#: A moment to parse an expression and to check that it ticks at all; any moment would do.
_SOME_DAY: Final = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Every:
    """Ticks at each whole multiple of an interval since 1970 in UTC."""

    interval_ns: int

    @property
    def rule(self) -> bytes:
        return f"every {self.interval_ns}".encode()

    @property
    def zone(self) -> tzinfo:
        return UTC

    def after(self, moment_ns: int) -> Iterator[int]:
        number = moment_ns // self.interval_ns
        while True:
            number += 1
            yield number * self.interval_ns

    def latest(self, count: int, after_ns: int, until_ns: int) -> list[int]:
        last, first = until_ns // self.interval_ns, after_ns // self.interval_ns + 1
        return [n * self.interval_ns for n in range(max(first, last - count + 1), last + 1)]

    def __str__(self) -> str:
        span = str(timedelta(microseconds=self.interval_ns // 1_000))
        return f"every {span.removesuffix(', 0:00:00')}"


class _Fields:
    """The fields of a cron expression; finds the next clock time that matches.

    Clock times are seconds since 1970 in local time, without a zone. cronsim parses; its own search
    loses ticks when clocks change by half an hour, and does not always end.
    """

    def __init__(self, expression: str) -> None:
        from cronsim import CronSim  # noqa: PLC0415 - most programs have no schedule

        parsed = CronSim(expression, _SOME_DAY)
        self._is_day = parsed.match_day
        self._months = parsed.months
        self.seconds = sorted(parsed.seconds)
        self._minutes = sorted(parsed.minutes)
        self._hours = sorted(parsed.hours)
        *_, minute, hour, _day, _month, _weekday = expression.split()
        #: whether it follows elapsed time instead of the clock
        self.is_star = minute.startswith("*") or hour.startswith("*")
        self._day = _NO_DAY  # the latest matching day

    def first(self, clock: int) -> int | None:
        day, rest = divmod(clock, _DAY)
        if day == self._day or self._fits(day):
            time = self._time_from(rest)
            if time is not None:
                self._day = day
                return day * _DAY + time
        last = day + _DAYS_MAX
        while (day := self._day_after(day)) <= last:
            if self._fits(day):
                self._day = day
                return day * _DAY + self._time_from(0)  # type: ignore[operator]
        return None

    def _fits(self, day: int) -> bool:
        date = _DAY_ZERO + timedelta(days=day)
        return date.month in self._months and self._is_day(date)

    def _day_after(self, day: int) -> int:
        date = _DAY_ZERO + timedelta(days=day)
        if date.month in self._months:
            return day + 1
        return day + 1 + monthrange(date.year, date.month)[1] - date.day

    def _time_from(self, rest: int) -> int | None:
        hour, minute, second = rest // 3_600, rest // _MINUTE % _MINUTE, rest % _MINUTE
        at = bisect_left(self._hours, hour)
        if self._hours[at : at + 1] == [hour]:
            place = bisect_left(self._minutes, minute)
            if self._minutes[place : place + 1] == [minute]:
                if second <= self.seconds[-1]:
                    following = self.seconds[bisect_left(self.seconds, second)]
                    return hour * 3_600 + minute * _MINUTE + following
                place += 1
            if place < len(self._minutes):
                return hour * 3_600 + self._minutes[place] * _MINUTE + self.seconds[0]
            at += 1
        if at < len(self._hours):
            return self._hours[at] * 3_600 + self._minutes[0] * _MINUTE + self.seconds[0]
        return None


@lru_cache(maxsize=256)
def _fields(expression: str) -> _Fields:
    return _Fields(expression)


@dataclass(frozen=True, slots=True)
class Cron:
    """Ticks of a cron expression in a time zone; see ``parse_cron``.

    When clocks change it follows Debian's rules, also for seconds. A time within the skipped hour
    ticks right after it; a time within the repeated hour ticks the first time only. Expressions
    whose minute or hour begins with ``*`` follow elapsed time.
    """

    expression: str
    tz: str
    zone: tzinfo

    @property
    def rule(self) -> bytes:
        return f"cron {self.expression} {self.tz}".encode()

    def after(self, moment_ns: int) -> Iterator[int]:
        last = moment_ns // model.SECOND_NS
        for at in self._walk(last):
            if at > last:
                last = at
                yield at * model.SECOND_NS

    def _walk(self, start: int) -> Iterator[int]:
        """Yield its moments in seconds, from ``start`` on; some of them twice."""
        fields = _fields(self.expression)
        star = fields.is_star
        begin = start if star else start - _MINUTE
        # A clock time that was shown before does not tick again, unless elapsed time counts.
        shown = self._highest_clock(begin - _SHIFT_MAX, begin)
        while True:
            end, offset = self._stretch(begin, begin + _DAY)
            clock = begin + offset
            if not star:
                skipped = fields.first(shown)
                if skipped is not None and skipped < clock:
                    yield from sorted(begin + (s - clock) % _MINUTE for s in fields.seconds)
                clock = max(clock, shown)
            while (following := fields.first(clock)) is not None and following - offset < end:
                yield following - offset
                clock = following + 1
            if following is None:
                return
            begin, shown = end, max(shown, end + offset)
            # No tick matches before that moment, however the clocks change: skip to it.
            if not star or fields.first(end + offset - _SHIFT_MAX) == following:
                begin = max(end, following - offset - _SHIFT_MAX)

    def _highest_clock(self, begin: int, until: int) -> int:
        """Return the latest clock time shown before ``until``, plus a second."""
        highest = begin
        while begin < until:
            begin, offset = self._stretch(begin, until)
            highest = max(highest, begin + offset)
        return highest

    def _stretch(self, begin: int, end: int) -> tuple[int, int]:
        offset = self._offset(begin)
        if self._offset(end) == offset:
            return end, offset
        low = begin
        while end - low > 1:
            middle = (low + end) // 2
            if self._offset(middle) == offset:
                low = middle
            else:
                end = middle
        return end, offset

    def _offset(self, second: int) -> int:
        shift = moment_in(self.zone, second * model.SECOND_NS).utcoffset()
        return 0 if shift is None else shift.days * _DAY + shift.seconds

    def latest(self, count: int, after_ns: int, until_ns: int) -> list[int]:
        span_ns = _LOOK_BACK_NS
        while True:
            start_ns = max(after_ns, until_ns - span_ns)
            moments: list[int] = []
            for at_ns in self.after(start_ns):
                if at_ns > until_ns:
                    break
                moments.append(at_ns)
            if start_ns == after_ns or len(moments) >= count:
                return moments[-count:]
            span_ns *= _LOOK_BACK_GROWTH

    def __str__(self) -> str:
        return self.expression


Rule: TypeAlias = Cron | Every


class DueTicks(NamedTuple):
    """The ticks of a schedule to write now.

    Attributes:
        moments: the ticks, in order.
        done_ns: the schedule is done up to this moment then; 0: no tick is due.
        is_cut: whether more ticks were missed than are made up for.
    """

    moments: tuple[int, ...] = ()
    done_ns: int = 0
    is_cut: bool = False


def parse_cron(expression: str, tz: object = "UTC") -> Cron:
    """Return the rule of a cron expression: five fields, or six with the seconds first.

    Raises:
        UsageError: it is no cron expression, never ticks, or the time zone is unknown.
    """
    if not isinstance(expression, str):
        raise errors.UsageError(
            f"a cron expression is text, got {expression!r:.60}: write "
            f'@app.cron("*/5 * * * *") with five fields ({_FIELDS})'
        )
    from cronsim import CronSimError  # noqa: PLC0415 - most programs have no schedule

    text = " ".join(expression.split())
    try:
        comes = _fields(text).first(int(_SOME_DAY.timestamp())) is not None
    except (CronSimError, ValueError, TypeError, AssertionError, IndexError) as error:
        raise errors.UsageError(
            f"the cron expression {text!r:.80} is wrong ({error}): it has five fields "
            f"({_FIELDS}), or six with the seconds first"
        ) from error
    if not comes:
        raise errors.UsageError(f"the cron expression {text!r:.80} never comes")
    name = _zone_name(tz)
    cron = Cron(text, name, _zone(name))
    if len(cron.rule) > schedules.RULE_BYTES_MAX:
        raise errors.UsageError(
            f"the cron expression {text!r:.80} has over {schedules.RULE_BYTES_MAX} bytes"
        )
    return cron


def parse_every(interval: durations.Duration) -> Every:
    """Return the rule of an interval, 1 s or more.

    Raises:
        UsageError: it is no such interval.
    """
    interval_ns = durations.positive_nanoseconds(interval, "the interval of a schedule")
    if interval_ns < INTERVAL_NS_MIN:
        raise errors.UsageError(
            f"the interval of a schedule is {interval!r:.60}, it must be 1 s or more"
        )
    return Every(interval_ns)


def parse_rule(rule: bytes) -> Rule:
    """Return the rule from its bytes.

    Raises:
        UsageError: this taskq does not know the kind of rule.
    """
    kind, _, rest = rule.decode("utf-8", "replace").partition(" ")
    if kind == "every" and rest.isdecimal() and int(rest) >= INTERVAL_NS_MIN:
        return Every(int(rest))
    if kind == "cron":
        expression, _, tz = rest.rpartition(" ")
        return parse_cron(expression, tz)
    raise errors.UsageError(f"{rule!r:.80} is no rule of a schedule that is known here")


def due_ticks(
    name: str, rule: Rule, catch_up: str, most_ns: int, done_ns: int, now_ns: int
) -> DueTicks:
    """Return the due ticks of a schedule.

    Args:
        name: name of the schedule.
        rule: its rule.
        catch_up: "skip", "last" or "all".
        most_ns: its longest jitter.
        done_ns: it is done up to this moment.
        now_ns: wall time.
    """
    count = CATCH_UP_MAX if catch_up == "all" else 1
    sure_ns = max(now_ns - most_ns, done_ns)
    moments = rule.latest(count + 1, done_ns, sure_ns)
    for at_ns in rule.after(sure_ns):
        # In order: a tick with a short jitter waits for earlier ticks.
        if at_ns > now_ns or at_ns + schedules.jitter_ns(name, at_ns, most_ns) > now_ns:
            break
        moments.append(at_ns)
    if not moments:
        return DueTicks()
    chosen = moments[-count:]
    late_ns = now_ns - chosen[-1] - schedules.jitter_ns(name, chosen[-1], most_ns)
    if catch_up == "skip" and late_ns > _LATE_NS:
        chosen = []
    return DueTicks(tuple(chosen), moments[-1], catch_up == "all" and len(moments) > count)


def next_due_ns(name: str, rule: Rule, most_ns: int, done_ns: int) -> int | None:
    """Return when the first tick after ``done_ns`` is due; None if none follows."""
    for at_ns in islice(rule.after(done_ns), 1):
        return at_ns + schedules.jitter_ns(name, at_ns, most_ns)
    return None


def moment_in(zone: tzinfo, moment_ns: int) -> datetime:
    return durations.utc_moment(moment_ns // model.SECOND_NS * model.SECOND_NS).astimezone(zone)


def _zone_name(tz: object) -> str:
    if tz is UTC:
        return "UTC"
    name = getattr(tz, "key", tz)
    if not isinstance(name, str) or not name or " " in name or isinstance(tz, timezone):
        raise errors.UsageError(
            f'tz is {tz!r:.60}: give the name of a time zone, such as "Europe/Berlin" or "UTC"'
        )
    return name


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - only cron schedules need it

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise errors.UsageError(
            f"there is no time zone {name!r:.60} here: give a name such as "
            f'"Europe/Berlin", or install the package tzdata if the machine knows none'
        ) from None


#: Next ticks of each schedule in a list.
NEXT_COUNT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """A schedule as last declared by a worker, or as added at run time.

    Attributes:
        name: its name.
        rule: the cron expression, or "every 0:10:00"; "?" if a newer taskq wrote it.
        tz: name of its time zone, "" for an interval.
        task: name of the task that it enqueues.
        queue: queue of its jobs.
        catch_up: "skip", "last" or "all".
        overlap: "allow" or "skip".
        jitter_seconds: longest delay of its ticks.
        paused: whether it is paused until ``resume``.
        added: whether it was added at run time, and is in no code.
        last_tick: its latest tick; None if it never ticked.
        done_until: all its ticks up to this moment are done.
        next_ticks: next ticks, without jitter; computed also for a paused schedule.
    """

    name: str
    rule: str
    tz: str
    task: str
    queue: str
    catch_up: str
    overlap: str
    jitter_seconds: float
    paused: bool
    last_tick: datetime | None
    done_until: datetime
    next_ticks: tuple[datetime, ...]
    added: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the view as a JSON document."""
        return {
            "name": self.name,
            "rule": self.rule,
            "tz": self.tz or None,
            "task": self.task,
            "queue": self.queue,
            "catch_up": self.catch_up,
            "overlap": self.overlap,
            "jitter_seconds": self.jitter_seconds,
            "paused": self.paused,
            "added": self.added,
            "last_tick": None if self.last_tick is None else self.last_tick.isoformat(),
            "done_until": self.done_until.isoformat(),
            "next_ticks": [moment.isoformat() for moment in self.next_ticks],
        }


#: The class has a method ``list``.
Views: TypeAlias = list[ScheduleView]


class LogSchedules:
    """The schedules of a log: ``app.schedules``.

    A log knows a schedule once a worker with it was started; the declarations in code are in the
    app (``@app.cron``). All methods raise a ``LogError`` if the log could not be opened or written.
    Methods for one schedule raise a ``UsageError`` if the log knows no schedule of that name.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(self, next_count: int = NEXT_COUNT) -> Views:
        def look(sight: LogView) -> Views:
            now_ns = sight.journal.clock.wall_ns()
            return views_of(sight.facets.need_agenda().schedules, now_ns, next_count)

        port = await self._connection.port()
        return await port.look(look)

    list_sync: Final = blocking(list)  # noqa: A003 - the method of that name is what is meant

    async def pause(self, name: str) -> bool:
        """Stop a schedule's ticks in every process until ``resume``; False if it was paused."""
        return await self._steer(name, "pause")

    async def resume(self, name: str) -> bool:
        """Let it tick again, without making up for missed ticks; False if it is not paused."""
        return await self._steer(name, "resume")

    async def reset(self, name: str) -> bool:
        """Restart a schedule from now: for ticks ahead of time, caused by a wrong clock."""
        return await self._steer(name, "reset")

    async def forget(self, name: str) -> bool:
        return await self._steer(name, "forget")

    pause_sync: Final = blocking(pause)
    resume_sync: Final = blocking(resume)
    reset_sync: Final = blocking(reset)
    forget_sync: Final = blocking(forget)

    async def _steer(self, name: str, action: str) -> bool:
        parsing.check_name("schedule name", name)
        port = await self._connection.port()
        return await port.steer(Steer(name, action))


def views_of(
    schedules: Mapping[str, schedules.ScheduleState], now_ns: int, next_count: int = NEXT_COUNT
) -> list[ScheduleView]:
    """Return the schedules of an agenda, by name."""
    return [_view(name, state, now_ns, next_count) for name, state in sorted(schedules.items())]


def _view(name: str, state: schedules.ScheduleState, now_ns: int, next_count: int) -> ScheduleView:
    rule, tz = "?", ""
    zone: tzinfo = UTC
    moments: list[int] = []
    try:
        known = parse_rule(state.rule)
    except errors.UsageError:
        pass
    else:
        rule, zone = str(known), known.zone
        tz = known.tz if isinstance(known, Cron) else ""
        start_ns = max(state.done_ns, now_ns)
        moments = list(islice(known.after(min(start_ns, model.TIME_NS_MAX)), next_count))
    facts = _facts(state.details)
    jitter = facts.get("jitter_seconds")
    return ScheduleView(
        name=name,
        rule=rule,
        tz=tz,
        task=str(facts.get("task", "")),
        queue=str(facts.get("queue", "")),
        catch_up=str(facts.get("catch_up", "")),
        overlap=str(facts.get("overlap", "")),
        jitter_seconds=float(jitter) if isinstance(jitter, int | float) else 0.0,
        paused=state.is_paused,
        last_tick=_moment(zone, state.last_ns) if state.last_ns else None,
        done_until=_moment(zone, state.done_ns),
        next_ticks=tuple(moment_in(zone, at_ns) for at_ns in moments),
        added=schedules.is_added(state.details),
    )


def _moment(zone: tzinfo, moment_ns: int) -> datetime:
    # A damaged file may contain any number.
    return moment_in(zone, min(max(moment_ns, 0), model.TIME_NS_MAX))


def _facts(details: bytes) -> dict[str, Any]:
    try:
        facts = parsing.parse_json(details)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}
