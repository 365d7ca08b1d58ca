"""Where a worker's jobs run, behind one port: the event loop, threads, or child processes.

Which of them is the task's choice: async functions run on the loop and sync ones in threads,
unless ``runs_in`` says otherwise. Whichever it is, cancelling a job's slot ends the call: an async
function is cancelled, a child process killed, and a thread, which nothing can stop, given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol

from taskq.errors import UsageError
from taskq.values import NamedTuple
from taskq_workers.runs.lifespans import bound
from taskq_workers.runs.threads import ThreadRunner
from taskq_workers.runs.timeouts import limited, limits_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from taskq import Task
    from taskq.hooks import Resources
    from taskq_workers.runs.limits import Limits
    from taskq_workers.runs.timeouts import Limits as TimeLimits

    Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


class Plan(NamedTuple):
    """Way in which jobs of a task are run; a slot unpacks it once for each job."""

    decode: Callable[[bytes], Arguments]
    #: takes what ``decode`` gave; its awaitable has the task's value, or an ``Ended`` of elsewhere
    call: Callable[..., Awaitable[Any]]
    #: a None is a good result, and is written as no bytes at all
    none_is_kept: bool
    #: its results may be compressed, or go to files, or came from another process
    packs: bool
    task: Task[..., Any]


class Children(Protocol):
    """Runner of jobs in child processes: a ``ProcessRunner``, made by the worker when needed."""

    def caller(self, task: Task[..., Any]) -> Callable[[bytes], Awaitable[Any]]:
        """Give what runs one job of the task, given its payload, within the job's context."""

    async def leave(self) -> None:
        """Let idle children end by themselves, and kill the others."""

    def close(self) -> None:
        """Kill every child and wait for that, for when the loop turns no more."""


class Executors:
    """The executors of one worker; each starts its threads or processes when they are needed.

    Args:
        limits: what they may take.
        resources: what tasks may take by annotation.
        make_children: called when the first task wants them.
    """

    def __init__(
        self, limits: Limits, resources: Resources, make_children: Callable[[], Children]
    ) -> None:
        self.threads = ThreadRunner(asyncio.get_running_loop(), limits.threads)
        self._make_children = make_children
        self._processes: Children | None = None
        self._resources = resources

    @property
    def processes(self) -> Children:
        """Return what runs jobs in child processes; made when first asked for."""
        if self._processes is None:
            self._processes = self._make_children()
        return self._processes

    def plan(self, task: Task[..., Any]) -> Plan:
        """Plan how jobs of the task are run.

        Raises:
            UsageError: the task takes a resource that is missing.
        """
        if task.runs_in == "process":
            call = self.processes.caller(task)
            return planned(task, call, decode=_undecoded, is_remote=True)
        function, limits = bound(task, self._resources), limits_of(task)
        if task.is_async and limits is not None:
            function, limits = limited(function, limits), None
        if not task.runs_in:
            return planned(task, function)
        if task.is_async:
            # On a loop of its own it can be cancelled, so that its thread is free again.
            function = _on_own_loop(function)
        run = self.threads.run

        def call_in_thread(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            return run(function, args, kwargs, limits)

        call = _awaiting(call_in_thread, limits) if task.may_await else call_in_thread
        return planned(task, call)

    @property
    def lingering(self) -> int:
        """Return how many functions still run in threads."""
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


def planned(
    task: Task[..., Any],
    call: Callable[..., Awaitable[Any]],
    *,
    decode: Callable[[bytes], Arguments] | None = None,
    is_remote: bool = False,
) -> Plan:
    """Plan the jobs of a task.

    Args:
        task: whose jobs.
        call: runs one.
        decode: the arguments of ``call``; the task's own if None.
        is_remote: they run in another process, which uses the task's codecs.
    """
    packs = task.packs_results or is_remote
    return Plan(decode or task.decode, call, _keeps_none(task), packs, task)


def _keeps_none(task: Task[..., Any]) -> bool:
    try:
        return task.encode_result(None) is None
    except UsageError:
        return False


def _undecoded(payload: bytes) -> Arguments:
    """Return the child decodes it."""
    return (payload,), {}


def _awaiting(
    call: Callable[..., Awaitable[Any]], limits: TimeLimits | None
) -> Callable[..., Awaitable[Any]]:
    """Await on the worker's loop what a plain function around an async one returned."""

    async def call_and_await(*args: Any, **kwargs: Any) -> Any:
        value = await call(*args, **kwargs)
        if not isinstance(value, Awaitable):
            return value

        async def rest() -> Any:
            return await value

        return await (rest() if limits is None else limited(rest, limits)())

    return call_and_await


def _on_own_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        async def main() -> Any:
            return await function(*args, **kwargs)

        return asyncio.run(main())

    return call
