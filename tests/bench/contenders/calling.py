"""Let a sample ask a contender for jobs."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Callers at once in a full cycle.
CALLERS: Final = 64


class Caller:
    """A program that enqueues from threads. Tasks are called by name: noop, stamp or hold."""

    #: what starts a worker, as the contender's documentation does
    worker: Sequence[str]

    def call(self, task: str, number: int) -> object:
        """Enqueue one job, durable as the contender promises it when this returns."""
        raise NotImplementedError

    def fill(self, task: str, jobs: int) -> None:
        """Enqueue so many in whatever way is the fastest; nobody measures it."""
        raise NotImplementedError

    def counts(self) -> tuple[int | None, int]:
        """Return jobs (succeeded, not ended) as the store says; None if it keeps no count of those.

        Fails if one ended otherwise.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the store."""

    def enqueue(self, task: str) -> None:
        """Enqueue one."""
        self.call(task, 0)

    def enqueue_each(self, jobs: int) -> list[float]:
        """Enqueue no-ops, each after the answer to the last; return the seconds of each."""
        taken = []
        for number in range(jobs):
            start = time.perf_counter()
            self.call("noop", number)
            taken.append(time.perf_counter() - start)
        return taken

    def enqueue_at_once(self, jobs: int) -> None:
        """Enqueue no-ops from ``CALLERS`` callers; the first error of one is raised here."""
        errors: list[Exception] = []

        def call(numbers: range) -> None:
            try:
                for number in numbers:
                    self.call("noop", number)
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
