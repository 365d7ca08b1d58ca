"""Workers of programs that have no event loop: one that blocks, and one on a thread of its own."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from taskq.errors import UsageError
from taskq_workers.pool import Worker
from taskq_workers.process.supervisor import Supervisor, run_to_the_end

if TYPE_CHECKING:
    from taskq import TaskQ
    from taskq.engine import Store
    from taskq.views import LogStats

_log: Final = logging.getLogger("taskq.worker")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGTSTP)


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
        raise UsageError(
            "run_worker() would stop this event loop: use async with app.worker(), "
            "or await app.worker().run()"
        )
    worker = Worker(app, **options)
    if threading.current_thread() is not threading.main_thread():
        # Signals are the main thread's, and the app may be in use by others.
        run_to_the_end(worker.run())
        return
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    threshold = gc.get_threshold()
    try:
        Supervisor(worker, _on_ready, _log.info).run()
    finally:
        # The program goes on: it gets its signals back, and its app opens again when next used.
        for number, handler in handlers.items():
            signal.signal(number, handler)
        gc.set_threshold(*threshold)
        gc.unfreeze()
        app.connection.reopen()


def _on_ready(_: Store, __: LogStats) -> None:
    _log.info("the worker claims")


class WorkerThread:
    """A worker with a thread and an event loop of its own. Use ``with``, or ``start`` and ``stop``.

    It lives once. The app stays open when it has stopped, as the program may go on enqueueing.

    Args:
        app: whose tasks are run.
        options: those of ``Worker``.

    Attributes:
        worker: what runs there.

    Raises:
        UsageError: an option is wrong.
    """

    def __init__(self, app: TaskQ, **options: Any) -> None:
        self.worker = Worker(app, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        #: set before the loop is looked at, which is set before this is: one side sees the other
        self._is_asked = False
        self._started: Future[None] = Future()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="taskq-worker", daemon=True)

    def start(self) -> None:
        """Return once it claims.

        Raises:
            LogError: the directory cannot be used.
            UsageError: it was started before.
        """
        if self._thread.ident is not None:
            raise UsageError("this worker was started before: make a new one")
        self._thread.start()
        self._started.result()

    def stop(self) -> None:
        """Drain, and return once everything is settled. Legal twice, and before the start.

        Raises:
            LogError: the log failed under the worker.
        """
        if self._thread.ident is None:
            self.worker.request_stop()
            return
        self._is_asked = True
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self.worker.request_stop)
            except RuntimeError:  # it has just ended by itself, and its loop with it
                _log.debug("the worker's loop was closed before its stop")
        self._thread.join()
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
