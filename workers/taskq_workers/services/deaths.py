"""The ``on_dead`` hooks of a worker, its app and its tasks.

A task that hears of deaths gets a job in the frame of each. Functions are called on the loop, in no
job's way, and are told nothing by a process that is killed before.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Collection, Iterator
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from anyio import CancelScope, sleep_forever

from taskq import DeadLetter, Task
from taskq.errors import InvalidCall, UsageError
from taskq.hooks import within
from taskq_workers.runs.foreign import begin, until_done

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from taskq import TaskQ
    from taskq.engine import Item, Store

    DeathCall: TypeAlias = Callable[[DeadLetter], Any]

_log: Final = logging.getLogger("taskq.worker")

#: What hooks get to end that the last jobs have called, when the worker's time is over already.
MOMENT_SECONDS: Final = 0.1


class DeathHooks:
    """Tells of each dead letter of one log; what a function raises is logged and stops nothing.

    A function may be a coroutine function: then it runs as a task of its own.

    Args:
        app: whose hooks, and its tasks', are called; what they do goes to its log.
        hook: a further one.

    Attributes:
        until: when the worker's drain is over, in monotonic seconds.

    Raises:
        UsageError: a task that is to hear of deaths takes no letter, or has keys.
    """

    def __init__(self, app: TaskQ, hook: DeathCall | None) -> None:
        self.until = 0.0
        self._app = app
        self._hooks = [*app.hooks.deaths] if hook is None else [(hook, None), *app.hooks.deaths]
        self._tasks: set[asyncio.Task[None]] = set()
        for task in _tellers(app):
            _check(task)

    async def run(self, store: Store, *, task_status: TaskStatus[None]) -> None:
        """Hear of the deaths that this process records, until cancelled."""
        try:
            with contextlib.ExitStack() as stack:
                self._listen(store, stack)
                task_status.started()
                await sleep_forever()
        finally:
            with CancelScope(shield=True):
                await self._end()

    async def _end(self) -> None:
        """Give hooks that still run what is left of the drain, or a moment, and cancel them."""
        seconds = max(self.until - monotonic(), MOMENT_SECONDS)
        if self._tasks and not await until_done(self._tasks, seconds):
            for task in self._tasks:
                task.cancel()

    def _listen(self, store: Store, stack: contextlib.ExitStack) -> None:
        app = self._app
        # It stands for the app and its views, so that two workers of one app tell each but once.
        origin = app.hooks.shared
        for hook, wanted in self._hooks:
            if not isinstance(hook, Task):
                stack.callback(store.on_death(hook, partial(self._call_if, wanted)))
        if any(task.on_dead is not None for task in app.tasks.values()):
            stack.callback(store.on_death(origin, self._call_of_task))
        if _tellers(app):
            # Not taken back: whoever of this process ends the rest of the jobs tells of them, too.
            store.write_deaths(origin, partial(_jobs_of, app))

    def _call_if(self, wanted: Collection[str] | None, letter: DeadLetter, hook: DeathCall) -> None:
        if wanted is None or letter.task in wanted:
            self._call(letter, hook)

    def _call_of_task(self, letter: DeadLetter, _: object) -> None:
        task = self._app.tasks.get(letter.task)
        if task is not None and task.on_dead is not None and not isinstance(task.on_dead, Task):
            self._call(letter, task.on_dead)

    def _call(self, letter: DeadLetter, hook: DeathCall) -> None:
        try:
            with within(self._app):
                result = hook(letter)
                if inspect.isawaitable(result):
                    task = begin(self._await(letter, result), "taskq-on-dead")
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        except Exception:  # noqa: BLE001 - a hook is somebody else's code
            _complain(letter)

    @staticmethod
    async def _await(letter: DeadLetter, result: Any) -> None:
        try:
            await result
        except Exception:  # noqa: BLE001 - likewise
            _complain(letter)


def _complain(letter: DeadLetter) -> None:
    _log.exception("the on_dead hook failed on job %s; the worker goes on", letter.job_id)


# Tasks that hear of deaths, whose jobs are in the frames of these.


def _tellers(app: TaskQ) -> set[Task[..., Any]]:
    hooks = [hook for hook, _ in app.hooks.deaths]
    of_tasks = [task.on_dead for task in app.tasks.values()]
    return {hook for hook in (*hooks, *of_tasks) if isinstance(hook, Task)}


def _check(task: Task[..., Any]) -> None:
    sample = DeadLetter(
        job_id="log-1",
        queue="q",
        task="t",
        priority=0,
        attempt=1,
        reason="",
        cause="",
        settled_ns=1,
    )
    try:
        call = task.call(sample)
    except InvalidCall as error:
        raise UsageError(
            f"{task.name} is to hear of deaths: let it take one letter: DeadLetter ({error})"
        ) from error
    if call.extras is not None and (call.extras.key or call.extras.concurrency_key):
        raise UsageError(
            f"{task.name} is to hear of deaths, each by a job of its own: leave key and "
            f"concurrency_key out"
        )


def _jobs_of(app: TaskQ, letter: DeadLetter) -> Iterator[Item]:
    """Give a job of each task that is to hear of a death; of no death of such a job.

    On the storage thread, while the log is locked: nothing here is code of the user's.
    """
    died = app.tasks.get(letter.task)
    if died is not None and died.name in {task.name for task in _tellers(app)}:
        return
    wanting = [hook for hook, names in app.hooks.deaths if names is None or letter.task in names]
    for hook in wanting if died is None else [*wanting, died.on_dead]:
        if isinstance(hook, Task):
            call = hook.call(letter)
            yield call.spec, call.body, call.extras
