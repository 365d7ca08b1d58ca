"""Answers scrapes over HTTP, on a thread of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest

from taskq import Shards
from taskq.engine import LogReader, Sight
from taskq.errors import TaskqError
from taskq_plugins.prometheus.families import AttemptMetrics, LogMetrics
from taskq_plugins.scrapes import serve

if TYPE_CHECKING:
    from taskq import TaskQ
    from taskq.views import LogStats, OwnerView
    from taskq_workers import JobFinished

#: Nobody else can ask, unless a host is given.
HOST_DEFAULT: Final = "127.0.0.1"


def registry_of(path: str) -> CollectorRegistry:
    """Return the metrics of a log, or of its shards, read from its directory at each scrape."""
    registry, layout = CollectorRegistry(), Shards.of(path)
    paths = {"": path} if layout is None else {shard: f"{path}/{shard}" for shard in layout.names()}
    registry.register(
        LogMetrics({name: _Onlooker(directory).look for name, directory in paths.items()})
    )
    return registry


def text_of(path: str) -> str:
    return generate_latest(registry_of(path)).decode()


@contextlib.contextmanager
def worker_metrics(
    app: TaskQ, port: int, logs: Iterable[str] = ()
) -> Iterator[tuple[str, Callable[[JobFinished], None]]]:
    """Answer for the logs and the worker of this process; gives the address and its ``on_event``.

    Args:
        app: whose worker.
        port: 0 for a free one.
        logs: the directories that it works, unless they are the app's own.

    Raises:
        TaskqError: as ``serve``.
    """
    registry = CollectorRegistry()
    views = {log: app.over(log) for log in logs} or {
        view.data_dir.name: view for view in app.logs()
    }
    registry.register(LogMetrics({name: partial(_look, view) for name, view in views.items()}))
    attempts = AttemptMetrics(registry)
    try:
        with serve(registry, HOST_DEFAULT, port) as place:
            yield place, attempts
    finally:
        for view in views.values() if logs else ():
            view.close_sync()


class _Onlooker:
    """Reads a log for one scrape after the other: each folds only what is new."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._reader: LogReader | None = None
        # Two scrapes may come at once, and a reader belongs to one thread at a time.
        self._lock = Lock()

    def look(self) -> tuple[LogStats, Sequence[OwnerView]]:
        with self._lock:
            try:
                if self._reader is None:
                    self._reader = LogReader.open(self._path)
                else:
                    self._reader.refresh()
                return self._reader.stats(), self._reader.owners()
            except TaskqError:
                # A log that comes back is looked at anew.
                reader, self._reader = self._reader, None
                if reader is not None:
                    reader.close()
                raise


def _look(app: TaskQ) -> tuple[LogStats, Sequence[OwnerView]]:
    owners = app.store().thread_port.look(Sight.owners).result()
    return app.stats_sync(), owners
