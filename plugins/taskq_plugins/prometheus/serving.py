"""Metrics for Prometheus: of a log, of the process that has it open, and of attempts.

Metrics of a log come from its directory, so they are equal in every process and include killed
workers. Metrics of an engine or a worker come from its own process and count since its start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeAlias

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from taskq import Shards, engine, errors, hooks
from taskq_plugins.scrapes import serve

if TYPE_CHECKING:
    from taskq import views
    from taskq_workers import JobFinished

    Look: TypeAlias = Callable[[], hooks.LogStatus]
    from taskq import TaskQ

#: Fields of ``QueueStats``.
_STANDING: Final = ("scheduled", "ready", "running", "dead")
_OVER: Final = ("succeeded", "cancelled", "expired")
#: Upper bounds of the histogram of run times, in seconds: from no-ops to long imports.
_SECONDS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)


class LogMetrics(Collector):
    """Collect logs at each scrape; with several logs each sample has a label ``log``.

    Args:
        looks: for each log a function that reads it; if the function raises a ``TaskqError``,
            ``taskq_log_readable`` is 0.
    """

    def __init__(self, looks: Mapping[str, Look]) -> None:
        self._looks = looks

    def describe(self) -> list[Metric]:
        """Return [], so that a registry does not read the log before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for log, look in self._looks.items():
            own = {"log": log} if len(self._looks) > 1 else {}
            for metric in _of(look):
                samples = [sample._replace(labels=own | sample.labels) for sample in metric.samples]
                metric.samples = []
                families.setdefault(metric.name, metric).samples += samples
        yield from families.values()


def _of(look: Look) -> Iterator[Metric]:
    readable = GaugeMetricFamily("taskq_log_readable", "1 if the log could be read, 0 if not.")
    try:
        status = look()
        stats = status.stats
    except errors.TaskqError:
        readable.add_metric((), 0)
        yield readable
        return
    readable.add_metric((), 1)
    yield readable
    yield from _of_queues(stats)
    yield from _of_log(stats)
    yield from _of_processes(status)
    if stats.engine is not None:
        yield from _of_engine(stats.engine)


