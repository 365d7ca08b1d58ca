"""What a slot needs of a task, looked up once: the hot path then unpacks one tuple for each job."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from taskq.core.errors import UsageError
from taskq_workers.runs.executors import Way

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from taskq.tasks import Task
    from taskq_workers.runs.executors import Executors
    from taskq_workers.runs.tracing import TracedRuns


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
    #: its results may be compressed, or go to files, or came from another process
    packs: bool


class Plans(dict[str, Plan]):
    """Plans by task name, made when a name is first met, and again once its task was replaced.

    Args:
        tasks: gives the present ones, by name.
        executors: where their functions run.
        traced: what makes spans of their calls; None for nothing.
    """

    def __init__(
        self,
        tasks: Callable[[], Mapping[str, Task[..., Any]]],
        executors: Executors,
        traced: TracedRuns | None = None,
    ) -> None:
        super().__init__()
        self._traced = traced
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
        with contextlib.suppress(UsageError):
            # Built now, so that decode is the real one; what is wrong with it each job will tell.
            _ = task.arguments
        way = self._way(task)
        call = way.call if self._traced is None else self._traced.wrap(way.call)
        hot = Hot(way.decode, call, _keeps_none(task))
        return Plan(hot, task, task.packs_results or way.is_remote)

    def _way(self, task: Task[..., Any]) -> Way:
        try:
            return self._executors.way(task)
        except UsageError as error:
            # Registered since the worker's start, which would have refused it.
            return Way(task.decode, _refusing(error))


def _refusing(error: UsageError) -> Callable[..., Awaitable[Any]]:
    async def call(*_args: Any, **_kwargs: Any) -> Any:
        raise error

    return call


def _keeps_none(task: Task[..., Any]) -> bool:
    try:
        return task.encode_result(None) is None
    except UsageError:
        return False
