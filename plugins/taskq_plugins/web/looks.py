"""Reads the log in a directory for the pages and the API: no lock, no write, without the app."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import anyio.to_thread

from taskq.log.read.reader import LogReader

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: Threads that read at a time; whoever else asks waits. Reading is work for the interpreter, so
#: more would only be slower.
_THREADS: Final = 2


class Looks:
    """Reads on threads of its own, each time from the directory as it is then.

    Args:
        path: directory of the log.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._threads = anyio.CapacityLimiter(_THREADS)

    async def read(self, work: Callable[[LogReader], T]) -> T:
        """What ``work`` makes of the log.

        Raises:
            LogError: the log could not be read.
        """

        def look() -> T:
            with LogReader.open(self.path) as reader:
                return work(reader)

        return await anyio.to_thread.run_sync(look, limiter=self._threads)