class AttemptMetrics:
    """Count and time the attempts of one worker; an instance is its ``on_event``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "taskq_attempt_seconds",
            "Attempts that ended in this worker, and how long they ran.",
            ("queue", "task", "outcome"),
            registry=registry,
            buckets=_SECONDS,
        )

    def __call__(self, event: JobFinished) -> None:
        self._seconds.labels(event.queue, event.task, event.outcome).observe(event.seconds)


def _of_queues(stats: views.LogStats) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("taskq_jobs", "Jobs in this state now.", labels=("queue", "state"))
    ended = CounterMetricFamily(
        "taskq_jobs_ended", "Jobs that ended so, ever.", labels=("queue", "outcome")
    )
    oldest = GaugeMetricFamily(
        "taskq_oldest_ready_seconds",
        "Since the oldest ready job was enqueued, or first due; 0 without one.",
        labels=("queue",),
    )
    paused = GaugeMetricFamily(
        "taskq_queue_paused", "1 if no worker may claim of the queue.", labels=("queue",)
    )
    for queue in stats.queues:
        for state in _STANDING:
            jobs.add_metric((queue.queue, state), getattr(queue, state))
        for outcome in _OVER:
            ended.add_metric((queue.queue, outcome), getattr(queue, outcome))
        oldest.add_metric((queue.queue,), queue.oldest_ready_seconds or 0)
        paused.add_metric((queue.queue,), queue.paused)
    yield from (jobs, ended, oldest, paused)


def _of_log(stats: views.LogStats) -> Iterator[Metric]:
    yield GaugeMetricFamily("taskq_log_bytes", "Bytes of all segments.", stats.size)
    yield GaugeMetricFamily("taskq_log_segments", "Segments of the log.", stats.segments)
    yield GaugeMetricFamily(
        "taskq_log_next_position",
        "Number of the next record; a new epoch skips some.",
        stats.next_lsn,
    )


def _of_processes(status: hooks.LogStatus) -> Iterator[Metric]:
    figures = (
        ("taskq_processes", "Processes that have the log open.",
         sum(owner.alive for owner in status.owners)),
        ("taskq_workers", "Processes that claim jobs.", status.workers),
        ("taskq_worker_slots", "Jobs that workers run at a time.", status.slots),
        ("taskq_jobs_of_dead_processes",
         "Jobs that nobody runs any more and nobody has taken back yet.", status.orphans),
    )  # fmt: skip
    yield from (GaugeMetricFamily(*figure) for figure in figures)


def _of_engine(engine: views.EngineStats) -> Iterator[Metric]:
    yield CounterMetricFamily("taskq_engine_batches", "Frames that were appended.", engine.batches)
    yield CounterMetricFamily("taskq_engine_records", "Records in these frames.", engine.records)
    yield CounterMetricFamily(
        "taskq_engine_appended_bytes", "Bytes appended to segments.", engine.appended_bytes
    )
    yield CounterMetricFamily(
        "taskq_engine_payload_bytes", "Bytes of enqueued jobs.", engine.payload_bytes
    )
    yield CounterMetricFamily(
        "taskq_engine_upkeep_bytes", "Bytes of indexes and snapshots.", engine.upkeep_bytes
    )
    yield CounterMetricFamily(
        "taskq_engine_slow_syncs", "Fsyncs of over a second.", engine.slow_syncs
    )
    yield _summary("taskq_engine_sync_seconds", "Fsyncs of segments.", engine.sync_seconds)
    yield _summary(
        "taskq_engine_lock_wait_seconds", "For the writer lock.", engine.lock_wait_seconds
    )
    yield _summary("taskq_engine_batch_records", "Records of a frame.", engine.batch_records)
    yield GaugeMetricFamily(
        "taskq_disk_short", "1 if enqueues are refused for want of room.", engine.is_disk_short
    )
    if engine.free_bytes is not None:
        yield GaugeMetricFamily("taskq_disk_free_bytes", "When last looked.", engine.free_bytes)


def _summary(name: str, says: str, spread: views.Spread) -> Metric:
    """Return the distribution since the process began: quantiles, count and sum."""
    family = SummaryMetricFamily(name, says)
    family.add_metric((), spread.count, spread.mean * spread.count)
    for quantile, value in (("0.5", spread.p50), ("0.95", spread.p95), ("0.99", spread.p99)):
        family.add_sample(name, {"quantile": quantile}, value)
    return family


#: Other machines can scrape only if a host is given.
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
    """Serve metrics of the logs and the worker; yield the address and the worker's ``on_event``.

    Args:
        app: the worker's app.
        port: the port; 0 takes a free one.
        logs: directories of the worker's logs, unless they are the app's own.

    Raises:
        TaskqError: as ``serve``.
    """
    registry = CollectorRegistry()
    views = {log: app.over(log) for log in logs} or {
        view.data_dir.name: view for view in app.logs()
    }
    registry.register(LogMetrics({name: partial(_OwnStatus, view) for name, view in views.items()}))
    attempts = AttemptMetrics(registry)
    try:
        with serve(registry, HOST_DEFAULT, port) as place:
            yield place, attempts
    finally:
        for view in views.values() if logs else ():
            view.close_sync()


class _Onlooker:
    """Reads a log for successive scrapes; each scrape folds only new records."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._reader: engine.LogReader | None = None
        # Two scrapes may arrive at once, but one thread at a time may use a reader.
        self._lock = Lock()

    def look(self) -> hooks.LogStatus:
        with self._lock:
            try:
                if self._reader is None:
                    self._reader = engine.LogReader.open(self._path)
                else:
                    self._reader.refresh()
                status = hooks.LogStatus(self._reader)
                status.take("stats", "owners")  # under the lock
            except errors.TaskqError:
                # The log may be replaced: open it again at the next scrape.
                reader, self._reader = self._reader, None
                if reader is not None:
                    reader.close()
                raise
            return status


class _OwnStatus(hooks.LogStatus):
    """Status of a log that this process has open, from its engine's state."""

    def __init__(self, app: TaskQ) -> None:
        self.stats = app.stats_sync()
        self.owners = app.store().thread_port.look(engine.LogView.owners).result()
