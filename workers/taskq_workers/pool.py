"""A worker: it claims the jobs of one app's tasks, runs them on slots and settles them."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, Final, Never, Protocol, Self

from anyio import CancelScope, create_task_group, move_on_after, sleep, sleep_forever
from anyio.abc import TaskStatus

from taskq import DeadLetter, Delivery, Task, TaskQ, engine, errors, hooks, values, views
from taskq_workers.events import Hook
from taskq_workers.gates.gates import Gates
from taskq_workers.runs import executors, guards, joblogs, lifespans, loader, tracing
from taskq_workers.services import scheduler, watches
from taskq_workers.services.deaths import DeathHooks
from taskq_workers.services.watches import LoopWatch
from taskq_workers.slots import batches, feed, outcomes, rounds, slots

#: A drain is logged if it takes longer than this.
SILENCE_SECONDS: Final = 0.5
_NAMED_MAX: Final = 3


async def report_drain(
    running: Callable[[], list[tuple[Delivery, float | None]]], drain_seconds: float
) -> None:
    await sleep(SILENCE_SECONDS)
    held = [f"{job.task} {job.job_id}" for job, _ in running()]
    if held:
        _log.warning(
            "the worker stops; running jobs get %g s to finish (drain_timeout): %s",
            drain_seconds, values.listed(held, _NAMED_MAX),
        )  # fmt: skip


class CancelListener:
    """Stops the jobs of slots when they are cancelled."""

    def __init__(self, slots: slots.Slots) -> None:
        self._slots = slots

    async def run(self, store: engine.Store, *, task_status: TaskStatus[None]) -> None:
        """Listen until this service is cancelled: jobs may be cancelled while the worker drains."""
        leave = store.on_cancel(self._on_ask)
        try:
            task_status.started()
            await sleep_forever()
        finally:
            leave()

    def _on_ask(self, ask: engine.Ask, _: None) -> None:
        # A delivery from the same batch is in the feed's buffer only after this turn.
        self._slots.loop.call_soon(self._stop, ask)

    def _stop(self, ask: engine.Ask) -> None:
        """Stop the job, unless it is settled already, or another worker of this process runs it."""
        slots = self._slots
        for slot in slots.slots:
            delivery = slot.delivery
            if delivery is not None and (delivery.job, delivery.token) == ask:
                job = slot.context.get(hooks.running_job)
                if job is not None and job.delivery is delivery:
                    job.ask_cancel()
                _log.info("job %s is cancelled while it runs", delivery.job_id)
                slot.stop(cancellation)
                return
        buffer = slots.feed.buffer
        for delivery in buffer:
            if (delivery.job, delivery.token) == ask:
                buffer.remove(delivery)
                slots.put(cancellation(delivery), monotonic())
                return
        held = None if slots.gates is None else slots.gates.withdraw(ask)
        if held is not None:
            slots.put(cancellation(held), monotonic())


def cancellation(delivery: Delivery) -> engine.Settlement:
    return engine.Settlement(engine.kinds.CANCEL, delivery, None, 0, engine.Cause.ASKED)


class SlotsWish:
    """Listens for changes of the worker's number of slots; a ``Service``.

    ``resize`` is called with each number; None means the number at the worker's start.
    """

    def __init__(self, resize: Callable[[int | None], None]) -> None:
        self._resize = resize

    async def run(self, store: engine.Store, *, task_status: TaskStatus[None]) -> None:
        """Listen until cancelled."""
        rings = asyncio.Event()
        leave = store.on_steering(lambda *_: rings.set())
        port, owner, last = store.port(), store.owner, None
        try:
            task_status.started()
            while True:
                with contextlib.suppress(errors.TaskqError):  # claims report a failed log
                    wish = await port.slots_wished(owner)
                    if wish != last:
                        last = wish
                        self._resize(wish)
                await rings.wait()
                rings.clear()
        finally:
            leave()


#: Most logs of one worker: each has a thread and open files.
LOGS_MAX: Final = 1_024


class Service(Protocol):
    """A part of the worker besides the jobs: a scheduler, the gates, a listener for cancels."""

    async def run(self, store: engine.Store, *, task_status: TaskStatus[None]) -> None:
        """Work until cancelled.

        An error before ``task_status.started()`` prevents the worker's start; a later error stops
        the worker after its drain. A service may end by itself.
        """


class LogPart:
    """A log of a worker, served until the worker ends or the log is left.

    Attributes:
        weight: the log's share of the claims.
        store: the open store; None before it is opened and after the log is left.
        host: the host of its feed; the slots unless it is set.
        services: services that claim or create jobs; ended as the worker drains.
        late_services: services that run until the last job is settled.
    """

    def __init__(self, app: TaskQ, weight: int = 1, *, ticks: bool, syncs: bool) -> None:
        self.app = app
        self.weight = weight
        self.store: engine.Store | None = None
        self.host: feed.FeedHost | None = None
        self.gates: Gates | None = None
        self.services: list[Service] = [scheduler.Scheduler(app)] if ticks else []
        self.late_services: list[Service] = [_syncing(app)] if syncs else []
        self._scopes: list[CancelScope] = []

    def serve(self, worker: object, serving: views.Serving | None) -> None:
        """Publish the worker's claims of this log, for ``taskq show`` and similar commands."""
        if self.store is not None:
            self.store.serve(worker, serving)

    async def run(self, part: Service, *, task_status: TaskStatus[None]) -> None:
        assert self.store is not None
        with CancelScope() as scope:
            self._scopes.append(scope)
            await part.run(self.store, task_status=task_status)

    def leave(self) -> None:
        self.store = None
        for scope in self._scopes:
            scope.cancel()


