"""Workers claim, run and settle jobs.

::

    async with app.worker(concurrency=8): ...      # inside your own process
    taskq worker module:app                        # as a process of its own
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq._lazy import lazily
from taskq_workers.events import JobEnd, JobFinished
from taskq_workers.pool import Worker
from taskq_workers.runs.loader import load_app
from taskq_workers.services.scheduler import Scheduler

if TYPE_CHECKING:
    from taskq_workers.process.checking import check_app, check_versions
    from taskq_workers.process.supervisor import WorkerThread, run_blocking

__all__ = [
    "JobEnd",
    "JobFinished",
    "Scheduler",
    "Worker",
    "WorkerThread",
    "check_app",
    "check_versions",
    "load_app",
    "run_blocking",
]

_HOMES: Final = {
    "taskq_workers.process.checking": "check_app check_versions",
    "taskq_workers.process.supervisor": "WorkerThread run_blocking",
    "taskq_workers.runs.loader": "load_app",
    "taskq_workers.services.scheduler": "Scheduler",
}

if not TYPE_CHECKING:  # a type checker would accept any name otherwise
    __getattr__ = lazily(__name__, _HOMES)
