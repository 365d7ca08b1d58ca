"""Answers scrapes over HTTP, on a thread of its own."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest, start_http_server

from taskq.core.errors import TaskqError
from taskq.log.machine.owners import owner_views
from taskq.log.read.reader import LogReader
from taskq_plugins.prometheus.families import AttemptMetrics, LogMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from taskq import TaskQ
    from taskq.core.views import LogStats, OwnerView
    from taskq.log.state.facets import Sight
    from taskq_workers import JobFinished

#: Nobody else can ask, unless a host is given.
_HOST_DEFAULT: Final = "127.0.0.1"


def registry_of(path: str) -> CollectorRegistry:
    """What is told of the log in a directory, read from there at each scrape."""
    registry = CollectorRegistry()
    registry.register(LogMetrics(_Onlooker(path).look))
    return registry


def text_of(path: str) -> str:
    """The same as text, now."""
    return generate_latest(registry_of(path)).decode()


@contextlib.contextmanager
def serve(registry: CollectorRegistry, host: str, port: int) -> Iterator[str]:
    """Listen while the block runs; gives the address to scrape.

    Args:
        registry: what is told.
        host: the address to listen at; "" for this machine alone.
        port: 0 for a free one.

    Raises:
        TaskqError: nobody may listen there, or somebody does.
    """
    host = host or _HOST_DEFAULT
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise TaskqError(f"cannot listen at {host}:{port}: {error.strerror or error}") from error
    try:
        yield f"http://{host}:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def worker_metrics(app: TaskQ, port: int) -> Iterator[tuple[str, Callable[[JobFinished], None]]]:
    """Answer for the log and the worker of this process; gives the address and its ``on_event``.

    Raises:
        TaskqError: as ``serve``.
    """
    registry = CollectorRegistry()
    registry.register(LogMetrics(lambda: _look(app)))
    attempts = AttemptMetrics(registry)
    with serve(registry, "", port) as place:
        yield place, attempts


class _Onlooker:
    """Reads a log for one scrape after the other: each folds only what is new."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._reader: LogReader | None = None
        # Two scrapes may come at once, and a reader belongs to one thread at a time.
        self._lock = Lock()

    def look(self) -> tuple[LogStats, Sequence[OwnerView]]:
        """The log's counts, and the processes that have it open."""
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
    """As of this process, which has the log open and folded already."""
    store = app.store()

    def held(sight: Sight) -> Counter[int]:
        claims = sight.facets.need_agenda().running.values()
        return Counter(owner for _, _, owner in claims)

    running: Counter[int] = store.thread_port.look(held).result()
    return app.stats_sync(), owner_views(Path(store.path) / "owners", running)
