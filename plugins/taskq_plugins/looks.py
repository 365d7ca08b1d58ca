"""Reads the log in a directory for the pages and the API: no lock, no write, without the app."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import anyio
import anyio.to_thread

from taskq import State
from taskq import views as documents
from taskq.engine import LogReader, Moment, failure_of
from taskq.errors import JobNotFound, LogError
from taskq.hooks import views_of
from taskq.values import PAYLOAD_BYTES_MAX, dataclass
from taskq.views import STATES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from taskq.engine import Takes
    from taskq.views import (
        Hold,
        JobEvent,
        JobView,
        LimitView,
        Minute,
        OwnerView,
        ProgressView,
        Reason,
        ScheduleView,
    )

T = TypeVar("T")

#: Dead letters that are told apart by what they share, the newest: each takes two milliseconds to
#: look up, and nobody else is answered meanwhile.
DEAD_MAX: Final = 250
#: Moments at which the log is kept in memory: now, and those that were asked for last.
_READERS_MAX: Final = 3
#: Jobs that run now of which is told how far they are.
_RUNNING_MAX: Final = 20
#: Limits of tasks, or of concurrency keys, that are told.
HURDLES_MAX: Final = 100
#: Jobs of one flow that are drawn, and how far apart.
NODES_MAX: Final = 40
_BOX: Final = 200
_COLUMN: Final = 250
_ROW: Final = 48
_MATTERING: Final = frozenset({"ready", "running", "dead"})


class Looks:
    """Reads on a thread, one question at a time, what the directory holds by then.

    The reader is kept: to fold a million jobs anew for each page takes seconds, to fold what is new
    of them a millisecond.

    Args:
        path: directory of the log.
        begin: makes the log, where its own program has not yet.
    """

    def __init__(self, path: str, begin: Callable[[], Awaitable[object]] | None = None) -> None:
        self.path = path
        self._begin = begin
        self._turn = anyio.CapacityLimiter(1)
        #: by the moment that they tell of, "" for now; the one used last stands last
        self._readers: dict[str, LogReader] = {}

    async def read(self, work: Callable[[LogReader], T], at: str = "") -> T:
        """Return what ``work`` makes of the log, or of the log as it was at a moment.

        Raises:
            LogError: the log could not be read.
            UsageError: that is no moment, or one to come.
            MomentGone: compaction removed what would tell it.
        """
        if self._begin is not None:
            if not await anyio.to_thread.run_sync(Path(self.path, "taskq.json").exists):
                await self._begin()
            self._begin = None
        return await anyio.to_thread.run_sync(self._read, work, at, limiter=self._turn)

    def _read(self, work: Callable[[LogReader], T], at: str) -> T:
        readers = self._readers
        try:
            reader = readers.pop(at, None)
            if reader is None:
                moment = Moment.parse(at, time.time_ns(), "at") if at else None
                reader = LogReader.open(self.path, at=moment)
            readers[at] = reader
            reader.refresh()
            if len(readers) > _READERS_MAX:
                oldest = next(moment for moment in readers if moment)
                readers.pop(oldest).close()
            return work(reader)
        except (LogError, OSError):
            self.close()  # it may have been moved or replaced: the next question begins anew
            raise

    def close(self) -> None:
        """Close the files. Legal twice."""
        while self._readers:
            self._readers.popitem()[1].close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that is told of one job; ``tag`` is what every id of its log begins with."""

    tag: str
    job: JobView
    ties: Takes | None
    progress: ProgressView | None
    why: Reason | None
    timeline: tuple[JobEvent, ...]
    graph: Graph | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Dead letters of one kind; ``jobs`` are their ids, the latest death first."""

    fingerprint: str
    task: str
    error: str
    message: str
    last_ns: int
    jobs: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the same as a document of JSON."""
        return {
            "fingerprint": self.fingerprint,
            "task": self.task or None,
            "error": self.error or None,
            "message": self.message,
            "last_at": documents.moment(self.last_ns),
            "count": len(self.jobs),
            "jobs": list(self.jobs),
        }


def only_job(reader: LogReader, text: str) -> JobView:
    """Return a job as the log tells it.

    Raises:
        JobNotFound: there is none of that id.
    """
    job = reader.job(reader.find_job(text), body_bytes_max=PAYLOAD_BYTES_MAX)
    if job is None:
        raise JobNotFound(f"there is no job {text} in {reader.journal.path}")
    return job


