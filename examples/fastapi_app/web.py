"""``uvicorn examples.fastapi_app.web:web``: jobs confirm orders, each order in one trace."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, HTTPException, Request, Response
from opentelemetry import trace

from taskq import State, TaskQ, current_job
from taskq.errors import JobNotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

jobs = TaskQ(os.environ.get("ORDERS_DIR", "jobs"))
tracer = trace.get_tracer("orders")


@jobs.task(queue="orders", retry=3)
async def confirm(order: int) -> str:
    current_job().enqueue(mail.call(order))
    return f"order {order} is confirmed"


@jobs.task(queue="mail", retry=5)
async def mail(order: int) -> None:
    with tracer.start_as_current_span("smtp") as span:
        span.set_attribute("order", order)


@asynccontextmanager
async def working(_: FastAPI) -> AsyncIterator[None]:
    """Run the jobs in the server itself; omit this if ``taskq worker`` runs them."""
    async with jobs, jobs.worker(concurrency=4):
        yield


web = FastAPI(lifespan=working)


@web.middleware("http")
async def traced(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    name = f"{request.method} {request.url.path}"
    with tracer.start_as_current_span(name, kind=trace.SpanKind.SERVER):
        return await answer(request)


@web.post("/orders/{order}", status_code=202)
async def place(order: int) -> dict[str, str]:
    """Take an order; the job is on disk when this answers."""
    job = await confirm.enqueue(order)
    return {"job": job.id}


@web.get("/jobs/{job_id}")
async def show(job_id: str) -> dict[str, Any]:
    """Return a job's state with its result or the reason of its failure."""
    try:
        job = jobs.job(job_id)
        view = await job.view()
    except (JobNotFound, UsageError) as error:
        raise HTTPException(404, str(error)) from error
    result = await job.result(timeout=0) if view.state is State.SUCCEEDED else None
    return {"state": str(view.state), "result": result, "reason": view.reason.partition("\n")[0]}
