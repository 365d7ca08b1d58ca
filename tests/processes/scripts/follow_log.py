"""Stream a log and print each record: its lsn, kind, and age by its payload.

Usage: follow_log.py DIRECTORY READER DURABILITY [idle SECONDS]   (READER "-" for none)

With ``idle`` it reads the one record that is there, waits ``SECONDS`` for another, and prints the
share of a core that this took.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
import time

from taskq import TaskLog
from taskq.errors import TaskqError


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def idle(log: TaskLog, seconds: float) -> None:
    records = aiter(log.stream())
    await anext(records)
    before = cpu_seconds()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(anext(records), seconds)
    tell(f"share {(cpu_seconds() - before) / seconds}")


async def main() -> None:
    path, reader, durability, *rest = sys.argv[1:]
    async with TaskLog.open(path, durability=durability) as log:
        if rest:
            await idle(log, float(rest[1]))
            return
        tell(f"open {log._connection.store().owner}")
        async for record in log.stream(reader=None if reader == "-" else reader):
            ago = 0
            if record.payload is not None and record.payload.isdigit():
                ago = time.monotonic_ns() - int(record.payload)
            tell(f"record {record.lsn} {record.kind} {ago}")


try:
    asyncio.run(main())
except TaskqError as error:
    tell(f"error {type(error).__name__}: {error}")
