"""Finished jobs among millions of records: ``TaskLog.get()``, and making the index of a segment.

Run: ``python -m tests.bench.lookup [--records N]``. See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from taskq.app.tasklog import TaskLog
from taskq.core.model import Durability, Extras, State
from taskq.core.records import Kind
from taskq.log.config import LogConfig
from taskq.log.read.reader import open_journal
from taskq.log.requests import ClaimRequest, EnqueueSpec, Settlement
from taskq.log.store.store import Store, open_store
from tests.bench.process import ask, rss_bytes
from tests.bench.tables import Table, median, percentile

PART: Final = "tests.bench.lookup"
PAYLOAD: Final = b"x" * 100
SPEC: Final = EnqueueSpec()
BATCH: Final = 1_000
LOOKUPS: Final = 2_000
TARGET_MS: Final = 1.0


Item = tuple[EnqueueSpec, bytes, Extras | None]
Part = Callable[..., dict[str, Any]]


def settle_all(store: Store) -> None:
    """Run what is ready to its end; every other job with a result."""
    request = ClaimRequest(count=BATCH, wait_until_ns=store.steady_ns())
    while deliveries := store.thread_port.claim(request).result():
        ends = [
            Settlement(Kind.SUCCEEDED, one, b"result of %d" % one.job if one.job % 2 else None)
            for one in deliveries
        ]
        store.thread_port.settle(ends).result()


def fill(directory: str, records: str, segment_bytes: str) -> dict[str, Any]:
    """Enqueue, claim and settle so many records' worth of jobs."""
    config = LogConfig(durability=Durability.OS, segment_bytes=int(segment_bytes))
    store = open_store(directory, config)
    start = time.perf_counter()
    for _ in range(0, int(records) // 3, 5 * BATCH):
        items: list[Item] = [(SPEC, PAYLOAD, None)] * (5 * BATCH)
        store.thread_port.enqueue_many(items).result()
        settle_all(store)
    seconds = time.perf_counter() - start
    store.close()
    return {"seconds": seconds}


def index(directory: str) -> dict[str, Any]:
    """Write every index that is missing, and the first one anew: (seconds, longest step)."""
    journal = open_journal(directory)
    for _ in journal.indexes.upkeep_steps():
        pass
    first = min(Path(directory, "log").glob("*.idx"))
    first.unlink()
    journal.indexes.forget()
    steps: list[float] = []
    begin = last = time.perf_counter()
    for _ in journal.indexes.save_steps(int(first.stem)):
        now = time.perf_counter()
        steps.append(now - last)
        last = now
    seconds = time.perf_counter() - begin
    size = first.stat().st_size
    journal.close()
    return {
        "seconds": seconds,
        "size": size,
        "segment": first.with_suffix(".log").stat().st_size,
        "median_step": median(steps),
        "p99_step": percentile(steps, 99),
        "files": len(list(Path(directory, "log").glob("*.idx"))),
    }


async def _gets(directory: str) -> dict[str, Any]:
    reader = open_journal(directory)
    chance = random.Random(1)
    async with TaskLog.open(directory, durability="os") as log:
        before = rss_bytes()
        start = time.perf_counter()
        await log.get(f"{reader.tag}-1")
        first = time.perf_counter() - start
        times: list[float] = []
        found = 0
        while found < LOOKUPS:
            job = chance.randrange(1, reader.next_lsn)
            place = reader.indexes.find(job)
            if place is None or place.record[4] != Kind.ENQUEUED:
                continue
            start = time.perf_counter()
            view = await log.get(f"{reader.tag}-{job}")
            times.append(time.perf_counter() - start)
            assert view.state is State.SUCCEEDED
            assert len(view.attempts) == 1
            found += 1
        grown = rss_bytes() - before
    return {
        "first": first,
        "median": median(times),
        "p99": percentile(times, 99),
        "grown": grown,
        "records": reader.next_lsn - 1,
    }


def gets(directory: str) -> dict[str, Any]:
    """Return seconds of ``get()`` for random finished jobs, the first of all on its own."""
    return asyncio.run(_gets(directory))


def measure(directory: Path, records: int, segment_bytes: int) -> Table:
    """Fill, index, look up; each in a process of its own."""
    filled = ask(PART, "fill", directory, records, segment_bytes)
    indexed = ask(PART, "index", directory)
    looked = ask(PART, "gets", directory)
    table = Table(
        f"{looked['records']:,} records of finished jobs, {indexed['files']} sealed segments",
        ("what", "value", "unit", "target", "holds"),
    )
    share = indexed["size"] / indexed["segment"] * 100
    middle = looked["median"] * 1e3
    holds = "yes" if middle <= TARGET_MS else "NO"
    table.row("filling the log", f"{filled['seconds']:,.1f}", "s", "", "")
    table.row("get(), median", f"{middle:,.3f}", "ms", f"≤ {TARGET_MS:g}", holds)
    table.row("get(), p99", f"{looked['p99'] * 1e3:,.3f}", "ms", "", "")
    table.row("get(), the first", f"{looked['first'] * 1e3:,.3f}", "ms", "", "")
    table.row("memory for all that", f"{looked['grown'] / 2**20:,.1f}", "MiB", "", "")
    table.row("indexing one segment", f"{indexed['seconds']:,.3f}", "s", "", "")
    table.row("a step of it, median", f"{indexed['median_step'] * 1e3:,.3f}", "ms", "", "")
    table.row("a step of it, p99", f"{indexed['p99_step'] * 1e3:,.3f}", "ms", "", "")
    table.row("index beside its segment", f"{share:,.1f}", "%", "", "")
    return table


def main() -> None:
    """Measure and print, or be one of the processes that are measured."""
    parts: dict[str, Part] = {"fill": fill, "index": index, "gets": gets}
    if len(sys.argv) > 1 and sys.argv[1] in parts:
        print(json.dumps(parts[sys.argv[1]](*sys.argv[2:])))
        return
    parser = argparse.ArgumentParser(prog="python -m tests.bench.lookup")
    parser.add_argument("--records", type=int, default=5_000_000, help="three for each job")
    parser.add_argument("--segment-mib", type=int, default=64, help="size of a segment")
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="a directory of the disk")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir, prefix=".bench-") as name:
        measure(Path(name) / "log", given.records, given.segment_mib * 2**20).print()


if __name__ == "__main__":
    main()
