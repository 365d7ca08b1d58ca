"""The ``on_dead`` hooks of a worker, its app and its tasks: called on the loop, in no job's way."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from taskq.app import TaskQ
    from taskq.log.listeners import DeadLetter
    from taskq.log.store import Store

_log: Final = logging.getLogger("taskq.worker")

#: What hooks get to end that the last jobs have called, when the worker's time is over already.
MOMENT_SECONDS: Final = 0.1


class DeathHooks:
    """Calls hooks with each dead letter; what they raise is logged and stops nothing.

    A hook may be a coroutine function: then it runs as a task of its own.
    """

    def __init__(self, hooks: Iterable[Callable[[DeadLetter], Any]]) -> None:
        self._hooks = list(hooks)
        self._leave: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def listen(
        self,
        store: Store,
        more: Iterable[Callable[[DeadLetter], Any]] = (),
        app: TaskQ | None = None,
    ) -> None:
        """Hear of the deaths that this process records from now on.

        Args:
            store: of this process.
            more: further hooks.
            app: those of its tasks that have an ``on_dead`` of their own get their letters there.
        """
        for hook in (*self._hooks, *more):
            self._leave.append(store.on_death(hook, self._call))
        if app is not None and any(task.on_dead is not None for task in app._tasks.values()):
            # The app stands for their hooks, so that two workers of one app tell each but once.
            self._leave.append(store.on_death(app, self._call_of_task))

    async def leave(self, seconds: float) -> None:
        """Hear of no more, and give what still runs so long to end, or a moment. Legal twice."""
        for leave in self._leave:
            leave()
        self._leave.clear()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=max(seconds, MOMENT_SECONDS))
            for task in late:
                task.cancel()

    def _call(self, letter: DeadLetter, hook: Callable[[DeadLetter], Any]) -> None:
        try:
            result = hook(letter)
            if inspect.isawaitable(result):
                task = asyncio.ensure_future(self._await(letter, result))
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
