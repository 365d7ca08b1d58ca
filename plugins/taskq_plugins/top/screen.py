"""``taskq top``: read a log, draw it on a terminal, and carry out commands typed as keys."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import select
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

import taskq.views as documents
from taskq import State, TaskQ, engine, errors, hooks, values
from taskq.cli import WrongUsage, render
from taskq.hooks import LogStatus
from taskq.text import flat, hidden
from taskq_plugins.looks.reading import Causes

#: Rows of last ends.
_ENDS_MAX: Final = 8
#: Looks in one sparkline.
SPARKS_MAX: Final = 20
#: Seconds between looks at a log without new records, whose ages and leases still change.
_IDLE_SECONDS: Final = 5.0


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One look at the log.

    Attributes:
        status: status of the log at this time.
        at: moment of the past as typed; "" for now.
        time_ns: wall time of the look, or of the moment.
        free: free bytes of the disk.
        sparks: ends between two looks, by queue.
        ended: the latest ends, newest first.
        failures: groups of dead letters.
    """

    status: LogStatus
    at: str
    time_ns: int
    free: int
    sparks: dict[str, tuple[int, ...]]
    ended: tuple[documents.JobView, ...]
    failures: tuple[documents.FailureGroup, ...]

    @property
    def queues(self) -> tuple[documents.QueueStats, ...]:
        return self.status.stats.queues


class Watcher:
    """Looks at a log repeatedly; each look reads only new records.

    Args:
        reader: reader of the log, now or at a moment.
        at: the moment as typed; "" for now.
    """

    def __init__(self, reader: engine.LogReader, at: str = "") -> None:
        self._reader = reader
        self._at = at
        self._last: Picture | None = None
        self._stand: object = None
        self._looked = float("-inf")
        self._causes = Causes()
        self._ended: dict[str, int] = {}
        self._sparks: dict[str, deque[int]] = {}

    def look(self) -> Picture:
        """Return the log's current picture, or its picture at the moment.

        Raises:
            LogError: the log was removed, or cannot be read.
        """
        reader, now = self._reader, time.monotonic()
        if self._at and self._last is not None:
            return self._last
        reader.refresh()
        end = reader.journal.end()
        stand = end.segment, end.offset
        is_still = stand == self._stand and not (self._last and self._last.status.running)
        if self._last is not None and is_still and now - self._looked < _IDLE_SECONDS:
            self._note_sparks(self._last.queues)
            return self._last
        self._stand, self._looked = stand, now
        status = LogStatus(reader)
        status.take("stats", "standing", "running", "owners")
        self._note_sparks(status.stats.queues)
        self._last = Picture(
            status=status,
            at=self._at,
            time_ns=reader.now_ns,
            free=shutil.disk_usage(reader.path).free,
            sparks={name: tuple(line) for name, line in self._sparks.items()},
            ended=tuple(status.last_ends(_ENDS_MAX)),
            failures=tuple(self._causes.of(reader, status.totals.dead)),
        )
        return self._last

    def _note_sparks(self, queues: tuple[documents.QueueStats, ...]) -> None:
        for queue in queues:
            ended = queue.succeeded + queue.dead + queue.cancelled + queue.expired
            before = self._ended.get(queue.queue, ended)
            self._ended[queue.queue] = ended
            line = self._sparks.setdefault(queue.queue, deque(maxlen=SPARKS_MAX))
            line.append(max(ended - before, 0))


#: Subject of a row: a queue's name, a job, or failures of one kind.
Row: TypeAlias = "str | documents.JobView | documents.FailureGroup"
Verb = Literal["cancel", "requeue", "run now", "pause", "resume"]

#: One press of an arrow key moves this far through the past.
_STEP_NS: Final = 60 * values.SECOND_NS
_VERBS: Final[dict[str, Verb]] = {"c": "cancel", "r": "requeue", "n": "run now", "p": "pause"}
#: Keys of each screen, for its last line.
HELP: Final = "enter open  w why  / filter  t time  q quit"
ACTS_HELP: Final = "c cancel  r requeue  n run now  p pause"


