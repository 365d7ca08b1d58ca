"""TaskQ: the tasks of an application, and the directory of their jobs."""

from __future__ import annotations

import contextlib
import functools
import os
import typing
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Never,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    Unpack,
    overload,
)

import taskq.telemetry as telemetry
from taskq.app import holder, hooks, schedules
from taskq.app.tasks import (
    AsyncTask,
    BatchChoices,
    BatchDecorator,
    SyncTask,
    Task,
    TaskChoices,
    TaskDecorator,
    make_task,
    no_call,
    with_choices,
)
from taskq.calls import habits, naming, serialization
from taskq.calls.call import Call, Options, checked_calls, make_call
from taskq.conditions import breakers
from taskq.connection import logoptions
from taskq.connection.blocking import blocking, in_turns, off_loop, refuse_in_loop, run
from taskq.connection.connection import Connection, JobId, split_job_id
from taskq.connection.handle import JobHandle, make_handle
from taskq.core import durations, errors, records, sources
from taskq.core.parsing import Tag
from taskq.core.values import TypedDict

if TYPE_CHECKING:
    import asyncio

    from taskq.app import logs
    from taskq.app.transaction import AppTransaction
    from taskq.conditions import base
    from taskq.connection.settings import Settings
    from taskq.flows.flow import Flow
    from taskq.flows.handle import FlowHandle
    from taskq.log.config import LogConfig
    from taskq.log.decide.listeners import DeadLetter
    from taskq.log.store.store import Store
    from taskq.shards import Shards

    #: Names of queues, or the weight of each.
    Queues: TypeAlias = Iterable[str] | Mapping[str, int]
    #: A function or a task to call with a dead letter.
    DeathCall: TypeAlias = Callable[[DeadLetter], Any]


class WorkerOptions(TypedDict, total=False):
    """Options of ``app.worker`` besides concurrency and queues; see ``taskq.Worker``."""

    logs: Iterable[str | os.PathLike[str]] | Mapping[Any, int] | None
    burst: bool
    max_jobs: int | None
    drain_timeout: durations.Duration
    thread_limit: int | None
    process_limit: int | None
    max_jobs_per_child: int | None
    max_rss_per_child: int | str | None
    target: str
    schedules: bool
    warns: bool
    sync: bool
    on_event: Callable[[Any], object] | None
    on_dead: DeathCall | None


