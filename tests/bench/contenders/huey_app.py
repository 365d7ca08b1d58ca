"""huey on SQLite: ``SqliteHuey`` as it comes, sync tasks, and its consumer with its defaults.

The consumer has one worker thread. It looks for jobs 0.1 s after the last, and waits 1.15 times
as long after each look in vain, up to 10 s. A job leaves the database when it is taken, and a
result of None is not kept.
"""

from __future__ import annotations

import sys
from typing import Final

from huey import SqliteHuey

from tests.bench.contenders import told
from tests.bench.contenders.told import Caller
from tests.bench.load import SUBJECT

huey: Final = SqliteHuey("bench", filename=str(told.DIRECTORY / "huey.db"))


TASKS: Final = {name: huey.task(name=name)(fn) for name, fn in told.FUNCTIONS.items()}


class HueyCaller(Caller):
    """Enqueue by calling a task; all threads share one connection, as huey recommends."""

    worker = (
        *(sys.executable, "-m", "huey.bin.huey_consumer", "tests.bench.contenders.huey_app.huey"),
        "--quiet",
    )

    def call(self, task: str, number: int) -> object:
        return TASKS[task](number, SUBJECT)

    def fill(self, task: str, jobs: int) -> None:
        storage = huey.storage
        rows = (
            (storage.name, huey.serialize_task(TASKS[task].s(number, SUBJECT)), 0)
            for number in range(jobs)
        )
        with storage.db(commit=True) as cursor:
            cursor.executemany("insert into task (queue, data, priority) values (?, ?, ?)", rows)

    def counts(self) -> tuple[int | None, int]:
        return None, huey.pending_count()

    def close(self) -> None:
        huey.storage.close()


make: Final = HueyCaller
