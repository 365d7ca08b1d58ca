"""What a log tells its readers: frozen values, made of one look each."""

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
from taskq.flowhandle import FlowProgress
from taskq.handle import Progress
from taskq.log.read.timeline import JobEvent
from taskq.namedreaders import ReaderView
from taskq.replay import Replayed, ReplayReport
from taskq.schedulesview import ScheduleView
from taskq.sweeping import Swept

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
