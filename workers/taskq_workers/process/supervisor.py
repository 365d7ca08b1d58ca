"""Run one worker as a process: signals, the loop, and an end that cannot hang."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from math import inf
from types import TracebackType
from typing import Any, Final, Self

from anyio import create_task_group, sleep

from taskq import TaskQ, engine, errors, views
from taskq_workers.pool import Worker
from taskq_workers.process.reporting import drain_lines, overdue_lines, rest_of, stopped_line
from taskq_workers.runs import system
from taskq_workers.runs.guards import keep_from_children

#: The hidden options with the worker's end of the socket, and the number of its place.
LEASH_OPTION: Final = "--leash"
PLACE_OPTION: Final = "--place"
READY: Final = b"R"
#: Most bytes of a worker's final error that are sent to the guard.
ERROR_BYTES_MAX: Final = 16_384
#: Time for a stopped or orphaned worker to end after its drain.
GRACE_SECONDS: Final = 15.0


class Leash:
    """The worker's end of the socket; the worker drains for ``drain_seconds`` if the guard dies."""

    def __init__(self, descriptor: int, drain_seconds: float) -> None:
        self._socket = system.channel_of(descriptor)
        self._socket.set_inheritable(False)
        self._seconds = drain_seconds + GRACE_SECONDS
        engine.start_thread(self._watch, "taskq-leash")

    def ready(self) -> None:
        try:
            self._socket.send(READY)
        except OSError:  # the guard is gone; the thread notices, too
            return

    def failed(self, error: str) -> bool:
        """Send the guard the error that ends this worker; False if the guard is gone."""
        try:
            self._socket.send(error.encode("utf-8", "replace")[:ERROR_BYTES_MAX])
        except OSError:
            return False
        return True

    def _watch(self) -> None:
        # A thread, because a job may block the loop.
        try:
            while self._socket.recv(1):
                pass
        except OSError:
            pass  # a reset: the guard is gone as well
        signal.raise_signal(signal.SIGTERM)
        time.sleep(self._seconds)
        os._exit(1)


# States of a worker for a service manager (sd_notify), if NOTIFY_SOCKET is set.

_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG_MICROSECONDS: Final = "WATCHDOG_USEC"
_WATCHDOG_PROCESS: Final = "WATCHDOG_PID"
#: Keep-alive messages in one period of the watchdog.
_SIGNS: Final = 2


class Notifier:
    """Sends states to the service manager; without one, every call does nothing.

    ``alive`` must be called every ``watchdog_seconds``; 0 for never.
    """

    def __init__(self) -> None:
        self._address = os.environ.get(_SOCKET, "")
        self.watchdog_seconds = _watchdog_seconds() if self._address else 0.0

    def ready(self, status: str) -> None:
        """Report that it claims jobs, or claims again after ``reloading``."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Report that newer code will replace it, and that it serves meanwhile."""
        microseconds = time.monotonic_ns() // 1_000
        self._send("RELOADING=1", f"MONOTONIC_USEC={microseconds}", "STATUS=reloading")

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=draining")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    async def keep_alive(self) -> None:
        """Send keep-alive messages from the loop; a blocked loop sends none."""
        while self.watchdog_seconds:
            self.alive()
            await sleep(self.watchdog_seconds)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):
            address = f"\0{address[1:]}"
        # A manager that is gone must not fail jobs; a full socket must not block.
        with contextlib.suppress(OSError), _datagram_socket() as datagrams:
            datagrams.sendto("\n".join(lines).encode(), address)


def _datagram_socket() -> socket.socket:
    family: int | None = getattr(socket, "AF_UNIX", None)
    if family is None:
        raise OSError(errno.EAFNOSUPPORT, "there are no such sockets")
    datagrams = socket.socket(family, socket.SOCK_DGRAM)
    datagrams.setblocking(False)
    return datagrams


def _watchdog_seconds() -> float:
    """Return the time between two keep-alive messages; 0 if this process needs none."""
    asked = os.environ.get(_WATCHDOG_MICROSECONDS, "")
    process = os.environ.get(_WATCHDOG_PROCESS, "")
    if not asked.isdecimal() or (process and process != str(os.getpid())):
        return 0.0
    return int(asked) / 1e6 / _SIGNS


_log: Final = logging.getLogger("taskq.worker")

#: A shell adds this to the number of the signal that ended a process.
_SIGNALLED: Final = 128
_CANCEL_AT: Final = 2
_GARBAGE_THRESHOLD: Final = 10_000
_LOADING_THRESHOLD: Final = 100_000
_EXIT_AT: Final = 3
#: Longest wait of the storage threads of several logs for each other before the process stops.
_TOGETHER_SECONDS: Final = 5.0
_ALARM_BYTES: Final = 64
#: Prefix of the names of the default executor's threads.
_EXECUTOR: Final = "taskq-executor"


