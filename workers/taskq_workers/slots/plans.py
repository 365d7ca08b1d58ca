"""Look up once what a slot needs of a task: the hot path then unpacks one tuple for each job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from taskq.errors import UsageError
from taskq_workers.runs.executors import Plan, planned
from taskq_workers.runs.joblogs import chosen_logging, hearing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from taskq import Task
    from taskq_workers.runs.executors import Executors

    Calling: TypeAlias = Callable[..., Awaitable[Any]]


class Plans(dict[str, Plan]):
    """Plans by task name, made when a name is first met, and again once its task was replaced.

    Args:
        tasks: gives the present ones, by name.
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
