"""Logs with a past: a million waiting jobs, millions of finished ones, and their opening.

Run: ``python -m tests.bench.memory [--only waiting|first|past|lookup]``. Each figure is taken
in processes of its own. See README.md.
"""

import asyncio
import gc
import random
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from taskq.core.model import SECOND_NS, Durability, Extras, State
from taskq.core.records import Kind
from taskq.log.config import LogConfig
from taskq.log.read.reader import open_journal
from taskq.log.requests import ClaimRequest, Delivery, Duplicate, EnqueueSpec, Settlement
from taskq.log.store.store import Store, open_store
from tests.bench.harness import (
    MIB,
    Table,
    ask,
    median,
    options,
    percentile,
    rss_bytes,
    scratch,
    serve,
)  # fmt: skip

MODULE: Final = "tests.bench.memory"
PAYLOAD: Final = b"x" * 100
SPEC: Final = EnqueueSpec()
TRANSACTION_COUNT: Final = 5_000
CLAIM_COUNT: Final = 1_000
ROUNDS: Final = 9
LOOKUPS: Final = 2_000
#: The kinds of waiting jobs, and the most bytes that one may take in memory.
KINDS: Final = {"ready": 64, "scheduled": 64, "keyed": 104}
Item = tuple[EnqueueSpec, bytes, Extras | None]


def items(kind: str, count: int) -> Iterator[Item]:
    for number in range(count):
        extras = None
        if kind == "scheduled":
            extras = Extras(due_ns=(3_600 + number % 3_600) * SECOND_NS)
        elif kind == "keyed":
            extras = Extras(key=b"customer-%d" % number)
        yield SPEC, PAYLOAD, extras


def add(store: Store, kind: str, count: int) -> float:
    source = items(kind, count)
    begin = time.perf_counter()
    for first in range(0, count, TRANSACTION_COUNT):
        batch = list(islice(source, min(TRANSACTION_COUNT, count - first)))
        store.thread_port.enqueue_many(batch).result()
    return (time.perf_counter() - begin) / max(count, 1)


def claim(store: Store, count: int) -> list[Delivery]:
    request = ClaimRequest(count=count, wait_until_ns=store.steady_ns())
    deliveries: list[Delivery] = store.thread_port.claim(request).result()
    return deliveries


def finish(store: Store, deliveries: list[Delivery]) -> None:
    ends = [
        Settlement(Kind.SUCCEEDED, delivery, b"result" if delivery.job % 2 else None)
        for delivery in deliveries
    ]
    assert not any(store.thread_port.settle(ends).result())


def counts(store: Store) -> tuple[int, int]:
    queues = store.thread_port.stats().result().queues
    waiting = sum(queue.ready + queue.scheduled + queue.running for queue in queues)
    return sum(queue.succeeded for queue in queues), waiting


def fill(directory: str, kind: str, waiting: str, finished: str = "0") -> dict[str, Any]:
    store = open_store(directory, LogConfig(durability=Durability.OS))
    for first in range(0, int(finished), TRANSACTION_COUNT):
        add(store, kind, min(TRANSACTION_COUNT, int(finished) - first))
        while deliveries := claim(store, TRANSACTION_COUNT):
            finish(store, deliveries)
    seconds = add(store, kind, int(waiting))
    store.close()
    return {"add_seconds": seconds}


def reopen(directory: str, kind: str, waiting: str, finished: str = "0") -> dict[str, Any]:
    """Open a log that has jobs: time, memory, and what a claim of 1 000 takes."""
    before = rss_bytes()
    begin = time.perf_counter()
    store = open_store(directory, LogConfig())
    deliveries = claim(store, 1)
    seconds = time.perf_counter() - begin
    if kind == "keyed":
        # A claimer holds no table of keys until somebody enqueues one through it.
        duplicate = store.thread_port.enqueue(SPEC, PAYLOAD, Extras(key=b"customer-1")).result()
        assert isinstance(duplicate, Duplicate)
    gc.collect()
    growth = rss_bytes() - before
    engine = store.thread_port.stats().result().engine
    folded = engine.caught_up_records if engine is not None else 0
    assert len(deliveries) == (0 if kind == "scheduled" else 1)
    assert counts(store) == (int(finished), int(waiting))
    claims = [0.0]
    if int(waiting) >= CLAIM_COUNT and deliveries and not int(finished):
        claims = [claim_many(store, directory, deliveries) for _ in range(ROUNDS)]
        assert counts(store)[1] == int(waiting)
    store.thread_port.settle(
        [Settlement(Kind.RELEASED, delivery) for delivery in deliveries]
    ).result()
    store.close()
    return {"seconds": seconds, "growth": growth, "claim": median(claims), "folded": folded}


