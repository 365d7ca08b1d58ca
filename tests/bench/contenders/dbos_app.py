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
from tests.bench.contenders.told import Caller
from tests.bench.load import SUBJECT

DATABASE: Final = told.DIRECTORY / "dbos.db"
URL: Final = f"sqlite:///{DATABASE}"
QUEUE: Final = "bench"


for _name, _function in told.FUNCTIONS.items():
    DBOS.workflow(name=_name)(_function)


def launch() -> None:
    DBOS(config={"name": "bench", "system_database_url": URL})
    DBOS.launch()
    DBOS.register_queue(QUEUE)


class DbosCaller(Caller):
    """A client of the database that the first launch has made."""

    worker = (sys.executable, "-m", "tests.bench.contenders.dbos_app")

    def __init__(self) -> None:
        # Its output after a good launch is not the cause of a failed sample.
        subprocess.run((*self.worker, "once"), check=True, timeout=60, stderr=subprocess.DEVNULL)
        self.client = DBOSClient(system_database_url=URL)

    def call(self, task: str, number: int) -> object:
        options: Any = {"workflow_name": task, "queue_name": QUEUE}
        return self.client.enqueue(options, number, SUBJECT)

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
        with sqlite3.connect(DATABASE) as database:
            counted = dict(
                database.execute("select status, count(*) from workflow_status group by status")
            )
        ended = counted.pop("SUCCESS", 0)
        waiting = counted.pop("ENQUEUED", 0) + counted.pop("PENDING", 0)
        assert not counted, counted
        return ended, waiting

    def close(self) -> None:
        self.client.destroy()


make: Final = DbosCaller

if __name__ == "__main__":
    launch()
    if sys.argv[1:] == ["once"]:
        DBOS.destroy()
    else:
        threading.Event().wait()
