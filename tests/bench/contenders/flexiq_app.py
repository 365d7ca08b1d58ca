"""flexiq on SQLite: ``Queue(db_path=…)`` as it comes, sync tasks, and ``flexiq worker``.

The worker has as many threads as the machine has processors, and polls every 50 ms: push dispatch
is off on SQLite unless asked for.
"""

from __future__ import annotations

import sys
from typing import Final

from flexiq import Queue

from tests.bench.contenders import told
from tests.bench.contenders.told import Caller
from tests.bench.load import MANY_COUNT, SUBJECT

queue: Final = Queue(db_path=str(told.DIRECTORY / "flexiq.db"))


TASKS: Final = {name: queue.task(name=name)(fn) for name, fn in told.FUNCTIONS.items()}


class FlexiqCaller(Caller):
    """Calls ``delay``."""

    worker = (
        *(sys.executable, "-c", "from flexiq.cli import main; main()"),
        *("worker", "--app", "tests.bench.contenders.flexiq_app:queue"),
    )

    def call(self, task: str, number: int) -> object:
        return TASKS[task].delay(number, SUBJECT)

    def fill(self, task: str, jobs: int) -> None:
        for start in range(0, jobs, MANY_COUNT):
            numbers = range(start, min(start + MANY_COUNT, jobs))
            TASKS[task].map([(number, SUBJECT) for number in numbers])

    def counts(self) -> tuple[int | None, int]:
        stats = queue.stats()
        assert not stats["failed"] + stats["dead"] + stats["cancelled"], stats
        return stats["completed"], stats["pending"] + stats["running"]


make: Final = FlexiqCaller
