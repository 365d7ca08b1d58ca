"""Wait for a job that does not come, and print the share of a core that this took.

Usage: idle.py DIRECTORY SECONDS LSN      (LSN: of a job whose outcome is waited for, too; 0: none)
"""

from __future__ import annotations

import os
import resource
import sys

from taskq.core.model import SECOND_NS, Durability
from taskq.log.config import LogConfig
from taskq.log.requests import ClaimRequest
from taskq.log.store.store import open_store


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    path, seconds, lsn = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    store = open_store(path, LogConfig(durability=Durability.OS))
    port = store.thread_port
    assert port.claim(ClaimRequest(1, wait_until_ns=store.steady_ns())).result() == []
    if lsn:
        port.outcome(lsn)
    before = cpu_seconds()
    until = store.steady_ns() + int(seconds * SECOND_NS)
    assert port.claim(ClaimRequest(1, wait_until_ns=until)).result() == []
    os.write(1, f"share {(cpu_seconds() - before) / seconds}\n".encode())
    store.close()


main()
