"""Workers: they claim, run and settle jobs.

::

    async with app.worker(concurrency=8): ...      # inside your own process
    taskq worker module:app                        # as a process of its own
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskq_workers.events import JobEnd, JobFinished
from taskq_workers.pool import Worker

if TYPE_CHECKING:
    from taskq_workers.process.threaded import WorkerThread, run_blocking

__all__ = ["JobEnd", "JobFinished", "Worker", "WorkerThread", "run_blocking"]


def __getattr__(name: str) -> Any:
    """Workers of programs without an event loop are imported when one is made."""
    if name in {"WorkerThread", "run_blocking"}:
        from taskq_workers.process import threaded  # noqa: PLC0415

        return getattr(threaded, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
