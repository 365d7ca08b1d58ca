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

from taskq.core.errors import LogError
from taskq.log.machine.forks import on_fork
from taskq.log.machine.inside import inside

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

P = ParamSpec("P")
R = TypeVar("R")

#: The size of asyncio's own executor.
_THREADS_MAX: Final = min(32, (os.cpu_count() or 1) + 4)
_pools: list[ThreadPoolExecutor] = []


# The threads are the log's own, since a program may fill its loop's executor. A worker must end
# even if its task keeps all threads of asyncio's default executor busy.
def pool() -> ThreadPoolExecutor:
    if not _pools:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - rarely needed at once

        _pools.append(ThreadPoolExecutor(_THREADS_MAX, "taskq-aside"))
    return _pools[0]


async def on_thread(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    import asyncio  # noqa: PLC0415 - programs without a loop do not load it

    loop, context, first = asyncio.get_running_loop(), copy_context(), allocate_lock()
    done: asyncio.Future[tuple[R | None, BaseException | None]] = loop.create_future()

    def answer(outcome: tuple[R | None, BaseException | None]) -> None:
        if not done.done():
            done.set_result(outcome)

    def call() -> None:
        if first.acquire(blocking=False):
            outcome = context.run(_outcome, partial(work, *args, **kwargs))
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(answer, outcome)

    try:
        pool().submit(call)
    except RuntimeError:
        call()  # no thread is to be had, or the interpreter ends; a busy one may come to it later
    try:
        value, error = await done
    finally:
        first.acquire(blocking=False)  # a call that was given up does not begin
    if error is None:
        return value  # type: ignore[return-value]
    try:
        raise error
    finally:
        del error  # its traceback holds this frame


def _outcome(work: Callable[[], R]) -> tuple[R | None, BaseException | None]:
    # A future cannot hold a StopIteration: its caller would wait for ever.
    try:
        return work(), None
    except BaseException as error:  # noqa: BLE001 - for the caller, not for the thread
        return None, error


def start_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread.

    Raises:
        LogError: the system refuses it; the message names the limits.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise LogError(
            f"the thread {name} cannot be started ({error}). Raise the limit of threads, of the "
            f"user (ulimit -u) or of the container or service (pids limit, TasksMax), or end "
            f"programs"
        ) from None
    return thread


class Pending(Generic[R]):
    """An answer from one thread to another; answering never blocks.

    Answering takes no lock that a waiting thread may hold. A future of ``concurrent.futures`` has a
    condition. A signal handler may run while its thread holds that, and wait for the answering
    thread: a deadlock.
    """

    __slots__ = ("_error", "_first", "_is_cancelled", "_is_done", "_value", "_wait")

    #: no callbacks; see ``enqueue.answer``
    _callbacks: Final = ()

    def __init__(self) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._is_done = self._is_cancelled = False
        #: taken by the thread that decides the outcome, and never released
        self._first = allocate_lock()
        #: held until the answer
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
        """Set the answer.

        Raises:
            InvalidStateError: it has an answer, or was cancelled.
        """
        self._answer(value, None)

    def set_exception(self, error: BaseException) -> None:
        """Set an error as the answer; raises as ``set_result``."""
        self._answer(None, error)

    def result(self, timeout: float | None = None) -> R:
        """Wait for the answer and return it, or raise its error.

        Raises:
            TimeoutError: no answer came within ``timeout``.
        """
        self._wait_for(timeout)
        if self._error is not None:
            raise self._error
        value: R = self._value
        return value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the answer and return its error; raises as ``result`` after the timeout."""
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
            from concurrent.futures import InvalidStateError  # noqa: PLC0415 - rarely raised

            raise InvalidStateError
        self._end(value, error)

    def _end(self, value: Any, error: BaseException | None) -> None:
        self._value, self._error, self._is_done = value, error, True
        self._wait.release()


def _cancelled() -> BaseException:
    from concurrent.futures import CancelledError  # noqa: PLC0415 - rarely made

    return CancelledError()


# A child has none of its parent's threads.
on_fork(_pools.clear)


#: Most waiting reports; further ones are counted and dropped.
REPORTS_MAX: Final = 1_000
#: Longest wait of a closing log for its last reports.
DRAIN_SECONDS: Final = 1.0


class Aside:
    """Makes calls on a thread of its own, which exists only while there are calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dropped: int = 0
        self._calls: deque[Callable[[], object]] = deque()
        self._turn = _thread.allocate_lock()
        self._ident = 0

    def put(self, call: Callable[[], object]) -> None:
        """Queue a call; at most ``REPORTS_MAX`` may wait."""
        if len(self._calls) >= REPORTS_MAX:
            self.dropped += 1
            return
        self._calls.append(call)
        self._begin()

    def _begin(self) -> None:
        # A later call finds the turn free, or the turn's holder checks once more.
        while self._calls and self._turn.acquire(blocking=False):
            try:
                # Starting a ``threading.Thread`` waits, and takes a lock of other code.
                _thread.start_new_thread(self._work, ())
            except RuntimeError:  # no free thread, or the interpreter ends: with the next
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
        """Wait until all calls are made, up to a limit, since a call may wait for this thread."""
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
        """Drop the parent's calls and thread in a forked child."""
        self._calls.clear()
        self._turn = _thread.allocate_lock()
        self._ident = 0


#: Threads for log lines, and for calls of other code: a slow log handler must not delay these.
reports: Final = Aside("taskq-reports")
errands: Final = Aside("taskq-errands")


class Reporter:
    """Logger for code that may run within the engine; elsewhere it logs at once."""

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
