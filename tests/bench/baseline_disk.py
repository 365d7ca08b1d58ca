"""What the disk alone does: one small record, write and fdatasync; and 256 KiB batches.

Run: ``python -m tests.bench.baseline_disk``. No queue can answer a lone durable enqueue faster than
the first figure, nor move more bytes than the last.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from tests.bench.harness import Table, microseconds, options, percentile, scratch

if TYPE_CHECKING:
    from pathlib import Path

RECORD_BYTES: Final = 200
BATCH_BYTES: Final = 256 * 1_024

#: macOS keeps fsynced data in the drive's cache, so there the honest call is another.
sync = getattr(os, "fdatasync", os.fsync)


def write_seconds(path: Path, size: int, count: int, *, durable: bool = True) -> list[float]:
    """Return seconds of each of ``count`` appends of ``size`` bytes, made durable or not."""
    block = os.urandom(size)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC, 0o600)
    seconds = []
    try:
        for _ in range(count):
            start = time.perf_counter()
            written = os.write(descriptor, block)
            if durable:
                sync(descriptor)
            seconds.append(time.perf_counter() - start)
            assert written == size, f"{path}: {written} of {size} bytes written"
        assert os.fstat(descriptor).st_size == size * count
    finally:
        os.close(descriptor)
        path.unlink()
    return seconds


def main() -> None:
    """Measure and print."""
    given = options(__doc__, count=2_000)
    table = Table("raw disk", "what", "p50 µs", "p99 µs", "writes/s", "MB/s")
    with scratch(given.dir) as directory:
        for what, size, count, durable in (
            (f"{RECORD_BYTES} B write+fdatasync", RECORD_BYTES, given.count, True),
            (f"{RECORD_BYTES} B write", RECORD_BYTES, given.count, False),
            (f"{BATCH_BYTES // 1024} KiB write+fdatasync", BATCH_BYTES, given.count // 10, True),
        ):
            seconds = write_seconds(directory / "raw", size, count, durable=durable)
            rate = count / sum(seconds)
            p50, p99 = (microseconds(percentile(seconds, percent)) for percent in (50, 99))
            table.row(what, p50, p99, f"{rate:,.0f}", f"{rate * size / 1e6:,.1f}")
    table.print()


if __name__ == "__main__":
    main()
