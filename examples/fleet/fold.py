"""Compute the same figures in plain Python: read and fold each log, without Spark."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from taskq.engine import LogReader
from taskq_plugins.fleet.places import find_logs

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from taskq.views import JobView

_HOUR_NS: Final = 3_600_000_000_000
_SECOND_NS: Final = 1_000_000_000
_SETTLED: Final = frozenset({"succeeded", "dead", "cancelled", "expired"})
_FAILED: Final = frozenset({"retried", "dead", "lost"})
PERCENTILES: Final = (50, 95, 99)


class Log(NamedTuple):
    """One device's log and its jobs."""

    device: str
    log_id: str
    views: list[JobView]
    last_record_ns: int


class HourKey(NamedTuple):
    """The key of a row of an hourly table; ``device`` is "" for the whole fleet."""

    device: str
    queue: str
    task: str | None
    hour: int


@dataclass(slots=True)
class Hour:
    """Counts of one hour."""

    counts: Counter[str] = field(default_factory=Counter)
    run_seconds: list[float] = field(default_factory=list)

    def row(self) -> dict[str, float | None]:
        failed = sum(self.counts[f"attempts_{name}"] for name in _FAILED)
        ran = failed + self.counts["attempts_succeeded"]
        return {
            **{name: count for name, count in self.counts.items() if count},
            "failure_rate": failed / ran if ran else None,
            **{
                f"run_p{rank}_seconds": (
                    float(np.percentile(self.run_seconds, rank)) if self.run_seconds else None
                )
                for rank in PERCENTILES
            },
        }


def read_logs(root: Path) -> list[Log]:
    logs = []
    for place in find_logs(root):
        with LogReader.open(place.path) as reader:
            last_ns = max((entry.time_ns for entry in reader.records()), default=0)
            views = list(reader.each_job(now_ns=last_ns))
        logs.append(Log(place.device, str(reader.log_id), views, last_ns))
    return logs


def job_row(log: Log, view: JobView) -> dict[str, Any]:
    return {
        "device": log.device,
        "log_id": log.log_id,
        "job": view.lsn,
        "job_id": view.job_id,
        "queue": view.queue,
        "task": view.task or None,
        "priority": view.priority,
        "state": view.state.name.lower(),
        "attempt": view.attempt,
        "attempts_max": view.attempts_max or None,
        "enqueued_ns": view.enqueued_ns,
        "due_ns": view.due_ns or None,
        "expires_ns": view.expires_ns or None,
        "settled_ns": view.settled_ns or None,
        "key": view.key,
        "payload": view.payload,
        "result": view.result,
        "reason": view.reason or None,
        "attempts": [
            {
                "number": attempt.number,
                "owner": f"{attempt.owner:016x}",
                "started_ns": attempt.started_ns or None,
                "ended_ns": attempt.ended_ns or None,
                "outcome": attempt.outcome or None,
                "reason": attempt.reason or None,
            }
            for attempt in view.attempts
        ],
    }


def hours(logs: Iterable[Log]) -> dict[HourKey, dict[str, float | None]]:
    by_hour: defaultdict[HourKey, Hour] = defaultdict(Hour)
    for log in logs:
        device = log.device
        for view in log.views:
            state = view.state.name.lower()

            def at(moment_ns: int, device: str = device, view: JobView = view) -> Hour:
                return by_hour[
                    HourKey(device, view.queue, view.task or None, moment_ns // _HOUR_NS)
                ]

            at(view.enqueued_ns).counts["enqueued"] += 1
            if state in _SETTLED:
                at(view.settled_ns).counts[state] += 1
                at(view.settled_ns).counts["settled"] += 1
            for attempt in view.attempts:
                if attempt.ended_ns:
                    hour = at(attempt.ended_ns)
                    hour.counts["attempts_ended"] += 1
                    hour.counts[f"attempts_{attempt.outcome}"] += 1
                    hour.run_seconds.append((attempt.ended_ns - attempt.started_ns) / _SECOND_NS)
    return {key: hour.row() for key, hour in by_hour.items()}


def failed_attempts(logs: Iterable[Log]) -> Counter[str]:
    return Counter(
        view.task
        for log in logs
        for view in log.views
        for attempt in view.attempts
        if attempt.outcome in _FAILED
    )


def duplicates(logs: Iterable[Log]) -> dict[tuple[str, bytes], tuple[int, int, int]]:
    """Return (queue, key) that ran on several devices -> (devices, jobs, successes)."""
    ran: defaultdict[tuple[str, bytes], list[tuple[str, bool]]] = defaultdict(list)
    for log in logs:
        for view in log.views:
            if view.key is not None and view.attempts:
                succeeded = view.state.name == "SUCCEEDED"
                ran[view.queue, view.key].append((log.device, succeeded))
    several = {}
    for key, runs in ran.items():
        devices = len({device for device, _ in runs})
        if devices > 1:
            several[key] = devices, len(runs), sum(succeeded for _, succeeded in runs)
    return several


def backlogs(logs: Iterable[Log]) -> dict[str, dict[str, int]]:
    """Return log id -> numbers of waiting, scheduled, running and dead jobs."""
    names = {"ready": "waiting", "scheduled": "scheduled", "running": "running", "dead": "dead"}
    by_log = {}
    for log in logs:
        counts = Counter(names.get(view.state.name.lower(), "") for view in log.views)
        by_log[log.log_id] = {name: counts[name] for name in names.values()}
    return by_log
