"""The values that readers of a log return: frozen, from one snapshot, also as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq._lazy import lazily

if TYPE_CHECKING:
    from taskq.connection.handle import Progress
    from taskq.core.model import LIVE_STATES, SETTLED_STATES, STATES, WAITING_STATES
    from taskq.core.sources import SourceView
    from taskq.core.views import (
        AttemptView,
        CompactReport,
        Damage,
        EngineStats,
        Hold,
        JobView,
        LimitView,
        LogStats,
        OwnerView,
        ProgressView,
        QueueStats,
        Serving,
        Spread,
        Waiting,
        attempt_document,
        body_document,
        job_head,
        moment,
        owner,
    )
    from taskq.core.why import Reason, Why
    from taskq.flows.handle import FlowProgress
    from taskq.log.read.diagnosis import Standing
    from taskq.log.read.gauges import LanePace, Minute
    from taskq.log.read.history import History
    from taskq.log.read.timeline import JobEvent
    from taskq.log.upkeep.backup import BackupReport, RepairReport
    from taskq.log.upkeep.health import Check
    from taskq.reading.dead import Swept
    from taskq.reading.replay import Replayed, ReplayReport
    from taskq.reading.status import FailureGroup
    from taskq.reading.stream import ReaderView
    from taskq.schedules import ScheduleView

__all__ = [
    "LIVE_STATES",
    "SETTLED_STATES",
    "STATES",
    "WAITING_STATES",
    "AttemptView",
    "BackupReport",
    "Check",
    "CompactReport",
    "Damage",
    "EngineStats",
    "FailureGroup",
    "FlowProgress",
    "History",
    "Hold",
    "JobEvent",
    "JobView",
    "LanePace",
    "LimitView",
    "LogStats",
    "Minute",
    "OwnerView",
    "Progress",
    "ProgressView",
    "QueueStats",
    "ReaderView",
    "Reason",
    "RepairReport",
    "ReplayReport",
    "Replayed",
    "ScheduleView",
    "Serving",
    "SourceView",
    "Spread",
    "Standing",
    "Swept",
    "Waiting",
    "Why",
    "attempt_document",
    "body_document",
    "job_head",
    "moment",
    "owner",
]

_HOMES: Final = {
    "taskq.connection.handle": "Progress",
    "taskq.core.model": "LIVE_STATES SETTLED_STATES STATES WAITING_STATES",
    "taskq.core.views": (
        "AttemptView CompactReport Damage EngineStats Hold JobView LimitView LogStats "
        "OwnerView ProgressView QueueStats Serving Spread Waiting attempt_document "
        "body_document job_head moment owner"
    ),
    "taskq.core.sources": "SourceView",
    "taskq.log.read.diagnosis": "Standing",
    "taskq.core.why": "Reason Why",
    "taskq.flows.handle": "FlowProgress",
    "taskq.log.read.gauges": "LanePace Minute",
    "taskq.log.read.history": "History",
    "taskq.log.read.timeline": "JobEvent",
    "taskq.log.upkeep.backup": ("BackupReport RepairReport"),
    "taskq.log.upkeep.health": "Check",
    "taskq.reading.dead": "Swept",
    "taskq.reading.status": "FailureGroup",
    "taskq.reading.stream": "ReaderView",
    "taskq.reading.replay": "ReplayReport Replayed",
    "taskq.schedules": "ScheduleView",
}

if not TYPE_CHECKING:  # a type checker would accept any name otherwise
    __getattr__ = lazily(__name__, _HOMES)
