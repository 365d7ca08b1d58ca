"""OpenTelemetry's meters: enqueues, attempts, the queues, the engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from taskq import TaskQ, retry, telemetry
from taskq.connection import tracing
from taskq.errors import LogClosed, UsageError
from taskq_workers import JobFinished, Worker
from taskq_workers.slots.slots import Slots

Labels = tuple[tuple[str, Any], ...]


class Meters:
    """The current export: name -> labels -> number, or (count, sum) of a histogram."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader])

    def told(self) -> dict[str, dict[Labels, Any]]:
        data = self.reader.get_metrics_data()
        return {
            metric.name: {
                tuple(sorted((point.attributes or {}).items())): getattr(point, "value", None)
                if hasattr(point, "value")
                else (point.count, point.sum)
                for point in metric.data.data_points
            }
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def meters(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meters]:
    for name, value in (("meter", None), ("is_on", False), ("_is_meter_chosen", False)):
        monkeypatch.setattr(tracing, name, value)
    meters = Meters()
    telemetry.measure(meters.provider)
    yield meters
    meters.provider.shutdown()


def labels(operation: str, **more: Any) -> Labels:
    seen = {
        "messaging.system": "taskq",
        "messaging.operation.name": operation,
        "messaging.destination.name": "mail",
        "taskq.task": "work",
        **{name.replace("_", ".", 1): value for name, value in more.items()},
    }
    if operation == "send":
        seen["messaging.operation.type"] = "send"
    return tuple(sorted(seen.items()))


async def test_counts_are_those_of_what_happened(app: TaskQ, meters: Meters) -> None:
    ended: list[JobFinished] = []

    @app.task(name="work", queue="mail", retry=retry.fixed(2, 0))
    async def work(number: int) -> None:
        if number == 3:
            raise ValueError("three")

    async with app:
        await work.enqueue(0)
        await work.enqueue_many([(number,) for number in range(1, 5)])
        await app.worker(burst=True, on_event=ended.append).run()
        answer = meters.told()
        stats = await app.stats()
    assert answer["messaging.client.sent.messages"] == {labels("send"): 5}
    assert answer["messaging.client.consumed.messages"] == {labels("process"): len(ended)}
    assert answer["messaging.client.operation.duration"][labels("send")][0] == 2
    for outcome, more in (
        ("succeeded", {}),
        ("retried", {"error_type": "ValueError"}),
        ("dead", {"error_type": "ValueError"}),
    ):
        count, seconds = answer["messaging.process.duration"][
            labels("process", taskq_outcome=outcome, **more)
        ]
        seen = [end.seconds for end in ended if end.outcome == outcome]
        assert (count, seconds) == (len(seen), pytest.approx(sum(seen)))
    (queue,) = stats.queues
    dead = (("messaging.destination.name", "mail"), ("taskq.state", "dead"))
    assert answer["taskq.queue.jobs"][dead] == queue.dead == 1
    assert stats.engine is not None
    assert answer["taskq.engine.records"][()] <= stats.engine.records


async def test_an_enqueue_that_fails_is_timed_with_its_error_and_not_counted(
    app: TaskQ, meters: Meters
) -> None:
    @app.task(name="work", queue="mail")
    async def work() -> None: ...

    async with app:
        pass
    with pytest.raises(LogClosed):
        await work.enqueue()
    answer = meters.told()
    failed = labels("send", error_type=f"{LogClosed.__module__}.LogClosed")
    assert answer["messaging.client.operation.duration"][failed][0] == 1
    assert "messaging.client.sent.messages" not in answer


async def test_two_workers_of_a_process_share_the_instruments(app: TaskQ, meters: Meters) -> None:
    @app.task(name="work", queue="mail")
    async def work() -> None: ...

    async with app:
        for _ in range(2):
            await work.enqueue()
            await app.worker(burst=True).run()
        answer = meters.told()
    assert answer["messaging.client.consumed.messages"] == {labels("process"): 2}


async def test_without_a_provider_nothing_is_loaded_and_no_event_made(app: TaskQ) -> None:
    async with Worker(app) as worker:
        assert isinstance(worker._runner, Slots)
        assert worker._runner.hot.hook is None
    assert "taskq_workers.runs.measures" not in sys.modules or tracing.meter is None


def test_what_is_no_provider_is_refused() -> None:
    with pytest.raises(UsageError, match=r"measure\(\) takes a MeterProvider"):
        telemetry.measure(3)  # type: ignore[arg-type]
