"""The load of every contender: argument, no-op, producers, and a count of calls."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

#: With the number beside it, the arguments of a call are about 100 bytes of JSON.
SUBJECT: Final = "x" * 84
#: Jobs of one ``enqueue_many``.
MANY_COUNT: Final = 1_000
#: Jobs that a worker may have in hand.
WORKER_CONCURRENCY: Final = 1_000

Enqueue = Callable[[int, str], Awaitable[object]]


class Clock:
    """Runs from its making: wall time, and the processor time of all threads of this process."""

    def __init__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def taken(self) -> tuple[float, float]:
        return time.perf_counter() - self._began, time.process_time() - self._cpu


class Tally:
    """Counts the calls of its no-op, and signals the last one. One event loop only.

    Attributes:
        clock: made at the first call.
        reached: set at the last.
    """

    def __init__(self) -> None:
        self.expect(0)

        async def noop(i: int, subject: str) -> None:
            self._seen += 1
            if self._seen == self._target:
                self._reach()

        #: the job: it counts itself
        self.noop = noop

    def expect(self, count: int) -> None:
        """Start again from zero, for ``count`` calls."""
        self._seen, self._count = 0, count
        #: the call that does more than count: the first, then the last
        self._target = 1
        self.clock: Clock | None = None
        self.reached = asyncio.Event()

    def _reach(self) -> None:
        if self.clock is None:
            self.clock, self._target = Clock(), self._count
        if self._seen == self._count:
            self.reached.set()


class Contender(Protocol):
    """One queue under test, in a directory of its own. ``enqueue`` returns once durable."""

    tally: Tally
    enqueue: Enqueue

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def enqueue_many(self, numbers: range) -> None: ...

    def worker(self) -> AbstractAsyncContextManager[object]:
        """Runs jobs inside; its end drains and settles what was claimed."""
        ...

    async def counts(self) -> tuple[int, int]:
        """Jobs (succeeded, waiting) as the store itself says; fails if one ended otherwise."""
        ...


async def produce(enqueue: Enqueue, count: int, producers: int) -> None:
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
    for start in range(0, count, MANY_COUNT):
        await contender.enqueue_many(range(start, min(start + MANY_COUNT, count)))