@values.dataclass(frozen=True, slots=True)
class Act:
    """A change to make: a verb, and the ids of jobs, or the name of a queue."""

    verb: Verb
    names: tuple[str, ...]

    def __str__(self) -> str:
        what = self.names[0] if len(self.names) == 1 else f"{len(self.names)} jobs"
        return f"{self.verb} {what}"


@values.dataclass(slots=True)
class Screen:
    """The state of the screen; ``press`` changes it, and nothing else does.

    Attributes:
        read_only: whether acts are refused.
        is_open: False after "q".
        chosen: number of the selected row.
        filter: text that a row must contain.
        opened: id of the job shown in detail; "" for none.
        wants_why: whether to show why this job does not run.
        typed, typed_for: text of the input line, and its key, "/" or "t"; None without a line.
        asked: act that needs confirmation.
        to_do: confirmed acts.
        moment, moment_text: moment of the past, and its text as typed.
        message: message in the last line.
    """

    read_only: bool = False
    is_open: bool = True
    chosen: int = 0
    filter: str = ""
    opened: str = ""
    wants_why: bool = False
    typed: str | None = None
    typed_for: str = ""
    asked: Act | None = None
    to_do: list[Act] = field(default_factory=list)
    moment: engine.Moment | None = None
    moment_text: str = ""
    message: str = ""

    def rows(self, picture: Picture) -> list[Row]:
        rows: list[Row] = [queue.queue for queue in picture.queues if self._fits(queue.queue)]
        rows += [job for job, _ in picture.status.running if self._fits_job(job)]
        rows += [job for job in picture.ended if self._fits_job(job)]
        rows += [
            failure
            for failure in picture.failures
            if self._fits(failure.task, failure.error, failure.message)
        ]
        return rows

    def row(self, picture: Picture) -> Row | None:
        rows = self.rows(picture)
        self.chosen = min(max(self.chosen, 0), max(len(rows) - 1, 0))
        return rows[self.chosen] if rows else None

    def press(self, key: str, picture: Picture) -> None:
        self.message = ""
        if self.typed is not None:
            self._type(key)
        elif self.asked is not None:
            self._answer(key)
        elif key in ("up", "k"):
            self.chosen -= 1
        elif key in ("down", "j"):
            self.chosen += 1
        elif key in ("left", "right") and self.moment is not None:
            self._step(-_STEP_NS if key == "left" else _STEP_NS)
        elif key in _VERBS:
            self._ask(_VERBS[key], picture)
        else:
            self._command(key, picture)

    def _command(self, key: str, picture: Picture) -> None:
        if key == "q":
            self.is_open = False
        elif key in ("/", "t"):
            self.typed, self.typed_for = "", key
        elif key in ("escape", "backspace"):
            if not self.opened:
                self.filter = ""
            self.opened, self.wants_why = "", False
        elif key in ("enter", "w"):
            self._open(self.row(picture), wants_why=key == "w")

    def _open(self, row: Row | None, *, wants_why: bool) -> None:
        if self.opened:
            self.wants_why = self.wants_why or wants_why
        elif isinstance(row, str):
            self.filter, self.chosen = row, 0
        elif row is not None:
            self.opened, self.wants_why = ids_of(row)[0], wants_why
        elif self.filter:  # perhaps the id of a waiting job
            self.opened, self.wants_why = self.filter, wants_why

    def _type(self, key: str) -> None:
        typed = self.typed or ""
        if key == "escape":
            self.typed = None
        elif key == "backspace":
            self.typed = typed[:-1]
        elif key == "enter":
            self.typed = None
            if self.typed_for == "t":
                self._go(typed.strip())
            else:
                self.filter, self.chosen = typed.strip(), 0
        elif len(key) == 1:
            self.typed = typed + key

    def _go(self, text: str) -> None:
        try:
            self.moment = engine.Moment.parse(text, time.time_ns()) if text else None
        except errors.TaskqError as error:
            self.message = str(error)
            return
        self.moment_text = text

    def _step(self, step_ns: int) -> None:
        if self.moment is None or self.moment.time_ns is None:
            self.message = "the arrows move times, and this is an lsn"
            return
        moment_ns = self.moment.time_ns + step_ns
        if moment_ns >= time.time_ns():
            self.moment = None
            return
        self.moment = engine.Moment(time_ns=moment_ns)
        self.moment_text = render.moment(moment_ns, "seconds")

    def _ask(self, verb: Verb, picture: Picture) -> None:
        row = self.row(picture)
        if self.read_only:
            self.message = "nothing is changed here: taskq top runs with --read-only"
        elif self.moment is not None:
            self.message = "the past cannot be changed: t and enter show the present"
        elif verb == "pause":
            queue = row if isinstance(row, str) else getattr(row, "queue", "")
            paused = any(stats.queue == queue and stats.paused for stats in picture.queues)
            if queue:
                self.asked = Act("resume" if paused else "pause", (queue,))
        elif self.opened:
            self.asked = Act(verb, (self.opened,))
        elif row is not None and not isinstance(row, str):
            self.asked = Act(verb, ids_of(row) if verb == "requeue" else ids_of(row)[:1])

    def _answer(self, key: str) -> None:
        if key == "y" and self.asked is not None:
            self.to_do.append(self.asked)
        self.asked = None

    def _fits(self, *texts: str) -> bool:
        return any(self.filter in text for text in texts)

    def _fits_job(self, job: documents.JobView) -> bool:
        return self._fits(job.job_id, job.queue, job.task)


