"""Print a worker's events from a separate thread, so that a slow terminal slows no job."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from math import inf
from typing import Final, TextIO

from taskq import Delivery, engine, text, values, views
from taskq.cli import silence
from taskq_workers.events import JobEnd, JobFinished

#: Most lines in one second; further events are counted and summed up in one line.
LINES_PER_SECOND_MAX: Final = 200
#: Time between two writes.
TICK_SECONDS: Final = 0.05
_SECOND: Final = 1.0
#: How long ``close`` waits for a blocked terminal.
_CLOSE_SECONDS: Final = 1.0


class LineReporter:
    """Pass it to a worker as ``on_event``. It never blocks its caller; when idle, it sleeps.

    Nothing is printed before ``open``, so that the banner comes first. Memory is bounded: only the
    thread renews the quota of lines, so while the output is blocked, events are only counted.
    """

    def __init__(self, output: TextIO, style: Style) -> None:
        self._output = output
        self._style = style
        self._lines: deque[str | tuple[float, JobFinished]] = deque()
        self._quota = LINES_PER_SECOND_MAX
        self._surplus: Counter[JobEnd] = Counter()
        self._news = threading.Event()
        self._closing = threading.Event()
        self._broken = False
        self._thread: threading.Thread | None = None

    def open(self, banner: list[str]) -> None:
        self._lines.extendleft(reversed(banner))
        self._news.set()
        self._thread = engine.start_thread(self._work, "taskq-report")

    def __call__(self, event: JobFinished) -> None:
        if self._quota > 0:
            self._quota -= 1
            self._lines.append((time.time(), event))
        else:
            self._surplus[event.outcome] += 1
        if not self._news.is_set():
            self._news.set()

    def say(self, line: str) -> None:
        self._lines.append(text.flat(line))
        self._news.set()

    def close(self) -> None:
        """Write the remaining lines, unless the output is blocked. Legal twice, and before open."""
        self._closing.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _work(self) -> None:
        window_end = time.monotonic() + _SECOND
        while True:
            self._news.wait(max(window_end - time.monotonic(), 0) if self._surplus else None)
            self._news.clear()
            closing = self._closing.is_set()
            now = time.monotonic()
            lines = self._take_lines()
            if closing or now >= window_end:
                window_end = now + _SECOND
                lines += self._take_summary()
            self._write(lines)
            if closing:
                return
            self._closing.wait(TICK_SECONDS)

    def _take_lines(self) -> list[str]:
        lines = []
        while self._lines:
            item = self._lines.popleft()
            lines.append(item if isinstance(item, str) else job_line(item[1], item[0], self._style))
        return lines

    def _take_summary(self) -> list[str]:
        counts, self._surplus = self._surplus, Counter()
        self._quota = LINES_PER_SECOND_MAX
        return [summary_line(counts)] if counts else []

    def _write(self, lines: list[str]) -> None:
        if not lines or self._broken:
            return
        try:
            self._output.write("\n".join(lines) + "\n")
            self._output.flush()
        except (OSError, ValueError):
            # The reader is gone. The jobs matter more than the lines.
            self._broken = True
            silence(self._output)


# The worker's output on a terminal: the banner, and one line for each job.

_TASKS_SHOWN: Final = 6
_HELD_SHOWN: Final = 5
_ENDED: Final = {
    engine.kinds.SUCCESS: "succeeded",
    engine.kinds.DEATH: "dead",
    engine.kinds.RETRY: "retried",
    engine.kinds.RELEASE: "given back",
    engine.kinds.CANCEL: "cancelled",
}
_REASON_CHARACTERS_MAX: Final = 160
_GREEN, _RED, _YELLOW, _DIM, _BOLD, _RESET = (f"\x1b[{code}m" for code in (32, 31, 33, 2, 1, 0))


@values.dataclass(frozen=True, slots=True, kw_only=True)
class BannerFacts:
    """Facts in the banner."""

    version: str
    pid: int
    directory: str
    #: whether the log has never had a job
    is_empty: bool = False
    durability: str
    #: jobs that ran in processes that died, and are ready again
    recovered: int
    #: None: all
    queues: frozenset[str] | None
    tasks: frozenset[str]
    concurrency: int
    ready_seconds: float
    #: where the jobs run, "" for here
    executor: str = ""
    #: the language that runs plain jobs, with its build
    plain_jobs: str = "Python"
    #: files of the settings, and variables that are no setting
    settings: str = ""


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Abilities of the output."""

    colours: bool
    #: the signs for succeeded, dead, and due again
    signs: tuple[str, str, str] = ("✓", "✗", "↻")

    def paint(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_RESET}" if self.colours else text


