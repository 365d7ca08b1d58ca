"""One app over several logs: a view of the app for each log, and the routing of calls to logs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from taskq.app import context, hooks, schedules
from taskq.app.context import _here
from taskq.calls.call import Call
from taskq.connection import connection, handle, tracing
from taskq.core import errors, parsing
from taskq.log import config, requests
from taskq.shards import Shards, shard_with

if TYPE_CHECKING:
    from taskq.app.app import TaskQ

R = TypeVar("R")


def over(app: TaskQ, path: str | os.PathLike[str]) -> TaskQ:
    """See ``TaskQ.over``."""
    view = _view_of(app)
    view._directory, here = view._configure_again(path)
    return _join(app, view, connection.Connection(os.fspath(path), here))


def _view_of(app: TaskQ) -> TaskQ:
    view = object.__new__(type(app))
    view.__dict__.update(app.__dict__)
    return view


def _join(app: TaskQ, view: TaskQ, line: connection.Connection) -> TaskQ:
    view._connection = line
    view._router = None
    view._origin = app
    if app._router is None:
        app._router = ByJob(app)
    app._connection.is_routed = True
    tracing.take_the_long_way()
    return view


@contextlib.contextmanager
def elsewhere(app: TaskQ, path: str, config: config.LogConfig) -> Iterator[None]:
    """Make an app use one log in another directory, however many logs it has, inside the block.

    Raises:
        UsageError: the app is open.
    """
    connection = app._connection
    before = connection.path, connection.config, connection.refusal, app._router
    _move(app, path, config, "", None)
    try:
        yield
    finally:
        _move(app, *before)


def _move(
    app: TaskQ, path: str, config: config.LogConfig, refusal: str, router: ByJob | ByKey | None
) -> None:
    connection = app._connection
    connection.move(path, config)
    connection.refusal, app._router = refusal, router
    connection.reopen()


def own_log(app: TaskQ) -> TaskQ | None:
    """Return the app over the log of the job or hook that this code runs for; else None."""
    job = context.running_job.get(None)
    here: Any = _here.get(None) if job is None else job.app
    return here if here is not None and here._origin is app else None


class ByJob:
    """Routes a job's enqueues into the job's own log, and all others into the app's log."""

    def __init__(self, app: TaskQ) -> None:
        self._app = app

    def logs(self) -> list[TaskQ]:
        """Return the app itself; in code of a job or a hook, the app over that job's log."""
        return [self.here()]

    def here(self) -> TaskQ:
        """Return the app over the log that a new transaction here writes to."""
        return own_log(self._app) or self._app

    def connections(self) -> list[connection.Connection]:
        """Return the connections of the app's own logs that may be open."""
        return [self._app._connection]

    def of(self, tag: str, lsn: int) -> TaskQ:
        """Return the app over the log of the job; refuse a job of another log."""
        here = self.here()
        return here if here._connection.tag.takes(tag, lsn) else self._app

    def of_source(self, source: str) -> TaskQ:
        """Return the app over the log with a source's position."""
        del source
        return self.here()

    async def send(self, calls: list[Call[R]], *, atomic: bool) -> list[handle.JobHandle[R]]:
        """Enqueue each call into its log."""
        del atomic  # they are one transaction in any case
        return await self.here()._send_here(calls)


