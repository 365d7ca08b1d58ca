"""How a sample asks a contender for jobs, and callers for those whose calls block."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from tests.bench.load import SUBJECT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Callers at once in a full cycle.
CALLERS: Final = 64


class Caller(Protocol):
    """A program that enqueues. Tasks are called by name: noop, stamp or hold."""

    #: what starts a worker, as the contender's documentation does
    worker: Sequence[str]

    def enqueue(self, task: str) -> None:
        """Enqueue one job, durable as the contender promises it when this returns."""
        ...

    def enqueue_each(self, jobs: int) -> list[float]:
        """Enqueue no-ops, each after the answer to the last; the seconds of each."""
        ...

    def enqueue_at_once(self, jobs: int) -> None:
        """Enqueue no-ops from ``CALLERS`` callers."""
        ...

    def fill(self, task: str, jobs: int) -> None:
        """Enqueue so many in whatever way is the fastest; nobody measures it."""
        ...

    def counts(self) -> tuple[int | None, int]:
        """Return jobs (succeeded, not ended) as the store says; None if it keeps no count of those.

        Fails if one ended otherwise.
        """
        ...

    def close(self) -> None:
        """Let go of the store."""
        ...


def one_by_one(enqueue: Callable[[int, str], object], jobs: int) -> list[float]:
    """Call and wait, again and again; the seconds of each call."""
    taken = []
    for number in range(jobs):
        start = time.perf_counter()
        enqueue(number, SUBJECT)
        taken.append(time.perf_counter() - start)
    return taken


def by_threads(enqueue: Callable[[int, str], object], jobs: int) -> None:
    """Call from ``CALLERS`` threads; the first error of one is raised here."""
    errors: list[Exception] = []

    def call(numbers: range) -> None:
        try:
            for number in numbers:
                enqueue(number, SUBJECT)
        except Exception as error:  # noqa: BLE001 - whatever it is, the sample fails with it
            errors.append(error)

    threads = [
        threading.Thread(target=call, args=(range(first, jobs, CALLERS),), daemon=True)
        for first in range(CALLERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