class Supervisor:
    """Runs the worker until it stops by itself or by signals.

    The first SIGTERM or SIGINT drains, a second cancels and releases running jobs, a third ends the
    process immediately. SIGHUP, from a terminal that closes, drains. SIGTSTP (Ctrl-Z) takes effect
    between two batches of each storage thread, so that a stopped process never holds a writer lock.

    ``on_ready`` gets the open store, and whether it is empty, once the worker claims. ``process``
    is a prefix of its lines, if it is one of several. ``freezes``: loaded objects are frozen.
    """

    freezes = True

    def __init__(
        self,
        worker: Worker,
        on_ready: Callable[[engine.Store, bool], None],
        say: Callable[[str], None],
        process: str = "",
    ) -> None:
        self._worker = worker
        self._app: TaskQ = worker.app
        self._on_ready = on_ready
        self._say = say
        self._process = process
        self._signals = 0
        self._ready_at: float | None = None
        self._drain_at: float | None = None
        self._notifier = Notifier()
        # A separate executor, since the threads of the loop's default executor cannot be recognised
        # at the end.
        self._executor = ThreadPoolExecutor(thread_name_prefix=_EXECUTOR)
        self._store: engine.Store | None = None
        self._loop: asyncio.AbstractEventLoop
        self._alarm: tuple[socket.socket, ...] = ()
        self._wakes_before = -1
        self._leave_forks: Callable[[], None] = lambda: None
        self._end_watch: Callable[[], None] = lambda: None
        #: text about the jobs that a burst leaves
        self._rest = ""

    def run(self) -> None:
        """Return once the worker has stopped, its log is closed, and its tasks have ended."""
        gc.set_threshold(_LOADING_THRESHOLD)
        loop = self._loop = asyncio.new_event_loop()
        loop.set_default_executor(self._executor)
        try:
            self._take_signals()
            drive(loop, loop.create_task(self._main(), name="taskq-supervisor"))
        finally:
            self._print_end()
            end(loop)
            signal.set_wakeup_fd(self._wakes_before)
            self._end_watch()
            self._leave_forks()
            for channel in self._alarm:
                channel.close()
            self._executor.shutdown(wait=False, cancel_futures=True)

    def exit_despite_threads(self, failure: errors.TaskqError | None) -> None:
        """End the process if sync functions still run in it, with their jobs released.

        A normal exit would wait for the executor's threads, and atexit functions of a library might
        wait for others.
        """
        deadline = time.monotonic() + END_SECONDS
        for thread in _executor_threads():
            thread.join(max(deadline - time.monotonic(), 0))
        count = self._worker.lingering + len(_executor_threads())
        if not count:
            return
        _log.warning("%d sync functions did not return in time and are abandoned", count)
        if failure is not None:
            _log.error("%s", failure)
        logging.shutdown()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with contextlib.suppress(OSError, ValueError):  # the reader is gone
                stream.flush()
        os._exit(0 if failure is None else 1)

    async def _main(self) -> None:
        try:
            async with self._worker:
                if self._worker.started.is_set():
                    await self._report_ready()
                    async with create_task_group() as group:
                        group.start_soon(self._notifier.keep_alive)
                        await self._worker.stopped.wait()
                        await self._count_rest()
                        group.cancel_scope.cancel()
        finally:
            self._notifier.stopping()
            self._store = None
            await self._app.close()

    async def _count_rest(self) -> None:
        """Count the jobs that a burst leaves; the worker reports a failed log itself."""
        if not self._worker.burst:
            return
        waiting, dues = views.Waiting(), list[int]()
        with contextlib.suppress(errors.TaskqError):
            for store in self._worker.stores:
                some, due_ns = await store.port().backlog()
                waiting = waiting.plus(some)
                dues += [] if due_ns is None else [due_ns]
            self._rest = rest_of(waiting, min(dues, default=None), time.time_ns())

    async def _report_ready(self) -> None:
        store = self._store = self._worker.store()
        # Answered after the worker's first claim, which takes back the jobs of dead processes: only
        # now their number is known.
        is_empty = await store.port().look(_is_empty)
        self._ready_at = time.monotonic()
        self._on_ready(store, is_empty)
        # Loaded objects stay, so the collector may skip them. A collection before that would take
        # 20 ms, find almost nothing, and delay the first jobs.
        if self.freezes:
            gc.freeze()
        # A batch makes thousands of short-lived objects, which the default threshold of 700 would
        # scan a dozen times: a tenth of the time of a busy worker.
        gc.set_threshold(_GARBAGE_THRESHOLD)
        self._notifier.ready(f"{self._worker.concurrency} jobs at a time")

    def _take_signals(self) -> None:
        # The system may deliver a signal to another thread while the loop sleeps, so Python writes
        # each signal's number to this socket.
        reader, writer = self._alarm = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        if system.LOOPS_READ:  # other loops read it themselves
            self._loop.add_reader(reader, reader.recv, _ALARM_BYTES)
            self._wakes_before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        # loop.add_signal_handler is not enough: the third signal must work while a job blocks the
        # loop.
        before = {
            number: signal.signal(number, self._on_stop_signal) for number in system.STOP_SIGNALS
        }
        # A shell without job control has the signal ignored; keep that.
        pause = system.SIGTSTP
        if pause is not None and signal.getsignal(pause) is not signal.SIG_IGN:
            before[pause] = signal.signal(pause, self._on_pause_signal)
        hang_up = system.SIGHUP  # ignored below nohup, or handled by the program
        if hang_up is not None and signal.getsignal(hang_up) is signal.SIG_DFL:
            before[hang_up] = signal.signal(hang_up, self._on_hang_up)
        self._leave_forks = keep_from_children(before)
        on_asked = partial(self._on_stop_signal, int(signal.SIGTERM), None)
        self._end_watch = engine.system.watch_stop(on_asked)

    def _on_stop_signal(self, number: int, _: object) -> None:
        self._signals += 1
        if self._signals >= _EXIT_AT:
            os._exit(_SIGNALLED + number)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends anyway
            self._loop.call_soon_threadsafe(self._escalate, self._signals)

    def _on_hang_up(self, number: int, frame: object) -> None:
        if not self._signals:  # both shell and kernel send it: a second one must not cancel
            self._on_stop_signal(number, frame)

    def _escalate(self, count: int) -> None:
        worker = self._worker
        if count >= _CANCEL_AT:
            running = worker.running
            jobs = f"{running} running {'job' if running == 1 else 'jobs'}"
            self._say(f"{self._process}cancelling {jobs}; once more exits at once")
            worker.request_cancel()
            return
        self._drain_at = time.monotonic()
        self._print(drain_lines(worker.held, worker.drain_seconds, self._process))
        self._notifier.stopping()
        worker.request_stop()
        if worker.drain_seconds != inf:
            self._loop.call_later(worker.drain_seconds, self._print_overdue)

    def _print_overdue(self) -> None:
        held = self._worker.held
        if held and self._signals < _CANCEL_AT:
            self._print(overdue_lines(held, self._worker.drain_seconds, self._process))

    def _print_end(self) -> None:
        """Print a summary, unless it never began."""
        if self._ready_at is not None:
            now = time.monotonic()
            drained = None if self._drain_at is None else now - self._drain_at
            ended = self._worker.ended
            line = stopped_line(ended, now - self._ready_at, drained, self._process)
            self._say(line + self._rest)

    def _print(self, lines: list[str]) -> None:
        for line in lines:
            self._say(line)

    def _on_pause_signal(self, *_: object) -> None:
        stores = [] if self._store is None else self._worker.stores
        if not stores:
            _pause()
            return
        # All storage threads pause before the process stops. If one waits for its lock, or has just
        # failed, the others go on after a while, and Ctrl-Z is needed again.
        together = threading.Barrier(len(stores), _pause, _TOGETHER_SECONDS)
        for store in stores:
            store.between_batches(partial(_meet, together))


