"""flexiq on SQLite: ``Queue(db_path=…)`` as it comes, sync tasks, and ``flexiq worker``.

The worker has as many threads as the machine has processors, and polls every 50 ms: push dispatch
is off on SQLite unless asked for.
"""

from __future__ import annotations

import sys
from typing import Final

from flexiq import Queue

from tests.bench.contenders import told
from tests.bench.contenders.calling import by_threads, one_by_one
from tests.bench.load import MANY_COUNT, SUBJECT

queue: Final = Queue(db_path=str(told.DIRECTORY / "flexiq.db"))


def _noop(i: int, subject: str) -> None:
    told.ran()


def _stamp(i: int, subject: str) -> None:
    told.tell("stamp")


def _hold(i: int, subject: str) -> None:
    told.hold()


TASKS: Final = {
    "noop": queue.task(name="noop")(_noop),
    "stamp": queue.task(name="stamp")(_stamp),
    "hold": queue.task(name="hold")(_hold),
}


class FlexiqCaller:
    """Calls ``delay``."""

    worker = (
        *(sys.executable, "-c", "from flexiq.cli import main; main()"),
        *("worker", "--app", "tests.bench.contenders.flexiq_app:queue"),
    )

    def enqueue(self, task: str) -> None:
        """Enqueue one."""
        TASKS[task].delay(0, SUBJECT)

    def enqueue_each(self, jobs: int) -> list[float]:
        """Enqueue in turn."""
        return one_by_one(TASKS["noop"].delay, jobs)

    def enqueue_at_once(self, jobs: int) -> None:
        """From threads."""
        by_threads(TASKS["noop"].delay, jobs)

    def fill(self, task: str, jobs: int) -> None:
        """In batches."""
        for start in range(0, jobs, MANY_COUNT):
            numbers = range(start, min(start + MANY_COUNT, jobs))
            TASKS[task].map([(number, SUBJECT) for number in numbers])

    def counts(self) -> tuple[int | None, int]:
        """From its statistics."""
        stats = queue.stats()
        assert not stats["failed"] + stats["dead"] + stats["cancelled"], stats
        return stats["completed"], stats["pending"] + stats["running"]

    def close(self) -> None:
        """There is nothing to close."""


make: Final = FlexiqCaller