def job_of(reader: LogReader, text: str) -> Seen:
    """Return all there is to tell of a job.

    Raises:
        JobNotFound: there is none of that id.
    """
    job = only_job(reader, text)
    return Seen(
        tag=reader.tag,
        job=replace(job, attempts=reader.attempts(job)),
        ties=reader.ties(job.lsn),
        progress=reader.progress(job.lsn),
        why=reader.why(job.lsn),
        timeline=reader.timeline(job.lsn),
        graph=graph_of(reader, job.lsn),
    )


def now_of(reader: LogReader) -> dict[str, Any]:
    """Return what goes on: how the log stands in words, counts of queues, jobs, and processes.

    The states that no job is in are left out of ``shown``, but for those that matter.
    """
    stats, owners = reader.stats(), reader.owners()
    totals = {name: sum(getattr(queue, name) for queue in stats.queues) for name in STATES}
    running = reader.jobs({State.RUNNING}, None, None, _RUNNING_MAX)
    are_lost = any(owner.running and not owner.alive for owner in owners)
    return {
        "stats": stats,
        "standing": reader.standing(stats),
        "totals": totals,
        "shown": tuple(name for name in STATES if totals[name] or name in _MATTERING),
        "running": [(job, reader.progress(job.lsn)) for job in running],
        "lost": {job.lsn for job in running if are_lost and _is_lost(reader, job)},
        "hour": chart_of(reader.last_hour().minutes()),
        "owners": owners,
        "workers": sum(owner.alive and bool(owner.serves) for owner in owners),
    }


#: From the bottom up, as colours name them; "enqueued" is drawn as a line.
_STACKED: Final = ("succeeded", "retried", "cancelled", "expired", "dead")
_BAR: Final = 16
_CHART_HEIGHT: Final = 100


class Column(NamedTuple):
    """One minute of the picture: boxes as (kind, y, height), and what they stand for."""

    x: int
    boxes: tuple[tuple[str, float, float], ...]
    counts: dict[str, int]
    begin_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The last hour, a column a minute; ``line`` holds the points of what came."""

    columns: tuple[Column, ...]
    line: str
    top: int
    width: int
    height: int = _CHART_HEIGHT


def chart_of(minutes: list[Minute]) -> Chart | None:
    """Return the picture of the last hour; None where nothing happened in it."""
    ended = [sum(minute.counts.get(kind, 0) for kind in _STACKED) for minute in minutes]
    came = [minute.counts.get("enqueued", 0) for minute in minutes]
    top = max((*ended, *came), default=0)
    if not top:
        return None
    columns, points = [], []
    for number, minute in enumerate(minutes):
        y = float(_CHART_HEIGHT)
        boxes = []
        for kind in _STACKED:
            height = round(_CHART_HEIGHT * minute.counts.get(kind, 0) / top, 1)
            if minute.counts.get(kind):
                y = round(y - max(height, 1.0), 1)  # what happened at all is seen
                boxes.append((kind, max(y, 0.0), max(height, 1.0)))
        columns.append(Column(number * _BAR, tuple(boxes), minute.counts, minute.begin_ns))
        level = round(_CHART_HEIGHT * (1 - came[number] / top), 1)
        points.append(f"{number * _BAR + _BAR // 2},{level}")
    return Chart(columns=tuple(columns), line=" ".join(points), top=top, width=len(minutes) * _BAR)


def _is_lost(reader: LogReader, job: JobView) -> bool:
    reason = reader.why(job.lsn)
    return reason is not None and reason.code == "worker_lost"


def failures_of(reader: LogReader) -> list[Failure]:
    """Return the newest DEAD_MAX dead letters by what they share, the most frequent first."""
    kinds: dict[str, list[JobView]] = {}
    for job in reader.dead(None, DEAD_MAX):
        kinds.setdefault(failure_of(job.task, "dead", job.reason)[2], []).append(job)
    failures = []
    for fingerprint, jobs in kinds.items():
        error, message, _ = failure_of(jobs[0].task, "dead", jobs[0].reason)
        failures.append(
            Failure(
                fingerprint=fingerprint,
                task=jobs[0].task,
                error=error,
                message=message,
                last_ns=jobs[0].settled_ns,
                jobs=tuple(job.job_id for job in jobs),
            )
        )
    return sorted(failures, key=lambda failure: len(failure.jobs), reverse=True)


def schedules_of(reader: LogReader) -> list[ScheduleView]:
    """Return the schedules that the log knows."""
    return views_of(reader.schedules(), reader.now_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hurdles:
    """What keeps jobs back: limits of tasks, and what workers wait for, as they tell it."""

    limits: tuple[LimitView, ...]
    #: with the process that keeps them
    holds: tuple[tuple[OwnerView, Hold], ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the same as a document of JSON."""
        return {
            "limits": [limit.as_dict() for limit in self.limits],
            "holds": [{"pid": owner.pid, **hold.as_dict()} for owner, hold in self.holds],
        }


