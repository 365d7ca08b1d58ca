"""The processes that ``memory.py`` starts, one measurement each.

``python -m tests.bench.memory_parts PART DIRECTORY …`` prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from taskq.core.model import SECOND_NS, Extras
from taskq.core.records import Kind
from taskq.log.config import LogConfig
from taskq.log.requests import ClaimRequest, Delivery, Duplicate, EnqueueSpec, Settlement
from taskq.log.store.store import Store, open_store
from tests.bench.load import produce
from tests.bench.process import ask, rss_bytes
from tests.bench.tables import median

PAYLOAD: Final = b"x" * 100
SPEC: Final = EnqueueSpec()
TRANSACTION_COUNT: Final = 5_000
CLAIM_COUNT: Final = 1_000
ROUNDS: Final = 9
Item = tuple[EnqueueSpec, bytes, Extras | None]
Part = Callable[..., dict[str, Any]]


def items(kind: str, count: int) -> Iterator[Item]:
    """Jobs that wait: ready, scheduled over an hour that is an hour away, or ready with a key."""
    for number in range(count):
        extras = None
        if kind == "scheduled":
            extras = Extras(due_ns=(3_600 + number % 3_600) * SECOND_NS)
        elif kind == "keyed":
            extras = Extras(key=b"customer-%d" % number)
        yield SPEC, PAYLOAD, extras


def add(store: Store, kind: str, count: int) -> float:
    """Enqueue so many in transactions; seconds a job."""
    source = items(kind, count)
    start = time.perf_counter()
    for first in range(0, count, TRANSACTION_COUNT):
        batch = list(islice(source, min(TRANSACTION_COUNT, count - first)))
        store.thread_port.enqueue_many(batch).result()
    return (time.perf_counter() - start) / count


def claim(store: Store, count: int) -> list[Delivery]:
    """Return what is ready, at most so many, without waiting."""
    request = ClaimRequest(count=count, wait_until_ns=store.steady_ns())
    deliveries: list[Delivery] = store.thread_port.claim(request).result()
    return deliveries


def waiting(store: Store) -> int:
    """Return jobs that nobody has claimed."""
    queues = store.thread_port.stats().result().queues
    return sum(queue.ready + queue.scheduled for queue in queues)


def fill(directory: str, kind: str, count: str) -> dict[str, Any]:
    """Return a process that only enqueues."""
    store = open_store(directory, LogConfig())
    seconds = add(store, kind, int(count))
    gc.collect()
    rss = rss_bytes()
    assert waiting(store) == int(count)
    store.close()
    return {"add_seconds": seconds, "rss": rss}


def more(directory: str, kind: str, count: str) -> dict[str, Any]:
    """As ``fill``, on a log that has jobs."""
    store = open_store(directory, LogConfig())
    seconds = add(store, kind, int(count))
    store.close()
    return {"add_seconds": seconds}


def reopen(directory: str, kind: str, count: str) -> dict[str, Any]:
    """Return a claimer that finds the jobs there: time, memory, and what a claim of 1 000 takes."""
    before = rss_bytes()
    start = time.perf_counter()
    store = open_store(directory, LogConfig())
    first = claim(store, 1)
    seconds = time.perf_counter() - start
    if kind == "keyed":
        # A claimer holds no table of keys until somebody enqueues one through it.
        answer = store.thread_port.enqueue(SPEC, PAYLOAD, Extras(key=b"customer-1")).result()
        assert isinstance(answer, Duplicate)
    gc.collect()
    rss = rss_bytes()
    assert len(first) == (0 if kind == "scheduled" else 1)
    claims = []
    for _ in range(0 if kind == "scheduled" else ROUNDS):
        start = time.perf_counter()
        deliveries = claim(store, CLAIM_COUNT - len(first))
        claims.append(time.perf_counter() - start)
        deliveries += first
        first = []
        assert len(deliveries) == CLAIM_COUNT
        settled = [Settlement(Kind.SUCCEEDED, delivery) for delivery in deliveries]
        assert not any(store.thread_port.settle(settled).result())
        # As many come as go. They come from another process, so that none is in our cache; asking
        # for the count takes them into the fold before the clock runs.
        ask("tests.bench.memory_parts", "more", directory, "ready", CLAIM_COUNT)
        assert waiting(store) == int(count)
    assert waiting(store) == int(count)
    store.close()
    return {
        "open_seconds": seconds,
        "growth": rss - before,
        "claim_seconds": median(claims) if claims else None,
    }


def live(directory: str, kind: str, count: str) -> dict[str, Any]:
    """Return a claimer that takes in the jobs one transaction after the other."""
    store = open_store(directory, LogConfig())
    assert not claim(store, 1)
    add(store, "ready", CLAIM_COUNT)
    gc.collect()
    before = rss_bytes()
    seconds = add(store, kind, int(count))
    gc.collect()
    growth = rss_bytes() - before
    assert waiting(store) == int(count) + CLAIM_COUNT
    store.close()
    return {"add_seconds": seconds, "growth": growth}


def first_bytes(directory: str) -> dict[str, Any]:
    """Return the first enqueue of a fresh process, at the log: a durable answer."""
    before = rss_bytes()
    start = time.perf_counter()
    store = open_store(directory, LogConfig())
    store.thread_port.enqueue(SPEC, PAYLOAD).result()
    seconds = time.perf_counter() - start
    growth = rss_bytes() - before
    store.close()
    return {"seconds": seconds, "growth": growth}


def first_call(directory: str) -> dict[str, Any]:
    """Return the first enqueue of a fresh process, through the API: its task is declared before."""
    from taskq import TaskQ  # noqa: PLC0415 - the other parts are to be free of it

    app = TaskQ(directory)

    @app.task(name="first")
    def call(i: int, subject: str) -> None:
        """Never run here."""

    before = rss_bytes()
    start = time.perf_counter()
    call.enqueue_sync(1, subject="x" * 84)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "growth": rss_bytes() - before}


def enqueuer(directory: str, count: str) -> dict[str, Any]:
    """Return one of many processes that only enqueue, with 64 callers in an event loop."""

    async def run() -> None:
        store = open_store(directory, LogConfig())
        port = store.port()
        await port.enqueue(SPEC, PAYLOAD)
        print("ready", flush=True)
        sys.stdin.readline()

        async def enqueue(i: int, subject: str) -> None:
            await port.enqueue(SPEC, PAYLOAD)

        await produce(enqueue, int(count) - 1, 64)
        store.close()

    asyncio.run(run())
    return {"done": True}


PARTS: Final[dict[str, Part]] = {
    part.__name__: part for part in (fill, more, reopen, live, first_bytes, first_call, enqueuer)
}

if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[1]](*sys.argv[2:])))
