"""Metrics of a hub for Prometheus, on a port of its own: ``taskq hub serve --metrics-port``."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from taskq_plugins.scrapes import serve

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from taskq_plugins.hub.registry import Registry
    from taskq_plugins.hub.server import Gate

_HUB: Final = "taskq_hub_"


class HubMetrics:
    """Collects the state of a hub and its devices at each scrape."""

    def __init__(self, registry: Registry, gate: Gate) -> None:
        self._registry = registry
        self._gate = gate

    def collect(self) -> Iterator[Metric]:
        known = list(self._registry.all_standing().values())
        active = [each for each in known if each["state"] == "active"]
        silent = [
            abs(time.time() - each["heard_ns"] / 1e9) for each in active if "heard_ns" in each
        ]
        states = Counter(str(each["state"]) for each in known)
        yield _each(GaugeMetricFamily, "devices", "Devices by state", "state", states)
        text = "Longest time that an active device was not heard of"
        yield GaugeMetricFamily(f"{_HUB}silent_seconds", text, value=max(silent, default=0))
        text = "Records that active devices have and the hub lacks"
        value = sum(each["behind"] for each in active)
        yield GaugeMetricFamily(f"{_HUB}behind_records", text, value=value)
        text, refused = "Requests that were refused, by status", self._gate.refused
        yield _each(CounterMetricFamily, "refusals", text, "status", refused)
        text, received = "Bytes of bodies that came", self._gate.received
        yield CounterMetricFamily(f"{_HUB}received_bytes", text, value=received)


def _each(kind: Any, name: str, text: str, label: str, counts: Mapping[Any, int]) -> Metric:
    family: Any = kind(f"{_HUB}{name}", text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([str(value)], count)
    figure: Metric = family
    return figure


@contextlib.contextmanager
def served(registry: Registry, gate: Gate, host: str, port: int) -> Iterator[None]:
    collectors = CollectorRegistry()
    collectors.register(HubMetrics(registry, gate))
    with serve(collectors, host, port):
        yield
