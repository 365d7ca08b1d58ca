"""Whether this process traces, looked at where every enqueue passes; see ``taskq.telemetry``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from taskq.core.errors import UsageError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

SYSTEM: Final = "taskq"
#: Where the environment names a provider, which the API then loads by itself.
_PROVIDER_VARIABLE: Final = "OTEL_PYTHON_TRACER_PROVIDER"
_NOTHING: Final = frozenset({"NoOpTracerProvider", "ProxyTracerProvider"})

#: What makes spans; None: nothing is traced, and nobody pays for it. Set by ``look``, ``choose``.
tracer: Tracer | None = None
_is_chosen = False


def look() -> None:
    """Trace from now on if the program has a tracer provider; costs nothing if it has none."""
    if _is_chosen or tracer is not None:
        return
    # Whoever set a provider has imported this.
    if "opentelemetry.trace" not in sys.modules and _PROVIDER_VARIABLE not in os.environ:
        return
    from opentelemetry import trace  # noqa: PLC0415 - most programs never need it

    provider = trace.get_tracer_provider()
    if type(provider).__name__ not in _NOTHING:
        _set(provider)


def choose(provider: TracerProvider | None) -> None:
    """Trace with this provider from now on, whatever the program's own is; None: not at all.

    Raises:
        UsageError: it is no provider.
    """
    if provider is not None and not callable(getattr(provider, "get_tracer", None)):
        raise UsageError(
            f"use() takes a TracerProvider of OpenTelemetry, or None, not {provider!r:.60}"
        )
    global _is_chosen  # noqa: PLW0603 - a decision of the process
    _is_chosen = True
    _set(provider)


def _set(provider: TracerProvider | None) -> None:
    global tracer  # noqa: PLW0603 - as above: the hot path looks at it, and at nothing else
    # The package itself is above all rooms, and loaded by now.
    version: str = sys.modules["taskq"].__version__
    tracer = None if provider is None else provider.get_tracer(SYSTEM, version)