class AppWorker(Protocol):
    """Type of an app's worker for the app's program: ``taskq.Worker``."""

    #: set once the log is open and the first claim waits
    started: asyncio.Event
    #: set once every job is settled
    stopped: asyncio.Event

    @property
    def running(self) -> int:
        """Return how many jobs are running."""

    async def start(self) -> None:
        """Open the log and start claiming; return once the worker runs."""

    async def run(self) -> None:
        """Start, and return once the worker has stopped."""

    async def stop(self) -> None:
        """Drain: claim no more, let running jobs finish, cancel them after ``drain_timeout``."""

    def request_stop(self) -> None:
        """Begin to drain, and return immediately."""

    def request_cancel(self) -> None:
        """Stop without waiting for running jobs, and return immediately."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def find_workers(method: str, options: WorkerOptions) -> Any:
    """Import the package of the workers.

    Raises:
        UsageError: the package is missing, or another project's; or an option is unknown.
    """
    import taskq.extras as extras  # noqa: PLC0415 - many programs only enqueue

    try:
        workers = extras.workers()
        known = workers.Worker.__init__.__kwdefaults__
    except (ImportError, AttributeError) as error:
        raise errors.UsageError(
            f"app.{method}() needs the package taskq_workers ({error}): "
            f"install all of taskq again: {extras.install_line()}"
        ) from error
    unknown = options.keys() - known.keys()
    if unknown:
        name = min(unknown)
        raise errors.UsageError(
            f"app.{method}() has no option {name!r}: {habits.option_instead(name, known)}"
        )
    return workers


P = typing.ParamSpec("P")
R = TypeVar("R")
DeathHook = TypeVar("DeathHook", bound="DeathCall")
StepHook = TypeVar("StepHook", bound="Callable[[hooks.StepDone], object]")
OneAround = TypeVar("OneAround", bound="hooks.AroundFunction")


class TaskQ(holder.LogHolder):
    """An application's tasks and the directory of their jobs. The directory is opened at first use.

    Other options come from the settings: ``TASKQ_…`` in the environment, then files. Files of the
    working directory count only if neither code nor settings name the log's directory.

    Args:
        data_dir: the directory; created if it is missing.
        include: full names of the modules that hold the app's tasks. Workers import them after the
            app's own module, so these modules may import it.
        settings: used instead of the environment and the files.
        shards: several logs in place of one, below their root if ``data_dir`` is None.
        options: see ``LogOptions``.

    Attributes:
        hooks: the app's declarations for workers: tasks, lifespans, middleware, schedules.

    Raises:
        UsageError: a setting is wrong.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        include: Iterable[str] = (),
        settings: Settings | None = None,
        shards: Shards | None = None,
        **options: Unpack[logoptions.LogOptions],
    ) -> None:
        if shards is not None:
            if not hasattr(shards, "index_of"):
                raise errors.UsageError(f"shards is {shards!r:.60}: write shards=Shards(...)")
            if data_dir is None:
                data_dir = os.fspath(shards.root)
        data_dir = logoptions.checked_data_dir(data_dir)
        if settings is not None and not hasattr(settings, "log_config"):
            raise errors.UsageError(f"settings is {settings!r:.60}: write settings=Settings(...)")
        if unknown := options.keys() - logoptions.LogOptions.__annotations__.keys():
            raise logoptions.unknown_option(min(unknown))
        self._given, self._base = logoptions.checked_numbers(options), settings
        self._directory, config = self._configure(data_dir)
        super().__init__(Connection(os.fspath(self._directory), config))
        self.hooks: hooks.Hooks = hooks.Hooks(include)
        #: for a view over another log: the app itself
        self._origin: TaskQ | None = None
        self._router: logs.ByJob | ByKey | None = None
        if shards is not None:
            from taskq.app.logs import ByKey  # noqa: PLC0415 - few apps have several logs

            self._router = ByKey(self, shards)

    @classmethod
    def user_data(cls, app: str, **arguments: Any) -> Self:
        """Return the app of a desktop program, with its log in the user's data directory.

        The log is ``~/.local/share/My App/taskq`` on Linux and
        ``~/Library/Application Support/My App/taskq`` on macOS. A setting, such as
        ``TASKQ_DATA_DIR``, has lower priority.

        Args:
            app: the program's name, as its users know it.
            arguments: as of ``TaskQ``, except ``data_dir``.

        Raises:
            UsageError: the name is empty or a path, or as ``TaskQ``.
        """
        if "data_dir" in arguments:
            raise errors.UsageError(
                "user_data() chooses the directory: leave data_dir out, or write TaskQ(data_dir)"
            )
        return cls(logoptions.user_data_dir(app), **arguments)

    def _configure(self, data_dir: str | os.PathLike[str] | None) -> tuple[Path, LogConfig]:
        """Return directory and configuration from code, environment and the directory's files."""
        is_plain = self._base is None and data_dir != "" and isinstance(data_dir, str | Path | None)
        if is_plain and logoptions.has_no_settings(data_dir):
            config = logoptions.config_if_plain(self._given)
            if config is not None:
                vars(self).pop("settings", None)
                return Path(data_dir or logoptions.DATA_DIR_DEFAULT), config
        from taskq.connection.settings import load_settings  # noqa: PLC0415 - takes 0.1 s

        self.settings = load_settings(self._base, data_dir=data_dir, **self._given)
        return self.settings.data_dir, self.settings.log_config()

    def _configure_again(self, path: str | os.PathLike[str]) -> tuple[Path, LogConfig]:
        """Return another directory and its configuration, with the clock of this app."""
        directory, config = self._configure(path)
        return directory, replace(config, clock=self._connection.config.clock)

    @functools.cached_property
    def settings(self) -> Settings:
        """Return the settings of the app."""
        from taskq.connection.settings import silent_settings  # noqa: PLC0415 - as above

        return silent_settings(self._directory, self._given)

    @property
    def name(self) -> str:
        """Return the name that ``taskq workers`` shows."""
        return self._connection.config.name

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """Return the app's tasks by all of their names."""
        return self.hooks.tasks

    @property
    def data_dir(self) -> Path:
        """The directory, as an absolute path. It may be set until the app is opened.

        The settings of the new directory then apply.

        Raises:
            UsageError: the app is open, or a setting of the new directory is wrong.
        """
        return Path(self._connection.path)

    @data_dir.setter
    def data_dir(self, path: str | os.PathLike[str]) -> None:
        self._connection.check_move(os.fspath(path))
        self._directory, config = self._configure_again(path)
        self._connection.move(os.fspath(path), config)

    # The overloads overlap on purpose: the first match is the more exact type.
    @overload
    def task(  # type: ignore[overload-overlap]
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def task(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...

    @overload
    def task(self, /, **choices: Unpack[BatchChoices]) -> BatchDecorator: ...

    @overload
    def task(self, /, **choices: Unpack[TaskChoices]) -> TaskDecorator: ...

    def task(self: Any = None, fn: Any = None, /, **choices: Any) -> Any:
        """Make a task of a function: ``@app.task`` or ``@app.task(queue="mail", ...)``.

        Raises:
            UsageError: the function or an option is wrong, or the name is taken.
        """
        if not isinstance(self, TaskQ):  # called on the class, as @TaskQ.task
            raise habits.no_app()
        given: Any = choices
        add = functools.partial(self._add_task, choices=given)
        return add if fn is None else add(fn)

    task.__doc__ = with_choices(task.__doc__)

    def cron(
        self,
        expression: str,
        *,
        tz: object = "UTC",
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        **choices: Unpack[schedules.ScheduleChoices],
    ) -> TaskDecorator:
        """Enqueue a task by a cron expression; put it above ``@app.task`` or on a plain function.

        ``@app.cron("*/5 * * * *", tz="Europe/Berlin", catch_up="last", jitter="30s")``

        One of the workers writes each tick, once. A worker ticks all schedules of its app, also for
        queues that it does not serve; a burst worker ticks none.

        Args:
            expression: five fields, or six with the seconds first.
            tz: name of its time zone, such as "Europe/Berlin".
            name: the schedule's name in the log; its task's name if None.
            args: positional arguments of the call.
            kwargs: its keyword arguments.
            choices: see ``ScheduleChoices``.

        Raises:
            UsageError: the expression, the zone or a choice is wrong, or the name is taken.
        """
        rule = schedules.rule_of(expression, None, tz)
        return self.hooks.schedules.decorator(self._own_task, rule, choices, name, args, kwargs)

    def every(
        self,
        interval: durations.Duration,
        *,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        **choices: Unpack[schedules.ScheduleChoices],
    ) -> TaskDecorator:
        """Enqueue a task at multiples of an interval since 1970 in UTC: "10m"; else as ``cron``.

        Raises:
            UsageError: the interval or a choice is wrong, or the name is taken.
        """
        rule = schedules.rule_of(None, interval)
        return self.hooks.schedules.decorator(self._own_task, rule, choices, name, args, kwargs)

    def schedule(
        self,
        name: str,
        call: Call[Any],
        *,
        cron: str | None = None,
        every: durations.Duration | None = None,
        tz: object = "UTC",
        **choices: Unpack[schedules.ScheduleChoices],
    ) -> schedules.Schedule:
        """Enqueue a call by the clock: ``app.schedule("sync", sync.call("eu"), every="10m")``.

        Workers of the app tick, so declare the schedule in a module that they import. A process
        that only enqueues ticks nothing, and logs a warning if it declares one while the app is
        open.

        Raises:
            UsageError: neither or both of cron and every are given, one is wrong, or the name is
                taken.
        """
        schedule = schedules.schedule_of(name, call, choices, cron=cron, every=every, tz=tz)
        if call.task is not None and call.task.app is not self:
            raise errors.UsageError(
                f"{call.name} is a task of another app: schedule it with that one"
            )
        self.hooks.schedules.add(schedule)
        if self._connection.current is not None and not self.hooks.schedules.listeners.count:
            import logging  # noqa: PLC0415 - few declare one so late

            logging.getLogger("taskq").warning(
                "the schedule %r ticks in workers of this app, and none runs in this process: "
                "declare it in a module that the worker imports", name,
            )  # fmt: skip
        return schedule

    def breaker(
        self,
        queue: str = "default",
        *,
        failures: int = breakers.FAILURES_DEFAULT,
        pause: durations.Duration = breakers.PAUSE_SECONDS_DEFAULT,
        pause_max: durations.Duration = breakers.PAUSE_SECONDS_MAX_DEFAULT,
        probe: base.Condition | base.Check | None = None,
        is_failure: Callable[[BaseException], bool] = breakers.is_network_failure,
    ) -> None:
        """Make a whole queue back off after several network failures in a row.

        Meanwhile its jobs wait and use no attempt. One job is tried after each pause, or as soon as
        the network comes back; the pauses grow. Each worker process counts separately. Call this
        before workers start.

        Args:
            queue: name of the queue.
            failures: number of failures in a row.
            pause: before the first try; each further one waits twice as long.
            pause_max: the longest pause.
            probe: a condition, such as ``online(...)``, that must hold before a try.
            is_failure: whether an error counts; by default errors of connections, names and
                timeouts do.

        Raises:
            UsageError: an argument is wrong, or the queue has another breaker already.
        """
        rule = breakers.breaker_rule(queue, failures, pause, pause_max, probe, is_failure)
        self.hooks.add_breaker(rule)

    def lifespan(self, function: OneAround) -> OneAround:
        """Open shared resources when a worker starts, and close them when it ends; a decorator.

        ``async def database(app: TaskQ) -> AsyncIterator[Database]`` yields the open resource once.

        It is entered before the worker's first claim, and left after its last job. Each worker and
        each child process of ``runs_in="process"`` enters its own. Jobs get the yielded object by
        its type: ``db: Inject[Database] = injected()``; a tuple yields several. Several lifespans
        are entered in the order of their declaration, and left in the opposite order.

        Raises:
            UsageError: the function is a coroutine or a plain generator function, or has an unknown
                parameter. A worker does not start with a function that makes no async context
                manager.
        """
        self.hooks.lifespans.add(
            hooks.Around("lifespan", "app", function), naming.origin_of(function)
        )
        return function

    def middleware(self, function: OneAround) -> OneAround:
        """Wrap each attempt of a job, on the worker's loop; a decorator like ``lifespan``.

        ``async def session(job: JobContext) -> AsyncIterator[None]`` yields once. A job's error is
        raised at the ``yield``; if the middleware swallows it, the job succeeds with None. The
        first declaration is the outermost. A worker reads the list at its start.

        Raises:
            UsageError: the function is a coroutine or a plain generator function, or has an unknown
                parameter. If it makes no async context manager, each attempt fails.
        """
        self.hooks.middleware.add(
            hooks.Around("middleware", "job", function), naming.origin_of(function)
        )
        return function

    if not TYPE_CHECKING:  # a type checker would accept any name otherwise

        def __getattr__(self, name: str) -> Any:
            """Raise an error that names taskq's counterpart of another library's attribute."""
            raise habits.no_attribute(self, "an app", name, habits.APPS, "app")

    async def enqueue(self, call: Call[R], *rest: Never, **more: Never) -> JobHandle[R]:
        """Put one call into the log; on return it is as durable as the app's settings ask for.

        Raises:
            UsageError: it is no call, or other arguments are given too.
            DuplicateKey: another job holds the key, and ``on_conflict`` is "raise".
            LogError: the log could not be opened or written.
        """
        if rest or more or type(call) is not Call:
            raise no_call(call, rest, "app.enqueue")
        connection = self._connection
        if connection.is_traced():
            (handle,) = await self._send([call])
            return handle
        packer = connection.packer
        item = packer.plain_item(call) or await connection.pack(packer.loose(call))
        port = await connection.port()
        answer = await port.enqueue(*item)
        return make_handle(self, call.task, connection.tag, answer)

    def enqueue_sync(self, call: Call[R], *rest: Never, **more: Never) -> JobHandle[R]:
        """Do as ``enqueue``, blocking this thread: for code without an event loop."""
        refuse_in_loop("enqueue_sync()", "await enqueue()")
        if rest or more or type(call) is not Call:
            raise no_call(call, rest, "app.enqueue_sync")
        connection = self._connection
        if connection.is_traced():
            return run(self.enqueue(call))
        packer = connection.packer
        item = packer.plain_item(call) or connection.pack_sync(packer.loose(call))
        answer = connection.send_sync(*item)
        return make_handle(self, call.task, connection.tag, answer)

    async def enqueue_many(
        self, calls: Iterable[Call[R]], *, atomic: bool = True
    ) -> list[JobHandle[R]]:
        """Put all calls into the log, or none: they are one transaction.

        With ``atomic=False`` the calls of each shard are a transaction of their own.

        Raises:
            UsageError: one is no call; nothing was written.
            PayloadTooLarge: together they are over TRANSACTION_BYTES_MAX; nothing was written.
            DuplicateKey: another job holds a key, and ``on_conflict`` is "raise"; nothing was
                written.
            LogError: the log could not be opened or written.
        """
        return await self._send(checked_calls(calls), atomic=atomic)

    enqueue_many_sync: Final = blocking(enqueue_many)

    async def ingest(
        self, source: str, calls: Iterable[Call[R]], position: Any, *, after: Any = sources.ANYWHERE
    ) -> list[JobHandle[R]]:
        """Put calls and the new position of their source into the log, in one transaction.

        A program that begins at ``position(source)`` enqueues each line, message or row of a source
        exactly once, even if it is killed at any moment::

            done = await app.position("orders.csv")
            file.seek(done or 0)
            while lines := list(islice(iter(file.readline, b""), 1_000)):
                calls = [order.call(line) for line in lines]
                await app.ingest("orders.csv", calls, file.tell(), after=done)
                done = file.tell()

        Without calls only the position moves. With shards, the source's name decides the shard of
        the position and the jobs.

        Args:
            source: a name of your choice, 1 to 255 bytes.
            calls: such as ``task.call(...)``, with their options.
            position: any JSON value but None, at most 4 KiB; keys of dicts come back as text.
            after: the expected current position, None for an unknown source; not checked if left
                out. Give it if two programs could ingest one source at a time.

        Returns:
            A handle for each call; if its key was taken, the handle of the key's holder.

        Raises:
            SourceMoved: the source's position is not ``after``; nothing was written.
            DuplicateKey: another job holds a key, and ``on_conflict`` is "raise"; nothing was
                written.
            PayloadTooLarge: the calls are over TRANSACTION_BYTES_MAX together, or the position over
                its limit; nothing was written.
            UsageError: an argument is wrong, a call belongs to another shard, or the log knows
                10 000 sources.
            LogError: the log could not be opened or written.
        """
        move = sources.checked_move(source, position, after)
        given = checked_calls(calls, "ingest")
        return await self._of_source(source)._send_here(given, move)

    ingest_sync: Final = blocking(ingest)

    async def _send(self, calls: list[Call[R]], *, atomic: bool = True) -> list[JobHandle[R]]:
        if self._router is not None:
            return await self._router.send(calls, atomic=atomic)
        return await self._send_here(calls)

    async def _send_here(
        self, calls: list[Call[R]], move: sources.Move | None = None
    ) -> list[JobHandle[R]]:
        connection = self._connection
        with telemetry.sending(connection, calls) as sending:
            items = connection.packer.plain_items(sending.calls)
            if items is None:
                loose = [connection.packer.loose(call) for call in sending.calls]
                items = await connection.pack_many(loose)
            answers = await connection.send_many(items, move)
            tag, both = connection.tag, zip(calls, answers, strict=True)
            jobs = [make_handle(self, call.task, tag, answer) for call, answer in both]
            return sending.sent(jobs)

    def transaction(self) -> AppTransaction:
        """Return a transaction: calls enqueued and jobs cancelled together, or not at all.

        ``async with app.transaction() as tx: job = tx.enqueue(send.call("a@b.c"))``
        """
        from taskq.app.transaction import AppTransaction  # noqa: PLC0415 - few programs need it

        return AppTransaction(self if self._router is None else self._router.here())

    def call_by_name(self, task: str, /, *args: Any, **kwargs: Any) -> Call[Any]:
        """Return a call of a task that may be unknown here; a worker then checks its arguments.

        Choose queue, priority and other options with the call's ``options``.

        Raises:
            InvalidCall: the arguments fit neither JSON nor the signature of a task known here.
            UsageError: the name is no task's name.
        """
        known = self.tasks.get(task)
        if known is not None:
            return known.call(*args, **kwargs)
        return make_call(
            task, None, serialization.encode_loose(task, args, kwargs), records.Flag(0), Options()
        )

    async def enqueue_by_name(self, task: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Enqueue a task that this process may not know, with the task's options or the defaults.

        Raises:
            UsageError: as ``call_by_name``.
            LogError: the log could not be opened or written.
        """
        return await self.enqueue(self.call_by_name(task, *args, **kwargs))

    enqueue_by_name_sync: Final = blocking(enqueue_by_name)

    async def enqueue_flow(self, flow: Flow[R]) -> FlowHandle[R]:
        """Put all of a flow into the log: one transaction.

        Raises:
            UsageError: its jobs cannot wait for one another as declared; nothing was written.
            PayloadTooLarge: they are over TRANSACTION_BYTES_MAX together; nothing was written.
            LogError: the log could not be opened or written.
        """
        from taskq.flows.flow import plan_steps  # noqa: PLC0415 - loaded by whoever made the flow
        from taskq.flows.handle import FlowHandle  # noqa: PLC0415 - as above

        plan = await in_turns(plan_steps(flow))
        jobs = await self._send(list(plan.calls)) if plan.calls else []
        return FlowHandle(jobs[0]._app if jobs else self, tuple(jobs), plan.ends, plan.shape)

    enqueue_flow_sync: Final = blocking(enqueue_flow)

    async def flow(self, flow_id: str) -> FlowHandle[Any]:
        """Return the handle of a flow that was enqueued earlier or by another process.

        Raises:
            UsageError: the id is no flow's.
            JobNotFound: the log has no such job.
            WrongLog: the id belongs to another log.
        """
        from taskq.flows.handle import find_flow  # noqa: PLC0415 - few programs have flows

        return await find_flow(self._of(flow_id), flow_id)

    flow_sync: Final = blocking(flow)

    def job(self, job: JobId) -> JobHandle[Any]:
        """Return the handle of a job in the log, by its id or the number at the id's end.

        ``task.job(id)`` returns a handle with the type of the result. A number opens the log.

        Raises:
            InvalidJobId: the text is no job id.
            WrongLog: the id belongs to another log; raised at first use if the app is not open yet.
        """
        return self._handle(job, None)

    def _handle(self, job: JobId, task: Task[..., R] | None) -> JobHandle[R]:
        if (there := self._of(job)) is not self:
            return there._handle(job, task)
        tag, lsn = split_job_id(job)
        connection = self._connection
        if not tag:
            connection.store()
        connection.check_tag(tag, lsn)
        return JobHandle(self, task, connection.tag or Tag(tag), lsn)

    def _of(self, job: JobId) -> TaskQ:
        return self if self._router is None else self._router.of(*split_job_id(job))

    def _of_source(self, source: str) -> TaskQ:
        return self if self._router is None else self._router.of_source(source)

    def _connections(self) -> list[Connection]:
        return [self._connection] if self._router is None else self._router.connections()

    def logs(self) -> list[TaskQ]:
        """Return the app over each of its logs: only itself if it has no shards."""
        return [self] if self._router is None else self._router.logs()

    def over(self, path: str | os.PathLike[str]) -> TaskQ:
        """Return the same app over the log in another directory: same tasks, hooks, schedules.

        Its enqueues go into that log, and so do the enqueues of jobs that its workers run.
        """
        from taskq.app.logs import over  # noqa: PLC0415 - few apps have several logs

        return over(self, path)

    def store(self) -> Store:
        """Return the open log of this app; opening it may block on the disk."""
        return self._connection.store()

    async def open(self) -> Self:
        """Open the directory now instead of at first use, or reopen it after ``close``.

        Raises:
            LogError: the directory cannot be used.
        """
        for log in self.logs():
            log._connection.reopen()
            await log._connection.opened()
        await off_loop(self.hooks.load_checks)
        return self

    def open_sync(self) -> Self:
        """Do as ``open``, blocking this thread."""
        refuse_in_loop("open_sync()", "await open()")
        for log in self.logs():
            log._connection.reopen()
            log._connection.store()
        return self

    async def __aenter__(self) -> Self:
        with self._block():
            return await self.open()

    async def __aexit__(self, *_exc: object) -> None:
        for connection in self._connections():
            await connection.aclose(block_ends=True)

    def __enter__(self) -> Self:
        refuse_in_loop("with app", "async with app")
        with self._block():
            return self.open_sync()

    def __exit__(self, *_exc: object) -> None:
        refuse_in_loop("with app", "async with app")
        for connection in self._connections():
            connection.close(block_ends=True)

    @contextlib.contextmanager
    def _block(self) -> Iterator[None]:
        """Count an open ``with`` block of this app; the last block closes the log."""
        connections = self._connections()
        for connection in connections:
            connection.enter()
        try:
            yield
        except BaseException:
            for connection in connections:
                connection.enter(-1)
            raise

    def worker(
        self, concurrency: int = 8, queues: Queues | None = None, **options: Unpack[WorkerOptions]
    ) -> AppWorker:
        """Make a worker in this process: ``async with app.worker(): ...``; see ``taskq.Worker``.

        Raises:
            UsageError: the worker package is not installed, or an option is wrong.
        """
        workers = find_workers("worker", options)
        worker: AppWorker = workers.Worker(self, concurrency=concurrency, queues=queues, **options)
        return worker

    def run_worker(
        self, concurrency: int = 8, queues: Queues | None = None, **options: Unpack[WorkerOptions]
    ) -> None:
        """Run a ``worker`` and block until it has stopped: for programs without an event loop.

        In the main thread SIGTERM and SIGINT stop it as they stop ``taskq worker``: the first
        drains, a second cancels running jobs, a third ends the process. In another thread it runs
        until it stops by itself (``burst=True``); otherwise use ``worker_thread``.

        Raises:
            UsageError: called in an event loop's thread, which it would block; or as ``worker``.
            LogError: the directory cannot be used, or failed under the worker.
        """
        workers = find_workers("run_worker", options)
        workers.run_blocking(self, concurrency=concurrency, queues=queues, **options)

    def worker_thread(
        self, concurrency: int = 8, queues: Queues | None = None, **options: Unpack[WorkerOptions]
    ) -> AbstractContextManager[Any]:
        """Return a ``worker`` on a thread of its own: ``with app.worker_thread(): ...``.

        It claims once the block is entered, and has drained once the block is left. It handles no
        signals. An error that stopped it early is raised when the block is left.

        Raises:
            UsageError: as ``worker``.
            LogError: on entering, the directory cannot be used.
        """
        workers = find_workers("worker_thread", options)
        thread: AbstractContextManager[Any] = workers.WorkerThread(
            self, concurrency=concurrency, queues=queues, **options
        )
        return thread

    def on_dead(self, hook: DeathHook, *, tasks: Iterable[str] | None = None) -> DeathHook:
        """Call a function or a task with each ``DeadLetter`` that a worker of this app makes.

        It is a decorator. A task's job is written in one frame with the death, and its own death
        makes no further job. A function runs in the worker's loop once the death is on disk; its
        errors are logged, and a kill in between loses the call. The hook gets jobs that died in
        this worker and jobs that this worker took back from killed workers; with ``tasks``, only
        jobs of the tasks with these names.

        Raises:
            UsageError: the hook is no function, or ``tasks`` is no list of names.
        """
        self._own_task(hook) if isinstance(hook, Task) else None
        self.hooks.add_death_hook(hook, tasks)
        return hook

    def alert(
        self,
        *,
        when: Callable[..., str | bool | None],
        to: Callable[..., object],
        name: str | None = None,
    ) -> None:
        """Send one alert when a condition begins, and one when it is over.

        ``app.alert(when=alerts.no_worker("1m"), to=alerts.mail("ops@example.com"))``

        Conditions and targets are in ``taskq_plugins.alerts``, or functions of your own. Workers of
        the app check every ten seconds, and so does ``taskq alerts MODULE:APP``. Only one of these
        processes sends each alert.

        Args:
            when: returns a sentence about the problem, or "".
            to: gets an ``Alert``; may be async.
            name: the alert's name; by default its condition's name.

        Raises:
            UsageError: an argument is wrong, or the name is taken.
        """
        import importlib  # noqa: PLC0415 - few apps have alerts

        importlib.import_module("taskq_plugins.alerts").declare(self, when, to, name)

    def on_step(self, hook: StepHook) -> StepHook:
        """Call ``def note(done)`` with each ``durable.StepDone`` of jobs that run in this process.

        The job waits for the call; errors of the hook are logged.

        Raises:
            UsageError: the hook is no function, or an async one.
        """
        self.hooks.add_step_hook(hook)
        return hook

    def __repr__(self) -> str:
        return f"<TaskQ {self._connection.path} {len(self.tasks)} task names>"

    def _own_task(self, fn: Callable[..., Any]) -> Task[..., Any]:
        task = fn if isinstance(fn, Task) else self._add_task(fn, {})
        if task.app is not self:
            raise errors.UsageError(
                f"{task.name} is a task of another app: declare it with that one"
            )
        return task

    def _add_task(self, fn: Callable[..., Any], choices: TaskChoices) -> Task[..., Any]:
        task = make_task(self, fn, choices)
        self.hooks.add_task(task)
        return task


@functools.cache
def default_app() -> TaskQ:
    """Return the app of tasks that name no app, configured by the settings alone."""
    return TaskQ()


@overload
def task(  # type: ignore[overload-overlap]
    fn: Callable[P, Coroutine[Any, Any, R]], /
) -> AsyncTask[P, R]: ...


@overload
def task(fn: Callable[P, R], /) -> SyncTask[P, R]: ...


@overload
def task(**choices: Unpack[BatchChoices]) -> BatchDecorator: ...


@overload
def task(**choices: Unpack[TaskChoices]) -> TaskDecorator: ...


def task(fn: Callable[..., Any] | None = None, /, **choices: Any) -> Any:
    """Make a task of a function, on the default app: ``@task`` or ``@task(queue="mail", ...)``.

    Raises:
        UsageError: the function or an option is wrong, or the name is taken.
    """
    if fn is None:
        return default_app().task(**choices)
    return default_app().task(fn)
