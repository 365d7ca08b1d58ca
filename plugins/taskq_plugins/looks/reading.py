"""Read the log in a directory for the pages and the API, without lock, write or the app's code."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import weakref
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import anyio
import anyio.to_thread

from taskq import State, engine, errors, hooks, values, views

#: Outcomes, stacked from the bottom up; "enqueued" is drawn as a line.
_STACKED: Final = ("succeeded", "retried", "cancelled", "expired", "dead")
_BAR: Final = 16
_HEIGHT: Final = 100
#: Size of a small line within a row of text.
_LINE_WIDTH, _LINE_HEIGHT = 120, 20
#: Enqueued jobs are drawn up to this multiple of the ends.
_CAME_TIMES: Final = 2
#: Minutes between two marks of the hour's axis.
_MARK: Final = 10
_MINUTE_NS: Final = 60 * values.SECOND_NS
#: Attempts and steps of a job in its chart; widths are thousandths of its life, with a minimum.
_BARS_MAX: Final = 30
_STEPS_MAX: Final = 200
_BAR_UNITS: Final = 1_000
_BAR_LEAST: Final = 4
#: Jobs of one flow in its chart, and their distance.
NODES_MAX: Final = 40
_BOX: Final = 200
_COLUMN: Final = 250
_ROW: Final = 48


class Column(NamedTuple):
    """One minute of the chart: boxes as (kind, y, height), and their counts."""

    x: int
    boxes: tuple[tuple[str, float, float], ...]
    counts: dict[str, int]
    begin_ns: int
    waiting: int
    running: int


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The last hour, a column a minute.

    Attributes:
        top: value of the upper edge: the highest minute of ends, or of enqueued jobs.
        came: points of enqueued jobs, whose maximum is ``came_most``. The edge cuts off a large
            bulk, which would flatten the rest.
        waiting, running: points of these counts, whose maximum is ``most``.
        marks: (x, begin of the minute) of each label of the axis.
    """

    columns: tuple[Column, ...]
    top: int
    came: str
    came_most: int
    waiting: str
    running: str
    most: int
    marks: tuple[tuple[int, int], ...]
    width: int
    height: int = _HEIGHT