def ids_of(row: documents.JobView | documents.FailureGroup) -> tuple[str, ...]:
    return getattr(row, "jobs", None) or (row.job_id,)  # type: ignore[union-attr]


_BYTES_MAX: Final = 256
_NAMES: Final = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[C": "right",
    "\x1bOC": "right", "\x1b[D": "left", "\x1bOD": "left", "\x1b": "escape", "\r": "enter",
    "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x03": "q", "\x04": "q",
}  # fmt: skip
#: A Windows console sends such a key in two parts.
_PREFIXES: Final = ("\0", "\xe0")
_SCANNED: Final = {"H": "up", "P": "down", "M": "right", "K": "left"}
_LOOK_SECONDS: Final = 0.02
_KEY: Final = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)


class Keyboard:
    """Keys typed at a terminal's descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def wait(self, seconds: float) -> list[str]:
        """Wait for keys and return them; [] after ``seconds``.

        A letter is returned as typed, other keys as "up", "enter", "escape", …. Keys without a name
        are left out. The end of the input is "q".
        """
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return []
        data = os.read(self._descriptor, _BYTES_MAX).decode("utf-8", "ignore")
        if not data:
            return ["q"]
        names = (_NAMES.get(key, key) for key in _KEY.findall(data))
        return [key for key in names if key.isprintable()]


class ConsoleKeyboard(Keyboard):
    """Keys typed at the Windows console, which ``select`` does not support."""

    def wait(self, seconds: float) -> list[str]:
        """Return pressed keys, as ``Keyboard`` does."""
        console: Any = importlib.import_module("msvcrt")
        until = time.monotonic() + seconds
        try:
            while not console.kbhit():
                if time.monotonic() >= until:
                    return []
                time.sleep(_LOOK_SECONDS)
        except KeyboardInterrupt:  # Ctrl-C is a key, as on other systems
            return ["q"]
        keys = []
        while console.kbhit():
            key = console.getwch()
            is_half = key in _PREFIXES and console.kbhit()
            keys.append(_SCANNED.get(console.getwch(), "") if is_half else key)
        names = (_NAMES.get(key, key) for key in keys)
        return [key for key in names if key and key.isprintable()]


@contextlib.contextmanager
def keys_of(descriptor: int) -> Iterator[Keyboard]:
    try:
        import termios  # noqa: PLC0415 - Windows lacks termios
        import tty  # noqa: PLC0415 - Windows lacks tty
    except ImportError:
        yield ConsoleKeyboard(descriptor)
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        changed = termios.tcgetattr(descriptor)
        changed[3] &= ~termios.ISIG  # Ctrl-C is a key, so the terminal is restored
        termios.tcsetattr(descriptor, termios.TCSANOW, changed)
        yield Keyboard(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


_BARS: Final = " ▁▂▃▄▅▆▇█"
#: A narrower terminal drops optional parts.
WIDE: Final = 80
_BAR: Final = 8
#: The selected row. Its cells lose their own colours, so the row is one bar.
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
            [
                _running(job, progress, picture.time_ns, width)
                for job, progress in picture.status.running
            ],
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


def draw_job(
    facts: hooks.JobStatus, screen: Screen, time_ns: int, width: int, height: int
) -> RenderableType:
    job = facts.job
    head = _text(f"{job.job_id}  ", "bold")
    head.append(str(job.state), _COLOURS.get(job.state, "cyan"))
    about = f"  {job.task or '-'}  queue {job.queue}  priority {job.priority}"
    head.append(flat(f"{about}  times in {render.zone(job.enqueued_ns)}"))
    lines: list[RenderableType] = [_cut(head)]
    if facts.why is not None and (screen.wants_why or job.state not in _COLOURS):
        lines.append(_text(facts.why.text, "yellow"))
    if facts.progress is not None:
        lines.append(_text(render.progress(facts.progress, time_ns)))
    table = Table.grid(padding=(0, 2))
    for event in facts.timeline[-max(height // 2, 3) :]:
        due = render.due(event.due_ns, event.time_ns) if event.due_ns else ""
        note = ": ".join(part for part in (due, event.reason.partition("\n")[0]) if part)
        when = render.moment(event.time_ns)[len("2026-01-01 ") :]
        table.add_row(when, event.kind, str(event.attempt or ""), _cut(_text(note)))
    lines += [_text(), table]
    reason = job.reason.splitlines()
    room = height - len(facts.timeline) - len(lines) - 3
    if reason and room > 0:
        lines += [_text(), *(_cut(_text(line, "red")) for line in reason[-room:])]
    return Group(*lines, _text(), last_line(screen, width))


def last_line(screen: Screen, width: int) -> Text:
    """Return the input line or a question; else the result of the last act, or the keys."""
    if screen.typed is not None:
        what = "filter" if screen.typed_for == "/" else 'as it was ("2h" ago, a time; empty: now)'
        return _cut(_text(f"{what}: {screen.typed}▏", "bold"))
    if screen.asked is not None:
        return _cut(_text(f"{screen.asked}? y/n", "bold yellow"))
    if screen.message:
        return _cut(_text(screen.message, "yellow"))
    acts = "" if screen.read_only else f"  {ACTS_HELP}"
    shown = f"filter {screen.filter!r}  " if screen.filter else ""
    return _cut(_text(f"{shown}{HELP}{acts}" if width >= WIDE else f"{shown}{HELP}", "dim"))


def _header(picture: Picture) -> list[Text]:
    status = picture.status
    ready, running = status.totals.ready, status.totals.running
    head = _text(f"as it was {picture.at}  " if picture.at else "", "bold magenta")
    head.append(flat(str(Path(status.reader.path).absolute())), "bold")
    slots = f"{running} of {status.slots} slots" if status.slots else f"{running} running"
    workers = "1 worker" if status.workers == 1 else f"{status.workers} workers"
    size, free = render.size(status.stats.size), render.size(picture.free)
    facts = f"{slots}  {ready} ready  {size}, {free} free"
    line = _text(facts if picture.at else f"{workers}  {facts}")
    remarks = status.standing.remarks
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


def _queue(queue: documents.QueueStats, picture: Picture, width: int) -> tuple[Row, list[Text]]:
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


def _running(
    job: documents.JobView, progress: object, time_ns: int, width: int
) -> tuple[Row, list[Text]]:
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


def _ended(job: documents.JobView, time_ns: int) -> tuple[Row, list[Text]]:
    return job, [
        _text(job.job_id),
        _text(job.task or "-"),
        _text(str(job.state), _COLOURS.get(job.state, "")),
        _text(render.when(job.settled_ns, time_ns), "dim"),
        _text(job.reason.partition("\n")[0], "dim"),
    ]


def _failure(failure: documents.FailureGroup, time_ns: int) -> tuple[Row, list[Text]]:
    error = ": ".join(part for part in (failure.error, failure.message) if part)
    return failure, [
        _text(f"{len(failure.jobs)} of", "bold red"),
        _text(failure.task or "-"),
        _text(render.when(failure.last_ns, time_ns), "dim"),
        _text(error),
    ]


def spark(counts: Sequence[int], width: int) -> str:
    """Return the last counts as bars, the latest at the right, filled up with blanks."""
    shown = counts[-width:]
    most = max(shown, default=0) or 1
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in shown).rjust(width)


def _text(text: str = "", style: str = "") -> Text:
    """Return foreign text as one line: control characters escaped, secrets hidden."""
    return Text(flat(hidden(text)), style)


def _cut(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


class _Console(Console):
    """Raises the error of a closed pipe to the command; rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def watch(
    reader: engine.LogReader, path: str, interval: float, *, read_only: bool, once: bool
) -> None:
    """Show the log until a person quits, or once.

    Args:
        reader: reader of the log.
        path: directory of the log, for acts.
        interval: seconds between two looks.
        read_only: whether to refuse keys that change the log.
        once: whether to print one look and return.

    Raises:
        WrongUsage: keys are needed, but stdin is not a terminal.
    """
    screen, console = Screen(read_only=read_only), _Console(highlight=False)
    with contextlib.ExitStack() as stack:
        views = _Views(reader, stack)
        if once or not console.is_terminal:
            console.print(views.drawn(screen, console))
            return
        if not sys.stdin.isatty():
            raise WrongUsage("keys are read from a terminal, and no terminal is here: add --once")
        hand = stack.enter_context(contextlib.closing(_Hand(path)))
        keys = stack.enter_context(keys_of(sys.stdin.fileno()))
        live = stack.enter_context(Live(console=console, screen=True, auto_refresh=False))
        while screen.is_open:
            live.update(views.drawn(screen, console), refresh=True)
            for key in keys.wait(interval):
                screen.press(key, views.look(screen))
            while screen.to_do:
                screen.message = hand.act(screen.to_do.pop(0))


