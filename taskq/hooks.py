"""The public interface of an app's internals, for workers, plugins, commands, ``taskq.testing``.

``app.tasks``, ``app.hooks`` (other declarations), ``app.settings`` and ``app.connection`` (port,
packer and tag) are the app's own. This module re-exports helpers for running its jobs, and for
making and reading jobs without its tasks. It defines nothing; ``taskq.app``, ``taskq.calls``,
``taskq.connection`` and similar packages may change at any time.

- run a job: ``running_job`` is the context variable of the running job, ``Resources`` the values of
  lifespans, ``Inputs`` the inputs of a step, ``encode_reason`` the cause of a failure
- make a job: ``Options``, ``encode_loose``, ``key_bytes``
- read: ``LogStatus`` and ``JobStatus`` for people, ``look_at_records``, ``Search`` for jobs
- with an event loop: ``off_loop`` runs blocking work on a thread, ``blocking`` makes a ``_sync``
  twin
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq._lazy import lazily

if TYPE_CHECKING:
    from taskq.app.app import default_app
    from taskq.app.context import relay_to, running_job, within
    from taskq.app.hooks import Around
    from taskq.app.logs import elsewhere
    from taskq.app.schedules import Schedule
    from taskq.app.tasks import Enqueuer
    from taskq.calls.arguments import decode_call
    from taskq.calls.call import OptionChanges, Options, key_bytes
    from taskq.calls.naming import main_module_name
    from taskq.calls.serialization import encode_loose, encode_reason
    from taskq.calls.signature import Resources
    from taskq.connection.blocking import blocking, need_loop, off_loop
    from taskq.connection.connection import Connection, Loose
    from taskq.connection.settings import HubSettings, load_settings
    from taskq.core.schedules import ScheduleState
    from taskq.flows.inputs import Inputs
    from taskq.log.format.carried import encode_lines
    from taskq.reading.record import Choice
    from taskq.reading.search import Search
    from taskq.reading.status import JobStatus, LogStatus
    from taskq.reading.stream import look_at_records

__all__ = [
    "Around",
    "Choice",
    "Connection",
    "Enqueuer",
    "HubSettings",
    "Inputs",
    "JobStatus",
    "LogStatus",
    "Loose",
    "OptionChanges",
    "Options",
    "Resources",
    "Schedule",
    "ScheduleState",
    "Search",
    "blocking",
    "decode_call",
    "default_app",
    "elsewhere",
    "encode_lines",
    "encode_loose",
    "encode_reason",
    "key_bytes",
    "load_settings",
    "look_at_records",
    "main_module_name",
    "need_loop",
    "off_loop",
    "relay_to",
    "running_job",
    "within",
]

_HOMES: Final = {
    "taskq.app.hooks": "Around",
    "taskq.app.context": "relay_to running_job within",
    "taskq.app.app": "default_app",
    "taskq.app.logs": "elsewhere",
    "taskq.app.schedules": "Schedule",
    "taskq.app.tasks": "Enqueuer",
    "taskq.calls.arguments": "decode_call",
    "taskq.calls.call": "OptionChanges Options key_bytes",
    "taskq.calls.naming": "main_module_name",
    "taskq.calls.serialization": "encode_loose encode_reason",
    "taskq.calls.signature": "Resources",
    "taskq.connection.blocking": "blocking need_loop off_loop",
    "taskq.connection.connection": "Connection Loose",
    "taskq.connection.settings": "HubSettings load_settings",
    "taskq.core.schedules": "ScheduleState",
    "taskq.flows.inputs": "Inputs",
    "taskq.log.format.carried": "encode_lines",
    "taskq.reading.search": "Search",
    "taskq.reading.stream": "look_at_records",
    "taskq.reading.record": "Choice",
    "taskq.reading.status": "JobStatus LogStatus",
}

if not TYPE_CHECKING:  # a type checker would accept any name otherwise
    __getattr__ = lazily(__name__, _HOMES)
