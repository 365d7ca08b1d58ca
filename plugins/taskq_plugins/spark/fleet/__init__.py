"""Finding task logs, their segments, and how far each may be read."""

from __future__ import annotations

from taskq_plugins.spark.fleet.inventory import SegmentRow, inventory
from taskq_plugins.spark.fleet.listing import segments
from taskq_plugins.spark.fleet.marks import durable_mark
from taskq_plugins.spark.fleet.places import LogPlace, Mark, SegmentPlace, find_logs
from taskq_plugins.spark.fleet.problems import FleetError, LogTwice, SegmentUnreadable, log_problem

__all__ = [
    "FleetError",
    "LogPlace",
    "LogTwice",
    "Mark",
    "SegmentPlace",
    "SegmentRow",
    "SegmentUnreadable",
    "durable_mark",
    "find_logs",
    "inventory",
    "log_problem",
    "segments",
]
