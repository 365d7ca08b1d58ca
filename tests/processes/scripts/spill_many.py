"""Put large payloads without end, and tell each job's id and number once it was acknowledged.

Usage: spill_many.py DIRECTORY NAME
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from taskq import TaskLog


def body(number: int) -> bytes:
    """Return a payload that no compression makes fit the log; every tenth number has the same."""
    return random.Random(number % 10).randbytes(1_050_000) + b"%d" % (number % 10) * 10_000


async def put(log: TaskLog, first: int) -> None:
    for number in range(first, 10**9, 2):
        job_id = await log.put(body(number), spill=True, compress="zlib")
        os.write(1, f"{job_id} {number}\n".encode())


async def main() -> None:
    async with TaskLog.open(sys.argv[1]) as log:
        first = int(sys.argv[2])
        await asyncio.gather(put(log, first), put(log, first + 1))


if __name__ == "__main__":
    asyncio.run(main())
