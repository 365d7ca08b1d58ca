"""Where a worker's jobs run, behind one port: the event loop, threads, or child processes.

Which of them is the task's choice: async functions run on the loop and sync ones in threads,
unless ``runs_in`` says otherwise. Whichever it is, cancelling a job's slot ends the call: an async
function is cancelled, a child process killed, and a thread, which nothing can stop, given up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from taskq_workers.runs.lifespans import bound
from taskq_workers.runs.threads import ThreadRunner
from taskq_workers.runs.timeouts import limited, limits_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import TypeAlias

    from taskq.app import TaskQ
    from taskq.injection import Resources
    from taskq.tasks import Task
    from taskq_workers.children.runner import ProcessRunner
    from taskq_workers.runs.limits import Limits

    Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


class Way(NamedTuple):
    """How the jobs of one task are called."""

    decode: Callable[[bytes], Arguments]
    #: takes what ``decode`` gave; its awaitable has the task's value
    call: Callable[..., Awaitable[Any]]
    #: the awaitable has an ``Ended`` instead, and the task's codec was used already
    is_remote: bool = False


class Executor(Protocol):
    """What runs the jobs of some tasks."""

    def way(self, task: Task[..., Any]) -> Way:
        """How jobs of the task are called.

        Raises:
            UsageError: the task takes a resource that is missing.
        """
        ...


class Executors:
    """The executors of one worker; each starts its threads or processes when they are needed.

    Args:
        app: whose tasks run.
        limits: what they may take.
        resources: what tasks may take by annotation.
    """

    def __init__(self, app: TaskQ, limits: Limits, resources: Resources) -> None:
        self._loop = asyncio.get_running_loop()
        self._app = app
        self._limits = limits
        self.threads = ThreadRunner(self._loop, limits.threads)
        self._processes: ProcessRunner | None = None
        self._by_name: dict[str, Executor] = {
            "": _InLoop(resources),
            "thread": _InThreads(self.threads, resources),
        }

    @property
    def processes(self) -> ProcessRunner:
        """What runs jobs in child processes; made when first asked for."""
        if self._processes is None:
            # Imported when a task wants it: it brings as many modules as all the rest.
            from taskq_workers.children.runner import ProcessRunner  # noqa: PLC0415

            self._processes = ProcessRunner(self._loop, self._app, self._limits)
        return self._processes

    def way(self, task: Task[..., Any]) -> Way:
        """How jobs of the task are called; raises as an ``Executor`` does."""
        if task.runs_in == "process":
            return _InProcesses(self.processes).way(task)
        return self._by_name[task.runs_in].way(task)

    @property
    def lingering(self) -> int:
        """How many functions still run in threads."""
        return self.threads.busy

    async def leave(self) -> None:
        """Let threads end after their calls, and child processes at once; legal twice."""
        self.threads.close()
        if self._processes is not None:
            await self._processes.leave()

    def close(self) -> None:
        """Do as ``leave``, killing the child processes, for when the loop turns no more."""
        self.threads.close()
        if self._processes is not None:
            self._processes.close()


class _InLoop:
    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def way(self, task: Task[..., Any]) -> Way:
        function, limits = bound(task, self._resources), limits_of(task)
        return Way(task.decode, function if limits is None else limited(function, limits))


class _InThreads:
    def __init__(self, threads: ThreadRunner, resources: Resources) -> None:
        self._threads = threads
        self._resources = resources

    def way(self, task: Task[..., Any]) -> Way:
        function, limits = bound(task, self._resources), limits_of(task)
        if task.is_async:
            # On a loop of its own it can be cancelled, so that its thread is free again.
            function = _on_own_loop(function if limits is None else limited(function, limits))
            limits = None
        run = self._threads.run

        def call(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            return run(function, args, kwargs, limits)

        return Way(task.decode, call)


class _InProcesses:
    def __init__(self, processes: ProcessRunner) -> None:
        self._processes = processes

    def way(self, task: Task[..., Any]) -> Way:
        return Way(_undecoded, self._processes.caller(task), is_remote=True)


def _undecoded(payload: bytes) -> Arguments:
    """The child decodes it."""
    return (payload,), {}


def _on_own_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        async def main() -> Any:
            return await function(*args, **kwargs)

        coroutine: Coroutine[Any, Any, Any] = main()
        return asyncio.run(coroutine)

    return call
