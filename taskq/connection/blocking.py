"""Blocking twins of coroutines (``enqueue_sync``), and threads for blocking work of a loop."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from taskq.core.errors import UsageError, no_loop
from taskq.log.machine.forks import on_fork
from taskq.log.machine.inside import refuse_inside, uninterrupted

if TYPE_CHECKING:
    import asyncio

    from taskq.log.machine.threads import Pending

P = ParamSpec("P")
R = TypeVar("R")


def blocking(method: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Return the blocking twin of a coroutine method, such as ``pause_sync``.

    In an event loop's thread, which it would block, the twin raises a UsageError.

    The twin runs the coroutine on the loop of one daemon thread of the process, and blocks the
    calling thread meanwhile. Arguments and result are the coroutine's, so both share one docstring.

    asyncio is imported by the calls that need it: its import takes longer than declaring an app,
    and many programs that declare an app start no loop.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_in_loop(f"{method.__name__}_sync()", f"await {method.__name__}()")
        return run(method(*args, **kwargs))

    call.__name__ = f"{method.__name__}_sync"
    call.__qualname__ = f"{method.__qualname__}_sync"
    call.__doc__ = f"Do as ``{method.__name__}``, blocking this thread.\n\n{method.__doc__}"
    return call


async def off_loop(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run blocking work in a thread, off the event loop.

    Raises:
        UsageError: no asyncio loop runs here.
    """
    need_loop()
    from taskq.log.machine.threads import on_thread  # noqa: PLC0415 - as asyncio itself

    return await on_thread(work, *args, **kwargs)


async def in_turns(steps: Generator[None, None, R]) -> R:
    """Do long work in steps, and let the event loop turn after each step.

    Raises:
        UsageError: no asyncio loop runs here.
    """
    need_loop()
    import asyncio  # noqa: PLC0415 - see the module's docstring

    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: R = done.value
            return result
        await asyncio.sleep(0)


def need_loop(*subject: str) -> asyncio.AbstractEventLoop:
    """Return the asyncio loop that runs in this thread.

    Args:
        subject: subject of the error's sentence, in place of the awaited call.

    Raises:
        UsageError: no loop runs; the message has advice for trio.
    """
    import asyncio  # noqa: PLC0415 - see the module's docstring

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise no_loop(*subject) from None


def run(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine on the thread for such calls; an interrupt cancels it.

    Raises:
        UsageError: a finalizer or a signal handler calls it in the middle of a commit.
    """
    pending: Pending[R]
    try:
        loop, pending = _begun()
    except UsageError:
        coroutine.close()
        raise
    call = _Call(coroutine, pending)
    loop.call_soon_threadsafe(call.begin)
    try:
        return pending.result()
    except BaseException:
        pending.cancel()
        loop.call_soon_threadsafe(call.give_up)
        raise


@uninterrupted
def _begun() -> tuple[asyncio.AbstractEventLoop, Pending[Any]]:
    from taskq.log.machine.threads import Pending  # noqa: PLC0415 - as above

    return _Background.current().loop, Pending()


class _Call(Generic[R]):
    """A coroutine that runs for a thread; its methods run on the loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, R], pending: Pending[R]) -> None:
        self._coroutine = coroutine
        self._pending = pending
        self._task: asyncio.Task[R] | None = None

    def begin(self) -> None:
        import asyncio  # noqa: PLC0415 - see the module's docstring

        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._hand_back)

    def give_up(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _hand_back(self, task: asyncio.Task[R]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._pending.done():
            return
        if task.cancelled():
            self._pending.cancel()
        elif error is not None:
            self._pending.set_exception(error)
        else:
            self._pending.set_result(task.result())


def refuse_in_loop(call: str, instead: str) -> None:
    """Raise if an event loop runs in this thread, or the call interrupts another one.

    Raises:
        UsageError: a loop runs here; the message names the coroutine to await.
    """
    refuse_inside(call)
    if "asyncio" not in sys.modules:  # then no loop runs
        return
    import asyncio  # noqa: PLC0415 - see the module's docstring

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(f"{call} would stop this event loop: use {instead}")


class _Background:
    """A loop on its own daemon thread, started at first use; a forked child starts another."""

    #: reentrant: a signal handler may need it while its own thread holds it
    _lock = threading.RLock()
    _present: _Background | None = None

    def __init__(self) -> None:
        import asyncio  # noqa: PLC0415 - see the module's docstring

        from taskq.log.machine.threads import start_thread  # noqa: PLC0415 - as above

        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        try:
            start_thread(self.loop.run_forever, "taskq-sync")
        except BaseException:
            self.loop.close()
            raise

    @classmethod
    def current(cls) -> _Background:
        with cls._lock:
            if cls._present is None:
                cls._present = cls()
            return cls._present

    @classmethod
    def forget(cls) -> None:
        # The thread does not exist in the child, and may have held the lock in the parent.
        cls._lock = threading.RLock()
        cls._present = None


on_fork(_Background.forget)
