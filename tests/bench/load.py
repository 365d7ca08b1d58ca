"""The load that every contender gets: argument, no-op, producers, and the count of what ran."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

#: With the number beside it, the arguments of a call are about 100 bytes of JSON.
SUBJECT: Final = "x" * 84
#: Jobs of one ``enqueue_many``.
MANY_COUNT: Final = 1_000
#: Jobs that a worker may have in hand.
WORKER_CONCURRENCY: Final = 1_000

Enqueue = Callable[[int, str], Awaitable[object]]


class Tally:
    """Counts the calls of its no-op, and tells when all have run. One event loop only."""

    def __init__(self) -> None:
        self.seen = 0
        self.target = 0
        self.reached = asyncio.Event()

        async def noop(i: int, subject: str) -> None:
            self.seen += 1
            if self.seen == self.target:
                self.reached.set()

        #: the job: it counts itself
        self.noop = noop

    def expect(self, count: int) -> None:
        """Start again from zero, for ``count`` calls."""
        self.seen = 0
        self.target = count
        self.reached = asyncio.Event()


class Contender(Protocol):
    """One queue under test, in a directory of its own. ``enqueue`` returns once durable."""

    tally: Tally
    enqueue: Enqueue

    async def open(self) -> None:
        """Make ready to enqueue."""
        ...

    async def close(self) -> None:
        """Answer everything and give the directory back."""
        ...

    async def enqueue_many(self, numbers: range) -> None:
        """Enqueue one job for each number, in one transaction."""
        ...

    def worker(self) -> AbstractAsyncContextManager[object]:
        """Runs jobs inside; its end drains and settles what was claimed."""
        ...

    def busy_thread(self) -> AbstractAsyncContextManager[object]:
        """Inside, one CPU-bound sync task runs in a thread of this process. Needs a worker."""
        ...

    async def counts(self) -> tuple[int, int]:
        """Jobs (succeeded, waiting) as the store itself says; fails if one ended otherwise."""
        ...

    def batches(self) -> int:
        """Transactions (SQLite) or frames (taskq) that this process wrote so far."""
        ...


async def produce(enqueue: Enqueue, count: int, producers: int) -> None:
    """Enqueue ``count`` jobs from so many callers at once, each awaiting its answers in turn."""
    share, rest = divmod(count, producers)

    async def enqueue_all(numbers: range) -> None:
        for number in numbers:
            await enqueue(number, SUBJECT)

    async with asyncio.TaskGroup() as group:
        start = 0
        for producer in range(producers):
            stop = start + share + (1 if producer < rest else 0)
            group.create_task(enqueue_all(range(start, stop)))
            start = stop


async def fill(contender: Contender, count: int) -> None:
    """Enqueue ``count`` jobs in transactions of ``MANY_COUNT``."""
    for start in range(0, count, MANY_COUNT):
        await contender.enqueue_many(range(start, min(start + MANY_COUNT, count)))


def spin(stop: Callable[[], bool]) -> int:
    """Pure Python work, as a CPU-bound sync task does it, until ``stop()``."""
    rounds = 0
    while not stop():
        for _ in range(1_000):
            rounds += 1
    return rounds
