"""Threads for what would stop an event loop, and how a thread waits for another.

They are our own, as a program may fill those of its loop.
A worker whose task keeps all threads of asyncio's default executor busy must end all the same.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from taskq.log.machine.forks import on_fork

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

P = ParamSpec("P")
R = TypeVar("R")

#: As many as asyncio's own has.
_THREADS_MAX: Final = min(32, (os.cpu_count() or 1) + 4)
_pools: list[ThreadPoolExecutor] = []


def pool() -> ThreadPoolExecutor:
    if not _pools:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - few need it at once

        _pools.append(ThreadPoolExecutor(_THREADS_MAX, "taskq-aside"))
    return _pools[0]


async def on_thread(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    import asyncio  # noqa: PLC0415 - a program without a loop does not wait for it

    call = partial(copy_context().run, partial(work, *args, **kwargs))
    return await asyncio.get_running_loop().run_in_executor(pool(), call)


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
        #: taken by whoever decides what becomes of it, and never given back
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
            TimeoutError: it was not within so many seconds.
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
        self._wait.release()  # for others who wait

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