def claim_many(store: Store, directory: str, held: list[Delivery]) -> float:
    begin = time.perf_counter()
    deliveries = claim(store, CLAIM_COUNT - len(held))
    seconds = time.perf_counter() - begin
    deliveries += held
    held.clear()
    assert len(deliveries) == CLAIM_COUNT
    finish(store, deliveries)
    # As many come as go. They come from another process, so that none is in our cache; asking for
    # the count takes them into the fold before the clock runs.
    ask(MODULE, "fill", directory, "ready", CLAIM_COUNT)
    counts(store)
    return seconds


def live(directory: str, kind: str, count: str) -> dict[str, Any]:
    store = open_store(directory, LogConfig())
    assert not claim(store, 1)
    add(store, "ready", CLAIM_COUNT)
    gc.collect()
    before = rss_bytes()
    seconds = add(store, kind, int(count))
    gc.collect()
    growth = rss_bytes() - before
    assert counts(store)[1] == int(count) + CLAIM_COUNT
    store.close()
    return {"add_seconds": seconds, "growth": growth}


def first_bytes(directory: str) -> dict[str, Any]:
    """Enqueue the first job of a fresh process, at the log: a durable answer."""
    before, begin = rss_bytes(), time.perf_counter()
    store = open_store(directory, LogConfig())
    store.thread_port.enqueue(SPEC, PAYLOAD).result()
    taken = {"seconds": time.perf_counter() - begin, "growth": rss_bytes() - before}
    store.close()
    return taken


def first_call(directory: str) -> dict[str, Any]:
    """Enqueue the first job of a fresh process, through the API: its task is declared before."""
    from taskq import TaskQ  # noqa: PLC0415 - the other parts are to be free of it

    app = TaskQ(directory)

    @app.task(name="first")
    def call(i: int, subject: str) -> None:
        """Never run here."""

    before, begin = rss_bytes(), time.perf_counter()
    call.enqueue_sync(1, subject="x" * 84)
    return {"seconds": time.perf_counter() - begin, "growth": rss_bytes() - before}


def compact(directory: str) -> dict[str, Any]:
    store = open_store(directory, LogConfig())
    begin = time.perf_counter()
    store.thread_port.compact(0.0, dry_run=False).result()
    seconds = time.perf_counter() - begin
    store.close()
    return {"seconds": seconds}


def index(directory: str) -> dict[str, Any]:
    journal = open_journal(directory)
    for _ in journal.indexes.upkeep_steps():
        pass
    first = min(Path(directory, "log").glob("*.idx"), default=None)
    assert first is not None, "no segment is full: give more --jobs"
    first.unlink()
    journal.indexes.forget()
    begin = time.perf_counter()
    for _ in journal.indexes.save_steps(int(first.stem)):
        pass
    seconds = time.perf_counter() - begin
    journal.close()
    share = first.stat().st_size / first.with_suffix(".log").stat().st_size
    return {"seconds": seconds, "percent": share * 100}


def look_up(directory: str) -> dict[str, Any]:
    return asyncio.run(_look_up(directory))


async def _look_up(directory: str) -> dict[str, Any]:
    from taskq import TaskLog  # noqa: PLC0415 - the other parts are to be free of it

    reader = open_journal(directory)
    chance = random.Random(1)
    async with TaskLog.open(directory, durability="os") as log:
        before = rss_bytes()
        times: list[float] = []
        while len(times) < LOOKUPS:
            job = chance.randrange(1, reader.next_lsn)
            place = reader.indexes.find(job)
            if place is None or place.record[4] != Kind.ENQUEUED:
                continue
            begin = time.perf_counter()
            view = await log.get(f"{reader.tag}-{job}")
            times.append(time.perf_counter() - begin)
            assert view.state is State.SUCCEEDED
        growth = rss_bytes() - before
    reader.close()
    return {"median": median(times), "p99": percentile(times, 99), "growth": growth}


PARTS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    part.__name__: part
    for part in (
        fill, reopen, live, first_bytes, first_call, compact, index, look_up,
    )
}  # fmt: skip


