"""Threads for blocking work and for the reports of the storage thread."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from taskq.core.errors import UsageError
from taskq.log.machine.forks import on_fork

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

P = ParamSpec("P")
R = TypeVar("R")

#: As many as asyncio's own has.
_THREADS_MAX: Final = min(32, (os.cpu_count() or 1) + 4)
_pools: list[ThreadPoolExecutor] = []


# The threads are our own, as a program may fill its loop's executor. A worker whose task keeps all
# threads of asyncio's default executor busy must end all the same.
def pool() -> ThreadPoolExecutor:
    if not _pools:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - few need it at once

        _pools.append(ThreadPoolExecutor(_THREADS_MAX, "taskq-aside"))
    return _pools[0]


async def on_thread(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    import asyncio  # noqa: PLC0415 - a program without a loop does not wait for it

    call = partial(copy_context().run, _outcome, partial(work, *args, **kwargs))
    try:
        outcome = asyncio.get_running_loop().run_in_executor(pool(), call)
    except RuntimeError:
        if threading.main_thread().is_alive():
            raise
        # The interpreter ends, and starts no thread any more.
        value, error = _outcome(partial(work, *args, **kwargs))
    else:
        value, error = await outcome
    if error is None:
        return value  # type: ignore[return-value]
    try:
        raise error
    finally:
        del error  # its traceback holds this frame


def _outcome(work: Callable[[], R]) -> tuple[R | None, BaseException | None]:
    # A future cannot hold a StopIteration: its waiter would wait for ever.
    try:
        return work(), None
    except BaseException as error:  # noqa: BLE001 - the waiter's, not the thread's
        return None, error


class Pending(Generic[R]):
    """An answer that one thread waits for and another gives, which never waits to give it.

    Giving takes no lock that a waiting thread may hold. One of ``concurrent.futures`` has a
    condition: a signal handler that comes while its thread holds that, and waits for something
    else of the thread that answers, would wait for ever.
    """

    __slots__ = ("_error", "_first", "_is_cancelled", "_is_done", "_value", "_wait")

    #: nobody is called; see ``runs.answer``
    _callbacks: Final = ()

    def __init__(self) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._is_done = self._is_cancelled = False
        #: taken by the thread that decides the outcome, and never given back
        self._first = allocate_lock()
        #: held until it is answered
        self._wait = allocate_lock()
        self._wait.acquire()

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return self._is_cancelled

    def cancel(self) -> bool:
        if self._first.acquire(blocking=False):
            self._is_cancelled = True
            self._end(None, _cancelled())
        return self._is_cancelled

    def set_result(self, value: R) -> None:
        """Answer it.

        Raises:
            InvalidStateError: it is answered, or was given up.
        """
        self._answer(value, None)

    def set_exception(self, error: BaseException) -> None:
        """Answer it with an error; raises as ``set_result``."""
        self._answer(None, error)

    def result(self, timeout: float | None = None) -> R:
        """Return the answer, or raise the error, once it is there.

        Raises:
            TimeoutError: no answer came within the time.
        """
        self._wait_for(timeout)
        if self._error is not None:
            raise self._error
        value: R = self._value
        return value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, once it is answered; raises as ``result`` does if it takes too long."""
        self._wait_for(timeout)
        if self._is_cancelled and self._error is not None:
            raise self._error
        return self._error

    def _wait_for(self, timeout: float | None) -> None:
        if self._is_done:
            return
        if not self._wait.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            raise TimeoutError
        self._wait.release()  # for other waiters

    def _answer(self, value: Any, error: BaseException | None) -> None:
        if not self._first.acquire(blocking=False):
            from concurrent.futures import InvalidStateError  # noqa: PLC0415 - seldom raised

            raise InvalidStateError
        self._end(value, error)

    def _end(self, value: Any, error: BaseException | None) -> None:
        self._value, self._error, self._is_done = value, error, True
        self._wait.release()


def _cancelled() -> BaseException:
    from concurrent.futures import CancelledError  # noqa: PLC0415 - seldom made

    return CancelledError()


# A child has none of its parent's threads.
on_fork(_pools.clear)


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
        self.dropped: int = 0
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
        # A later call finds the turn free, or its holder looks once more.
        while self._calls and self._turn.acquire(blocking=False):
            try:
                # The start of a ``threading.Thread`` waits, and takes a lock of others.
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