class _Views:
    """The present, and a moment of the past while a person asks for one."""

    def __init__(self, reader: engine.LogReader, stack: contextlib.ExitStack) -> None:
        self._now = self._shown = reader, Watcher(reader)
        self._stack = stack
        self._moment: engine.Moment | None = None

    def look(self, screen: Screen) -> Picture:
        try:
            if screen.moment != self._moment:
                self._go(screen)
            return self._shown[1].look()
        except errors.TaskqError as error:
            if screen.moment is None:
                raise
            screen.message, screen.moment = str(error), None
            return self.look(screen)

    def drawn(self, screen: Screen, console: Console) -> RenderableType:
        picture = self.look(screen)
        width, height = console.size
        if screen.opened:
            try:
                facts = hooks.JobStatus(self._shown[0], screen.opened)
            except errors.TaskqError as error:
                screen.message, screen.opened = str(error), ""
            else:
                return draw_job(facts, screen, picture.time_ns, width, height)
        return draw(picture, screen, width, height)

    def _go(self, screen: Screen) -> None:
        shown, self._shown, self._moment = self._shown, self._now, screen.moment
        if shown is not self._now:
            shown[0].close()
        if screen.moment is not None:
            reader = engine.LogReader.open(self._now[0].path, at=screen.moment)
            self._shown = reader, Watcher(reader, screen.moment_text)
            self._stack.callback(reader.close)  # a second close does nothing


class _Hand:
    """Carry out acts; the log is opened for the first one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._app: TaskQ | None = None

    def close(self) -> None:
        if self._app is not None:
            self._app.close_sync()

    def act(self, act: Act) -> str:
        """Carry out an act, and return its result as one line."""
        if self._app is None:
            self._app = TaskQ(self._path, upkeep=False, name="taskq top")
        try:
            done = hooks.blocking(_do)(self._app, act)
        except errors.TaskqError as error:
            return str(error).partition("\n")[0]
        return f"{act}: done" if done else f"{act}: it is so already, or too late"


async def _do(app: TaskQ, act: Act) -> Any:
    name = act.names[0]
    with app.acting(f"{render.person()} (top)"):
        if act.verb == "cancel":
            return await app.job(name).cancel()
        if act.verb == "requeue":
            return (await app.dead.requeue_many(list(act.names))).count
        if act.verb == "run now":
            return await app.edit(name, run_now=True)
        return await (app.pause if act.verb == "pause" else app.resume)(name)
