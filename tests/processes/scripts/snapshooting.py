"""A worker that writes snapshots all the time.

Usage: snapshooting.py DIRECTORY DURABILITY

Tells "round N" after each round of enqueueing, claiming and settling.
"""

from __future__ import annotations

import functools
import os
import sys

from taskq.core.model import SECOND_NS, Extras
from taskq.core.records import Kind
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.requests import ClaimRequest, EnqueueSpec, Settlement
from taskq.log.store.store import open_store
from taskq.log.upkeep import snapshots

snapshots.SnapshotPolicy = functools.partial(  # type: ignore[assignment,misc]
    snapshots.SnapshotPolicy, 4_000, 1_000
)


def main() -> None:
    path, durability = sys.argv[1:]
    store = open_store(path, LogConfig(durability=durability, segment_bytes=SEGMENT_BYTES_MIN))  # type: ignore[arg-type]
    port = store.thread_port
    extras = [None, Extras(due_ns=SECOND_NS), Extras(due_ns=3_600 * SECOND_NS), None]
    number = 0
    while True:
        number += 1
        for extra in extras:
            port.enqueue(EnqueueSpec(), b"x" * 200, extra).result()
        port.enqueue(EnqueueSpec(), b"x", Extras(key=b"%d %d" % (os.getpid(), number))).result()
        taken = port.claim(ClaimRequest(3, wait_until_ns=0)).result()
        kinds = (Kind.SUCCEEDED, Kind.DEAD)
        port.settle(
            [Settlement(kinds[delivery.job % 2], delivery) for delivery in taken[1:]]
        ).result()
        os.write(1, b"round %d\n" % number)


main()
