"""Minding the time of a thread that waits in line for the writer lock.

The wait itself happens in the kernel: its line is fair and wakes at once, but it knows no limit.
So a second thread, which lives only while waits happen, minds the clock and has callers told.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.log.lock import WriterLock

#: Looks per longest wait.
_SHARE: Final = 8
#: The watcher ends after so many looks that saw nobody wait.
_QUIET_LOOKS: Final = 80


class LockWatch:
    """Calls ``on_late(seconds waited)`` for as long as a wait is over its limit.

    Args:
        writer: the lock; its waits start the watch.
        limit_seconds: the longest wait.
        on_late: called on the watcher's thread, again at every look.
    """

    def __init__(
        self, writer: WriterLock, limit_seconds: float, on_late: Callable[[float], None]
    ) -> None:
        self._writer = writer
        self._limit_seconds = limit_seconds
        self._on_late = on_late
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        writer.on_wait = self._start

    def stop(self) -> None:
        """End the watch; legal twice."""
        self._stopped.set()

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="taskq-lock-watch", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        quiet = 0
        while quiet < _QUIET_LOOKS and not self._stopped.wait(self._limit_seconds / _SHARE):
            since = self._writer.waiting_since
            quiet = 0 if since else quiet + 1
            waited = time.monotonic() - since if since else 0.0
            if waited > self._limit_seconds:
                self._on_late(waited)
