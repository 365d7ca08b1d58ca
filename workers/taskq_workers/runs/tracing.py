"""Spans of attempts: begun with the call of a task's function, ended once its outcome is known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import taskq.telemetry as telemetry
from taskq import Snooze, hooks, values

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from taskq import JobContext, Task, engine
    from taskq_workers.events import Hook, JobFinished

_FAILURES: Final = frozenset({"retried", "dead"})


class _Attempt:
    """A span, and whether the raised exception was added to it."""

    __slots__ = ("has_error", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.has_error = False

    def fail(self, event: JobFinished) -> None:
        telemetry.fail(self.span, event.reason.partition("\n")[0])
        if self.has_error:
            return
        # A child's exception arrives as text. Imported late: most workers trace nothing.
        from taskq.engine import failure_of  # noqa: PLC0415

        error, message, _ = failure_of(event.task, event.outcome, event.reason)
        self.span.set_attribute("error.type", error)
        attributes = {"exception.type": error, "exception.message": message}
        self.span.add_event("exception", attributes | {"exception.stacktrace": event.reason})


def _is_no_failure(error: BaseException) -> bool:
    return isinstance(values.wish_in(error), Snooze) or all(
        map(values.is_cancellation, values.members(error))
    )


class TracedRuns:
    """Traces the attempts of one worker. It is the worker's hook, and calls the user's hook.

    A worker has it only if a tracer provider existed at its start. Otherwise its plans call
    the functions of tasks directly, at no cost for a job.
    """

    def __init__(self, tracer: Tracer, hook: Hook | None) -> None:
        self._tracer = tracer
        self._hook = hook
        #: spans of running attempts; at most as many as the worker has slots, and abandoned
        #: attempts
        self._open: dict[tuple[str, int], _Attempt] = {}

    def wrap(
        self, call: Callable[..., Awaitable[Any]], task: Task[..., Any]
    ) -> Callable[..., Awaitable[Any]]:
        from opentelemetry import context, trace  # noqa: PLC0415 - only who traces needs it

        del task

        async def traced(*args: Any, **kwargs: Any) -> Any:
            job = hooks.running_job.get()
            attempt, around = self._begin(job)
            token = context.attach(trace.set_span_in_context(attempt.span, around))
            try:
                return await call(*args, **kwargs)
            except BaseException as error:
                is_waiting = getattr(getattr(job, "durable", None), "suspended", False)
                if not (is_waiting or _is_no_failure(error)):
                    telemetry.note_error(attempt.span, error)
                    attempt.has_error = True
                raise
            finally:
                context.detach(token)

        return traced

    def __call__(self, event: JobFinished) -> object:
        attempt = self._open.pop((event.job_id, event.attempt), None)
        if attempt is not None:
            attempt.span.set_attribute("taskq.outcome", event.outcome)
            if event.outcome in _FAILURES:
                attempt.fail(event)
            attempt.span.end()
        return None if self._hook is None else self._hook(event)

    def _begin(self, job: JobContext) -> tuple[_Attempt, Any]:
        from opentelemetry import context, propagate, trace  # noqa: PLC0415 - as above

        # The worker's own span is not the parent.
        around = propagate.extract(job.headers, context.Context())
        sender = trace.get_current_span(around).get_span_context()
        span = self._tracer.start_span(
            f"process {job.queue}",
            context=around,
            kind=trace.SpanKind.CONSUMER,
            links=[trace.Link(sender)] if sender.is_valid else (),
            attributes={
                "messaging.system": telemetry.SYSTEM,
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": job.queue,
                "messaging.message.id": job.id,
                "taskq.task": job.task,
                "taskq.attempt": job.attempt,
                "taskq.attempts_max": job.attempts_max,
            },
        )
        before = self._open.pop((job.id, job.attempt), None)
        if before is not None:
            before.span.end()  # released and claimed again, while its function goes on
        attempt = self._open[job.id, job.attempt] = _Attempt(span)
        return attempt, around


def measuring_hook(stores: Iterable[engine.Store], hook: Hook | None) -> Hook | None:
    meter = telemetry.meter()
    if meter is None:
        return hook
    from taskq_workers.runs.measures import counting_hook  # noqa: PLC0415 - only who measures needs it

    return counting_hook(meter, stores, hook)


def make_tracer(hook: Hook | None) -> TracedRuns | None:
    """Return the tracer of a worker's attempts; None if nothing is traced."""
    tracer = telemetry.tracer()
    return None if tracer is None else TracedRuns(tracer, hook)
