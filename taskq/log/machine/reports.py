"""What the storage thread leaves to others: its log lines, and calls of code that is not ours.

It holds locks that everybody waits for. A logging handler, a finalizer or an event loop of the
user's may wait for a request of this very log; if the storage thread waited for one of them, both
would wait for ever. So it logs through ``Reporter``: a line goes into a bounded queue, and a thread
of its own hands it to ``logging``. Callers that commit for the storage thread do the same.

Nothing here blocks, takes a lock that other code may hold, or minds being interrupted by itself.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Final

from taskq.core.errors import UsageError
from taskq.log.machine.forks import on_fork

#: Reports that wait at most; what comes beyond that is counted, and left out.
REPORTS_MAX: Final = 1_000
#: How long a log that closes waits for its last reports to be out.
DRAIN_SECONDS: Final = 1.0
#: Threads that are within the engine now: they have, or are about to take, what others wait for.
inside: Final[set[int]] = set()


def refuse_inside(path: str) -> None:
    """Refuse to wait for the engine from within it.

    Raises:
        UsageError: this thread is a storage thread, or in the midst of a commit.
    """
    if get_ident() in inside:
        raise UsageError(
            f"{path}: a signal handler or a finalizer came in the midst of a commit and would wait "
            f"for it for ever: enqueue from another thread, or later"
        )


class Aside:
    """Makes calls on a thread of its own, which is there while there are some."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dropped = 0
        self._calls: deque[Callable[[], object]] = deque()
        self._turn = _thread.allocate_lock()
        self._ident = 0

    def put(self, call: Callable[[], object]) -> None:
        """Have it made soon; at most ``REPORTS_MAX`` wait."""
        if len(self._calls) >= REPORTS_MAX:
            self.dropped += 1
            return
        self._calls.append(call)
        self._begin()

    def _begin(self) -> None:
        # Whoever adds a call later finds the turn free, or the one that has it looks once more.
        while self._calls and self._turn.acquire(blocking=False):
            try:
                # Not ``threading.Thread``, whose start waits, and takes a lock that others hold.
                _thread.start_new_thread(self._work, ())
            except RuntimeError:  # no thread is to be had, or the interpreter ends: with the next
                self._turn.release()
            return

    def _work(self) -> None:
        threading.current_thread().name = self.name
        self._ident = get_ident()
        self._make_all()
        self._turn.release()
        self._begin()

    def _make_all(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                call = self._calls.popleft()
                with contextlib.suppress(BaseException):
                    call()
                del call

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Wait until all calls are made, but not for ever, as one may wait for this thread."""
        if get_ident() == self._ident or get_ident() in inside:
            return
        until = time.monotonic() + seconds
        while self._calls or self._turn.locked():
            if not self._turn.acquire(timeout=max(until - time.monotonic(), 0)):
                return
            try:
                self._make_all()
            finally:
                self._turn.release()

    def forget(self) -> None:
        """In a forked child: the calls, and the thread, are the parent's."""
        self._calls.clear()
        self._turn = _thread.allocate_lock()
        self._ident = 0


#: For log lines, and for calls that are not ours: a handler that waits must not hold up the others.
reports: Final = Aside("taskq-reports")
errands: Final = Aside("taskq-errands")


class Reporter:
    """A logger for code that may run within the engine; elsewhere it logs at once."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, text: str, *values: object) -> None:
        self._say(logging.DEBUG, text, values, None)

    def info(self, text: str, *values: object) -> None:
        self._say(logging.INFO, text, values, None)

    def warning(self, text: str, *values: object, exc_info: BaseException | None = None) -> None:
        self._say(logging.WARNING, text, values, exc_info)

    def error(self, text: str, *values: object, exc_info: BaseException | None = None) -> None:
        self._say(logging.ERROR, text, values, exc_info)

    def exception(self, text: str, *values: object) -> None:
        self._say(logging.ERROR, text, values, sys.exception())

    def _say(
        self, level: int, text: str, values: tuple[object, ...], error: BaseException | None
    ) -> None:
        if get_ident() not in inside:
            self._logger.log(level, text, *values, exc_info=error, stacklevel=3)
            return
        dropped, reports.dropped = reports.dropped, 0
        if dropped:
            reports.put(lambda: self._logger.error("%d reports were left out", dropped))
        reports.put(lambda: self._logger.log(level, text, *values, exc_info=error))


def drain() -> None:
    for aside in (errands, reports):
        aside.drain()


def _forget() -> None:
    inside.clear()
    for aside in (errands, reports):
        aside.forget()


atexit.register(drain)
on_fork(_forget)
