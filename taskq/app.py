"""TaskQ: the tasks of an application, and the directory that their jobs are in."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, ParamSpec, Self, TypeVar, Unpack, overload

from taskq import telemetry
from taskq.breakers import AppBreakers, BreakerRule
from taskq.call import Call, Options, make_call
from taskq.care import LogCare
from taskq.connection import Connection, split_job_id
from taskq.core.errors import UsageError
from taskq.core.records import Flag
from taskq.decorate import TaskChoices, TaskDecorator, make_task
from taskq.flowhandle import AppFlows
from taskq.habits import APPS, no_attribute, no_call
from taskq.handle import JobHandle, make_handle
from taskq.lifespan import AppLifespans
from taskq.listeners import Listeners
from taskq.logoptions import LogOptions, numbers_checked, unknown_option
from taskq.naming import checked_modules
from taskq.origins import Declared, origin_of
from taskq.queues import LogQueues
from taskq.reading import LogReading
from taskq.schedules import AppSchedules, Planned
from taskq.serialization import encode_loose
from taskq.telling import LogTelling
from taskq.transaction import AppTransaction
from taskq.working import AppWorkers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from taskq.connection import JobId
    from taskq.log.listeners import DeadLetter
    from taskq.log.requests import Duplicate
    from taskq.log.store import Store
    from taskq.origins import Origin
    from taskq.settings import Settings
    from taskq.tasks import AsyncTask, SyncTask, Task

P = ParamSpec("P")
R = TypeVar("R")
DeathHook = TypeVar("DeathHook", bound="Callable[[DeadLetter], Any]")


class TaskQ(
    AppBreakers,
    AppFlows,
    AppLifespans,
    AppSchedules,
    AppWorkers,
    LogCare,
    LogQueues,
    LogReading,
    LogTelling,
):
    """An application's tasks and the directory of their jobs. Opens at first use.

    What is not given comes from the settings: ``TASKQ_…`` in the environment, ``.env``,
    ``taskq.toml``, ``[tool.taskq]`` in ``pyproject.toml``, in this order.

    Args:
        data_dir: the directory; made when it is missing.
        include: full names of the modules that hold the app's tasks. Whoever runs its jobs imports
            them, when the app's own module is whole: they may import it.
        settings: used instead of the environment and the files.
        options: see ``LogOptions``.

    Raises:
        UsageError: a setting is wrong.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        include: Iterable[str] = (),
        settings: Settings | None = None,
        **options: Unpack[LogOptions],
    ) -> None:
        unknown = options.keys() - LogOptions.__annotations__.keys()
        if unknown:
            raise unknown_option(min(unknown))
        # pydantic-settings takes 0.1 s to import, which `import taskq` must not pay.
        from taskq.settings import load_settings  # noqa: PLC0415

        self.settings = load_settings(settings, data_dir=data_dir, **numbers_checked(options))
        self._connection = Connection(os.fspath(self.settings.data_dir), self.settings.log_config())
        self._include = checked_modules(include)
        # Never changed but replaced, since workers on other threads look into it.
        self._tasks: dict[str, Task[..., Any]] = {}
        self._task_listeners = Listeners()
        self._death_hooks: Declared[Callable[[DeadLetter], Any]] = Declared()
        self._breakers: dict[str, BreakerRule] = {}
        self._lifespans = Declared()
        self._planned = Planned()

    @classmethod
    def user_data(cls, app: str, **arguments: Any) -> Self:
        """The app of a desktop program: its log is where this user's system keeps such data.

        ``~/.local/share/My App/taskq`` on Linux, ``~/Library/Application Support/My App/taskq`` on
        macOS. A setting, such as ``TASKQ_DATA_DIR``, comes after it.

        Args:
            app: the program's name, as people know it.
            arguments: as of ``TaskQ`` itself, but for ``data_dir``.

        Raises:
            UsageError: the name is empty or a path, or as ``TaskQ``.
        """
        if not app.strip(" .") or "/" in app or "\\" in app or "\0" in app:
            raise UsageError(f"{app!r:.60} is no program's name: give one such as 'My App'")
        from platformdirs import user_data_path  # noqa: PLC0415 - few programs are desktop apps

        return cls(user_data_path(app, appauthor=False) / "taskq", **arguments)

    @property
    def name(self) -> str:
        """What ``taskq workers`` shows."""
        return self.settings.name

    @property
    def data_dir(self) -> Path:
        """The directory, as an absolute path. May be set until the app is opened.

        Raises:
            UsageError: set while the app is open.
        """
        return Path(self._connection.path)

    @data_dir.setter
    def data_dir(self, path: str | os.PathLike[str]) -> None:
        self._connection.move(os.fspath(path))

    # The overloads overlap on purpose: the first that fits is the closer one.
    @overload
    def task(  # type: ignore[overload-overlap]
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def task(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...

    @overload
    def task(self, /, **choices: Unpack[TaskChoices]) -> TaskDecorator: ...

    def task(self, fn: Callable[..., Any] | None = None, /, **choices: Unpack[TaskChoices]) -> Any:
        """Make a task of a function: ``@app.task`` or ``@app.task(queue="mail", ...)``.

        Raises:
            UsageError: the function or an option is wrong, or the name is taken.
        """
        if fn is None:
            return functools.partial(self._add_task, choices=choices)
        return self._add_task(fn, choices)

    if not TYPE_CHECKING:  # or the type checker would take every name for one of ours

        def __getattr__(self, name: str) -> Any:
            """Say what to write instead of what apps of other libraries have."""
            raise no_attribute(self, "an app", name, APPS, "app")

    async def enqueue(self, call: Call[R], *rest: Never, **more: Never) -> JobHandle[R]:
        """Put one call into the log; it is as durable as the app says when this returns.

        Raises:
            UsageError: it is no call, or something is given beside it.
            LogError: the log could not be opened or written.
        """
        if rest or more or type(call) is not Call:
            raise no_call(call, rest, "app.enqueue")
        connection = self._connection
        if telemetry.is_active(connection):
            (handle,) = await self._send([call])
            return handle
        packer = connection.packer
        item = packer.plain_item(call) or await connection.pack(packer.loose(call))
        port = await connection.port()
        answer = await port.enqueue(*item)
        return make_handle(self, call.task, connection.tag, answer)

    def enqueue_sync(self, call: Call[R], *rest: Never, **more: Never) -> JobHandle[R]:
        """Do as ``enqueue``, blocking this thread: for code without an event loop."""
        if rest or more or type(call) is not Call:
            raise no_call(call, rest, "app.enqueue_sync")
        connection = self._connection
        if telemetry.is_active(connection):
            (handle,) = self._send_sync([call])
            return handle
        packer = connection.packer
        item = packer.plain_item(call) or connection.pack_sync(packer.loose(call))
        answer = connection.send_sync(*item)
        return make_handle(self, call.task, connection.tag, answer)

    async def enqueue_many(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """Put all calls into the log, or none: they are one transaction.

        Raises:
            PayloadTooLarge: together they are over TRANSACTION_BYTES_MAX; nothing was written.
            LogError: the log could not be opened or written.
        """
        return await self._send(_checked(calls))

    def enqueue_many_sync(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """Do as ``enqueue_many``, blocking this thread."""
        return self._send_sync(_checked(calls))

    async def _send(self, calls: list[Call[R]]) -> list[JobHandle[R]]:
        connection = self._connection
        with telemetry.sending(connection, calls) as sending:
            items = connection.packer.plain_items(sending.calls)
            if items is None:
                loose = [connection.packer.loose(call) for call in sending.calls]
                items = await connection.pack_many(loose)
            answers = await connection.send_many(items)
            return sending.sent(self._handles(calls, answers))

    def _send_sync(self, calls: list[Call[R]]) -> list[JobHandle[R]]:
        connection = self._connection
        with telemetry.sending(connection, calls) as sending:
            items = connection.packer.plain_items(sending.calls)
            if items is None:
                loose = [connection.packer.loose(call) for call in sending.calls]
                items = connection.pack_many_sync(loose)
            return sending.sent(self._handles(calls, connection.send_many_sync(items)))

    def _handles(self, calls: list[Call[R]], answers: list[int | Duplicate]) -> list[JobHandle[R]]:
        tag = self._connection.tag
        return [
            make_handle(self, call.task, tag, answer)
            for call, answer in zip(calls, answers, strict=True)
        ]

    def transaction(self) -> AppTransaction:
        """Calls enqueued and jobs cancelled together, or not at all.

        ::

            async with app.transaction() as tx:
                job = tx.enqueue(send.call("a@b.c"))
                tx.cancel(reminder)
            print(job.id)
        """
        return AppTransaction(self)

    def call_by_name(self, task: str, /, *args: Any, **kwargs: Any) -> Call[Any]:
        """A call of a task that this process may not know; then a worker checks its arguments.

        Choose queue, priority and so on with the call's ``options``.

        Raises:
            InvalidCall: the arguments do not fit a task that is known here, or JSON.
        """
        known = self._tasks.get(task)
        if known is not None:
            return known.call(*args, **kwargs)
        # Whether a large payload is allowed is known when the call is enqueued.
        limit = self._connection.config.spill_bytes_max
        return make_call(task, None, encode_loose(task, args, kwargs, limit), Flag(0), Options())

    async def enqueue_by_name(self, task: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Enqueue a task that this process may not know, with its task's or default options.

        Raises:
            InvalidCall: as ``call_by_name``.
            LogError: the log could not be opened or written.
        """
        return await self.enqueue(self.call_by_name(task, *args, **kwargs))

    def enqueue_by_name_sync(self, task: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Do as ``enqueue_by_name``, blocking this thread."""
        return self.enqueue_sync(self.call_by_name(task, *args, **kwargs))

    def job(self, job: JobId) -> JobHandle[Any]:
        """The handle of a job enqueued earlier, or elsewhere, by its id or the number at its end.

        ``task.job(id)`` gives one that knows the type of the result. For a number
        the log is opened.

        Raises:
            InvalidJobId: the text is no job id.
            WrongLog: the id is of another log; told at first use if the app is not open yet.
        """
        return self._handle(job, None)

    def _handle(self, job: JobId, task: Task[..., R] | None) -> JobHandle[R]:
        connection = self._connection
        tag, lsn = split_job_id(job)
        if not tag:
            connection.store()
        connection.check_tag(tag, lsn)
        return JobHandle(self, task, tag or connection.tag, lsn)

    def store(self) -> Store:
        """The open log of this app; opens it, which may block on the disk."""
        return self._connection.store()

    async def open(self) -> Self:
        """Open the directory now instead of at first use; also again after ``close``.

        Raises:
            LogError: the directory cannot be used.
        """
        self._connection.reopen()
        await self._connection.opened()
        return self

    def open_sync(self) -> Self:
        """Do as ``open``, blocking this thread."""
        self._connection.reopen()
        self._connection.store()
        return self

    async def close(self) -> None:
        """Finish what was asked for and close the directory. Legal twice, and before any use."""
        await self._connection.aclose()

    def close_sync(self) -> None:
        """Do as ``close``, blocking this thread."""
        self._connection.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        return self.open_sync()

    def __exit__(self, *_exc: object) -> None:
        self.close_sync()

    def on_dead(self, hook: DeathHook) -> DeathHook:
        """Call a function with each ``DeadLetter`` that a worker of this app makes; a decorator.

        It runs in the worker's loop, as a task of its own if it is async, once the death is on
        disk. Told are jobs that died here, and those of killed workers that were taken back here.
        What it raises is logged. Hooks are taken up when a worker starts.
        """
        self._death_hooks.add(hook, origin_of(hook))
        return hook

    def __repr__(self) -> str:
        return f"<TaskQ {self._connection.path} {len(self._tasks)} task names>"

    def _add_task(self, fn: Callable[..., Any], choices: TaskChoices) -> Task[..., Any]:
        task = make_task(self, fn, choices)
        names = (task.name, *task.aliases)
        replaced: list[Task[..., Any]] = []
        for name in names:
            taken = self._tasks.get(name)
            if taken is not None and not _is_new_form(task.origin, taken.origin):
                raise UsageError(
                    f"the task name {name!r} is taken by {taken.fn.__module__}."
                    f"{taken.fn.__qualname__}: give one of the two another with name="
                )
            if taken is not None:
                replaced.append(taken)
        # Jobs may wait under a name that its new form has no more.
        renewed = [name for name, known in self._tasks.items() if known in replaced]
        self._tasks = self._tasks | dict.fromkeys((*renewed, *names), task)
        self._task_listeners.tell()
        return task


def _is_new_form(new: Origin, known: Origin) -> bool:
    return new.is_line_of(known) or new.is_rerun_of(known)


def _checked(calls: Iterable[Call[R]]) -> list[Call[R]]:
    given = list(calls)
    for call in given:
        if not isinstance(call, Call):
            raise UsageError(f"enqueue_many() takes calls such as task.call(...), got {call!r:.60}")
    return given


@functools.cache
def default_app() -> TaskQ:
    """The app of tasks that name none, configured by the settings alone."""
    return TaskQ()


@overload
def task(  # type: ignore[overload-overlap]
    fn: Callable[P, Coroutine[Any, Any, R]], /
) -> AsyncTask[P, R]: ...


@overload
def task(fn: Callable[P, R], /) -> SyncTask[P, R]: ...


@overload
def task(**choices: Unpack[TaskChoices]) -> TaskDecorator: ...


def task(fn: Callable[..., Any] | None = None, /, **choices: Unpack[TaskChoices]) -> Any:
    """Make a task of a function, on the default app: ``@task`` or ``@task(queue="mail", ...)``.

    Raises:
        UsageError: the function or an option is wrong, or the name is taken.
    """
    if fn is None:
        return default_app().task(**choices)
    return default_app().task(fn)