def _executor_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(_EXECUTOR)]


def _meet(together: threading.Barrier) -> None:
    with contextlib.suppress(threading.BrokenBarrierError):
        together.wait()


def _pause() -> None:
    # To this thread: a signal to the process may be taken by another thread, and would stop this
    # thread a moment later, when it has the writer lock again.
    system.stop_this()


# Event loops of workers with a loop of their own: remains of jobs on them cannot delay the end.


#: Time for tasks started by jobs to end, once the worker has stopped. With the time for cancelled
#: jobs to clean up, a worker ends within a second after its drain.
END_SECONDS: Final = 0.2


def run_to_the_end(main: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine on a new loop, as ``asyncio.run`` does, and wait for nothing else.

    ``asyncio.run`` would wait for ever for a job that ignores its cancellation, or for a thread of
    the default executor that does not return.
    """
    loop = asyncio.new_event_loop()
    try:
        drive(loop, loop.create_task(main, name="taskq-main"))
    finally:
        end(loop)


def drive(loop: asyncio.AbstractEventLoop, main: asyncio.Task[None]) -> None:
    """Run the loop until the task is done; errors of other tasks do not stop it."""
    while True:
        try:
            return loop.run_until_complete(main)
        except (SystemExit, KeyboardInterrupt) as error:
            # Raised in a task that a job started: asyncio raises it out of the loop itself.
            if main.done():
                raise
            _log.warning("%s raised in a task of a job: ignored", type(error).__name__)


def end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the remaining tasks and close; unlike ``asyncio.Runner``, with a time limit."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=END_SECONDS))
    closing = loop.create_task(loop.shutdown_asyncgens())
    loop.run_until_complete(asyncio.wait([closing], timeout=END_SECONDS))
    loop.close()


# Memory of a worker's process.
#
# glibc raises its mmap threshold with each freed mapped block, and gives threads separate heaps.
# After the first segment was indexed, columns of megabytes then lie in the heaps, between small
# blocks that keep the heaps from shrinking: 4 to 6 MiB for ever.

#: Larger blocks are mapped separately, and returned to the system when freed.
MAP_BYTES_MIN: Final = 64 * 1024
#: Free memory at the end of a heap above which it is returned.
TRIM_BYTES_MIN: Final = 128 * 1024
#: Parameters of mallopt(3).
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8


def keep_heap_small() -> None:
    """Tune glibc for a long-lived process, unless a ``MALLOC_…`` variable is set."""
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    try:
        library = ctypes.CDLL(None)
        if not hasattr(library, "gnu_get_libc_version"):
            return
        library.mallopt(_ARENA_MAX, 1)
        library.mallopt(_MMAP_THRESHOLD, MAP_BYTES_MIN)
        library.mallopt(_TRIM_THRESHOLD, TRIM_BYTES_MIN)
    except (OSError, AttributeError, TypeError):
        return


_SIGNALS: Final = tuple(filter(None, (*system.GROUP_SIGNALS, system.SIGTSTP)))


def run_blocking(app: TaskQ, **options: Any) -> None:
    """Run a worker of the app until it stops; see ``TaskQ.run_worker``.

    Raises:
        UsageError: an event loop runs in this thread, or an option is wrong.
        LogError: the directory cannot be used, or failed under the worker.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise errors.UsageError(
            "run_worker() would stop this event loop: use async with app.worker(), "
            "or await app.worker().run()"
        )
    worker = Worker(app, **options)
    if threading.current_thread() is not threading.main_thread():
        # Signals belong to the main thread, and other code may use the app.
        run_to_the_end(worker.run())
        return
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    threshold, supervisor = gc.get_threshold(), Supervisor(worker, _on_ready, _log.info)
    # If the program has frozen objects, these stay frozen, and no others are.
    supervisor.freezes = not gc.get_freeze_count()
    try:
        supervisor.run()
    finally:
        # The program goes on: restore its signal handlers; its app opens again at its next use.
        for number, handler in handlers.items():
            signal.signal(number, handler)
        gc.set_threshold(*threshold)
        if supervisor.freezes:
            gc.unfreeze()
        app.connection.reopen()


def _is_empty(sight: engine.LogView) -> bool:
    return sight.facets.need_agenda().queues.is_empty


def _on_ready(_: engine.Store, __: bool) -> None:
    _log.info("the worker claims")


class WorkerThread:
    """A worker with its own thread and event loop. Use ``with``, or ``start`` and ``stop``.

    It is started once. The app stays open after its stop, since the program may go on enqueueing.

    Args:
        app: the app with the tasks.
        options: options of ``Worker``.

    Attributes:
        worker: the worker in the thread.

    Raises:
        UsageError: an option is wrong.
    """

    def __init__(self, app: TaskQ, **options: Any) -> None:
        self.worker = Worker(app, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        #: set before ``_loop`` is read, which is set before this is read: one side sees the other
        self._is_asked = False
        self._started: Future[None] = Future()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()

    def start(self) -> None:
        """Start, and return once the worker claims.

        Raises:
            LogError: the directory cannot be used.
            UsageError: it was started before.
        """
        with self._guard:
            if self._thread is not None:
                raise errors.UsageError("this worker was started before: make a new one")
            self._thread = engine.start_thread(self._run, "taskq-worker")
        self._started.result()

    def stop(self) -> None:
        """Drain, and return once every job is settled. Legal twice, and before the start.

        Raises:
            LogError: the log failed under the worker.
        """
        with self._guard:
            thread = self._thread
        if thread is None:
            self.worker.request_stop()
            return
        self._is_asked = True
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self.worker.request_stop)
            except RuntimeError:  # the worker has just ended by itself, with its loop
                _log.debug("the worker's loop was closed before its stop")
        thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except Exception:
            if error is None:
                raise
            _log.exception("the worker failed, too")

    def _run(self) -> None:
        try:
            run_to_the_end(self._main())
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it, whatever it is
            if self._started.done():
                self._error = error
            else:
                self._started.set_exception(error)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._is_asked:
            self._started.set_result(None)
            return
        async with self.worker:
            self._started.set_result(None)
            await self.worker.stopped.wait()
