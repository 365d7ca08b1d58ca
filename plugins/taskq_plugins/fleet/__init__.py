"""Finding many task logs, their segments, and how far each may be read: needs taskq alone."""

from __future__ import annotations

from taskq_plugins.fleet.breaks import Break, breaks
from taskq_plugins.fleet.inventory import SegmentRow, segment_rows
from taskq_plugins.fleet.listing import segments
from taskq_plugins.fleet.marks import durable_end
from taskq_plugins.fleet.places import LogPlace, Mark, SegmentPlace, find_logs
from taskq_plugins.fleet.problems import FleetError, LogTwice, log_problem

__all__ = [
    "Break",
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
