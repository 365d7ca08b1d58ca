"""Runs one worker as a process: signals, the loop, and an end that always comes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from taskq.app import TaskQ
    from taskq.log.store import Store
    from taskq_workers.pool import Worker

_log: Final = logging.getLogger("taskq.worker")

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
#: What a shell calls the exit of a process that a signal ended.
_SIGNALLED: Final = 128
_CANCEL_AT: Final = 2
_EXIT_AT: Final = 3


class Supervisor:
    """Runs the worker until it stops by itself or by signals.

    The first SIGTERM or SIGINT drains, a second cancels and releases what runs, a third ends the
    process on the spot. SIGTSTP (Ctrl-Z) takes effect between two batches of the storage thread, so
    that a stopped process never holds the writer lock.

    Args:
        worker: not yet started.
        on_ready: called with the open store once it claims.
        say: prints one line.
    """

    def __init__(
        self, worker: Worker, on_ready: Callable[[Store], None], say: Callable[[str], None]
    ) -> None:
        self._worker = worker
        self._app: TaskQ = worker.app
        self._on_ready = on_ready
        self._say = say
        self._signals = 0
        self._store: Store | None = None
        self._loop: asyncio.AbstractEventLoop

    def run(self) -> None:
        """Return once the worker has stopped and its log is closed.

        Raises:
            TaskqError: the log could not be opened, or failed.
        """
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._take_signals()
            main = self._loop.create_task(self._main(), name="taskq-supervisor")
            while True:
                try:
                    self._loop.run_until_complete(main)
                except (SystemExit, KeyboardInterrupt) as error:
                    # Raised in a task that a job started: asyncio lets it through the loop itself.
                    if main.done():
                        raise
                    _log.warning("%s raised within a task of a job: ignored", type(error).__name__)
                else:
                    return

    async def _main(self) -> None:
        try:
            async with self._worker:
                if self._worker.started.is_set():
                    await self._tell_ready()
                await self._worker.stopped.wait()
        finally:
            self._store = None
            await self._app.close()

    async def _tell_ready(self) -> None:
        store = self._store = self._app.store()
        # Answered after the worker's first claim, for which the jobs of dead processes were looked
        # through: only now it is known how many came back.
        await store.port().stats()
        self._on_ready(store)

    def _take_signals(self) -> None:
        # Not loop.add_signal_handler: the third signal must work while a job keeps the loop busy.
        for number in _STOP_SIGNALS:
            signal.signal(number, self._on_stop_signal)
        if hasattr(signal, "SIGTSTP"):
            signal.signal(signal.SIGTSTP, self._on_pause_signal)

    def _on_stop_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._signals += 1
        if self._signals >= _EXIT_AT:
            os._exit(_SIGNALLED + number)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the end is near anyway
            self._loop.call_soon_threadsafe(self._escalate, self._signals)

    def _escalate(self, count: int) -> None:
        running = self._worker.running
        jobs = f"{running} running {'job' if running == 1 else 'jobs'}"
        if count >= _CANCEL_AT:
            self._say(f"cancelling {jobs}; once more exits at once")
            self._worker.request_cancel()
        else:
            self._say(f"draining: {jobs} may finish; once more cancels" if running else "stopping")
            self._worker.request_stop()

    def _on_pause_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._store is None:
            _pause()
        else:
            self._store.between_batches(_pause)


def leave_threads_behind(count: int) -> None:
    """End the process although so many sync functions still run, their jobs being released.

    An ordinary exit could wait for their threads, in an atexit function of some library.
    """
    if count:
        _log.warning("%d sync functions did not return in time and are left behind", count)
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)


def _pause() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
