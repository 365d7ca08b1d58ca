"""One app over several logs: views of it, each over a log, and which of them a call goes to."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from taskq.app.context import _current
from taskq.connection import tracing
from taskq.connection.connection import Connection

if TYPE_CHECKING:
    from taskq.app.app import TaskQ
    from taskq.calls.call import Call
    from taskq.connection.handle import JobHandle

R = TypeVar("R")


class Router(Protocol):
    """Says where the jobs of an app go that has more than one log."""

    def logs(self) -> list[TaskQ]:
        """The app over each of its own logs."""
        ...

    def here(self) -> TaskQ:
        """The app over the log that a transaction is of, begun here and now."""
        ...

    def of(self, tag: str) -> TaskQ:
        """The app over the log that has job ids with this tag."""
        ...

    async def send(self, calls: list[Call[R]], *, atomic: bool) -> list[JobHandle[R]]:
        """Enqueue calls, each where it belongs."""
        ...


def over(app: TaskQ, path: str | os.PathLike[str]) -> TaskQ:
    """The same app over the log of another directory: same tasks, hooks and schedules.

    What it enqueues goes there; so does what a job enqueues that one of its workers runs.
    """
    view = object.__new__(type(app))
    view.__dict__.update(app.__dict__)
    view._connection = Connection(os.fspath(path), app._connection.config)
    view._router = None
    view._origin = app
    seen = weakref.ref(view)

    def follow() -> None:
        known = seen()
        if known is not None:
            known._tasks = app._tasks

    app._task_listeners.listen(follow)
    if app._router is None:
        app._router = ByJob(app)
    tracing.take_the_long_way()
    return view


def own_log(app: TaskQ) -> TaskQ | None:
    """The app over the log of the job that this code runs for; None outside of its jobs."""
    job = _current.get(None)
    here: Any = None if job is None else job.app
    return here if here is not None and here._origin is app else None


class ByJob:
    """What a job enqueues goes into its own log, and all else into the app's."""

    def __init__(self, app: TaskQ) -> None:
        self._app = app

    def logs(self) -> list[TaskQ]:
        """The app itself."""
        return [self._app]

    def here(self) -> TaskQ:
        """See ``Router``."""
        return own_log(self._app) or self._app

    def of(self, tag: str) -> TaskQ:
        """See ``Router``; an id of another log is refused there."""
        here = self.here()
        return here if tag in {"", here._connection.tag} else self._app

    async def send(self, calls: list[Call[R]], *, atomic: bool) -> list[JobHandle[R]]:
        """See ``Router``."""
        del atomic  # they are one transaction in any case
        return await self.here()._send_here(calls)
