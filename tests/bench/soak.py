"""Full speed for minutes with a limit for the log: directory, memory and lock stay bounded.

``python -m tests.bench.soak [--seconds 600] [--keep-mib 64]`` prints a line every tenth of the
time, and at the end asserts: every job ran once and is counted as succeeded by a fold of the
remaining log, the directory stayed under twice the limit, the memory did not grow after the first
tenth, and the writer lock was never held for over 50 ms, waits for the disk left out.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from taskq import TaskQ
from taskq.log.read.reader import LogReader
from tests.bench.harness import MIB, Table, options, rss_bytes, scratch

PRODUCERS: Final = 200
LOCK_SECONDS_MAX: Final = 0.050
#: Allowed growth of resident memory after the first tenth of the time.
RSS_GROWTH_MAX: Final = 0.10
_LOOKS: Final = 10
_DELAYED_EVERY: Final = 1_000


class Soak:
    """One run."""

    def __init__(self, directory: Path, seconds: float, keep_bytes: int) -> None:
        self.directory = directory
        self.seconds = seconds
        self.keep_bytes = keep_bytes
        self.app = TaskQ(directory, keep_bytes=keep_bytes, keep="never")
        self.table = Table("a soak", "seconds", "done", "jobs/s", "RSS MiB", "log MiB")
        self.enqueued = self.done = 0
        #: memory and directory, a figure for each look
        self.rss: list[int] = []
        self.sizes: list[int] = []
        self.ended = asyncio.Event()

        @self.app.task(name="soak.work")
        async def work(number: int, padding: str) -> int:
            assert padding
            self.done += 1
            if self.done == self.enqueued:
                self.ended.set()
            return number

        self.work = work

    async def run(self) -> None:
        """Produce and work for the whole time, then let everything end."""
        stop = time.monotonic() + self.seconds
        async with self.app:
            async with self.app.worker(concurrency=64):
                await asyncio.gather(
                    self._watch(), *(self._produce(stop) for _ in range(PRODUCERS))
                )
                self.ended.clear()
                if self.done < self.enqueued:
                    await self.ended.wait()
            engine = (await self.app.stats()).engine
        self.table.print()
        assert engine is not None
        hold = engine.lock_hold_seconds_max
        print(f"longest hold of the writer lock: {hold * 1e3:.1f} ms")
        assert hold < LOCK_SECONDS_MAX, "the writer lock was held for too long"

    async def _produce(self, stop: float) -> None:
        # Some wait, so that there is something to write again.
        delayed = self.work.options(delay=min(20.0, self.seconds / 4))
        while time.monotonic() < stop:
            self.enqueued += 1
            task = self.work if self.enqueued % _DELAYED_EVERY else delayed
            await task.enqueue(self.enqueued, "x" * 80)

    async def _watch(self) -> None:
        for look in range(1, _LOOKS + 1):
            before = self.done
            await asyncio.sleep(self.seconds / _LOOKS)
            self.rss.append(rss_bytes())
            self.sizes.append(directory_bytes(self.directory))
            self.table.row(
                f"{look * self.seconds / _LOOKS:.0f}",
                f"{self.done:,}",
                f"{(self.done - before) * _LOOKS / self.seconds:,.0f}",
                f"{self.rss[-1] / MIB:.1f}",
                f"{self.sizes[-1] / MIB:.1f}",
            )

    def check(self) -> None:
        """Assert what must be true at the end."""
        with LogReader.open(str(self.directory)) as reader:
            (queue,) = reader.stats().queues
        assert self.done == self.enqueued == queue.succeeded, (self.done, self.enqueued, queue)
        assert not any((queue.ready, queue.scheduled, queue.running, queue.dead)), queue
        assert max(self.sizes) < 2 * self.keep_bytes, f"{max(self.sizes) / MIB:.1f} MiB"
        growth = self.rss[-1] / self.rss[0] - 1
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
    given = options(__doc__, seconds=600.0, keep_mib=64)
    with scratch(given.dir) as directory:
        soak = Soak(directory / "data", given.seconds, given.keep_mib * MIB)
        asyncio.run(soak.run())
        soak.check()


if __name__ == "__main__":
    main()
