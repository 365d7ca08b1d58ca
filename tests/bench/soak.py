"""A soak: full speed for minutes with a limit for the log; directory, memory and lock stay bounded.

``python -m tests.bench.soak --seconds 600 --keep-mib 64`` prints a line every ten seconds, and at
the end asserts: every job ran once and is counted as succeeded by a fold of what is left, the
directory stayed under twice the limit, the memory did not grow after the first tenth, and the
writer lock was never held for over 50 ms, waits for the disk left out.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from taskq import TaskQ
from taskq.log.read.reader import LogReader
from tests.bench.process import MIB, rss_bytes

PRODUCERS: Final = 200
LOCK_SECONDS_MAX: Final = 0.050
#: What resident memory may gain after the first tenth of the time.
RSS_GROWTH_MAX: Final = 0.10
_LINE_SECONDS: Final = 10.0
_DELAYED_EVERY: Final = 1_000


class Soak:
    """One run."""

    def __init__(self, directory: Path, seconds: float, keep_bytes: int) -> None:
        self.directory = directory
        self.seconds = seconds
        self.keep_bytes = keep_bytes
        self.app = TaskQ(directory, keep_bytes=keep_bytes, keep="never")
        self.enqueued = self.done = self.largest = 0
        self.rss_early = self.rss_last = 0
        self.ended = asyncio.Event()

        @self.app.task(name="soak.work")
        async def work(number: int, padding: str) -> None:
            assert number
            assert padding
            self.done += 1
            if self.done == self.enqueued:
                self.ended.set()

        self.work = work

    async def run(self) -> None:
        """Produce and work for the whole time, then let everything end."""
        start = time.monotonic()
        stop = start + self.seconds
        print(f"{'seconds':>8}{'done':>12}{'jobs/s':>9}{'RSS MiB':>9}{'log MiB':>9}")
        async with self.app:
            async with self.app.worker(concurrency=64):
                producers = [self._produce(stop) for _ in range(PRODUCERS)]
                await asyncio.gather(*producers, self._watch(start, stop))
                self.ended.clear()
                if self.done < self.enqueued:
                    await self.ended.wait()
            stats = await self.app.store().port().stats()
        engine = stats.engine
        assert engine is not None
        hold = engine.lock_hold_seconds_max
        print(f"longest hold of the writer lock: {hold * 1e3:.1f} ms")
        print(f"largest directory: {self.largest / MIB:.1f} MiB")
        assert hold < LOCK_SECONDS_MAX, "the writer lock was held for too long"

    async def _produce(self, stop: float) -> None:
        padding = "x" * 80
        while time.monotonic() < stop:
            self.enqueued += 1
            if self.enqueued % _DELAYED_EVERY:
                await self.work.enqueue(self.enqueued, padding)
            else:  # some that wait, so that there is something to write again
                delayed = self.work.options(delay=min(20.0, self.seconds / 4))
                await delayed.enqueue(self.enqueued, padding)

    async def _watch(self, start: float, stop: float) -> None:
        last, then = 0, start
        while (now := time.monotonic()) < stop:
            await asyncio.sleep(min(_LINE_SECONDS, stop - now))
            now = time.monotonic()
            self.rss_last, size = rss_bytes(), directory_bytes(self.directory)
            self.largest = max(self.largest, size)
            if not self.rss_early and now - start >= self.seconds / 10:
                self.rss_early = self.rss_last
            rate = (self.done - last) / (now - then)
            print(
                f"{now - start:8.0f}{self.done:12d}{rate:9.0f}"
                f"{self.rss_last / MIB:9.1f}{size / MIB:9.1f}",
                flush=True,
            )
            last, then = self.done, now

    def check(self) -> None:
        """What must be true at the end."""
        with LogReader.open(str(self.directory)) as reader:
            (queue,) = reader.stats().queues
        assert self.done == self.enqueued == queue.succeeded, (self.done, self.enqueued, queue)
        assert not any((queue.ready, queue.scheduled, queue.running, queue.dead)), queue
        assert self.largest < 2 * self.keep_bytes, f"{self.largest / MIB:.1f} MiB"
        growth = self.rss_last / self.rss_early - 1
        print(f"memory after the first tenth: {growth:+.1%}")
        assert growth < RSS_GROWTH_MAX, "the memory grows"


def directory_bytes(directory: Path) -> int:
    """Return bytes of all files in it."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def main() -> None:
    """Run it in a new directory."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--keep-mib", type=int, default=64)
    parser.add_argument("--directory", type=Path, default=None, help="where the log is made")
    chosen = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="taskq-soak-", dir=chosen.directory))
    try:
        soak = Soak(directory, chosen.seconds, chosen.keep_mib * MIB)
        asyncio.run(soak.run())
        soak.check()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
