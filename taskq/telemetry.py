"""Traces and metrics of jobs, by OpenTelemetry's conventions for messaging.

An enqueue is a span ``send QUEUE`` of the kind PRODUCER, whose context travels in the job's headers
(``traceparent``). Each attempt is a span ``process QUEUE`` of the kind CONSUMER: a child of the
first span, so that one trace shows the whole job. The attempt is also linked to the first span, as
the conventions ask, for backends that cut traces short. Jobs enqueued in another transaction, such
as children of a task, are ``create QUEUE``. A running step is ``step NAME`` within the span of its
attempt; a step whose result is read from the log has no span.

This module measures ``messaging.client.sent.messages`` and ``messaging.client.operation.duration``;
the measures of workers are in ``taskq_workers``.

Without a tracer or meter provider in the program, taskq traces and measures nothing, and does not
import opentelemetry. It looks for providers when a log is opened and when a worker starts. A
program that sets a provider later, or has several, calls ``use`` and ``measure``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from taskq.calls.call import Call, headers_bytes
from taskq.connection import tracing
from taskq.core import exceptions, model

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter as MeterCounter
    from opentelemetry.metrics import Histogram as MeterHistogram
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from taskq.connection import connection, handle


R = TypeVar("R")

#: Name of taskq in traces and metrics.
SYSTEM: Final = tracing.SYSTEM


def use(provider: TracerProvider | None) -> None:
    """Trace with this provider from now on, instead of the program's own; None: do not trace.

    Running workers are not affected.

    Raises:
        UsageError: the argument is no provider.
    """
    tracing.choose(provider)


def measure(provider: MeterProvider | None) -> None:
    """Measure with this provider from now on, instead of the program's own; None: do not measure.

    ::

        telemetry.measure(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]))

    Raises:
        UsageError: the argument is no provider.
    """
    tracing.choose_meter(provider)


def tracer() -> Tracer | None:
    """Return the tracer; None if nothing is traced."""
    tracing.look()
    return tracing.tracer


def meter() -> Meter | None:
    """Return the meter; None if nothing is measured."""
    tracing.look()
    return tracing.meter


def sending(connection: connection.Connection, calls: list[Call[R]]) -> Sending[R]:
    """Return the span of an enqueue of these calls, to be entered; a dummy without tracing."""
    return Sending(calls, is_traced=connection.is_traced() and bool(calls))


class Sending(Generic[R]):
    """An enqueue with its span and metrics, for all calls of a transaction.

    Attributes:
        calls: the calls, with the span's context in their headers.
    """

    def __init__(self, calls: list[Call[R]], *, is_traced: bool) -> None:
        is_spanned = is_traced and tracing.tracer is not None
        self._span = _producer("send", calls) if is_spanned else None
        self._measured = tracing.meter if is_traced else None
        self._began = perf_counter() if is_traced else 0.0
        self.calls: list[Call[R]] = calls
        if self._span is not None:
            headers = _carrier_of(self._span)
            self.calls = [_stamped(call, headers) for call in calls]

    def sent(self, handles: list[handle.JobHandle[R]]) -> list[handle.JobHandle[R]]:
        """Record the result in span and metrics."""
        if self._span is None:
            return handles
        if len(handles) == 1:
            self._span.set_attribute("messaging.message.id", handles[0].id)
        duplicates = sum(handle.duplicate for handle in handles)
        if duplicates:
            self._span.set_attribute("taskq.duplicates", duplicates)
        return handles

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._measured is not None:
            _measure_sent(self._measured, self.calls, perf_counter() - self._began, error)
        if self._span is None:
            return
        if error is not None:
            note_error(self._span, error)
            fail(self._span, f"{exceptions.names_of(type(error))[1]}: {exceptions.text_of(error)}")
        self._span.end()


def created(call: Call[R]) -> Call[R]:
    """Return the call with a span of its own; it is enqueued later with others."""
    if tracing.tracer is None:
        return call
    span = _producer("create", (call,))
    span.end()
    return _stamped(call, _carrier_of(span))


def stepping(name: str, number: int, tracer: Tracer) -> contextlib.AbstractContextManager[Span]:
    """Return the span of a running step, to be entered."""
    attributes = {"taskq.step": f"{name}#{number}"}
    return tracer.start_as_current_span(f"step {name}", attributes=attributes)


def note_error(span: Span, error: BaseException) -> None:
    """Record an exception in a span, if it can be read."""
    with contextlib.suppress(BaseException):
        span.record_exception(error)
    span.set_attribute("error.type", _full_name(type(error)))


def _full_name(kind: type) -> str:
    home, name = exceptions.names_of(kind)
    return name if home in {"", "builtins"} else f"{home}.{name}"


def fail(span: Span, description: str) -> None:
    """Set a span's status to an error."""
    from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - it is loaded by now

    span.set_status(Status(StatusCode.ERROR, description))


