"""A producer that dies of SIGPIPE, as command line tools choose to. Usage: sigpipe.py DIRECTORY."""

from __future__ import annotations

import os
import signal
import sys

from taskq.core.model import Durability
from taskq.log.config import LogConfig
from taskq.log.requests import EnqueueSpec
from taskq.log.store.store import open_store

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
store = open_store(sys.argv[1], LogConfig(durability=Durability.OS))
os.write(1, b"open\n")
for _ in sys.stdin:
    lsn = store.thread_port.enqueue(EnqueueSpec(), b"0").result()
    os.write(1, f"enqueued {lsn}\n".encode())
