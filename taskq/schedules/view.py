"""Schedules as the log knows them: listed, paused and resumed from any process."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from taskq.connection.blocking import blocking
from taskq.core.errors import UsageError
from taskq.core.model import TIME_NS_MAX
from taskq.core.parsing import check_name, parse_json
from taskq.core.schedules import ScheduleState
from taskq.core.values import dataclass
from taskq.log.requests import Steer
from taskq.schedules.times import Cron, moment_in, parse_rule

if TYPE_CHECKING:
    from taskq.connection.connection import Connection
    from taskq.log.state.facets import Sight

#: Moments to come that a list shows of each schedule.
NEXT_COUNT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """A schedule, as the worker that was started last with it has told the log.

    Attributes:
        name: of the schedule.
        rule: the cron expression, or "every 0:10:00"; "?" if a newer taskq wrote it.
        tz: name of its time zone, "" for an interval.
        task: name of the task that it enqueues.
        queue: where its jobs go.
        catch_up: "skip", "last" or "all".
        overlap: "allow" or "skip".
        jitter_seconds: by how much later its ticks may come.
        paused: whether it ticks only once it is resumed.
        last_tick: the latest moment that it ticked for; None: it never did.
        done_until: all its moments up to there are done with.
        next_ticks: moments to come, jitter not counted; of a paused one those that it would have.
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

    def as_dict(self) -> dict[str, Any]:
        """Return the same as a document of JSON."""
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
            "last_tick": None if self.last_tick is None else self.last_tick.isoformat(),
            "done_until": self.done_until.isoformat(),
            "next_ticks": [moment.isoformat() for moment in self.next_ticks],
        }


#: The class has a method of that name.
Views: TypeAlias = list[ScheduleView]


class LogSchedules:
    """The schedules of a log: ``app.schedules``.

    A log knows a schedule once a worker that has it was started; what the code says is with the
    app itself (``@app.cron``). All of it raises a ``LogError`` if the log could not be opened or
    written, and what is about one schedule a ``UsageError`` if the log knows none of that name.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(self, next_count: int = NEXT_COUNT) -> Views:
        def look(sight: Sight) -> Views:
            now_ns = sight.journal.clock.wall_ns()
            return views_of(sight.facets.need_agenda().schedules, now_ns, next_count)

        port = await self._connection.port()
        return await port.look(look)

    list_sync = blocking(list)  # noqa: A003 - the method of that name is what is meant

    async def pause(self, name: str) -> bool:
        """Let a schedule tick no more, in any process, until it is resumed; False if it is so."""
        return await self._steer(name, "pause")

    async def resume(self, name: str) -> bool:
        """Let it tick again, from now on: what it missed is not made up for; False if it is so."""
        return await self._steer(name, "resume")

    async def reset(self, name: str) -> bool:
        """Let it count from now: for one that ticked ahead of its time, by a wrong clock."""
        return await self._steer(name, "reset")

    async def forget(self, name: str) -> bool:
        return await self._steer(name, "forget")

    pause_sync = blocking(pause)
    resume_sync = blocking(resume)
    reset_sync = blocking(reset)
    forget_sync = blocking(forget)

    async def _steer(self, name: str, action: str) -> bool:
        check_name("schedule name", name)
        port = await self._connection.port()
        return await port.steer(Steer(name, action))


def views_of(
    schedules: Mapping[str, ScheduleState], now_ns: int, next_count: int = NEXT_COUNT
) -> list[ScheduleView]:
    """Return those that an agenda knows, by name."""
    return [_view(name, state, now_ns, next_count) for name, state in sorted(schedules.items())]


def _view(name: str, state: ScheduleState, now_ns: int, next_count: int) -> ScheduleView:
    rule, tz = "?", ""
    zone: tzinfo = UTC
    moments: list[int] = []
    try:
        known = parse_rule(state.rule)
    except UsageError:
        pass
    else:
        rule, zone = str(known), known.zone
        tz = known.tz if isinstance(known, Cron) else ""
        start_ns = max(state.done_ns, now_ns)
        moments = list(islice(known.after(min(start_ns, TIME_NS_MAX)), next_count))
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
    )


def _moment(zone: tzinfo, moment_ns: int) -> datetime:
    # What stands in a file may be any number.
    return moment_in(zone, min(max(moment_ns, 0), TIME_NS_MAX))


def _facts(details: bytes) -> dict[str, Any]:
    try:
        facts = parse_json(details)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}
