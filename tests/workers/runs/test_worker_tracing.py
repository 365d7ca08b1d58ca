"""Spans of enqueues and attempts, as an exporter in memory gets them; and none without an SDK."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from taskq import Discard, Snooze, TaskQ, current_job, durable, retry, telemetry
from taskq.connection import tracing
from taskq.core.model import HEADERS_BYTES_MAX
from taskq.errors import DuplicateKey, JobFailed
from taskq_workers import JobFinished
from tests.programs import run_python
from tests.workers import afar_jobs

PRODUCER, CONSUMER = trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER


class Traces:
    """Exported spans, the first one to end first."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer: Tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def names(self) -> list[str]:
        return sorted(span.name for span in self.exporter.get_finished_spans())

    def parents(self) -> set[tuple[str, str]]:
        """Return each span with its parent; spans of one name are numbered."""
        spans = sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
        counts, labels = Counter[str](), dict[int | None, str]()
        for span in spans:
            counts[span.name] += 1
            labels[id_of(span)] = f"{span.name} {counts[span.name]}"
        return {(labels[id_of(span)], labels.get(parent_of(span), "")) for span in spans}


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traces]:
    monkeypatch.setattr(tracing, "tracer", None)
    monkeypatch.setattr(tracing, "_is_chosen", False)
    traces = Traces()
    telemetry.use(traces.provider)
    yield traces
    traces.provider.shutdown()


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    number: int = span.context.span_id
    return number


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_each_span_has_what_asked_for_it_as_its_parent(app: TaskQ, traces: Traces) -> None:
    """A run that waits ends its attempt's span, which is no error."""

    async def charge() -> int:
        return 7

    def ship() -> int:
        return 8

    @app.task(name="part", queue="parts")
    async def part() -> int:
        await waits_twice.wait()
        return 1

    @app.task(name="child", queue="children")
    async def child() -> None:
        return None

    @app.task(name="order", queue="mail", retry=3)
    async def order() -> int:
        total = await durable.step("charge", charge) + await durable.event("paid", int)
        total += await durable.call(part.call()) + await durable.step("ship", ship)
        current_job().enqueue(child.call())
        return total

    ends: asyncio.Queue[JobFinished] = asyncio.Queue()
    waits_twice, outcomes = asyncio.Event(), list[str]()

    def note(end: JobFinished) -> None:
        ends.put_nowait(end)
        outcomes.append(end.outcome)
        if outcomes.count("released") > 1:
            waits_twice.set()

    async with app, app.worker(on_event=note):
        with traces.tracer.start_as_current_span("request"):
            job = await order.enqueue()
        waits = await ends.get()
        await app.signal(job, "paid", 1)
        assert await job.result(timeout=20) == 17
        others = [await ends.get() for _ in range(4)]
        async with app.transaction() as tx:
            alone = tx.enqueue(child.call())
        await alone.handle.result(timeout=20)
        await ends.get()
    assert (waits.outcome, waits.reason) == ("released", "")
    assert sorted(end.task for end in others) == ["child", "order", "order", "part"]
    assert traces.parents() == {
        ("request 1", ""), ("send mail 1", "request 1"),
        *((f"process mail {number}", "send mail 1") for number in (1, 2, 3)),
        ("step charge 1", "process mail 1"), ("create parts 1", "process mail 2"),
        ("process parts 1", "create parts 1"), ("step ship 1", "process mail 3"),
        ("create children 1", "process mail 3"), ("process children 1", "create children 1"),
        ("create children 2", ""), ("process children 2", "create children 2"),
    }  # fmt: skip
    send, (first, _, last) = traces.one("send mail"), traces.named("process mail")
    assert (send.kind, last.kind) == (PRODUCER, CONSUMER)
    assert [link.context.span_id for link in last.links] == [id_of(send)]
    common = {
        "messaging.system": "taskq",
        "messaging.destination.name": "mail",
        "messaging.message.id": job.id,
        "taskq.task": "order",
    }
    assert attributes_of(send) == common | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
    }
    processed = {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "taskq.attempt": 1,
        "taskq.attempts_max": 3,
    }
    assert attributes_of(first) == common | processed | {"taskq.outcome": "released"}
    assert attributes_of(last) == common | processed | {"taskq.outcome": "succeeded"}
    assert last.status.status_code is trace.StatusCode.UNSET
    assert attributes_of(traces.one("step charge")) == {"taskq.step": "charge#1"}


