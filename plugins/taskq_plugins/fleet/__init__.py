"""Finding many task logs, their segments, and how far each may be read: needs taskq alone."""

from __future__ import annotations

from taskq_plugins.fleet.inventory import (
    DeclaredBreak,
    SegmentRow,
    breaks,
    durable_end,
    segment_rows,
    segments,
)
from taskq_plugins.fleet.places import (
    FleetError,
    LogPlace,
    LogTwice,
    Mark,
    SegmentPlace,
    find_logs,
    log_problem,
)

__all__ = [
    "DeclaredBreak",
    "FleetError",
    "LogPlace",
    "LogTwice",
    "Mark",
    "SegmentPlace",
    "SegmentRow",
    "breaks",
    "durable_end",
    "find_logs",
    "log_problem",
    "segment_rows",
    "segments",
]
