"""Ingest the lines of a file, each as a job of bytes, and die within so many seconds.

Usage: ingest_file.py FILE DIRECTORY SECONDS [STEP]

SIGALRM ends it as kill -9 does, at any instruction; 0 SECONDS: it comes to its end.
"""

from __future__ import annotations

import signal
import sys

from taskq import Put, TaskLog


def main() -> None:
    source, path, seconds, *rest = sys.argv[1:]
    step = int(rest[0]) if rest else 50
    with TaskLog.open(path) as log, open(source, "rb") as file:  # noqa: PTH123 - tells its place
        signal.setitimer(signal.ITIMER_REAL, float(seconds))
        done = log.position_sync("lines")
        file.seek(done or 0)
        while lines := [line for line in (file.readline() for _ in range(step)) if line]:
            jobs = [Put(payload=line.rstrip()) for line in lines]
            log.ingest_sync("lines", jobs, file.tell(), after=done)
            done = file.tell()


main()
