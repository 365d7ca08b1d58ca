"""Asyncio tasks of a worker: groups of services, and waits with a limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine
from math import inf
from typing import Any, TypeVar

from taskq.limits import Deadline

T = TypeVar("T")


class TaskStatus:
    """Status of a service that begins, like ``anyio.abc.TaskStatus[None]``.

    Not anyio's own, nor its groups: a start would take a fifth longer.
    """

    def __init__(self) -> None:
        self.has_started = asyncio.get_running_loop().create_future()

    def started(self, value: None = None) -> None:
        """Report that it has begun."""
        if not self.has_started.done():
            self.has_started.set_result(value)


class Group(asyncio.TaskGroup):
    """A group of tasks that can be ended."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = set[asyncio.Task[None]]()

    def begin(self, code: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self.create_task(code, name=name)
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return task

    async def start(
        self, service: Callable[..., Coroutine[Any, Any, None]], *arguments: Any
    ) -> None:
        """Begin a service; return once it has started, or ended before that."""
        status = TaskStatus()
        task = self.begin(service(*arguments, task_status=status), "taskq-service")
        either: set[asyncio.Future[Any]] = {task, status.has_started}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)

    def end(self) -> None:
        """Cancel its tasks."""
        for task in tuple(self._begun):
            task.cancel()


def begin(code: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start the coroutine; the caller keeps the task, and sees to its end."""
    return asyncio.get_running_loop().create_task(code, name=name)


async def to_its_end(work: Awaitable[T]) -> T:
    """Await the work; a cancellation meanwhile is raised once the work has ended."""
    ending = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(ending)
    except asyncio.CancelledError:
        await asyncio.wait({ending})
        ending.result()
        raise


async def until_done(tasks: Collection[asyncio.Task[Any]], seconds: float) -> bool:
    """Wait for the tasks, without ending them; whether all are done."""
    with contextlib.suppress(TimeoutError):
        async with Deadline(seconds):
            await asyncio.wait(tasks)
    return all(task.done() for task in tasks)


async def until_set(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, and no longer than that."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(None if seconds == inf else seconds):
            await event.wait()