def parts_of(
    app: TaskQ,
    logs: Iterable[str | os.PathLike[str]] | Mapping[Any, int] | None,
    *,
    ticks: bool,
    syncs: bool,
) -> list[LogPart]:
    """Return the logs of a worker: the named logs, else its app's.

    With ``ticks`` it ticks the app's schedules in each log; with ``syncs`` it sends each log to
    the hub.
    """
    if logs is None:
        return [LogPart(log, ticks=ticks, syncs=syncs) for log in app.logs()]
    if len(app.logs()) > 1:
        raise errors.UsageError(
            "the app has shards, and its workers work all of them: leave logs out"
        )
    weights = logs if isinstance(logs, Mapping) else None
    paths = [os.fspath(log) for log in logs]
    if isinstance(logs, str) or not paths or len(paths) > LOGS_MAX:
        raise errors.UsageError(f"logs takes 1 to {LOGS_MAX} directories, or weights by directory")
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise errors.UsageError("logs names a directory twice: give it one weight")
    shares = [1] * len(paths)
    if weights is not None:
        shares = [
            engine.Weights.checked(weights[log], f"the weight of log {str(log)!r}") for log in logs
        ]
    both = zip(paths, shares, strict=True)
    return [LogPart(app.over(path), share, ticks=ticks, syncs=syncs) for path, share in both]


def _syncing(app: TaskQ) -> Service:
    """Return the service that sends the log to a hub, from another package."""
    service: Service = loader.find_plugin("taskq.services", "sync", "hub")(app)
    return service


class Stranded:
    """The jobs of a loop that was closed under the worker, for each of its logs."""

    def __init__(self, runner: feed.Runner) -> None:
        self._runner = runner
        self._left: list[engine.Settlement] = []

    def of(self, app: TaskQ) -> list[engine.Settlement]:
        """Settle the jobs of this log that have ended, release running and waiting jobs."""
        runner, tag = self._runner, app.connection.tag
        left = [delivery for delivery, _ in runner.held() if delivery.tag == tag]
        self._left += runner.settler.surrender()
        self._left += [outcomes.release(delivery) for delivery in left + runner.feed.surrender()]
        return [end for end in self._left if end.delivery.tag == tag]


def surrender(slots: slots.Slots, parts: Iterable[LogPart]) -> None:
    """Release deliveries that no slot has begun; from another thread, while the loop is blocked."""
    stores = {part.app.connection.tag: part.store for part in parts}
    for settlement in slots.surrender():
        store = stores.get(settlement.delivery.tag)
        if store is not None:
            with contextlib.suppress(errors.TaskqError):
                store.thread_port.settle([settlement])


_log: Final = logging.getLogger("taskq.worker")

_HOW: Final = 'write "async with app.worker(): ...", or app.run_worker() where no event loop runs'

CONCURRENCY_DEFAULT: Final = 8
DRAIN_SECONDS_DEFAULT: Final = 10.0
#: Time for a cancelled job to clean up: a worker should end within a second after its drain,
#: before a service manager kills it.
CANCEL_SECONDS: Final = 0.5


