"""When a schedule ticks: cron expressions through cronsim, and plain intervals.

A rule gives the same moments in every process, whenever it is asked: it keeps no state. Moments are
nanoseconds of wall time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from taskq.core.durations import Duration, positive_nanoseconds, utc_moment
from taskq.core.errors import UsageError
from taskq.core.model import SECOND_NS
from taskq.core.schedules import RULE_BYTES_MAX, jitter_ns
from taskq.core.values import NamedTuple, dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import tzinfo

#: Ticks that ``catch_up="all"`` makes up for at most; of more that were missed, the latest.
CATCH_UP_MAX: Final = 1_000
#: With ``catch_up="skip"``, a tick that is later than that counts as missed. It covers the longest
#: sleep of a scheduler.
LATE_SECONDS: Final = 60.0
#: The shortest interval, and the longest jitter of a cron schedule.
INTERVAL_NS_MIN: Final = SECOND_NS
JITTER_NS_MAX: Final = 3_600 * SECOND_NS
_LATE_NS: Final = round(LATE_SECONDS * SECOND_NS)
#: How far back the latest ticks are looked for at first, and how much farther each time after.
_LOOK_BACK_NS: Final = 3_600 * SECOND_NS
_LOOK_BACK_GROWTH: Final = 8
_MINUTE: Final = 60
_FIELDS: Final = "minute hour day-of-month month day-of-week"
#: Any moment will do for a look whether an expression ever comes.
_SOME_DAY: Final = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Every:
    """Ticks at each whole multiple of an interval since 1970 in UTC."""

    interval_ns: int

    @property
    def rule(self) -> bytes:
        """Return what the log keeps of it."""
        return f"every {self.interval_ns}".encode()

    @property
    def zone(self) -> tzinfo:
        """In which its moments are told."""
        return UTC

    def after(self, moment_ns: int) -> Iterator[int]:
        """Yield its moments from there on, that one not among them."""
        number = moment_ns // self.interval_ns
        while True:
            number += 1
            yield number * self.interval_ns

    def latest(self, count: int, after_ns: int, until_ns: int) -> list[int]:
        """Return the last ``count`` of its moments behind one moment and up to another."""
        last, first = until_ns // self.interval_ns, after_ns // self.interval_ns + 1
        return [n * self.interval_ns for n in range(max(first, last - count + 1), last + 1)]

    def __str__(self) -> str:
        return f"every {timedelta(microseconds=self.interval_ns // 1_000)}"


@dataclass(frozen=True, slots=True)
class Cron:
    """Ticks as a cron expression says it, in a time zone; see ``parse_cron``.

    In spring and autumn it goes by Debian's rules, with seconds as without, which cronsim does not:
    what has its time in the hour that is left out comes right after it, what has it in the hour
    that comes twice comes the first time only; but expressions whose minute or hour begins with
    ``*`` go by the time that passes.
    """

    expression: str
    tz: str
    zone: tzinfo

    @property
    def rule(self) -> bytes:
        """Return what the log keeps of it."""
        return f"cron {self.expression} {self.tz}".encode()

    def after(self, moment_ns: int) -> Iterator[int]:
        """Yield its moments from there on, that one not among them."""
        last_ns = moment_ns
        for at in self._walk(moment_ns // SECOND_NS):
            at_ns = int(at.timestamp()) * SECOND_NS
            # From within an hour that comes twice it may start with what is over.
            if at_ns > last_ns:
                last_ns = at_ns
                yield at_ns

    def _walk(self, start: int) -> Iterator[datetime]:
        """Return its moments from about a second of wall time on, some of them twice."""
        from cronsim import CronSim  # noqa: PLC0415 - most programs have no schedule

        *_, minute, hour, _day, _month, _weekday = self.expression.split()
        if minute.startswith("*") or hour.startswith("*"):
            return CronSim(self.expression, moment_in(self.zone, start * SECOND_NS))
        # From a minute before: what was left out comes within the first minute after it.
        clock = moment_in(self.zone, (start - _MINUTE) * SECOND_NS).replace(tzinfo=None)
        return (self._moment(at) for at in CronSim(self.expression, clock))

    def _moment(self, clock: datetime) -> datetime:
        """The first moment at which clocks show that, or the same second of a later minute."""
        while True:
            at = clock.replace(tzinfo=self.zone)
            if at.astimezone(UTC).astimezone(self.zone) == at:
                return at
            clock += timedelta(seconds=_MINUTE)

    def latest(self, count: int, after_ns: int, until_ns: int) -> list[int]:
        """Return the last ``count`` of its moments behind one moment and up to another."""
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


class Due(NamedTuple):
    """The ticks of a schedule that are to be written now.

    Attributes:
        moments: in their order.
        done_ns: up to where the schedule is done with then; 0: nothing is due.
        is_cut: more were missed than are made up for.
    """

    moments: tuple[int, ...] = ()
    done_ns: int = 0
    is_cut: bool = False


def parse_cron(expression: str, tz: object = "UTC") -> Cron:
    """Return the rule of a cron expression: five fields, or six with the seconds first.

    Raises:
        UsageError: it is none, never comes, or there is no such time zone.
    """
    if not isinstance(expression, str):
        raise UsageError(
            f"a cron expression is text, got {expression!r:.60}: write "
            f'@app.cron("*/5 * * * *") with five fields ({_FIELDS})'
        )
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - most programs have no schedule

    text = " ".join(expression.split())
    try:
        next(CronSim(text, _SOME_DAY))
    except StopIteration:
        raise UsageError(f"the cron expression {text!r:.80} never comes") from None
    except (CronSimError, ValueError, TypeError, AssertionError, IndexError) as error:
        raise UsageError(
            f"the cron expression {text!r:.80} is wrong ({error}): it has five fields "
            f"({_FIELDS}), or six with the seconds first"
        ) from error
    name = _zone_name(tz)
    cron = Cron(text, name, _zone(name))
    if len(cron.rule) > RULE_BYTES_MAX:
        raise UsageError(f"the cron expression {text!r:.80} has over {RULE_BYTES_MAX} bytes")
    return cron


def parse_every(interval: Duration) -> Every:
    """Return the rule of an interval, 1 s or more.

    Raises:
        UsageError: it is none.
    """
    interval_ns = positive_nanoseconds(interval, "the interval of a schedule")
    if interval_ns < INTERVAL_NS_MIN:
        raise UsageError(f"the interval of a schedule is {interval!r:.60}, it must be 1 s or more")
    return Every(interval_ns)


def parse_rule(rule: bytes) -> Rule:
    """Return what ``rule`` of a rule gave.

    Raises:
        UsageError: it is none that this taskq knows.
    """
    kind, _, rest = rule.decode("utf-8", "replace").partition(" ")
    if kind == "every" and rest.isdecimal() and int(rest) >= INTERVAL_NS_MIN:
        return Every(int(rest))
    if kind == "cron":
        expression, _, tz = rest.rpartition(" ")
        return parse_cron(expression, tz)
    raise UsageError(f"{rule!r:.80} is no rule of a schedule that is known here")


def due_ticks(name: str, rule: Rule, catch_up: str, most_ns: int, done_ns: int, now_ns: int) -> Due:
    """Return what is due of a schedule.

    Args:
        name: of the schedule.
        rule: of the schedule.
        catch_up: "skip", "last" or "all".
        most_ns: its longest jitter.
        done_ns: up to where it is done with.
        now_ns: wall time.
    """
    count = CATCH_UP_MAX if catch_up == "all" else 1
    sure_ns = max(now_ns - most_ns, done_ns)
    moments = rule.latest(count + 1, done_ns, sure_ns)
    for at_ns in rule.after(sure_ns):
        # In their order: one whose jitter is short waits for those before it.
        if at_ns > now_ns or at_ns + jitter_ns(name, at_ns, most_ns) > now_ns:
            break
        moments.append(at_ns)
    if not moments:
        return Due()
    chosen = moments[-count:]
    late_ns = now_ns - chosen[-1] - jitter_ns(name, chosen[-1], most_ns)
    if catch_up == "skip" and late_ns > _LATE_NS:
        chosen = []
    return Due(tuple(chosen), moments[-1], catch_up == "all" and len(moments) > count)


def next_due_ns(name: str, rule: Rule, most_ns: int, done_ns: int) -> int | None:
    """Return when the first tick behind ``done_ns`` is to be written; None: never."""
    for at_ns in islice(rule.after(done_ns), 1):
        return at_ns + jitter_ns(name, at_ns, most_ns)
    return None


def moment_in(zone: tzinfo, moment_ns: int) -> datetime:
    """Return the moment as a datetime of that zone."""
    return utc_moment(moment_ns // SECOND_NS * SECOND_NS).astimezone(zone)


def _zone_name(tz: object) -> str:
    if tz is UTC:
        return "UTC"
    name = getattr(tz, "key", tz)
    if not isinstance(name, str) or not name or " " in name or isinstance(tz, timezone):
        raise UsageError(
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
        raise UsageError(
            f"there is no time zone {name!r:.60} here: give a name such as "
            f'"Europe/Berlin", or install the package tzdata if the machine knows none'
        ) from None
