"""Enqueue without end, and tell each job's lsn and payload once it was acknowledged.

Usage: produce.py DIRECTORY DURABILITY NAME threads|coroutines COUNT
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading

from taskq.core.model import Durability
from taskq.log.config import LogConfig
from taskq.log.requests import EnqueueSpec
from taskq.log.store.store import Store, open_store

SPEC = EnqueueSpec()


def tell(lsn: object, body: str) -> None:
    # One write of less than PIPE_BUF: whole or not at all, from whatever thread.
    os.write(1, f"{lsn} {body}\n".encode())


def produce(store: Store, name: str) -> None:
    port = store.thread_port
    number = 0
    while True:
        body = f"{name}:{number}"
        tell(port.enqueue(SPEC, body.encode()).result(), body)
        number += 1


async def produce_async(store: Store, name: str) -> None:
    port = store.port()
    number = 0
    while True:
        body = f"{name}:{number}"
        tell(await port.enqueue(SPEC, body.encode()), body)
        number += 1


async def all_async(store: Store, names: list[str]) -> None:
    await asyncio.gather(*(produce_async(store, name) for name in names))


def main() -> None:
    path, durability, name, how, count = sys.argv[1:]
    store = open_store(path, LogConfig(durability=Durability(durability)))
    names = [f"{name}.{number}" for number in range(int(count))]
    if how == "coroutines":
        asyncio.run(all_async(store, names))
    threads = [threading.Thread(target=produce, args=(store, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


main()