def style_for(encoding: str, *, colours: bool) -> Style:
    style = Style(colours=colours)
    try:
        "".join(style.signs).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return Style(colours=colours, signs=("ok", "DEAD", "again"))
    return style


def banner(facts: BannerFacts, style: Style) -> list[str]:
    head = f"taskq {facts.version} worker, process {facts.pid}"
    ready = f"in {facts.ready_seconds * 1e3:.0f} ms, {facts.concurrency} at a time; Ctrl-C drains"
    return [style.paint(head, _BOLD), *particulars(facts, style), _row("ready", ready, style)]


def particulars(facts: BannerFacts, style: Style) -> list[str]:
    jobs = "job" if facts.recovered == 1 else "jobs"
    settings = f"; settings: {facts.settings}" if facts.settings else ""
    rows = {
        "directory": f"{facts.directory} (new, empty)" if facts.is_empty else facts.directory,
        "durability": f"{facts.durability}{settings}",
        "recovered": f"{facts.recovered} in-flight {jobs} of processes that died",
        "queues": "all" if facts.queues is None else ", ".join(sorted(facts.queues)),
        "tasks": values.listed(sorted(facts.tasks), _TASKS_SHOWN),
        **({"executor": facts.executor} if facts.executor else {"plain jobs": facts.plain_jobs}),
    }
    return [_row(name, value, style) for name, value in rows.items()]


def _row(name: str, value: str, style: Style) -> str:
    return f"  {style.paint(f'{name:<11}', _DIM)} {text.flat(value)}"


def ready_line(facts: BannerFacts, style: Style) -> str:
    head = style.paint(f"worker process {facts.pid}", _BOLD)
    recovered = f", recovered {facts.recovered} in-flight" if facts.recovered else ""
    return f"{head} ready in {facts.ready_seconds * 1e3:.0f} ms{recovered}"


def drain_lines(
    held: Sequence[tuple[Delivery, float | None]], seconds: float, process: str = ""
) -> list[str]:
    if not held:
        return [f"{process}stopping"]
    limit = "as long as it takes" if seconds == inf else f"{seconds:g} s"
    verb = "gets" if len(held) == 1 else "get"
    head = f"{process}draining: {_running(held)} {verb} {limit} to finish; once more cancels"
    return [head, *held_lines(held)]


def overdue_lines(
    held: Sequence[tuple[Delivery, float | None]], seconds: float, process: str = ""
) -> list[str]:
    """Return the lines about jobs that are cancelled because the drain's time is over."""
    head = f"{process}{seconds:g} s are over: {_running(held)} cancelled and given back"
    return [head, *held_lines(held)]


def held_lines(held: Sequence[tuple[Delivery, float | None]]) -> list[str]:
    ordered = sorted(held, key=lambda pair: -(pair[1] or 0.0))
    lines = [
        f"  {text.flat(job.task)}  {job.job_id}"
        + ("" if seconds is None else f"  running for {spoken_seconds(seconds)}")
        for job, seconds in ordered[:_HELD_SHOWN]
    ]
    more = len(ordered) - _HELD_SHOWN
    return [*lines, f"  and {more} more"] if more > 0 else lines


