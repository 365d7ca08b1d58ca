"""The process's tracer and meter, as module variables that every enqueue reads.

See ``taskq.telemetry``.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

from taskq.core.errors import UsageError

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

SYSTEM: Final = "taskq"
#: Variables that name a provider; OpenTelemetry's API then loads it by itself.
_PROVIDER_VARIABLES: Final = ("OTEL_PYTHON_TRACER_PROVIDER", "OTEL_PYTHON_METER_PROVIDER")
_NOTHING: Final = frozenset(
    {"NoOpTracerProvider", "ProxyTracerProvider", "NoOpMeterProvider", "_ProxyMeterProvider"}
)

#: The tracer; None: enqueues are not traced.
tracer: Tracer | None = None
#: The meter; None: enqueues are not measured.
meter: Meter | None = None
#: True with a tracer, a meter or an app of several logs: the only flag that the hot path reads.
#: ``look``, ``choose`` and ``choose_meter`` set all of these.
is_on: bool = False
is_traced: bool = False
_is_routed = False
_is_chosen = _is_meter_chosen = False


def look() -> None:
    """Trace and measure from now on if the program has providers; cheap if it has none."""
    if (_is_chosen or tracer is not None) and (_is_meter_chosen or meter is not None):
        return
    # A program with a provider has imported one of these modules.
    modules, named = sys.modules, any(name in os.environ for name in _PROVIDER_VARIABLES)
    if not _is_chosen and tracer is None and (named or "opentelemetry.trace" in modules):
        from opentelemetry import trace  # noqa: PLC0415 - most programs never need it

        _set(_real(trace.get_tracer_provider()))
    if not _is_meter_chosen and meter is None and (named or "opentelemetry.metrics" in modules):
        from opentelemetry import metrics  # noqa: PLC0415 - as above

        _set_meter(_real(metrics.get_meter_provider()))


def choose(provider: TracerProvider | None) -> None:
    """Trace with this provider from now on, instead of the program's own; None: do not trace."""
    _check(provider, "use", "TracerProvider", "get_tracer")
    global _is_chosen  # noqa: PLW0603 - a decision of the process
    _is_chosen = True
    _set(provider)


def choose_meter(provider: MeterProvider | None) -> None:
    """Measure with this provider from now on, not with the program's; None: do not measure."""
    _check(provider, "measure", "MeterProvider", "get_meter")
    global _is_meter_chosen  # noqa: PLW0603 - as above
    _is_meter_chosen = True
    _set_meter(provider)


def take_the_long_way() -> None:
    """Send every enqueue of this process through its app's choice of a log."""
    global _is_routed, is_on  # noqa: PLW0603 - as above
    _is_routed = is_on = True


def _check(provider: object, function: str, kind: str, method: str) -> None:
    if provider is not None and not callable(getattr(provider, method, None)):
        raise UsageError(
            f"{function}() takes a {kind} of OpenTelemetry, or None, not {provider!r:.60}"
        )


def _real(provider: Any) -> Any:
    return None if type(provider).__name__ in _NOTHING else provider


def _set(provider: TracerProvider | None) -> None:
    global tracer, is_traced, is_on  # noqa: PLW0603 - as above
    tracer = None if provider is None else provider.get_tracer(SYSTEM, _version())
    is_traced = tracer is not None or meter is not None
    is_on = is_traced or _is_routed


def _set_meter(provider: MeterProvider | None) -> None:
    global meter, is_traced, is_on  # noqa: PLW0603 - as above
    meter = None if provider is None else provider.get_meter(SYSTEM, _version())
    is_traced = tracer is not None or meter is not None
    is_on = is_traced or _is_routed


def _version() -> str:
    # The package itself is a higher layer, and already loaded.
    version: str = sys.modules["taskq"].__version__
    return version
