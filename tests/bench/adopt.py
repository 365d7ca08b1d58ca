"""Bulk enqueue: jobs a second into the parts of an upload, and adopted, beside ``put_many``.

Usage: python -m tests.bench.adopt [--jobs N] [--rounds N] [--dir DIRECTORY]

Plain jobs with a payload of 100 bytes, durability ``fsync``. In each round, in turn: ``put_many``
of 1 000 jobs at a time, parts by ``add`` and by ``add_many``, adoption alone, adoption beside
enqueues and claims of the same process, and adoption of jobs with keys. Speeds are told by the
clock on the wall, and by the processor time of this process: on a machine that has other things to
do only the second says what it would be alone. At the end every job must be there once.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple, Self

from taskq import Put, TaskLog
from taskq.core.model import Extras
from taskq.log.inbox.parts import encode_tail
from taskq.log.inbox.writer import PartWriter, publish
from taskq.log.requests import EnqueueSpec
from tests.bench.tables import Table, median

SPEC: Final = EnqueueSpec("mail", "mail.send")
TAIL: Final = encode_tail(SPEC)
PAYLOAD: Final = b"x" * 100
AT_A_TIME: Final = 1_000
KEYED_PART: Final = 10


class Sample(NamedTuple):
    """What one run took."""

    jobs: int
    seconds: float
    cpu_seconds: float
    #: longest time that the writer lock was held, 0 where there is none
    hold_seconds: float = 0.0


class Watch:
    """Takes both times of a block."""

    def __enter__(self) -> Self:
        self._at, self._cpu_at = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.seconds = time.perf_counter() - self._at
        self.cpu_seconds = time.process_time() - self._cpu_at


def write(path: Path, jobs: int, *, many: bool) -> Sample:
    """Write and publish parts."""
    payloads = [PAYLOAD] * jobs
    writer = PartWriter(path, "bench")
    with Watch() as watch:
        if many:
            writer.add_many(TAIL, payloads)
        else:
            for payload in payloads:
                writer.add(TAIL, payload)
        part = writer.close()
    assert publish(path, f"bench@{time.time_ns()}", [part])
    return Sample(jobs, watch.seconds, watch.cpu_seconds)


def write_keyed(path: Path, jobs: int) -> None:
    """Publish jobs that have a key each."""
    with PartWriter(path, "bench") as writer:
        for number in range(jobs):
            writer.add(encode_tail(SPEC, Extras(key=b"%d" % number)), PAYLOAD)
        assert publish(path, "bench@1", [writer.close()])


async def put_many(path: Path, jobs: int) -> Sample:
    """Return the same jobs through the ordinary call."""
    async with TaskLog.open(path) as log:
        puts = [Put(payload=PAYLOAD, queue="mail") for _ in range(AT_A_TIME)]
        with Watch() as watch:
            for _ in range(jobs // AT_A_TIME):
                await log.put_many(puts)
        stats = await log.stats()
        assert stats.queues[0].ready == jobs
        assert stats.engine is not None
        return Sample(jobs, *_times(watch), stats.engine.lock_hold_seconds_max)


async def adopt(path: Path, jobs: int, *, busy: bool = False) -> tuple[Sample, int]:
    """Adopt what was published; beside it, if ``busy``, run other jobs. Also: how many of them."""
    async with TaskLog.open(path) as log:
        others = asyncio.create_task(_keep_busy(log)) if busy else None
        with Watch() as watch:
            assert await log.adopt() == jobs
        done = 0
        if others is not None:
            others.cancel()
            done = await others
        stats = await log.stats()
        (mail,) = (queue for queue in stats.queues if queue.queue == "mail")
        assert mail.ready == jobs, f"{mail.ready} jobs are there, {jobs} were uploaded"
        assert await log.adopt() == 0
        assert stats.engine is not None
        return Sample(jobs, *_times(watch), stats.engine.lock_hold_seconds_max), done


async def _keep_busy(log: TaskLog) -> int:
    """Put a job, take it and end it, one after the other, until cancelled; returns how many."""
    done = 0
    try:
        while True:
            await log.put(b"other", queue="other")
            (delivery,) = await log.claim(1, queues=["other"], wait=None)
            await log.ack(delivery)
            done += 1
    except asyncio.CancelledError:
        return done


def _times(watch: Watch) -> tuple[float, float]:
    return watch.seconds, watch.cpu_seconds


def run_round(base: Path, jobs: int) -> tuple[dict[str, Sample], int]:
    """Return one round of everything, each in a directory of its own."""
    found = {"put_many": asyncio.run(put_many(base / "put", jobs))}
    found["parts, add"] = write(base / "alone", jobs, many=False)
    found["adopted"], _ = asyncio.run(adopt(base / "alone", jobs))
    found["parts, add_many"] = write(base / "busy", jobs, many=True)
    found["adopted, busy"], done = asyncio.run(adopt(base / "busy", jobs, busy=True))
    write_keyed(base / "keyed", jobs // KEYED_PART)
    found["adopted, keyed"], _ = asyncio.run(adopt(base / "keyed", jobs // KEYED_PART))
    return found, done


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", default=".")
    options = parser.parse_args()
    jobs = options.jobs // AT_A_TIME * AT_A_TIME
    rounds: list[dict[str, Sample]] = []
    for _ in range(options.rounds):
        base = Path(tempfile.mkdtemp(prefix="bench-adopt-", dir=options.dir))
        try:
            found, done = run_round(base, jobs)
        finally:
            shutil.rmtree(base)
        rounds.append(found)
        print(f"beside the adoption {done} other jobs were put, claimed and ended")
    table = Table(
        f"{jobs:,} plain jobs of {len(PAYLOAD)} bytes, fsync, medians of {len(rounds)} rounds",
        ("what", "jobs/s", "jobs/s of processor time", "lock held at most, ms"),
    )
    for name in rounds[0]:
        samples = [one[name] for one in rounds]
        table.row(
            name,
            f"{median([one.jobs / one.seconds for one in samples]):,.0f}",
            f"{median([one.jobs / one.cpu_seconds for one in samples]):,.0f}",
            f"{median([one.hold_seconds for one in samples]) * 1e3:.1f}",
        )
    table.print()


if __name__ == "__main__":
    main()
