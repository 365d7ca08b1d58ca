"""taskq: async tasks, an app that awaits, and ``taskq worker`` with its defaults (8 at a time)."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final

from taskq import TaskQ
from tests.bench.contenders import told
from tests.bench.contenders.told import CALLERS, Caller
from tests.bench.load import MANY_COUNT, SUBJECT, produce

app: Final = TaskQ(told.DIRECTORY / "data", durability=os.environ.get("PEERS_MODE", "fsync"))


@app.task(name="noop")
async def noop(i: int, subject: str) -> None:
    """The job of cycles and drains."""
    told.ran()


@app.task(name="stamp")
async def stamp(i: int, subject: str) -> None:
    """A job whose moment counts."""
    told.tell("stamp")


@app.task(name="hold")
async def hold(i: int, subject: str) -> None:
    """A job that does not end."""
    told.tell("held")
    await asyncio.sleep(told.HOLD_SECONDS)


class TaskqCaller(Caller):
    """One loop for all calls."""

    worker = (
        *(sys.executable, "-m", "taskq", "worker", "tests.bench.contenders.taskq_app:app"),
        "--quiet",
    )

    def __init__(self) -> None:
        self.tasks = {"noop": noop, "stamp": stamp, "hold": hold}
        self.runner = asyncio.Runner()
        self.runner.run(app.open())

    def call(self, task: str, number: int) -> object:
        return self.tasks[task].enqueue_sync(number, SUBJECT)

    def await_each(self, jobs: int) -> None:
        self.runner.run(produce(noop.enqueue, jobs, 1))

    def enqueue_at_once(self, jobs: int) -> None:
        self.runner.run(produce(noop.enqueue, jobs, CALLERS))

    def fill(self, task: str, jobs: int) -> None:
        self.runner.run(self._fill(task, jobs))

    async def _fill(self, task: str, jobs: int) -> None:
        for start in range(0, jobs, MANY_COUNT):
            numbers = range(start, min(start + MANY_COUNT, jobs))
            await self.tasks[task].enqueue_many([(i, SUBJECT) for i in numbers])

    def counts(self) -> tuple[int | None, int]:
        queues = self.runner.run(app.stats()).queues
        assert not any(queue.dead + queue.cancelled + queue.expired for queue in queues), queues
        waiting = sum(queue.ready + queue.scheduled + queue.running for queue in queues)
        return sum(queue.succeeded for queue in queues), waiting

    def close(self) -> None:
        self.runner.run(app.close())
        self.runner.close()


make: Final = TaskqCaller
