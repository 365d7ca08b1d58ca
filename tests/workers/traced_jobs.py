"""Tasks that child processes import by the name of this module."""

from __future__ import annotations

from opentelemetry import trace

from taskq import TaskQ, retry

app = TaskQ("unused", durability="os")


@app.task(runs_in="process", queue="heavy")
def current_span() -> int:
    return trace.get_current_span().get_span_context().span_id


@app.task(runs_in="process", queue="heavy", retry=1)
def fail() -> None:
    raise ValueError("bad")


@app.task(runs_in="process", queue="heavy", retry=retry.fixed(attempts=9, max_age="1m", delay="2m"))
def fail_slowly() -> None:
    raise ValueError("bad")
