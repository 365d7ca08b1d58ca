"""OpenTelemetry metrics of a worker: its attempts, its log's queues, and its engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry.metrics import CallbackOptions, Meter, Observation

import taskq.telemetry as telemetry

if TYPE_CHECKING:
    from taskq import engine, views
    from taskq_workers.events import Hook, JobFinished

#: Fields of ``QueueStats`` that are measured.
_STANDING: Final = ("scheduled", "ready", "running", "dead")
_FAILED: Final = frozenset({"retried", "dead"})


class Measures:
    """The instruments of one meter; observes the queues and engines of open logs.

    Attempts follow the conventions for messaging: ``messaging.client.consumed.messages`` and
    ``messaging.process.duration``. A worker measures if a meter provider existed at its start;
    otherwise this module is not imported and no event is made for a job.
    """

    def __init__(self, meter: Meter) -> None:
        self.stores: WeakSet[engine.Store] = WeakSet()
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Attempts that ended here."
        )
        self._duration = meter.create_histogram(
            "messaging.process.duration", "s", "How long an attempt ran."
        )
        for name, unit, text, observe in (
            ("taskq.queue.jobs", "{job}", "Jobs in this state now.", _standing),
            ("taskq.queue.oldest_ready", "s", "Age of the oldest ready job.", _oldest),
            ("taskq.engine.sync.p99", "s", "99th percentile of fsyncs.", _of("sync_seconds.p99")),
            ("taskq.engine.batch.mean", "{record}", "Mean of a frame.", _of("batch_records.mean")),
        ):
            meter.create_observable_gauge(name, [self._observer(observe)], unit, text)
        for name, unit, text, observe in (
            ("taskq.engine.syncs", "{fsync}", "Fsyncs of segments.", _of("sync_seconds.count")),
            ("taskq.engine.batches", "{frame}", "Frames appended.", _of("batches")),
            ("taskq.engine.records", "{record}", "Records in them.", _of("records")),
            ("taskq.engine.appended", "By", "Bytes of them.", _of("appended_bytes")),
        ):
            meter.create_observable_counter(name, [self._observer(observe)], unit, text)

    def count(self, event: JobFinished) -> None:
        attributes = {
            "messaging.system": telemetry.SYSTEM,
            "messaging.operation.name": "process",
            "messaging.destination.name": event.queue,
            "taskq.task": event.task,
        }
        self._consumed.add(1, attributes)
        # A new dict: a provider may have kept the first.
        attributes = {**attributes, "taskq.outcome": event.outcome}
        if event.outcome in _FAILED:
            attributes["error.type"] = event.reason.partition("\n")[0].partition(":")[0]
        self._duration.record(event.seconds, attributes)

    def _observer(
        self, observe: Callable[[views.LogStats], Iterator[Observation]]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observed(_: CallbackOptions) -> Iterator[Observation]:
            for store in tuple(self.stores):
                if store.usable:
                    yield from observe(store.thread_port.stats().result())

        return observed


_by_meter: WeakKeyDictionary[Meter, Measures] = WeakKeyDictionary()


def counting_hook(meter: Meter, stores: Iterable[engine.Store], hook: Hook | None) -> Hook:
    """Return a hook that measures attempts, then calls the user's hook.

    The instruments of a meter are made once, for all workers.
    """
    measures = _by_meter.get(meter)
    if measures is None:
        measures = _by_meter[meter] = Measures(meter)
    measures.stores.update(stores)
    if hook is None:
        return measures.count
    count = measures.count

    def both(event: JobFinished) -> None:
        count(event)
        hook(event)

    return both


def _standing(stats: views.LogStats) -> Iterator[Observation]:
    for queue in stats.queues:
        for name in _STANDING:
            labels = {"messaging.destination.name": queue.queue, "taskq.state": name}
            yield Observation(getattr(queue, name), labels)


def _oldest(stats: views.LogStats) -> Iterator[Observation]:
    for queue in stats.queues:
        labels = {"messaging.destination.name": queue.queue}
        yield Observation(queue.oldest_ready_seconds or 0.0, labels)


def _of(path: str) -> Callable[[views.LogStats], Iterator[Observation]]:
    """Return an observer of one number of the engine, found by its dotted attributes."""
    first, _, second = path.partition(".")

    def observe(stats: views.LogStats) -> Iterator[Observation]:
        engine: views.EngineStats | None = stats.engine
        if engine is not None:
            part: Any = getattr(engine, first)
            yield Observation(getattr(part, second) if second else part)

    return observe
