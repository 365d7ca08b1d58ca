"""Asyncio-native background jobs on a local log: no broker, no server, no daemon.

Errors are in ``taskq.errors``, views of jobs and logs in ``taskq.views``, conditions of jobs in
``taskq.conditions``, and helpers for your own tests in ``taskq.testing``.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from taskq import durable, retry
    from taskq.app.app import TaskQ, task
    from taskq.app.context import (
        ChildDied,
        JobContext,
        SoftTimeout,
        current_job,
        progress,
        progress_sync,
    )
    from taskq.app.tasklog import TaskLog
    from taskq.app.tasks import Task
    from taskq.app.transaction import AppTransaction, LogTransaction
    from taskq.calls.call import Call, Put
    from taskq.calls.signature import Inject, injected
    from taskq.connection.handle import JobHandle, PendingJob
    from taskq.core.model import Durability, State
    from taskq.core.retry import Discard, Retry, Snooze
    from taskq.flows.flow import Failed, Flow, Step, chain, chord, group
    from taskq.flows.handle import FlowHandle, PendingFlow
    from taskq.log.config import QueuePolicy
    from taskq.log.decide.listeners import DeadLetter
    from taskq.log.format.record import Record
    from taskq.log.requests import Delivery
    from taskq.reading.stream import Stream
    from taskq.shards import Shards
    from taskq_workers import Worker

#: The version of the package and of the distribution.
__version__ = "0.1.0"

__all__ = [
    "AppTransaction",
    "Call",
    "ChildDied",
    "DeadLetter",
    "Delivery",
    "Discard",
    "Durability",
    "Failed",
    "Flow",
    "FlowHandle",
    "Inject",
    "JobContext",
    "JobHandle",
    "LogTransaction",
    "PendingFlow",
    "PendingJob",
    "Put",
    "QueuePolicy",
    "Record",
    "Retry",
    "Shards",
    "Snooze",
    "SoftTimeout",
    "State",
    "Step",
    "Stream",
    "Task",
    "TaskLog",
    "TaskQ",
    "Worker",
    "chain",
    "chord",
    "current_job",
    "durable",
    "group",
    "injected",
    "progress",
    "progress_sync",
    "retry",
    "task",
]

_HOMES: Final = {
    "taskq.app.app": "TaskQ task",
    "taskq.app.context": "ChildDied JobContext SoftTimeout current_job progress progress_sync",
    "taskq.app.tasklog": "TaskLog",
    "taskq.app.tasks": "Task",
    "taskq.app.transaction": "AppTransaction LogTransaction",
    "taskq.calls.call": "Call Put",
    "taskq.calls.signature": "Inject injected",
    "taskq.connection.handle": "JobHandle PendingJob",
    "taskq.core.model": "Durability State",
    "taskq.core.retry": "Discard Retry Snooze",
    "taskq.flows.flow": "Failed Flow Step chain chord group",
    "taskq.flows.handle": "FlowHandle PendingFlow",
    "taskq.log.config": "QueuePolicy",
    "taskq.log.decide.listeners": "DeadLetter",
    "taskq.log.requests": "Delivery",
    "taskq.log.format.record": "Record",
    "taskq.reading.stream": "Stream",
    "taskq.shards": "Shards",
    "taskq_workers": "Worker",
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names.split()}


if not TYPE_CHECKING:  # a type checker would accept any name otherwise

    def __getattr__(name: str) -> Any:
        """Import a name at its first use: ``import taskq`` costs milliseconds."""
        if name in {"durable", "retry"}:
            return importlib.import_module(f"taskq.{name}")
        if name not in _HOME_OF:
            raise _missing(name, sys._getframe(1).f_code.co_filename)
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value

    def _missing(name: str, asker: str) -> Exception:
        # Python hides an AttributeError of an import statement and shows only "cannot import name".
        kind = ImportError if asker.startswith("<frozen importlib") else AttributeError
        # The import of a submodule, in lower case, must not wait for these modules.
        for home in ("errors", "views") if name[:1].isupper() else ():
            if name in importlib.import_module(f"taskq.{home}").__all__:
                return kind(f"{name} is in taskq.{home}: from taskq.{home} import {name}")
        imports = importlib.import_module("taskq.calls.habits").IMPORTS
        if name in imports:
            return kind(f"taskq has no {name!r}: write {imports[name]}")
        return AttributeError(f"module 'taskq' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__]