async def test_each_attempt_is_a_span_with_its_outcome_and_its_exception(
    app: TaskQ, traces: Traces
) -> None:
    errors = iter([Snooze(0), OSError("down"), Discard("down")])

    @app.task(name="fail", retry=retry.fixed(attempts=3, delay=0))
    async def fail() -> None:
        raise next(errors)

    later: list[trace.Span] = []
    async with app, app.worker(on_event=lambda _: later.append(trace.get_current_span())):
        job = await fail.enqueue()
        with pytest.raises(JobFailed):
            await job.result(timeout=20)
    assert later == [trace.INVALID_SPAN] * 3
    snoozed, *failed = spans = traces.named("process default")
    assert {parent_of(span) for span in spans} == {id_of(traces.one("send default"))}
    output = [
        (row["taskq.attempt"], row["taskq.outcome"], row.get("error.type"))
        for row in map(attributes_of, spans)
    ]
    kinds = [None, "OSError", "taskq.core.retry.Discard"]
    assert output == list(zip((1, 1, 2), ("released", "retried", "dead"), kinds, strict=True))
    assert (snoozed.status.status_code, len(snoozed.events)) == (trace.StatusCode.UNSET, 0)
    for span, kind in zip(failed, kinds[1:], strict=True):
        assert span.status.status_code is trace.StatusCode.ERROR
        assert span.status.description == f"{(kind or '').rpartition('.')[2]}: down"
        (event,) = span.events
        assert (event.name, (event.attributes or {})["exception.message"]) == ("exception", "down")


async def test_spans_and_baggage_of_a_sync_task_reach_its_thread(
    app: TaskQ, traces: Traces
) -> None:
    @app.task(name="work")
    def work() -> str:
        with traces.tracer.start_as_current_span("inner"):
            return str(baggage.get_baggage("tenant"))

    async with app, app.worker():
        token = context.attach(baggage.set_baggage("tenant", "acme"))
        job = await work.enqueue()
        context.detach(token)
        assert await job.result(timeout=20) == "acme"
    assert parent_of(traces.one("inner")) == id_of(traces.one("process default"))


async def test_a_child_process_goes_on_with_the_span_of_its_job(
    traces: Traces, tmp_path: Path
) -> None:
    app = afar_jobs.app
    app.data_dir = tmp_path / "data"
    async with app, app.worker(concurrency=1):
        span = await (await afar_jobs.current_span.enqueue()).result(timeout=20)
        call = afar_jobs.RAISERS["child"].call("circle", "")
        with pytest.raises(JobFailed):
            await (await app.enqueue(call.options(attempts=1, queue="heavy"))).result(timeout=20)
    ran, failed = traces.named("process heavy")
    assert span == id_of(ran)
    assert attributes_of(failed)["error.type"] == "ValueError"
    assert failed.status.description == "ValueError: one"
    (event,) = failed.events
    assert (event.attributes or {})["exception.message"] == "one"


async def test_a_job_without_context_begins_a_trace_whatever_the_worker_was_started_in(
    app: TaskQ, traces: Traces
) -> None:
    @app.task(name="work")
    async def work() -> None:
        return None

    async with app:
        telemetry.use(None)
        job = await work.enqueue()
        assert (await job.view()).headers == {}
        telemetry.use(traces.provider)
        with traces.tracer.start_as_current_span("main"):
            async with app.worker():
                await job.result(timeout=20)
    run = traces.one("process default")
    assert (parent_of(run), list(run.links)) == (None, [])


