"""The competitor: a hand-written queue on SQLite in WAL mode, as fast as sqlite3 allows.

It batches as taskq does. One thread owns the connection and takes the whole mailbox as one
transaction; one ``call_soon_threadsafe`` carries all answers of the transaction back. It has no
validation, no keys, no retries and no owner liveness: those would only slow it down. Two variants:

- ``plain``: what one writes first. ``executemany`` inserts and settles, claims by
  ``UPDATE … RETURNING``, an index on (state, priority DESC, id).
- ``tuned``: the best found here for throughput. One statement a batch and kind through
  ``json_each``, since each step of an ``executemany`` gives up the GIL; a partial index of the
  ready jobs alone; a longer write-ahead log between checkpoints. Tried without gain: larger
  pages, mmap, exclusive locking, claims whose rows come back as one JSON text.

Run it alone: ``python -m tests.bench.bench --contender sqlite --contender sqlite-tuned``.
"""

import asyncio
import contextlib
import enum
import sqlite3
import threading
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json, to_json

from tests.bench.load import SUBJECT, WORKER_CONCURRENCY, Enqueue, Tally

#: Below this number of rows ``json_each`` costs more than it saves.
FEW: Final = 8
READY, RUNNING, SUCCEEDED = 0, 1, 2
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS jobs(
    id INTEGER PRIMARY KEY, state INTEGER NOT NULL DEFAULT 0, priority INTEGER NOT NULL DEFAULT 5,
    attempt INTEGER NOT NULL DEFAULT 0, body TEXT NOT NULL, result TEXT)
"""
READY_IDS: Final = "SELECT id FROM jobs WHERE state=0 ORDER BY priority DESC, id LIMIT ?"
CLAIM: Final = (
    f"UPDATE jobs SET state=1, attempt=attempt+1 WHERE id IN ({READY_IDS}) RETURNING id, body"
)

Row = tuple[int, str]
Request = tuple["Op", Any, "asyncio.Future[Any] | None"]


class Op(enum.IntEnum):
    #: a body -> its id
    ENQUEUE = 0
    #: bodies -> their first id
    ENQUEUE_MANY = 1
    #: a count -> rows (id, body)
    CLAIM = 2
    #: ids that succeeded -> None
    SETTLE = 3
    #: -> None; the thread ends
    CLOSE = 4


class Plain:
    index = "CREATE INDEX IF NOT EXISTS ready ON jobs(state, priority DESC, id)"
    checkpoint_pages = 1_000

    @staticmethod
    def insert(connection: sqlite3.Connection, bodies: Sequence[str]) -> None:
        connection.executemany("INSERT INTO jobs(body) VALUES(?)", [(body,) for body in bodies])

    @staticmethod
    def settle(connection: sqlite3.Connection, ids: Sequence[int]) -> None:
        connection.executemany(
            "UPDATE jobs SET state=2, result=NULL WHERE id=? AND state=1", [(i,) for i in ids]
        )


class Tuned(Plain):
    index = "CREATE INDEX IF NOT EXISTS ready ON jobs(priority DESC, id) WHERE state=0"
    checkpoint_pages = 10_000

    @staticmethod
    def insert(connection: sqlite3.Connection, bodies: Sequence[str]) -> None:
        """The bodies are JSON already, so that the array of them is one join."""
        if len(bodies) < FEW:
            Plain.insert(connection, bodies)
            return
        connection.execute(
            "INSERT INTO jobs(body) SELECT value FROM json_each(?)", (f"[{','.join(bodies)}]",)
        )

    @staticmethod
    def settle(connection: sqlite3.Connection, ids: Sequence[int]) -> None:
        if len(ids) < FEW:
            Plain.settle(connection, ids)
            return
        connection.execute(
            "UPDATE jobs SET state=2 WHERE state=1 AND id IN (SELECT value FROM json_each(?))",
            (f"[{','.join(map(str, ids))}]",),
        )


def connect(path: Path, statements: type[Plain], *, full: bool) -> sqlite3.Connection:
    """Return a connection in autocommit, the schema there. ``full`` survives a power loss."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    for pragma in (
        "journal_mode=WAL",
        f"synchronous={'FULL' if full else 'NORMAL'}",
        f"wal_autocheckpoint={statements.checkpoint_pages}",
        "cache_size=-65536",
        "temp_store=MEMORY",
    ):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute(SCHEMA)
    connection.execute(statements.index)
    return connection


