"""Run ``taskq worker``: one worker in this process, or a guard with several."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import taskq
import taskq._native as native
from taskq import TaskQ, engine, errors, extras, text, values, views
from taskq.cli import silence
from taskq_workers import events, pool
from taskq_workers.process import reporting, supervisor
from taskq_workers.runs import guards, joblogs, loader, system
from taskq_workers.runs.loader import find_plugin

_GROUP: Final = "taskq.executors"


@values.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """Options of a worker on the command line; most are options of ``Worker``."""

    #: as typed; executors import it again
    target: str
    #: modules with further tasks, besides the app's own ``include``
    include: tuple[str, ...] = ()
    #: address of the executors, in the form of their system; "" for its default
    master: str = ""
    #: Python files and archives that the executors need
    files: tuple[str, ...] = ()
    concurrency: int
    queues: list[str] | dict[str, int] | None
    logs: dict[str, int] | None = None
    burst: bool
    max_jobs: int | None = None
    thread_limit: int | None = None
    process_limit: int | None = None
    max_jobs_per_child: int | None = None
    max_rss_per_child: str | None = None
    warns: bool = True
    drain_timeout: float
    on_event: events.Hook | None
    #: port for Prometheus; None for none
    metrics_port: int | None = None
    #: whether it shows the app's page
    web: bool = False
    sync: bool = False
    #: whether the process that started it also ends it
    is_below: bool = False


class ExecutorEntry(Protocol):
    """Signature of an entry point of the group."""

    def __call__(
        self, app: TaskQ, order: WorkerOrder
    ) -> contextlib.AbstractContextManager[pool.Worker]: ...


def find_executor(name: str) -> ExecutorEntry:
    """Return the executor with this name in the entry points."""
    executor: ExecutorEntry = find_plugin(_GROUP, name, name)
    return executor


#: Most directories that the banner names.
_DIRECTORIES_MAX: Final = 3
#: Most changed files that a line names.
_NAMED_MAX: Final = 3
#: Time for a replaced worker to drain and to end.
_RELOAD_SECONDS: Final = 7.0
_LOOK_SECONDS: Final = 0.1


def run_one(
    order_for: Callable[[events.Hook], WorkerOrder],
    data_dir: Path | None,
    executor: str | None,
    leash: int,
    log: Callable[[str, str], joblogs.Logging],
) -> None:
    """Run one worker in this process until it stops.

    Args:
        order_for: returns the options, given the hook that reports each job.
        data_dir: the log's directory; None for the app's own.
        executor: where the jobs run; None for here.
        leash: descriptor of the socket to the guard that started this process; -1 without one.
        log: returns the logging options, given level and format of the app's settings.
    """
    began = time.perf_counter()
    guards.show_crashes()
    supervisor.keep_heap_small()
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    style = reporting.style_for(sys.stdout.encoding, colours=coloured)
    reporter = reporting.LineReporter(sys.stdout, style)
    # After the reporter is made: prints of tasks may be logged, but not the reporter's lines.
    joblogs.configure_logging(log(joblogs.AT_FIRST.level, joblogs.AT_FIRST.format))
    order = order_for(reporter)
    tie = None if leash < 0 else supervisor.Leash(leash, order.drain_timeout)
    with contextlib.nullcontext() if tie is None else _telling(tie):
        app = _app(order, data_dir)
        settings = vars(app).get("settings")
        if settings:
            joblogs.configure_logging(log(settings.log_level, settings.log_format))
        _run(app, order, executor, reporter, style, tie, began)


@contextlib.contextmanager
def _telling(tie: supervisor.Leash) -> Iterator[None]:
    """Send the guard the error that ends this worker; the guard prints it once for all."""
    try:
        yield
    except errors.TaskqError as error:
        if not tie.failed(str(error)):
            raise
        from click.exceptions import Exit  # noqa: PLC0415 - a worker that runs needs no click

        from taskq.cli import Failure, WrongUsage  # noqa: PLC0415 - likewise

        kind = WrongUsage if isinstance(error, errors.UsageError) else Failure
        raise Exit(kind.exit_code) from error


def _app(order: WorkerOrder, data_dir: Path | None) -> TaskQ:
    app = loader.load_app(order.target, order.include)
    if data_dir is not None:
        app.data_dir = data_dir
    if not app.tasks:
        from taskq_workers.runs.loader import without_tasks  # noqa: PLC0415 - few have none

        raise errors.UsageError(without_tasks(order.target, str(app.data_dir)))
    return app


def _run(
    app: TaskQ,
    order: WorkerOrder,
    executor: str | None,
    reporter: reporting.LineReporter,
    style: reporting.Style,
    tie: supervisor.Leash | None,
    began: float,
) -> None:
    process = "" if tie is None else f"process {os.getpid()} "
    with contextlib.ExitStack() as stack:
        if order.metrics_port is not None:
            order = stack.enter_context(_measured(app, order, reporter))
        if order.web and order.warns:  # only one of several workers shows the page
            page = find_plugin("taskq.services", "web", "web")(app)
            reporter.say(f"page at {stack.enter_context(page)}")
        executed = _here(app, order) if executor is None else find_executor(executor)(app, order)
        worker = stack.enter_context(executed)
        worker.reports_drain = False
        worker.stops = os.getpid()
        if order.is_below or tie is not None:
            worker.stops = os.getppid()
            engine.system.leave_console()

        def on_ready(store: engine.Store, is_empty: bool) -> None:
            facts = _facts(worker, store, is_empty, time.perf_counter() - began)
            if tie is None:
                reporter.open(reporting.banner(facts, style))
            else:
                # The guard has printed the count; the first worker prints the rest for all.
                shared = reporting.particulars(facts, style) if order.warns else []
                reporter.open([*shared, reporting.ready_line(facts, style)])
            if tie is not None:
                tie.ready()

        _supervise(supervisor.Supervisor(worker, on_ready, reporter.say, process), reporter)


def run_guarded(
    arguments: Sequence[str], count: int, *, concurrency: int, burst: bool, drain_seconds: float
) -> int:
    """Keep ``count`` workers running; return the exit code once all have ended."""
    from taskq_workers.children.programs import worker_command  # noqa: PLC0415 - likewise
    from taskq_workers.process.guard import Guard  # noqa: PLC0415 - most workers have none

    guard = Guard(
        worker_command(*arguments),
        count,
        burst=burst,
        drain_seconds=drain_seconds,
        say=_say,
        complain=_complain,
        notifier=supervisor.Notifier(),
    )
    each = f"{concurrency} jobs at a time" + ("" if count == 1 else " in each")
    _say(
        f"taskq {taskq.__version__} guard, process {os.getpid()}: {count} worker "
        f"process{'' if count == 1 else 'es'}, {each}; Ctrl-C drains"
    )
    return guard.run(has_terminal=sys.stdin is not None and sys.stdin.isatty())


def run_reloading(arguments: Sequence[str]) -> None:
    """Restart ``taskq worker`` each time a .py file changes in or under the working directory.

    Its jobs must end within 7 s.
    """
    from taskq_workers.children.programs import worker_command  # noqa: PLC0415 - as above

    try:
        watchfiles: Any = importlib.import_module("watchfiles")
    except ImportError as error:
        lacking = extras.missing("--reload", error.name, "reload")
        raise errors.UsageError(f"{lacking}, or leave the option out") from error
    folder, stop, signals = Path.cwd(), threading.Event(), set[int]()

    def on_signal(number: int, _: object) -> None:
        signals.add(number)
        stop.set()

    for number in system.GROUP_SIGNALS:
        if number != system.SIGHUP or signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, on_signal)
    end_watch = engine.system.watch_stop(stop.set)
    logging.getLogger("watchfiles").setLevel(logging.ERROR)
    command = worker_command(*arguments, "--below")
    process = system.start(command, None, ends_with_us=True)
    try:
        for changes in watchfiles.watch(
            folder, watch_filter=watchfiles.PythonFilter(), stop_event=stop
        ):
            names = {os.path.relpath(path, folder) for _, path in changes}
            _say(f"{values.listed(sorted(names), _NAMED_MAX)} changed: starting again")
            system.send(process, signal.SIGTERM)
            _end(process)
            process = system.start(command, None, ends_with_us=True)
    finally:
        end_watch()
        # A terminal sends its Ctrl-C to the worker as well, and a second signal would cancel jobs.
        has_terminal = sys.stdin is not None and sys.stdin.isatty() and system.SIGTSTP is not None
        if signals != {signal.SIGINT} or not has_terminal:
            # A terminal that closes sends SIGHUP to both; a second SIGHUP cancels nothing.
            system.send(process, system.SIGHUP if system.SIGHUP in signals else signal.SIGTERM)
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_RELOAD_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def stop(reader: engine.LogReader, which: str | None, seconds: float) -> int:
    """Ask the workers of a log to end after their jobs, or the worker with this owner or pid.

    Returns the exit code: 1 if one has not ended after ``seconds``.

    Raises:
        UsageError: no such worker runs, or it cannot be asked; or the time is not valid.
    """
    seconds = values.seconds(seconds, "--wait")
    alive = [owner for owner in reader.owners() if owner.alive and owner.serves]
    meant = [owner for owner in alive if which in {None, views.owner(owner.owner), str(owner.pid)}]
    if which is not None and not meant:
        listed = values.command(reader.path, "workers")
        raise errors.UsageError(f"no worker {which!r} is alive here, see: {listed}")
    # Several workers may have one guard, and a second request to it would cancel jobs.
    ends, asked = set[int](), list[views.OwnerView]()
    for owner in meant:
        end = max(serving.stops for serving in owner.serves)
        if end in ends or reader.ask_to_stop(owner):
            ends.add(end)
            asked.append(owner)
    for owner in meant:
        state = "was asked to stop" if owner in asked else "cannot be asked from here"
        _say(f"worker {views.owner(owner.owner)}, process {owner.pid} on {owner.host}, {state}")
    if not meant:
        _say("no worker is alive here")
    until = time.monotonic() + seconds
    left = asked
    while left and time.monotonic() < until:
        time.sleep(min(_LOOK_SECONDS, seconds))
        now = {owner.owner for owner in reader.owners() if owner.alive}
        left = [owner for owner in asked if owner.owner in now]
    return int(len(asked) < len(meant) or bool(seconds and left))


def _say(line: str) -> None:
    from taskq.cli import render  # noqa: PLC0415 - as the guard

    try:
        render.echo(text.flat(line))
    except OSError:  # the reader is gone; the workers matter more
        silence(sys.stdout)


def _complain(error: str) -> None:
    from taskq.cli import Failure  # noqa: PLC0415 - as the guard

    Failure(error).show()


def _supervise(supervisor: supervisor.Supervisor, reporter: reporting.LineReporter) -> None:
    failure = None
    try:
        supervisor.run()
    except errors.TaskqError as error:
        failure = error
    finally:
        reporter.close()
    supervisor.exit_despite_threads(failure)
    if failure is not None:
        raise failure


@contextlib.contextmanager
def _measured(
    app: TaskQ, order: WorkerOrder, reporter: reporting.LineReporter
) -> Iterator[WorkerOrder]:
    """Yield the same order, and serve metrics for Prometheus meanwhile."""
    from dataclasses import replace  # noqa: PLC0415 - few ask to be measured

    measuring = find_plugin("taskq.services", "prometheus", "metrics")
    with measuring(app, order.metrics_port, order.logs or ()) as (place, count):
        reporter.say(f"metrics at {place}")
        user_hook = order.on_event

        def both(event: events.JobFinished) -> None:
            count(event)
            if user_hook is not None:
                user_hook(event)

        yield replace(order, on_event=both)


@contextlib.contextmanager
def _here(app: TaskQ, order: WorkerOrder) -> Iterator[pool.Worker]:
    options = (pool.Worker.__init__.__kwdefaults__ or {}).keys() & WorkerOrder.__annotations__
    yield pool.Worker(app, **{name: getattr(order, name) for name in options})


def _facts(
    worker: pool.Worker, store: engine.Store, is_empty: bool, ready_seconds: float
) -> reporting.BannerFacts:
    return reporting.BannerFacts(
        version=taskq.__version__,
        pid=os.getpid(),
        directory=_directories(worker),
        is_empty=is_empty,
        durability=store.config.durability.value,
        recovered=store.taken_back,
        queues=worker.queues,
        tasks=frozenset(worker.app.tasks),
        concurrency=worker.concurrency,
        ready_seconds=ready_seconds,
        executor=worker.executor,
        plain_jobs=native.label(),
        settings=_settings(worker.app),
    )


def _directories(worker: pool.Worker) -> str:
    count = len(worker.directories)
    if count > _DIRECTORIES_MAX:
        return f"{worker.app.data_dir}, {count} logs"
    return ", ".join(worker.directories)


def _settings(app: TaskQ) -> str:
    settings = vars(app).get("settings")  # an app without settings
    return settings.sources if settings else ""