def measure_waiting(table: Table, place: Path, jobs: int) -> None:
    for kind, limit in KINDS.items():
        few, many, alive = (place / f"{kind}-{name}" for name in ("few", "many", "live"))
        ask(MODULE, "fill", few, kind, CLAIM_COUNT)
        filled = ask(MODULE, "fill", many, kind, jobs)
        small = ask(MODULE, "reopen", few, kind, CLAIM_COUNT)
        large = ask(MODULE, "reopen", many, kind, jobs)
        taken = ask(MODULE, "live", alive, kind, jobs)
        growth = (large["growth"] - small["growth"]) / (jobs - CLAIM_COUNT)
        table.figure(f"{kind}: growth on reopening", growth, "B/job", limit)
        table.figure(f"{kind}: growth on taking in", taken["growth"] / jobs, "B/job", limit)
        table.figure(f"{kind}: enqueue_many, no claimer", filled["add_seconds"] * 1e6, "µs/job")
        table.figure(f"{kind}: enqueue_many, a claimer", taken["add_seconds"] * 1e6, "µs/job")
        table.figure(f"{kind}: reopen and claim one", large["seconds"], "s", 3)
        if large["claim"]:
            table.figure(f"{kind}: claim 1 000 of 1 000", small["claim"] * 1e3, "ms")
            table.figure(f"{kind}: claim 1 000 of all", large["claim"] * 1e3, "ms")
            times = large["claim"] / small["claim"]
            table.figure(f"{kind}: claim, all against 1 000", times, "times", 2)


def measure_first(table: Table, place: Path, jobs: int) -> None:
    ask(MODULE, "fill", place / "full", "ready", jobs)
    for part, what in (("first_bytes", "bytes, at the log"), ("first_call", "call, enqueue_sync")):
        taken = [ask(MODULE, part, place / "full") for _ in range(5)]
        seconds, growth = (
            median([delivery[name] for delivery in taken]) for name in ("seconds", "growth")
        )
        table.figure(f"first enqueue, {what}", seconds * 1e3, "ms", 50)
        table.figure(f"first enqueue, {what}", growth / MIB, "MiB", 5)


def measure_past(table: Table, place: Path, jobs: int) -> None:
    directory, small, finished = place / "large", place / "small", 5 * jobs
    ask(MODULE, "fill", small, "ready", 1)
    base = ask(MODULE, "reopen", small, "ready", 1)["growth"]
    ask(MODULE, "fill", directory, "ready", jobs, finished)
    for what, limits in (("", (0.5, None)), (" after taskq compact", (0.5, 1.5))):
        for name, limit in zip(("from a snapshot", "without"), limits, strict=True):
            if name == "without":
                for file in (directory / "snapshot").glob("*"):
                    file.unlink()
            taken = ask(MODULE, "reopen", directory, "ready", jobs, finished)
            table.figure(f"first claim {name}{what}", taken["seconds"], "s", limit)
            table.figure("records folded", taken["folded"], "")
            table.figure("a waiting job", (taken["growth"] - base) / jobs, "B", KINDS["ready"])
        if not what:
            table.figure("compacting", ask(MODULE, "compact", directory)["seconds"], "s")


def measure_lookup(table: Table, place: Path, jobs: int) -> None:
    ask(MODULE, "fill", place / "past", "ready", 0, jobs)
    indexed, looked = (ask(MODULE, part, place / "past") for part in ("index", "look_up"))
    table.figure("get(), median", looked["median"] * 1e3, "ms", 1)
    table.figure("get(), p99", looked["p99"] * 1e3, "ms")
    table.figure("memory for all that", looked["growth"] / MIB, "MiB")
    table.figure("indexing one segment", indexed["seconds"], "s")
    table.figure("index beside its segment", indexed["percent"], "%")


MEASURES: Final = {
    "waiting": measure_waiting,
    "first": measure_first,
    "past": measure_past,
    "lookup": measure_lookup,
}


def main() -> None:
    serve(PARTS)
    given = options(__doc__, jobs=1_000_000, only=tuple(MEASURES))
    table = Table(f"{given.jobs:,} jobs", "what", "value", "unit", "target")
    for name in given.only or MEASURES:
        with scratch(given.dir) as place:
            MEASURES[name](table, place, given.jobs)
    table.print()


if __name__ == "__main__":
    main()
