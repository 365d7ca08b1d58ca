"""Produce, claim and settle at once, and print every acknowledgement.

Segments are small, and snapshots are due all the time. One producer is a thread that blocks, the
other a coroutine: if no answer waits for the disk, the coroutine commits on its own loop's thread.

Usage: chaos.py DIRECTORY DURABILITY NAME KEEP_BYTES      (a line on stdin ends it in good order)

enqueued LSN BODY | delayed LSN BODY | held LSN BODY KEY | duplicate LSN BODY | dead LSN | stale LSN
"""

import asyncio
import contextlib
import os
import random
import sys
import threading
from collections.abc import Iterator

from taskq.core.errors import DuplicateKey
from taskq.core.model import SECOND_NS, Conflict, Durability, Extras
from taskq.core.records import Cause, Kind
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.requests import ClaimRequest, Delivery, Duplicate, EnqueueSpec, Settlement
from taskq.log.store.store import Store, open_store
from taskq.log.upkeep import snapshots

SPECS = [EnqueueSpec(priority=priority, attempts=0) for priority in (4, 5, 6)]
KEYS = 20
HOUR_NS = 3_600 * SECOND_NS
stop = threading.Event()
vars(snapshots).update(LOG_BYTES_MIN=4_000, STATE_PARTS=1_000)


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def jobs(name: str) -> Iterator[tuple[EnqueueSpec, bytes, Extras | None]]:
    number = 0
    while not stop.is_set():
        number += 1
        draw, extras = random.random(), None
        if draw < 0.3:
            key = f"key-{random.randrange(KEYS)}".encode()
            extras = Extras(key=key, on_conflict=random.choice([*Conflict]))
        elif draw < 0.37:
            extras = Extras(due_ns=random.randrange(20_000_000))
        elif draw < 0.38:
            extras = Extras(due_ns=HOUR_NS)
        elif draw < 0.4:
            extras = Extras(key=b"%d" % random.randrange(10**12), window_ns=HOUR_NS)
        padding = b" " * random.choice((0, 0, 100, 5_000))
        yield random.choice(SPECS), f"{name}:{number}".encode() + padding, extras


def told(answer: int | Duplicate, body: bytes, extras: Extras | None) -> None:
    text = body.decode().strip()
    if isinstance(answer, Duplicate):
        tell(f"duplicate {answer.lsn} {text}")
    elif extras and extras.due_ns == HOUR_NS:
        tell(f"delayed {answer} {text}")
    elif extras and extras.key and extras.window_ns:
        tell(f"held {answer} {text} {extras.key.decode()}")
    else:
        tell(f"enqueued {answer} {text}")


@contextlib.contextmanager
def refused(body: bytes) -> Iterator[None]:
    try:
        yield
    except DuplicateKey as error:
        tell(f"duplicate {error.job_id.rpartition('-')[2]} {body.decode().strip()}")


def produce(store: Store, name: str) -> None:
    for job in jobs(name):
        with refused(job[1]):
            told(store.thread_port.enqueue(*job).result(), *job[1:])


async def produce_async(store: Store, name: str) -> None:
    port = store.port()
    for job in jobs(name):
        with refused(job[1]):
            told(await port.enqueue(*job), *job[1:])


def how_it_ends(delivery: Delivery) -> Settlement:
    draw = random.random()
    if draw < 0.1:
        return Settlement(Kind.RETRIED, delivery, b"again", random.randrange(10_000_000))
    if draw < 0.2:
        return Settlement(Kind.RELEASED, delivery, cause=Cause.DRAIN)
    if draw < 0.22:
        return Settlement(Kind.DEAD, delivery, b"enough", cause=Cause.EXHAUSTED)
    return Settlement(Kind.SUCCEEDED, delivery, b"result")


def work(store: Store) -> None:
    port = store.thread_port
    while not stop.is_set():
        until = store.steady_ns() + 100_000_000
        taken = port.claim(ClaimRequest(random.randrange(1, 9), wait_until_ns=until)).result()
        ends = [how_it_ends(delivery) for delivery in taken]
        for end, error in zip(ends, port.settle(ends).result(), strict=True):
            tell(f"{'stale' if error else end.kind.name.lower()} {end.delivery.job}")


def main() -> None:
    path, durability, name, keep_bytes = sys.argv[1:]
    config = LogConfig(
        durability=Durability(durability), segment_bytes=SEGMENT_BYTES_MIN,
        keep_bytes=int(keep_bytes) or None, min_free_bytes=0,
    )  # fmt: skip
    store = open_store(path, config)
    tell(f"open {store.owner}")
    threads = [
        threading.Thread(target=produce, args=(store, f"{name}.1")),
        threading.Thread(target=lambda: asyncio.run(produce_async(store, f"{name}.2"))),
        threading.Thread(target=work, args=(store,)),
        threading.Thread(target=work, args=(store,)),
    ]
    for thread in threads:
        thread.start()
    sys.stdin.readline()
    stop.set()
    for thread in threads:
        thread.join()
    store.close()
    tell("closed")


main()
