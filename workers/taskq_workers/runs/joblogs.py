"""Logging of a worker process: level, format, and the job of each line.

A task with ``keep_log`` stores the log lines of each attempt with its outcome: its function is
called in a wrapper. Other tasks pay nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final

from taskq import JobContext, engine, hooks, values
from taskq.text import flat, hidden, printable, without_secrets

#: Names on the command line and in the settings.
LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")
#: Logger for the output of tasks: a record for each line; longer lines are split.
_prints: Final = logging.getLogger("taskq.print")
_LINE_CHARACTERS_MAX: Final = 16 * 1024
#: Put before the stored lines if earlier lines were dropped.
LEFT_OUT: Final = "… earlier lines are left out"


class Logging(values.NamedTuple):
    """Logging options of a process; a worker's options apply to its children, too."""

    #: lowest level; "" if the program configures logging itself
    level: str = ""
    format: str = "text"
    #: whether output of tasks is logged
    prints: bool = False


#: A worker's logging before the settings of its app are known: their defaults.
AT_FIRST: Final = Logging("warning", "text")


class _State:
    chosen = Logging()
    #: sends stored lines to the process that settles the jobs
    send: Callable[[str], None] | None = None


def chosen_logging() -> Logging:
    return _State.chosen


def note_jobs() -> None:
    """Add its job to each log record of this process.

    The job comes from the context, also in threads and tasks that the job starts with it. Any
    format may use ``%(taskq_job)s``, ``%(taskq_task)s`` and ``%(taskq_attempt)s``; outside of jobs
    they are "", "" and 0. Legal twice.
    """
    if not isinstance(logging.getLogRecordFactory(), _WithJob):
        logging.setLogRecordFactory(_WithJob(logging.getLogRecordFactory()))


def configure_logging(chosen: Logging) -> None:
    """Log to stderr, with the jobs. Legal twice, also with other options."""
    _State.chosen = chosen
    note_jobs()
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_Stderr())
    for handler in root.handlers:
        if isinstance(handler, _Stderr):
            handler.setFormatter(_Lines() if chosen.format == "text" else _Documents())
            handler.setLevel(chosen.level.upper())
    root.setLevel(chosen.level.upper())
    if chosen.prints and not isinstance(sys.stdout, _Prints):
        sys.stdout = _Prints(sys.stdout)


class _WithJob:
    """Record factory that adds the job.

    The attributes have unique names, since a record refuses an ``extra`` with the name of an
    existing attribute.
    """

    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make(*args, **kwargs)
        job = hooks.running_job.get(None)
        fields = ("", "", 0) if job is None else (job.id, job.task, job.attempt)
        record.taskq_job, record.taskq_task, record.taskq_attempt = fields
        return record


class _Stderr(logging.StreamHandler[Any]):
    """The worker's handler, which a second configuration may replace."""


class _Lines(logging.Formatter):
    """``taskq: WARNING: job 1a2b3c4d-7 (mail.send, attempt 2): message``."""

    def format(self, record: logging.LogRecord) -> str:
        # The text quotes jobs, and so text of their senders.
        return printable(hidden(super().format(record)))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging has it
        job_id, task, attempt = _job_of(record)
        job = ""
        if job_id and job_id not in record.message:
            job = f"job {job_id} ({flat(task)}, attempt {attempt}): "
        # Continuation lines are indented, or a quoted text could forge lines of taskq.
        message = record.message.replace("\n", "\n  ")
        return f"taskq: {record.levelname}: {job}{message}"


#: C1 and bidirectional controls: JSON does not escape them, and they could control a terminal.
_UNPRINTABLE: Final = "[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"


class _Documents(logging.Formatter):
    """A JSON document for each line; it contains the fields of ``extra`` by their names."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        job_id, task, attempt = _job_of(record)
        if job_id:
            document |= {"job": job_id, "task": task, "attempt": attempt}
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            document["stack"] = record.stack_info
        extra = {k: v for k, v in vars(record).items() if k not in _OWN and k not in document}
        text = json.dumps(without_secrets(document | extra), default=str, ensure_ascii=False)
        return re.sub(_UNPRINTABLE, lambda match: json.dumps(match[0])[1:-1], text)


def _job_of(record: logging.LogRecord) -> tuple[str, str, int]:
    """Return (job, task, attempt); empty for a record of another factory or process."""
    made = vars(record)
    return made.get("taskq_job", ""), made.get("taskq_task", ""), made.get("taskq_attempt", 0)


#: Attributes of every record.
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    *("message", "asctime", "taskName", "taskq_job", "taskq_task", "taskq_attempt"),
}  # fmt: skip


# Output of tasks.


class _Prints:
    """The stdout of a worker: output of jobs is logged line by line, other output is written."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._within = threading.local()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Log the lines that are now complete; return the number of characters."""
        job = hooks.running_job.get(None)
        # A handler of the program may write log records to stdout.
        if job is None or getattr(self._within, "logs", False):
            written: int = self._stream.write(text)
            return written
        *lines, rest = (getattr(job, "printed", "") + text).split("\n")
        while len(rest) > _LINE_CHARACTERS_MAX:
            lines.append(rest[:_LINE_CHARACTERS_MAX])
            rest = rest[_LINE_CHARACTERS_MAX:]
        job.printed = rest
        self.log(lines)
        return len(text)

    def writelines(self, texts: Any) -> None:
        for text in texts:
            self.write(text)

    def log(self, lines: list[str]) -> None:
        self._within.logs = True
        try:
            for line in lines:
                _prints.info("%s", line)
        finally:
            self._within.logs = False