async def test_many_jobs_of_one_transaction_are_sent_in_one_span(
    app: TaskQ, traces: Traces
) -> None:
    @app.task(name="work", queue="bulk")
    async def work(n: int) -> int:
        return n

    async with app, app.worker():
        jobs = await work.enqueue_many([(n,) for n in range(3)])
        jobs += await app.enqueue_many([work.call(3), work.options(queue="mail").call(4)])
        assert await app.enqueue_many([]) == []
        assert [await job.result(timeout=20) for job in jobs] == list(range(5))
    send = traces.one("send bulk")
    assert attributes_of(send)["messaging.batch.message_count"] == 3
    mixed = traces.one("send")
    assert "messaging.destination.name" not in attributes_of(mixed)
    runs = [*traces.named("process bulk"), *traces.named("process mail")]
    assert sorted(map(parent_of, runs), key=str) == sorted(
        [id_of(send)] * 3 + [id_of(mixed)] * 2, key=str
    )


async def test_an_enqueue_marks_a_duplicate_and_a_refusal_and_headers_of_the_caller_win(
    app: TaskQ, traces: Traces
) -> None:
    @app.task(name="work", key=lambda: "one")
    async def work() -> None: ...

    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    full = {"a": "x" * (HEADERS_BYTES_MAX - 5)}
    async with app:
        await work.enqueue()
        await work.enqueue()
        named = await work.options(key="two", headers={"traceparent": own}).enqueue()
        crowded = await work.options(key="three", headers=full).enqueue()
        assert (await named.view()).headers["traceparent"] == own
        assert (await crowded.view()).headers == full
        with pytest.raises(DuplicateKey):
            await work.options(on_conflict="raise").enqueue()
    *sent, refused = traces.named("send default")
    assert [attributes_of(each).get("taskq.duplicates") for each in sent] == [None, 1, None, None]
    assert refused.status.status_code is trace.StatusCode.ERROR
    assert attributes_of(refused)["error.type"] == "taskq.errors.DuplicateKey"


def test_code_without_a_loop_is_traced_as_well(app: TaskQ, traces: Traces) -> None:
    @app.task(name="work")
    def work(n: int) -> int:
        return n

    with app, app.worker_thread():
        jobs = [work.enqueue_sync(1), *work.enqueue_many_sync([(2,), (3,)])]
        assert [job.result_sync(timeout=20) for job in jobs] == [1, 2, 3]
    assert traces.names() == ["process default"] * 3 + ["send default"] * 2


PROGRAM = """
import asyncio, json, sys
from taskq import TaskQ

app = TaskQ(sys.argv[1])

@app.task
async def work() -> None: ...

async def main():
    if sys.argv[2] != "nothing":
        from opentelemetry import trace
    if sys.argv[2] == "sdk":
        from opentelemetry.sdk.trace import TracerProvider
        trace.set_tracer_provider(TracerProvider())
    jobs = [await work.enqueue(), await work.enqueue()]
    await app.close()
    async with app, app.worker():
        await jobs[0].result(timeout=20)
        return [sorted((await job.view()).headers) for job in jobs]

headers = asyncio.run(main())
print(json.dumps([headers, any(name.startswith("opentelemetry") for name in sys.modules)]))
"""


@pytest.mark.parametrize("has", ["nothing", "api", "sdk"])
def test_a_program_is_traced_from_its_first_enqueue_if_it_has_set_a_provider(
    tmp_path: Path, has: str
) -> None:
    """Without one no header is written, and nothing of the API imported."""
    done = run_python("-c", PROGRAM, tmp_path / "data", has)
    assert not done.returncode, done.stderr
    headers = ["traceparent"] if has == "sdk" else []
    assert json.loads(done.stdout) == [[headers] * 2, has != "nothing"]
