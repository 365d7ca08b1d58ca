"""The FastAPI example: one trace has a request, its job and the child of the job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from examples.fastapi_app import web as example
from taskq import telemetry


@pytest.fixture
def spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry.use(provider)
    monkeypatch.setattr(example, "tracer", provider.get_tracer("orders"))
    example.jobs.data_dir = tmp_path / "jobs"
    yield exporter
    telemetry.use(None)


async def served(order: int) -> tuple[dict[str, Any], list[int]]:
    transport = httpx.ASGITransport(example.web)
    async with (
        example.web.router.lifespan_context(example.web),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        placed = await client.post(f"/orders/{order}")
        job_id = placed.json()["job"]
        ended = 0
        async for _ in example.jobs.stream(kinds=["succeeded"]):
            ended += 1
            if ended == 2:
                break
        shown = (await client.get(f"/jobs/{job_id}")).json()
        wrong = [await client.get("/jobs/none"), await client.post("/orders/x")]
        return shown, [placed.status_code, *(answer.status_code for answer in wrong)]


def test_a_request_its_job_and_the_child_of_that_are_one_trace_span_by_span(
    spans: InMemorySpanExporter,
) -> None:
    shown, codes = asyncio.run(served(7))
    assert shown == {"state": "succeeded", "result": "order 7 is confirmed", "reason": ""}
    assert codes == [202, 404, 422]
    finished = spans.get_finished_spans()
    (root,) = [span for span in finished if span.name == "POST /orders/7"]
    assert root.parent is None
    story: list[ReadableSpan] = [root]
    while children := [job for job in finished if _is_child(job, story[-1])]:
        assert len(children) == 1, [span.name for span in children]
        story += children
    assert [span.name for span in story] == [
        "POST /orders/7", "send orders", "process orders", "create mail", "process mail", "smtp",
    ]  # fmt: skip
    kinds = [span.kind.name for span in story]
    assert kinds == ["SERVER", "PRODUCER", "CONSUMER", "PRODUCER", "CONSUMER", "INTERNAL"]
    assert len({span.context.trace_id for span in story}) == 1
    seen = [dict(span.attributes or {}) for span in story]
    assert seen[2]["messaging.message.id"] == seen[1]["messaging.message.id"]
    assert seen[4]["messaging.message.id"] != seen[2]["messaging.message.id"]
    assert (seen[2]["taskq.outcome"], seen[4]["taskq.outcome"]) == ("succeeded", "succeeded")
    assert seen[5] == {"order": 7}
    assert all((span.start_time or 0) <= (span.end_time or 0) for span in story)


def _is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == parent.context.span_id