def chart_of(
    minutes: list[views.Minute], waiting: int, running: int, mark: int = _MARK
) -> Chart | None:
    """Return the chart of the last hour; None without ends and enqueued jobs.

    Args:
        minutes: counts by minute.
        waiting: number of waiting jobs at the end of the hour.
        running: number of running jobs then.
        mark: minutes between two labels of the axis.
    """
    ended = [sum(minute.counts.get(kind, 0) for kind in _STACKED) for minute in minutes]
    came = [minute.counts.get("enqueued", 0) for minute in minutes]
    ended_most, came_most = max(ended, default=0), max(came, default=0)
    if not (ended_most or came_most):
        return None
    top = max(ended_most, min(came_most, _CAME_TIMES * ended_most) if ended_most else came_most)
    columns = []
    for number, minute in reversed(list(enumerate(minutes))):
        boxes = tuple(_boxes(minute, top))
        columns.append(
            Column(number * _BAR, boxes, minute.counts, minute.begin_ns, waiting, running)
        )
        waiting, running = max(waiting - minute.waiting, 0), max(running - minute.running, 0)
    columns.reverse()
    waited, ran = [column.waiting for column in columns], [column.running for column in columns]
    most = max(*waited, *ran, 1)
    return Chart(
        columns=tuple(columns),
        top=top,
        came=_points([min(count, top) for count in came], top),
        came_most=came_most,
        waiting=_points(waited, most),
        running=_points(ran, most),
        most=most,
        marks=tuple(
            (column.x + _BAR // 2, column.begin_ns)
            for column in columns
            if not column.begin_ns // _MINUTE_NS % mark
        ),
        width=len(minutes) * _BAR,
    )


def _boxes(minute: views.Minute, top: int) -> list[tuple[str, float, float]]:
    y, boxes = float(_HEIGHT), []
    for kind in _STACKED:
        if count := minute.counts.get(kind):
            height = max(round(_HEIGHT * count / top, 1), 1.0)  # a single event stays visible
            y = round(y - height, 1)
            boxes.append((kind, max(y, 0.0), height))
    return boxes


def _points(values: Sequence[int], top: int, step: float = _BAR, height: int = _HEIGHT) -> str:
    levels = (round(height * (1 - value / top), 1) for value in values)
    return " ".join(f"{step * (at + 0.5):g},{level:g}" for at, level in enumerate(levels))


def line_of(values: Sequence[int]) -> str:
    """Return the points of a small line; "" if all values are 0."""
    if not any(values):
        return ""
    pairs = [sum(values[at : at + 2]) for at in range(0, len(values), 2)]
    step = _LINE_WIDTH / len(pairs)
    inside = _points(pairs, max(pairs), step, _LINE_HEIGHT)
    return f"{step / 2:g},{_LINE_HEIGHT} {inside} {_LINE_WIDTH - step / 2:g},{_LINE_HEIGHT}"


class Bar(NamedTuple):
    """An attempt of a job: its wait and its run, in thousandths of the job's life."""

    kind: str
    wait: float
    start: float
    width: float
    waited_ns: int
    ran_ns: int
    number: int


class Life(NamedTuple):
    """Time span of a job's chart: since its enqueue, or since the first of its latest attempts."""

    first_ns: int
    end_ns: int

    def place(self, moment_ns: int) -> float:
        return max(_BAR_UNITS * (moment_ns - self.first_ns) / (self.end_ns - self.first_ns), 0.0)

    def span(self, start_ns: int, end_ns: int) -> tuple[float, float]:
        """Return begin and width of a span; the width has a minimum, to stay visible."""
        start = min(self.place(start_ns), _BAR_UNITS - _BAR_LEAST)
        return round(start, 1), round(max(self.place(end_ns) - start, _BAR_LEAST), 1)


def life_of(job: views.JobView, now_ns: int) -> Life:
    attempts = job.attempts[-_BARS_MAX:]
    is_cut = len(attempts) < len(job.attempts)
    first_ns = attempts[0].started_ns if is_cut else job.enqueued_ns
    return Life(first_ns, max(job.settled_ns or now_ns, first_ns + 1))


def bars_of(job: views.JobView, now_ns: int) -> list[Bar]:
    life = life_of(job, now_ns)
    before_ns, bars = life.first_ns, []
    for attempt in job.attempts[-_BARS_MAX:]:
        stop_ns = attempt.ended_ns or now_ns
        start, width = life.span(attempt.started_ns, stop_ns)
        bars.append(
            Bar(attempt.outcome or "running", round(life.place(before_ns), 1), start, width,
                attempt.started_ns - before_ns, stop_ns - attempt.started_ns, attempt.number)
        )  # fmt: skip
        before_ns = stop_ns
    return bars


class StepBar(NamedTuple):
    """A completed step and its place in the job's life, in thousandths."""

    step: engine.StepView
    start: float
    width: float


def step_bars_of(
    job: views.JobView, steps: Sequence[engine.StepView], now_ns: int
) -> tuple[StepBar, ...]:
    life = life_of(job, now_ns)
    return tuple(
        StepBar(step, *life.span(step.began_ns or step.ended_ns, step.ended_ns))
        for step in steps[-_STEPS_MAX:]
    )


class Node(NamedTuple):
    """A job of a flow and its place in the chart."""

    job: views.JobView
    x: int
    y: int


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Jobs that wait for each other, from left to right; ``lines`` are (x, y, x, y)."""

    nodes: tuple[Node, ...]
    lines: tuple[tuple[int, int, int, int], ...]
    width: int
    height: int


def graph_of(reader: engine.LogReader, job: int) -> Graph | None:
    """Return the flow of a job, NODES_MAX of its jobs at most; None for a lone job."""
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
    """Return each job's place, and the pieces of the lines to each job from its inputs.

    A piece leads from one column to the next, between their boxes, or across a column in a row of
    its own. So no line crosses a box.
    """
    columns: dict[int, int] = {}
    for _ in inputs:  # a path has at most this number of jobs
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


T = TypeVar("T")

#: Readers in memory: one of the present, and some of the latest moments of the past.
_READERS_MAX: Final = 3
#: Limits of the pages: tasks, and running jobs.
TASKS_MAX: Final = 500
_WORKING_MAX: Final = 200
_FAILURES_MAX: Final = 50
#: Dead letters that the first page groups, and seconds between two groupings.
_CAUSES_MAX: Final = 60
_CAUSES_SECONDS: Final = 10.0
#: Rates are the average of this number of minutes.
_RECENT: Final = 5


class Looks:
    """Answer questions about the log's current state, on a thread, one at a time.

    The reader is kept: folding a million jobs for each page takes seconds, folding the new records
    a millisecond.

    Args:
        path: directory of the log.
        begin: creates the log if its own program has not done so yet.
    """

    def __init__(self, path: str, begin: Callable[[], Awaitable[object]] | None = None) -> None:
        self.path = path
        self._begin = begin
        #: groups of failures on the first page
        self.causes = Causes(_CAUSES_MAX)
        self._turn = anyio.CapacityLimiter(1)
        #: by moment, "" for now; the most recently used is last
        self._readers: dict[str, engine.LogReader] = {}
        # A mounted page may never run its lifespan, so ``close`` may never be called.
        weakref.finalize(self, _close, self._readers).atexit = False

    async def read(self, work: Callable[[engine.LogReader], T], at: str = "") -> T:
        """Return the result of ``work`` on the log, now or at a moment.

        Raises:
            LogError: the log could not be read.
            UsageError: ``at`` is not a moment, or is in the future.
            MomentGone: compaction removed the records of that time.
        """
        if self._begin is not None:
            if not await anyio.to_thread.run_sync(Path(self.path, "taskq.json").exists):
                await self._begin()
            self._begin = None
        return await anyio.to_thread.run_sync(self._read, work, at, limiter=self._turn)

    def _read(self, work: Callable[[engine.LogReader], T], at: str) -> T:
        readers = self._readers
        try:
            reader = readers.pop(at, None)
            if reader is None:
                moment = engine.Moment.parse(at, time.time_ns(), "at") if at else None
                reader = engine.LogReader.open(self.path, at=moment)
            readers[at] = reader
            reader.refresh()
            if len(readers) > _READERS_MAX:
                oldest = next(moment for moment in readers if moment)
                readers.pop(oldest).close()
            return work(reader)
        except (errors.LogError, OSError):
            self.close()  # the log may have been moved or replaced: open it again next time
            raise

    def close(self) -> None:
        _close(self._readers)


def _close(readers: dict[str, engine.LogReader]) -> None:
    while readers:
        readers.popitem()[1].close()


class Causes:
    """Groups of failures, refreshed every ten seconds at most: grouping takes 0.25 seconds."""

    def __init__(self, count: int = hooks.LogStatus.dead_max) -> None:
        self._count = count
        self._dead = -1
        self._looked = float("-inf")
        self._failures: list[views.FailureGroup] = []

    def of(self, reader: engine.LogReader, dead: int) -> list[views.FailureGroup]:
        now = time.monotonic()
        if dead != self._dead and now - self._looked >= _CAUSES_SECONDS:
            self._failures = hooks.LogStatus(reader).group_failures(self._count)
            self._dead, self._looked = dead, now
        return self._failures


#: Last ends on the first page.
_ENDS_MAX: Final = 15
#: Parts of a log's status that the first page shows.
_NOW: Final = (
    "stats", "standing", "totals", "running", "lost", "owners", "workers", "slots", "orphans",
)  # fmt: skip


def first_of(reader: engine.LogReader, causes: Causes) -> dict[str, Any]:
    """Return the values of the first page: the status, the last hour, and causes of deaths."""
    status, hour = hooks.LogStatus(reader), reader.last_hour()
    totals, minutes = status.totals, hour.minutes()
    fares = fares_of(reader.lanes(), hour.paces(), 0)
    ended: Counter[str] = sum((Counter(minute.counts) for minute in minutes), Counter())
    return {
        **status.take(*_NOW),
        "ends": status.last_ends(_ENDS_MAX),
        "hour": chart_of(minutes, totals.ready + totals.scheduled, totals.running),
        "ended": ended,
        "fares": {fare.name: fare for fare in fares},
        "rates": sum(fare.rate for fare in fares),
        "failures": causes.of(reader, totals.dead),
    }


def job_page(reader: engine.LogReader, text: str) -> dict[str, Any]:
    """Return the values of a job's page: its status, and the charts of its life and its flow.

    Raises:
        JobNotFound: the log has no such job.
    """
    status, now_ns = hooks.JobStatus(reader, text), reader.now_ns
    return {
        **status.take("job", "why", "progress", "timeline", "flow", "ties"),
        "bars": bars_of(status.job, now_ns),
        "steps": step_bars_of(status.job, status.steps, now_ns),
        "steps_done": len(status.steps),
        "graph": graph_of(reader, status.lsn),
    }


class Fare(NamedTuple):
    """Figures of a queue or a task.

    Attributes:
        name: the queue or the task.
        queues: queues of its jobs.
        counts: number of jobs by state.
        line: points of ended attempts by minute; ``rate``: their current number per minute.
        p50_ns, p95_ns: durations of attempts in the last hour; 0 without attempts.
        success: share of these attempts that succeeded.
        failed_ns, failed: time and job of the last failed attempt.
        next_at: when a schedule enqueues the next job.
    """

    name: str
    queues: tuple[str, ...]
    counts: Counter[str]
    line: str
    rate: float
    p50_ns: int
    p95_ns: int
    success: float | None
    failed_ns: int
    failed: int
    next_at: datetime | None = None


def fares_of(
    lanes: Mapping[tuple[str, str], Counter[str]],
    paces: Mapping[tuple[str, str], views.LanePace],
    which: int,
) -> list[Fare]:
    """Return the figures of each queue, or with ``which`` 1 of each task, by name."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for lane in sorted({*lanes, *paces}):
        groups.setdefault(lane[which], []).append(lane)
    return [
        _fare(
            name,
            tuple(dict.fromkeys(queue for queue, _ in among)),
            sum((lanes[lane] for lane in among if lane in lanes), Counter[str]()),
            [paces[lane] for lane in among if lane in paces],
        )
        for name, among in groups.items()
    ]


def _fare(
    name: str, queues: tuple[str, ...], counts: Counter[str], paces: list[views.LanePace]
) -> Fare:
    minutes = [sum(at) for at in zip(*(pace.minutes for pace in paces), strict=True)]
    took = sorted(span for pace in paces for span in pace.took_ns)
    ends = sum((Counter(pace.counts) for pace in paces), Counter[str]())
    tried = ends["succeeded"] + ends["retried"] + ends["dead"]
    failed_ns, failed = max((pace.failed for pace in paces), default=(0, 0))
    return Fare(
        name=name,
        queues=queues,
        counts=counts,
        line=line_of(minutes),
        rate=sum(minutes[-_RECENT:]) / _RECENT,
        p50_ns=_quantile(took, 0.5),
        p95_ns=_quantile(took, 0.95),
        success=ends["succeeded"] / tried if tried else None,
        failed_ns=failed_ns,
        failed=failed,
    )


def _quantile(values: list[int], part: float) -> int:
    return values[min(int(len(values) * part), len(values) - 1)] if values else 0


def tasks_of(reader: engine.LogReader) -> list[Fare]:
    hour, ticks = reader.last_hour(), dict[str, datetime]()
    for schedule in hooks.LogStatus(reader).schedules:
        if schedule.next_ticks and not schedule.paused:
            at = schedule.next_ticks[0]
            ticks[schedule.task] = min(at, ticks.get(schedule.task, at))
    fares = [fare for fare in fares_of(reader.lanes(), hour.paces(), 1) if fare.name][:TASKS_MAX]
    looked = [fare.name for fare in fares if fare.counts["dead"] and not fare.failed]
    last = {name: reader.jobs({State.DEAD}, None, name, 1) for name in looked[:_FAILURES_MAX]}
    rows = []
    for fare in fares:
        job = next(iter(last.get(fare.name, ())), None)
        failed = (fare.failed_ns, fare.failed) if job is None else (job.settled_ns, job.lsn)
        rows.append(
            fare._replace(next_at=ticks.get(fare.name), failed_ns=failed[0], failed=failed[1])
        )
    return rows


class WorkerRow(NamedTuple):
    """A process: its jobs with their progress, attempts by minute, and bytes of memory."""

    owner: views.OwnerView
    jobs: list[tuple[views.JobView, views.ProgressView | None]]
    line: str
    rate: float
    memory: int


def workers_of(reader: engine.LogReader) -> dict[str, Any]:
    work = reader.last_hour().work()
    jobs: dict[int, list[views.JobView]] = {}
    for job in reader.jobs({State.RUNNING}, None, None, _WORKING_MAX):
        jobs.setdefault(job.attempts[-1].owner if job.attempts else 0, []).append(job)
    rows = [
        WorkerRow(
            owner,
            [(job, reader.progress(job.lsn)) for job in jobs.get(owner.owner, ())],
            line_of(work.get(owner.owner, ())),
            sum(work.get(owner.owner, ())[-_RECENT:]) / _RECENT,
            _memory_of(owner),
        )
        for owner in reader.owners()
    ]
    gone = [] if reader.journal.is_past else reader.gone()
    return {"rows": rows, "gone": gone, "controls": reader.controls()}


def _memory_of(owner: views.OwnerView) -> int:
    """Return the resident memory of a process of this machine, in bytes; 0 if not known."""
    if not owner.alive or owner.host != socket.gethostname():
        return 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = Path(f"/proc/{owner.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return 0


#: Seconds of counting old records per look, until the whole log is counted.
_HISTORY_SECONDS: Final = 0.05
#: Spans of the history: length of a bar, number of bars, minutes between two labels of the axis.
_SPANS: Final = {
    "day": (15 * _MINUTE_NS, 96, 180),
    "week": (120 * _MINUTE_NS, 84, 1_440),
    "month": (1_440 * _MINUTE_NS, 30, 7_200),
}
SPANS: Final = tuple(_SPANS)
_HOUR_NS: Final = 60 * _MINUTE_NS
#: Limits of the history: rows of tasks and of causes, jobs of one act; shades of the week.
_ROWS_MAX: Final = 50
_IDS_MAX: Final = 5
_SHADES: Final = 4


def history_of(reader: engine.LogReader, span: str, task: str) -> dict[str, Any]:
    """Return the values of the page of a day, a week or a month, for the log or one task."""
    known, is_whole = reader.history(_HISTORY_SECONDS)
    step_ns, count, mark = _SPANS[span]
    if task and span == "day":  # a task is counted by the hour
        step_ns, count = _HOUR_NS, 24
    first = reader.now_ns // step_ns - count + 1
    # A task without counts has an empty history.
    own = known.tasks.get(task, _Empty()) if task else None
    cells = [_Bucket() for _ in range(count)]
    unit_ns, parts = _parts(known, span, own)
    for at, (counts, times) in parts.items():
        number = at * unit_ns // step_ns - first
        if 0 <= number < count:
            cells[number].add(counts, times)
    minutes = [
        views.Minute((first + number) * step_ns, cell.counted())
        for number, cell in enumerate(cells)
    ]
    chart, took = chart_of(minutes, 0, 0, mark), [cell.quantiles() for cell in cells]
    most = max((p95 for _, p95 in took), default=0)
    every = sum((Counter(minute.counts) for minute in minutes), Counter[str]())
    whole = _Bucket()
    for cell in cells:
        whole.add([], cell.times)
    begin_ns, columns = first * step_ns, chart.columns if chart else ()
    heat, heat_most = ([], 0) if task else _heat(known, reader.now_ns)
    return {
        "is_whole": is_whole, "is_live": not is_whole, "span": span, "task": task, "chart": chart,
        "counted_ns": max(known.minutes, default=0) * _MINUTE_NS, "ended": every,
        "begun_ns": round(reader.created_at.timestamp() * values.SECOND_NS),
        "rows": [
            (column, *pair) for column, pair in zip(columns, took, strict=False)
        ],
        "times": (
            _points([p50 for p50, _ in took], most), _points([p95 for _, p95 in took], most), most
        )
        if task and most
        else None,
        "p50": whole.quantiles()[0], "p95": whole.quantiles()[1],
        "heat": heat, "heat_most": heat_most,
        "causes": _causes_since(known, span, begin_ns, step_ns, count, task),
        "busiest": [] if task else _busiest(known, span, begin_ns, step_ns, count),
    }  # fmt: skip


class _Empty(NamedTuple):
    """Counts of an unknown task."""

    hours: Mapping[int, Any] = {}
    days: Mapping[int, Any] = {}


class _Bucket:
    """Counts and durations of one bar."""

    def __init__(self) -> None:
        self.counts = [0] * len(views.History.counted)
        self.times: dict[int, int] = {}

    def add(self, counts: Sequence[int], times: Mapping[int, int]) -> None:
        for number, count in enumerate(counts):
            self.counts[number] += count
        for number, count in times.items():
            self.times[number] = self.times.get(number, 0) + count

    def counted(self) -> dict[str, int]:
        return {
            name: count
            for name, count in zip(views.History.counted, self.counts, strict=True)
            if count
        }

    def quantiles(self) -> tuple[int, int]:
        return views.History.quantile(self.times, 0.5), views.History.quantile(self.times, 0.95)


def _parts(
    known: views.History, span: str, own: Any
) -> tuple[int, Mapping[int, tuple[Sequence[int], Mapping[int, int]]]]:
    """Return the length of a unit, and the counts by unit: of ``own`` if given, else of all."""
    if own is not None:
        return (24 * _HOUR_NS, own.days) if span == "month" else (_HOUR_NS, own.hours)
    unit_ns, counts = {
        "day": (_MINUTE_NS, known.minutes),
        "week": (_HOUR_NS, known.hours),
        "month": (24 * _HOUR_NS, known.days),
    }[span]
    return unit_ns, {at: (counted, {}) for at, counted in counts.items()}


def _heat(known: views.History, now_ns: int) -> tuple[list[tuple[int, int, int, int, int]], int]:
    """Return (begin, weekday, hour, ends, shade) of the last 168 hours in UTC, and most ends."""
    last = now_ns // _HOUR_NS
    ends = {at: sum(known.hours.get(at, [0])[1:]) for at in range(last - 167, last + 1)}
    most = max(ends.values())
    if not most:
        return [], 0
    return [
        (at * _HOUR_NS, (at // 24 + 3) % 7, at % 24, count, -(-count * _SHADES // most))
        for at, count in ends.items()
    ], most


def _causes_since(
    known: views.History, span: str, begin_ns: int, step_ns: int, count: int, task: str
) -> list[tuple[str, str, str, int, str]]:
    rows = []
    unit_ns, part = (24 * _HOUR_NS, 1) if span == "month" else (_HOUR_NS, 0)
    for (name, error, fingerprint), parts in known.causes.items():
        line = _line(parts[part], unit_ns, begin_ns, step_ns, count)
        if any(line) and task in ("", name):
            rows.append((error, name, fingerprint, sum(line), line_of(line)))
    return sorted(rows, key=lambda row: -row[3])[:_ROWS_MAX]


def _line(
    counts: Mapping[int, int], unit_ns: int, begin_ns: int, step_ns: int, count: int
) -> list[int]:
    line = [0] * count
    for at, number in counts.items():
        place = (at * unit_ns - begin_ns) // step_ns
        if 0 <= place < count:
            line[place] += number
    return line


def _busiest(
    known: views.History, span: str, begin_ns: int, step_ns: int, count: int
) -> list[tuple[str, int, int, int, int, str]]:
    rows = []
    for name, own in known.tasks.items():
        unit_ns, parts = _parts(known, span, own)
        whole, ends = _Bucket(), {}
        for at, (counts, times) in parts.items():
            if at * unit_ns >= begin_ns:
                whole.add(counts, times)
                ends[at] = sum(counts[1:])
        line = _line(ends, unit_ns, begin_ns, step_ns, count)
        counted = whole.counted()
        failed = counted.get("retried", 0) + counted.get("dead", 0)
        if counted:
            ended = sum(whole.counts[1:])
            rows.append((name, ended, failed, *whole.quantiles(), line_of(line)))
    return sorted(rows, key=lambda row: -row[1])[:_ROWS_MAX]


def acts_of(reader: engine.LogReader) -> dict[str, Any]:
    """Return the values of the audit: the latest acts, grouped by moment."""
    known, is_whole = reader.history(_HISTORY_SECONDS)
    together: dict[tuple[int, str], list[int]] = {}
    for time_ns, job, text in known.acts:
        together.setdefault((time_ns, text), []).extend([job] if job else [])
    return {
        "is_whole": is_whole,
        "is_live": not is_whole,
        "counted_ns": max(known.minutes, default=0) * _MINUTE_NS,
        "acts": [
            (
                time_ns,
                *text.partition(": ")[::2],
                [reader.tag.id(job) for job in jobs[:_IDS_MAX]],
                len(jobs),
            )
            for (time_ns, text), jobs in reversed(together.items())
        ],
    }