def stopped_line(
    ended: Mapping[engine.Kind, int],
    seconds: float,
    drained_seconds: float | None,
    process: str = "",
) -> str:
    """Sum up a worker's life: ``stopped after 2 min, drained in 0.3 s: 7 jobs succeeded``."""
    counts = [(ended[kind], word) for kind, word in _ENDED.items() if ended.get(kind)]
    jobs = " job " if counts and counts[0][0] == 1 else " jobs "
    ends = ", ".join(
        f"{_grouped(count)}{' ' if number else jobs}{word}"
        for number, (count, word) in enumerate(counts)
    )
    drained = "" if drained_seconds is None else f", drained in {spoken_seconds(drained_seconds)}"
    return f"{process}stopped after {spoken_seconds(seconds)}{drained}: {ends or 'no job ran'}"


def rest_of(waiting: views.Waiting, due_ns: int | None, now_ns: int) -> str:
    """Return the jobs left by a burst: ``; 2 wait, 3 are due later, the first in 5m``, or ""."""
    first = "" if due_ns is None else f", the first in {values.spoken(max(due_ns - now_ns, 0))}"
    return f"; {waiting.text()}{first if waiting.later else ''}" if any(waiting) else ""


def _running(held: Sequence[object]) -> str:
    return f"{len(held)} running job{'' if len(held) == 1 else 's'}"


def job_line(event: JobFinished, moment: float, style: Style) -> str:
    """Return the line of one job: time, sign, task, id, duration, attempt, and the failure."""
    succeeded, dead, again = style.signs
    sign, colour = {
        "succeeded": (succeeded, _GREEN),
        "dead": (dead, _RED),
        "retried": (again, _YELLOW),
        "released": (again, _YELLOW),
        "cancelled": (dead, _YELLOW),
    }[event.outcome]
    clock = time.strftime("%H:%M:%S", time.localtime(moment))
    parts = [
        style.paint(clock, _DIM),
        style.paint(sign, colour),
        text.flat(event.task),
        event.job_id,
        spoken_seconds(event.seconds),
    ]
    if event.outcome in {"dead", "retried"} or event.attempt > 1:
        of = f"/{event.attempts_max}" if event.attempts_max else ""
        parts.append(f"attempt {event.attempt}{of}")
    note = _note(event)
    return "  ".join([" ".join(parts[:3]), *parts[3:], *([note] if note else [])])


def summary_line(counts: Mapping[JobEnd, int]) -> str:
    """Return the line for events above the quota: ``… 12 345 jobs succeeded, 3 dead``."""
    parts = [f"{_grouped(count)} {outcome}" for outcome, count in counts.items() if count]
    first, *others = parts
    number, word = first.rsplit(" ", 1)
    return ", ".join([f"… {number} {'job' if number == '1' else 'jobs'} {word}", *others])


def _note(event: JobFinished) -> str:
    notes = []
    if event.outcome == "released":
        delay = event.delay_seconds
        notes.append(f"again in {spoken_seconds(delay)}" if delay else "given back")
    elif event.outcome == "cancelled":
        notes.append("cancelled")
    elif event.outcome == "retried":
        notes.append(f"again in {spoken_seconds(event.delay_seconds or 0.0)}")
    if event.reason:
        reason = text.flat(text.hidden(event.reason.partition("\n")[0]))
        if len(reason) > _REASON_CHARACTERS_MAX:
            reason = f"{reason[:_REASON_CHARACTERS_MAX]} ..."
        notes.append(reason)
    return "  ".join(notes)


def spoken_seconds(seconds: float) -> str:
    if seconds < 0.000_01:  # noqa: PLR2004
        return "<0.01 ms"
    if seconds < 0.01:  # noqa: PLR2004
        return f"{seconds * 1e3:.2f} ms"
    if seconds < 0.9995:  # noqa: PLR2004 - from here on it would round to 1000 ms
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 120:  # noqa: PLR2004
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min"


def _grouped(count: int) -> str:
    return f"{count:,}".replace(",", " ")
