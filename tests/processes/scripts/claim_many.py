"""Claim and settle jobs until a line on stdin; print the count and the longest lock wait.

Usage: claim_many.py DIRECTORY DURABILITY
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading

from taskq.core.errors import TaskqError
from taskq.core.model import Durability
from taskq.core.records import Kind
from taskq.log.config import LogConfig
from taskq.log.requests import ClaimRequest, Settlement
from taskq.log.store.store import Store, open_store

AT_A_TIME = 32


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def complain(item: Settlement, error: TaskqError) -> None:
    tell(f"refused {item.delivery.job} {error}")


async def work(store: Store, stop: asyncio.Event) -> None:
    port = store.port()
    stopping = asyncio.ensure_future(stop.wait())
    while not stop.is_set():
        claim = port.claim(ClaimRequest(AT_A_TIME))
        await asyncio.wait((claim, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not claim.done():
            claim.cancel()
            break
        deliveries = claim.result()
        port.settle_soon(
            [Settlement(Kind.SUCCEEDED, delivery) for delivery in deliveries], complain
        )
        tell(f"done {len(deliveries)}")


async def main() -> None:
    path, durability = sys.argv[1:]
    store = open_store(path, LogConfig(durability=Durability(durability)))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait_for_line() -> None:
        sys.stdin.readline()
        loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=wait_for_line, daemon=True).start()
    tell(f"open {store.owner}")
    await work(store, stop)
    tell(f"longest {store._open.writer.waits.largest / 1e9:.6f} {store.batches}")
    await asyncio.to_thread(store.close)


asyncio.run(main())
