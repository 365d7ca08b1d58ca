"""The app's lifespans while a worker runs: entered before its first claim, left after its drain.

They are held by a task of their own, since what a lifespan opens (a task group, a cancel scope)
must be closed by the task that opened it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from taskq.core.errors import TaskqError, UsageError
from taskq.injection import Resources
from taskq_workers.reasons import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskq.app import TaskQ
    from taskq.tasks import Task

_log: Final = logging.getLogger("taskq.worker")

#: What all lifespans together may take to close.
EXIT_SECONDS: Final = 10.0
#: What they get after that, being cancelled.
CANCEL_SECONDS: Final = 1.0


def bound_names(task: Task[..., Any]) -> dict[str, Any]:
    """Type by name of the parameters that a worker fills in."""
    try:
        return task.signature.injected
    except UsageError:
        raise
    except ValueError:  # some functions of the interpreter have no signature; a call will tell
        return {}


def bound(task: Task[..., Any], resources: Resources) -> Callable[..., Any]:
    """The task's function with its resources filled in; the bare function if it takes none.

    Raises:
        UsageError: a resource is missing; the message names task, parameter and type.
    """
    wanted = bound_names(task)
    return partial(task.fn, **resources.arguments(task.name, wanted)) if wanted else task.fn


class LifespanHolder:
    """Enters an app's lifespans, gives their resources, and leaves them in bounded time.

    Args:
        app: whose lifespans.
        ended: called with the error when one ends although nobody asked it to.
        lends: False where jobs run elsewhere: nothing is entered, and no task may take anything.
        exit_seconds: what they may take to close.

    Attributes:
        resources: what they yielded; nothing before ``entered``.
    """

    def __init__(
        self,
        app: TaskQ,
        ended: Callable[[BaseException], None],
        *,
        lends: bool = True,
        exit_seconds: float = EXIT_SECONDS,
    ) -> None:
        self.resources = Resources()
        self._lends = lends
        self._app = app
        self._ended = ended
        self._exit_seconds = exit_seconds
        self._leave_asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def entered(self, stop: asyncio.Event) -> bool:
        """Enter all and look whether each task gets what it takes; False if a stop came first.

        Raises:
            UsageError: a task takes what no lifespan yields; the message names both.
            TaskqError: a lifespan failed.
        """
        if self._lends and self._app._lifespans:
            entering = asyncio.ensure_future(self.enter())
            stopping = asyncio.ensure_future(stop.wait())
            try:
                await asyncio.wait({entering, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not entering.done():
                    return False
                self.resources = entering.result()
            finally:
                entering.cancel()
                stopping.cancel()
        for task in self._app._tasks.values():
            if self._lends:
                bound(task, self.resources)
            elif bound_names(task):
                raise UsageError(
                    f"{task.name} takes what a lifespan yields, and executors open nothing for "
                    f"their jobs: leave it out of the app that is served there"
                )
        return True

    async def enter(self) -> Resources:
        """Enter all, in the order of their declaration; cancelling this cancels and leaves them.

        Raises:
            TaskqError: one failed; those before it were left again.
        """
        lifespans = self._app._lifespans
        if not lifespans:
            return Resources()
        ready: asyncio.Future[Resources] = asyncio.get_running_loop().create_future()
        task = self._task = asyncio.create_task(self._hold(ready), name="taskq-lifespans")
        either: set[asyncio.Future[Any]] = {task, ready}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if ready.done():
            return ready.result()
        self._task = None
        if not task.cancelled():
            task.result()
        raise TaskqError("the app's lifespans were cancelled as they started, by themselves")

    async def leave(self) -> None:
        """Leave all, last entered first; one that hangs is cancelled, then left behind."""
        task, self._task = self._task, None
        if task is None:
            return
        self._leave_asked.set()
        if not await _done(task, self._exit_seconds):
            _log.error(
                "the app's lifespans did not close within %g s: cancelled", self._exit_seconds
            )
            task.cancel()
            if not await _done(task, CANCEL_SECONDS):
                _log.error("nor when cancelled: they are left behind")
                return
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("the app's lifespans failed as they closed: %s", describe(error))

    async def _hold(self, ready: asyncio.Future[Resources]) -> None:
        resources = Resources()
        async with contextlib.AsyncExitStack() as stack:
            for lifespan in self._app._lifespans:
                try:
                    manager = lifespan.enter(self._app, resources)
                    resources.add(await stack.enter_async_context(manager))
                except TaskqError:
                    raise
                except Exception as error:
                    raise TaskqError(
                        f"the lifespan {lifespan.name} failed at its start: {describe(error)}"
                    ) from error
            if self._task is not None:
                self._task.add_done_callback(self._on_done)
            if not ready.done():
                ready.set_result(resources)
            await self._leave_asked.wait()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if self._leave_asked.is_set():
            return
        error = None if task.cancelled() else task.exception()
        told = "it was cancelled" if error is None else describe(error)
        self._ended(TaskqError(f"a lifespan ended while the worker ran: {told}"))


async def _done(task: asyncio.Task[None], seconds: float) -> bool:
    await asyncio.wait({task}, timeout=seconds)
    return task.done()


@contextlib.contextmanager
def resources_in_thread(app: TaskQ) -> Iterator[Resources]:
    """The resources of an app for a process without an event loop of its own, as children are.

    The lifespans run on a loop in a thread; no thread is started for an app without any. Leaving
    is bounded as in a worker.

    Raises:
        TaskqError: a lifespan failed at its start.
    """
    if not app._lifespans:
        yield Resources()
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_run, args=(loop,), name="taskq-lifespans", daemon=True)
    thread.start()

    async def make() -> LifespanHolder:
        return LifespanHolder(app, partial(_log.error, "%s"))

    try:
        holder = asyncio.run_coroutine_threadsafe(make(), loop).result()
        resources = asyncio.run_coroutine_threadsafe(holder.enter(), loop).result()
        try:
            yield resources
        finally:
            asyncio.run_coroutine_threadsafe(holder.leave(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CANCEL_SECONDS)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
