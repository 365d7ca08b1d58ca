"""Draw what a log tells: bars, lines and boxes with their places, which a template makes SVG."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from taskq.values import SECOND_NS, dataclass

if TYPE_CHECKING:
    from taskq.engine import LogReader, StepView
    from taskq.views import JobView, Minute

#: From the bottom up, as colours name them; "enqueued" is drawn as a line.
_STACKED: Final = ("succeeded", "retried", "cancelled", "expired", "dead")
_BAR: Final = 16
_HEIGHT: Final = 100
#: A line so small that it stands in a row of text.
_LINE_WIDTH, _LINE_HEIGHT = 120, 20
#: What came is drawn up to so many times what ended.
_CAME_TIMES: Final = 2
#: Minutes between two marks of the hour's axis.
_MARK: Final = 10
_MINUTE_NS: Final = 60 * SECOND_NS
#: Attempts and steps of a job that are drawn, in thousandths of its life; the least is seen, too.
_BARS_MAX: Final = 30
_STEPS_MAX: Final = 200
_BAR_UNITS: Final = 1_000
_BAR_LEAST: Final = 4
#: Jobs of one flow that are drawn, and how far apart.
NODES_MAX: Final = 40
_BOX: Final = 200
_COLUMN: Final = 250
_ROW: Final = 48


class Column(NamedTuple):
    """One minute of the picture: boxes as (kind, y, height), and what they stand for."""

    x: int
    boxes: tuple[tuple[str, float, float], ...]
    counts: dict[str, int]
    begin_ns: int
    waiting: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The last hour, a column a minute.

    Attributes:
        top: what the upper edge stands for: the most that ended in a minute, or more that came.
        came: points of what came, ``came_most`` at most: of a bulk that is far more than what ends
            the line is cut at the edge, or nothing else were seen.
        waiting, running: points of how many there were, ``most`` at most.
        marks: (x, begin of the minute) where the axis is named.
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


def chart_of(minutes: list[Minute], waiting: int, running: int) -> Chart | None:
    """Return the picture of the last hour; None where nothing happened in it.

    Args:
        minutes: what happened.
        waiting: how many jobs wait at the end of it.
        running: how many run then.
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
            if not column.begin_ns // _MINUTE_NS % _MARK
        ),
        width=len(minutes) * _BAR,
    )


def _boxes(minute: Minute, top: int) -> list[tuple[str, float, float]]:
    y, boxes = float(_HEIGHT), []
    for kind in _STACKED:
        if count := minute.counts.get(kind):
            height = max(round(_HEIGHT * count / top, 1), 1.0)  # what happened at all is seen
            y = round(y - height, 1)
            boxes.append((kind, max(y, 0.0), height))
    return boxes


def _points(values: Sequence[int], top: int, step: float = _BAR, height: int = _HEIGHT) -> str:
    levels = (round(height * (1 - value / top), 1) for value in values)
    return " ".join(f"{step * (at + 0.5):g},{level:g}" for at, level in enumerate(levels))


def line_of(values: Sequence[int]) -> str:
    """Return the points of a small line; "" where there is nothing to draw."""
    if not any(values):
        return ""
    pairs = [sum(values[at : at + 2]) for at in range(0, len(values), 2)]
    step = _LINE_WIDTH / len(pairs)
    inside = _points(pairs, max(pairs), step, _LINE_HEIGHT)
    return f"{step / 2:g},{_LINE_HEIGHT} {inside} {_LINE_WIDTH - step / 2:g},{_LINE_HEIGHT}"


class Bar(NamedTuple):
    """An attempt of a job: how long it waited before and ran, in thousandths of the job's life."""

    kind: str
    wait: float
    start: float
    width: float
    waited_ns: int
    ran_ns: int
    number: int


class Life(NamedTuple):
    """The time that is drawn of a job: since it came, or since its latest attempts began."""

    first_ns: int
    end_ns: int

    def place(self, moment_ns: int) -> float:
        return max(_BAR_UNITS * (moment_ns - self.first_ns) / (self.end_ns - self.first_ns), 0.0)

    def span(self, start_ns: int, end_ns: int) -> tuple[float, float]:
        """Return where a span begins and how wide it is: the shortest is seen, too."""
        start = min(self.place(start_ns), _BAR_UNITS - _BAR_LEAST)
        return round(start, 1), round(max(self.place(end_ns) - start, _BAR_LEAST), 1)


def life_of(job: JobView, now_ns: int) -> Life:
    attempts = job.attempts[-_BARS_MAX:]
    is_cut = len(attempts) < len(job.attempts)
    first_ns = attempts[0].started_ns if is_cut else job.enqueued_ns
    return Life(first_ns, max(job.settled_ns or now_ns, first_ns + 1))


def bars_of(job: JobView, now_ns: int) -> list[Bar]:
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
    """A step that is done, and where it stands in the job's life, in thousandths."""

    step: StepView
    start: float
    width: float


def step_bars_of(job: JobView, steps: Sequence[StepView], now_ns: int) -> tuple[StepBar, ...]:
    life = life_of(job, now_ns)
    return tuple(
        StepBar(step, *life.span(step.began_ns or step.ended_ns, step.ended_ns))
        for step in steps[-_STEPS_MAX:]
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
