"""What a log tells its readers: frozen values, made of one look each."""

from taskq.connection.handle import Progress
from taskq.core.views import (
    AttemptView,
    CompactReport,
    EngineStats,
    JobView,
    LogStats,
    QueueStats,
    Spread,
)
from taskq.core.why import Reason
from taskq.flows.handle import FlowProgress
from taskq.log.read.timeline import JobEvent
from taskq.reading.dead import Swept
from taskq.reading.named import ReaderView
from taskq.reading.replay import Replayed, ReplayReport
from taskq.schedules.view import ScheduleView

__all__ = [
    "AttemptView",
    "CompactReport",
    "EngineStats",
    "FlowProgress",
    "JobEvent",
    "JobView",
    "LogStats",
    "Progress",
    "QueueStats",
    "ReaderView",
    "Reason",
    "ReplayReport",
    "Replayed",
    "ScheduleView",
    "Spread",
    "Swept",
]
