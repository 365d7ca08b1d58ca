"""Workers of an app, in whatever kind of program: on its loop, blocking it, or on a thread."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, cast

from taskq.core.errors import UsageError
from taskq.core.nearest import rather

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    #: names, or the weight of each
    Queues = Sequence[str] | Mapping[str, int]


class AppWorkers:
    """How a program runs the jobs of its own app."""

    def worker(
        self, concurrency: int = 8, queues: Queues | None = None, **options: Any
    ) -> AbstractAsyncContextManager[Any]:
        """A worker inside this process: ``async with app.worker(concurrency=8): ...``.

        Args:
            concurrency: jobs that run at the same time.
            queues: which queues it reads, or their weights; None for all.
            options: further ones of ``taskq_workers.Worker``.

        Raises:
            UsageError: the worker package is not installed, or an option is wrong.
        """
        workers = _workers("worker", options)
        worker = workers.Worker(self, concurrency=concurrency, queues=queues, **options)
        return cast("AbstractAsyncContextManager[Any]", worker)

    def run_worker(
        self, concurrency: int = 8, queues: Queues | None = None, **options: Any
    ) -> None:
        """Run a worker and block until it has stopped: for programs without an event loop.

        In the main thread SIGTERM and SIGINT stop it as they stop ``taskq worker``: the first one
        drains, a second cancels what runs, a third ends the process. In another thread it runs
        until it stops by itself (``burst=True``); ``worker_thread`` is for the others.

        Args:
            concurrency: jobs that run at the same time.
            queues: which queues it reads, or their weights; None for all.
            options: further ones of ``taskq_workers.Worker``.

        Raises:
            UsageError: called in an event loop's thread, which it would stop; or as ``worker``.
            LogError: the directory cannot be used, or failed under the worker.
        """
        workers = _workers("run_worker", options)
        workers.run_blocking(self, concurrency=concurrency, queues=queues, **options)

    def worker_thread(
        self, concurrency: int = 8, queues: Queues | None = None, **options: Any
    ) -> AbstractContextManager[Any]:
        """A worker on a thread of its own: ``with app.worker_thread(): ...``.

        It claims once the block is entered, and has drained once the block is left. It takes no
        signals. What made it stop early is raised when the block is left.

        Args:
            concurrency: jobs that run at the same time.
            queues: which queues it reads, or their weights; None for all.
            options: further ones of ``taskq_workers.Worker``.

        Raises:
            UsageError: as ``worker``.
            LogError: on entering, the directory cannot be used.
        """
        workers = _workers("worker_thread", options)
        thread = workers.WorkerThread(self, concurrency=concurrency, queues=queues, **options)
        return cast("AbstractContextManager[Any]", thread)


def _workers(method: str, options: Mapping[str, Any]) -> Any:
    """The package of the workers, by name, since imports point from there to here.

    Raises:
        UsageError: it is not installed, or is somebody else's; or an option is unknown.
    """
    try:
        workers = importlib.import_module("taskq_workers")
        known = workers.Worker.__init__.__kwdefaults__
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"app.{method}() needs the package taskq_workers ({error}): "
            f"install the whole distribution, taskq-local"
        ) from error
    unknown = options.keys() - known.keys()
    if unknown:
        name = min(unknown)
        raise UsageError(f"app.{method}() has no option {name!r}: {rather(name, known, 'options')}")
    return workers
