"""Where a worker's jobs run, behind one port: the event loop, threads, or child processes.

Which of them is the task's choice: async functions run on the loop and sync ones in threads,
unless ``runs_in`` says otherwise. Whichever it is, cancelling a job's slot ends the call: an async
function is cancelled, a child process killed, and a thread, which nothing can stop, given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from taskq.errors import UsageError
from taskq.values import NamedTuple
from taskq_workers.runs.joblogs import chosen_logging, hearing
from taskq_workers.runs.lifespans import bound
from taskq_workers.runs.threads import ThreadRunner
from taskq_workers.runs.timeouts import Limits as TimeLimits
from taskq_workers.runs.timeouts import limited, limits_of

if TYPE_CHECKING:
    from taskq import Task
    from taskq.hooks import Resources
    from taskq_workers.runs.limits import Limits

    Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
    Calling: TypeAlias = Callable[..., Awaitable[Any]]


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

    def caller(self, task: Task[..., Any]) -> Callable[[bytes], Awaitable[Any]]: ...
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


class Plans(dict[str, Plan]):
    """Plans by task name, made when a name is first met, and again once its task was replaced.

    Args:
        tasks: gives the present tasks, by name.
        executors: where their functions run.
        wraps: given a call and its task, what stands around it; the innermost first.
    """

    def __init__(
        self,
        tasks: Callable[[], Mapping[str, Task[..., Any]]],
        executors: Executors,
        wraps: Sequence[Callable[[Calling, Task[..., Any]], Calling]] = (),
    ) -> None:
        super().__init__()
        self._wraps = wraps
        self._tasks = tasks
        self._executors = executors

    def __missing__(self, name: str) -> Plan:
        while True:
            task = self._tasks()[name]
            plan = self[name] = self._plan(task)
            # On another thread a cell may have replaced it just now, and forgotten too early.
            if self._tasks()[name] is task:
                return plan

    def _plan(self, task: Task[..., Any]) -> Plan:
        try:
            task.check()  # now, so that decode is the real one
            plan = self._executors.plan(task)
        except UsageError as error:
            # Registered since the worker's start, which would have refused it.
            plan = planned(task, _refusing(error))
        for wrap in self._wraps:
            plan = plan._replace(call=wrap(plan.call, task))
        if task.keep_log or chosen_logging().prints:
            # Even a None is settled with its lines, which only what packs results waits for.
            heard = hearing(plan.call, task.keep_log)
            plan = plan._replace(call=heard, none_is_kept=False, packs=True)
        return plan


def _refusing(error: UsageError) -> Callable[..., Awaitable[Any]]:
    async def call(*_args: Any, **_kwargs: Any) -> Any:
        raise error

    return call
