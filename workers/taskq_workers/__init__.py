"""Workers: they claim, run and settle jobs.

::

    async with app.worker(concurrency=8): ...      # inside your own process
    taskq worker module:app                        # as a process of its own
"""

from __future__ import annotations

from taskq_workers.events import JobEnd, JobFinished
from taskq_workers.pool import Worker
from taskq_workers.threaded import WorkerThread, run_blocking

__all__ = ["JobEnd", "JobFinished", "Worker", "WorkerThread", "run_blocking"]
