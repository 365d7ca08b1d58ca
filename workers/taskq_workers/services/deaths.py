"""The ``on_dead`` hooks of a worker, its app and its tasks: called on the loop, in no job's way."""

from __future__ import annotations

import contextlib
import inspect
import logging
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from anyio import CancelScope, sleep_forever

from taskq_workers.runs.foreign import begin, until_done

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from anyio.abc import TaskStatus

    from taskq.app.app import TaskQ
    from taskq.log.decide.listeners import DeadLetter
    from taskq.log.store.store import Store

_log: Final = logging.getLogger("taskq.worker")

#: What hooks get to end that the last jobs have called, when the worker's time is over already.
MOMENT_SECONDS: Final = 0.1


class DeathHooks:
    """Calls hooks with each dead letter; what they raise is logged and stops nothing.

    A hook may be a coroutine function: then it runs as a task of its own.

    Args:
        app: whose hooks, and its tasks', are called.
        hook: a further one.

    Attributes:
        until: when the worker's drain is over, in monotonic seconds.
    """

    def __init__(self, app: TaskQ, hook: Callable[[DeadLetter], Any] | None) -> None:
        self.until = 0.0
        self._app = app
        self._hook = hook
        self._tasks: set[asyncio.Task[None]] = set()

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
        app, hooks = self._app, [] if self._hook is None else [self._hook]
        for hook in (*hooks, *app._death_hooks):
            stack.callback(store.on_death(hook, self._call))
        if any(task.on_dead is not None for task in app._tasks.values()):
            # The app stands for their hooks, so that two workers of one app tell each but once.
            stack.callback(store.on_death(app, self._call_of_task))

    def _call(self, letter: DeadLetter, hook: Callable[[DeadLetter], Any]) -> None:
        try:
            result = hook(letter)
            if inspect.isawaitable(result):
                task = begin(self._await(letter, result), "taskq-on-dead")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except Exception:  # noqa: BLE001 - a hook is somebody else's code
            _complain(letter)

    def _call_of_task(self, letter: DeadLetter, app: TaskQ) -> None:
        task = app._tasks.get(letter.task)
        if task is not None and task.on_dead is not None:
            self._call(letter, task.on_dead)

    @staticmethod
    async def _await(letter: DeadLetter, result: Any) -> None:
        try:
            await result
        except Exception:  # noqa: BLE001 - likewise
            _complain(letter)


def _complain(letter: DeadLetter) -> None:
    _log.exception("the on_dead hook failed on job %s; the worker goes on", letter.job_id)