def hurdles_of(reader: LogReader) -> Hurdles:
    """Return what keeps jobs back: at most HURDLES_MAX limits, those that are used first."""
    serving = [
        (owner, served) for owner in reader.owners() if owner.alive for served in owner.serves
    ]
    declared = {
        task: limit for _, served in serving for task, limit in (served.limits or {}).items()
    }
    limits = sorted(reader.limits(declared), key=lambda limit: -limit.running - limit.waiting)
    return Hurdles(
        limits=tuple(limits[:HURDLES_MAX]),
        holds=tuple((owner, hold) for owner, served in serving for hold in served.holds),
    )


class Node(NamedTuple):
    """A job of a flow, and where it stands in the picture."""

    job: JobView
    x: int
    y: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Jobs that wait for each other, from left to right; ``lines`` are (x, y, x, y)."""

    nodes: tuple[Node, ...]
    lines: tuple[tuple[int, int, int, int], ...]
    width: int
    height: int


def graph_of(reader: LogReader, job: int) -> Graph | None:
    """Return the flow of a job, NODES_MAX of its jobs at most; None of one that stands alone."""
    inputs: dict[int, tuple[int, ...]] = {}
    left = deque([job])
    while left and len(inputs) < NODES_MAX:
        number = left.popleft()
        ties = None if number in inputs else reader.ties(number)
        if ties is not None:
            inputs[number] = ties.inputs
            left += (*ties.inputs, *ties.unlocks)
    jobs = {number: reader.job(number, body_bytes_max=0) for number in sorted(inputs)}
    views = {number: view for number, view in jobs.items() if view is not None}
    if len(views) <= 1:
        return None
    places, steps = lay_out({number: inputs[number] for number in views})
    return Graph(
        nodes=tuple(
            Node(views[number], column * _COLUMN, row * _ROW)
            for number, (column, row) in places.items()
        ),
        lines=tuple(
            (left * _COLUMN + (_BOX if left < right else 0), at * _ROW + _ROW // 2,
             right * _COLUMN + (0 if left < right else _BOX), to * _ROW + _ROW // 2)
            for (left, at), (right, to) in steps
        ),
        width=max(column for column, _ in places.values()) * _COLUMN + _BOX,
        height=(max(row for step in steps for _, row in step) + 1) * _ROW,
    )  # fmt: skip


#: A column and a row.
_Place: TypeAlias = tuple[int, int]


def lay_out(
    inputs: Mapping[int, tuple[int, ...]],
) -> tuple[dict[int, _Place], list[tuple[_Place, _Place]]]:
    """Return where each job stands, and the steps of the lines that lead to it from its inputs.

    A step leads from one column to the next, between their boxes, or across a column in a row of
    its own: no line passes behind a box.
    """
    columns: dict[int, int] = {}
    for _ in inputs:  # as often as the longest way may be long
        for number, before in inputs.items():
            columns[number] = max(
                (columns.get(first, 0) + 1 for first in before if first in inputs), default=0
            )
    rows: Counter[int] = Counter()

    def take(column: int) -> _Place:
        rows[column] += 1
        return column, rows[column] - 1

    places = {number: take(columns[number]) for number in inputs}
    steps: list[tuple[_Place, _Place]] = []
    for number, before in inputs.items():
        for first in before:
            if first not in inputs:
                continue
            at = places[first]
            for column in range(columns[first] + 1, columns[number]):
                across = take(column)
                steps += [(at, across), (across, across)]
                at = across
            steps.append((at, places[number]))
    return places, steps


def log_document(reader: LogReader) -> dict[str, Any]:
    """Return the log as a whole: what ``taskq stats --json`` prints."""
    return {
        "log_id": str(reader.log_id),
        "created_at": reader.created_at.isoformat(),
        **reader.stats().as_dict(),
    }
