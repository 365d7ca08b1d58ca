"""Bulk uploads: jobs by the million in files beside a log, enqueued in one step.

Anybody writes parts, in any process: entries that begin with a tail of ``encode_tail``. ``publish``
names them all, which is when their jobs exist; workers adopt them in slices, or ``adopt`` does.
"""

from __future__ import annotations

import os
from pathlib import Path

from taskq.connection.connection import Connection
from taskq.connection.logoptions import log_config
from taskq.log.format.bodies import compress
from taskq.log.inbox.directory import Part, check_upload_name
from taskq.log.inbox.parts import encode_tail
from taskq.log.inbox.writer import PartWriter, discard, outcome, publish

__all__ = [
    "Part",
    "PartWriter",
    "adopt",
    "check_upload_name",
    "compress",
    "discard",
    "encode_tail",
    "outcome",
    "publish",
]


def adopt(data_dir: Path) -> int:
    """Enqueue the jobs of all uploads that were published; returns how many they were.

    Blocks, also in a thread that runs an event loop, as a notebook's does.

    Raises:
        LogError: an upload does not read back, or the log could not be written.
    """
    connection = Connection(os.fspath(data_dir), log_config({"upkeep": False}))
    try:
        return connection.store().thread_port.adopt().result()
    finally:
        connection.close()
