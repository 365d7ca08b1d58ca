"""Records a second of the decoder: log bytes to Arrow batches, CRCs checked, in one plain process.

Run: ``python -m tests.bench.decode [--jobs N] [--rounds N]``. See README.md.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from taskq.core.model import Extras
from taskq.log.format.options import encode_extras
from taskq_plugins.spark.decode import DETAILS, SCHEMA, Piece, decode
from tests.bench.tables import Table, median
from tests.pipeline.segmentfiles import Segments, enqueued, finished_jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TARGET_PER_SECOND: Final = 2_200_000
_SOME: Final = pa.schema([SCHEMA.field(name) for name in ("lsn", "kind", "job_id", "timestamp")])
_MEGABYTE: Final = 1e6


def payloads(count: int, *, equal: bool) -> list[bytes]:
    """Arguments in JSON, of 100 bytes each or of 80 to 120."""
    pick = random.Random(1)
    sizes = [40 if equal else pick.randrange(20, 60) for _ in range(count)]
    return [
        b'{"to":"user-%08d@example.org","subject":"%s"}' % (n, b"x" * (size + 20))
        for n, size in enumerate(sizes)
    ]


def of_frames(records: int, *, equal: bool) -> Callable[[Segments, int], int]:
    """Return jobs in frames of so many records of one kind."""

    def write(segments: Segments, jobs: int) -> int:
        finished_jobs(segments, payloads(jobs, equal=equal), records)
        return 3 * jobs

    return write


def with_options(segments: Segments, jobs: int) -> int:
    """Return jobs with a key, a header and a delay."""
    for begin in range(0, jobs, 500):
        segments.frame(
            *(
                enqueued(
                    b"{}" * 50,
                    encode_extras(
                        Extras(due_ns=5, key=b"key-%d" % number, headers={"run": "nightly"}), 1_000
                    ),
                )
                for number in range(begin, begin + 500)
            )
        )
    return jobs // 500 * 500


SHAPES: Final[dict[str, Callable[[Segments, int], int]]] = {
    "1 000 a frame, equal": of_frames(1_000, equal=True),
    "1 000 a frame, varied": of_frames(1_000, equal=False),
    "100 a frame, varied": of_frames(100, equal=False),
    "10 a frame, varied": of_frames(10, equal=False),
    "3 a frame, varied": of_frames(3, equal=False),
    "with options": with_options,
}


def timed(piece: Piece, schema: pa.Schema, jobs: int, records: int) -> float:
    """Return seconds that decoding took; what came out is checked."""
    start = time.perf_counter()
    count = 0
    batches: list[pa.RecordBatch] = []
    for batch in decode(piece, schema):
        count += batch.num_rows
        batches.append(batch.select(["kind", "lsn"]))
    seconds = time.perf_counter() - start
    table = pa.Table.from_batches(batches)
    assert count == records, (count, records)
    assert pc.sum(pc.equal(table["kind"], "enqueued")).as_py() == jobs
    assert pc.sum(table["lsn"]).as_py() == records * (records + 1) // 2
    return seconds


def rates(piece: Piece, jobs: int, records: int, rounds: int) -> Iterator[float]:
    """Records a second of each set of columns, the median of some rounds taken in turn."""
    sets = (SCHEMA, DETAILS, _SOME)
    seconds: list[list[float]] = [[] for _ in sets]
    for _ in range(rounds):
        for taken, schema in zip(seconds, sets, strict=True):
            taken.append(timed(piece, schema, jobs, records))
    yield from (records / median(taken) for taken in seconds)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="three records each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="shapes whose name contains this")
    options = parser.parse_args()
    table = Table(
        "Decoding in one process, CRCs checked",
        ["log", "bytes/record", "SCHEMA /s", "MB/s", "DETAILS /s", "4 columns /s"],
    )
    best = 0.0
    for name, write in SHAPES.items():
        if options.only and options.only not in name:
            continue
        # Small frames take long to write.
        jobs = options.jobs if "1 000" in name else options.jobs // 5
        with tempfile.TemporaryDirectory(dir=".") as directory:
            segments = Segments(Path(directory) / "log")
            records = write(segments, jobs)
            jobs = records if write is with_options else records // 3
            piece = segments.piece()
            size = piece.end / records
            every, details, some = rates(piece, jobs, records, options.rounds)
        best = max(best, every)
        table.row(
            name, f"{size:.0f}", f"{every:,.0f}", f"{every * size / _MEGABYTE:,.0f}",
            f"{details:,.0f}", f"{some:,.0f}",
        )  # fmt: skip
    table.print()
    verdict = "reached" if best >= TARGET_PER_SECOND else "missed"
    print(f"\nThe aim of {TARGET_PER_SECOND:,} records/s of all columns of SCHEMA is {verdict}.")


if __name__ == "__main__":
    main()
