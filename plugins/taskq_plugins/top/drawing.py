"""A look at the log, and the state of the screen, as lines of text: nothing else is known here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from taskq import State
from taskq import views as documents
from taskq.cli import render
from taskq.text import flat, hidden
from taskq_plugins.looks.reading import Failure, Seen
from taskq_plugins.top.screen import ACTS_HELP, HELP, Row, Screen
from taskq_plugins.top.seen import SPARKS_MAX, Picture

if TYPE_CHECKING:
    from taskq.views import JobView, QueueStats

_BARS: Final = " ▁▂▃▄▅▆▇█"
#: Fewer columns leave no room for what is only nice to have.
WIDE: Final = 80
_BAR: Final = 8
#: The row under the cursor; its cells give up their own colours, or it would not be one bar.
_CHOSEN: Final = "black on cyan"
_COLOURS: Final = {
    State.SUCCEEDED: "green", State.DEAD: "red", State.CANCELLED: "dim", State.EXPIRED: "yellow",
}  # fmt: skip


_LEVELS: Final = {"bad": "bold red", "slow": "yellow", "well": "green"}


def draw(picture: Picture, screen: Screen, width: int, height: int) -> RenderableType:
    chosen = screen.row(picture)
    parts: list[RenderableType] = [*_header(picture), _text()]
    sections = (
        ("QUEUES", [_queue(queue, picture, width) for queue in picture.queues]),
        (
            "RUNNING",
            [_running(job, progress, picture.time_ns, width) for job, progress in picture.running],
        ),
        ("LAST ENDS", [_ended(job, picture.time_ns) for job in picture.ended]),
        ("FAILURES", [_failure(failure, picture.time_ns) for failure in picture.failures]),
    )
    rows = screen.rows(picture)
    kept = set(map(_place, rows))
    room = max(height - len(parts) - 2, 4)
    for title, lines in sections:
        shown = [(row, texts) for row, texts in lines if _place(row) in kept]
        if not shown or room < 2:  # noqa: PLR2004 - a title and a row
            continue
        shown = shown[: room - 1]
        room -= len(shown) + 1
        parts.append(_section(title, shown, chosen))
    if not rows:
        parts.append(_text("nothing fits the filter" if screen.filter else "no jobs yet", "dim"))
    parts += [_text(), last_line(screen, width)]
    return Group(*parts)


def draw_job(seen: Seen, screen: Screen, time_ns: int, width: int, height: int) -> RenderableType:
    job = seen.job
    head = _text(f"{job.job_id}  ", "bold")
    head.append(str(job.state), _COLOURS.get(job.state, "cyan"))
    head.append(flat(f"  {job.task or '-'}  queue {job.queue}  priority {job.priority}"))
    lines: list[RenderableType] = [_cut(head)]
    if seen.why is not None and (screen.wants_why or job.state not in _COLOURS):
        lines.append(_text(seen.why.text, "yellow"))
    if seen.progress is not None:
        lines.append(_text(render.progress(seen.progress, time_ns)))
    table = Table.grid(padding=(0, 2))
    for event in seen.timeline[-max(height // 2, 3) :]:
        due = render.due(event.due_ns, event.time_ns) if event.due_ns else ""
        note = ": ".join(part for part in (due, event.reason.partition("\n")[0]) if part)
        when = (documents.moment(event.time_ns) or "")[11:23]
        table.add_row(when, event.kind, str(event.attempt or ""), _cut(_text(note)))
    lines += [_text(), table]
    reason = job.reason.splitlines()
    room = height - len(seen.timeline) - len(lines) - 3
    if reason and room > 0:
        lines += [_text(), *(_cut(_text(line, "red")) for line in reason[-room:])]
    return Group(*lines, _text(), last_line(screen, width))


def last_line(screen: Screen, width: int) -> Text:
    """Return what is typed or asked; else what came of the last act, or what the keys do."""
    if screen.typed is not None:
        what = "filter" if screen.typed_for == "/" else 'as it was ("2h" ago, a time; empty: now)'
        return _cut(_text(f"{what}: {screen.typed}▏", "bold"))
    if screen.asked is not None:
        return _cut(_text(f"{screen.asked}? y/n", "bold yellow"))
    if screen.said:
        return _cut(_text(screen.said, "yellow"))
    acts = "" if screen.read_only else f"  {ACTS_HELP}"
    shown = f"filter {screen.filter!r}  " if screen.filter else ""
    return _cut(_text(f"{shown}{HELP}{acts}" if width >= WIDE else f"{shown}{HELP}", "dim"))


def _header(picture: Picture) -> list[Text]:
    ready, running = (
        sum(getattr(q, name) for q in picture.queues) for name in ("ready", "running")
    )
    head = _text(f"as it was {picture.at}  " if picture.at else "", "bold magenta")
    head.append(flat(picture.path), "bold")
    slots = f"{running} of {picture.slots} slots" if picture.slots else f"{running} running"
    workers = "1 worker" if picture.workers == 1 else f"{picture.workers} workers"
    facts = f"{slots}  {ready} ready  {render.size(picture.size)}, {render.size(picture.free)} free"
    line = _text(facts if picture.at else f"{workers}  {facts}")
    remarks = picture.standing.remarks
    return [_cut(head), _cut(line), *(_cut(_text(text, _LEVELS[level])) for level, text in remarks)]


def _place(row: Row) -> str | int:
    return row if isinstance(row, str) else id(row)


def _section(
    title: str, lines: Sequence[tuple[Row, list[Text]]], chosen: Row | None
) -> RenderableType:
    table = Table.grid(padding=(0, 1), expand=True)
    columns = len(lines[0][1])
    for number in range(columns):
        is_last = number == columns - 1
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1 if is_last else None)
    for row, texts in lines:
        is_chosen = chosen is not None and _place(row) == _place(chosen)
        cells = [_text(text.plain) for text in texts] if is_chosen else texts
        table.add_row(*cells, style=_CHOSEN if is_chosen else "")
    return Group(_text(title, "bold cyan"), table)


def _queue(queue: QueueStats, picture: Picture, width: int) -> tuple[Row, list[Text]]:
    counts = [("ready", "cyan"), ("running", "green"), ("dead", "red"), ("scheduled", "dim")]
    cells = [
        _text(f"{getattr(queue, name)} {name}", colour if getattr(queue, name) else "dim")
        for name, colour in (counts if width >= WIDE else counts[:3])
    ]
    bars = SPARKS_MAX if width >= WIDE else _BAR
    age = queue.oldest_ready_seconds
    oldest = f"oldest {render.duration(int(age * 1e9))}" if age is not None else ""
    note = _text("paused" if queue.paused else oldest, "yellow" if queue.paused else "")
    return queue.queue, [
        _text(queue.queue),
        *cells,
        _text(spark(picture.sparks.get(queue.queue, ()), bars), "green"),
        note,
    ]


def _running(job: JobView, progress: object, time_ns: int, width: int) -> tuple[Row, list[Text]]:
    begun = job.attempts[-1].started_ns if job.attempts else job.enqueued_ns
    fraction = getattr(progress, "fraction", None)
    bar = _text()
    if fraction is not None:
        full = round(fraction * _BAR)
        bar = _text("█" * full + "░" * (_BAR - full) + f" {fraction:4.0%}", "green")
    message = getattr(progress, "message", "")
    state = "" if job.state is State.RUNNING else str(job.state)
    cells = [
        _text(job.job_id),
        _text(job.task or "-"),
        _text(state or render.duration(max(time_ns - begun, 0)), "dim"),
        bar,
        _text(message),
    ]
    return job, cells if width >= WIDE else [cells[0], cells[1], cells[2], bar]


def _ended(job: JobView, time_ns: int) -> tuple[Row, list[Text]]:
    return job, [
        _text(job.job_id),
        _text(job.task or "-"),
        _text(str(job.state), _COLOURS.get(job.state, "")),
        _text(render.when(job.settled_ns, time_ns), "dim"),
        _text(job.reason.partition("\n")[0], "dim"),
    ]


def _failure(failure: Failure, time_ns: int) -> tuple[Row, list[Text]]:
    error = ": ".join(part for part in (failure.error, failure.message) if part)
    return failure, [
        _text(f"{len(failure.jobs)} of", "bold red"),
        _text(failure.task or "-"),
        _text(render.when(failure.last_ns, time_ns), "dim"),
        _text(error),
    ]


def spark(counts: Sequence[int], width: int) -> str:
    """Return the last counts as bars, the latest at the right; blanks while there are none."""
    shown = counts[-width:]
    most = max(shown, default=0) or 1
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in shown).rjust(width)


def _text(text: str = "", style: str = "") -> Text:
    """Return a text in one line, which holds what strangers wrote, to be seen by others, too."""
    return Text(flat(hidden(text)), style)


def _cut(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
