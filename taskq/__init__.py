"""Asyncio-native background jobs on a local log: no broker, no server, no daemon."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError("taskq runs on Linux and macOS; on Windows use WSL2")

if TYPE_CHECKING:
    from taskq import retry
    from taskq.app import TaskQ
    from taskq.call import Call
    from taskq.context import JobContext, current_job, progress, progress_sync
    from taskq.core.errors import (
        AppendFailed,
        CompressionUnavailable,
        DiskFull,
        DuplicateKey,
        FormatError,
        InvalidCall,
        InvalidJobId,
        JobCancelled,
        JobError,
        JobExpired,
        JobFailed,
        JobNotFound,
        JobNotYetEnqueued,
        KeyHeld,
        LogClosed,
        LogDamaged,
        LogError,
        LogFailed,
        LogGone,
        LogLocked,
        MomentGone,
        NotDead,
        OutcomeUnknown,
        PayloadTooLarge,
        ReaderBusy,
        ReaderFellBehind,
        ReaderMismatch,
        ResultGone,
        ResultTimeout,
        SpillMissing,
        StaleDelivery,
        TaskqError,
        UnknownTask,
        UploadDamaged,
        UsageError,
        WrongLog,
    )
    from taskq.core.model import (
        AttemptView,
        Durability,
        EngineStats,
        JobView,
        LogStats,
        QueueStats,
        Spread,
        State,
    )
    from taskq.core.signals import Discard, Retry, Snooze
    from taskq.core.why import Reason
    from taskq.default import task
    from taskq.flowhandle import FlowHandle, FlowProgress, PendingFlow
    from taskq.flows import Failed, Flow, Step, chain, chord, group
    from taskq.handle import JobHandle, PendingJob, Progress
    from taskq.injection import Inject, injected
    from taskq.interrupts import ChildDied, SoftTimeout
    from taskq.log.config import QueuePolicy
    from taskq.log.listeners import DeadLetter
    from taskq.log.timeline import JobEvent
    from taskq.namedreaders import ReaderView
    from taskq.puts import Put
    from taskq.record import Record
    from taskq.stream import Stream
    from taskq.sweeping import Swept
    from taskq.tasklog import TaskLog
    from taskq.tasks import Task
    from taskq.transaction import AppTransaction, LogTransaction

__version__ = "0.1.0"

__all__ = [
    "AppTransaction",
    "AppendFailed",
    "AttemptView",
    "Call",
    "ChildDied",
    "CompressionUnavailable",
    "DeadLetter",
    "Discard",
    "DiskFull",
    "DuplicateKey",
    "Durability",
    "EngineStats",
    "Failed",
    "Flow",
    "FlowHandle",
    "FlowProgress",
    "FormatError",
    "Inject",
    "InvalidCall",
    "InvalidJobId",
    "JobCancelled",
    "JobContext",
    "JobError",
    "JobEvent",
    "JobExpired",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "JobNotYetEnqueued",
    "JobView",
    "KeyHeld",
    "LogClosed",
    "LogDamaged",
    "LogError",
    "LogFailed",
    "LogGone",
    "LogLocked",
    "LogStats",
    "LogTransaction",
    "MomentGone",
    "NotDead",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "PendingFlow",
    "PendingJob",
    "Progress",
    "Put",
    "QueuePolicy",
    "QueueStats",
    "ReaderBusy",
    "ReaderFellBehind",
    "ReaderMismatch",
    "ReaderView",
    "Reason",
    "Record",
    "ResultGone",
    "ResultTimeout",
    "Retry",
    "Snooze",
    "SoftTimeout",
    "SpillMissing",
    "Spread",
    "StaleDelivery",
    "State",
    "Step",
    "Stream",
    "Swept",
    "Task",
    "TaskLog",
    "TaskQ",
    "TaskqError",
    "UnknownTask",
    "UploadDamaged",
    "UsageError",
    "WrongLog",
    "chain",
    "chord",
    "current_job",
    "group",
    "injected",
    "progress",
    "progress_sync",
    "retry",
    "task",
]

_HOMES = {
    "AttemptView": "taskq.core.model",
    "group": "taskq.flows",
    "chord": "taskq.flows",
    "chain": "taskq.flows",
    "PendingFlow": "taskq.flowhandle",
    "Progress": "taskq.handle",
    "progress": "taskq.context",
    "progress_sync": "taskq.context",
    "FlowProgress": "taskq.flowhandle",
    "FlowHandle": "taskq.flowhandle",
    "Step": "taskq.flows",
    "Flow": "taskq.flows",
    "Failed": "taskq.flows",
    "AppTransaction": "taskq.transaction",
    "LogTransaction": "taskq.transaction",
    "Call": "taskq.call",
    "ChildDied": "taskq.interrupts",
    "DeadLetter": "taskq.log.listeners",
    "Discard": "taskq.core.signals",
    "Durability": "taskq.core.model",
    "EngineStats": "taskq.core.model",
    "Inject": "taskq.injection",
    "JobContext": "taskq.context",
    "JobEvent": "taskq.log.timeline",
    "JobHandle": "taskq.handle",
    "JobView": "taskq.core.model",
    "LogStats": "taskq.core.model",
    "PendingJob": "taskq.handle",
    "Put": "taskq.puts",
    "QueuePolicy": "taskq.log.config",
    "QueueStats": "taskq.core.model",
    "ReaderView": "taskq.namedreaders",
    "Reason": "taskq.core.why",
    "Record": "taskq.record",
    "Retry": "taskq.core.signals",
    "Snooze": "taskq.core.signals",
    "Spread": "taskq.core.model",
    "State": "taskq.core.model",
    "Stream": "taskq.stream",
    "Swept": "taskq.sweeping",
    "Task": "taskq.tasks",
    "SoftTimeout": "taskq.interrupts",
    "TaskLog": "taskq.tasklog",
    "TaskQ": "taskq.app",
    "current_job": "taskq.context",
    "injected": "taskq.injection",
    "task": "taskq.default",
}


if not TYPE_CHECKING:  # or the type checker would take every name for one of ours

    def __getattr__(name: str) -> Any:
        """Import what is asked for when it is asked for: ``import taskq`` costs milliseconds."""
        if name not in __all__:
            raise AttributeError(f"module 'taskq' has no attribute {name!r}")
        if name == "retry":
            return importlib.import_module("taskq.retry")
        value = getattr(importlib.import_module(_HOMES.get(name, "taskq.core.errors")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
