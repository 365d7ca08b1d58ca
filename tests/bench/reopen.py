"""Opening a log with a past: finished jobs by the million, and another million that wait.

Run: ``python -m tests.bench.reopen [--finished N] [--waiting N]``. See README.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from taskq.core.model import Durability, Extras
from taskq.core.records import Kind
from taskq.log.config import LogConfig
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Settlement
from taskq.log.store.store import Store, open_store
from tests.bench.process import MIB, ask, rss_bytes
from tests.bench.tables import Table, median

PART: Final = "tests.bench.reopen"
PAYLOAD: Final = b"x" * 100
SPEC: Final = EnqueueSpec()
TRANSACTION_COUNT: Final = 5_000
CONFIG: Final = LogConfig(durability=Durability.OS)
ROUNDS: Final = 5
TARGET_SECONDS: Final = 0.5
COMPACTED_SECONDS: Final = 1.5
TARGET_BYTES: Final = 64

Item = tuple[EnqueueSpec, bytes, Extras | None]
Part = Callable[..., dict[str, Any]]


def enqueue(store: Store, count: int) -> None:
    """So many jobs, in transactions."""
    for first in range(0, count, TRANSACTION_COUNT):
        many: list[Item] = [(SPEC, PAYLOAD, None)] * min(TRANSACTION_COUNT, count - first)
        store.thread_port.enqueue_many(many).result()


def claim(store: Store, count: int) -> list[Delivery]:
    """Return what is ready, at most so many, without waiting."""
    request = ClaimRequest(count=count, wait_until_ns=store.steady_ns())
    deliveries: list[Delivery] = store.thread_port.claim(request).result()
    return deliveries


def counts(store: Store) -> tuple[int, int]:
    """Return jobs that succeeded, and jobs that wait or run."""
    queues = store.thread_port.stats().result().queues
    waiting = sum(queue.ready + queue.scheduled + queue.running for queue in queues)
    return sum(queue.succeeded for queue in queues), waiting


def fill(directory: str, finished: str, waiting: str) -> dict[str, Any]:
    """Return a worker's process: it runs some jobs to their end, and leaves others."""
    store = open_store(directory, CONFIG)
    start = time.perf_counter()
    for first in range(0, int(finished), TRANSACTION_COUNT):
        enqueue(store, min(TRANSACTION_COUNT, int(finished) - first))
        while deliveries := claim(store, TRANSACTION_COUNT):
            ends = [Settlement(Kind.SUCCEEDED, one) for one in deliveries]
            assert not any(store.thread_port.settle(ends).result())
    enqueue(store, int(waiting))
    seconds = time.perf_counter() - start
    assert counts(store) == (int(finished), int(waiting))
    start = time.perf_counter()
    store.close()
    return {"seconds": seconds, "close_seconds": time.perf_counter() - start}


def reopen(directory: str, finished: str, waiting: str) -> dict[str, Any]:
    """Return a fresh process: until its first claim is answered, and what it has in memory then."""
    before = rss_bytes()
    start = time.perf_counter()
    store = open_store(directory, CONFIG)
    opened = time.perf_counter() - start
    (delivery,) = claim(store, 1)
    seconds = time.perf_counter() - start
    gc.collect()
    rss = rss_bytes() - before
    assert delivery.payload == PAYLOAD
    assert counts(store) == (int(finished), int(waiting))
    folded = store.thread_port.stats().result().engine.caught_up_records
    store.thread_port.settle([Settlement(Kind.RELEASED, delivery)]).result()
    store.close()
    return {"open": opened, "seconds": seconds, "rss": rss, "folded": folded}


def compact(directory: str) -> dict[str, Any]:
    """Let every finished job go."""
    store = open_store(directory, CONFIG)
    start = time.perf_counter()
    report = store.thread_port.compact(0.0, dry_run=False).result()
    seconds = time.perf_counter() - start
    store.close()
    return {"seconds": seconds, "carried": report.carried}


def reopened(directory: Path, finished: int, waiting: int, *, snapshots: bool) -> dict[str, Any]:
    """Return the median of some reopenings, each in a process of its own."""
    samples = []
    for _ in range(ROUNDS):
        kept, aside = directory / "snapshot", directory / "aside"
        if not snapshots and kept.exists():
            kept.rename(aside)
        samples.append(ask(PART, "reopen", directory, finished, waiting))
        if aside.exists():
            # What this process wrote at its close is of no use here.
            for file in kept.iterdir():
                file.unlink()
            kept.rmdir()
            aside.rename(kept)
    return {name: median([sample[name] for sample in samples]) for name in samples[0]}


def sizes(directory: Path) -> tuple[float, float, int]:
    """MiB of segments, MiB of the largest snapshot, number of segments."""
    segments = [path.stat().st_size for path in (directory / "log").glob("*.log")]
    snapshots = [path.stat().st_size for path in (directory / "snapshot").glob("*.snap")]
    return sum(segments) / MIB, max(snapshots, default=0) / MIB, len(segments)


def measure(parent: Path, finished: int, waiting: int) -> Table:
    """Build the log and open it again and again."""
    directory, small = parent / "large", parent / "small"
    table = Table(
        f"{finished:,} finished and {waiting:,} waiting jobs", ("what", "value", "unit", "target")
    )

    def row(what: str, value: float, unit: str, limit: float | None = None) -> None:
        kept = "" if limit is None else f"≤ {limit:g} {'yes' if value <= limit else 'NO'}"
        table.row(what, f"{value:,.3f}", unit, kept)

    ask(PART, "fill", small, 0, 1)
    base = ask(PART, "reopen", small, 0, 1)["rss"]
    filled = ask(PART, "fill", directory, finished, waiting)
    row("filling", filled["seconds"], "s")
    row("closing, with a snapshot if one is due", filled["close_seconds"], "s")
    log, snapshot, count = sizes(directory)
    row(f"log, {count} segments", log, "MiB")
    row("snapshot", snapshot, "MiB")
    some = reopened(directory, finished, waiting, snapshots=True)
    row("first claim, from the snapshot", some["seconds"], "s", TARGET_SECONDS)
    row("of that until the log is open", some["open"], "s")
    row("records folded behind the snapshot", some["folded"], "")
    row("memory of a waiting job", (some["rss"] - base) / waiting, "B", TARGET_BYTES)
    every = reopened(directory, finished, waiting, snapshots=False)
    row("first claim, without snapshots", every["seconds"], "s")
    row("records folded", every["folded"], "")
    compacted = ask(PART, "compact", directory)
    row("compacting all that it may", compacted["seconds"], "s")
    log, snapshot, count = sizes(directory)
    row(f"log then, {count} segments", log, "MiB")
    for what, snapshots, limit in (
        ("first claim then, from a snapshot", True, TARGET_SECONDS),
        ("first claim then, without", False, COMPACTED_SECONDS),
    ):
        some = reopened(directory, finished, waiting, snapshots=snapshots)
        row(what, some["seconds"], "s", limit)
    return table


PARTS: Final[dict[str, Part]] = {"fill": fill, "reopen": reopen, "compact": compact}


def main() -> None:
    """Measure, or be one of the processes that are measured."""
    if len(sys.argv) > 1 and sys.argv[1] in PARTS:
        print(json.dumps(PARTS[sys.argv[1]](*sys.argv[2:])))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--finished", type=int, default=5_000_000)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--dir", type=Path, default=Path())
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as parent:
        measure(Path(parent).absolute(), options.finished, options.waiting).print()


if __name__ == "__main__":
    main()