class ByKey:
    """Routes calls to shards by their keys and limits; see ``taskq.shards``.

    A call without key and limit goes to the log of the job that makes it. Outside jobs it goes to
    one log for the whole process, so that one fsync serves all callers.
    """

    def __init__(self, app: TaskQ, shards: Shards) -> None:
        self._app = app
        self._shards = shards
        self._lock = threading.Lock()
        self._made: list[TaskQ] = []
        self._made_for: tuple[str, config.LogConfig] | None = None
        app._connection.refusal = (
            f"this app has {shards.count} logs, and this is asked of one: ask each of app.logs(), "
            f"or of a job by app.job(id)"
        )
        app._connection.is_routed = True
        tracing.take_the_long_way()

    def logs(self) -> list[TaskQ]:
        """Return the app over each of its logs.

        Raises:
            UsageError: the directory has another number of shards.
        """
        connection = self._app._connection
        wanted = connection.path, connection.config
        with self._lock:
            if self._made_for != wanted:
                paths = self._shards.settle_in(connection.path)
                self._made = [self._view(index, path) for index, path in enumerate(paths)]
                self._made_for = wanted
            return self._made

    def _view(self, index: int, path: str) -> TaskQ:
        # Shards have the settings of their root.
        line = connection.Connection(path, self._app._connection.config)
        view = _join(self._app, _view_of(self._app), line)
        line.packer = _OwnCalls(line, self._shards, index)
        view.hooks = _OwnHooks(self._app.hooks, self._shards, index)
        return view

    def connections(self) -> list[connection.Connection]:
        """See ``ByJob``."""
        return [app._connection for app in self._made]

    def here(self) -> TaskQ:
        """See ``ByJob``.

        Raises:
            UsageError: no job runs here, so no log is chosen.
        """
        own = own_log(self._app)
        if own is None:
            raise errors.UsageError(f"a transaction is of one log: {self._app._connection.refusal}")
        return own

    def of(self, tag: str, lsn: int) -> TaskQ:
        """See ``ByJob``.

        Raises:
            UsageError: the number alone does not identify the shard.
            WrongLog: the job belongs to no shard.
        """
        if not tag:
            raise errors.UsageError(
                "give a job's whole id: its number alone does not name its shard"
            )
        logs = self.logs()
        index = shard_with([log._connection.path for log in logs], tag, lsn)
        if index is None:
            raise errors.WrongLog(
                f"{self._app._connection.path} has no shard with jobs such as {tag}-{lsn}"
            )
        return logs[index]

    def of_source(self, source: str) -> TaskQ:
        """See ``ByJob``."""
        encoded = parsing.check_name("source name", source)
        return self.logs()[self._shards.index_by(encoded, b"")]

    async def send(self, calls: list[Call[R]], *, atomic: bool) -> list[handle.JobHandle[R]]:
        """See ``ByJob``.

        Raises:
            UsageError: the calls belong to several shards and ``atomic`` is set.
        """
        if not calls:
            return []
        logs, homes = self.logs(), [self._shards.index_of(call) for call in calls]
        if len(calls) == 1:
            index = self._free(logs) if homes[0] is None else homes[0]
            return [await logs[index].enqueue(calls[0])]
        bound = sorted({home for home in homes if home is not None})
        if len(bound) > 1 and (atomic or any(map(_is_of_flow, calls))):
            tasks = [
                next(call.name for call, home in zip(calls, homes, strict=True) if home == shard)
                for shard in bound[:2]
            ]
            raise errors.UsageError(
                f"calls that are enqueued together belong to {len(bound)} shards, by keys and "
                f"limits such as those of {' and '.join(tasks)}: no transaction spans two shards. "
                f"Write enqueue_many(..., atomic=False); a flow must do with one"
            )
        free = bound[0] if len(bound) == 1 else self._free(logs)
        apart: dict[int, list[int]] = {}
        for number, home in enumerate(homes):
            apart.setdefault(free if home is None else home, []).append(number)
        jobs: dict[int, handle.JobHandle[R]] = {}
        for index, numbers in apart.items():
            sent = await logs[index]._send_here([calls[number] for number in numbers])
            jobs.update(zip(numbers, sent, strict=True))
        return [jobs[number] for number in range(len(calls))]

    def _free(self, logs: list[TaskQ]) -> int:
        """Return the shard of a call without key, limit or flow."""
        own = own_log(self._app)
        return logs.index(own) if own in logs else os.getpid() % len(logs)


class _OwnCalls(connection.Packer):
    """The packer of one shard: it refuses calls that belong to another."""

    def __init__(self, connection: connection.Connection, shards: Shards, index: int) -> None:
        super().__init__(connection.path, connection.config)
        self._shards = shards
        self._index = index

    def plain_item(self, call: Call[Any]) -> requests.Item | None:
        self._check(call)
        return super().plain_item(call)

    def loose(self, call: Call[Any]) -> connection.Loose:
        self._check(call)
        return super().loose(call)

    def _check(self, call: Call[Any]) -> None:
        home = self._shards.index_of(call)
        if home not in {None, self._index}:
            raise errors.UsageError(
                f"{call.name}: by its key or its limit this call belongs to shard {home}, and not "
                f"to shard {self._index}: enqueue it with await {call.name.rpartition('.')[2]}."
                f"enqueue(...), outside of transactions of other jobs"
            )


class _OwnHooks(hooks.Hooks):
    """The hooks of one shard: its app's, without the schedules of other shards."""

    def __init__(self, hooks: hooks.Hooks, shards: Shards, index: int) -> None:
        # Other attributes are read from the app's hooks, which may still change.
        self._hooks = hooks
        self.schedules = _OwnSchedules(hooks.schedules, shards, index)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hooks, name)

    @property
    def shared(self) -> hooks.Hooks:
        return self._hooks


class _OwnSchedules(schedules.Planned):
    """The schedules of one shard: by the shard of their calls, else by their names."""

    def __init__(self, planned: schedules.Planned, shards: Shards, index: int) -> None:
        self._shards = shards
        self._index = index
        self._planned = planned
        self.listeners = planned.listeners

    @property
    def all(self) -> dict[str, schedules.Schedule]:
        planned = self._planned.all.items()
        return {name: schedule for name, schedule in planned if self._home(schedule) == self._index}

    def _home(self, schedule: schedules.Schedule) -> int:
        home = self._shards.index_of(schedule.call)
        return self._shards.index_by(schedule.name.encode(), b"") if home is None else home


def _is_of_flow(call: Call[Any]) -> bool:
    return call.extras is not None and call.extras.flow is not None
