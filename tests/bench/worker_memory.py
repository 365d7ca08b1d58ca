"""A worker's memory after 10 000, 100 000 and 1 000 000 jobs: it keeps what it had after the first.

``python -m tests.bench.worker_memory`` runs the jobs in one process and enqueues them in another,
never more than ``BACKLOG`` ahead; each job returns a value that is kept. Memory is looked at after
each 1 000 jobs: the table tells what it is at the very mark, whatever upkeep does just then (a
million jobs end while a segment is indexed), the median of the last tenth up to there, and the
highest since the mark before. It asserts that every job succeeded once, and that the memory at the
end, and the median before it, are within 5 % of those after 10 000 jobs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from taskq import TaskQ
from taskq.log.read.reader import LogReader
from taskq_workers.pool import Worker
from taskq_workers.process.supervisor import Supervisor, keep_heap_small
from tests.bench.process import MIB, rss_bytes, start
from tests.bench.tables import Table, median

if TYPE_CHECKING:
    import subprocess

    from taskq.core.views import LogStats
    from taskq.log.store.store import Store
    from taskq_workers.events import JobFinished

MODULE: Final = "tests.bench.worker_memory"
BACKLOG: Final = 10_000
CHUNK: Final = 500
CONCURRENCY: Final = 64
GROWTH_MAX: Final = 0.05
_REPORT_EVERY: Final = 1_000
_PADDING: Final = "x" * 80


def app_of(directory: Path) -> TaskQ:
    """Return the app of both sides."""
    app = TaskQ(directory)

    @app.task(name="noop")
    async def noop(number: int, padding: str) -> int:
        assert padding
        return number

    return app


def work(directory: Path, jobs: int) -> None:
    """Run so many jobs as ``taskq worker`` does; print how far it is, and its memory."""
    keep_heap_small()
    done = 0
    began = time.monotonic()
    app = app_of(directory)

    def count(event: JobFinished) -> None:
        nonlocal done
        assert event.outcome == "succeeded", event
        done += 1
        if not done % _REPORT_EVERY:
            report()

    def report() -> None:
        told = {"done": done, "rss": rss_bytes(), "seconds": time.monotonic() - began}
        print(json.dumps(told), flush=True)

    def on_ready(store: Store, _: LogStats) -> None:
        assert store.usable
        report()

    worker = Worker(app, concurrency=CONCURRENCY, max_jobs=jobs, on_event=count)
    Supervisor(worker, on_ready, lambda _: None).run()


def produce(directory: Path, jobs: int) -> None:
    """Enqueue up to the number that each line of the input allows."""
    app = app_of(directory)
    sent = 0
    for line in sys.stdin:
        allowed = min(int(line), jobs)
        while sent < allowed:
            count = min(CHUNK, allowed - sent)
            app._tasks["noop"].enqueue_many_sync([(sent + n, _PADDING) for n in range(count)])
            sent += count
        if sent == jobs:
            break
    app.close_sync()


def measure(directory: Path, jobs: int) -> list[tuple[int, int, float]]:
    """(jobs, resident bytes, seconds since the start), again and again."""
    worker = start(MODULE, "--worker", "--directory", directory, "--jobs", jobs)
    producer = start(MODULE, "--producer", "--directory", directory, "--jobs", jobs)
    samples = []
    try:
        for line in _lines(worker):
            told = json.loads(line)
            samples.append((told["done"], told["rss"], told["seconds"]))
            _allow(producer, told["done"] + BACKLOG)
        assert worker.wait(60) == 0
        assert producer.wait(60) == 0
    finally:
        for child in (worker, producer):
            child.kill()
            child.wait()
    return samples


def _lines(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def _allow(producer: subprocess.Popen[str], count: int) -> None:
    assert producer.stdin is not None
    if producer.poll() is None:
        try:
            print(count, file=producer.stdin, flush=True)
        except BrokenPipeError:  # it has enqueued all
            return


def check(directory: Path, jobs: int, samples: list[tuple[int, int, float]]) -> None:
    """Print the table, and assert the end state."""
    columns = ("jobs run", "MiB", "median", "highest", "seconds")
    table = Table("resident memory of a worker", columns)
    plain, medians, before = [], [], -1
    for mark in (0, *(mark for mark in (10_000, 100_000, 1_000_000) if mark < jobs), jobs):
        sizes = [size for done, size, _ in samples if mark - mark // 10 <= done <= mark]
        highest = max(size for done, size, _ in samples if before < done <= mark)
        seconds = max(seconds for done, _, seconds in samples if done <= mark)
        plain.append(sizes[-1])
        medians.append(median(sizes))
        before = mark
        shown = (f"{size / MIB:.1f}" for size in (plain[-1], medians[-1], highest))
        table.row(f"{mark:,}", *shown, f"{seconds:.1f}")
    table.print()
    with LogReader.open(str(directory)) as reader:
        (queue,) = reader.stats().queues
    assert queue.succeeded == jobs, queue
    assert not any((queue.ready, queue.scheduled, queue.running, queue.dead)), queue
    growth = [sizes[-1] / sizes[1] - 1 for sizes in (plain, medians)]
    print(f"at the end, against 10,000 jobs: {growth[0]:+.1%}, medians {growth[1]:+.1%}")
    assert all(abs(part) <= GROWTH_MAX for part in growth), "the worker's memory grows"


def main() -> None:
    """Run it in a new directory."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path, default=None, help="where the log is made")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--producer", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        work(chosen.directory, chosen.jobs)
    elif chosen.producer:
        produce(chosen.directory, chosen.jobs)
    else:
        directory = Path(tempfile.mkdtemp(prefix="taskq-memory-", dir=chosen.directory))
        try:
            check(directory, chosen.jobs, measure(directory, chosen.jobs))
        finally:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
