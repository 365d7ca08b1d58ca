"""How long a running job goes on after somebody in another process cancelled it.

``python -m tests.bench.cancel [--jobs 200]`` prints, for ``--jobs`` async tasks and a fifth as many
tasks in child processes, the time from the call of ``cancel()`` in this process to the
CancelledError in a worker of another one, and to ``JobCancelled`` here; the child process is gone
by then. The goal is 100 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Final

from taskq import State, Task, TaskQ
from taskq.errors import JobCancelled
from tests.bench.harness import Table, options, percentile, scratch, start

#: Tasks of this module, since child processes look for them here.
app: Final = TaskQ("cancel-bench")
_LIMIT_SECONDS: Final = 0.1
_PAUSE_SECONDS: Final = 0.003


@app.task(name="bench.async")
async def sleep_long(mark: str) -> None:
    _note(mark, "began")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        _note(mark, "ended")
        raise


@app.task(name="bench.process", runs_in="process")
def block_long(mark: str) -> None:
    _note(mark, "began")
    time.sleep(600)


def _note(mark: str, what: str) -> None:
    """Write when it happened: the clocks of two processes of one machine are the same."""
    path = Path(f"{mark}.{what}")
    path.with_suffix(".new").write_text(f"{time.monotonic()} {os.getpid()}", encoding="ascii")
    path.with_suffix(".new").rename(path)


def _noted(mark: str, what: str) -> tuple[float, int]:
    seconds, pid = Path(f"{mark}.{what}").read_text(encoding="ascii").split()
    return float(seconds), int(pid)


async def _work(directory: str) -> None:
    app.data_dir = Path(directory)
    async with app.worker(concurrency=4) as worker:
        await worker.stopped.wait()


async def _cancel(task: Task[[str], None], mark: str, pause_seconds: float) -> tuple[float, float]:
    """Return seconds to the CancelledError, or 0, and to JobCancelled here."""
    job = await task.enqueue(mark)
    while not Path(f"{mark}.began").exists():  # noqa: ASYNC110, ASYNC240 - a benchmark
        await asyncio.sleep(_PAUSE_SECONDS)
    await asyncio.sleep(pause_seconds)
    begin = time.monotonic()
    assert await job.cancel()
    with contextlib.suppress(JobCancelled):
        await job.result(timeout=10)
        raise AssertionError("it was not cancelled")
    end = time.monotonic()
    assert await job.status() is State.CANCELLED
    if task.name == "bench.async":
        return _noted(mark, "ended")[0] - begin, end - begin
    with contextlib.suppress(ProcessLookupError):
        os.kill(_noted(mark, "began")[1], 0)
        raise AssertionError("the child process lives")
    return 0.0, end - begin


def _row(table: Table, name: str, seconds: list[float]) -> None:
    # The last percent is the machine's: each killed child has a successor that starts.
    p90 = percentile(seconds, 90)
    assert p90 < _LIMIT_SECONDS, f"{name}: {p90 * 1e3:.1f} ms at the 90th percentile"
    figures = (percentile(seconds, 50), percentile(seconds, 99), max(seconds))
    table.row(name, *(f"{figure * 1e3:.1f} ms" for figure in figures))


async def _run(directory: Path, jobs: int) -> None:
    table = Table("from cancel() in another process to", "", "p50", "p99", "max")
    app.data_dir = directory / "data"
    async with app:
        for task, count in ((sleep_long, jobs), (block_long, jobs // 5)):
            taken = [
                await _cancel(task, f"{directory}/{task.name}-{n}", _PAUSE_SECONDS * (n % 7))
                for n in range(count)
            ]
            if task is sleep_long:
                _row(table, "async: its CancelledError", [ended for ended, _ in taken])
            _row(table, f"{task.name}: JobCancelled here", [item for _, item in taken])
        queues = (await app.stats()).queues
    assert sum(queue.running for queue in queues) == 0
    assert sum(queue.cancelled for queue in queues) == jobs + jobs // 5
    table.print()


def main() -> None:
    """Measure beside a worker, or be the worker."""
    if sys.argv[1:2] == ["worker"]:
        asyncio.run(_work(sys.argv[2]))
        return
    given = options(__doc__, jobs=200)
    with scratch(given.dir) as directory:
        worker = start("tests.bench.cancel", "worker", directory / "data")
        try:
            asyncio.run(_run(directory, given.jobs))
        finally:
            worker.terminate()
            worker.communicate()


if __name__ == "__main__":
    main()
