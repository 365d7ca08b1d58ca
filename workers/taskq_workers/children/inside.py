"""The child process: it receives one job after the other from its worker and runs it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, Final

import taskq.hooks as hooks
import taskq.telemetry as telemetry
from taskq import JobContext, Task, TaskQ, engine, errors, values
from taskq.log.machine.forks import fill_standard
from taskq_workers.children import wire
from taskq_workers.runs import guards, joblogs, lifespans, loader, reasons, system, timeouts
from taskq_workers.slots import batches, shipping

_log: Final = logging.getLogger("taskq.worker")

_PR_SET_PDEATHSIG: Final = 1
_SIGKILL: Final = 9


def main(work: int, life: int, parent: int) -> None:
    """Run jobs until the worker closes the channel.

    It never opens the log: it receives a job's record and payload, and sends the job's outcome. It
    ends when its worker ends for any reason. Signals that a terminal or a service manager sends to
    the process group are left to the worker, which drains.

    Args:
        work: descriptor of the socket for jobs.
        life: descriptor of a pipe that the worker keeps open until it ends.
        parent: the worker's process id.
    """
    fill_standard()
    guards.show_crashes()
    if os.environ.pop(guards.MARK, "") == "main":
        sys.modules.setdefault(hooks.main_module_name(), sys.modules["__main__"])
    _leave_signals_to_the_worker()
    _die_with(parent, life)
    channel = system.channel_of(work)
    inbox = channel.makefile("rb")
    outfit: wire.Outfit | None = wire.receive(inbox)
    if outfit is None:
        return
    sys.argv = list(outfit.argv)
    joblogs.note_jobs()
    if outfit.logging.level:
        joblogs.configure_logging(outfit.logging)
    bench = _Bench(outfit)
    try:
        bench.find_target()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - importing runs the user's code
        reason = f"a child process cannot import the app: {values.text_of(error)}"
        channel.sendall(wire.pack(wire.ChildProblem(reason)))
        return
    channel.sendall(wire.pack(wire.Ready(os.getpid())))
    with contextlib.suppress(ConnectionError):  # the worker died; this process ends, too
        _serve(channel, inbox, bench, reports_memory=outfit.reports_memory)
    bench.close()


def _serve(channel: socket.socket, inbox: BinaryIO, bench: _Bench, *, reports_memory: bool) -> None:
    work: wire.Work | None
    outlet = wire.Outlet(channel)
    hooks.relay_to(outlet.report)
    joblogs.send_lines_to(outlet.log)
    pid = os.getpid()
    while (work := wire.receive(inbox)) is not None:
        # A separate context for each job, so that its context variables end with it.
        context = copy_context()
        ended = context.run(bench.run, work)
        if os.getpid() != pid:
            context.run(guards.end_child)
        outlet.end(wire.JobDone(ended, engine.system.memory_bytes() if reports_memory else 0))
        del work, ended


def _leave_signals_to_the_worker() -> None:
    # No-op handlers, since programs started by a task would inherit ignored signals. The worker
    # has blocked the signals until now.
    before = {
        number: signal.signal(number, _do_nothing)
        for number in system.GROUP_SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN  # nohup
    }
    guards.keep_from_children(before)
    engine.system.leave_console()
    system.mask(system.GROUP_SIGNALS, "SIG_UNBLOCK")


def _do_nothing(*_: object) -> None: ...


def _die_with(parent: int, life: int) -> None:
    """End when the worker ends, even in the middle of a job; the job is run again elsewhere."""
    if not system.LOOPS_READ:
        return  # the system ends the children there
    if system.IS_LINUX:
        # Immediate, even if a process that a task forked in the worker holds the pipe open.
        with contextlib.suppress(AttributeError, OSError):  # then only the end of the pipe counts
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    def wait() -> None:
        os.read(life, 1)
        os._exit(1)

    with contextlib.suppress(errors.LogError):  # then only the signal counts
        engine.start_thread(wait, "taskq-life")


class _Bench:
    def __init__(self, outfit: wire.Outfit) -> None:
        self._outfit = outfit
        self._tasks: dict[str, Task[..., Any]] = {}
        self._unpacker = shipping.Unpacker()
        self._runner: asyncio.Runner | None = None
        self._alarm = _Alarm()
        self._open = contextlib.ExitStack()
        self._resources: dict[int, hooks.Resources] = {}
        self._views: dict[tuple[int, str], TaskQ] = {}

    def find_target(self) -> None:
        """Import the worker's target; raise the errors of the import."""
        if self._outfit.target:
            with guards.importing():
                target = loader.load_app(self._outfit.target, self._outfit.include)
            self._take_tasks(target)
            target.hooks.load_checks()
        # Load it before the first job, whose timeout may be short; the job's module may make an
        # app.
        _ = hooks.load_settings

    def close(self) -> None:
        """End the remains of async jobs on the loop, and exit lifespans."""
        self._open.close()
        if self._runner is not None:
            self._runner.close()

    def run(self, work: wire.Work) -> shipping.RemoteOutcome:
        delivery = self._unpacker.delivery(work.shipment)
        try:
            task = self._task(delivery.task, work.module)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - importing runs the user's code
            reason = f"a child process cannot import {work.module}: {reasons.summary(error)}"
            return shipping.remote_release(0, delivery, reason)
        if task is None:
            reason = f"a child process finds no task {delivery.task!r} in {work.module}"
            return shipping.remote_release(0, delivery, reason)
        telemetry.enter(work.trace)
        return self._run(task, delivery, self._app_over(task.app, work.log))

    def _app_over(self, app: TaskQ, log: str) -> TaskQ:
        if not log:
            return app
        view = self._views.get((id(app), log))
        if view is None:
            shards = (shard for shard in app.logs() if str(shard.data_dir) == log)
            view = self._views[id(app), log] = next(shards, None) or app.over(log)
        return view

    def _run(
        self, task: Task[..., Any], delivery: shipping.Shipped, app: TaskQ
    ) -> shipping.RemoteOutcome:
        since, called = monotonic(), False
        job = JobContext(delivery, app)
        hooks.running_job.set(job)
        try:
            if task.batch:
                args, kwargs = (batches.unpack(task, delivery.payload),), dict[str, Any]()
            else:
                args, kwargs = task.decode(delivery.payload)
            called = True
            with joblogs.capture_lines(job, task.keep_log):
                value = self._call(task, args, kwargs)
        except BaseException as error:  # noqa: BLE001 - no job may stop its process
            return shipping.remote_failure(
                0, task, delivery, error, monotonic() - since, called=called
            )
        try:
            if task.batch:
                body = batches.pack_results(task, value, len(args[0]))
                done = engine.Settlement(engine.kinds.SUCCESS, delivery, body)
                return shipping.remote_outcome(0, done, monotonic() - since)
            return shipping.remote_success(0, task, job, value, monotonic() - since)
        except Exception as error:  # noqa: BLE001 - likewise
            return shipping.remote_failure(
                0, task, delivery, error, monotonic() - since, called=True
            )

    def _call(self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        function, soft = self._function(task), task.soft_timeout
        timeouts.set_deadline(task.timeout)
        if task.is_async:
            # The worker enforces the hard limit: it kills this process.
            call = (
                function
                if soft is None
                else timeouts.with_limits(function, timeouts.TimeLimits(None, soft))
            )
            return self._awaited(call(*args, **kwargs))
        if soft is None:
            value = function(*args, **kwargs)
        else:
            value = self._alarm.run(soft, function, args, kwargs)
        # A plain function that wraps an async one returns a coroutine.
        return self._awaited(value) if task.may_await and isinstance(value, Coroutine) else value

    def _awaited(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(coroutine, context=copy_context())

    def _function(self, task: Task[..., Any]) -> Callable[..., Any]:
        """Return the task's function with its resources; lifespans are entered once."""
        if not lifespans.resource_parameters(task):
            return task.fn
        resources = self._resources.get(id(task.app))
        if resources is None:
            resources = self._open.enter_context(lifespans.resources_in_thread(task.app))
            self._resources[id(task.app)] = resources
        return lifespans.bind_resources(task, resources)

    def _task(self, name: str, module: str) -> Task[..., Any] | None:
        task = self._tasks.get(name)
        if task is not None:
            return task
        with guards.importing():
            imported = importlib.import_module(module)
        for value in list(vars(imported).values()):
            if isinstance(value, TaskQ):
                self._take_tasks(value)
            elif isinstance(value, Task):
                self._take_tasks(value.app)
        if hooks.default_app.cache_info().currsize:
            self._take_tasks(hooks.default_app())
        return self._tasks.get(name)

    def _take_tasks(self, app: TaskQ) -> None:
        if str(app.data_dir) != self._outfit.data_dir:
            app.data_dir = Path(self._outfit.data_dir)
        with guards.importing():
            loader.import_included(app)
        for name, task in app.tasks.items():
            self._tasks.setdefault(name, task)


class _Alarm:
    """Raises SoftTimeout in a function in the main thread, even while it sleeps.

    It uses the signal of the real-time timer, which interrupts system calls.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._seconds = 0.0

    def run(
        self,
        seconds: float,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call the function, interrupted once after ``seconds``."""
        self._seconds = seconds
        self._is_set = True
        with system.alarm(seconds, self._ring):
            try:
                return function(*args, **kwargs)
            finally:
                self._is_set = False

    def _ring(self, *_: object) -> None:
        if self._is_set:
            self._is_set = False
            raise timeouts.too_long_softly(self._seconds)