def leave() -> tuple[tuple[str, str], ...]:
    """Return the current context for a child process; empty without tracing."""
    headers: dict[str, str] = {}
    if tracing.tracer is not None:
        from opentelemetry import propagate  # noqa: PLC0415 - as above

        propagate.inject(headers)
    return tuple(headers.items())


def enter(carried: tuple[tuple[str, str], ...]) -> None:
    """Continue with another process's context, until the current context ends."""
    if carried:
        from opentelemetry import context, propagate  # noqa: PLC0415 - as above

        tracing.look()
        context.attach(propagate.extract(dict(carried), context.Context()))


def _producer(operation: str, calls: Sequence[Call[Any]]) -> Span:
    from opentelemetry.trace import SpanKind  # noqa: PLC0415 - as above

    if tracing.tracer is None:
        raise RuntimeError("a span is made although nothing is traced")
    attributes = _attributes(operation, calls)
    if len(calls) > 1:
        attributes["messaging.batch.message_count"] = len(calls)
    queue = attributes.get("messaging.destination.name")
    name = operation if queue is None else f"{operation} {queue}"
    return tracing.tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=attributes)


def _attributes(operation: str, calls: Sequence[Call[Any]]) -> dict[str, str | int]:
    """Return the attributes of an enqueue; queue and task only if all calls have the same."""
    attributes: dict[str, str | int] = {
        "messaging.system": tracing.SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    for name, values in (
        ("messaging.destination.name", {call.chosen.queue for call in calls}),
        ("taskq.task", {call.name for call in calls}),
    ):
        if len(values) == 1:
            attributes[name] = next(iter(values))
    return attributes


#: The instruments of a meter, made when it is first used.
_instruments: dict[Meter, tuple[MeterCounter, MeterHistogram]] = {}


def _measure_sent(
    meter: Meter, calls: Sequence[Call[Any]], seconds: float, error: BaseException | None
) -> None:
    if meter not in _instruments:
        _instruments[meter] = (
            meter.create_counter("messaging.client.sent.messages", "{message}", "Jobs enqueued."),
            meter.create_histogram(
                "messaging.client.operation.duration", "s", "Time of an enqueue."
            ),
        )
    sent, duration = _instruments[meter]
    attributes = _attributes("send", calls)
    if error is None:
        sent.add(len(calls), attributes)
    else:
        attributes["error.type"] = _full_name(type(error))
    duration.record(seconds, attributes)


def _carrier_of(span: Span) -> dict[str, str]:
    from opentelemetry import propagate, trace  # noqa: PLC0415 - as above

    headers: dict[str, str] = {}
    propagate.inject(headers, context=trace.set_span_in_context(span))
    return headers


def _stamped(call: Call[R], headers: Mapping[str, str]) -> Call[R]:
    extras = call.extras or model.Extras()
    # The caller's headers win: they may pass on another context.
    together = {**headers, **extras.headers}
    if headers_bytes(together) > model.HEADERS_BYTES_MAX:
        return call  # the caller's headers matter more
    return replace(call, extras=replace(extras, headers=together))
