"""What a worker process writes to its log: from which level on, and which job each line is of."""

from __future__ import annotations

import logging
from typing import Any, Final

from taskq.app.context import _current

#: By their names on a command line and in the settings.
LEVELS: Final = ("debug", "info", "warning", "error")

_configured = ""


def configured_level() -> str:
    """The level that this process logs at, "" if its logging is its program's own business."""
    return _configured


def note_jobs() -> None:
    """Give each record of this process from now on the id of the job that it is of.

    The id is read from the job's context, also in threads and tasks that the job starts with it.
    Any format may use it: ``%(job_id)s``, "" outside of jobs. Who does not log pays nothing. Legal
    twice.
    """
    if not isinstance(logging.getLogRecordFactory(), _WithJob):
        logging.setLogRecordFactory(_WithJob(logging.getLogRecordFactory()))


def configure_logging(level: str) -> None:
    """Log to stderr from this level on, with the jobs' ids. Legal twice, with another level."""
    global _configured  # noqa: PLW0603 - the logging of a process is one thing
    _configured = level
    note_jobs()
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_Lines())
        root.addHandler(handler)
    root.setLevel(level.upper())


class _WithJob:
    """Makes records as before, and notes the job."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make(*args, **kwargs)
        job = _current.get(None)
        record.job_id = "" if job is None else job.id
        return record


class _Lines(logging.Formatter):
    """``taskq: WARNING: job 1a2b3c4d-7: what is said``."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging has it
        job_id = getattr(record, "job_id", "")
        job = f"job {job_id}: " if job_id and job_id not in record.message else ""
        return f"taskq: {record.levelname}: {job}{record.message}"
