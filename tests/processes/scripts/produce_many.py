"""Enqueue COUNT jobs of three priorities, 64 at a time; print the longest wait for the lock.

Usage: produce_many.py DIRECTORY DURABILITY NAME COUNT      (starts at a line on stdin)
"""

from __future__ import annotations

import asyncio
import os
import sys

from taskq.core.model import Durability
from taskq.log.config import LogConfig
from taskq.log.requests import EnqueueSpec
from taskq.log.store.store import Store, open_store

SPECS = [EnqueueSpec(priority=priority) for priority in (3, 5, 7)]
AT_A_TIME = 64


async def produce(store: Store, name: str, count: int) -> None:
    port = store.port()
    for start in range(0, count, AT_A_TIME):
        numbers = range(start, min(start + AT_A_TIME, count))
        sent = [port.enqueue(SPECS[number % 3], f"{name}:{number}".encode()) for number in numbers]
        lsns = await asyncio.gather(*sent)
        assert lsns == sorted(lsns), "one producer's jobs are numbered in its order"


def main() -> None:
    path, durability, name, count = sys.argv[1:]
    store = open_store(path, LogConfig(durability=Durability(durability)))
    os.write(1, b"open\n")
    sys.stdin.readline()
    asyncio.run(produce(store, name, int(count)))
    os.write(1, f"longest {store._open.writer.waits.largest / 1e9:.6f} {store.batches}\n".encode())
    store.close()


main()
