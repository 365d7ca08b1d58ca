"""What a slot needs of a task, looked up once: the hot path then unpacks one tuple for each job."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from taskq.core.errors import UsageError
from taskq.injection import Resources
from taskq_workers.lifespans import bound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from taskq.tasks import Task
    from taskq_workers.executors import ThreadRunner


class Hot(NamedTuple):
    """What every job needs."""

    decode: Callable[[bytes], tuple[tuple[Any, ...], dict[str, Any]]]
    #: gives an awaitable of the task's value
    call: Callable[..., Awaitable[Any]]
    #: a None is a good result, and is written as no bytes at all
    none_is_kept: bool


class Plan(NamedTuple):
    """How the jobs of one task are run."""

    hot: Hot
    task: Task[..., Any]
    #: its results may be compressed, or go to files
    packs: bool


class Plans(dict[str, Plan]):
    """Plans by task name, made when a name is first met.

    Args:
        tasks: by name.
        threads: where sync functions run.
        resources: what tasks may take by annotation.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task[..., Any]],
        threads: ThreadRunner,
        resources: Resources | None = None,
    ) -> None:
        super().__init__()
        self._resources = resources or Resources()
        self._tasks = tasks
        self._threads = threads

    def __missing__(self, name: str) -> Plan:
        task = self._tasks[name]
        with contextlib.suppress(UsageError):
            # Built now, so that decode is the real one; what is wrong with it each job will tell.
            _ = task.arguments
        hot = Hot(task.decode, self._awaitable(task), _keeps_none(task))
        plan = Plan(hot, task, task.packs_results)
        self[name] = plan
        return plan

    def _awaitable(self, task: Task[..., Any]) -> Callable[..., Awaitable[Any]]:
        try:
            function = bound(task, self._resources)
        except UsageError as error:
            # Registered since the worker's start, which would have refused it.
            return _refusing(error)
        if not task.is_async:
            return self._in_thread(function)
        return function if task.timeout is None else limited(function, task.timeout)

    def _in_thread(self, function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        run = self._threads.run

        def call(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            return run(function, args, kwargs)

        return call


def _refusing(error: UsageError) -> Callable[..., Awaitable[Any]]:
    async def call(*_args: Any, **_kwargs: Any) -> Any:
        raise error

    return call


def _keeps_none(task: Task[..., Any]) -> bool:
    try:
        return task.encode_result(None) is None
    except UsageError:
        return False


def limited(
    function: Callable[..., Awaitable[Any]], seconds: float
) -> Callable[..., Awaitable[Any]]:
    """The function, cancelled when it takes longer; then it raises a TimeoutError that says so."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await function(*args, **kwargs)
        except TimeoutError as error:
            if limit.expired():
                raise TimeoutError(f"not done within its timeout of {seconds:g} s") from error
            raise

    return call
