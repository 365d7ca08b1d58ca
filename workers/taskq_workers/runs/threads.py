"""Where sync functions run: threads of the worker's own.

The loop's default executor is left to the user's code, which may fill it. The threads are daemons:
a function that never returns cannot keep a process from its end.

Nothing can stop a thread from outside. A job whose time is over is given up: it fails, its slot
takes the next, and the function goes on, unheard, in a thread that counts against the limit until
it returns. A soft limit is raised in the thread by the interpreter, when that next runs Python
code: a call into C that blocks, ``time.sleep`` among them, returns first.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final

from taskq import SoftTimeout
from taskq.hooks import running_job
from taskq.values import NamedTuple
from taskq_workers.runs.guards import end_child
from taskq_workers.runs.timeouts import Limits, left_of, tell_deadline, too_long

_log: Final = logging.getLogger("taskq.worker")

#: How often the interpreter may switch threads. The default of 5 ms lets one CPU-bound function
#: keep the event loop and the storage thread waiting that long at each of their steps. Beside such
#: a function a busy worker wrote 390 batches a second with 0.5 ms, and 500 with 0.2 ms.
SWITCH_INTERVAL_SECONDS: Final = 0.0002
_raise_in_thread: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Returned(NamedTuple):
    """Result of a function. A future's own exception could not be a StopIteration."""

    value: Any
    error: BaseException | None


class _Call:
    """A call, handed to whichever thread is free."""

    __slots__ = ("args", "began", "context", "function", "future", "given_up", "kwargs")

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        future: asyncio.Future[Returned],
    ) -> None:
        self.context: Context = copy_context()
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.future = future
        self.began = False
        self.given_up = False


class ThreadRunner:
    """Runs functions in at most ``limit`` threads, started when needed, and wakes the loop once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._returned: deque[tuple[_Call, Returned]] = deque()
        self._notified = False
        self._pid = os.getpid()
        #: calls handed over and not yet returned
        self.busy = 0
        #: those of them that nobody waits for any more
        self.given_up = 0

    async def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        limits: Limits | None = None,
    ) -> Any:
        """Call the function in a thread, within a copy of this context.

        Cancelling gives up the wait, not the function: one that has begun goes on to its end. Its
        limits of time count from when a thread takes it.

        Raises:
            TimeoutError: it was given up because its time was over.
            RuntimeError: the threads have ended, with their worker.
            BaseException: whatever the function raised.
        """
        if not self._limit:
            raise RuntimeError("the worker has ended: no thread is left to run a sync function")
        watched = None if limits is None else _Watched(function, limits)
        future: asyncio.Future[Returned] = self._loop.create_future()
        self.busy += 1
        if self.busy > len(self._threads) < self._limit:
            self._start_thread()
        call = _Call(watched or function, args, kwargs, future)
        self._calls.put(call)
        if watched is not None:
            watched.start(self._loop, future)
        try:
            value, error = await future
        except asyncio.CancelledError:
            self._give_up(call)
            raise
        if watched is not None:
            watched.stop()
            if watched.gave_up:
                self._give_up(call)
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Let each thread end after the call that it is in; returns at once. Legal twice."""
        for _ in self._threads:
            self._calls.put(None)
        self._threads = []
        self._limit = 0

    def _give_up(self, call: _Call) -> None:
        if isinstance(call.function, _Watched):
            call.function.stop()
        if not call.began or call.given_up:
            return
        call.given_up = True
        self.given_up += 1
        job = call.context.get(running_job)
        what = "a function" if job is None else f"job {job.id}: {job.task}"
        _log.warning(
            "%s was given up, but its thread cannot be stopped and goes on until it returns "
            "(%d of %d threads are held like this)",
            what,
            self.given_up,
            self._limit or len(self._threads),
        )
        if self.given_up >= self._limit > 0:
            _log.error(
                "all %d threads are held by jobs that were given up: sync jobs wait until one "
                'returns. A task that may hang belongs in a process: runs_in="process"',
                self._limit,
            )

    def _start_thread(self) -> None:
        if not self._threads:
            sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_SECONDS))
        name = f"taskq-run-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            # A call given up while it waited in line was released, and may run elsewhere by now.
            if call.future.cancelled():
                returned = Returned(None, None)
            else:
                call.began = True
                try:
                    value = call.context.run(call.function, *call.args, **call.kwargs)
                    returned = Returned(value, None)
                except BaseException as error:  # noqa: BLE001 - the job's failure, not the thread's
                    returned = Returned(None, error)
                if os.getpid() != self._pid:
                    call.context.run(end_child)
            self._hand_back(call, returned)
            # An idle thread must not keep the last job's arguments alive.
            del call, returned
            value = None

    def _hand_back(self, call: _Call, returned: Returned) -> None:
        self._returned.append((call, returned))
        if self._notified:
            return
        # Two threads may both come here; the second wake-up then finds nothing, which is harmless.
        self._notified = True
        try:
            self._loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:  # the loop is closed: nobody waits any more
            self._returned.clear()

    def _resolve(self) -> None:
        # Cleared before the deque is read, so that what is appended from here on wakes us again.
        self._notified = False
        while self._returned:
            call, returned = self._returned.popleft()
            self.busy -= 1
            self.given_up -= call.given_up
            if not call.future.done():
                call.future.set_result(returned)


class _Watched:
    """A call with limits of time: runs in a thread, while timers of the loop watch it.

    The interpreter raises SoftTimeout in the thread some steps after it was asked to, and by then
    the thread may be at its next job. So either the timer sees that the call is over and asks for
    nothing, or the thread sees that the timer is about to ask, waits for that, and takes it back.
    """

    def __init__(self, function: Callable[..., Any], limits: Limits) -> None:
        self.gave_up = False
        self._function = function
        self._told, self._soft = limits
        self._hard = left_of(limits.hard)
        self._thread = 0
        self._began = 0.0
        self._asks = self._over = False
        self._asked = threading.Event()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tell_deadline(self._hard)
        self._thread = threading.get_ident()
        self._began = monotonic()
        if self._soft is None:
            return self._function(*args, **kwargs)
        finished = value = None
        try:
            try:
                value = self._function(*args, **kwargs)
                finished = True
            finally:
                self._end()
        except SoftTimeout:
            # It may have come in the very last step, when the value was there already.
            if not finished:
                raise
        return value

    def start(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Returned]) -> None:
        if self._hard is not None:
            self._arm(loop, "hard", self._hard, lambda: self._on_hard(future))
        if self._soft is not None:
            self._arm(loop, "soft", self._soft, self._on_soft)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _arm(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        seconds: float,
        ring: Callable[[], None],
        wait: float | None = None,
    ) -> None:
        def look() -> None:
            # Until a thread takes the call its time has not begun.
            left = self._began + seconds - monotonic() if self._began else seconds
            if left > 0:
                self._arm(loop, name, seconds, ring, left)
            else:
                ring()

        self._timers[name] = loop.call_later(seconds if wait is None else wait, look)

    def _on_hard(self, future: asyncio.Future[Returned]) -> None:
        if not future.done() and self._told is not None:
            self.gave_up = True
            error = too_long(self._told, ": it goes on in its thread, which nothing can stop")
            future.set_result(Returned(None, error))

    def _on_soft(self) -> None:
        self._asks = True
        if not self._over:
            _raise_in_thread(ctypes.c_ulong(self._thread), ctypes.py_object(SoftTimeout))
        self._asked.set()

    def _end(self) -> None:
        self._over = True
        if self._asks:
            self._asked.wait()
            _raise_in_thread(ctypes.c_ulong(self._thread), None)
