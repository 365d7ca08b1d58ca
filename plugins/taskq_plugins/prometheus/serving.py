"""Answers scrapes over HTTP, on a thread of its own."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
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

    def look() -> tuple[LogStats, Sequence[OwnerView]]:
        with LogReader.open(path) as reader:
            return reader.stats(), reader.owners()

    registry = CollectorRegistry()
    registry.register(LogMetrics(look))
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


def _look(app: TaskQ) -> tuple[LogStats, Sequence[OwnerView]]:
    """As of this process, which has the log open and folded already."""
    store = app.store()

    def held(sight: Sight) -> Counter[int]:
        claims = sight.facets.need_agenda().running.values()
        return Counter(owner for _, _, owner in claims)

    running: Counter[int] = store.thread_port.look(held).result()
    return app.stats_sync(), owner_views(Path(store.path) / "owners", running)
