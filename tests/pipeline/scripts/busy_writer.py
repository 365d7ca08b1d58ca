"""Enqueues, claims and settles at full speed until its standard input ends.

Usage: busy_writer.py DATA_DIR
"""

from __future__ import annotations

import select
import sys

from taskq.core.records import Kind
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.requests import ClaimRequest, EnqueueSpec, Settlement
from taskq.log.store.store import open_store


def main() -> None:
    """Run jobs, and say when the first ones are through."""
    store = open_store(sys.argv[1], LogConfig(segment_bytes=SEGMENT_BYTES_MIN))
    port = store.thread_port
    is_said = False
    while not select.select([sys.stdin], [], [], 0)[0]:
        enqueued = [port.enqueue(EnqueueSpec("mail", "send", 5), bytes(n * 7)) for n in range(30)]
        request = ClaimRequest(20, wait_until_ns=store.steady_ns())
        deliveries = port.claim(request).result(30)
        port.settle(
            [Settlement(Kind.SUCCEEDED, delivery, b"done") for delivery in deliveries]
        ).result(30)
        for future in enqueued:
            future.result(30)
        if not is_said:
            print("writing", flush=True)  # noqa: T201 - it tells its parent
            is_said = True
    store.close()


if __name__ == "__main__":
    main()
