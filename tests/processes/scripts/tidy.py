"""A process that works on a log which it keeps small: it seals, indexes, snapshots and compacts.

Usage: tidy.py DIRECTORY SEED

Prints "delayed N", "held N KEY", "succeeded N" and "died N" at each acknowledgement, until it is
killed or stopped.
"""

from __future__ import annotations

import functools
import os
import random
import select
import sys

from taskq.core.model import SECOND_NS, Durability, Extras
from taskq.core.records import Cause, Kind
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.requests import ClaimRequest, EnqueueSpec, Settlement
from taskq.log.store.store import Store, open_store
from taskq.log.upkeep import upkeep
from taskq.log.upkeep.snapshots import SnapshotPolicy, Snapshots

HOUR_NS = 3_600 * SECOND_NS
RUN = EnqueueSpec("run", "task", 5, 3)
KEEP = EnqueueSpec("keep", "task", 5, 3)
COUNT = 20


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def work(store: Store, chance: random.Random, number: int) -> None:
    """Some jobs that stay, and many that come and go."""
    port = store.thread_port
    filler = b"x" * chance.randrange(200, 3_000)
    coming = [port.enqueue(RUN, filler) for _ in range(COUNT)]
    if not number % 10:
        delayed = port.enqueue(KEEP, b"later", Extras(due_ns=HOUR_NS)).result(30)
        say("delayed", delayed)
    if not number % 7:
        key = b"%d" % chance.randrange(10**12)
        held = port.enqueue(KEEP, filler, Extras(key=key, window_ns=HOUR_NS)).result(30)
        say("held", held, key.decode())
    for future in coming:
        future.result(30)
    deliveries = port.claim(ClaimRequest(COUNT, wait_until_ns=0)).result(30)
    ends = [Kind.DEAD if chance.random() < 0.02 else Kind.SUCCEEDED for _ in deliveries]
    settlements = [
        Settlement(kind, item, b"why", cause=Cause.EXHAUSTED)
        for kind, item in zip(ends, deliveries, strict=True)
    ]
    answers = port.settle(settlements).result(30)
    for kind, item, answer in zip(ends, deliveries, answers, strict=True):
        if answer is None:
            say("dead" if kind is Kind.DEAD else "succeeded", item.job)


def main() -> None:
    path, seed = sys.argv[1:]
    policy = SnapshotPolicy(log_bytes_min=SEGMENT_BYTES_MIN)
    vars(upkeep)["Snapshots"] = functools.partial(Snapshots, policy=policy)
    config = LogConfig(
        durability=Durability.OS,
        segment_bytes=SEGMENT_BYTES_MIN,
        keep_bytes=3 * SEGMENT_BYTES_MIN,
        min_free_bytes=0,
    )
    chance = random.Random(int(seed))
    store = open_store(path, config)
    say("open", store.owner)
    number = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        number += 1
        work(store, chance, number)
    store.close()
    say("closed")


main()
