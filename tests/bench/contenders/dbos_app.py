"""dbos on SQLite: sync workflows of no steps, a queue without limits, and a client that enqueues.

The worker is a process that launches DBOS, registers the queue and stays, as its documentation has
it; the queue is polled every second. Others enqueue through ``DBOSClient``, which needs a database
that a launched process has made.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from typing import Any, Final

from dbos import DBOS, DBOSClient

from tests.bench.contenders import told
from tests.bench.contenders.calling import by_threads, one_by_one
from tests.bench.load import SUBJECT

DATABASE: Final = told.DIRECTORY / "dbos.db"
URL: Final = f"sqlite:///{DATABASE}"
QUEUE: Final = "bench"


def _noop(i: int, subject: str) -> None:
    told.ran()


def _stamp(i: int, subject: str) -> None:
    told.tell("stamp")


def _hold(i: int, subject: str) -> None:
    told.hold()


DBOS.workflow(name="noop")(_noop)
DBOS.workflow(name="stamp")(_stamp)
DBOS.workflow(name="hold")(_hold)


def launch() -> None:
    """Make the database if there is none, and work on the queue."""
    DBOS(config={"name": "bench", "system_database_url": URL})
    DBOS.launch()
    DBOS.register_queue(QUEUE)


class DbosCaller:
    """A client of the database that the first launch has made."""

    worker = (sys.executable, "-m", "tests.bench.contenders.dbos_app")

    def __init__(self) -> None:
        # What it tells of a launch that went well is not what a sample failed with.
        subprocess.run((*self.worker, "once"), check=True, timeout=60, stderr=subprocess.DEVNULL)
        self.client = DBOSClient(system_database_url=URL)

    def _call(self, task: str, number: int, subject: str) -> None:
        options: Any = {"workflow_name": task, "queue_name": QUEUE}
        self.client.enqueue(options, number, subject)

    def _noop(self, number: int, subject: str) -> None:
        self._call("noop", number, subject)

    def enqueue(self, task: str) -> None:
        """Enqueue one."""
        self._call(task, 0, SUBJECT)

    def enqueue_each(self, jobs: int) -> list[float]:
        """Enqueue in turn."""
        return one_by_one(self._noop, jobs)

    def enqueue_at_once(self, jobs: int) -> None:
        """From threads."""
        by_threads(self._noop, jobs)

    def fill(self, task: str, jobs: int) -> None:
        """Enqueue one, and copy its rows under other ids: 200 000 calls would take an hour."""
        self.enqueue(task)
        with sqlite3.connect(DATABASE) as database:
            for table in ("workflow_status", "workflow_input"):
                names = [row[1] for row in database.execute(f"pragma table_info({table})")]
                copied = (
                    f"{name} || number" if name == "workflow_uuid" else name for name in names
                )
                database.execute(
                    "with recursive numbers(number) as"
                    " (select 2 union all select number + 1 from numbers where number < ?)"
                    f" insert into {table} ({', '.join(names)})"
                    f" select {', '.join(copied)} from {table}, numbers where number <= ?",
                    (jobs, jobs),
                )

    def counts(self) -> tuple[int | None, int]:
        """From its table."""
        with sqlite3.connect(DATABASE) as database:
            counted = dict(
                database.execute("select status, count(*) from workflow_status group by status")
            )
        ended = counted.pop("SUCCESS", 0)
        waiting = counted.pop("ENQUEUED", 0) + counted.pop("PENDING", 0)
        assert not counted, counted
        return ended, waiting

    def close(self) -> None:
        """Close its connections."""
        self.client.destroy()


make: Final = DbosCaller

if __name__ == "__main__":
    launch()
    if sys.argv[1:] == ["once"]:
        DBOS.destroy()
    else:
        threading.Event().wait()
