"""What the disk alone does: one small record, write and fdatasync; and 256 KiB batches.

Run: ``python -m tests.bench.baseline_disk``. No queue can answer a lone durable enqueue faster than
the first figure, nor move more bytes than the second.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.bench.tables import Table, microseconds, percentile

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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="a directory of the disk")
    parser.add_argument("--count", type=int, default=2_000, help="small records to write")
    options = parser.parse_args()
    table = Table("raw disk", ("what", "p50 µs", "p99 µs", "writes/s", "MB/s"))
    with tempfile.TemporaryDirectory(dir=options.dir, prefix=".bench-") as directory:
        for what, size, count, durable in (
            (f"{RECORD_BYTES} B write+fdatasync", RECORD_BYTES, options.count, True),
            (f"{RECORD_BYTES} B write", RECORD_BYTES, options.count, False),
            (f"{BATCH_BYTES // 1024} KiB write+fdatasync", BATCH_BYTES, options.count // 10, True),
        ):
            seconds = write_seconds(Path(directory) / "raw", size, count, durable=durable)
            rate = count / sum(seconds)
            table.row(
                what,
                microseconds(percentile(seconds, 50)),
                microseconds(percentile(seconds, 99)),
                f"{rate:,.0f}",
                f"{rate * size / 1e6:,.1f}",
            )
    table.print()


if __name__ == "__main__":
    main()