class Phase(enum.Enum):
    """Phases of a worker, which is started once."""

    NEW = enum.auto()
    #: opens the log, or runs
    RUNNING = enum.auto()
    #: claims no more jobs; running jobs finish
    DRAINING = enum.auto()
    #: running jobs are cancelled
    CANCELLING = enum.auto()
    STOPPED = enum.auto()


class Worker:
    """Runs an app's jobs until it is stopped. Use ``async with``, or ``await worker.run()``.

    ::

        async with app.worker(concurrency=8):
            await serve()

    Async tasks run on the event loop, sync ones in daemon threads, tasks with
    ``runs_in="process"`` in child processes. Jobs of a task that is not registered with the app
    wait for a worker with the task.

    Args:
        app: the app with the tasks.
        concurrency: how many jobs run at a time, of all logs together.
        logs: directories to claim from in place of the app's, with weights to share the slots in
            that proportion. A job enqueues into its own log.
        queues: names of the queues to claim from, with weights to share the claims in that
            proportion; None for all.
        burst: stop by itself once no job is ready and none runs. Jobs due later are left.
        max_jobs: stop by itself after this number of attempts; None for no limit.
        drain_timeout: time for running jobs to finish at a stop, such as "30s".
        thread_limit: how many sync jobs run at a time, ``concurrency`` if None. A job that
            exceeds its timeout cannot be stopped, and counts until its function returns.
        process_limit: how many jobs run in child processes at a time, ``concurrency`` if None.
        max_jobs_per_child: replace a child process after this number of jobs.
        max_rss_per_child: replace a child that takes more memory after a job: bytes, or "500MB".
        target: ``module:app`` that children import; by default each task's own module.
        schedules: whether it ticks the app's schedules; a worker with ``burst`` never does.
        warns: whether it checks each minute for waiting jobs that no worker would take, and for
            queues of its own that are never used, and logs them.
        sync: whether it sends the log to the hub of the settings, as ``taskq sync --follow`` does.
        on_event: called with a ``JobFinished`` for each attempt that ended, on the loop's thread.
        on_dead: called with each ``DeadLetter`` that this process makes, besides the app's own
            hooks; see ``TaskQ.on_dead``.

    Attributes:
        burst: whether it stops by itself once no job is ready.
        drain_seconds: time for running jobs to finish at a stop.
        started: set once the log is open and the first claim waits.
        stopped: set once every job is settled.
        executor: where the jobs run, "" for here.
        services: services that claim or create jobs, started with it and ended as it drains.

    Raises:
        UsageError: an option is out of range.
    """

    concurrency: int
    queues: frozenset[str] | None
    burst: bool
    drain_seconds: float
    started: asyncio.Event
    stopped: asyncio.Event
    executor: str = ""
    #: whether jobs run in this process, and take resources of the app's lifespans here
    lends: bool = True

    _stuck: watches.StuckWatch | None = None
    reports_drain = True  # a slow drain is logged, unless a terminal shows it

    #: process that ``taskq worker stop`` asks to end this worker; 0 for none
    stops = 0

    def __init__(
        self,
        app: TaskQ,
        *,
        concurrency: int = CONCURRENCY_DEFAULT,
        queues: Iterable[str] | Mapping[str, int] | None = None,
        logs: Iterable[str | os.PathLike[str]] | Mapping[Any, int] | None = None,
        burst: bool = False,
        max_jobs: int | None = None,
        drain_timeout: values.Duration = DRAIN_SECONDS_DEFAULT,
        thread_limit: int | None = None,
        process_limit: int | None = None,
        max_jobs_per_child: int | None = None,
        max_rss_per_child: int | str | None = None,
        target: str = "",
        schedules: bool = True,
        warns: bool = True,
        sync: bool = False,
        on_event: Hook | None = None,
        on_dead: Callable[[DeadLetter], Any] | None = None,
    ) -> None:
        self._room = executors.make_limits(
            concurrency,
            thread_limit=thread_limit,
            process_limit=process_limit,
            max_jobs_per_child=max_jobs_per_child,
            max_rss_per_child=max_rss_per_child,
            target=target,
        )
        _check(max_jobs, on_event=on_event, on_dead=on_dead)
        joblogs.note_jobs()
        self.app = app
        self.concurrency = self._slots_given = concurrency
        self._follows = thread_limit is None, process_limit is None  # the number of slots
        self.queues = None if queues is None else values.checked_queues(queues)
        self._weights = engine.Weights(queues) if isinstance(queues, Mapping) else None
        self._task_limits: Mapping[str, engine.Limit] | None = None
        self.started, self.stopped = asyncio.Event(), asyncio.Event()
        self._begun = asyncio.Event()
        self._parts = parts_of(app, logs, ticks=schedules and not burst, syncs=sync)
        self.services: list[Service] = self._parts[0].services
        self._own = list(self._parts) if logs is not None else []
        self._late_services: list[Service] = []
        self.burst, self._warns, self._max_jobs = burst, warns, max_jobs
        self.drain_seconds = executors.drain_seconds(drain_timeout)
        self._hook, self._on_dead, self._deaths = on_event, on_dead, list[DeathHooks]()
        self._phase = Phase.NEW
        self._stop_asked, self._cancel_asked = asyncio.Event(), asyncio.Event()
        self._error: BaseException | None = None
        self._keeper: guards.Keeper | None = None
        self._opening: CancelScope | None = None
        self._runner: feed.Runner | None = None
        self._places: executors.Executors | None = None
        #: the app's tasks at the last look, and their names
        self._tasks: Mapping[str, Task[..., Any]] = {}
        self._known: frozenset[str] = frozenset()
        #: removes the worker's listeners and patches from the app and its loop
        self._undo = contextlib.ExitStack()
        self._lifespans = lifespans.LifespanHolder(app, lends=self.lends)

    def __await__(self) -> Never:
        raise errors.UsageError(f"a worker is not awaited: {_HOW}")

    def __repr__(self) -> str:
        # asyncio.run(app.worker()) shows this.
        return f"<Worker of {self.app!r}, not run like this: {_HOW}>"

    @property
    def directories(self) -> list[str]:
        """Return the directories of its logs, without failed ones."""
        return [str(part.app.data_dir) for part in self._parts]

    def store(self) -> engine.Store:
        """Return the open log of the worker, or the first of its logs."""
        return self._parts[0].app.store()

    @property
    def stores(self) -> list[engine.Store]:
        """Return the open stores of its logs."""
        return [part.store for part in self._parts if part.store is not None]

    @property
    def running(self) -> int:
        """Return how many jobs are running."""
        return 0 if self._runner is None else self._runner.running()

    @property
    def held(self) -> list[tuple[Delivery, float | None]]:
        """The running jobs, each with its seconds of run time; None if unknown."""
        now = monotonic()
        held = [] if self._runner is None else self._runner.held()
        return [(delivery, None if since is None else now - since) for delivery, since in held]

    @property
    def ended(self) -> Mapping[engine.Kind, int]:
        """Return the number of ended attempts by kind of end."""
        return {} if self._runner is None else self._runner.settler.ended

    @property
    def lingering(self) -> int:
        """Count sync functions that still run in threads after a stop, with their jobs released."""
        return 0 if self._places is None else self._places.lingering

    async def start(self) -> None:
        """Open the log and claim; return once it runs, or at once after a stop.

        Raises:
            LogError: the directory cannot be used.
            UsageError: it was started before, a module that the app includes cannot be imported, a
                task's annotations have no form in JSON, or no asyncio loop runs here.
        """
        if self._phase is Phase.STOPPED:
            if self._keeper is None:
                return
            self._raise_error()
        if self._phase is not Phase.NEW:
            raise errors.UsageError(
                "this worker was started before: make a new one with app.worker()"
            )
        loop = hooks.need_loop("a worker")
        loader.import_included(self.app)
        loader.plug_in(self.app)
        self.app.hooks.check_tasks()
        self._phase = Phase.RUNNING
        # The parent of all its tasks: stop() is often called by another task than start().
        self._keeper = guards.Keeper(self._keep(), loop=loop, name="taskq-worker")
        self._keeper.add_done_callback(self._on_kept)
        try:
            await self._begun.wait()
        except asyncio.CancelledError:
            self.request_stop()
            raise
        if not self.started.is_set():
            self._raise_error()

    async def run(self) -> None:
        """Start, and return once the worker has stopped; cancellation stops it as ``stop`` does.

        Raises:
            LogError: the log failed under the worker.
        """
        try:
            await self.start()
            await self.stopped.wait()
        finally:
            await self.stop()
        self._raise_error()

    async def stop(self) -> None:
        """Drain: claim no more, and let running jobs finish, at most for ``drain_timeout``.

        Cancelled jobs are then released without using up their attempt. Legal twice, and before the
        start.
        """
        self.request_stop()
        await self.stopped.wait()

    def request_stop(self) -> None:
        """Begin to drain, and return immediately."""
        if self._phase is Phase.NEW:
            self._phase = Phase.STOPPED
            self.stopped.set()
        self._stop_asked.set()
        if self._opening is not None:
            self._opening.cancel()

    def request_cancel(self) -> None:
        """Stop without waiting for running jobs: cancel and release them. Return immediately."""
        self.request_stop()
        self._cancel_asked.set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.stop()
        if error is None:
            self._raise_error()

    async def _keep(self) -> None:
        """Own all tasks of the worker; only the loop's end cancels this task."""
        async with create_task_group() as group:
            group.start_soon(self._live, name="taskq-worker-life")

    def _on_kept(self, keeper: asyncio.Task[None]) -> None:
        """Wake ``start`` and ``stop``: the keeper has ended, perhaps before its first step."""
        if not keeper.cancelled():
            self._error = self._error or _only(keeper.exception())
        self._undo.close()
        self._phase = Phase.STOPPED
        self._begun.set()
        self.stopped.set()

    async def _live(self) -> None:
        try:
            if await self._open():
                await self._serve()
        except asyncio.CancelledError:
            if self._places is not None:
                self._places.close()
            raise
        finally:
            # Each step runs, even if the loop ends in the middle of another: a shield cannot
            # prevent that.
            with CancelScope(shield=True):
                async with contextlib.AsyncExitStack() as stack:
                    for part in self._own:
                        stack.push_async_callback(part.app.close)
                    stack.push_async_callback(self._lifespans.leave)
                    if self._places is not None:
                        stack.push_async_callback(self._places.leave)

    async def _open(self) -> bool:
        """Open the logs and enter lifespans, which may be slow; False if a stop came first."""
        with CancelScope() as self._opening:
            if not self._stop_asked.is_set():
                for part in list(self._parts):
                    await self._open_log(part)
                await self._lifespans.enter()
        self._opening = None
        return not self._stop_asked.is_set()

    async def _open_log(self, part: LogPart) -> None:
        try:
            await part.app.open()
        except errors.LogError as error:
            if len(self._parts) == 1:
                raise
            self._parts.remove(part)
            _log.error("log %s is left out: %s", part.app.data_dir, error)
        else:
            # An app's block that ends now leaves the log open for the worker's running jobs.
            connection = part.app.connection
            connection.enter()
            self._undo.callback(connection.enter, -1)
            part.store = part.app.store()

    async def _serve(self) -> None:
        """Run jobs until a stop, with the services that run until the last job is settled."""
        self._store = self.store()
        runner = self._runner = self._hire()
        self._listen()
        async with create_task_group() as group:
            try:
                for service in self._late_services:
                    await group.start(self._run_part, None, service)
                for part in self._parts:
                    for service in part.late_services:
                        await group.start(self._run_part, part, service)
                await self._claim(runner)
                await runner.settler.settle_all()
            except asyncio.CancelledError:
                # The loop itself ends and cancels all tasks: release as many jobs as possible.
                runner.leave()
                runner.interrupt()
                runner.settler.flush()
                raise
            group.cancel_scope.cancel()

    async def _claim(self, runner: feed.Runner) -> None:
        """Claim until a stop is requested; return when the last job has ended or was abandoned."""
        async with create_task_group() as ending:
            async with create_task_group() as claiming:
                for part in self._parts:
                    for service in part.services:
                        await claiming.start(self._run_part, part, service)
                runner.feed.refill()
                self.started.set()
                self._begun.set()
                await self._stop_asked.wait()
                self._phase = Phase.DRAINING
                for deaths in self._deaths:
                    deaths.until = monotonic() + self.drain_seconds
                runner.leave()
                if self.drain_seconds:
                    for batcher in self._batchers:
                        batcher.drain()
                for part in self._parts:
                    part.serve(self, None)
                ending.start_soon(self._interrupt, runner)
                if self.reports_drain:
                    ending.start_soon(report_drain, lambda: self.held, self.drain_seconds)
                claiming.cancel_scope.cancel()
            await runner.gone.wait()
            ending.cancel_scope.cancel()

    async def _interrupt(self, runner: feed.Runner) -> None:
        # Its last part is timed separately: jobs that ended during a stall of the loop settle then.
        last = min(self.drain_seconds / 10, 1.0)
        for seconds in (self.drain_seconds - last, last):
            with move_on_after(seconds):
                await self._cancel_asked.wait()
        self._phase = Phase.CANCELLING
        runner.interrupt()
        await sleep(CANCEL_SECONDS)
        runner.abandon()
        runner.gone.set()

    async def _run_part(
        self, part: LogPart | None, service: Service, *, task_status: TaskStatus[None]
    ) -> None:
        try:
            if part is None:
                await service.run(self._store, task_status=task_status)
            else:
                await part.run(service, task_status=task_status)
        except Exception as error:
            if not self.started.is_set():
                raise
            if part is None or part.host is None or not isinstance(error, errors.LogError):
                self._on_end(error)
            else:
                part.host.fail(error)

    def _hire(self) -> feed.Runner:
        self._task_names()  # which publishes them
        self._batchers: list[batches.Batcher] = []
        runner = self._make_runner(self._parts)
        stranded = Stranded(runner)
        for part in self._parts:
            host, store = part.host or runner, part.store
            assert store is not None
            host.feed.limits, host.feed.weights = self._task_limits, self._weights
            self._undo.callback(store.port().when_closed(partial(stranded.of, part.app)))
            gates = part.gates = Gates(
                part.app, host, queues=self.queues, changed=self._publish_serving
            )
            self._deaths.append(DeathHooks(part.app, self._on_dead))
            part.late_services += [self._deaths[-1], gates.probes]
            part.late_services += [make(part.app) for make in self.app.hooks.services.values()]
            part.services.append(gates)
            if self._warns:
                part.services.append(watches.StrayWatch(part.app, self.queues))
        self._stuck = watches.StuckWatch(
            self.app, self.queues, lambda: self.concurrency,
            lambda: [delivery for delivery, _ in runner.held()],
            self._port_of, self._publish_serving,
        )  # fmt: skip
        self._late_services += [self._lifespans, self._stuck]
        return runner

    def _port_of(self, tag: str) -> engine.LoopPort | None:
        stores = (part.store for part in self._parts if part.app.connection.tag == tag)
        store = next(stores, None)
        return None if store is None else store.port()

    def _make_runner(self, parts: Sequence[LogPart]) -> feed.Runner:
        """Make the runner of the jobs: slots of this process, unless a subclass overrides it."""
        stores = [part.store for part in parts if part.store is not None]
        keeper = self._keeper
        assert keeper is not None
        self._places = executors.Executors(self._room, self._lifespans.resources, self._children)
        hook = tracing.measuring_hook(stores, self._hook)
        traced = tracing.make_tracer(hook)
        wraps = [] if traced is None else [traced.wrap]
        if self.app.hooks.middleware:
            # Imported only for apps with middleware, which are few.
            from taskq_workers.slots.middleware import Surrounded  # noqa: PLC0415

            resources = self._lifespans.resources
            wraps.insert(0, Surrounded(self.app.hooks.middleware, resources).wrap)
        plans = executors.Plans(lambda: self.app.tasks, self._places, wraps)
        # From now on each job is run by the form of the task that exists when the job begins.
        self._undo.callback(self.app.hooks.renewed.listen(plans.clear))
        runner = slots.Slots(
            self.app,
            [
                rounds.LogSource(
                    app=part.app,
                    port=store.port(),
                    clock=store.steady_ns,
                    weight=part.weight,
                    failed=partial(self._leave, part),
                )
                for part, store in zip(parts, stores, strict=True)
            ],
            plans,
            concurrency=self.concurrency,
            queues=self.queues,
            tasks=self._task_names,
            hook=traced or hook,
            stop=self._on_end,
            is_cancelled=lambda: keeper.cancelling() > 0,
            burst=self.burst,
            max_jobs=self._max_jobs,
        )

        def batcher(task: Task[..., Any], call: executors.Calling) -> executors.Calling:
            self._batchers.append(batches.Batcher(task, call, lambda: runner))
            return self._batchers[-1].join

        plans.batcher = batcher
        # Called in another thread: the slots are copied in one step of the interpreter.
        give_back = partial(surrender, runner, self._parts)
        watch = LoopWatch(
            lambda: not runner.running(), runner.delivery_of, give_back, lambda: self.stores
        )
        for part, host in zip(parts, runner.hosts, strict=True):
            part.host = host
            part.late_services += [CancelListener(runner), SlotsWish(partial(self._resize, runner))]
        self._late_services.append(watch)
        keeper.blame = runner.blame
        self._undo.callback(guards.forbid_stop(runner.loop, runner.runs))
        self._undo.callback(guards.end_children_of(runner.loop, runner.forsake))
        return runner

    def _resize(self, runner: slots.Slots, wish: int | None) -> None:
        count = self._slots_given if wish is None else wish
        if count == self.concurrency or self._phase is not Phase.RUNNING:
            return
        _log.info("slots: %d instead of %d", count, self.concurrency)
        self.concurrency = count
        threads, processes = self._follows
        self._room = replace(
            self._room,
            threads=count if threads else self._room.threads,
            processes=count if processes else self._room.processes,
        )
        if self._places is not None:
            self._places.resize(self._room)
        runner.resize(count)
        self._publish_serving()

    def _children(self) -> executors.Children:
        # Imported when a task needs it: it imports as many modules as all the rest.
        from taskq_workers.children.runner import ProcessRunner  # noqa: PLC0415

        return ProcessRunner(asyncio.get_running_loop(), self.app, self._room)

    def _task_names(self) -> frozenset[str]:
        tasks = self.app.tasks
        if tasks is not self._tasks:
            self._tasks, self._known = tasks, frozenset(tasks)
            limits = {name: task.limit for name, task in tasks.items() if task.limit is not None}
            self._task_limits = limits or None
            for part in self._parts:
                if part.host is not None:
                    part.host.feed.limits = self._task_limits
                if part.gates is not None:
                    part.gates.learn()
            self._publish_serving()
        return self._known

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        #: the tasks for which all feeds claim
        self._asked_for: Mapping[str, Task[..., Any]] = self.app.tasks

        def on_new() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._learn)

        self._undo.callback(self.app.hooks.renewed.listen(on_new))

    def _learn(self) -> None:
        """Claim jobs of tasks that were registered or replaced meanwhile, too."""
        # One log's claim may have seen the new tasks; the claims of other logs still wait.
        if self._phase is Phase.RUNNING and self.app.tasks is not self._asked_for:
            self._asked_for = self.app.tasks
            self._task_names()
            if self._runner is not None:
                self._runner.feed.reconsider()

    def _publish_serving(self) -> None:
        """Publish this worker's claims, for ``taskq show`` and similar commands."""
        for part in self._parts:
            serving = views.Serving(
                queues=self.queues,
                tasks=self._task_names(),
                slots=self.concurrency,
                holds=self._holds(part),
                limits=self._task_limits,
                stops=self.stops,
            )
            part.serve(self, serving)

    def _holds(self, part: LogPart) -> tuple[views.Hold, ...]:
        stuck = () if self._stuck is None or self._stuck.hold is None else (self._stuck.hold,)
        return stuck if part.gates is None else (*part.gates.holds(), *stuck)

    def _leave(self, part: LogPart, error: BaseException) -> None:
        _log.error("log %s is left, the others go on: %s", part.app.data_dir, error)
        self._parts.remove(part)
        part.leave()

    def _on_end(self, error: BaseException | None) -> None:
        if error is not None and self._error is None:
            cause = ", because its log failed" if isinstance(error, errors.LogError) else ""
            _log.error("the worker stops%s: %s", cause, error)
            self._error = error
        self.request_stop()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def _check(max_jobs: int | None, **hooks: object) -> None:
    if max_jobs is not None and values.whole(max_jobs, "max_jobs") < 1:
        raise errors.UsageError(f"max_jobs is {max_jobs}, at least 1, or None for no limit")
    for name, hook in hooks.items():
        if hook is not None and not callable(hook):
            raise errors.UsageError(f"{name} is {hook!r:.60}: give a function of one argument")


def _only(error: BaseException | None) -> BaseException | None:
    """Return the error itself, unwrapped from the groups of its task groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
