"""An app's lifespans: entered before the worker's first claim, left after its drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator
from functools import partial
from typing import Any, Final, TypeVar

from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from taskq import Task, TaskQ, engine, errors, hooks
from taskq.limits import Deadline
from taskq_workers.runs.reasons import describe

T = TypeVar("T")


def begin(code: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start the coroutine as a task; the caller must keep the task and await its end."""
    return asyncio.get_running_loop().create_task(code, name=name)


async def until_done(tasks: Collection[asyncio.Task[Any]], seconds: float) -> bool:
    """Wait for the tasks, without cancelling them; return whether all are done."""
    with contextlib.suppress(TimeoutError):
        async with Deadline(seconds):
            await asyncio.wait(tasks)
    return all(task.done() for task in tasks)


_log: Final = logging.getLogger("taskq.worker")

#: Longest time for all lifespans together to close.
EXIT_SECONDS: Final = 10.0
#: Further time for cancelled lifespans.
CANCEL_SECONDS: Final = 1.0


def resource_parameters(task: Task[..., Any]) -> dict[str, Any]:
    try:
        return task.signature.injected
    except errors.UsageError:
        raise
    except ValueError:  # some built-in functions have no signature; a call will show
        return {}


def bind_resources(task: Task[..., Any], resources: hooks.Resources) -> Callable[..., Any]:
    """Return the function with its resources filled in; the bare function if it takes none."""
    wanted = resource_parameters(task)
    return partial(task.fn, **resources.arguments(task.name, wanted)) if wanted else task.fn


class LifespanHolder:
    """Enters an app's lifespans, provides their resources, and leaves them in limited time.

    If ``lends`` is False, jobs run elsewhere: nothing is entered, and no task may take a resource.

    A separate task holds them, since an object that a lifespan opened (a task group, a cancel
    scope) must be closed by the same task.
    """

    def __init__(self, app: TaskQ, *, lends: bool = True) -> None:
        self.resources = hooks.Resources()
        self._lends = lends
        self._app = app
        self._leave_asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def enter(self) -> None:
        """Enter all in the order of their declaration, and check that each task gets its resources.

        Cancellation leaves them.
        """
        if self._lends and self._app.hooks.lifespans:
            self.resources = await self._entered()
        if self._app.hooks.middleware and not self._lends:
            _log.warning("jobs run on executors, where the app's middleware does not stand")
        for task in self._app.tasks.values():
            if self._lends:
                bind_resources(task, self.resources)
            elif resource_parameters(task):
                raise errors.UsageError(
                    f"{task.name} takes what a lifespan yields, and executors open nothing for "
                    f"their jobs: leave it out of the app that is served there"
                )

    async def _entered(self) -> hooks.Resources:
        ready: asyncio.Future[hooks.Resources] = asyncio.get_running_loop().create_future()
        task = self._task = begin(self._hold(ready), "taskq-lifespans")
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
        raise errors.TaskqError("the app's lifespans were cancelled as they started, by themselves")

    async def run(self, store: engine.Store | None, *, task_status: TaskStatus[None]) -> None:
        """Run until cancelled, and watch for a lifespan that ends."""
        del store
        task_status.started()
        if self._task is not None:
            await asyncio.wait({self._task})
            error = None if self._task.cancelled() else self._task.exception()
            reason = "it was cancelled" if error is None else describe(error)
            raise errors.TaskqError(f"a lifespan ended while the worker ran: {reason}")

    async def leave(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        self._leave_asked.set()
        if not await until_done({task}, EXIT_SECONDS):
            _log.error("the app's lifespans did not close within %g s: cancelled", EXIT_SECONDS)
            task.cancel()
            if not await until_done({task}, CANCEL_SECONDS):
                _log.error("nor when cancelled: they are abandoned")
                return
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("the app's lifespans failed as they closed: %s", describe(error))

    async def _hold(self, ready: asyncio.Future[hooks.Resources]) -> None:
        resources = hooks.Resources()
        async with contextlib.AsyncExitStack() as stack:
            for lifespan in self._app.hooks.lifespans:
                try:
                    manager = lifespan.enter(self._app, lifespan.resources(resources))
                    resources.add(await stack.enter_async_context(manager))
                except errors.TaskqError:
                    raise
                except Exception as error:
                    raise errors.TaskqError(
                        f"{lifespan.name} failed at its start: {describe(error)}"
                    ) from error
            if not ready.done():
                ready.set_result(resources)
            await self._leave_asked.wait()


@contextlib.contextmanager
def resources_in_thread(app: TaskQ) -> Iterator[hooks.Resources]:
    """Enter the resources of an app in a process without an event loop, such as a child.

    The lifespans run on a loop in a thread; an app without lifespans needs no thread. Leaving
    takes limited time, as in a worker.
    """
    if not app.hooks.lifespans:
        yield hooks.Resources()
        return
    loop = asyncio.new_event_loop()
    try:
        thread = engine.start_thread(partial(_run, loop), "taskq-lifespans")
    except BaseException:
        loop.close()
        raise
    holder = LifespanHolder(app)
    try:
        asyncio.run_coroutine_threadsafe(holder.enter(), loop).result()
        watching = asyncio.run_coroutine_threadsafe(_watch(holder), loop)
        try:
            yield holder.resources
        finally:
            watching.cancel()
            asyncio.run_coroutine_threadsafe(holder.leave(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CANCEL_SECONDS)


async def _watch(holder: LifespanHolder) -> None:
    try:
        await holder.run(None, task_status=TASK_STATUS_IGNORED)
    except errors.TaskqError as error:
        _log.error("%s", error)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
