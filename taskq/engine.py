"""The engine's public interface for commands, workers and plugins; lower layers are private.

It only re-exports names. They are kept for one minor version after their deprecation; ``taskq.log``
and ``taskq.core`` may change at any time.

- open a log: ``Store`` to write, ``LogReader`` to read, both with a ``LogConfig``; a ``LoopPort``
  takes requests from an event loop (``Settlement``, ``ClaimRequest``, ``EnqueueSpec``, …);
  ``LogView`` and ``Moment`` are the views of a read
- read records: ``Record``, ``kinds`` (effects of records), ``Gap``, ``Scanner``; with a stored
  position, ``NamedReader``
- copy a log: ``DurableLog`` to send, ``Replica`` to store, ``Border`` to compare
- files: ``Identity``, and the machine's ``Disk`` and ``Clock``
- upkeep: ``check_health``, ``check_start``, ``back_up``, ``restore``, ``repair_directory``,
  ``excerpt``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq._lazy import lazily

if TYPE_CHECKING:
    from taskq.core import kinds
    from taskq.core.fingerprints import FailureKind, failure_of
    from taskq.core.folds.claims import Weights
    from taskq.core.folds.lanes import Lane
    from taskq.core.model import Conflict, Extras
    from taskq.core.parsing import Tag
    from taskq.core.rates import Limit
    from taskq.core.records import Cause, Flag, Kind, Option
    from taskq.core.sources import checked_move
    from taskq.core.why import strays_of
    from taskq.log.config import LogConfig
    from taskq.log.format.bodies import Compression
    from taskq.log.format.codec import FrameHeader
    from taskq.log.format.frames import Cursor, Gap, Scanner, segment_lsn, segment_name
    from taskq.log.format.record import Record, places
    from taskq.log.journal.replica import Border, DurableLog, Replica
    from taskq.log.machine.access import open_file, read_file, read_private
    from taskq.log.machine.disk import LocalDisk, PatientDisk, SystemClock
    from taskq.log.machine.ports import Clock, Disk, replace_file, write_all
    from taskq.log.machine.system import system
    from taskq.log.machine.threads import start_thread
    from taskq.log.read.reader import LogReader
    from taskq.log.read.readers import NamedReader
    from taskq.log.read.timeline import StepView
    from taskq.log.read.timetravel import Moment
    from taskq.log.requests import (
        Ask,
        ClaimRequest,
        Duplicate,
        EnqueueSpec,
        Item,
        Settlement,
        Turn,
    )
    from taskq.log.segments.identity import Identity
    from taskq.log.state.facets import LogView
    from taskq.log.store.port import LoopPort
    from taskq.log.store.store import Store
    from taskq.log.upkeep.backup import back_up, excerpt, fork, repair_directory, restore
    from taskq.log.upkeep.health import check_health, check_start

__all__ = [
    "Ask",
    "Border",
    "Cause",
    "ClaimRequest",
    "Clock",
    "Compression",
    "Conflict",
    "Cursor",
    "Disk",
    "Duplicate",
    "DurableLog",
    "EnqueueSpec",
    "Extras",
    "FailureKind",
    "Flag",
    "FrameHeader",
    "Gap",
    "Identity",
    "Item",
    "Kind",
    "Lane",
    "Limit",
    "LocalDisk",
    "LogConfig",
    "LogReader",
    "LogView",
    "LoopPort",
    "Moment",
    "NamedReader",
    "Option",
    "PatientDisk",
    "Record",
    "Replica",
    "Scanner",
    "Settlement",
    "StepView",
    "Store",
    "SystemClock",
    "Tag",
    "Turn",
    "Weights",
    "back_up",
    "check_health",
    "check_start",
    "checked_move",
    "excerpt",
    "failure_of",
    "fork",
    "kinds",
    "open_file",
    "places",
    "read_file",
    "read_private",
    "repair_directory",
    "replace_file",
    "restore",
    "segment_lsn",
    "segment_name",
    "start_thread",
    "strays_of",
    "system",
    "write_all",
]

_HOMES: Final = {
    "taskq.core": "kinds",
    "taskq.core.fingerprints": "FailureKind failure_of",
    "taskq.core.folds.lanes": "Lane",
    "taskq.core.folds.claims": "Weights",
    "taskq.core.model": "Conflict Extras",
    "taskq.core.parsing": "Tag",
    "taskq.core.rates": "Limit",
    "taskq.core.records": "Cause Flag Kind Option",
    "taskq.core.sources": "checked_move",
    "taskq.core.why": "strays_of",
    "taskq.log.config": "LogConfig",
    "taskq.log.format.bodies": "Compression",
    "taskq.log.format.codec": "FrameHeader",
    "taskq.log.format.frames": "Cursor Gap Scanner segment_lsn segment_name",
    "taskq.log.format.record": "Record places",
    "taskq.log.journal.replica": ("Border DurableLog Replica"),
    "taskq.log.machine.access": ("open_file read_file read_private"),
    "taskq.log.machine.disk": "LocalDisk PatientDisk SystemClock",
    "taskq.log.machine.ports": "Clock Disk replace_file write_all",
    "taskq.log.machine.system": "system",
    "taskq.log.machine.threads": "start_thread",
    "taskq.log.read.reader": "LogReader",
    "taskq.log.read.readers": "NamedReader",
    "taskq.log.read.timeline": "StepView",
    "taskq.log.read.timetravel": "Moment",
    "taskq.log.requests": "Ask ClaimRequest Duplicate EnqueueSpec Item Settlement Turn",
    "taskq.log.segments.identity": "Identity",
    "taskq.log.state.facets": "LogView",
    "taskq.log.store.port": "LoopPort",
    "taskq.log.store.store": "Store",
    "taskq.log.upkeep.backup": ("back_up excerpt fork repair_directory restore"),
    "taskq.log.upkeep.health": "check_health check_start",
}

if not TYPE_CHECKING:  # a type checker would accept any name otherwise
    __getattr__ = lazily(__name__, _HOMES)
