"""No-op jobs in child processes, beside ``concurrent.futures.ProcessPoolExecutor``.

``python -m tests.bench.executors [JOBS]``. The pool keeps nothing: no claim, no result on disk.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from taskq import TaskQ

CHILDREN = 2
app = TaskQ("unused", durability="os")


def nothing(number: int) -> int:
    return number


@app.task(runs_in="process")
def in_process(number: int) -> int:
    return number


@app.task
def in_thread(number: int) -> int:
    return number


@app.task
async def in_loop(number: int) -> int:
    return number


async def run(task: str, jobs: int) -> float:
    """Return seconds that a worker takes for so many jobs, its children warm."""
    with tempfile.TemporaryDirectory() as folder:
        app.data_dir = Path(folder) / "data"
        async with app:
            call = app.call_by_name(task, 1)
            async with app.worker(concurrency=CHILDREN):
                for job in await app.enqueue_many([call] * CHILDREN):
                    await job.result(60)
                began = time.perf_counter()
                handles = await app.enqueue_many([call] * jobs)
                for job in handles:
                    assert await job.result(60) == 1
                return time.perf_counter() - began


def pool_seconds(jobs: int) -> float:
    with ProcessPoolExecutor(CHILDREN, mp_context=get_context("spawn")) as pool:
        list(pool.map(nothing, range(CHILDREN)))
        began = time.perf_counter()
        futures = [pool.submit(nothing, number) for number in range(jobs)]
        assert [one.result() for one in futures] == list(range(jobs))
        return time.perf_counter() - began


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    print(f"{jobs} no-op jobs, {CHILDREN} at a time")
    print(f"  ProcessPoolExecutor  {jobs / pool_seconds(jobs):9,.0f} jobs/s")
    for task in (in_process, in_thread, in_loop):
        seconds = asyncio.run(run(task.name, jobs))
        print(f"  {task.name.rpartition('.')[2]:19}  {jobs / seconds:9,.0f} jobs/s")


if __name__ == "__main__":
    main()