# Stored log lines of an attempt.


class _Kept:
    """The latest lines of one attempt, from any of its threads, in at most ``room`` bytes."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._size = 0
        self._lines: deque[str] = deque()
        self._is_cut = False
        self._guard = threading.Lock()

    def add(self, line: str) -> None:
        """Add a line, drop the oldest lines; of a line that is too long keep the end."""
        line = line.encode("utf-8", "replace")[-self._room + 1 :].decode("utf-8", "ignore")
        with self._guard:
            self._lines.append(line)
            self._size += len(line.encode()) + 1
            while self._size > self._room:
                self._size -= len(self._lines.popleft().encode()) + 1
                self._is_cut = True

    def text(self) -> str:
        with self._guard:
            lines = list(self._lines)
        return "\n".join([LEFT_OUT, *lines] if self._is_cut else lines)


class _Keeper(logging.Handler):
    """Adds each record of a job to the lines of its attempt.

    The root logger has it only while such attempts run: a logger with a handler shows no warnings
    by itself, and ``logging.basicConfig`` does not configure it.
    """

    _attempts = 0

    def count(self, change: int) -> None:
        self.acquire()
        try:
            self._attempts += change
            if self._attempts:
                logging.root.addHandler(self)
            else:
                logging.root.removeHandler(self)
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and self._is_alone(record.name):
            last.handle(record)
        lines = getattr(hooks.running_job.get(None), "lines", None)
        if lines is None:
            return
        try:
            lines.add(self.format(record))
        except Exception:  # noqa: BLE001 - what the arguments of a message raise is no job's end
            self.handleError(record)

    def _is_alone(self, name: str) -> bool:
        """Return whether the program has no handler for a logger's records."""
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None and logger.propagate and not logger.handlers:
            logger = logger.parent
        return logger is not None and logger.handlers == [self]


class _Plain(logging.Formatter):
    """``2026-01-31 08:00:00,123 INFO shop: message``, in UTC."""

    converter = staticmethod(time.gmtime)


_keeper: Final = _Keeper()
_keeper.setFormatter(_Plain("%(asctime)s %(levelname)s %(name)s: %(message)s"))


def send_lines_to(send: Callable[[str], None]) -> None:
    """Send this process's stored lines by ``send``: another process settles its jobs."""
    _State.send = send


@contextlib.contextmanager
def capture_lines(job: JobContext, room: int) -> Iterator[None]:
    """Store the job's log lines in ``room`` bytes, if any; log its output to the last line."""
    if room:
        _keeper.count(1)
        # A program with its own logging keeps its levels.
        if _State.chosen.level and logging.root.level > logging.INFO:
            logging.root.setLevel(logging.INFO)
        job.lines = _Kept(room) if _State.send is None else SimpleNamespace(add=_State.send)
    try:
        yield
    finally:
        rest, prints = getattr(job, "printed", ""), sys.stdout
        if rest and isinstance(prints, _Prints):
            job.printed = ""
            prints.log([rest])
        if room:
            _keeper.count(-1)


def with_log(call: Callable[..., Awaitable[Any]], room: int) -> Callable[..., Awaitable[Any]]:
    """Wrap a task's calls, so that the lines of their jobs are stored."""

    async def run(*args: Any, **kwargs: Any) -> Any:
        with capture_lines(hooks.running_job.get(), room):
            return await call(*args, **kwargs)

    return run


def keep_line(job: JobContext, line: str) -> None:
    lines = getattr(job, "lines", None)
    if lines is not None:
        lines.add(line)


def with_lines(settlement: engine.Settlement, job: JobContext | None) -> engine.Settlement:
    lines = getattr(job, "lines", None)
    text = lines.text() if isinstance(lines, _Kept) else ""
    return settlement._replace(lines=hooks.encode_lines(text)) if text else settlement