class SqliteQueue:
    """The storage thread and its mailbox; no other process writes."""

    def __init__(self, path: Path, statements: type[Plain], *, full: bool) -> None:
        self.path = path
        self.statements = statements
        self.full = full
        self.loop = asyncio.get_running_loop()
        self.mailbox: deque[Request] = deque()
        self.claims: deque[tuple[int, asyncio.Future[Any]]] = deque()
        self.awake = threading.Event()
        self.thread = threading.Thread(target=self._run, name="sqlite-queue", daemon=True)
        self.thread.start()

    def send(self, op: Op, operand: object) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.loop.create_future()
        self.mailbox.append((op, operand, future))
        if not self.awake.is_set():
            self.awake.set()
        return future

    def send_soon(self, op: Op, operand: object) -> None:
        self.mailbox.append((op, operand, None))
        if not self.awake.is_set():
            self.awake.set()

    def _run(self) -> None:
        connection = connect(self.path, self.statements, full=self.full)
        is_open = True
        while is_open:
            self.awake.wait()
            self.awake.clear()
            if self.mailbox:
                replies, is_open = self._batch(connection)
                if replies:
                    self.loop.call_soon_threadsafe(_reply, replies)
        connection.close()

    def _batch(
        self, connection: sqlite3.Connection
    ) -> tuple[list[tuple[asyncio.Future[Any] | None, object]], bool]:
        bodies: list[str] = []
        places: list[tuple[asyncio.Future[Any] | None, int]] = []
        settled: list[int] = []
        replies: list[tuple[asyncio.Future[Any] | None, object]] = []
        open_ = True
        for _ in range(len(self.mailbox)):
            op, operand, future = self.mailbox.popleft()
            if op is Op.ENQUEUE:
                places.append((future, len(bodies)))
                bodies.append(operand)
            elif op is Op.CLAIM:
                assert future is not None
                self.claims.append((operand, future))
            elif op is Op.ENQUEUE_MANY:
                places.append((future, len(bodies)))
                bodies.extend(operand)
            else:
                settled.extend(operand)
                open_ = open_ and op is not Op.CLOSE
                replies.append((future, None))
        connection.execute("BEGIN IMMEDIATE")
        if bodies:
            self.statements.insert(connection, bodies)
            (last,) = connection.execute("SELECT last_insert_rowid()").fetchone()
            first = last - len(bodies) + 1
            replies.extend((future, first + place) for future, place in places)
        if settled:
            self.statements.settle(connection, settled)
        self._claim(connection, replies)
        connection.execute("COMMIT")
        return replies, open_

    def _claim(
        self,
        connection: sqlite3.Connection,
        replies: list[tuple[asyncio.Future[Any] | None, object]],
    ) -> None:
        while self.claims:
            count, future = self.claims[0]
            if future.cancelled():
                self.claims.popleft()
                continue
            rows = connection.execute(CLAIM, (count,)).fetchall()
            if not rows:
                return
            self.claims.popleft()
            replies.append((future, rows))


def _reply(replies: list[tuple[asyncio.Future[Any] | None, object]]) -> None:
    for future, value in replies:
        if future is not None and not future.done():
            future.set_result(value)


class SqliteContender:
    """The SQLite queue as the benchmarks drive it: calls of the no-op by name and arguments."""

    def __init__(self, directory: Path, *, full: bool, tuned: bool) -> None:
        self.tally = Tally()
        self.tasks = {"noop": self.tally.noop}
        self.path = directory / "queue.db"
        self.statements = Tuned if tuned else Plain
        self.full = full
        self.enqueue: Enqueue = self._enqueue

    async def open(self) -> None:
        self.queue = SqliteQueue(self.path, self.statements, full=self.full)
        await self.queue.send(Op.SETTLE, [])

    async def close(self) -> None:
        await self.queue.send(Op.CLOSE, [])
        self.queue.thread.join()

    async def _enqueue(self, i: int, subject: str) -> int:
        body = to_json(("noop", (i,), {"subject": subject})).decode()
        job: int = await self.queue.send(Op.ENQUEUE, body)
        return job

    async def enqueue_many(self, numbers: range) -> None:
        bodies = [to_json(("noop", (i,), {"subject": SUBJECT})).decode() for i in numbers]
        await self.queue.send(Op.ENQUEUE_MANY, bodies)

    @contextlib.asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        """Runs jobs inside; settles the last ones at its end."""
        runner = asyncio.create_task(self._work())
        yield
        runner.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await runner
        await self.queue.send(Op.SETTLE, [])

    async def _work(self) -> None:
        """Claim, run and settle. The next claim goes out before the last one's jobs run."""
        queue = self.queue
        claim = queue.send(Op.CLAIM, WORKER_CONCURRENCY)
        while True:
            rows: list[Row] = await claim
            claim = queue.send(Op.CLAIM, WORKER_CONCURRENCY)
            done = []
            for job, body in rows:
                name, positional, keywords = from_json(body)
                coroutine = self.tasks[name](*positional, **keywords)
                try:
                    # The first step runs inline: a job that never waits needs no asyncio task.
                    coroutine.send(None)
                except StopIteration:
                    done.append(job)
                else:
                    raise AssertionError("the no-op waited")
            queue.send_soon(Op.SETTLE, done)

    async def counts(self) -> tuple[int, int]:
        """Return rows in the states succeeded and ready; none may be left running."""
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            states = dict(connection.execute("SELECT state, count(*) FROM jobs GROUP BY state"))
        assert not states.get(RUNNING), states
        return states.get(SUCCEEDED, 0), states.get(READY, 0)
