"""taskq as the benchmarks drive it: the full public API, validation included."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from taskq import TaskQ
from tests.bench.load import SUBJECT, WORKER_CONCURRENCY, Enqueue, Tally, spin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path


class TaskqContender:
    """An app with the no-op and a CPU-bound sync task."""

    def __init__(self, directory: Path, durability: str) -> None:
        self.directory = directory / "data"
        self.tally = Tally()
        self.app = TaskQ(self.directory, durability=durability)
        self.task = self.app.task(name="noop")(self.tally.noop)
        #: the task's own method: nothing of the benchmark lies between
        self.enqueue: Enqueue = self.task.enqueue
        self.spinning = asyncio.Event()
        self.stop = threading.Event()
        loop = asyncio.get_running_loop()

        @self.app.task(name="spin", queue="cpu")
        def spin_until_stopped() -> None:
            loop.call_soon_threadsafe(self.spinning.set)
            spin(self.stop.is_set)

        self.spin = spin_until_stopped

    async def open(self) -> None:
        """Open the log."""
        await self.app.open()

    async def close(self) -> None:
        """Close it."""
        await self.app.close()

    async def enqueue_many(self, numbers: range) -> None:
        """One transaction."""
        await self.task.enqueue_many([(i, SUBJECT) for i in numbers])

    def worker(self) -> AbstractAsyncContextManager[object]:
        """Return a worker of this process."""
        return self.app.worker(concurrency=WORKER_CONCURRENCY)

    @contextlib.asynccontextmanager
    async def busy_thread(self) -> AsyncIterator[None]:
        """The sync task as a job like any other, in the worker's threads."""
        job = await self.spin.enqueue()
        await self.spinning.wait()
        try:
            yield
        finally:
            # Also when a sample fails: the worker could not drain otherwise.
            self.stop.set()
        await job.result()

    async def counts(self) -> tuple[int, int]:
        """From the log's statistics; the sync task's queue is its own and not counted."""
        stats = await self.app.store().port().stats()
        for queue in stats.queues:
            assert queue.dead + queue.cancelled + queue.expired == 0, queue
        mine = [queue for queue in stats.queues if queue.queue == "default"]
        assert len(mine) == 1, stats.queues
        assert mine[0].running == 0, mine
        return mine[0].succeeded, mine[0].ready + mine[0].scheduled

    def batches(self) -> int:
        """Frames that this process wrote so far."""
        return self.app.store().batches
