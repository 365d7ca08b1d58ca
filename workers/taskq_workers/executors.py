"""Where sync functions run: threads of the worker's own.

The loop's default executor is left to the user's code, which may fill it. The threads are daemons:
a function that never returns cannot keep a process from its end. Nothing can stop a thread from
outside, so a task's ``timeout`` does not apply to sync functions.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

#: How often the interpreter may switch threads. The default of 5 ms lets one CPU-bound function
#: keep the event loop and the storage thread waiting that long at each of their steps. Beside such
#: a function a busy worker wrote 390 batches a second with 0.5 ms, and 500 with 0.2 ms.
SWITCH_INTERVAL_SECONDS: Final = 0.0002


class Returned(NamedTuple):
    """What a function left behind. A future's own exception could not be a StopIteration."""

    value: Any
    error: BaseException | None


class _Call(NamedTuple):
    context: Context
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    future: asyncio.Future[Returned]


class ThreadRunner:
    """Runs functions in at most ``limit`` threads, started when needed, and wakes the loop once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._returned: deque[tuple[asyncio.Future[Returned], Returned]] = deque()
        self._notified = False
        #: calls handed over and not yet returned
        self.busy = 0

    async def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the function in a thread, within a copy of this context.

        Cancelling gives up the wait, not the function: one that has begun goes on to its end.
        """
        future: asyncio.Future[Returned] = self._loop.create_future()
        self.busy += 1
        if self.busy > len(self._threads) < self._limit:
            self._start_thread()
        self._calls.put(_Call(copy_context(), function, args, kwargs, future))
        value, error = await future
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Let each thread end after the call that it is in; returns at once. Legal twice."""
        for _ in self._threads:
            self._calls.put(None)
        self._threads = []
        self._limit = 0

    def _start_thread(self) -> None:
        if not self._threads:
            sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_SECONDS))
        name = f"taskq-run-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            context, function, args, kwargs, future = call
            # A call given up while it waited in line was released, and may run elsewhere by now.
            if future.cancelled():
                returned = Returned(None, None)
            else:
                try:
                    returned = Returned(context.run(function, *args, **kwargs), None)
                except BaseException as error:  # noqa: BLE001 - the job's failure, not the thread's
                    returned = Returned(None, error)
            self._hand_back(future, returned)
            # An idle thread must not keep the last job's arguments alive.
            del call, context, function, args, kwargs, future, returned

    def _hand_back(self, future: asyncio.Future[Returned], returned: Returned) -> None:
        self._returned.append((future, returned))
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
            future, returned = self._returned.popleft()
            self.busy -= 1
            if not future.done():
                future.set_result(returned)
